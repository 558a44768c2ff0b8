"""A run's state on disk: everything that the next step depends on, written so that no moment of death can hurt it.

One safetensors file, written in one piece, whatever the world that trains: of a sharded tensor every process hands in
its part, and the first writes the whole, one tensor at a time. So a run goes on in any shape, and reading it runs no
code: folders are handed on, and a pickle in one would run whatever its sender likes. Randomness needs no state: every
draw is keyed by the seed and the step.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from sightline.spec import from_json, to_json
from sightline.training.optim import Average, own_name
from sightline.training.parallel import World, whole
from sightline.weights.containers.safetensors import SafetensorsSource, write_safetensors
from sightline.weights.report import WeightsError

HEAD = "sightline-state"
FILE = "state.safetensors"
FORMER = "state.json"  # named a folder of pickles beside it, once, where processes shared a model


def tensors_of(task: nn.Module, optimizer: torch.optim.Optimizer, average: Average | None) -> dict[str, Tensor]:
    """Every tensor that training changes, by name; the very tensors, not copies."""
    found = {f"task/{own_name(n)}": t for n, t in task.state_dict(keep_vars=True).items()}
    for group in optimizer.param_groups:
        for name, p in zip(group["names"], group["params"]):
            found |= {f"optimizer/{name}/{key}": value for key, value in optimizer.state[p].items()}
    if average is not None:
        found |= {f"average/{name}": value for name, value in average.values.items()}
    return {name: tensor.detach() for name, tensor in found.items()}


def write(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], world: World) -> None:
    """Keep the state of this step; the one before stays until this one is complete."""
    if world.first:
        write_safetensors(folder / FILE, tensors, {HEAD: to_json(facts)}, gather=whole)
    elif world.sharded:
        for tensor in tensors.values():
            whole(tensor)
    world.wait()


def facts_of(folder: Path) -> dict[str, Any] | None:
    """What the saved state says about itself, such as its step; None where none was ever complete."""
    for place in (folder, folder / FILE):  # a link may lead to somebody else's files, to be written over
        if place.is_symlink():
            raise _useless(folder, f"{place.name} is a link")
    if os.path.lexists(folder / FORMER):
        raise _useless(folder, f"{FORMER} is of a former kind, which could run foreign code and is no longer read")
    if not (folder / FILE).exists():
        return None
    try:
        facts = from_json(_opened(folder).header.get(HEAD, "null"))
    except (ValueError, RecursionError) as error:
        raise _useless(folder, f"what {FILE} says about itself is damaged") from error
    match facts:
        case {
            "step": int(step),
            "best": None | {"score": int() | float(), "step": int()},
            "stale": int(),
            "over": bool(),
            "size": [int(), int()],
        } if step > 0:
            return facts
    raise _useless(folder, f"what {FILE} says about itself is damaged")


@torch.no_grad()
def read(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill the tensors with what was saved, by however many processes, into those of this world."""
    source = _opened(folder)
    if odd := sorted(set(source.shapes) ^ set(tensors)):
        raise ValueError(f"{folder / FILE} is of another run: {odd[0]} is only on one side. Give another --out.")
    for name, tensor in tensors.items():
        if (source.shapes[name], source.dtypes[name]) != (tuple(tensor.shape), tensor.dtype):
            there, here = source.shapes[name], tuple(tensor.shape)
            raise ValueError(f"{folder / FILE} is of another run: {name} is {source.dtypes[name]} {there} there, "
                             f"{tensor.dtype} {here} here. Give another --out.")  # fmt: skip
        value = source.read(name)
        if isinstance(tensor, DTensor):
            value = distribute_tensor(value, tensor.device_mesh, tensor.placements, src_data_rank=None)
        tensor.copy_(value)


def _opened(folder: Path) -> SafetensorsSource:
    try:
        return SafetensorsSource(folder / FILE)
    except (WeightsError, OSError) as error:
        raise _useless(folder, str(error).rstrip(".")) from error


def _useless(folder: Path, why: str) -> ValueError:
    weights = folder.parent / "model.safetensors"
    return ValueError(
        f"Training cannot go on from {folder} ({why}): start again with another --out, or use the weights in {weights}."
    )


def size(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of the whole state."""
    return sum(t.numel() * t.element_size() for t in tensors.values())
