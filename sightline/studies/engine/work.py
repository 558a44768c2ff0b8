"""Doing one task: train a model, or measure what was trained. Whoever runs it, the outcome is the same."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from sightline.files import lock, open_log, remove_leftovers
from sightline.memory import keep_freed_memory
from sightline.models.costs import Cost, cost
from sightline.models.variants import Config
from sightline.studies.engine.images import open_images
from sightline.studies.engine.measures import measure
from sightline.studies.engine.networks import initial
from sightline.studies.engine.specs import Task, Training
from sightline.studies.engine.store import Store, task_in
from sightline.training.failures import Diverged, Stopped
from sightline.training.loop import fit
from sightline.training.run.folder import Run
from sightline.weights.loading import load

Outcome = Literal["done", "failed", "busy", "stopped"]


def do(store: Store, task: Task) -> Outcome:
    """Do a task unless it is done, or somebody else is at it. A failure is kept with its reason."""
    folder = store.folder(task)
    try:
        with lock(folder / ".lock", wait=False):
            if store.state(task) == "done":
                return "done"
            start = time.process_time()
            remove_leftovers(folder)
            try:
                with quiet(folder):
                    result = outcome(store, task)
            except Stopped:
                store.spend(task, time.process_time() - start)
                return "stopped"
            except Exception as error:  # whatever it is, the other runs continue
                store.fail(task, f"{type(error).__name__}: {' '.join(str(error).split())}")
                return "failed"
            store.spend(task, time.process_time() - start)
            store.finish(task, result)
            return "done"
    except BlockingIOError:
        return "busy"


def do_in(store: str, folder: str, device: str = "cpu") -> Outcome:
    """The task of a folder in a store: what a worker is told, here or on another machine. It does nothing else, so it
    keeps the memory that it frees, a fifth of a step of a small BiT; the numbers stay the same."""
    keep_freed_memory()
    return do(Store(Path(store), device), task_in(Path(folder)))


@contextlib.contextmanager
def quiet(folder: Path) -> Iterator[None]:
    """Progress goes to a file beside the run, with everything else that is printed."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        open_log(folder / "output.txt") as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        yield


def outcome(store: Store, task: Task) -> dict[str, Any]:
    """The numbers of a task."""
    missing = [t for t in task.needs if store.state(t) != "done"]
    if missing:  # where somebody else decides the order: its folder may hold weights of half a training
        raise ValueError(f"it needs run {missing[0].key}, which is not done.")
    if isinstance(task, Training):
        return train(store, task)
    lost = [t for t in task.needs if "diverged" in store.result(t)]
    if lost and task.name != "course":
        return {"diverged": [t.key for t in lost]}
    return measure(task, store)


@cache
def cost_of(config: Config) -> Cost:
    """Parameters and operations, counted once for all runs of a model."""
    return cost(config)


def train(store: Store, training: Training) -> dict[str, Any]:
    """Train, or resume; the weights stay in the folder `train`, the numbers come back."""
    data = open_images(training.images, store.path)
    model = initial(store, training, data)
    if training.recipe is None:
        return {"parameters": cost_of(model.config).parameters, "steps": 0, "images": 0, "macs": 0}
    if training.processes > 1 and not torch.distributed.is_torchelastic_launched():
        return train_on_many(store, training)
    val = None if training.val is None else open_images(training.val, store.path)
    recipe, out = training.recipe, store.folder(training) / "train"
    spent = cost_of(model.config)
    steps = recipe.total_steps(len(data))
    numbers = {"parameters": spent.parameters, "steps": steps, "images": steps * recipe.batch}
    numbers["macs"] = 3 * spent.macs * numbers["images"]  # the backward pass costs two forward passes
    try:
        run = fit(model, data, recipe, val=val, out=out)
    except Diverged as error:
        return {**numbers, "diverged": " ".join(str(error).split())}
    return {**numbers, **course(run)}


def course(run: Run) -> dict[str, Any]:
    """Validation by step, where there is any. Losses of the log are means since the last start, so they stay there."""
    curve = [[row["step"], row["val/accuracy"]] for row in run.rows() if "val/accuracy" in row]
    return {"val": curve} if curve else {}


def train_on_many(store: Store, training: Training) -> dict[str, Any]:
    """One large run: torchrun starts the processes, each of which comes here again."""
    folder = store.folder(training)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={training.processes}", "-m", "--", "sightline.studies.engine.shared"]
    done = subprocess.run([*command, str(store.path), str(folder), store.device], capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"torchrun ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    model = load(folder / "train")
    spent, recipe = cost_of(model.config), training.recipe
    assert recipe is not None
    steps = Run(folder / "train").about["plan"]["steps"]
    images = steps * recipe.batch
    numbers = {"parameters": spent.parameters, "steps": steps, "images": images, "macs": 3 * spent.macs * images}
    return {**numbers, **course(Run(folder / "train"))}
