"""`python -m sightline.studies.engine.shared STORE FOLDER`: one process of a run that torchrun spreads over several."""

import sys
from pathlib import Path

from sightline.studies.engine.specs import Training
from sightline.studies.engine.store import Store, task_in
from sightline.studies.engine.work import train

if __name__ == "__main__":
    store, task = Store(Path(sys.argv[1])), task_in(Path(sys.argv[2]))
    assert isinstance(task, Training)
    train(store, task)
