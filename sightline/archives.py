"""Arrays (.npy) and archives of them (.npz), our own and of any origin: what they declare is checked before it is read,
and every bit of our own."""

import io
import math
import os
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from sightline.untrusted import open_regular, printable

ROOM, RATIO = 2**30, 8  # what an archive may unfold to: 1 GiB and 8 times the file
HEADER_LIMIT = 10_000  # bytes of one array's header
COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
CHUNK = 1 << 20
MANY = 100_000  # members of an archive; ViT-H has 500
SEALED, DIGITS = b"xxh3 ", 16
SEAL = re.compile(rb"xxh3 ([0-9a-f]{16})")  # the comment at the very end: a checksum of all bytes before its digits
# what zipfile, zlib and NumPy's header parser raise on damaged input
ZIP_FAULTS = (OSError, ValueError, zipfile.BadZipFile, EOFError, LookupError, RuntimeError, zlib.error)
FAULTS = (*ZIP_FAULTS, tokenize.TokenError, SyntaxError, TypeError, ArithmeticError, struct.error, MemoryError)


class Declared(NamedTuple):
    """What the header of an array says."""

    shape: tuple[int, ...]
    fortran: bool  # columns come first
    dtype: np.dtype[Any]
    skip: int  # bytes of the header


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an .npy with a checksum after the values, where NumPy does not look."""
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
            head, size = _read_header(file, "the array"), os.fstat(file.fileno()).st_size
            length = math.prod(head.shape) * head.dtype.itemsize
            if size - head.skip - length not in (0, len(SEALED) + DIGITS):
                raise ValueError(f"{size - head.skip} bytes are no {head.dtype} {head.shape}")
            file.seek(0)
            if size - head.skip > length and _digest(file, head.skip + length) != file.read()[len(SEALED) :]:
                raise ValueError("its checksum differs")
    except FAULTS as error:
        raise ValueError(f"{printable(path)} is damaged, or no array ({error!s:.200}).") from error
    if not length:
        return np.empty(head.shape, head.dtype)
    return np.memmap(path, head.dtype, "r", head.skip, head.shape, "F" if head.fortran else "C")


def _digest(file: IO[bytes], size: int) -> bytes:
    """Of the next bytes of a file."""
    digest = xxhash.xxh3_64()
    while size and (piece := file.read(min(size, CHUNK))):
        digest.update(piece)
        size -= len(piece)
    return digest.hexdigest().encode()


def pack_arrays(arrays: Mapping[str, NDArray[Any]], *, compress: bool = True) -> bytes:
    """An .npz with a checksum of the whole. NumPy reads it like any other."""
    out = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(out, allow_pickle=False, **arrays)
    with zipfile.ZipFile(out, "a") as archive:
        archive.comment = SEALED + b"0" * DIGITS
    body = out.getvalue()[:-DIGITS]
    return body + xxhash.xxh3_64_hexdigest(body).encode()


def array_names(path: str | Path) -> list[str]:
    """The names of the arrays in an .npz file. Damage of any kind is a ValueError with the reason."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            return [info.filename.removesuffix(".npy") for info in archive.infolist()]
    except FAULTS as error:
        raise _plain(error) from error


def read_arrays(path: str | Path, names: Iterable[str] | None = None, *, room: int = ROOM) -> dict[str, NDArray[Any]]:
    """The arrays of these names (default: all) in an .npz file, as far as it has them.

    Nothing is unpickled, and nothing is allocated that the file is too small for. Damage of any kind is a ValueError
    with the reason, without the name of the file.
    """
    wanted = None if names is None else set(names)
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            size = file.seek(0, io.SEEK_END)
            _check_seal(file, archive.comment)
            check_claims(archive, size, room=room)
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if len(members) < len(archive.infolist()):
                raise ValueError("it has two arrays of one name")
            return {k: _read(archive, info) for k, info in members.items() if wanted is None or k in wanted}
    except FAULTS as error:
        raise _plain(error) from error


def _check_seal(file: IO[bytes], comment: bytes) -> None:
    """Files of version 0.2.0 and of others have no seal: there, only the checksums of the members are compared."""
    if len(comment) != len(SEALED) + DIGITS:
        return
    size = file.seek(-DIGITS, io.SEEK_END)
    file.seek(0)
    if not SEAL.fullmatch(comment) or comment[-DIGITS:] != _digest(file, size):
        raise ValueError("its checksum differs")


def check_claims(archive: zipfile.ZipFile, size: int, *, room: int = ROOM) -> None:
    """Refuse an archive of `size` bytes that would unfold to more than anything of use, before it does."""
    members = archive.infolist()
    if other := next((m.filename for m in members if m.compress_type not in COMPRESSION), None):
        raise ValueError(f"{other} is compressed in a way that NumPy does not write")
    claimed = sum(info.file_size for info in members)
    if claimed > room + RATIO * size:
        raise ValueError(f"it has {size:,} bytes and claims to unfold to {claimed:,}, which is refused")
    if len(members) > MANY:
        raise ValueError(f"it has {len(members):,} members; at most {MANY:,} are read")


def declared(file: IO[bytes], info: zipfile.ZipInfo) -> Declared:
    """The header of a member, whose shape must account for every byte of it. Python objects are refused."""
    key = info.filename.removesuffix(".npy")
    head = _read_header(file, key)
    if math.prod(head.shape) * head.dtype.itemsize != (length := info.file_size - head.skip):
        raise ValueError(f"{key} has shape {head.shape} of {head.dtype}, which does not match its {length} bytes")
    return head


def _read_header(file: IO[bytes], name: str) -> Declared:
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{name} is written in version {version} of the array format: damaged")
    parse = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = parse(file, max_header_size=HEADER_LIMIT)
    if dtype.hasobject:
        raise ValueError(f"{name} contains Python objects, which could run code: refused")
    if any(n < 0 for n in shape):
        raise ValueError(f"{name} has shape {shape}: damaged")
    return Declared(tuple(shape), fortran, dtype, file.tell())


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(info) as file:
        head = declared(file, info)
        array: NDArray[Any] = np.empty(math.prod(head.shape), dtype=head.dtype)
        flat = array.view(np.uint8) if array.nbytes else np.empty(0, np.uint8)
        for start in range(0, len(flat), CHUNK):
            piece = file.read(CHUNK)
            if len(piece) < len(flat[start : start + CHUNK]):
                raise ValueError(f"{info.filename} is cut short")
            flat[start : start + CHUNK] = np.frombuffer(piece, np.uint8)
        file.read(1)  # the end: zipfile compares the checksum there
    return array.reshape(head.shape[::-1]).T if head.fortran else array.reshape(head.shape)


def _plain(error: BaseException) -> ValueError:
    reason = (str(error) or type(error).__name__).splitlines()[0][:200]
    if isinstance(error, OSError):
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror or reason
    return ValueError(reason)
