"""Tasks on this machine: a bounded pool of processes, each of which may be killed at any time."""

import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from sightline.studies.engine.specs import Task
from sightline.studies.engine.store import Store

DEATHS = 3  # of the process that does it, before a task counts as failed
PAUSE = 1.0  # seconds between two looks at what others are doing
GRACE = 60  # seconds for a step and a checkpoint
Say = Callable[[str], None]


def work(store: str, pipe: Connection, parent: int, threads: int) -> None:
    """The life of a worker: folders come through the pipe, outcomes go back. It ends with its parent."""
    threading.Thread(target=leave_with, args=(parent,), daemon=True).start()
    import torch  # here: the parent may do without

    from sightline.studies.engine.work import do_in

    torch.set_num_threads(threads)
    while True:
        try:
            folder = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            pipe.send(do_in(store, folder))
        except (OSError, KeyboardInterrupt):  # nobody listens any more, or everybody was asked to stop
            return


def leave_with(parent: int) -> None:
    """A worker whose parent was killed leaves at once: the same command starts another one, and resumes."""
    while os.getppid() == parent:
        time.sleep(PAUSE)
    os._exit(1)


@dataclass
class Worker:
    """One process, and the task it is doing."""

    process: Any
    pipe: Connection
    task: Task | None = None

    @classmethod
    def start(cls, store: Store, threads: int) -> "Worker":
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(str(store.path), theirs, os.getpid(), threads), daemon=True)
        process.start()
        theirs.close()
        return cls(process, ours)


@dataclass
class Pool:
    """Tasks that wait, workers that do them, and what became of them."""

    store: Store
    jobs: int
    threads: int
    say: Say
    waiting: deque[Task]
    workers: list[Worker] = field(default_factory=list)
    deaths: dict[str, int] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    def run(self, until: float) -> bool:
        """Until everything is done or failed, or the time is up; whether nothing is left."""
        try:
            while (self.waiting or self.busy()) and time.monotonic() < until:
                self.assign()
                self.listen(PAUSE)
            return not (self.waiting or self.busy())
        finally:
            self.close()

    def busy(self) -> list[Worker]:
        return [w for w in self.workers if w.task is not None]

    def assign(self) -> None:
        """Give every idle worker the first task whose needs are met. The others keep their place: a model is measured
        as soon as it is trained, so that a study that is stopped has results."""
        early: list[Task] = []
        while self.waiting and len(self.busy()) < self.jobs:
            task = self.waiting.popleft()
            if self.store.state(task) == "done" or task.key in self.failed:
                continue
            if lost := [n for n in task.needs if n.key in self.failed]:
                self.fail(task, f"it needs run {lost[0].key}, which failed.")
            elif any(self.store.state(n) != "done" for n in task.needs):
                early.append(task)
            else:
                self.give(task)
        self.waiting.extendleft(reversed(early))

    def give(self, task: Task) -> None:
        worker = next((w for w in self.workers if w.task is None), None)
        if worker is None:
            worker = Worker.start(self.store, self.threads)
            self.workers.append(worker)
        worker.task = task
        worker.pipe.send(str(self.store.folder(task)))

    def listen(self, seconds: float) -> None:
        """Hear what workers have done, and which of them have died."""
        if not self.busy():
            time.sleep(seconds if self.waiting else 0)
            return
        wait([w.pipe for w in self.busy()], timeout=seconds)
        for worker in self.busy():
            try:
                if worker.pipe.poll():
                    self.note(worker, worker.pipe.recv())
            except (EOFError, OSError):
                self.lose(worker)

    def note(self, worker: Worker, outcome: str) -> None:
        """An outcome: a task that somebody else is doing is asked for again later."""
        task, worker.task = worker.task, None
        assert task is not None
        if outcome == "failed":
            self.failed.add(task.key)
            self.say(f"{self.store.folder(task).name} failed: {self.store.reason(task)}")
        elif outcome != "done":
            self.waiting.append(task)
            time.sleep(PAUSE)

    def lose(self, worker: Worker) -> None:
        """A worker died: another one resumes its task, unless this happens again and again."""
        task = worker.task
        assert task is not None
        self.workers.remove(worker)
        worker.process.join()
        self.deaths[task.key] = self.deaths.get(task.key, 0) + 1
        if self.deaths[task.key] >= DEATHS:
            self.fail(task, f"its process died {DEATHS} times, the last time with exit code {worker.process.exitcode}.")
        else:
            self.waiting.appendleft(task)

    def fail(self, task: Task, reason: str) -> None:
        self.store.fail(task, reason)
        self.failed.add(task.key)
        self.say(f"{task.key} failed: {reason}")

    def close(self) -> None:
        """Ask everybody to stop: trainings finish their step and save."""
        for worker in self.workers:
            if worker.task is not None:
                worker.process.terminate()
            worker.pipe.close()
        for worker in self.workers:
            worker.process.join(GRACE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


def run_local(
    store: Store, tasks: Sequence[Task], *, jobs: int, threads: int = 1, until: float = float("inf"), say: Say = print
) -> bool:
    """Do the tasks with so many processes at a time; whether all of them are done or failed."""
    if not tasks:
        return True
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads)))
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return Pool(store, jobs, threads, say, deque(tasks)).run(until)
