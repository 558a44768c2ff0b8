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


def available_splits(name: str | Path) -> tuple[str, ...]:
    """The splits of a dataset by name or of a folder with train, val or test in it; empty for everything else.

    >>> sl.data.available_splits("cifar10"), sl.data.available_splits("scenes/objects")
    (('train', 'test'), ('train', 'val', 'test'))
    """
    text = os.fspath(name)
    splits = ("train", "val", "test")
    if text.startswith("scenes/") and not os.path.exists(text):
        return splits
    if text in KNOWN and not os.path.isdir(text):
        return tuple(KNOWN[text].splits)
    folders = [Path(text) / split for split in splits]
    return tuple(f.name for f in folders if f.is_dir() and any(p.is_dir() for p in f.iterdir()))


def _has_shards(folder: str, split: str | None) -> bool:
    places = [folder, os.path.join(folder, split)] if split else [folder]
    return any(name.endswith(".tar") for p in places if os.path.isdir(p) for name in os.listdir(p))
