"""`sl.studies.run_studies`: plan, do what is not done, write the results. The same call resumes."""

import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sightline.studies.definitions.table import get_study
from sightline.studies.engine.local import run_local
from sightline.studies.engine.results import restore, unfinished_tasks, write_results
from sightline.studies.engine.slurm import Cluster, run_slurm
from sightline.studies.engine.specs import Measurement, Task, Training
from sightline.studies.engine.store import Store, read, with_needs, write
from sightline.studies.engine.study import Study, check_seeds
from sightline.untrusted import printable

SMOKE_SEEDS = 2
PER_IMAGE = {"bit": 2.1e-3}  # seconds of one core for an image of 24 px in training, by the model's family
OTHER_MODELS = 1.7e-3
SECONDS = {"verdicts": 60.0, "suite": 60.0, "probes": 11.0, "top tokens": 20.0}  # of one core, measured
OTHERS = 5.0  # seconds of any other measurement


@dataclass(frozen=True, kw_only=True)
class Started:
    """A study as it was started in a folder.

    >>> sl.studies.Started(study="data", seeds=(0, 1, 2)).smoke
    False
    """

    study: str
    seeds: tuple[int, ...]
    smoke: bool = False
    only: Mapping[str, tuple[str, ...]] | None = None

    def plan(self) -> dict[int, dict[Any, Any]]:
        """Its measurements by seed and label."""
        return get_study(self.study).plan(self.seeds, only=self.only, smoke=self.smoke)

    def tasks(self) -> list[Task]:
        """Everything that is trained and measured, what is needed first."""
        return with_needs([m for rows in self.plan().values() for m in rows.values()])


def run_studies(
    names: Sequence[str],
    *,
    out: str | Path = "studies",
    seeds: int | Sequence[int] | None = None,
    smoke: bool = False,
    only: Mapping[str, Sequence[str]] | None = None,
    on: Literal["local"] | Cluster = "local",
    jobs: int = 1,
    minutes: float | None = None,
    say: Callable[[str], None] = print,
) -> list[Path]:
    """Run studies and write their results, one JSON file each; the same call resumes, and a finished study is only
    read.

    `seeds`: a number or a list; by default the study's own. `only` restricts axes to some of their levels. `jobs`
    processes with one thread each share the work on this machine; `on=sl.studies.Cluster()` gives it to Slurm. After
    `minutes` nothing new is started and trainings save. Everything is kept under `out`: runs that two studies share
    are trained once. In a script, call it under `if __name__ == "__main__":`, as everything that starts processes.

    >>> sl.studies.run_studies(["dta"])
    Traceback (most recent call last):
        ...
    ValueError: There is no study 'dta'. Did you mean data? ...
    """
    started = [start(get_study(n), seeds=seeds, smoke=smoke, only=only) for n in dict.fromkeys(names)]
    if jobs < 1 or (minutes is not None and not minutes > 0):  # not a number is none above 0
        raise ValueError(f"jobs and minutes are numbers above 0; got jobs={jobs}, minutes={minutes}.")
    store = Store(Path(out))
    if isinstance(on, Cluster):
        on.check()
    store.check()
    with store.writing():
        store.prepare()
        for s in started:
            write(store.path / "started" / f"{s.study}.json", {**vars(s), "only": dict(s.only or {})})
    until = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    if isinstance(on, Cluster):  # all at once: Slurm decides what comes first
        tasks = {t.key: t for s in started for t in s.tasks()}
        run_slurm(store, unfinished(store, tasks.values(), say), on, jobs=jobs, until=until, say=say)
    else:
        for s in started:  # one after another, so that results come as early as possible
            say(f"study {s.study}, seeds {', '.join(map(str, s.seeds))}")
            run_local(store, unfinished(store, s.tasks(), say), jobs=jobs, until=until, say=say)
            write_results(store, s.study, s.plan(), smoke=s.smoke)
    return [write_results(store, s.study, s.plan(), smoke=s.smoke) for s in started]


