"""NumPy archives, read member by member without unpickling, and written so that other readers see plain arrays."""

import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.archives import FAULTS, check_claims, declared
from sightline.files import atomic
from sightline.weights.containers.safetensors import bytes_of, fill
from sightline.weights.containers.source import FileSource, check_members
from sightline.weights.report import WeightsError

LOCAL_HEADER = 30  # bytes of a zip member's own header, before name and extra field
DTYPES = {
    np.dtype(a): b
    for a, b in {
        "f8": torch.float64,
        "f4": torch.float32,
        "f2": torch.float16,
        "i8": torch.int64,
        "i4": torch.int32,
        "i2": torch.int16,
        "i1": torch.int8,
        "u1": torch.uint8,
        "?": torch.bool,
        "V2": torch.bfloat16,  # JAX saves bfloat16 as two raw bytes
    }.items()
}


@dataclass(frozen=True)
class Member:
    """One array of the archive."""

    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: torch.dtype
    fortran: bool
    skip: int  # bytes of the array's header


@dataclass
class NpzSource(FileSource):
    """Reads .npz files: sizes are checked before anything is read, checksums while reading."""

    @staticmethod
    def fits(path: Path) -> bool:
        """Whether the zip file is a NumPy archive (torch writes zip files too)."""
        try:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
        except FAULTS as error:
            raise WeightsError(f"{path} is damaged or cut short ({error!s:.200}). Download it again.") from error
        return all(n.endswith(".npy") for n in names)

    def __post_init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._kept: tuple[str, Tensor] | None = None
        self._compared: set[str] = set()
        try:
            with zipfile.ZipFile(self.path) as archive:
                self.header = self._read_comment(archive.comment)
                check_claims(archive, self.path.stat().st_size)
                for info in archive.infolist():
                    self._add(archive, info)
        except FAULTS as error:
            if isinstance(error, WeightsError):
                raise
            raise WeightsError(f"{self.path} is damaged or cut short ({error!s:.200}). Download it again.") from error

    def _read_comment(self, comment: bytes) -> dict[str, str]:
        if comment[:1] == b"{":
            return {"sightline": comment.decode()}
        if b'"layout":' in comment:
            raise WeightsError(f"The Sightline header of {self.path} is damaged.")
        return {}

    def _add(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        key = info.filename.removesuffix(".npy")
        with archive.open(info) as file:
            shape, fortran, dtype, skip = declared(file, info)
        plain = dtype.newbyteorder("=") if dtype.byteorder == "<" else dtype
        if plain not in DTYPES:
            raise WeightsError(f"{key} has type {dtype}; expected numbers of 16, 32 or 64 bits, little-endian.")
        if key in self._members:
            raise WeightsError(f"{self.path} contains {key} twice: damaged.")
        self._members[key] = Member(info, shape, DTYPES[plain], fortran, skip)
        self.shapes[key], self.dtypes[key] = shape, DTYPES[plain]

    def read(self, key: str, layer: int | None = None) -> Tensor:
        m = self._members[key]
        try:
            if layer is None:
                return self._whole(m)
            if m.info.compress_type == zipfile.ZIP_STORED and not m.fortran:
                if self.verify and key not in self._compared:
                    check_members(self.path, m.info.filename)
                    self._compared.add(key)
                return self._slice(m, layer)
            if self._kept is None or self._kept[0] != key:
                self._kept = (key, self._whole(m))
            return self._kept[1][layer].clone()
        except FAULTS as error:
            if isinstance(error, WeightsError):
                raise
            raise WeightsError(f"{key} in {self.path} is damaged ({error!s:.200}). Download it again.") from error

    def _whole(self, m: Member) -> Tensor:
        shape = m.shape[::-1] if m.fortran else m.shape
        tensor = torch.empty(shape, dtype=m.dtype)
        if m.info.compress_type == zipfile.ZIP_STORED:
            head = self._direct(m, tensor, 0)
            if self.verify and zlib.crc32(bytes_of(tensor), zlib.crc32(head)) != m.info.CRC:
                raise WeightsError(f"{m.info.filename} in {self.path} is damaged: its checksum differs.")
        else:
            with zipfile.ZipFile(self.path) as archive, archive.open(m.info) as file:
                file.read(m.skip)
                fill(file, tensor, self.path)
                file.read(1)  # read to the end, where zipfile compares the checksum
        return tensor.permute(*range(tensor.ndim)[::-1]) if m.fortran else tensor

    def _slice(self, m: Member, layer: int) -> Tensor:
        tensor = torch.empty(m.shape[1:], dtype=m.dtype)
        self._direct(m, tensor, layer * tensor.numel() * tensor.dtype.itemsize)
        return tensor

    def _direct(self, m: Member, tensor: Tensor, offset: int) -> bytes:
        """Read an uncompressed member into the tensor's memory, bypassing zipfile; returns the array's header."""
        with self.path.open("rb", buffering=0) as file:
            file.seek(m.info.header_offset)
            local = file.read(LOCAL_HEADER).ljust(LOCAL_HEADER, b"\0")
            start = m.info.header_offset + LOCAL_HEADER + int.from_bytes(local[26:28], "little")
            start += int.from_bytes(local[28:30], "little")
            file.seek(start)
            head = file.read(m.skip)
            file.seek(start + m.skip + offset)
            fill(file, tensor, self.path)
        return head


def write_npz(path: str | Path, tensors: Mapping[str, Tensor], header: str = "") -> None:
    """Write plain arrays, uncompressed, atomically. `header` becomes the archive's comment, which readers ignore."""
    with atomic(path) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        archive.comment = header.encode() if len(header.encode()) < 2**16 else b""
        for key, tensor in tensors.items():
            if tensor.dtype == torch.bfloat16:  # NumPy has no bfloat16; float32 represents all of its values
                tensor = tensor.float()
            info = zipfile.ZipInfo(f"{key}.npy")  # the date stays 1980, so that the same weights give the same file
            with archive.open(info, "w", force_zip64=True) as file:
                file.write(_array_header(tensor))
                file.write(bytes_of(tensor))


def _array_header(tensor: Tensor) -> bytes:
    like: Any = np.empty(0, dtype=str(tensor.dtype).removeprefix("torch."))
    about = {"descr": np.lib.format.dtype_to_descr(like.dtype), "fortran_order": False, "shape": tuple(tensor.shape)}
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, about)
    return out.getvalue()
