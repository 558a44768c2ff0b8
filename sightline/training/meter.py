"""What people see of a run while it goes on: a bar with the time left, or plain lines; and the numbers of each line."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from sightline.training.parallel import World
from sightline.training.train_state import Learned


class Meter:
    """Counts images, seconds and waits between two lines of the log."""

    def __init__(self, device: torch.device):
        self.device = device
        self.begin()

    def begin(self) -> None:
        self.losses: list[Tensor] = []
        self.images, self.waited, self.since = 0, 0.0, time.perf_counter()
        self.mark = self.done = self.since

    def got_data(self) -> None:
        self.waited += time.perf_counter() - self.mark

    def learned(self, loss: Tensor, images: int) -> None:
        self.losses.append(loss)
        self.images += images
        self.done = time.perf_counter()

    def waits(self) -> None:
        """From here on the loop waits for its next batch; what it did since the step (evaluations, checkpoints) is no
        part of its speed."""
        self.mark = time.perf_counter()
        self.since += self.mark - self.done

    def line(self, learned: Learned, rate: float, world: World) -> dict[str, Any]:
        """The numbers since the last line: the mean loss over all processes, the rest of this one."""
        mean = torch.stack(self.losses).double().mean().item()
        spent = time.perf_counter() - self.since
        row = {
            "train/loss": world.sum([mean])[0] / world.size,
            "lr": rate,
            "norm/gradient": learned.gradient,
            "norm/parameter": learned.parameter,
            "norm/update": learned.update,
            "images/s": self.images * world.size / spent,
            "data wait": self.waited / spent,
            "memory MiB": memory(self.device),
        }
        self.begin()
        return row


def memory(device: torch.device) -> float:
    """MiB in use at most so far: of the accelerator, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if sys.platform.startswith("linux"):
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) / 2**10
    import resource  # elsewhere: in bytes on macOS

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class ProgressPrinter:
    """Says how far a run is: a bar on a terminal, a line now and then in a log, nothing from the other ranks."""

    def __init__(self, total: int, *, quiet: bool):
        self.quiet, self.total, self.said = quiet, total, 0.0
        self.bar: Progress | None = None

    @contextmanager
    def watching(self, step: int) -> Iterator["ProgressPrinter"]:
        if not self.quiet and sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
            self.bar = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))
            self.task = self.bar.add_task("training", total=self.total, completed=step)
            self.bar.start()
        try:
            yield self
        finally:
            if self.bar is not None:
                self.bar.stop()

    def stepped(self, step: int) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=step)

    def numbers(self, step: int, row: Mapping[str, Any]) -> None:
        """A line of numbers; in a log not more often than every five seconds, except for evaluations."""
        if self.quiet:
            return
        short = "  ".join(f"{k} {float(v):.4g}" for k, v in row.items() if k in SHOWN or ("/" in k and k not in HIDDEN))
        if self.bar is not None:
            self.bar.update(self.task, description=short[:90])
        elif any(k.startswith("val/") for k in row) or time.monotonic() - self.said > 5:
            self.said = time.monotonic()
            print(f"step {step:,} of {self.total:,}  {short}", file=sys.stderr)

    def say(self, text: str) -> None:
        if self.quiet:
            return
        if self.bar is not None:
            self.bar.console.print(text, highlight=False)
        else:
            print(text, file=sys.stderr)


SHOWN, HIDDEN = ("lr",), ("norm/gradient", "norm/parameter", "norm/update")
