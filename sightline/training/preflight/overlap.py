"""Training images among the validation images."""

import os
from collections.abc import Hashable

import numpy as np

from sightline.data.arrays import Arrays
from sightline.data.datasets import Dataset
from sightline.data.draws import Ints
from sightline.data.folder import Files
from sightline.data.scenes.scenes import Scenes
from sightline.data.shards.read import Shards
from sightline.data.targets.coco import Coco
from sightline.data.targets.mask_folder import MaskFolder
from sightline.data.targets.trimaps import Pets


def count_overlap(train: Dataset, val: Dataset) -> int:
    """How many validation images are training images: by index in the same source, by file, or by identical pixels.

    A published test set may contain a few duplicates of training images (CIFAR-10's does); by pixels, up to one in a
    hundred is tolerated.
    """
    (source, mine), (other, theirs) = train.origins(), val.origins()
    if source is other:
        return int(np.isin(theirs, mine).sum())
    known, asked = _locations(source, mine), _locations(other, theirs)
    if known is not None and asked is not None:
        return len(set(known) & set(asked))
    if isinstance(source, Arrays) and isinstance(other, Arrays):
        seen = {hash(source.stack[i].tobytes()) for i in mine}
        both = sum(hash(other.stack[i].tobytes()) in seen for i in theirs)
        return both if both > 0.01 * len(val) else 0
    return len(val) if train.fingerprint() == val.fingerprint() else 0


def _locations(source: Dataset, numbers: Ints) -> list[Hashable] | None:
    """Where each image comes from, so that equal locations mean equal images; None if that is unknown."""
    match source:
        case Files() | Coco() | MaskFolder() | Pets():
            return [os.path.realpath(source.paths[i]) for i in numbers]
        case Shards():
            paths = [os.path.realpath(path) for path in source.paths]
            return [(paths[int(source.shard[i])], int(source.offset[i])) for i in numbers]
        case Scenes():
            return [(source.task, source.split_name, source.seed, int(i)) for i in numbers]
        case _:
            return None
