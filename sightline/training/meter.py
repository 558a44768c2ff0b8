"""What a run shows while it trains: the numbers of each log line, and how far it is."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sightline.progress import ProgressBar, notebook_display
from sightline.spec import Displayable, number
from sightline.training import system
from sightline.training.parallel import ProcessGroup
from sightline.training.train_state import StepResult

SHOWN, HIDDEN = ("lr",), ("norm/gradient", "norm/parameter", "norm/update")
SECONDS = 5  # between two lines in a log, at least
DRAWING = 0.05  # of the time at most goes into the live curves of a notebook


class Meter:
    """Counts images, seconds and waits between two lines of the log."""

    def __init__(self, device: torch.device):
        self.device = device
        self.reset()

    def reset(self) -> None:
        self.losses: list[Tensor] = []
        self.images, self.waited, self.since = 0, 0.0, time.perf_counter()
        self.waiting_since = self.step_end = self.since

    def data_arrived(self) -> None:
        self.waited += time.perf_counter() - self.waiting_since

    def step_done(self, loss: Tensor, images: int) -> None:
        self.losses.append(loss)
        self.images += images
        self.step_end = time.perf_counter()

    def wait_for_data(self) -> None:
        """From here on the loop waits for its next batch; the time since the step (evaluations, checkpoints) does not
        count as training."""
        self.waiting_since = time.perf_counter()
        self.since += self.waiting_since - self.step_end

    def row(self, result: StepResult, rate: float, processes: ProcessGroup) -> dict[str, Any]:
        """The numbers since the last row: the mean loss over all processes, everything else of this one."""
        mean = torch.stack(self.losses).double().mean().item()
        spent = time.perf_counter() - self.since
        row = {
            "train/loss": processes.sum([mean])[0] / processes.size,
            "lr": rate,
            "norm/gradient": result.gradient_norm,
            "norm/parameter": result.parameter_norm,
            "norm/update": result.update_norm,
            "images/s": self.images * processes.size / spent,
            "data wait": self.waited / spent,
            "memory MiB": peak_memory(self.device),
        }
        self.reset()
        return row


def peak_memory(device: torch.device) -> float:
    """MiB used at most so far: of the accelerator, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return system.peak_memory()


class ProgressPrinter:
    """Shows how far a run is: a bar on a terminal, live curves in a notebook, a line now and then in a log, nothing
    from the other ranks."""

    def __init__(self, total: int, *, quiet: bool, run: Displayable | None = None):
        self.quiet, self.total, self.printed = quiet, total, 0.0
        self.bar = ProgressBar("training", total=total, transient=False)
        self.curves = None if quiet or run is None else LiveCurves.in_notebook(run)

    @contextmanager
    def show(self, step: int) -> Iterator["ProgressPrinter"]:
        if not self.quiet:
            self.bar.start(step)
        try:
            yield self
        finally:
            self.bar.stop()
            if self.curves is not None:
                self.curves.update(last=True)

    def update(self, step: int) -> None:
        self.bar.update(step)

    def print_row(self, step: int, row: Mapping[str, Any]) -> None:
        """The numbers of a step; in a log not more often than every five seconds, except for evaluations."""
        if self.quiet:
            return
        if self.curves is not None:
            self.curves.update()
            return
        short = "  ".join(
            f"{k} {number(float(v))}" for k, v in row.items() if k in SHOWN or ("/" in k and k not in HIDDEN)
        )
        if self.bar.visible:
            self.bar.update(label=short[:90])
        elif any(k.startswith("val/") for k in row) or time.monotonic() - self.printed > SECONDS:
            self.printed = time.monotonic()
            self.print(f"step {step:,} of {self.total:,}  {short}")

    def print(self, text: str) -> None:
        if not self.quiet:
            self.bar.print(text)


class LiveCurves:
    """The curves of a run below a notebook's cell, drawn again as the log grows."""

    def __init__(self, run: Displayable, display: Callable[..., Any]):
        self.run, self.display = run, display
        self.handle: Any = None
        self.next = 0.0

    @classmethod
    def in_notebook(cls, run: Displayable) -> "LiveCurves | None":
        """None outside of a notebook."""
        display = notebook_display()
        return None if display is None else cls(run, display)

    def update(self, *, last: bool = False) -> None:
        """Draw, unless that was done a moment ago; the last state is always drawn."""
        begun = time.monotonic()
        if begun < self.next and not last:
            return
        if self.handle is None:
            self.handle = self.display(self.run, display_id=True)
        else:
            self.handle.update(self.run)
        now = time.monotonic()
        self.next = now + (now - begun) / DRAWING
