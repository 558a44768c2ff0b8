"""Fingerprints of models and images: a short name for content, which training, results and features are known by."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray
from torch import Tensor, uint8

DIGITS = 16  # bytes of a fingerprint
QUICK = 2**28  # bytes of files that are read as a whole
BLOCK = 256  # images that are read at a time
VERSION = 2  # of the rules below: what version 0.2.0 recorded cannot be compared


class FileStamp(NamedTuple):
    """What is known of an image without reading it. Names are relative to the folder that all images are in."""

    name: str
    size: int  # bytes
    time: int  # of the last change, in nanoseconds


def of_tensors(tensors: Mapping[str, Any], about: str = "") -> str:
    """32 hexadecimal digits of names, types, shapes and values, and of what else is said `about` them."""
    digest = hashlib.blake2b(about.encode(), digest_size=DIGITS)
    for name, value in tensors.items():
        digest.update(name.encode())
        if isinstance(value, Tensor):
            digest.update(repr((value.dtype, tuple(value.shape))).encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(uint8).numpy().data)
    return digest.hexdigest()


def of_images(
    about: bytes,
    stamps: Sequence[FileStamp] | None,
    read: Callable[[NDArray[np.int64]], Iterable[bytes]],
    *,
    count: int,
    sample: NDArray[np.int64],
    quick: bool,
) -> str:
    """32 hexadecimal digits of what is known `about` images, of the names and sizes of their files, and of content.

    Where that is `quick`, all of it is read. Otherwise a sample is, and the times of change stand for the rest.
    """
    digest = xxhash.xxh3_128(about)
    for stamp in stamps or ():
        known = stamp.name, stamp.size, 0 if quick else stamp.time
        digest.update(repr(known).encode("utf-8", "surrogateescape"))
    rows = np.arange(count) if quick else sample
    for start in range(0, len(rows), BLOCK):
        for content in read(rows[start : start + BLOCK]):
            digest.update(len(content).to_bytes(8, "little"))
            digest.update(content)
    return digest.hexdigest()
