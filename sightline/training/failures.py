"""How a run ends before its end: a signal, a loss that is no number, a process that vanished."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sightline.training.checkpoint import facts_of
from sightline.training.parallel import World
from sightline.training.run import Run
from sightline.training.train_state import Learned, TrainState

FARTHEST = 2.0**24  # float32 knows whole numbers up to here
MEMORY = ("can't allocate memory", "not enough memory", "out of memory")  # words of torch's allocators
CONTACT = ("gloo", "nccl", "connection", "peer", "socket", "timed out")  # words of an exchange that broke


class Stopped(KeyboardInterrupt):
    """Training was asked to stop, finished its step and saved everything. The message says how to go on.

    >>> issubclass(sl.training.Stopped, KeyboardInterrupt)
    True
    """


class Diverged(ValueError):  # noqa: N818
    """The loss or a gradient is no longer a number. The message names the step, the place and the last good state.

    >>> issubclass(sl.training.Diverged, ValueError)
    True
    """


@contextmanager
def listening() -> Iterator[threading.Event]:
    """SIGTERM and SIGINT set the event instead of killing; a second one does what it always did."""
    heard = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only there can signals be caught
        yield heard
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def hear(number: int, _: Any) -> None:
        heard.set()
        signal.signal(number, before[number])  # type: ignore[index]

    for number in before:
        signal.signal(number, hear)
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def lost(world: World, out: str | Path) -> Iterator[None]:
    """Among many processes, one that dies breaks the others' next exchange: say so, in words."""
    try:
        yield
    except RuntimeError as error:
        cut_off = isinstance(error, dist.DistError) or any(word in str(error).lower() for word in CONTACT)
        if world.size == 1 or not cut_off:
            raise
        raise ConnectionError(
            f"Rank {world.rank} of {world.size} lost contact with another process, which probably died "
            f"({first_line(error)}); start the job again with the same command: it goes on from "
            f"the last checkpoint in {out}."
        ) from error


@contextmanager
def exhausted(state: TrainState, run: Run) -> Iterator[None]:
    """An allocation that failed, in words: what was free before the first step may since have been taken."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in MEMORY):
            raise
        micro = state.recipe.micro or state.recipe.batch // state.world.size
        smaller = f"--set micro={micro // 2}" if micro > 1 else "a smaller --set batch, --size or model"
        again = "; the run goes on from its last checkpoint" if facts_of(run.state) else ""
        raise ValueError(
            f"Memory ran out in passes of {micro:,} images ({first_line(error)}): end other programs, or give {smaller}"
            f"{again}."
        ) from error


def first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__


def blame(learned: Learned, state: TrainState, images: Tensor, labels: Tensor, *, step: int, run: Run) -> None:
    """Stop at a loss or gradient that is no number, in any process, and name the first place where one appears."""
    gradient_ok = learned.gradient is None or bool(torch.isfinite(learned.gradient))
    if state.device.type != "cpu" and learned.gradient is None:
        return  # asking an accelerator at every step would stall it: the watched steps ask
    loss_ok = bool(torch.isfinite(learned.loss))
    if not state.world.any(not (gradient_ok and loss_ok)):
        return
    what = f"the gradient's norm is {learned.gradient}" if loss_ok else f"the loss is {learned.loss.item()}"
    if gradient_ok and loss_ok:
        what = "another process's loss is no finite number"
    raise diverged(what, state, images, step=step, run=run)


def trust(state: TrainState, images: Tensor, labels: Tensor, *, step: int, run: Run) -> None:
    """Before weights are kept: this step may have thrown them so far that the next loss is no number, or one of which
    float32 cannot tell the units. What is on disk must be good to go on from."""
    loss = state.loss(images, labels, step=step)
    if state.world.any(not float(loss) <= FARTHEST):
        raise diverged(
            f"the weights were thrown so far that the loss is {loss.item()}", state, images, step=step, run=run
        )


def diverged(what: str, state: TrainState, images: Tensor, *, step: int, run: Run) -> Diverged:
    """The error, and a line in the log."""
    place, kept = culprit(state, images), facts_of(run.state)
    good = (
        f"the last good state is that of step {kept['step']:,} in {run.state}" if kept else "there is no checkpoint yet"
    )
    if state.world.first:
        run.log({"step": step, "event": f"diverged: {what}, {place}"})
    return Diverged(f"At step {step:,} {what}; {place}; {good}. A lower lr, a longer warm-up or clip=1 may help.")


@torch.no_grad()
def culprit(state: TrainState, images: Tensor) -> str:
    """Where the first value that is no number stands: in a parameter, in a module's output, in a gradient."""
    for name, p in state.params.items():
        if not torch.isfinite(p).all():
            return f"first seen in the parameter {name}"
    if not torch.isfinite(images).all():
        return "first seen in the images"
    seen: list[str] = []

    def watch(name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not seen and not torch.isfinite(output).all():
                seen.append(name)

        return hook

    parts = [(name, m) for name, m in state.model.named_modules() if name]
    handles = [m.register_forward_hook(watch(name)) for name, m in parts]
    try:
        for part in images.split(state.recipe.micro or len(images)):
            state.model(part)
    finally:
        for handle in handles:
            handle.remove()
    if seen:
        return f"first seen behind {seen[0]}"
    for name, p in state.params.items():
        if p.grad is not None and not torch.isfinite(p.grad).all():
            return f"first seen in the gradient of {name}"
    return "first seen in the loss itself"
