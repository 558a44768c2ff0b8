"""The safetensors container: the header is checked in full before anything else, and tensors are read one at a time.

The library's own reader and writer do not fit. Its tensors are views of the mapped file and change when the file is
rewritten; copying them takes 1.4 times as long as plain reads (vit-l16). Its writer takes all tensors at once, so a
sharded model would have to fit into the memory of one process.
"""

import json
import math
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from sightline.files import atomic
from sightline.untrusted import open_regular
from sightline.weights.containers.source import FileSource
from sightline.weights.report import WeightsError

CHECKSUMS = "sightline-checksums"  # our entry in the metadata: the algorithm, one of the header, one of each tensor
XXH3, ZEROS = "xxh3", "0" * 16
OURS = {"format", "sightline", "sightline-state", "sightline_features", CHECKSUMS}  # all that we write there
PIECE = 2**20  # bytes that are read and checked at a time
HEADER_LIMIT = 100_000_000  # bytes; the safetensors format allows no more
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {v: k for k, v in DTYPES.items()}


@dataclass
class SafetensorsSource(FileSource):
    """A safetensors file: bounded header, every offset checked, each tensor read into its own memory."""

    def __post_init__(self) -> None:
        with open_regular(self.path) as file:
            size = os.fstat(file.fileno()).st_size
            (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
            if length > min(HEADER_LIMIT, size - 8):
                raise WeightsError(f"{self.path} claims a header of {length} bytes, more than is possible: damaged.")
            text = file.read(length)
        self._spans: dict[str, tuple[int, int]] = {}
        try:
            entries = json.loads(text)
            header = entries.pop("__metadata__", {})
            self.header = {str(k): v for k, v in header.items() if isinstance(v, str)}
            for key, entry in entries.items():
                self._add(key, entry)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, WeightsError):
                raise
            raise WeightsError(f"The header of {self.path} is damaged: {error}.") from error
        self._start = 8 + length
        self._check_spans(size - self._start)
        self._checksums = self._read_checksums(text) if self.verify else {}
        self._compared: set[str] = set()

    def _add(self, key: str, entry: Mapping[str, Any]) -> None:
        if entry["dtype"] not in DTYPES:
            raise WeightsError(f"{key} has type {entry['dtype']!s:.80}; expected one of {', '.join(DTYPES)}.")
        dtype, shape, (a, b) = DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
        numbers = (*shape, a, b)
        if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**62 for n in numbers):
            raise WeightsError(f"{key} has the impossible shape {shape!s:.80}.")
        if a > b or b - a != math.prod(shape) * dtype.itemsize:
            raise WeightsError(f"{key} has {b - a} bytes, which does not match shape {shape} of {dtype}: damaged.")
        self.shapes[key], self.dtypes[key], self._spans[key] = shape, dtype, (a, b)

    def _check_spans(self, size: int) -> None:
        """Tensors must be contiguous: if two could share bytes, a small file could claim a large model."""
        last = 0
        for a, b in sorted(self._spans.values()):
            if a != last:
                what = "tensors that overlap" if a < last else f"a gap of {a - last} bytes between its tensors"
                raise WeightsError(f"{self.path} has {what}: damaged.")
            last = b
        if last > size:
            raise WeightsError(
                f"{self.path} is cut short: {size} bytes of tensors, {last} expected. Download it again."
            )
        if last < size:
            raise WeightsError(f"{self.path} has {size - last} bytes after its last tensor: damaged.")

    def _read_checksums(self, text: bytes) -> dict[str, str]:
        """The checksums of the tensors, after comparing that of the header; others' files and those of 0.2.0 have none.

        A damaged name of our entry would look like a file without checksums, so nothing unknown may stand beside ours.
        """
        if CHECKSUMS not in self.header:
            if self.header.keys() & OURS - {"format"} and not self.header.keys() <= OURS:
                raise WeightsError(f"The header of {self.path} is damaged: it has an entry that is not ours.")
            return {}
        algorithm, *digests = self.header[CHECKSUMS].split(" ")
        if algorithm != XXH3 or len(digests) != len(self.shapes) + 1:
            raise WeightsError(f"The checksums of {self.path} are damaged, or of a newer Sightline.")
        own = digests.pop(0)
        blank = text.replace(f"{XXH3} {own}".encode(), f"{XXH3} {ZEROS}".encode(), 1)
        if xxhash.xxh3_64_hexdigest(blank) != own:
            raise WeightsError(f"The header of {self.path} is damaged: its checksum differs.")
        return dict(zip(self.shapes, digests))

    def read(self, key: str, layer: int | None = None) -> Tensor:
        shape, (start, _) = self.shapes[key], self._spans[key]
        digest = xxhash.xxh3_64() if key in self._checksums and layer is None else None
        if layer is not None:
            if key in self._checksums and key not in self._compared:
                self._compare(key, self.digest(key))
            shape = shape[1:]
            start += layer * math.prod(shape) * self.dtypes[key].itemsize
        tensor = torch.empty(shape, dtype=self.dtypes[key])
        with self.path.open("rb", buffering=0) as file:
            file.seek(self._start + start)
            fill(file, tensor, self.path, digest)
        if digest is not None:
            self._compare(key, digest.hexdigest())
        return tensor

    def check_all(self) -> None:
        """Compare every checksum without keeping anything in memory."""
        for key in self._checksums:
            self._compare(key, self.digest(key))

    def digest(self, key: str) -> str:
        """The checksum of a tensor as it is in the file."""
        start, end = self._spans[key]
        digest = xxhash.xxh3_64()
        with self.path.open("rb", buffering=0) as file:
            file.seek(self._start + start)
            while start < end and (piece := file.read(min(PIECE, end - start))):
                digest.update(piece)
                start += len(piece)
        return digest.hexdigest()

    def _compare(self, key: str, digest: str) -> None:
        if digest != self._checksums[key]:
            raise WeightsError(f"{key} in {self.path} is damaged: its checksum differs.")
        self._compared.add(key)

    def start(self, key: str) -> int:
        """Where in the file a tensor begins."""
        return self._start + self._spans[key][0]


