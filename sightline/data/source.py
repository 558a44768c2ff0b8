"""A dataset by its name or its place: one word for everything a user may have."""

import os
from pathlib import Path
from typing import Any

from sightline.data.arrays import read_npz
from sightline.data.dataset import Dataset
from sightline.data.errors import shown
from sightline.data.folder import Folder, Manifest
from sightline.data.scenes.scenes import Scenes


def dataset(name: str | Path, split: str | None = None, **settings: Any) -> Dataset:
    """A dataset by name ("cifar10", "scenes/objects"), or by place: a folder, a manifest (.csv, .jsonl), arrays (.npz).

    >>> sl.dataset("scenes/objects", split="train", num=10_000, size=32)
    <scenes/objects: 10,000 pictures, 20 classes>
    """
    text = os.fspath(name)
    if text.startswith("scenes/") and not os.path.exists(text):
        return Scenes(text.removeprefix("scenes/"), split=split or "train", **settings)
    suffix = Path(text).suffix.lower()
    if suffix in (".csv", ".jsonl"):
        return Manifest(text, split, **settings)
    if suffix == ".npz":
        return read_npz(text, split, **settings)
    if os.path.isdir(text):
        return Folder(text, split, **settings)
    raise ValueError(f"{shown(text)} is neither a dataset that is known by name nor a folder or file.")
