"""What results/*.json hold already: a study resumes on another machine, or after its runs were removed."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from sightline.files import set_aside
from sightline.studies.engine.specs import Measurement, Task
from sightline.studies.engine.store import RESULT, SPENT, Store, core_seconds, read, with_needs, write

KEY = re.compile("[0-9a-f]{16}")


def restore(store: Store, say: Callable[[str], None]) -> None:
    """Take over every measurement that a file of results holds: its models need not be trained for it again."""
    seconds = earlier_seconds(store)
    for path in result_paths(store):
        try:
            found = dict(measured(read(path)))
        except ValueError:
            say(f"{path} was damaged: it is now {set_aside(path).name}, and what it alone held is measured again")
            continue
        for key, numbers in found.items():
            folder = store.path / "measurements" / key
            if not (folder / RESULT).exists():
                write(folder / SPENT, {"core_seconds": seconds.get(key, 0.0)})
                write(folder / RESULT, numbers)


def unfinished_tasks(store: Store, tasks: Iterable[Task]) -> list[Task]:
    """The measurements that are not done and what must still be trained for them, what is needed first."""
    waiting = [t for t in tasks if isinstance(t, Measurement) and store.state(t) != "done"]
    return [t for t in with_needs(waiting) if store.state(t) != "done"]


def earlier_runs(store: Store) -> dict[str, dict[str, int]]:
    """Images and multiply-adds of the trainings that the files of results rest on, by key."""
    found: dict[str, dict[str, int]] = {}
    for held in whole_files(result_paths(store)):
        runs = held.get("runs")
        rows = runs.items() if isinstance(runs, dict) else ()
        found |= {k: numbers for k, row in rows if isinstance(row, dict) and (numbers := counts(row))}
    return found


def earlier_seconds(store: Store) -> dict[str, float]:
    """Core-seconds of every task that the files beside the results name, by key."""
    found: dict[str, float] = {}
    for held in whole_files(sorted((store.path / "results").glob("*.spent.json"))):
        seconds = held.get("seconds")
        if isinstance(seconds, dict):
            found |= {str(k): core_seconds({"core_seconds": v}) for k, v in seconds.items()}
    return found


def counts(row: dict[str, Any]) -> dict[str, int]:
    """The whole numbers of a training that results add up."""
    return {k: n for k in ("images", "macs") if type(n := row.get(k)) is int and 0 <= n < 2**100}


def measured(held: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Key and numbers of each measurement in a file of results; files of version 0.2.0 have no keys."""
    rows = held.get("rows")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and KEY.fullmatch(str(row.get("key"))) and isinstance(row.get("numbers"), dict):
            yield row["key"], row["numbers"]


def result_paths(store: Store) -> list[Path]:
    """The files of results in a folder of studies."""
    paths = sorted((store.path / "results").glob("*.json"))
    return [p for p in paths if not p.name.endswith(".spent.json")]


def whole_files(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The files that can be read; what a damaged one held is not needed for any number."""
    for path in paths:
        try:
            yield read(path)
        except ValueError:
            continue
