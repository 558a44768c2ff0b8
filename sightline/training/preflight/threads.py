"""How many threads a run takes: as many as cores are free when it begins, and the same when it resumes."""

import logging
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from sightline.evals.probing.ridge import threads
from sightline.training.run.folder import Run

MOST_THREADS = 1024  # a record that says more is damaged
log = logging.getLogger("sightline.training")
SAMPLES, PAUSE = 10, 0.02  # of the number of running threads, over a fifth of a second


@contextmanager
def run_threads(folder: str | Path, asked: int | None = None) -> Iterator[str]:
    """Inside the `with` block torch uses this many threads; yields a sentence that says how many and why.

    Threads that share a core with other programs wait for each other, so a run takes only as many as cores are free.
    The number decides the last bits of sums: a run that resumes uses the one it began with. OMP_NUM_THREADS counts as
    asked for.

    >>> import tempfile
    >>> with sl.training.run_threads(tempfile.mkdtemp(), asked=1) as why:
    ...     print(why)
    1 thread, as asked for
    """
    if asked is not None and asked < 1:
        raise ValueError(f"threads={asked}: expected at least 1.")
    before = torch.get_num_threads()
    count, why = _select_threads(Run(folder), asked, before)
    with threads(count):
        yield f"{count} thread{'s' if count > 1 else ''}, {why}"


@contextmanager
def resume_threads(run: Run) -> Iterator[None]:
    """Inside the `with` block torch uses as many threads as the run began with, if it began and did not end."""
    here = torch.get_num_threads()
    count = threads_at_start(run) or here
    if count != here:
        log.warning("%s began with %d threads: it resumes with as many, not with %d.", run.folder, count, here)
    with threads(count):
        yield


def threads_at_start(run: Run) -> int | None:
    """What an unfinished run began with: sums that are split otherwise differ in their last bits."""
    about = run.about if (run.path / "run.json").exists() else {}
    machine = about.get("machine")
    count = machine.get("threads") if isinstance(machine, dict) and "ended" not in about else None
    return count if isinstance(count, int) and 0 < count <= MOST_THREADS else None


def _select_threads(run: Run, asked: int | None, most: int) -> tuple[int, str]:
    if count := threads_at_start(run):
        return count, "as the run began" + (
            f", not {asked}: its last bits depend on it" if asked not in (None, count) else ""
        )
    if asked is not None:
        return asked, "as asked for"
    if "OMP_NUM_THREADS" in os.environ:
        return most, "as OMP_NUM_THREADS says"
    busy = busy_cores()
    return max(1, most - round(busy)), f"as other programs keep {busy:.2g} of {usable_cores()} cores busy"


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def busy_cores() -> float:
    """Threads of other programs that want to run at this moment; where the system does not say, its load, or 0."""
    running = Path("/proc/loadavg")
    if not running.exists():
        return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    counts = []
    for _ in range(SAMPLES):
        counts.append(int(running.read_text(encoding="utf-8").split()[3].split("/")[0]) - 1)  # the reader itself runs
        time.sleep(PAUSE)
    return max(0.0, statistics.mean(counts))
