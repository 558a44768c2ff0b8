"""Progress on stderr: a bar on a terminal, a line now and then in a log."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

T = TypeVar("T")
SILENCE = 2.0  # seconds


class ProgressBar:
    """A bar on a terminal. In a log there is no bar, and `print` prints plain lines."""

    def __init__(self, what: str, *, total: int, transient: bool = True):
        self.what, self.total, self.transient = what, total, transient
        self._bar: Progress | None = None

    @property
    def visible(self) -> bool:
        return self._bar is not None

    def start(self, completed: int = 0) -> bool:
        """Show the bar, if stderr is a terminal; whether it is."""
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            times = (TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, *times, console=Console(stderr=True), transient=self.transient)
            self._task = self._bar.add_task(self.what, total=self.total or None, completed=completed)
            self._bar.start()
        return self.visible

    def update(self, completed: int | None = None, *, what: str | None = None) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=completed, description=what)

    def print(self, text: str) -> None:
        """A line above the bar, or in the log."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            print(text, file=sys.stderr)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def progress(items: Sequence[T], what: str) -> Iterator[T]:
    """Go through items; after two seconds a bar on stderr shows how far. In a log, a line every ten seconds."""
    started = printed = time.monotonic()
    bar = ProgressBar(what, total=len(items))
    try:
        for number, item in enumerate(items):
            now = time.monotonic()
            if bar.visible:
                bar.update(number)
            elif now - started > SILENCE and bar.start(number):
                pass
            elif now - printed > 5 * SILENCE:
                of = f" of {len(items):,}" if len(items) else ""  # 0: unknown
                bar.print(f"{what}: {number:,}{of}")
                printed = now
            yield item
    finally:
        bar.stop()
