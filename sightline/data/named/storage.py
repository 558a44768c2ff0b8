"""How named datasets are stored: arrays, a manifest of files, or a folder per class."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sightline.archives import map_array, save_array
from sightline.data.arrays import Arrays
from sightline.data.datasets import Dataset
from sightline.data.folder import Folder, Manifest
from sightline.data.named.entry import NamedDataset
from sightline.data.named.readers import Splits
from sightline.data.targets.trimaps import Pets
from sightline.files import atomic


@dataclass(frozen=True)
class ArrayStorage:
    """Images of one size, memory-mapped: `train-images.npy`, `train-labels.npy`, ..."""

    read: Callable[[Path], Splits | None]
    mean: tuple[float, ...]  # mean of the training images per channel, 0..1: checked after reading

    def prepare(self, entry: NamedDataset, raw: Path, folder: Path) -> bool:
        splits = self.read(raw)
        if splits is None:
            return False
        check_facts(entry, splits, self.mean)
        for split, (images, labels) in splits.items():
            write_array(folder / f"{split}-images.npy", images)
            write_array(folder / f"{split}-labels.npy", labels.astype(np.int64))
        return True

    def open(self, entry: NamedDataset, folder: Path, split: str) -> Dataset:
        images, labels = (map_array(folder / f"{split}-{kind}.npy") for kind in ("images", "labels"))
        classes = entry.classes if isinstance(entry.classes, tuple) else tuple(map(str, range(entry.classes)))
        return Arrays(images, np.asarray(labels), classes=classes, name=entry.name)


def write_array(path: Path, array: np.ndarray) -> None:
    """An .npy file with a checksum, written atomically."""
    with atomic(path) as partial:
        save_array(partial, array)


def check_facts(entry: NamedDataset, splits: Splits, mean: tuple[float, ...]) -> None:
    """Check what was read against the known sizes, classes and mean."""
    for split, count in entry.splits.items():
        images, labels = splits[split]
        if len(images) != count or len(labels) != count:
            raise ValueError(
                f"{entry.name}: {split} has {len(images)} images and {len(labels)} labels, expected {count}."
            )
        if labels.max() >= entry.num_classes:
            raise ValueError(f"{entry.name}: label {labels.max()} is outside the {entry.num_classes} classes.")
    images = splits["train"][0]
    measured = images.reshape(len(images), -1, len(mean)).mean((0, 1)) / 255
    if np.abs(measured - mean).max() > 2e-4:
        got, expected = (" ".join(f"{m:.4f}" for m in values) for values in (measured, mean))
        raise ValueError(f"{entry.name}: the training images have mean {got}, expected {expected}.")


@dataclass(frozen=True)
class ManifestStorage:
    """Image files as they were published, and `list.csv` with their labels and splits."""

    unpack: Callable[[Path, Path], bool]

    def prepare(self, entry: NamedDataset, raw: Path, folder: Path) -> bool:
        return self.unpack(raw, folder)

    def open(self, entry: NamedDataset, folder: Path, split: str) -> Dataset:
        return Manifest(folder / "list.csv", split)


@dataclass(frozen=True)
class PetsStorage(ManifestStorage):
    """The same with the trimaps that were published beside the images."""

    def open(self, entry: NamedDataset, folder: Path, split: str) -> Dataset:
        return Pets(folder, split)


@dataclass(frozen=True)
class FolderStorage:
    """A user's own copy: a folder per split, with a subfolder per class."""

    def prepare(self, entry: NamedDataset, raw: Path, folder: Path) -> bool:
        return False

    def open(self, entry: NamedDataset, folder: Path, split: str, **options: Any) -> Dataset:
        return Folder(folder, split, follow_links=True, **options)
