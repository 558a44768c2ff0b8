"""The loop. `fit` prepares a run, `loop` is all of training: read it from top to bottom."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline.data.datasets import Dataset
from sightline.models.bit import BiT
from sightline.models.checks import pair
from sightline.models.construct import Model, build, resize
from sightline.models.vit import ViT
from sightline.training import preflight
from sightline.training.checkpoint import facts_of
from sightline.training.failures import Stopped, blame, exhausted, listening, lost, trust
from sightline.training.meter import Meter, ProgressPrinter
from sightline.training.parallel import Kind, World, joined, whole
from sightline.training.preflight import Plan
from sightline.training.recipe import Recipe
from sightline.training.run import BEST, LAST, Run, fingerprint, identity, surroundings
from sightline.training.schedule import rate
from sightline.training.train_state import TrainState, become
from sightline.training.validate import validate

Evaluator = tuple[int, Callable[[Any], dict[str, float]]]  # every so many steps, a function of the model
MINUTES = 10  # between two checkpoints at most, where the recipe does not say


def fit(
    model: Model,
    train: Dataset,
    recipe: Recipe,
    *,
    val: Dataset | None = None,
    out: str | Path = "runs/x",
    evals: Sequence[Evaluator] = (),
    workers: int = 0,
    parallel: Kind = "ddp",
) -> Run:
    """Train a model, in place, by a recipe; everything about the run ends up in the folder `out`.

    If the folder holds this very run it is gone on with, from the last checkpoint, to the same bytes as if it had never
    stopped; if it holds another one, nothing is touched. `val` is measured now and then, the best weights are kept;
    `evals` are pairs (every so many steps, model -> numbers) such as `sl.evals.fewshot_evaluator`. Under torchrun the
    batch
    is shared by all processes, each with the whole model ("ddp") or a part of it ("fsdp").

    >>> import tempfile
    >>> train, val = sl.dataset("scenes/shape", num=64, size=16).split(0.5)
    >>> model = sl.build("vit-nano4", classes=len(train.classes), size=16)
    >>> recipe = sl.Recipe(lr=1e-3, batch=16, steps=4, log_every=2)
    >>> run = sl.fit(model, train, recipe, val=val, out=tempfile.mkdtemp())
    >>> run.finished, [row["step"] for row in run.rows() if "lr" in row]
    (True, [2, 4])
    """
    check_given(model, train, recipe, val=val, workers=workers)
    run, world = Run(out), joined(parallel)
    with torch.random.fork_rng(), lost(world, out):
        plan = preflight.check(model, train, recipe, val=val, evals=evals, world=world)
        held = fingerprint(model)
        at_size(model, recipe.sizes[-1][1] if recipe.sizes else recipe.size)
        about = described(model, train, recipe, val)
        if already(run, about, model, held=held):
            return run
        job = Job(run=run, plan=plan, train=train, val=val, evals=tuple(evals), workers=workers)
        state = TrainState(model, recipe, world, fresh=facts_of(run.state) is None)
        if recipe.task == "classify":
            model.class_names = tuple(train.classes)  # type: ignore[assignment]
            model.probability = recipe.loss  # type: ignore[assignment]
        try:
            with exhausted(state, run), run.held() if world.first else nullcontext():
                loop(*opened(job, about, state))
        finally:  # also after a stop or a divergence: the caller's model is whole again
            state.release()
    return run


def check_given(model: Any, train: Any, recipe: Any, *, val: Any, workers: int) -> None:
    """Refuse what is of the wrong kind, in words."""
    if not isinstance(model, ViT | BiT):
        raise ValueError(
            f"fit trains models of Sightline; got a {type(model).__name__}: convert its weights with sl.load."
        )
    if not (isinstance(recipe, Recipe) and isinstance(train, Dataset) and isinstance(val, Dataset | None)):
        raise ValueError(
            "fit(model, data, recipe) takes a dataset (sl.dataset, sl.Folder) and a recipe that was called, such as "
            f"sl.recipes.laptop_vit(); got a {type(train).__name__} and a {type(recipe).__name__}, "
            f"val={type(val).__name__}."
        )
    if odd := [f"{p.dtype} on {p.device}" for p in model.parameters() if p.is_meta or p.dtype != torch.float32]:
        raise ValueError(f"fit trains float32 models in memory; got {odd[0]}: model.float(), or build without device=.")
    if workers < 0:
        raise ValueError(f"workers={workers}: expected 0 (this process prepares the images) or more.")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What stays the same during a run, beside the trainee."""

    run: Run
    plan: Plan
    train: Dataset
    val: Dataset | None
    evals: tuple[Evaluator, ...]
    workers: int


