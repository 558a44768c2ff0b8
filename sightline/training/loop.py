"""The training loop: `fit` prepares a run, `loop` is all of training."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline.data.datasets import Dataset
from sightline.data.targets.view import with_targets
from sightline.dense.model import FILE as DENSE
from sightline.dense.model import save_head
from sightline.files import exclusive
from sightline.models.checks import pair
from sightline.models.construct import Model, build, resize
from sightline.training.failures import (
    Stopped,
    check_finite,
    check_weights,
    explain_lost_process,
    explain_out_of_memory,
    watch_rank,
)
from sightline.training.meter import Meter, ProgressPrinter
from sightline.training.objectives.dense import DenseObjective
from sightline.training.optimization.schedule import learning_rate
from sightline.training.parallel import ProcessGroup, Strategy, full_tensor, join_processes
from sightline.training.preflight.checks import check_disk, check_run
from sightline.training.preflight.measure import fit_to_memory, measure_speed
from sightline.training.preflight.plan import Plan
from sightline.training.preflight.threads import resume_threads
from sightline.training.recipe import Recipe
from sightline.training.run.checkpoint import read_facts
from sightline.training.run.folder import BEST, LAST, Run
from sightline.training.run.identity import environment, fingerprint, identity
from sightline.training.run.trackers import open_tracker
from sightline.training.system import catch_stop_signals
from sightline.training.train_state import TrainState, overwrite_model
from sightline.training.validation import (
    calibrate,
    judge_features,
    learns_without_labels,
    validate,
    validation_score,
    warn_of_few,
)

Evaluator = tuple[int, Callable[[Any], dict[str, float]]]  # interval in steps, function of the model
log = logging.getLogger("sightline.training")
MINUTES = 10  # between two checkpoints, unless the recipe sets save_every


def fit(
    model: Model,
    train: Dataset,
    recipe: Recipe,
    *,
    val: Dataset | None = None,
    out: str | Path = "runs/x",
    evals: Sequence[Evaluator] = (),
    workers: int = 0,
    parallel: Strategy = "ddp",
) -> Run:
    """Train a model in place by a recipe; everything about the run is written to the folder `out`.

    If the folder contains the same run, training resumes from the last checkpoint, bit-identical to a run that never
    stopped; if it contains another run, nothing is changed. `val` is evaluated at intervals, and the best weights are
    kept; `evals` are pairs (interval in steps, model -> numbers) such as `sl.evals.fewshot_evaluator`. Under torchrun
    the batch is split over all processes, each with the whole model ("ddp") or a part of it ("fsdp").

    >>> import tempfile
    >>> train, val = sl.dataset("scenes/shape", num=64, size=16).split(0.5)
    >>> model = sl.build("vit-nano4", classes=len(train.classes), size=16)
    >>> recipe = sl.Recipe(lr=1e-3, batch=16, steps=4, log_every=2)
    >>> run = sl.fit(model, train, recipe, val=val, out=tempfile.mkdtemp())
    >>> run.finished, [row["step"] for row in run.rows() if "lr" in row]
    (True, [2, 4])
    """
    check_arguments(model, train, recipe, val=val, workers=workers)
    run, processes = Run(out), join_processes(parallel)
    classes: tuple[str, ...] = ()
    if recipe.dense:
        train, val = with_targets(train), None if val is None else with_targets(val)
        classes = train.object_classes
    with torch.random.fork_rng(), resume_threads(run), explain_lost_process(processes, out):
        plan = check_run(model, train, recipe, val=val, evals=evals, processes=processes)
        weights = fingerprint(model)
        resize_model(model, recipe.sizes[-1][1] if recipe.sizes else recipe.size)
        about = describe_run(model, train, recipe, val)
        if load_finished(run, about, model, weights=weights):
            return run
        job = Job(run=run, plan=plan, train=train, val=val, evals=tuple(evals), workers=workers)
        state = TrainState(model, recipe, processes, fresh=read_facts(run.state) is None, classes=classes)
        if recipe.task == "classify":
            model.class_names = tuple(train.classes)  # type: ignore[assignment]
            model.probability = recipe.loss  # type: ignore[assignment]
        try:
            with explain_out_of_memory(state, run), exclusive(out) if processes.first else nullcontext():
                loop(*prepare(job, about, state))
        finally:  # also after a stop or a divergence
            state.release()
    return run


def check_arguments(model: Any, train: Any, recipe: Any, *, val: Any, workers: int) -> None:
    """Refuse arguments of the wrong type, in words."""
    if not isinstance(model, Model):
        raise ValueError(
            f"fit trains Sightline's models; got a {type(model).__name__}: convert its weights with sl.load."
        )
    if not (isinstance(recipe, Recipe) and isinstance(train, Dataset) and isinstance(val, Dataset | None)):
        raise ValueError(
            "fit(model, data, recipe) takes a dataset (sl.dataset, sl.Folder) and a recipe, such as "
            f"sl.recipes.laptop_vit(); got a {type(train).__name__} and a {type(recipe).__name__}, "
            f"val={type(val).__name__}."
        )
    if odd := [f"{p.dtype} on {p.device}" for p in model.parameters() if p.is_meta or p.dtype != torch.float32]:
        raise ValueError(
            f"fit trains float32 models in memory; got {odd[0]}: call model.float(), or build without device=."
        )
    if workers < 0:
        raise ValueError(f"workers={workers}: expected 0 (this process prepares the images) or more.")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What stays the same during a run."""

    run: Run
    plan: Plan
    train: Dataset
    val: Dataset | None
    evals: tuple[Evaluator, ...]
    workers: int


