"""Tar archives by offset: where each sample's image lies and what its label is, from the headers alone."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sightline.data.draws import Ints
from sightline.data.errors import shown
from sightline.data.images import SUFFIXES

BLOCK = 512
ENDINGS = tuple(s[1:] for s in SUFFIXES)
REGULAR, LONG_NAME, PAX = (b"0", b"\0"), b"L", b"x"


@dataclass(frozen=True, kw_only=True)
class Index:
    """Where the images of some shards are: columns of one row per sample."""

    shard: NDArray[np.int32]
    offset: Ints
    size: Ints
    label: Ints

    @staticmethod
    def join(parts: list["Index"]) -> "Index":
        return Index(
            **{k: np.concatenate([getattr(p, k) for p in parts]) for k in ("shard", "offset", "size", "label")}
        )


def entries(handle: int, path: str) -> Iterator[tuple[str, int, int]]:
    """Name, offset and size of each regular file. GNU long names and pax headers are understood."""
    end, at = os.fstat(handle).st_size, 0
    override: dict[str, bytes] = {}
    while at + BLOCK <= end:
        head = os.pread(handle, BLOCK, at)
        if head == bytes(BLOCK):
            return
        size = _number(head, path, at)
        kind, body = head[156:157], at + BLOCK
        if body + size > end:
            raise ValueError(f"{shown(path)} is cut short in an entry at byte {at}.")
        if kind == LONG_NAME:
            override["path"] = os.pread(handle, size, body).rstrip(b"\0")
        elif kind == PAX:
            override |= _pax(os.pread(handle, size, body))
        else:
            if kind in REGULAR:
                yield os.fsdecode(override.get("path") or _name(head)), body, size
            override = {}
        at = body + (size + BLOCK - 1) // BLOCK * BLOCK
    raise ValueError(f"{shown(path)} is cut short: it has no end.")


def _number(head: bytes, path: str, at: int) -> int:
    """The entry's size; a header whose checksum is wrong is no header."""
    try:
        want = int(head[148:156].strip(b" \0") or b"0", 8)
        raw = head[124:136]
        size = int.from_bytes(raw[1:], "big") if raw[0] & 0x80 else int(raw.strip(b" \0") or b"0", 8)
    except ValueError:
        want, size = -1, 0
    if want != sum(head) - sum(head[148:156]) + 8 * 32 or size < 0:
        raise ValueError(f"{shown(path)} is not a tar archive, or it is damaged at byte {at}.")
    return size


def _name(head: bytes) -> bytes:
    name = head[:100].split(b"\0")[0]
    prefix = head[345:500].split(b"\0")[0] if head[257:262] == b"ustar" else b""
    return prefix + b"/" + name if prefix else name


def _pax(body: bytes) -> dict[str, bytes]:
    """Records of "length key=value"."""
    found, at = {}, 0
    while at < len(body):
        length = body[at:].split(b" ", 1)[0]
        if not length.isdigit() or int(length) <= len(length):
            break
        key, _, value = body[at + len(length) + 1 : at + int(length) - 1].partition(b"=")
        found[key.decode("utf-8", "replace")] = value
        at += int(length)
    return found


def name_at(path: str, offset: int) -> str:
    """The name of the entry whose data begins at `offset`."""
    with open(path, "rb") as file:
        file.seek(offset - BLOCK)
        return os.fsdecode(_name(file.read(BLOCK)))


def index_shard(path: str, *, number: int) -> Index:
    """Where the images of one shard are, and their labels. A sample without an image or a label is passed over."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise ValueError(f"{shown(path)} cannot be read ({error.strerror}).") from error
    try:
        rows = list(_samples(handle, path))
    finally:
        os.close(handle)
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    shard = np.full(len(rows), number, dtype=np.int32)
    return Index(shard=shard, offset=columns[:, 0], size=columns[:, 1], label=columns[:, 2])


def _samples(handle: int, path: str) -> Iterator[tuple[int, int, int]]:
    """Offset, size and label of each sample: a run of entries that share a name up to its first dot."""
    key: tuple[str, str] | None = None
    image: tuple[int, int] | None = None
    label: int | None = None
    for name, offset, size in entries(handle, path):
        folder, base = os.path.split(name)
        stem, _, ending = base.partition(".")
        if (folder, stem) != key:
            if image and label is not None:
                yield (*image, label)
            key, image, label = (folder, stem), None, None
        ending = ending.lower()
        if ending in ENDINGS:
            image = (offset, size)
        elif ending in ("cls", "json", "txt") and size < 1 << 20:
            found = _label(os.pread(handle, size, offset), ending)
            label = found if label is None or ending == "cls" else label
    if image and label is not None:
        yield (*image, label)


def _label(raw: bytes, ending: str) -> int | None:
    """A class number: the text of a .cls, or "label" or "cls" of a .json."""
    try:
        if ending == "json":
            held = json.loads(raw)
            return int(held["label"] if "label" in held else held["cls"])
        return int(raw) if ending == "cls" else None
    except (ValueError, KeyError, TypeError):
        return None
