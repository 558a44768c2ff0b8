"""The interface of every container: names, shapes and dtypes up front, values one tensor at a time."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from sightline.archives import ZIP_FAULTS
from sightline.weights.report import WeightsError

PIECE = 2**20  # bytes at a time


@runtime_checkable
class Source(Protocol):
    """A checkpoint on disk or in memory."""

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, torch.dtype]
    header: dict[str, str]
    notes: tuple[str, ...]  # for the loading report

    def read(self, key: str, layer: int | None = None) -> Tensor:
        """A new tensor; with `layer`, one slice along the first axis."""
        ...


@dataclass
class FileSource:
    """What every container file holds: filled from its header before a value is read."""

    path: Path
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    header: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    verify: bool = True  # compare checksums, where the file has them


@dataclass
class StateDictSource:
    """A state dict in memory, read like a file."""

    tensors: Mapping[str, Tensor]
    header: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.shapes = {k: tuple(v.shape) for k, v in self.tensors.items()}
        self.dtypes = {k: v.dtype for k, v in self.tensors.items()}

    def read(self, key: str, layer: int | None = None) -> Tensor:
        tensor = self.tensors[key].detach()
        return (tensor if layer is None else tensor[layer]).clone(memory_format=torch.contiguous_format)


def check_members(path: Path, *names: str) -> None:
    """Compare the checksum of each of these members of a zip file, or of all, without keeping anything in memory: torch
    maps its files past them."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in names or archive.namelist():
                with archive.open(name) as member:
                    while member.read(PIECE):  # zipfile compares the checksum at the end
                        pass
    except ZIP_FAULTS as error:
        raise WeightsError(
            f"{path} is damaged or cut short ({error!s:.200}). Get it again; --no-verify loads it anyway."
        ) from error