def loop(job: Job, state: TrainState, facts: dict[str, Any]) -> None:
    """Every step of a run, from the one that `facts` says to the last."""
    run, plan, recipe, processes = job.run, job.plan, state.recipe, state.processes
    step, best, stale, over = facts["step"], facts["best"], facts["stale"], facts["over"]
    bad: dict[str, str] = {}
    meter, saved = Meter(state.device), time.monotonic()
    printer = ProgressPrinter(plan.steps, quiet=not processes.first, run=run)
    for line in plan.describe_speed() if step == 0 else (f"resuming at step {step:,} of {plan.steps:,}",):
        printer.print(line)
    warn_of_few(state, job.train)
    with catch_stop_signals() as stop_signal, printer.show(step), open_log(run, recipe, processes) as log:
        for images, labels in training_batches(job, state, start=plan.steps if over else step, bad=bad):
            meter.data_arrived()
            rate = learning_rate(recipe, step, steps=plan.steps, warmup=plan.warmup)
            logged = (step + 1) % recipe.log_every == 0 or step + 1 == plan.steps
            result = state.train_step(images, labels, step=step, rate=rate, with_norms=logged)
            step += 1
            check_finite(result, state, images, step=step, run=run)
            meter.step_done(result.loss, len(images))
            row = meter.row(result, rate, processes) if logged else {}
            due = step % plan.eval_every == 0 or step == plan.steps
            if due and job.val is not None:
                row |= validate(state, job.val, workers=job.workers)
                score = validation_score(row)
                if score is not None and (best is None or score > best["score"]):
                    check_weights(state, images, labels, step=step, run=run)
                    best, stale = {"score": score, "step": step}, 0
                    save_weights(run, state, BEST)
                else:
                    stale += 1
            if recipe.keep_every is not None and step % recipe.keep_every == 0:
                save_weights(run, state, f"step-{step}.safetensors")
            if due and learns_without_labels(state) and "val/rank" not in row:
                row |= judge_features(state, job.train, name="train", workers=job.workers)
            if processes.first:
                watch_rank(run, row, step=step)
            row |= run_evaluators(state, job.evals, step=step, last=step == plan.steps)
            if row:
                log(step, row)
                printer.print_row(step, row)
            printer.update(step)
            over = step == plan.steps or (recipe.patience is not None and stale >= recipe.patience)
            stop = processes.any(stop_signal.is_set())
            late = recipe.save_every is None and time.monotonic() - saved > 60 * MINUTES
            if over or stop or step % plan.save_every == 0 or processes.any(late):
                check_weights(state, images, labels, step=step, run=run)
                save_weights(run, state, LAST)
                run.sync_log()
                state.save(run.state, {"step": step, "best": best, "stale": stale, "over": over})
                saved = time.monotonic()
            if over or stop:
                break
            meter.wait_for_data()
    if not over:
        raise Stopped(f"stopped at step {step:,} of {plan.steps:,}, saved in {run.folder}; run it again to resume")
    finish(job, state, step=step, best=best, bad=bad)


