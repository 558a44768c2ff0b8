"""Where studies are kept: one folder per training and per measurement, by key. The state is the file system."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sightline.files import lock
from sightline.spec import atomic, from_json, to_json
from sightline.studies.engine.specs import VERSION, Measurement, Task, Training, sparse, task_of
from sightline.untrusted import read_text

State = Literal["done", "failed", "waiting"]
MARK, SPEC, RESULT, SPENT, FAILED = "studies.json", "spec.json", "result.json", "spent.json", "failed.json"


@dataclass(frozen=True)
class Store:
    """A folder of studies: `runs/KEY` and `measurements/KEY`, each with what it is (spec.json), the outcome
    (result.json, or failed.json with the reason) and what it cost (spent.json); shared images in `images`."""

    path: Path

    def check(self) -> None:
        """Refuse a folder of another version, or of something else."""
        mark = self.path / MARK
        if mark.exists():
            there = read(mark).get("version")
            if there != VERSION:
                versions = f"runs of version {there} of the studies; this is version {VERSION}"
                raise ValueError(f"{self.path} holds {versions}: give another --out.")
        elif self.path.is_dir() and (other := sorted(p.name for p in self.path.iterdir() if p.name[0] != ".")):
            raise ValueError(f"{self.path} holds {other[0]} and no studies: give another --out.")
        elif self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file: give a folder as --out.")

    def prepare(self) -> None:
        """Check the folder, and mark a new one."""
        self.check()
        if not (self.path / MARK).exists():
            write(self.path / MARK, {"version": VERSION})

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
        """Core-seconds that a task has cost so far; what was killed is not counted."""
        path = self.folder(task) / SPENT
        return float(read(path).get("core_seconds", 0.0)) if path.exists() else 0.0


def task_in(folder: Path) -> Task:
    """The task that a folder is for."""
    return task_of(read(folder / SPEC))


def read(path: Path) -> dict[str, Any]:
    """One JSON file."""
    try:
        found = from_json(read_text(path))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): remove it, and run the same command again.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} was not written by a study: remove it.")
    return found


def write(path: Path, value: Mapping[str, Any]) -> None:
    """One JSON file, whole or not at all."""
    with atomic(path) as partial:
        partial.write_text(to_json(dict(value), indent=1) + "\n")


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
