"""Tasks on a Slurm cluster, by submitit: job arrays, short tasks grouped, requeued after a time-out or preemption."""

import logging
import math
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.studies.engine.specs import Measurement, Task
from sightline.studies.engine.store import Store

POLL = 5.0  # seconds between two looks at the queue
INSTALL = 'pip install "sightline[cluster]"'


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """How jobs are asked for.

    >>> sl.studies.Cluster(partition="main", hours=2, group=8).cpus
    1
    """

    partition: str | None = None
    hours: float = 4.0  # limit of one job; what is not done by then goes back into the queue and resumes
    cpus: int = 1
    gpus: int = 0  # per job; without any, models are trained on the CPU
    group: int = 4  # tasks that one job does, one after another
    requeues: int = 50  # of one job, after time-outs and preemptions

    def check(self) -> None:
        """Refuse what cannot work before anything is written."""
        if shutil.which("sbatch") is None:
            raise ValueError("There is no sbatch on the path: run on a machine of the cluster, or with --on local.")
        if not 0 < self.hours < math.inf or min(self.cpus, self.group) < 1 or self.gpus < 0:
            raise ValueError(f"A job has at least one CPU, one task and some time; got {self}.")
        submitit()
        if self.partition is not None:
            known = ask("sinfo", "--noheader", "--format=%R").split()
            if self.partition not in known:
                raise ValueError(f"There is no partition {self.partition!r}; Slurm knows {', '.join(known) or 'none'}.")


def submitit() -> Any:
    """The package, an extra."""
    try:
        import submitit
    except ImportError:
        raise ValueError(f"Slurm needs the package submitit: {INSTALL}.") from None
    logging.getLogger("submitit").setLevel(logging.ERROR)  # it asks sacct, which not every cluster has
    return submitit


def ask(*command: str) -> str:
    """What a command of Slurm prints."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise ValueError(f"{command[0]} failed ({said}): is Slurm running?")
    return done.stdout


class SlurmJob:
    """What one job does: tasks by their folders. After a time-out or preemption submitit puts it back into the queue,
    where it does what is not done yet; a training resumes from its last checkpoint."""

    def __init__(self, store: str, threads: int, device: str = "cpu"):
        self.store, self.threads, self.device = store, threads, device

    def __call__(self, folders: list[str]) -> list[str]:
        import torch  # here: what submits the job may do without

        from sightline.studies.engine.work import do_in

        torch.set_num_threads(self.threads)
        return [self.wait_and_do(do_in, folder) for folder in folders]

    def wait_and_do(self, do_in: Callable[[str, str, str], str], folder: str) -> str:
        """The outcome of a task, also if a job of an earlier command is at it: what waits for this job needs it."""
        while (outcome := do_in(self.store, folder, self.device)) == "busy":
            time.sleep(POLL)
        return outcome

    def checkpoint(self, folders: list[str]) -> Any:
        return submitit().helpers.DelayedSubmission(self, folders)


def run_slurm(
    store: Store,
    tasks: Sequence[Task],
    cluster: Cluster,
    *,
    jobs: int,
    until: float = float("inf"),
    say: Callable[[str], None] = print,
) -> bool:
    """Submit the tasks, what is needed first, and wait; whether all of them are done or failed.

    Each wave waits for the one before it within Slurm, so jobs continue if this process ends; the same command then
    submits what is still missing.
    """
    waves = levels(tasks)
    before, ids = "", []
    for wave in waves:
        before = submit(store, wave, cluster, jobs=jobs, after=before)
        ids.append(before)
        say(f"Slurm job {before}: {len(wave)} tasks, {cluster.group} to a job")
    while time.monotonic() < until and any(store.state(t) == "waiting" for t in tasks):
        if not queued(ids):
            break
        time.sleep(POLL)
    left = [t for t in tasks if store.state(t) == "waiting"]
    if left and time.monotonic() < until:
        say(f"{len(left)} tasks ended without a result, as after the loss of a node: the same command resumes them")
    return not left


def queued(ids: Sequence[str]) -> list[str]:
    """Which of these jobs Slurm still has."""
    there = set(ask("squeue", "--noheader", "--format=%F").split())
    return [i for i in ids if i in there]


def levels(tasks: Sequence[Task]) -> list[list[Task]]:
    """Trainings, then those that start from them, and so on; measurements last."""
    keys = {t.key for t in tasks}
    depth: dict[str, int] = {}

    def of(task: Task) -> int:
        if task.key not in depth:
            depth[task.key] = 1 + max((of(n) for n in task.needs if n.key in keys), default=-1)
        return depth[task.key]

    trainings = [t for t in tasks if not isinstance(t, Measurement)]
    deepest = max(map(of, trainings), default=-1)
    waves: list[list[Task]] = [[t for t in trainings if of(t) == d] for d in range(deepest + 1)]
    waves.append([t for t in tasks if isinstance(t, Measurement)])
    return [wave for wave in waves if wave]


def submit(store: Store, tasks: Sequence[Task], cluster: Cluster, *, jobs: int, after: str = "") -> str:
    """One job array, `jobs` of them at a time; its number."""
    package = submitit()
    folder = Path(store.path).absolute()
    executor = package.SlurmExecutor(folder=folder / "slurm" / "%j", max_num_timeout=cluster.requeues)
    more = {"requeue": True, "open-mode": "append"}
    if after:
        more["dependency"] = f"afterany:{after}"
    named = {"partition": cluster.partition} if cluster.partition else {}
    gpus = {"gpus_per_node": cluster.gpus} if cluster.gpus else {}
    executor.update_parameters(
        job_name="sightline",
        time=max(1, round(60 * cluster.hours)),
        cpus_per_task=cluster.cpus,
        array_parallelism=jobs,
        signal_delay_s=90,
        setup=[f"export OMP_NUM_THREADS={cluster.cpus} MKL_NUM_THREADS={cluster.cpus} OMP_WAIT_POLICY=PASSIVE"],
        additional_parameters=more,
        **named,
        **gpus,
    )
    groups = [
        [str(folder / store.folder(t).relative_to(store.path)) for t in tasks[i : i + cluster.group]]
        for i in range(0, len(tasks), cluster.group)
    ]
    job = SlurmJob(str(folder), cluster.cpus, "cuda" if cluster.gpus else "cpu")
    try:
        found = executor.map_array(job, groups)
    except Exception as error:  # submitit has types of its own for what sbatch refuses
        said = re.sub(r"\s+", " ", str(error).strip())[-200:]
        raise ValueError(f"Slurm refused the jobs: {said}") from error
    return str(found[0].job_id).partition("_")[0]
