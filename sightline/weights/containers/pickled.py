"""What a .pth file declares, before torch opens it: its pickle is read with nothing in it being called.

torch's restricted unpickler runs no code, but it allocates what the file asks for: a bytearray, a quantized or expanded
tensor or a storage of terabytes, out of a few bytes. Here every call is recorded instead of made.
"""

import io
import math
import mmap
import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOM, RATIO = 2**30, 8  # what all tensors together may take: 1 GiB and 8 times the file
PICKLE_LIMIT = 1 << 28  # bytes of the pickle itself, which holds names and shapes
STORAGE = "Storage"
SIZES = {"Double": 8, "Long": 8, "ComplexDouble": 16, "ComplexFloat": 8, "Float": 4, "Int": 4, "QInt32": 4}
SIZES |= {"Half": 2, "BFloat16": 2, "Short": 2}  # bytes; of all others 1
COLLECTIONS: dict[str, Any] = {"collections.OrderedDict": OrderedDict, "builtins.set": set, "collections.Counter": dict}
COLLECTIONS |= {"torch.Size": tuple}
VALUES = ("torch.device", "torch.serialization._get_layout", "_codecs.encode", "builtins.complex")
TYPES = ("torch.Tensor", "torch.nn.parameter.Parameter")
DAMAGED = (pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, struct.error, EOFError, LookupError, TypeError)
FAULTS = (*DAMAGED, AttributeError, RecursionError, MemoryError, ArithmeticError, OSError, RuntimeError)


@dataclass(frozen=True)
class StoredBytes:
    """The bytes behind tensors, as the pickle refers to them."""

    size: int  # bytes
    item: int


@dataclass(frozen=True)
class Named:
    """A type that the pickle names. It cannot be called."""

    name: str


class Called:
    """A small value that the pickle computes, such as a device. It is not computed."""

    def __init__(self, *arguments: Any): ...


class Survey(pickle._Unpickler):  # the one in Python: its memory is bounded by its input
    """Reads a pickle and keeps what the tensors in it take; names that weights do not need are refused."""

    def __init__(self, file: Any, room: int):
        super().__init__(file, encoding="utf-8")
        self.room = room  # bytes that all storages together may have
        self.stored = 0  # bytes of all storages
        self.claimed = 0  # bytes of all tensors, each with memory of its own
        self.copied = 0  # entries of collections that are made of others
        self.storages: dict[str, StoredBytes] = {}

    def find_class(self, module: str, name: str) -> Any:
        path = f"{module.replace('__builtin__', 'builtins')}.{name}"  # as Python 2 called it, and protocol 2 still does
        if path in COLLECTIONS:
            return partial(self._collect, COLLECTIONS[path])
        if path in ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2"):
            return self._tensor
        if path in ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"):
            return lambda data, *rest: data
        if path == "torch._tensor._rebuild_from_type_v2":
            return lambda function, kind, arguments, state: function(*arguments)
        if path in VALUES:
            return Called
        if path in TYPES or (module == "torch" and name.islower()) or name.endswith(STORAGE):
            return Named(name)
        raise pickle.UnpicklingError(f"it names {path}, which weights do not need")

    def _collect(self, kind: Any, *arguments: Any) -> Any:
        self.copied += sum(map(len, arguments))
        if self.copied > self.room:
            raise pickle.UnpicklingError("it copies the same collection over and over")
        return kind(*arguments)

    def persistent_load(self, pid: Any) -> StoredBytes:
        kind, key, count = pid[1], str(pid[2]), int(pid[4])
        item = SIZES.get(str(getattr(kind, "name", "")).removesuffix(STORAGE), 1)
        if key not in self.storages:
            self.storages[key] = StoredBytes(count * item, item)
            self.stored += count * item
        if count < 0 or self.stored > self.room:
            raise pickle.UnpicklingError(f"it declares {self.stored:,} bytes of values and has {self.room:,}")
        return self.storages[key]

    def _tensor(self, storage: StoredBytes, offset: int, size: Any, stride: Any, *rest: Any) -> Called:
        shape, steps = tuple(map(int, size)), tuple(map(int, stride))
        if len(shape) != len(steps) or min((*shape, *steps, offset), default=0) < 0:
            raise pickle.UnpicklingError(f"it declares a tensor of shape {shape[:8]} and strides {steps[:8]}")
        last = offset + sum((n - 1) * step for n, step in zip(shape, steps)) if 0 not in shape else 0
        values = math.prod(shape)
        if 0 not in shape and ((last + 1) * storage.item > storage.size or values * storage.item > storage.size):
            raise pickle.UnpicklingError(f"it declares a tensor of shape {shape[:8]} on {storage.size:,} bytes")
        self.claimed += values * storage.item
        return Called()


def refuse_bomb(path: Path) -> None:
    """Raise ValueError if a torch file declares more than it can hold, or anything but tensors and plain values."""
    size = path.stat().st_size
    try:
        claimed = sum(_claims(path, size))
    except FAULTS as error:
        raise ValueError(str(error) or type(error).__name__) from error
    check_claim(claimed, size)


def check_claim(claimed: int, size: int) -> None:
    """Raise ValueError if a file of `size` bytes would unfold to too many."""
    if claimed > ROOM + RATIO * size:
        raise ValueError(f"it has {size:,} bytes and declares tensors of {claimed:,}")


def _claims(path: Path, size: int) -> Iterator[int]:
    """The bytes that the tensors of each pickle claim."""
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":  # as torch distinguishes them
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as old:
                for _ in range(5):  # magic number, version, system, the tensors, the keys of their storages
                    yield _survey(old, size)
            return
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.filename.endswith(".pkl"):
                yield _survey(io.BytesIO(_small(archive, info)), size)


def _small(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    if info.file_size > PICKLE_LIMIT:
        raise ValueError(f"its pickle claims {info.file_size:,} bytes; at most {PICKLE_LIMIT:,} are read")
    return archive.read(info)


def _survey(file: Any, room: int) -> int:
    survey = Survey(file, room)
    survey.load()
    return survey.claimed
