"""Settings that every test shares."""

import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("COLUMNS", "160")
# One process per core: threads of NumPy and torch would spin while others run. Workers and child processes inherit it;
# a process reads it when it first imports either.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config):
    """Of every process that runs tests; the one that hands them out to others needs none of it, and starts faster."""
    if config.getoption("dist", "no") != "no":
        return
    from hypothesis import settings

    from tests.shapes import check_only_shapes

    check_only_shapes()  # before anything imports sightline
    settings.register_profile("house", deadline=None, derandomize=True, print_blob=True)
    settings.load_profile("house")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What imports and collecting leave stays to the end: 600,000 objects that no test need look through again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def _steady():
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)  # the suite runs one process per core


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    """Thousands of small files are written here, and none of them has to survive a power failure."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="session")
def once(tmp_path_factory) -> Callable[[str, Callable[[Path], object]], Path]:
    """What is dear is made once for all workers: `once("page", fill)` is a folder that the first to ask fills."""
    from sightline.files import lock

    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def make(name: str, fill: Callable[[Path], object]) -> Path:
        folder, done = base / f"once-{name}", base / f"once-{name}.done"
        with lock(base / f"once-{name}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                fill(folder)
                done.touch()
        return folder

    return make
