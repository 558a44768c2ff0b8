"""Read tar shards in WebDataset format; any entry can be read by its offset, so order and resuming are exact.

A sample is consecutive files of one name with several extensions: `000017.jpg`, `000017.cls`. An epoch visits the
shards in shuffled order, a few at a time, and shuffles within those: reads stay close together, memory does not grow.
"""

import glob
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.archives import read_arrays
from sightline.data.datasets import Dataset
from sightline.data.draws import Ints, hash_key, permute
from sightline.data.errors import BadImage, printable
from sightline.data.images import MAX_BYTES, EncodedImage, RawImage
from sightline.data.labeled import class_numbers
from sightline.data.shards.tar import CHECKSUMS, ShardIndex, checksum, index_shard, name_at
from sightline.files import open_for_reads, read_at
from sightline.fingerprints import FileStamp
from sightline.progress import progress
from sightline.untrusted import read_json

log = logging.getLogger("sightline.data")
COLUMNS = ("shard", "offset", "size", "label")  # of the index
MIX = 16  # shards that are shuffled together
OPEN_FILES = 64


class Shards(Dataset):
    """Images in `.tar` shards: a folder, a pattern (`train-*.tar`, `train-{0000..0031}.tar`) or a list of files.

    Class names come from `classes`, else from classes.json next to the shards, else they are the class indices.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> report = sl.data.shard(sl.dataset("scenes/shape", num=50), folder.name, per_shard=20)
    >>> d = sl.data.Shards(folder.name)
    >>> len(d), d.classes[:2], report.shards
    (50, ('disc', 'square'), 3)
    >>> folder.cleanup()
    """

    def __init__(
        self, where: str | Path | Sequence[str | Path], *, classes: Sequence[str] | None = None, mix: int = MIX
    ):
        self.paths = _expand(where)
        self.name = printable(where) if isinstance(where, str | Path) else printable(self.paths[0])
        self.mix = mix
        index, self.checksums = _read_index(self.paths)
        self.shard, self.offset, self.size, self.labels = index.shard, index.offset, index.size, index.label
        self.counts_by_shard = np.bincount(self.shard, minlength=len(self.paths))
        self.starts = np.concatenate([[0], np.cumsum(self.counts_by_shard)])
        self.classes = tuple(classes) if classes is not None else _class_names(self.paths[0], self.labels, self.name)
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            raise ValueError(
                f"{self.name}: there are {len(self.classes)} classes, but labels up to {self.labels.max()}."
            )
        self._files: OrderedDict[int, int] = OrderedDict()

    def image(self, index: int) -> EncodedImage:
        shard, offset, size = (int(a[index]) for a in (self.shard, self.offset, self.size))
        if size > MAX_BYTES:
            raise BadImage(f"{self.where(index)} has {size:,} bytes; at most {MAX_BYTES:,} are read.")
        try:
            data = read_at(self._file(shard), size, offset)
        except OSError as error:
            raise BadImage(f"{printable(self.paths[shard])} cannot be read ({error.strerror}).") from error
        if len(data) < size:
            raise BadImage(f"{self.where(index)} is truncated.")
        if self.checksums is not None and checksum(data) != int(self.checksums[index]):
            raise BadImage(f"{self.where(index)} is damaged: its checksum differs from the one in index.npz.")
        return EncodedImage(data, f"{printable(self.paths[shard])} at {offset}")

    def images(self, indices: Ints) -> Sequence[RawImage | BadImage]:
        """Read in the order on disk, returned in the order of `indices`."""
        images: dict[int, RawImage | BadImage] = {}
        for row in np.lexsort((self.offset[indices], self.shard[indices])):
            images[int(row)] = self.image_or_error(int(indices[row]))
        return [images[row] for row in range(len(indices))]

    def where(self, index: int) -> str:
        path, offset = self.paths[int(self.shard[index])], int(self.offset[index])
        return f"{printable(path)}: {printable(name_at(path, offset))}"

    def stamps(self, indices: Ints) -> list[FileStamp] | None:
        files = [(os.path.basename(path), os.stat(path).st_mtime_ns) for path in self.paths]
        rows = zip(self.shard[indices].tolist(), self.offset[indices].tolist(), self.size[indices].tolist())
        return [FileStamp(f"{files[s][0]}:{offset}", size, files[s][1]) for s, offset, size in rows]

    def order(self, seed: int, epoch: int, positions: Ints) -> Ints:
        """Shards in shuffled order in groups of `mix`, and their entries shuffled within each group."""
        shards = permute(len(self.paths), hash_key(seed, epoch, "shards"), np.arange(len(self.paths)))
        ends = np.cumsum(self.counts_by_shard[shards])
        groups = np.searchsorted(ends, positions, side="right") // self.mix
        chosen = np.empty_like(positions)
        for group in np.unique(groups):
            members = shards[group * self.mix : (group + 1) * self.mix]
            start = int(ends[group * self.mix - 1]) if group else 0
            counts = self.counts_by_shard[members]
            at = groups == group
            places = permute(int(counts.sum()), hash_key(seed, epoch, "group", int(group)), positions[at] - start)
            slot = np.searchsorted(np.cumsum(counts), places, side="right")
            chosen[at] = self.starts[members[slot]] + places - (np.cumsum(counts) - counts)[slot]
        return chosen

    def _file(self, shard: int) -> int:
        """An open file descriptor; when there are many, the least recently used one is closed."""
        if shard in self._files:
            self._files.move_to_end(shard)
            return self._files[shard]
        if len(self._files) >= OPEN_FILES:
            os.close(self._files.popitem(last=False)[1])
        self._files[shard] = open_for_reads(self.paths[shard])
        return self._files[shard]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_files": OrderedDict()}

    def __del__(self) -> None:
        for handle in self.__dict__.get("_files", {}).values():
            os.close(handle)


