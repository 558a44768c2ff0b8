"""A dataset by its name or its place: one word for everything a user may have."""

import os
from pathlib import Path
from typing import Any

from sightline.data.arrays import read_npz
from sightline.data.datasets import Dataset
from sightline.data.errors import shown
from sightline.data.folder import Folder, Manifest
from sightline.data.named.hub import open_hub
from sightline.data.named.store import open_named
from sightline.data.named.table import KNOWN
from sightline.data.scenes.scenes import Scenes
from sightline.data.shards.read import Shards

SPLITS = ("train", "val", "test")


def dataset(name: str | Path, split: str | None = None, **settings: Any) -> Dataset:
    """A dataset by name ("cifar10", "scenes/objects"), or by place: a folder, a manifest (.csv, .jsonl),
    arrays (.npz), shards (.tar, a pattern of them, or their folder), "hf:owner/name" for Hugging Face datasets.

    >>> sl.dataset("scenes/objects", split="train", num=10_000, size=32)
    <scenes/objects: 10,000 images, 20 classes>
    """
    text = os.fspath(name)
    if text.startswith("scenes/") and not os.path.exists(text):
        return Scenes(text.removeprefix("scenes/"), split=split or "train", **settings)
    if text in KNOWN and not os.path.isdir(text):
        return open_named(text, split, **settings)
    if text.startswith("hf:"):
        return open_hub(text.removeprefix("hf:"), split or "train", **settings)
    suffix = Path(text).suffix.lower()
    if suffix in (".csv", ".jsonl"):
        return Manifest(text, split, **settings)
    if suffix == ".npz":
        return read_npz(text, split, **settings)
    if suffix == ".tar" or (os.path.isdir(text) and _has_shards(text, split)):
        return Shards(
            os.path.join(text, split) if split and os.path.isdir(os.path.join(text, split)) else text, **settings
        )
    if os.path.isdir(text):
        return Folder(text, split, **settings)
    raise ValueError(f"{shown(text)} is neither a dataset that is known by name nor a folder or file.")


def _has_shards(folder: str, split: str | None) -> bool:
    places = [folder, os.path.join(folder, split)] if split else [folder]
    return any(name.endswith(".tar") for p in places if os.path.isdir(p) for name in os.listdir(p))


def splits(name: str | Path) -> tuple[str, ...]:
    """The splits of a dataset by name or of a folder; none where it has no such parts.

    >>> sl.data.splits("cifar10"), sl.data.splits("scenes/count")
    (('train', 'test'), ('train', 'val', 'test'))
    """
    text = os.fspath(name)
    if text in KNOWN:
        return tuple(KNOWN[text].splits)
    if text.startswith("scenes/"):
        return SPLITS
    return tuple(s for s in SPLITS if any(p.is_dir() for p in Path(text, s).glob("*")))


def held_out_split(name: str | Path) -> str | None:
    """The split to measure on where none is named: test, else val, else None for the whole.

    >>> sl.data.held_out_split("cifar10")
    'test'
    """
    there = splits(name)
    return next((s for s in ("test", "val") if s in there), None)


def dataset_pair(
    name: str | Path, split: str | None = None, against: str | None = None
) -> tuple[Dataset, Dataset | None]:
    """A dataset, and one that it must share no image with, as `sl.data.check` takes them.

    `against` is another split or another dataset. Where neither is named, a train split is paired with test or val.

    >>> sl.data.dataset_pair("scenes/count", split="train", against="val")
    (<scenes/count: 10,000 images, 8 classes>, <scenes/count: 10,000 images, 8 classes>)
    """
    there = splits(name)
    if split is None and against is None and "train" in there and len(there) > 1:
        split, against = "train", held_out_split(name) or next(s for s in there if s != "train")
    if against is None:
        return dataset(name, split=split), None
    return dataset(name, split=split), dataset(name, split=against) if against in there else dataset(against)