def unfinished(store: Store, tasks: Iterable[Task], say: Callable[[str], None]) -> list[Task]:
    """The tasks that are not done, each with its description in its folder."""
    whole = list(tasks)
    with store.writing():
        for path in (p for t in whole for p in store.repair(t)):
            say(f"{path.with_suffix('')} was damaged: it is now {path.name}, and what it was for is done again")
        restore(store, say)
        todo = unfinished_tasks(store, whole)
        for task in todo:
            store.describe(task)
    say(f"{len(whole)} tasks, {len(whole) - len(todo)} of them done before; in {store.path}")
    return todo


def start(
    study: Study, *, seeds: int | Sequence[int] | None, smoke: bool, only: Mapping[str, Sequence[str]] | None
) -> Started:
    """What will be done, checked before anything is written."""
    given = check_seeds(seeds if seeds is not None else SMOKE_SEEDS if smoke else study.seeds)
    study.cells(only)
    chosen = {axis: tuple(levels) for axis, levels in (only or {}).items()}
    return Started(study=study.name, seeds=given, smoke=smoke, only=chosen or None)


def studies_status(out: str | Path = "studies", *, jobs: int = 1) -> list[dict[str, Any]]:
    """How far the studies of a folder are: one row each, with failures and the hours that are left.

    >>> sl.studies.studies_status("no such folder")
    Traceback (most recent call last):
        ...
    ValueError: no such folder holds no studies: start one with sightline study run NAME --out no such folder.
    """
    store = Store(Path(out))
    if jobs < 1:
        raise ValueError(f"jobs is a number above 0; got {jobs}.")
    if not (store.path / "started").is_dir():
        raise ValueError(f"{out} holds no studies: start one with sightline study run NAME --out {out}.")
    store.check()
    paths = sorted((store.path / "started").glob("*.json"))
    return [status_row(store, started_in(path), jobs) for path in paths]


def started_in(path: Path) -> Started:
    """A study as its file says that it was started."""
    held = read(path)
    try:
        only = {str(k): tuple(map(str, v)) for k, v in (held["only"] or {}).items()}
        seeds = check_seeds([operator.index(s) for s in held["seeds"]])
        return start(get_study(str(held["study"])), seeds=seeds, smoke=bool(held["smoke"]), only=only)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{printable(path)} names no study that was started ({error!s:.200}): remove it.") from error


def status_row(store: Store, started: Started, jobs: int) -> dict[str, Any]:
    """Progress of one study."""
    tasks = started.tasks()
    open_tasks = {t.key for t in unfinished_tasks(store, tasks)}
    states = {t.key: store.state(t) if t.key in open_tasks else "done" for t in tasks}
    spent = {t.key: store.spent(t) for t in tasks if states[t.key] == "done"}
    left = 0.0
    for kind in (True, False):
        same = [t for t in tasks if isinstance(t, Training) == kind]
        known = [t for t in same if spent.get(t.key, 0) > 0]
        factor = sum(spent[t.key] for t in known) / sum(map(expected, known)) if known else 1.0
        left += factor * sum(expected(t) for t in same if states[t.key] != "done")
    failed = [t for t in tasks if states[t.key] == "failed"]
    count = {k: [t for t in tasks if isinstance(t, Training) == k] for k in (True, False)}
    done = {k: sum(states[t.key] == "done" for t in rows) for k, rows in count.items()}
    return {
        "study": started.study + (" (smoke)" if started.smoke else ""),
        "seeds": len(started.seeds),
        "trained": f"{done[True]}/{len(count[True])}",
        "measured": f"{done[False]}/{len(count[False])}",
        "running": sum(store.is_running(t) for t in tasks if states[t.key] != "done"),
        "failed": len(failed),
        "core-hours": round(sum(spent.values()) / 3600, 2),
        "hours left": round(left / 3600 / jobs, 2),
        "first failure": store.reason(failed[0]) if failed else "",
    }


def expected(task: Task) -> float:
    """Seconds of one core that a task takes about, from the images it sees; what is done corrects it for the models and
    the machine."""
    if isinstance(task, Measurement):
        return SECONDS.get(task.name, OTHERS)
    if task.recipe is None:
        return 1.0
    each = PER_IMAGE.get(task.model.partition("-")[0], OTHER_MODELS) * (task.images.size / 24) ** 2
    return each * task.recipe.total_steps(task.images.num or 50_000) * task.recipe.batch