def loop(job: Job, state: TrainState, facts: dict[str, Any]) -> None:
    """Every step of a run, from the one that `facts` says to the last."""
    run, plan, recipe, world = job.run, job.plan, state.recipe, state.world
    step, best, stale, over = facts["step"], facts["best"], facts["stale"], facts["over"]
    bad: dict[str, str] = {}
    meter, printer, saved = Meter(state.device), ProgressPrinter(plan.steps, quiet=not world.first), time.monotonic()
    for line in plan.measured() if step == 0 else (f"going on at step {step:,} of {plan.steps:,}",):
        printer.say(line)
    with listening() as heard, printer.watching(step), noting(run, recipe, world) as note:
        for images, labels in feed(job, state, start=plan.steps if over else step, bad=bad):
            meter.got_data()
            now = rate(recipe, step, steps=plan.steps, warmup=plan.warmup)
            watch = (step + 1) % recipe.log_every == 0 or step + 1 == plan.steps
            learned = state.learn(images, labels, step=step, rate=now, watch=watch)
            step += 1
            blame(learned, state, images, labels, step=step, run=run)
            meter.learned(learned.loss, len(images))
            row = meter.line(learned, now, world) if watch else {}
            if job.val is not None and (step % plan.eval_every == 0 or step == plan.steps):
                row |= validate(state, job.val, workers=job.workers)
                score = row.get("val/accuracy", -row["val/loss"])
                if best is None or score > best["score"]:
                    trust(state, images, labels, step=step, run=run)
                    best, stale = {"score": score, "step": step}, 0
                    keep(run, state, BEST)
                else:
                    stale += 1
            row |= measured(state, job.evals, step=step, last=step == plan.steps)
            if row:
                note(step, row)
                printer.numbers(step, row)
            printer.stepped(step)
            over = step == plan.steps or (recipe.patience is not None and stale >= recipe.patience)
            stop = world.any(heard.is_set())
            late = recipe.save_every is None and time.monotonic() - saved > 60 * MINUTES
            if over or stop or step % plan.save_every == 0 or world.any(late):
                trust(state, images, labels, step=step, run=run)
                keep(run, state, LAST)
                state.keep(run.state, {"step": step, "best": best, "stale": stale, "over": over})
                saved = time.monotonic()
            if over or stop:
                break
            meter.waits()
    if not over:
        raise Stopped(f"stopped at step {step:,} of {plan.steps:,}, all saved in {run.folder}; run it again to go on")
    finish(run, state, step=step, best=best, bad=bad)


