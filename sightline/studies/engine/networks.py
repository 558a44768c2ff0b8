"""The networks of a study: before their first step, and as a training left them."""

from collections.abc import Iterator
from contextlib import contextmanager

from sightline.data.datasets import Dataset
from sightline.models.construct import Model, build
from sightline.studies.engine.images import open_images
from sightline.studies.engine.specs import Training
from sightline.studies.engine.store import Store
from sightline.weights.loading import load
from sightline.weights.report import WeightsError


def initial(store: Store, training: Training, data: Dataset) -> Model:
    """The model before its first step."""
    changes, size = dict(training.changes), training.images.size
    if training.start is None:
        model = build(training.model, classes=len(data.classes), size=size, seed=training.seed, **changes)
        return model.to(store.device)
    folder = store.folder(training.start) / "train"
    same = training.start.images.name == training.images.name  # then the head knows these classes
    with _how_to_repair(store, training.start):
        return load(folder, classes=None if same else list(data.classes), size=size, **changes).to(store.device)


def trained(store: Store, training: Training) -> Model:
    """The model that a training left, or an untrained one."""
    if training.recipe is None:
        return initial(store, training, open_images(training.images, store.path))
    with _how_to_repair(store, training):
        return load(store.folder(training) / "train").to(store.device)


@contextmanager
def _how_to_repair(store: Store, training: Training) -> Iterator[None]:
    try:
        yield
    except WeightsError as error:
        raise ValueError(f"{error} Remove {store.folder(training)}, and the same command trains it again.") from error
