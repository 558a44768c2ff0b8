"""Progress on stderr: a bar for whatever takes longer than two seconds, plain lines where nobody watches."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")
DELAY = 2.0  # seconds before the bar appears
LOG_EVERY = 10.0  # seconds between two lines in a log


def progress(items: Sequence[T], label: str) -> Iterator[T]:
    """Iterate over items; after two seconds a bar on stderr shows how far. In a log, a line every ten seconds."""
    start = last_line = time.monotonic()
    bar: Progress | None = None
    task = None
    try:
        for number, item in enumerate(items):
            now = time.monotonic()
            if bar is None and now - start > DELAY and sys.stderr.isatty():
                bar = Progress(console=Console(stderr=True), transient=True)
                bar.start()
                task = bar.add_task(label, total=len(items) or None, completed=number)
            elif bar is None and now - last_line > LOG_EVERY:
                total = f" of {len(items):,}" if len(items) else ""  # 0: not known in advance
                print(f"{label}: {number:,}{total}", file=sys.stderr)
                last_line = now
            if bar is not None and task is not None:
                bar.update(task, completed=number)
            yield item
    finally:
        if bar is not None:
            bar.stop()


@contextmanager
def byte_progress(label: str, *, total: int | None, completed: int = 0) -> Iterator[Callable[[int], None]]:
    """A bar for a transfer; call what it yields with the number of bytes that have arrived."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(label, total=total, completed=completed)
        yield lambda count: bar.advance(task, count)


def status(label: str) -> AbstractContextManager[object]:
    """A spinner for work whose length is unknown."""
    return Console(stderr=True).status(label)