def feed(job: Job, state: TrainState, *, start: int, bad: dict[str, str]) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of every step from `start` on: (seed, epoch, number) decide them, at the size of their stage."""
    recipe, plan, world = state.recipe, job.plan, state.world
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
            rank=world.rank,
            world=world.size,
            device=state.device,
            bad=bad,
        )
        for images, labels in batches:
            yield images, labels
            step += 1
            if step >= until:
                break


def measured(state: TrainState, evals: Sequence[Evaluator], *, step: int, last: bool) -> dict[str, float]:
    """What the evaluators say that are due."""
    found: dict[str, float] = {}
    for every, evaluate in evals:
        if last or step % every == 0:
            with state.averaged() as model:
                found |= evaluate(model) or {}
    return found


def keep(run: Run, state: TrainState, name: str, *, probes: bool = False) -> None:
    """Write the model as it should be used, by the first process; model.safetensors becomes the last, or the best where
    a run stops when it gets no better."""
    with state.averaged() as model:
        if state.world.sharded:
            values = {n: whole(t).detach().cpu() for n, t in model.state_dict().items()}
            if state.world.first:
                held = build(model.config, device="cpu")
                held.load_state_dict(values)
                held.image = model.image
                held.class_names = getattr(model, "class_names", None)  # type: ignore[assignment]
                held.probability = getattr(model, "probability", None) or "softmax"  # type: ignore[assignment]
                model = held
        if state.world.first:
            run.keep(model, name, probes=probes)
            if name == (BEST if state.recipe.patience is not None else LAST):
                run.point(name)
    state.world.wait()


def at_size(model: Model, size: int | None) -> None:
    """The model at the size that the recipe asks for: position embeddings are resampled (R47, R48)."""
    if size is not None and pair(size) != pair(model.config.size):
        become(model, resize(model, size))


def described(model: Model, train: Dataset, recipe: Recipe, val: Dataset | None) -> dict[str, Any]:
    """run.json, as far as it is known before the first step."""
    sizes = {"train": len(train), "val": None if val is None else len(val), "classes": len(train.classes)}
    about = {"name": recipe.name, "data": {"name": train.name, **sizes}, "seed": recipe.seed, **surroundings()}
    return {**about, "begun": time.strftime("%Y-%m-%d %H:%M:%S"), "identity": identity(model, train, recipe, val)}


def already(run: Run, about: dict[str, Any], model: Model, *, held: str) -> bool:
    """Whether the folder holds this run, complete; the model then becomes what came out of it."""
    here = about["identity"]
    if (run.path / "run.json").exists():
        there, weights = run.about, here["model"]["weights"]
        left = (there.get("ended") or facts_of(run.state) or {}).get("weights")
        if left in (weights, held):  # the same cell of a notebook again: the model was trained in place
            weights = there["identity"]["model"]["weights"]
        here = {**here, "model": {**here["model"], "weights": weights}}
    run.check(here)
    if not (run.path / "run.json").exists() or not run.finished:
        return False
    become(model, run.model.to(next(model.parameters()).device))
    return True


def opened(job: Job, about: dict[str, Any], state: TrainState) -> tuple[Job, TrainState, dict[str, Any]]:
    """The folder taken, or taken up again; the trainee at the step where it was left."""
    fresh, world = not (job.run.path / "run.json").exists(), state.world
    plan, kept = job.plan, {} if fresh else job.run.about
    if fresh:
        plan = preflight.sized(state, plan, workers=job.workers)
        for line in plan.lines():  # before a step takes its memory and its time
            ProgressPrinter(plan.steps, quiet=not world.first).say(line)
    else:  # passes as they were: how a batch is split decides the last bits of a sum
        plan = plan.with_micro(state.recipe.micro or kept["plan"].get("micro"), world)
    state.recipe = replace(state.recipe, micro=plan.micro)
    if fresh:
        plan = preflight.trial(state, job.train, plan, workers=job.workers)
        preflight.check_disk(job.run.path, plan, state.model)
        kept = {**about, "plan": preflight.facts(plan)}
    job = replace(job, plan=plan)
    world.wait()
    if world.first and (fresh or kept["plan"].get("micro") != plan.micro):
        job.run.write({**kept, "plan": {**kept["plan"], "micro": plan.micro, "passes": plan.passes}})
    world.wait()
    facts = state.restore(job.run.state) or {"step": 0, "best": None, "stale": 0, "over": False}
    if state.world.first:
        job.run.cut(facts["step"])
    return job, state, facts


def finish(run: Run, state: TrainState, *, step: int, best: dict[str, Any] | None, bad: dict[str, str]) -> None:
    """The last weights once more with their proof inside, and the end of run.json; the model leaves as it is kept."""
    keep(run, state, LAST, probes=True)
    with state.averaged() as model:
        if state.average is not None:
            values = {n: p.detach().clone() for n, p in model.named_parameters()}
    if state.average is not None:
        with torch.no_grad():
            for name, p in state.model.named_parameters():
                p.copy_(values[name])
    state.world.wait()
    if state.recipe.patience is not None and not state.world.sharded:  # the best, not the last
        become(state.model, run.model.to(state.device))
    if state.world.first:
        out = run.model
        ended = {"step": step, "best": best, "bad images": bad, "weights": fingerprint(out)}
        run.write({**run.about, "ended": {**ended, "at": time.strftime("%Y-%m-%d %H:%M:%S")}})
    state.world.wait()


@contextmanager
def noting(run: Run, recipe: Recipe, world: World) -> Iterator[Callable[[int, dict[str, Any]], None]]:
    """A function that logs a row: to log.jsonl, and to TensorBoard where the recipe wants it; first rank only."""
    writer = None
    if recipe.tensorboard and world.first:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError("tensorboard=true needs a package: pip install 'sightline[tensorboard]'.") from None
        writer = SummaryWriter(str(run.path / "tensorboard"))

    def note(step: int, row: dict[str, Any]) -> None:
        if world.first:
            run.log({"step": step, **row})
        if writer is not None:
            for name, value in row.items():
                writer.add_scalar(name, float(value), step)

    try:
        yield note
    finally:
        if writer is not None:
            writer.close()
