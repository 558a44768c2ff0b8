"""NumPy archives (.npz) with data of any origin: every size that they declare is checked before anything is read."""

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ROOM, RATIO = 2**32, 8  # what an archive may unfold to: 4 GiB and 8 times the file; dSprites has 3 GB in 26 MB
HEADER_LIMIT = 10_000  # bytes of one array's header
COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
CHUNK = 1 << 20
MANY = 100_000  # members of an archive; ViT-H has 500
# what zipfile, zlib and NumPy's header parser raise on damaged input
ZIP_FAULTS = (OSError, ValueError, zipfile.BadZipFile, EOFError, LookupError, RuntimeError, zlib.error)
FAULTS = (*ZIP_FAULTS, tokenize.TokenError, SyntaxError, TypeError, ArithmeticError, struct.error, MemoryError)


class Declared(NamedTuple):
    """What the header of an array says."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    skip: int  # bytes of the header


def refuse_bomb(archive: zipfile.ZipFile, size: int) -> None:
    """Raise ValueError if an archive of `size` bytes claims to unfold to more than anything of use."""
    members = archive.infolist()
    if other := next((m.filename for m in members if m.compress_type not in COMPRESSION), None):
        raise ValueError(f"{other} is compressed in a way that NumPy does not write")
    claimed = sum(info.file_size for info in members)
    if claimed > ROOM + RATIO * size:
        raise ValueError(f"it has {size:,} bytes and claims to unfold to {claimed:,}, which is refused")
    if len(members) > MANY:
        raise ValueError(f"it has {len(members):,} members; at most {MANY:,} are read")


def declared(file: IO[bytes], info: zipfile.ZipInfo) -> Declared:
    """The header of a member, whose shape must account for every byte of it. Python objects are refused."""
    key = info.filename.removesuffix(".npy")
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{key} is written in version {version} of the array format: damaged")
    parse = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = parse(file, max_header_size=HEADER_LIMIT)
    skip = file.tell()
    if dtype.hasobject:
        raise ValueError(f"{key} holds Python objects, which could run code: refused")
    if any(n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != info.file_size - skip:
        raise ValueError(f"{key} has shape {shape} of {dtype}, which its {info.file_size - skip} bytes are not")
    return Declared(tuple(shape), fortran, dtype, skip)


def array_names(path: str | Path) -> list[str]:
    """The names of the arrays in an .npz file. Damage of any kind is a ValueError with the reason."""
    with _opened(path) as archive:
        return [info.filename.removesuffix(".npy") for info in archive.infolist()]


def read_arrays(path: str | Path, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """The arrays of these names in an .npz file, as far as it has them. Nothing is unpickled, and nothing is allocated
    that the file is too small for. Damage of any kind is a ValueError with the reason, without the name of the file."""
    wanted = set(names)
    try:
        with _opened(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            return {k: _read(archive, info) for k, info in members.items() if k in wanted}
    except FAULTS as error:
        raise _plain(error) from error


def _opened(path: str | Path) -> zipfile.ZipFile:
    """The archive, if its directory is in order; an array alone (.npy) is none."""
    try:
        if not Path(path).is_file():
            raise ValueError("it is not a regular file" if Path(path).exists() else "there is no such file")
        archive = zipfile.ZipFile(path)
        try:
            refuse_bomb(archive, Path(path).stat().st_size)
        except ValueError:
            archive.close()
            raise
    except FAULTS as error:
        raise _plain(error) from error
    return archive


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
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return error if type(error) is ValueError else ValueError(reason)
