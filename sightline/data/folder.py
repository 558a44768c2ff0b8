"""Image files: a folder per class, splits in folders, or a manifest that lists the files."""

import csv
import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from sightline.data.datasets import Dataset
from sightline.data.draws import Ints
from sightline.data.errors import printable
from sightline.data.images import SUFFIXES, EncodedImage, read_bytes
from sightline.fingerprints import FileStamp
from sightline.untrusted import listed, open_regular, parse_json

SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}
PATH_COLUMNS = ("path", "file", "filename", "file_name", "image")
LABEL_COLUMNS = ("label", "class", "target", "category", "class_index", "label_index")


class ImageFiles(Dataset):
    """A dataset whose images are files of their own."""

    paths: list[str]
    home: str = ""  # files are named from here in stamps; empty: from the folder that all of them share

    def image(self, index: int) -> EncodedImage:
        return read_bytes(self.paths[index])

    def where(self, index: int) -> str:
        return printable(self.paths[index])

    def stamps(self, indices: Ints) -> list[FileStamp] | None:
        home = self.home or os.path.commonpath({os.path.dirname(p) for p in self.paths})
        return [file_stamp(self.paths[int(i)], home) for i in indices]


class Files(ImageFiles):
    """Image files with one label each."""

    def __init__(self, name: str, paths: list[str], *, labels: Iterable[int], classes: Iterable[str]):
        self.name, self.paths, self.classes = name, paths, tuple(classes)
        self.labels = np.fromiter(labels, dtype=np.int64, count=len(paths))
        self.skipped: list[str] = []


def file_stamp(path: str, home: str) -> FileStamp:
    name = path[len(home) :].strip(os.sep).replace(os.sep, "/")
    try:
        found = os.stat(path)
    except OSError:
        return FileStamp(name, 0, 0)
    return FileStamp(name, found.st_size, found.st_mtime_ns)


class Folder(Files):
    """A folder per class, or one flat folder of images (a single class); folders train/, val/, test/ are its splits.

    Hidden files and files without the extension of an image are ignored. Links that lead out of the folder are skipped
    and listed in `skipped`, unless `follow_links=True`.

    >>> import os, tempfile; from PIL import Image
    >>> root = tempfile.TemporaryDirectory()
    >>> for kind in ("cat", "dog"):
    ...     os.mkdir(f"{root.name}/{kind}")
    ...     Image.new("RGB", (8, 8)).save(f"{root.name}/{kind}/1.png")
    >>> sl.Folder(root.name).classes
    ('cat', 'dog')
    >>> root.cleanup()
    """

    def __init__(self, path: str | Path, split: str | None = None, *, follow_links: bool = False):
        root = Path(path)
        if not root.is_dir():
            raise ValueError(f"{printable(path)} is not a folder.")
        skipped: list[str] = []
        home = None if follow_links else os.path.realpath(root)
        base = _split_folder(root, split, home, skipped)
        folders = [e.name for e in _list_entries(base, home, skipped) if _is_dir(e)]
        paths = {c: sorted(_walk(os.path.join(base, c), home, skipped)) for c in sorted(folders)}
        if not any(paths.values()):
            paths = {base.name: sorted(e.path for e in _list_entries(base, home, skipped) if _is_image(e))}
        rows = [(p, i) for i, members in enumerate(paths.values()) for p in members]
        if not rows:
            links = f"; {len(skipped)} links lead out of it: give follow_links=True to follow them" if skipped else ""
            raise ValueError(f"{printable(base)} has no images ({', '.join(SUFFIXES[:5])} ...){links}.")
        super().__init__(
            printable(path), [p for p, _ in rows], labels=(i for _, i in rows), classes=map(printable, paths)
        )
        self.skipped = skipped


def _split_folder(root: Path, split: str | None, home: str | None, skipped: list[str]) -> Path:
    """The folder of a split. A class may be called "train": only folders that contain folders count as splits."""
    names = sorted(e.name for e in _list_entries(root, home, skipped) if _is_dir(e))
    splits = [n for n in names if n.lower() in SPLITS]
    is_split = (
        bool(splits) and len(splits) == len(names) and any(c.is_dir() for n in splits for c in (root / n).iterdir())
    )
    if split is None:
        if is_split and len(splits) > 1:
            raise ValueError(
                f"{printable(root)} has the splits {', '.join(splits)}: give one, for example --split {splits[0]} "
                f"(in Python split={splits[0]!r})."
            )
        return root / splits[0] if is_split else root
    aliases = {
        "val": ("val", "valid", "validation", "dev"),
        "train": ("train", "training"),
        "test": ("test", "testing"),
    }
    for name in aliases.get(split, (split,)):
        if name in names:
            return root / name
    raise ValueError(
        f"{printable(root)} has no folder {printable(split)}; it has {', '.join(map(printable, names[:10])) or 'none'}."
    )


def _list_entries(folder: str | Path, home: str | None, skipped: list[str]) -> list[os.DirEntry[str]]:
    """Visible entries in order of name, without links that lead out of `home`."""
    try:
        with os.scandir(folder) as entries:
            everything = sorted(entries, key=lambda e: e.name)
    except OSError:  # no permission
        skipped.append(printable(folder))
        return []
    visible = []
    for entry in everything:
        if home is not None and entry.is_symlink() and not is_inside(entry.path, home):
            skipped.append(printable(entry.path))
        elif not entry.name.startswith("."):
            visible.append(entry)
    return visible


