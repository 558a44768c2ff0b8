"""Files of torch.save, through weights_only loading and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline.weights.report import WeightsError

# Where training scripts put the weights in their checkpoint, in the order in which they themselves evaluate them
CONTAINERS = ("model", "state_dict_ema", "state_dict", "teacher", "module", "model_ema")


@dataclass
class PthSource:
    """A state dict inside a torch file, mapped into memory and copied tensor by tensor."""

    path: Path
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    header: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        loaded = _loaded(self.path)
        self._tensors = _inner(loaded, self.path)
        several = [k for k in CONTAINERS if isinstance(loaded.get(k), Mapping)]
        if len(several) > 1:
            self.notes = (f"The file holds weights under {', '.join(several)}; {several[0]} was taken.",)
        self.shapes = {k: tuple(v.shape) for k, v in self._tensors.items()}
        self.dtypes = {k: v.dtype for k, v in self._tensors.items()}

    def read(self, key: str, layer: int | None = None) -> Tensor:
        tensor = self._tensors[key].detach()
        return (tensor if layer is None else tensor[layer]).clone(memory_format=torch.contiguous_format)


def _loaded(path: Path) -> Any:
    """Whatever torch's restricted unpickler lets through. It fails in many ways on damaged files, all of them here."""
    with path.open("rb") as file:
        mapped = file.read(2) == b"PK"
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except MemoryError:
        raise
    except Exception as error:
        first = str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
        raise WeightsError(
            f"{path} does not load as plain weights ({first}). Damaged, or it holds Python objects, which Sightline "
            "never unpickles: save model.state_dict() alone."
        ) from error


def _inner(loaded: Any, path: Path) -> dict[str, Tensor]:
    """The state dict in a checkpoint."""
    while isinstance(loaded, Mapping):
        if loaded and all(isinstance(v, Tensor) for v in loaded.values()):
            if not all(isinstance(k, str) for k in loaded):
                break
            if any(v.layout != torch.strided or v.is_quantized or v.is_meta for v in loaded.values()):
                raise WeightsError(f"{path} holds sparse, quantized or empty tensors; expected plain ones.")
            return dict(loaded)
        inside = next((loaded[k] for k in CONTAINERS if isinstance(loaded.get(k), Mapping)), None)
        if inside is None:
            break
        loaded = inside
    raise WeightsError(f"{path} holds no state dict: expected a dict of tensors, or one under {', '.join(CONTAINERS)}.")