def _expand(where: str | Path | Sequence[str | Path]) -> list[str]:
    if not isinstance(where, str | Path):
        found = [os.fspath(p) for p in where]
    elif os.path.isdir(where):
        found = sorted(glob.glob(os.path.join(glob.escape(os.fspath(where)), "*.tar")))
    else:
        found = [p for text in _braces(os.fspath(where)) for p in sorted(glob.glob(text))]
    if not found:
        raise ValueError(f"No shard (.tar) matches {printable(str(where))}.")
    return found


def _braces(text: str) -> list[str]:
    """`a-{000..002}.tar` as a-000.tar, a-001.tar, a-002.tar."""
    span = re.search(r"\{(\d+)\.\.(\d+)\}", text)
    if span is None:
        return [text]
    first, last = span.groups()
    numbers = (str(i).zfill(len(first)) for i in range(int(first), int(last) + 1))
    return [t for n in numbers for t in _braces(text[: span.start()] + n + text[span.end() :])]


def _read_index(paths: list[str]) -> tuple[ShardIndex, Ints | None]:
    """The index that `shard` wrote, with its checksums, if it matches the files; else one made from the headers of the
    shards, which have no checksum of what follows them."""
    saved = Path(paths[0]).parent / "index.npz"
    try:
        sizes = [os.path.getsize(p) for p in paths]
    except OSError as error:
        raise ValueError(f"A shard is missing ({error}).") from error
    try:
        held = read_arrays(saved) if saved.exists() else {}
    except ValueError as error:
        log.warning("%s is damaged (%s): the index is made again from the shards.", printable(saved), error)
        held = {}
    if _fits(held, [os.path.basename(p) for p in paths], sizes):
        return ShardIndex(**{k: held[k] for k in COLUMNS}), held.get(CHECKSUMS)
    numbered = progress(list(enumerate(paths)), "indexing shards")
    return ShardIndex.join([index_shard(p, number=i) for i, p in numbered]), None


def _fits(held: dict[str, NDArray[Any]], names: list[str], sizes: list[int]) -> bool:
    """Whether an index is one of these files, and leads to no byte outside of them."""
    if not {"names", "sizes", *COLUMNS} <= held.keys() or held["names"].tolist() != names:
        return False
    columns = [held[k] for k in (*COLUMNS, CHECKSUMS) if k in held]  # version 0.2.0 wrote no checksums
    if held["sizes"].tolist() != sizes or any(c.ndim != 1 or c.dtype.kind != "i" for c in columns):
        return False
    shard, offset, size = columns[:3]
    if len({len(c) for c in columns}) > 1 or ((shard < 0) | (shard >= len(names))).any():
        return False
    return not ((offset < 0) | (size < 0) | (offset + size > np.array(sizes)[shard])).any()


def _class_names(first: str, labels: Ints, name: str) -> tuple[str, ...]:
    path = Path(first).parent / "classes.json"
    try:
        return tuple(str(c) for c in read_json(path))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{printable(path)} is damaged: it is no list of names ({error!s:.200}).") from error
    except OSError:
        return class_numbers(int(labels.max(initial=-1)) + 1, name)
