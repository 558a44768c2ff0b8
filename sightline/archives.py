"""Arrays (.npy) and archives of them (.npz) that Sightline writes and reads back: sizes bounded, every bit checked."""

import io
import math
import os
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from sightline.untrusted import open_regular, printable

ROOM, RATIO = 2**30, 8  # what compressed members may unfold to: 1 GiB and 8 times the file
HEADER_LIMIT = 10_000  # bytes of one array's header
SEALED = b"xxh3 "
SEAL = re.compile(rb"xxh3 ([0-9a-f]{16})")  # the comment at the very end: a checksum of all bytes before its digits
# what zipfile, zlib and NumPy's header parser raise on damaged input
ZIP_FAULTS = (OSError, ValueError, zipfile.BadZipFile, EOFError, LookupError, RuntimeError, zlib.error)
FAULTS = (*ZIP_FAULTS, tokenize.TokenError, SyntaxError, TypeError, ArithmeticError, struct.error)


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an .npy with a checksum behind the values, where NumPy does not look."""
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)
    with path.open("rb") as file:
        digest = _digest(file, path.stat().st_size)
    with path.open("ab") as file:
        file.write(SEALED + digest)


def map_array(path: str | Path) -> NDArray[Any]:
    """An array in a file, mapped, its checksum compared where there is one (version 0.2.0 wrote none).

    ValueError says what is wrong, whatever it is.
    """
    try:
        with open_regular(path) as file:
            shape, fortran, dtype = read_array_header(file)
            start, size = file.tell(), os.fstat(file.fileno()).st_size
            length = math.prod(shape) * dtype.itemsize
            if dtype.hasobject or any(n < 0 for n in shape) or size - start - length not in (0, len(SEALED) + 16):
                raise ValueError(f"{size - start} bytes are no {dtype} {shape}")
            file.seek(0)
            if size - start > length and _digest(file, start + length) != file.read()[len(SEALED) :]:
                raise ValueError("its checksum differs")
    except FAULTS as error:
        raise ValueError(f"{printable(path)} is damaged, or no array ({error!s:.200}).") from error
    return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C") if length else np.empty(shape, dtype)


def _digest(file: IO[bytes], size: int) -> bytes:
    """Of the next bytes of a file."""
    digest = xxhash.xxh3_64()
    while size and (piece := file.read(min(size, 1 << 20))):
        digest.update(piece)
        size -= len(piece)
    return digest.hexdigest().encode()


def pack_arrays(arrays: Mapping[str, NDArray[Any]], *, compress: bool = True) -> bytes:
    """An .npz with a checksum of the whole. NumPy reads it like any other."""
    out = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(out, allow_pickle=False, **arrays)
    with zipfile.ZipFile(out, "a") as archive:
        archive.comment = b"xxh3 " + b"0" * 16
    body = out.getvalue()[:-16]
    return body + xxhash.xxh3_64_hexdigest(body).encode()


def read_arrays(path: str | Path) -> dict[str, NDArray[Any]]:
    """Every array of an .npz, with nothing unpickled. ValueError says what is wrong, whatever it is."""
    try:
        with open_regular(path) as file:
            raw = file.read()
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            _check_seal(raw, archive.comment)
            check_claims(archive, len(raw))
            names = archive.namelist()
            if len(set(names)) < len(names):
                raise ValueError("it has two arrays of one name")
            return {info.filename.removesuffix(".npy"): _array(archive, info) for info in archive.infolist()}
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror or error}).") from error
    except FAULTS as error:
        raise ValueError(f"{path} is damaged, or no archive of arrays ({error!s:.200}).") from error


def _check_seal(raw: bytes, comment: bytes) -> None:
    """Files of version 0.2.0 have no seal: there, only the checksums of the members are compared."""
    if not comment:
        return
    seal = SEAL.fullmatch(raw[-21:])
    if seal is None or seal[1].decode() != xxhash.xxh3_64_hexdigest(raw[:-16]):
        raise ValueError("its checksum differs")


def check_claims(archive: zipfile.ZipFile, size: int) -> None:
    """Refuse an archive of `size` bytes that would unfold to more than anything of use, before it does."""
    claimed = sum(info.file_size for info in archive.infolist())
    if claimed > ROOM + RATIO * size:
        raise ValueError(f"it has {size} bytes and claims to unfold to {claimed}: refused")


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    raw = archive.read(info)  # to its end: zipfile compares the checksum there
    file = io.BytesIO(raw)
    shape, fortran, dtype = read_array_header(file)
    skip = file.tell()
    if dtype.hasobject or any(n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != len(raw) - skip:
        raise ValueError(f"{info.filename} is {len(raw) - skip} bytes, which are no {dtype} {shape}")
    flat = np.frombuffer(raw, dtype, offset=skip) if len(raw) > skip else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if fortran else "C").copy()


def read_array_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether columns come first, and type of the array that follows."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an array is written in version {version} of the format")
    parse = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = parse(file, max_header_size=HEADER_LIMIT)
    return tuple(shape), fortran, dtype
