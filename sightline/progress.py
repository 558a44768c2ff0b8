"""Progress on stderr: a bar on a terminal, an occasional plain line in a log; and whether this is a notebook."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from sightline.untrusted import escape_controls

T = TypeVar("T")
DELAY = 2.0  # seconds before the bar appears
TELLING = 0.1  # share of the work after which its speed says how long the rest takes
LOG_EVERY = 10.0  # seconds between two lines in a log


class ProgressBar:
    """A bar on a terminal. In a log there is no bar, and `print` prints plain lines."""

    def __init__(self, label: str, *, total: int, transient: bool = True):
        self.label, self.total, self.transient = escape_controls(label), total, transient
        self._bar: Progress | None = None

    @property
    def visible(self) -> bool:
        return self._bar is not None

    def start(self, completed: int = 0) -> bool:
        """Show the bar if stderr is a terminal, and return whether it is."""
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
            times = (TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, *times, console=Console(stderr=True), transient=self.transient)
            self._task = self._bar.add_task(self.label, total=self.total or None, completed=completed)
            self._bar.start()
        return self.visible

    def update(self, completed: int | None = None, *, label: str | None = None) -> None:
        if self._bar is not None:
            label = None if label is None else escape_controls(label)
            self._bar.update(self._task, completed=completed, description=label)

    def print(self, text: str) -> None:
        """A line above the bar, or in the log."""
        if self._bar is not None:
            self._bar.console.print(escape_controls(text), highlight=False, markup=False)
        else:
            print(escape_controls(text), file=sys.stderr)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def progress(items: Sequence[T], label: str) -> Iterator[T]:
    """Iterate over items; after two seconds a progress bar appears on stderr. In a log, one line every ten seconds."""
    start = last_line = time.monotonic()
    bar = ProgressBar(label, total=len(items))
    try:
        for number, item in enumerate(items):
            now = time.monotonic()
            if bar.visible:
                bar.update(number)
            elif not (now - start > DELAY and bar.start(number)) and now - last_line > LOG_EVERY:
                total = f" of {len(items):,}" if len(items) else ""  # 0: not known in advance
                bar.print(f"{label}: {number:,}{total}")
                last_line = now
            yield item
    finally:
        bar.stop()


def stages(names: Sequence[str], efforts: Sequence[float]) -> Iterator[str]:
    """Iterate over the names of long steps. After two seconds each is announced on stderr with its number, how many
    there are, and how long the rest will take at the speed so far; `efforts` are how long each takes in comparison."""
    start, spent = time.monotonic(), 0.0
    for number, (name, effort) in enumerate(zip(names, efforts), 1):
        gone = time.monotonic() - start
        if gone > DELAY:
            known = gone > LOG_EVERY and spent >= TELLING * sum(efforts)
            left = f", about {duration(gone / spent * (sum(efforts) - spent))} left" if known else ""
            print(escape_controls(f"{number} of {len(names)}: {name}{left}"), file=sys.stderr)
        yield name
        spent += effort


def duration(seconds: float) -> str:
    """A time as people say it: 40 s, 3 min, 2 h."""
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60)):
        if seconds < limit:
            return f"{max(1, round(seconds / size))} {unit}"
    return f"{seconds / 3600:.1f} h"


@contextmanager
def byte_progress(label: str, *, total: int | None, completed: int = 0) -> Iterator[Callable[[int], None]]:
    """A bar for a transfer; call what it yields with the number of bytes that have arrived."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(escape_controls(label), total=total, completed=completed)
        yield lambda count: bar.advance(task, count)


def status(label: str) -> AbstractContextManager[object]:
    """A spinner for work whose length is unknown."""
    return Console(stderr=True).status(Text(escape_controls(label)))  # not markup


def notebook_display() -> Callable[..., Any] | None:
    """IPython's `display` in a notebook, whose shell has a kernel; None on a terminal, in a script, without IPython."""
    interactive = sys.modules.get("IPython")  # a notebook has imported it
    shell = interactive.get_ipython() if interactive is not None else None
    return None if getattr(shell, "kernel", None) is None else interactive.display.display  # type: ignore[union-attr]
