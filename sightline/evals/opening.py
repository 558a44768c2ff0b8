"""Open evaluation data by name or path: the held-out split, scenes at the model's image size."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sightline.data.datasets import Dataset
from sightline.data.scenes.scenes import LARGEST, SMALLEST
from sightline.data.source import available_splits, dataset, held_out_split
from sightline.evals.extraction import extract
from sightline.evals.feature_table import FeatureTable

SCENES = 2000  # number of scenes drawn by default
log = logging.getLogger("sightline.evals")


def evaluation_data(model: Any, name: str | Path, split: str | None = None, *, num: int | None = None) -> Dataset:
    """A dataset to evaluate `model` on. The default split is test, else val, else the whole dataset.

    `num` images are drawn from it, always the same ones; scenes are drawn at the model's image size.

    >>> model = sl.build("vit-nano4", size=64)
    >>> d = sl.evals.evaluation_data(model, "scenes/shape", num=50)
    >>> d.split_name, d.size, len(d)
    ('test', 64, 50)
    """
    split = split or held_out_split(name)
    if not str(name).startswith("scenes/"):
        return draw(dataset(name, split=split), num)
    size = min(LARGEST, max(SMALLEST, model.image.size[0]))
    return dataset(name, split=split, num=num or SCENES, size=size)


def draw(data: Dataset, num: int | None) -> Dataset:
    """So many images of a dataset at random, always the same ones; all if it has no more, or if none is given."""
    if num is not None and num < 1:
        raise ValueError(f"num is a number of images, 1 or more; got {num}.")
    return data if num is None or num >= len(data) else data.sample(num, seed=0)


def extract_splits(
    model: Any,
    name: str | Path,
    splits: tuple[str, str] = ("train", "test"),
    *,
    num: int | None = None,
    **settings: Any,
) -> tuple[FeatureTable, FeatureTable]:
    """Features of two splits of a dataset, to train and to test on; `settings` go to `sl.extract`.

    A folder of classes without such splits is divided: half of each class is for training, the other half for testing.

    >>> train, test = sl.evals.extract_splits(sl.build("vit-nano4"), "scenes/shape", num=20)
    >>> len(train), len(test)
    (20, 20)
    """
    if splits == ("train", "test") and os.path.isdir(name) and not available_splits(name):
        halves: Sequence[Dataset] = [draw(half, num) for half in dataset(name).split(0.5, seed=0)]
        log.warning(
            "%s has no folders train and test: half of each class is to train on (%d images), the others to test.",
            name, len(halves[0]),
        )  # fmt: skip
    else:
        halves = [evaluation_data(model, name, split, num=num) for split in splits]
    train, test = (extract(model, part, **settings) for part in halves)
    return train, test
