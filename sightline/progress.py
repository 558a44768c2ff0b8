"""A progress bar for anything longer than two seconds, and nothing for what is shorter or is not watched."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress

T = TypeVar("T")
SILENCE = 2.0  # seconds


def progress(items: Sequence[T], what: str) -> Iterator[T]:
    """Go through items; after two seconds a bar on stderr says how far. In a log, a line every ten seconds."""
    begun = said = time.monotonic()
    bar: Progress | None = None
    task = None
    try:
        for number, item in enumerate(items):
            now = time.monotonic()
            if bar is None and now - begun > SILENCE and sys.stderr.isatty():
                bar = Progress(console=Console(stderr=True), transient=True)
                bar.start()
                task = bar.add_task(what, total=len(items) or None, completed=number)
            elif bar is None and now - said > 5 * SILENCE:
                of = f" of {len(items):,}" if len(items) else ""  # 0: not known before
                print(f"{what}: {number:,}{of}", file=sys.stderr)
                said = now
            if bar is not None and task is not None:
                bar.update(task, completed=number)
            yield item
    finally:
        if bar is not None:
            bar.stop()
