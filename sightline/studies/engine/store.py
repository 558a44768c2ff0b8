"""Where studies are kept: one folder per training and per measurement, by key. The state is the file system."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import xxhash

from sightline.files import lock, remove_leftovers, set_aside
from sightline.spec import atomic, from_json, to_json
from sightline.studies.engine.specs import VERSION, Measurement, Task, Training, sparse, task_of
from sightline.untrusted import printable, read_text

State = Literal["done", "failed", "waiting"]
MARK, SPEC, RESULT, SPENT, FAILED = "studies.json", "spec.json", "result.json", "spent.json", "failed.json"
SUM = "checksum"


@dataclass(frozen=True)
class Store:
    """A folder of studies: `runs/KEY` and `measurements/KEY`, each with what it is (spec.json), the outcome
    (result.json, or failed.json with the reason) and what it cost (spent.json); shared images in `images`."""

    path: Path
    device: str = "cpu"  # where models are trained and measured

    def check(self) -> None:
        """Refuse a folder of another version, or of something else."""
        mark = self.path / MARK
        if mark.exists():
            there = self._version()
            if there != VERSION:
                versions = f"runs of version {there!s:.40} of the studies; this is version {VERSION}"
                raise ValueError(f"{self.path} holds {versions}: give another --out.")
        elif self.path.is_dir() and (other := sorted(p.name for p in self.path.iterdir() if _is_foreign(p))):
            raise ValueError(f"{self.path} holds {other[0]} and no studies: give another --out.")
        elif self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file: give a folder as --out.")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write files that are no task's own, as the only process for that moment; the others wait."""
        with lock(self.path / ".lock"):
            remove_leftovers(self.path)
            yield

    def prepare(self) -> None:
        """Check the folder, and mark a new one."""
        self.check()
        if not (self.path / MARK).exists() or not _is_whole(self.path / MARK):
            write(self.path / MARK, {"version": VERSION})

    def _version(self) -> Any:
        """What the mark says; if it is damaged in a folder with studies, this version, which then marks it again."""
        try:
            return read(self.path / MARK).get("version")
        except ValueError:
            if (self.path / "started").is_dir():
                return VERSION
            raise

    def folder(self, task: Task) -> Path:
        """The task's own folder."""
        return self.path / ("runs" if isinstance(task, Training) else "measurements") / task.key

    def state(self, task: Task) -> State:
        """Done, failed, or neither yet."""
        folder = self.folder(task)
        if (folder / RESULT).exists():
            return "done"
        return "failed" if (folder / FAILED).exists() else "waiting"

    def is_running(self, task: Task) -> bool:
        """Whether some process works on it now."""
        folder = self.folder(task)
        if not (folder / ".lock").exists() or self.state(task) == "done":
            return False
        try:
            with lock(folder / ".lock", wait=False):
                return False
        except BlockingIOError:
            return True

    def describe(self, task: Task) -> None:
        """Write spec.json, which says all that is needed to do the task."""
        spec = self.folder(task) / SPEC
        if not spec.exists():
            kind = "training" if isinstance(task, Training) else "measurement"
            write(spec, {kind: sparse(task)})

    def repair(self, task: Task) -> list[Path]:
        """Set aside the files of a task that are damaged, so that it is done again; their paths."""
        aside = [set_aside(path) for path in self.files(task) if not _is_whole(path, task)]
        folder = self.folder(task)
        if self.state(task) == "done" and os.path.lexists(folder / ".lock"):
            with suppress(BlockingIOError), lock(folder / ".lock", wait=False):  # killed with its last breath
                (folder / FAILED).unlink(missing_ok=True)
        return aside

    def files(self, task: Task) -> list[Path]:
        """The files of a task that are there, whatever they are."""
        paths = [self.folder(task) / name for name in (SPEC, RESULT, SPENT, FAILED)]
        return [path for path in paths if os.path.lexists(path)]

    def result(self, task: Task) -> dict[str, Any]:
        """The numbers of a task that is done."""
        return read(self.folder(task) / RESULT)

    def finish(self, task: Task, result: Mapping[str, Any]) -> None:
        """Write the outcome. The numbers are the same on every machine of one kind, so the bytes are, too."""
        write(self.folder(task) / RESULT, result)
        (self.folder(task) / FAILED).unlink(missing_ok=True)

    def fail(self, task: Task, reason: str) -> None:
        """Keep the reason why a task failed; the same command tries it again."""
        write(self.folder(task) / FAILED, {"reason": reason})

    def reason(self, task: Task) -> str:
        """Why a task failed."""
        return str(read(self.folder(task) / FAILED).get("reason", ""))

    def spend(self, task: Task, core_seconds: float) -> None:
        """Add to what a task has cost."""
        write(self.folder(task) / SPENT, {"core_seconds": round(self.spent(task) + core_seconds, 2)})

    def spent(self, task: Task) -> float:
        """Core-seconds that a task has cost so far; what was killed is not counted, nor what a damaged file says."""
        path = self.folder(task) / SPENT
        return core_seconds(read(path)) if path.exists() and _is_whole(path, task) else 0.0


def _is_foreign(path: Path) -> bool:
    """Whether something was in the folder before any study; results alone may be, copied from another machine."""
    return path.name[0] != "." and path.name != "results"


def core_seconds(held: Mapping[str, Any]) -> float:
    """What spent.json says."""
    spent = held.get("core_seconds", 0.0)
    if not isinstance(spent, int | float) or not 0 <= spent < 2**53:
        raise ValueError("its core-seconds are no number")
    return float(spent)


def task_in(folder: Path) -> Task:
    """The task that a folder is for."""
    held = read(folder / SPEC)
    try:
        return task_of(held)
    except (TypeError, LookupError, AttributeError, ValueError) as error:
        raise ValueError(f"{printable(folder / SPEC)} describes no task ({error!s:.100}): remove it.") from error


def _is_whole(path: Path, task: Task | None = None) -> bool:
    """Whether a file can be read, and says what such a file of this task says."""
    try:
        held = read(path)
        if path.name == SPENT:
            core_seconds(held)
        return task is None or path.name != SPEC or task_in(path.parent).key == task.key
    except (ValueError, TypeError):
        return False


def read(path: Path) -> dict[str, Any]:
    """One JSON file, its checksum compared; files of version 0.2.0 have none."""
    try:
        found = from_json(read_text(path))
        if isinstance(found, dict) and found.pop(SUM, None) not in (None, checksum(found)):
            raise ValueError("its checksum differs")
    except (OSError, ValueError) as error:
        why = f"{error!s:.200}"
        raise ValueError(f"{printable(path)} is damaged ({why}): remove it, and run the same command again.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{printable(path)} was not written by a study: remove it.")
    return found


def write(path: Path, value: Mapping[str, Any]) -> None:
    """One JSON file with a checksum, whole or not at all."""
    with atomic(path) as partial:
        partial.write_text(to_json({**value, SUM: checksum(value)}, indent=1) + "\n", encoding="utf-8")


def checksum(value: Mapping[str, Any]) -> str:
    """Of the values, not of the text: a file may be indented otherwise."""
    return xxhash.xxh3_64_hexdigest(to_json(dict(value)).encode("utf-8", "surrogatepass"))


def with_needs(measurements: list[Measurement]) -> list[Task]:
    """The measurements and all trainings that they need, each once, what is needed first."""
    tasks: dict[str, Task] = {}

    def add(task: Task) -> None:
        for need in task.needs:
            add(need)
        tasks.setdefault(task.key, task)

    for measurement in measurements:
        add(measurement)
    return list(tasks.values())