def is_inside(path: str, home: str) -> bool:
    real = os.path.realpath(path)
    return real == home or real.startswith(home.rstrip(os.sep) + os.sep)


def _is_dir(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or a link to one; a link that leads back to itself is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_image(entry: os.DirEntry[str]) -> bool:
    """Judged by the extension only; broken files are found when they are read."""
    return entry.name.lower().endswith(SUFFIXES) and not _is_dir(entry)


def _walk(folder: str, home: str | None, skipped: list[str]) -> Iterator[str]:
    """Images in a folder and its subfolders, however deep. A link to a folder above it is not followed, which would
    never end."""
    over = {_identity(os.path.dirname(folder) or "."), _identity(home or folder)} - {_identity(folder)}
    stack = [(_identity(folder), iter(_list_entries(folder, home, skipped)))]
    while stack:
        entry = next(stack[-1][1], None)
        if entry is None:
            stack.pop()
        elif _is_dir(entry):
            identity = _identity(entry.path)
            if identity not in over and all(identity != above for above, _ in stack):
                stack.append((identity, iter(_list_entries(entry.path, home, skipped))))
        elif _is_image(entry):
            yield entry.path


def _identity(folder: str) -> tuple[int, int] | str:
    """The same for every path that leads to a folder."""
    try:
        status = os.stat(folder)
    except OSError:
        return folder
    return status.st_dev, status.st_ino


def find_images(folder: str) -> list[str]:
    """Image files in a folder and its subfolders, following links. A subfolder that cannot be read is listed itself, so
    that opening it reports the error."""
    skipped: list[str] = []
    return [*_walk(folder, None, skipped), *skipped]


class Manifest(Files):
    """A CSV file with a header, or a JSONL file, with the columns path (or file, image), label (or class), and
    optionally split. Paths are relative to the folder of the manifest, or to `root`, and must not lead out of it.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with open(f"{folder.name}/list.csv", "w") as file:
    ...     _ = file.write("path,label\\na.png,cat\\nb.png,dog\\n")
    >>> sl.data.Manifest(f"{folder.name}/list.csv").classes
    ('cat', 'dog')
    >>> folder.cleanup()
    """

    def __init__(self, path: str | Path, split: str | None = None, *, root: str | Path | None = None):
        path = Path(path)
        rows = _read_rows(path)
        path_column, label_column = _column(path, rows, PATH_COLUMNS), _column(path, rows, LABEL_COLUMNS)
        if split is not None:
            rows = _select_split(path, rows, split)
        home = os.path.realpath(root if root is not None else path.parent)
        paths = [os.path.join(home, str(row[path_column])) for row in rows]
        outside = next((str(row[path_column]) for row, p in zip(rows, paths) if not is_inside(p, home)), None)
        if outside is not None:
            raise ValueError(
                f"{printable(path)} lists {printable(outside)}, which is, or leads, outside {printable(home)}. Copy it "
                f"there, or in Python name a folder that has all: sl.data.Manifest(..., root=FOLDER)."
            )
        labels = [str(row[label_column]) for row in rows]
        classes = sorted(set(labels), key=_label_order)
        number = {c: i for i, c in enumerate(classes)}
        super().__init__(
            printable(path), paths, labels=(number[label] for label in labels), classes=map(printable, classes)
        )


def _read_rows(path: Path) -> list[dict[str, object]]:
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            if path.suffix.lower() == ".csv":
                rows: list[dict[str, object]] = [dict(row) for row in csv.DictReader(file, strict=True)]
            else:
                rows = [parse_json(line) for line in file if line.strip()]
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f"{printable(path)} is not a readable manifest ({error!s:.200}).") from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(
            f"{printable(path)} lists no images; expected a header row or JSON objects, with path and label."
        )
    return rows


def _column(path: Path, rows: list[dict[str, object]], names: tuple[str, ...]) -> str:
    """The first of these columns that the file has; every row must have it."""
    name = next((n for n in names if n in rows[0]), None)
    if name is None:
        raise ValueError(f"{printable(path)} has no column {' or '.join(names)}; it has {listed(rows[0])}.")
    lacking = next((i for i, row in enumerate(rows) if row.get(name) in (None, "")), None)
    if lacking is not None:
        raise ValueError(f"{printable(path)}: entry {lacking + 1} has no {name}.")
    return name


def _select_split(path: Path, rows: list[dict[str, object]], split: str) -> list[dict[str, object]]:
    chosen = [row for row in rows if row.get("split") == split]
    if not chosen:
        splits = sorted({str(row["split"]) for row in rows if row.get("split") is not None})
        raise ValueError(
            f"{printable(path)} has no rows of the split {split}; it has {listed(splits) or 'no column split'}."
        )
    return chosen


def _label_order(label: str) -> tuple[int, int, str, str]:
    """Numbers by value, of however many digits, and then names."""
    if not label.isdecimal():
        return 1, 0, "", label
    digits = "".join(str(int(c)) for c in label).lstrip("0")
    return 0, len(digits), digits, label
