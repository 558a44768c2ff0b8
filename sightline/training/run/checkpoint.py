"""The training state on disk: everything that the next step depends on, written so that no crash can damage it.

One safetensors file with checksums, written atomically, and the one before it. However many processes train, every
process contributes its part of a sharded tensor, and the first writes the whole, one tensor at a time. So a run resumes
on any number of processes, and reading it runs no code: folders are passed on, and a pickle in one could run anything.
Randomness needs no state: every draw is keyed by the seed and the step.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from sightline.files import publish
from sightline.spec import from_json, to_json
from sightline.training.optimization.average import PolyakAverage
from sightline.training.optimization.optimizer import model_name
from sightline.training.parallel import ProcessGroup, full_tensor
from sightline.weights.containers.safetensors import SafetensorsSource, write_safetensors
from sightline.weights.report import WeightsError

HEADER = "sightline-state"
FILE, BEFORE = "state.safetensors", "before.safetensors"  # the last state, and the one before
NEXT = "next.safetensors"  # a complete state for the moment until it is renamed
PICKLED = "state.json"  # once named a folder of pickles beside it, where processes shared a model


def state_tensors(
    objective: nn.Module, optimizer: torch.optim.Optimizer, average: PolyakAverage | None
) -> dict[str, Tensor]:
    """Every tensor that training changes, by name; the tensors themselves, not copies."""
    tensors = {f"task/{model_name(n)}": t for n, t in objective.state_dict(keep_vars=True).items()}
    for group in optimizer.param_groups:
        for name, p in zip(group["names"], group["params"]):
            tensors |= {f"optimizer/{name}/{key}": value for key, value in optimizer.state[p].items()}
    if average is not None:
        tensors |= {f"average/{name}": value for name, value in average.values.items()}
    return {name: tensor.detach() for name, tensor in tensors.items()}


def write_state(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], processes: ProcessGroup) -> None:
    """Save the state of this step. The one before stays, too, in case that this one is ever damaged; at no moment is
    there less than one complete state."""
    if processes.first:
        write_safetensors(folder / NEXT, tensors, {HEADER: to_json(facts)}, gather=full_tensor)
        promote(folder)
    elif processes.sharded:
        for tensor in tensors.values():
            full_tensor(tensor)
    processes.barrier()


def promote(folder: Path) -> None:
    """Give a complete new state its name, also after a process that was killed before it could."""
    if (folder / NEXT).exists():
        if (folder / FILE).exists():
            os.replace(folder / FILE, folder / BEFORE)
        publish(folder / NEXT, folder / FILE)


class DamagedState(ValueError):  # noqa: N818
    """A state that cannot be read as it was written."""

    def __init__(self, path: Path, reason: str):
        self.reason = reason
        weights = (path.parent if path.suffix else path).parent / "model.safetensors"
        super().__init__(
            f"Training cannot resume from {path} ({reason}): start again with another --out, or use the weights in "
            f"{weights}."
        )


def states(folder: Path) -> list[Path]:
    """The saved states, the newest first."""
    found = [folder / name for name in (NEXT, FILE, BEFORE)]
    for path in (folder, *found):  # a link may lead to somebody else's files
        if path.is_symlink():
            raise DamagedState(folder, f"{path.name} is a link")
    if os.path.lexists(folder / PICKLED):
        raise DamagedState(folder, f"{PICKLED} is of an old format, which could run foreign code and is no longer read")
    return [path for path in found if path.exists()]


def read_facts(folder: Path) -> dict[str, Any] | None:
    """What the newest sound state says about itself, such as its step; None if none was ever completed."""
    found = states(folder)
    for path in found:
        try:
            return read_state_facts(path)
        except DamagedState:
            if path == found[-1]:
                raise
    return None


def read_state_facts(path: Path) -> dict[str, Any]:
    """What one saved state says about itself."""
    try:
        facts = from_json(_open_state(path).header.get(HEADER, "null"))
    except ValueError as error:
        raise error if isinstance(error, DamagedState) else DamagedState(path, "its header is damaged") from error
    match facts:
        case {
            "step": int(step),
            "best": None | {"score": int() | float(), "step": int()},
            "stale": int(),
            "over": bool(),
            "size": [int(), int()],
        } if step > 0:
            return facts
    raise DamagedState(path, "its header is damaged")


@torch.no_grad()
def read_state(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill the tensors with the saved ones, whatever number of processes saved them."""
    source = _open_state(path)
    if odd := sorted(set(source.shapes) ^ set(tensors)):
        raise ValueError(f"{path} belongs to another run: only one of them has {odd[0]}. Give another --out.")
    for name, tensor in tensors.items():
        if (source.shapes[name], source.dtypes[name]) != (tuple(tensor.shape), tensor.dtype):
            saved, expected = source.shapes[name], tuple(tensor.shape)
            raise ValueError(
                f"{path} belongs to another run: {name} is {source.dtypes[name]} {saved} there, "
                f"{tensor.dtype} {expected} here. Give another --out."
            )
    for name, tensor in tensors.items():
        value = _read(source, name)
        if isinstance(tensor, DTensor):
            value = distribute_tensor(value, tensor.device_mesh, tensor.placements, src_data_rank=None)
        tensor.copy_(value)


def _read(source: SafetensorsSource, name: str) -> Tensor:
    try:
        return source.read(name)
    except (WeightsError, OSError) as error:
        raise DamagedState(source.path, str(error).rstrip(".")) from error


def _open_state(path: Path) -> SafetensorsSource:
    try:
        return SafetensorsSource(path)
    except (WeightsError, OSError) as error:
        raise DamagedState(path, str(error).rstrip(".")) from error


def total_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Size of the whole state."""
    return sum(t.numel() * t.element_size() for t in tensors.values())
