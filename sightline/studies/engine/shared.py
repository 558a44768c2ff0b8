"""`python -m sightline.studies.engine.shared STORE FOLDER DEVICE`: one process of a run that torchrun starts."""

import sys
from pathlib import Path

from sightline.studies.engine.specs import Training
from sightline.studies.engine.store import Store, task_in
from sightline.studies.engine.work import train
from sightline.training.parallel import local_device

if __name__ == "__main__":
    device = "cpu" if sys.argv[3] == "cpu" else str(local_device())  # each process has a GPU of its own
    store, task = Store(Path(sys.argv[1]), device), task_in(Path(sys.argv[2]))
    assert isinstance(task, Training)
    train(store, task)
