"""Runs that go wrong: a loss that is not finite, features that collapse, lack of memory, a process that is lost."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sightline.training.parallel import ProcessGroup
from sightline.training.run.checkpoint import read_facts
from sightline.training.run.folder import Run
from sightline.training.train_state import StepResult, TrainState

log = logging.getLogger("sightline.training")
RANK = 2.0  # below this, features have collapsed; the lowest of a sound network, trained or not, was 4.5 (docs/log.md)
LARGEST_LOSS = 2.0**24  # float32 represents every integer up to here
MEMORY_ERRORS = ("can't allocate memory", "not enough memory", "out of memory")  # messages of torch's allocators
NETWORK_ERRORS = ("gloo", "nccl", "connection", "peer", "socket", "timed out")  # words in a failed exchange


class Stopped(KeyboardInterrupt):
    """Training was asked to stop, finished its step and saved everything. The message says how to resume.

    >>> issubclass(sl.training.Stopped, KeyboardInterrupt)
    True
    """


class Diverged(ValueError):  # noqa: N818
    """The loss or a gradient is not finite. The message names the step, the place and the last good state.

    >>> issubclass(sl.training.Diverged, ValueError)
    True
    """


@contextmanager
def explain_lost_process(processes: ProcessGroup, out: str | Path) -> Iterator[None]:
    """If a process dies, the next exchange of the others fails: turn that error into one sentence."""
    try:
        yield
    except RuntimeError as error:
        network = isinstance(error, dist.DistError) or any(word in str(error).lower() for word in NETWORK_ERRORS)
        if processes.size == 1 or not network:
            raise
        raise ConnectionError(
            f"Rank {processes.rank} of {processes.size} lost contact with another process, which probably died "
            f"({first_line(error)}); start the job again with the same command: it resumes from "
            f"the last checkpoint in {out}."
        ) from error


@contextmanager
def explain_out_of_memory(state: TrainState, run: Run) -> Iterator[None]:
    """Turn a failed allocation into one sentence: memory that was free before the first step may have been taken."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in MEMORY_ERRORS):
            raise
        micro = state.recipe.micro or state.recipe.batch // state.processes.size
        smaller = f"--set micro={micro // 2}" if micro > 1 else "a smaller --set batch, --size or model"
        resume = "; the run resumes from its last checkpoint" if read_facts(run.state) else ""
        raise ValueError(
            f"Out of memory in passes of {micro:,} images ({first_line(error)}): close other programs, or give "
            f"{smaller}{resume}."
        ) from error


def first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__


def check_finite(result: StepResult, state: TrainState, images: Tensor, *, step: int, run: Run) -> None:
    """Stop if the loss or gradient of any process is not finite, and name the first place where it appears."""
    gradient_ok = result.gradient_norm is None or bool(torch.isfinite(result.gradient_norm))
    if state.device.type != "cpu" and result.gradient_norm is None:
        return  # asking an accelerator at every step would stall it: only steps with norms are checked
    loss_ok = bool(torch.isfinite(result.loss))
    if not state.processes.any(not (gradient_ok and loss_ok)):
        return
    what = f"the gradient norm is {result.gradient_norm}" if loss_ok else f"the loss is {result.loss.item()}"
    if gradient_ok and loss_ok:
        what = "the loss of another process is not finite"
    raise divergence(what, state, images, step=step, run=run)


def check_weights(state: TrainState, images: Tensor, labels: Tensor, *, step: int, run: Run) -> None:
    """Before weights are saved: stop if this step made them so large that the next loss is not finite, or beyond the
    precision of float32. What is on disk must be good to resume from."""
    loss = state.loss(images, labels, step=step)
    if state.processes.any(not float(loss) <= LARGEST_LOSS):
        raise divergence(f"the updated weights give a loss of {loss.item()}", state, images, step=step, run=run)


def watch_rank(run: Run, row: dict[str, Any], *, step: int) -> None:
    """Warn if the features that were just judged have collapsed, and mark the run for as long as they have."""
    ranks = {"embeddings" if "embedding" in name else "features": v for name, v in row.items() if name.endswith("rank")}
    if not ranks:
        return
    what = min(ranks, key=lambda kind: ranks[kind])
    rank, about = ranks[what], run.about
    before = about.pop("collapsed", None)
    if rank < RANK:
        said = f"collapsed: the {what} of all images lie in {rank:.1f} dimensions (effective rank below {RANK:g})"
        log.warning(
            "At step %s this run has %s: images look alike to the model, and further training will hardly help. Try a "
            "larger sigreg, a lower lr or a longer warm-up.", f"{step:,}", said,
        )  # fmt: skip
        run.log({"step": step, "event": said})
        if before is None or before["step"] > step:
            run.write_record({**about, "collapsed": {"step": step, "rank": rank, "of": what}})
    elif before is not None:
        log.warning("At step %s features and embeddings fill at least %.1f dimensions again.", f"{step:,}", rank)
        run.write_record(about)


def divergence(what: str, state: TrainState, images: Tensor, *, step: int, run: Run) -> Diverged:
    """The error, which is also logged."""
    place, saved = find_nonfinite(state, images), read_facts(run.state)
    good = f"the last good state is from step {saved['step']:,} in {run.state}" if saved else "no checkpoint exists yet"
    if state.processes.first:
        run.log({"step": step, "event": f"diverged: {what}, {place}"})
    return Diverged(f"At step {step:,} {what}; {place}; {good}. A lower lr, a longer warm-up or clip=1 may help.")


@torch.no_grad()
def find_nonfinite(state: TrainState, images: Tensor) -> str:
    """The first place with a value that is not finite: a parameter, the output of a module, or a gradient."""
    for name, p in state.params.items():
        if not torch.isfinite(p).all():
            return f"first seen in the parameter {name}"
    if not torch.isfinite(images).all():
        return "first seen in the images"
    if name := _first_nonfinite_output(state, images):
        return f"first seen in the output of {name}"
    for name, p in state.params.items():
        if p.grad is not None and not torch.isfinite(p.grad).all():
            return f"first seen in the gradient of {name}"
    return "first seen in the loss itself"


def _first_nonfinite_output(state: TrainState, images: Tensor) -> str:
    """Path of the first module whose output is not finite, or an empty string."""
    seen: list[str] = []

    def watch(name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not seen and not torch.isfinite(output).all():
                seen.append(name)

        return hook

    modules = [(name, m) for name, m in state.model.named_modules() if name]
    handles = [m.register_forward_hook(watch(name)) for name, m in modules]
    try:
        for part in images.split(state.recipe.micro or len(images)):
            state.model(part)
    finally:
        for handle in handles:
            handle.remove()
    return seen[0] if seen else ""