def training_batches(
    job: Job, state: TrainState, *, start: int, bad: dict[str, str]
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of every step from `start` on, keyed by (seed, epoch, number), at the image size of their stage."""
    recipe, plan, processes = state.recipe, job.plan, state.processes
    step = start
    while step < plan.steps:
        epoch, first = divmod(step, plan.epoch_steps)
        size, until = plan.stage(step)
        batches = job.train.batches(
            replace(state.model.image, size=pair(size or state.model.config.size)),
            batch=recipe.batch,
            train=recipe.augment,
            seed=recipe.seed,
            epoch=epoch,
            start=first,
            workers=job.workers,
            rank=processes.rank,
            world=processes.size,
            device=state.device,
            bad=bad,
        )
        for images, labels in batches:
            yield images, labels
            step += 1
            if step >= until:
                break


def run_evaluators(state: TrainState, evals: Sequence[Evaluator], *, step: int, last: bool) -> dict[str, float]:
    """The numbers of all evaluators that are due at this step."""
    numbers: dict[str, float] = {}
    for every, evaluate in evals:
        if last or step % every == 0:
            with state.evaluation_model() as model:
                numbers |= evaluate(model) or {}
    return numbers


def save_weights(run: Run, state: TrainState, name: str, *, probes: bool = False) -> None:
    """Write the model from the first process. model.safetensors is the last one; with `patience`, the best one."""
    with state.evaluation_model() as model:
        if state.processes.sharded:
            values = {n: full_tensor(t).detach().cpu() for n, t in model.state_dict().items()}
            if state.processes.first:
                gathered = build(model.config, device="cpu")
                gathered.load_state_dict(values)
                gathered.image = model.image
                gathered.class_names = getattr(model, "class_names", None)  # type: ignore[assignment]
                gathered.probability = getattr(model, "probability", None) or "softmax"  # type: ignore[assignment]
                model = gathered
        if state.processes.first:
            run.save_weights(model, name, probes=probes)
            chosen = name == (BEST if state.recipe.patience is not None else LAST)
            if chosen:
                run.link_model(name)
            if chosen and isinstance(state.objective, DenseObjective):
                save_head(state.objective.dense, state.objective.config, model, run.path / DENSE)
    state.processes.barrier()


def resize_model(model: Model, size: int | None) -> None:
    """Resize the model in place for the recipe's image size: position embeddings are resampled."""
    if size is not None and pair(size) != pair(model.config.size):
        overwrite_model(model, resize(model, size))


def describe_run(model: Model, train: Dataset, recipe: Recipe, val: Dataset | None) -> dict[str, Any]:
    """The part of run.json that is known before the first step."""
    sizes = {"train": len(train), "val": None if val is None else len(val), "classes": len(train.classes)}
    about = {"name": recipe.name, "data": {"name": train.name, **sizes}, "seed": recipe.seed, **environment()}
    return {**about, "begun": time.strftime("%Y-%m-%d %H:%M:%S"), "identity": identity(model, train, recipe, val)}


def load_finished(run: Run, about: dict[str, Any], model: Model, *, weights: str) -> bool:
    """Whether the folder contains this run and it is complete; the model then becomes the trained one.

    `weights` is the fingerprint of the model before it was resized.
    """
    this = about["identity"]
    if (run.path / "run.json").exists():
        saved, start = run.about, this["model"]["weights"]
        latest = (saved.get("ended") or read_facts(run.state) or {}).get("weights")
        if latest in (start, weights):  # a notebook cell was run again: the model was already trained in place
            start = saved["identity"]["model"]["weights"]
        this = {**this, "model": {**this["model"], "weights": start}}
    run.check_identity(this)
    if not (run.path / "run.json").exists() or not run.finished:
        return False
    overwrite_model(model, run.model.to(next(model.parameters()).device))
    return True


def prepare(job: Job, about: dict[str, Any], state: TrainState) -> tuple[Job, TrainState, dict[str, Any]]:
    """Measure and write the plan of a new run, or restore the state of a run to resume."""
    fresh, processes = not (job.run.path / "run.json").exists(), state.processes
    plan, record = job.plan, {} if fresh else job.run.about
    if fresh:
        plan = fit_to_memory(state, plan, workers=job.workers)
        for line in plan.describe():  # before a trial pass takes its memory and its time
            ProgressPrinter(plan.steps, quiet=not processes.first).print(line)
    else:  # the same passes as before: how a batch is split decides the last bits of a sum
        plan = plan.with_micro(state.recipe.micro or record["plan"].get("micro"), processes)
    state.recipe = replace(state.recipe, micro=plan.micro)
    if fresh:
        plan = measure_speed(state, job.train, plan, workers=job.workers)
        kept = plan.steps // state.recipe.keep_every if state.recipe.keep_every else 0
        check_disk(job.run.path, plan, state.model, kept=kept)
        record = {**about, "plan": asdict(plan)}
    job = replace(job, plan=plan)
    processes.barrier()
    if processes.first and (fresh or record["plan"].get("micro") != plan.micro):
        job.run.write_record({**record, "plan": {**record["plan"], "micro": plan.micro, "passes": plan.passes}})
    processes.barrier()
    facts = state.restore(job.run.state) or {"step": 0, "best": None, "stale": 0, "over": False}
    if state.processes.first:
        job.run.truncate_log(facts["step"])
    return job, state, facts


def finish(job: Job, state: TrainState, *, step: int, best: dict[str, Any] | None, bad: dict[str, str]) -> None:
    """Save the last weights with probes for verification, complete run.json, and leave the saved weights in the
    model."""
    run = job.run
    save_weights(run, state, LAST, probes=True)
    with state.evaluation_model() as model:
        if state.average is not None:
            values = {n: p.detach().clone() for n, p in model.named_parameters()}
    if state.average is not None:
        with torch.no_grad():
            for name, p in state.model.named_parameters():
                p.copy_(values[name])
    state.processes.barrier()
    if state.recipe.patience is not None and not state.processes.sharded:  # the best, not the last
        overwrite_model(state.model, run.model.to(state.device))
    if state.processes.first:
        out = run.model
        ended: dict[str, Any] = {"step": step, "best": best, "bad images": bad, "weights": fingerprint(out)}
        ended |= calibrate(out.to(state.device), job.val, state.recipe)
        run.write_record({**run.about, "ended": {**ended, "at": time.strftime("%Y-%m-%d %H:%M:%S")}})
    state.processes.barrier()


@contextmanager
def open_log(run: Run, recipe: Recipe, processes: ProcessGroup) -> Iterator[Callable[[int, dict[str, Any]], None]]:
    """A function that logs a row to log.jsonl, and to the trackers that the recipe names; first rank only."""
    with ExitStack() as stack:
        trackers = [stack.enter_context(open_tracker(t, run)) for t in recipe.trackers] if processes.first else []

        def log(step: int, row: dict[str, Any]) -> None:
            if processes.first:
                run.log({"step": step, **row})
            for send in trackers:
                send(step, row)

        yield log
