"""Open any dataset by its name or its path."""

import difflib
import os
from pathlib import Path
from typing import Any

from sightline.data.arrays import read_npz
from sightline.data.datasets import Dataset
from sightline.data.errors import printable
from sightline.data.folder import Files, Folder, Manifest
from sightline.data.images import SUFFIXES
from sightline.data.named.hub import open_hub
from sightline.data.named.store import open_named
from sightline.data.named.table import NAMED_DATASETS
from sightline.data.scenes.scenes import SPLITS, Scenes
from sightline.data.scenes.tasks import TASKS
from sightline.data.shards.read import Shards
from sightline.data.targets.coco import Coco, annotation_files
from sightline.data.targets.mask_folder import MaskFolder, folder_layout, mask_splits


def dataset(name: str | Path, split: str | None = None, **options: Any) -> Dataset:
    """A dataset by name ("cifar10", "scenes/objects", "hf:owner/name" on the Hugging Face hub) or by path: a folder,
    a manifest (.csv, .jsonl), arrays (.npz), shards (.tar, a pattern, or their folder), or a single image. With masks:
    COCO's instances (.json, or the folder with annotations/), Pascal VOC's folder, or one with images/ and masks/.
    Options are those of its kind.

    >>> sl.dataset("scenes/objects", split="train", num=10_000, size=32)
    <scenes/objects: 10,000 images, 20 classes>
    """
    text = os.fspath(name)
    if text.startswith("scenes/") and not os.path.exists(text):
        return Scenes(text.removeprefix("scenes/"), split=split or "train", **options)
    if text in NAMED_DATASETS and not os.path.isdir(text):
        return open_named(text, split, **options)
    if text.startswith("hf:"):
        return open_hub(text.removeprefix("hf:"), split or "train", **options)
    suffix = Path(text).suffix.lower()
    if suffix in (".csv", ".jsonl"):
        return Manifest(text, split, **options)
    if suffix == ".npz":
        return read_npz(text, split, **options)
    if suffix == ".tar" or (os.path.isdir(text) and _has_shards(text, split)):
        return Shards(
            os.path.join(text, split) if split and os.path.isdir(os.path.join(text, split)) else text, **options
        )
    if suffix == ".json" and os.path.isfile(text):
        return Coco(text, **options)
    if os.path.isdir(text):
        return _open_folder(text, split, **options)
    if suffix in SUFFIXES and os.path.isfile(text):  # a single image, to look at
        return Files(printable(text), [text], labels=[0], classes=[printable(Path(text).stem)])
    near = "".join(f" Did you mean {match}?" for match in difflib.get_close_matches(text, known_names(), 1))
    raise ValueError(
        f"{printable(text)} is neither the name of a dataset nor a folder, manifest, .npz file or shard.{near} "
        "The names are listed by: sightline data list."
    )


def _open_folder(path: str, split: str | None, **options: Any) -> Dataset:
    """A folder of classes, or one with annotations or masks."""
    if files := annotation_files(path):
        if split not in files and (split is not None or len(files) > 1):
            raise ValueError(
                f"{printable(path)} has annotations of the splits {', '.join(files)}; got split={split!r}."
            )
        return Coco(files[split or next(iter(files))], **options)
    if folder_layout(Path(path)) is not None:
        return MaskFolder(path, split, **options)
    return Folder(path, split, **options)


def known_names() -> tuple[str, ...]:
    """Every name that a dataset can be opened by, apart from those on the hub."""
    return (*NAMED_DATASETS, *(f"scenes/{task}" for task in TASKS))


def available_splits(name: str | Path) -> tuple[str, ...]:
    """The splits of a dataset by name or of a folder with train, val or test in it; empty for everything else.

    >>> sl.data.available_splits("cifar10"), sl.data.available_splits("scenes/objects")
    (('train', 'test'), ('train', 'val', 'test'))
    """
    text = os.fspath(name)
    if text.startswith("scenes/") and not os.path.exists(text):
        return SPLITS
    if text in NAMED_DATASETS and not os.path.isdir(text):
        return tuple(NAMED_DATASETS[text].splits)
    if listed := tuple(annotation_files(text)) or mask_splits(Path(text)):
        return listed
    folders = [Path(text) / split for split in SPLITS]
    return tuple(f.name for f in folders if f.is_dir() and any(p.is_dir() for p in f.iterdir()))


def _has_shards(folder: str, split: str | None) -> bool:
    places = [folder, os.path.join(folder, split)] if split else [folder]
    return any(name.endswith(".tar") for p in places if os.path.isdir(p) for name in os.listdir(p))


def held_out_split(name: str | Path) -> str | None:
    """The default split for evaluation: test, else val, else None for the whole dataset.

    >>> sl.data.held_out_split("cifar10")
    'test'
    """
    there = available_splits(name)
    return next((s for s in ("test", "val") if s in there), None)


def dataset_pair(
    name: str | Path, split: str | None = None, against: str | None = None
) -> tuple[Dataset, Dataset | None]:
    """A dataset, and one with which it must not share images, as `sl.data.check` takes them.

    `against` is another split or another dataset. By default, a train split is paired with test or val.

    >>> sl.data.dataset_pair("scenes/count", split="train", against="val")
    (<scenes/count: 10,000 images, 8 classes>, <scenes/count: 10,000 images, 8 classes>)
    """
    there = available_splits(name)
    if split is None and against is None and "train" in there and len(there) > 1:
        split, against = "train", held_out_split(name) or next(s for s in there if s != "train")
    if against is None:
        return dataset(name, split=split), None
    return dataset(name, split=split), dataset(name, split=against) if against in there else dataset(against)
