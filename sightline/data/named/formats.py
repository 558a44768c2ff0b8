"""File formats in which named datasets are published, read without executing anything in them."""

import io
import lzma
import pickle
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Bytes = NDArray[np.uint8]


def parse_idx(raw: bytes, name: str) -> Bytes:
    """The array in an idx file's bytes."""
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise ValueError(f"{name} is not an idx file of bytes.")
    shape = struct.unpack_from(f">{raw[3]}I", raw, 4)
    data = np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3])
    if data.size != np.prod(shape, dtype=np.int64):
        raise ValueError(f"{name} is truncated: {data.size} bytes for shape {shape}.")
    return data.reshape(shape)


def parse_cifar(raw: bytes, *, label_bytes: int, name: str) -> tuple[Bytes, Bytes]:
    """CIFAR's binary format: label bytes (the last one counts), then a red, a green and a blue plane of 32 x 32."""
    width = label_bytes + 3072
    if not raw or len(raw) % width:
        raise ValueError(f"{name} is not a CIFAR file: {len(raw)} bytes are not a multiple of {width}.")
    rows = np.frombuffer(raw, np.uint8).reshape(-1, width)
    images = rows[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), rows[:, label_bytes - 1].copy()


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles NumPy arrays and plain values only, so that nothing in the file can run."""

    ALLOWED: ClassVar[dict[str, Any]] = {
        "_reconstruct": np.zeros(0).__reduce__()[0],  # NumPy has moved these two between modules
        "scalar": np.int64(0).__reduce__()[0],
        "ndarray": np.ndarray,
        "dtype": np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in self.ALLOWED:
            return self.ALLOWED[name]
        raise pickle.UnpicklingError(f"{module}.{name} does not belong in an image dataset")


def parse_cifar_pickle(raw: bytes, *, key: bytes, name: str) -> tuple[Bytes, Bytes]:
    """CIFAR's Python format."""
    try:
        batch = _ArrayUnpickler(io.BytesIO(raw), encoding="bytes").load()
        images, labels = np.asarray(batch[b"data"], np.uint8), np.asarray(batch[key], np.uint8)
    except Exception as error:
        raise ValueError(f"{name} is not a CIFAR file ({error}).") from error
    return np.ascontiguousarray(images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels


def parse_sprites(raw: bytes, *, side: int) -> Bytes:
    """One image per row of a PNG, its pixels in raster order."""
    with Image.open(io.BytesIO(raw), formats=("PNG",)) as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    return pixels.reshape(-1, side, side, 3)


def tar_members(path: Path) -> dict[str, bytes]:
    """Regular files of a tar archive (any compression) by base name."""
    with tarfile.open(path) as tar:
        return {Path(m.name).name: tar.extractfile(m).read() for m in tar if m.isfile()}  # type: ignore[union-attr]


def deb_members(path: Path) -> dict[str, bytes]:
    """Files of a Debian package, an `ar` archive that contains a tar archive, by base name."""
    raw, at = path.read_bytes(), 8
    while at + 60 <= len(raw):
        name, size = raw[at : at + 16].decode().strip(" /"), int(raw[at + 48 : at + 58])
        body = raw[at + 60 : at + 60 + size]
        if name.startswith("data.tar"):
            plain = lzma.decompress(body) if name.endswith(".xz") else body
            with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
                return {Path(m.name).name: tar.extractfile(m).read() for m in tar if m.isfile()}  # type: ignore[union-attr]
        at += 60 + size + size % 2
    raise ValueError(f"{path.name} is not a Debian package.")


MAT_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}


def parse_mat(raw: bytes) -> dict[str, NDArray]:
    """Numeric arrays of a MATLAB 5 file, flattened: all that Flowers-102 needs."""
    arrays: dict[str, NDArray] = {}
    at = 128
    while at + 8 <= len(raw):
        kind, body, at = _element(raw, at)
        if kind == 15:
            kind, body, _ = _element(zlib.decompress(body), 0)
        if kind == 14:
            parts = []
            inner = 0
            while inner + 8 <= len(body):
                part_kind, part, inner = _element(body, inner)
                parts.append((part_kind, part))
            if len(parts) >= 4 and parts[3][0] in MAT_TYPES:
                arrays[parts[2][1].decode("ascii", "replace")] = np.frombuffer(parts[3][1], MAT_TYPES[parts[3][0]])
    return arrays


def _element(raw: bytes, at: int) -> tuple[int, bytes, int]:
    """Type, data and end of one element. Up to four bytes are stored in the tag; everything else is padded to eight."""
    kind, size = struct.unpack_from("<II", raw, at)
    if kind >> 16:
        return kind & 0xFFFF, raw[at + 4 : at + 4 + (kind >> 16)], at + 8
    end = at + 8 + size
    return kind, raw[at + 8 : end], end if kind == 15 else end + (-size) % 8