def fill(file: Any, tensor: Tensor, path: Path, digest: Any = None) -> None:
    """Read a tensor's bytes straight into its own memory, in pieces that are still in the cache for the checksum."""
    if not tensor.numel():
        return
    left = bytes_of(tensor)
    while left:
        count = file.readinto(left[:PIECE])
        if not count:
            raise WeightsError(f"{path} is cut short. Download it again.")
        if digest is not None:
            digest.update(left[:count])
        left = left[count:]


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, as a view of its memory if it is contiguous."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return memoryview(flat.numpy())  # type: ignore[arg-type]


def write_safetensors(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    header: Mapping[str, str],
    *,
    gather: Callable[[Tensor], Tensor] = torch.detach,
) -> None:
    """Write one tensor at a time, atomically: a reader sees either the old file or the new one.

    `gather` assembles a sharded tensor when it is written.
    """
    text = make_header(tensors, header)
    with atomic(path) as partial, partial.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        digests = []
        for tensor in tensors.values():
            digest = xxhash.xxh3_64()
            raw = bytes_of(gather(tensor))
            for start in range(0, len(raw), PIECE):
                digest.update(raw[start : start + PIECE])
                file.write(raw[start : start + PIECE])
            digests.append(digest.hexdigest())
        file.seek(8)
        file.write(seal_header(text, digests))


def make_header(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> bytes:
    """The header of a file of these tensors, which may be on meta, with zeros instead of checksums."""
    zeros = " ".join([XXH3, *(ZEROS for _ in range(len(tensors) + 1))])
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", **header, CHECKSUMS: zeros}}
    offset = 0
    for key, tensor in tensors.items():
        if tensor.dtype not in NAMES:
            raise WeightsError(f"{key} has type {tensor.dtype}, which is not supported in safetensors files.")
        end = offset + tensor.numel() * tensor.dtype.itemsize
        entries[key] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_LIMIT:
        raise WeightsError(f"The header would take {len(text)} bytes; safetensors allows {HEADER_LIMIT}.")
    return text


def seal_header(text: bytes, digests: Sequence[str]) -> bytes:
    """The header with the checksums of the tensors, in their order, and before them one of the header itself."""
    blank = " ".join([XXH3, *[ZEROS] * (len(digests) + 1)]).encode()
    half = text.replace(blank, " ".join([XXH3, ZEROS, *digests]).encode(), 1)
    own = xxhash.xxh3_64_hexdigest(half)
    return text.replace(blank, " ".join([XXH3, own, *digests]).encode(), 1)


def seal_file(partial: Path) -> None:
    """Compute the checksums of a file whose tensors were written in any order, and put them into its header."""
    source = SafetensorsSource(partial, verify=False)
    digests = [source.digest(key) for key in source.shapes]
    with partial.open("r+b") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        text = file.read(length)
        file.seek(8)
        file.write(seal_header(text, digests))
