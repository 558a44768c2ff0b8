"""Files written by torch.save, read with weights_only loading and nothing else."""

import errno
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline.files import atomic
from sightline.weights.containers.pickled import check_claim, refuse_bomb
from sightline.weights.containers.source import StateDictSource, check_members
from sightline.weights.report import WeightsError

# Where training scripts put the weights in a checkpoint, in the order in which those scripts would evaluate them
CONTAINERS = ("model", "state_dict_ema", "state_dict", "teacher", "module", "model_ema")


def open_pth(path: Path, *, verify: bool = True) -> StateDictSource:
    """The state dict inside a torch file, mapped into memory and copied tensor by tensor."""
    if verify and zipfile.is_zipfile(path):
        check_members(path)
    checkpoint = _unpickle_weights(path)
    several = [k for k in CONTAINERS if isinstance(checkpoint, Mapping) and isinstance(checkpoint.get(k), Mapping)]
    notes = (f"The file holds weights under {', '.join(several)}; {several[0]} was used.",) if len(several) > 1 else ()
    return StateDictSource(_state_dict(checkpoint, path), notes=notes)


def _unpickle_weights(path: Path) -> Any:
    """What torch's restricted unpickler accepts. It fails in many ways on damaged files; all are handled here."""
    with path.open("rb") as file:
        mapped = file.read(2) == b"PK"
    try:
        refuse_bomb(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:
        first = str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
        raise WeightsError(
            f"{path} does not load as plain weights ({first}). Damaged, or it holds Python objects, which Sightline "
            "never unpickles: save model.state_dict() alone."
        ) from error


def _state_dict(checkpoint: Any, path: Path) -> dict[str, Tensor]:
    """Find the state dict in a checkpoint."""
    while isinstance(checkpoint, Mapping):
        if checkpoint and all(isinstance(v, Tensor) for v in checkpoint.values()):
            if not all(isinstance(k, str) for k in checkpoint):
                break
            if any(v.layout != torch.strided or v.is_quantized or v.is_meta for v in checkpoint.values()):
                raise WeightsError(f"{path} holds sparse, quantized or empty tensors; expected plain ones.")
            _check_total(checkpoint, path)
            return dict(checkpoint)
        inside = next((checkpoint[k] for k in CONTAINERS if isinstance(checkpoint.get(k), Mapping)), None)
        if inside is None:
            break
        checkpoint = inside
    raise WeightsError(f"{path} holds no state dict: expected a dict of tensors, or one under {', '.join(CONTAINERS)}.")


def _check_total(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Tensors that share memory are copied apart: many names of one must not grow without bound."""
    try:
        check_claim(sum(t.numel() * t.element_size() for t in tensors.values()), path.stat().st_size)
    except ValueError as error:
        raise WeightsError(f"{path} is refused: {error}.") from error


def write_pth(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a plain dict of tensors with `torch.save`, atomically."""
    with atomic(path) as partial:
        try:
            torch.save({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, partial)
        except RuntimeError as error:  # torch's own writer, on a full disk
            raise OSError(errno.EIO, str(error).splitlines()[0][:120], str(path)) from error
