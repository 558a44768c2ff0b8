"""A run's state on disk: everything that the next step depends on, written so that no moment of death can hurt it.

One process (and DDP, where all hold the same) writes one safetensors file in one piece. Sharded state goes through
torch.distributed.checkpoint, every process its own part, into a fresh folder; a small file that is replaced in one step
then says which folder counts. Randomness needs no state: every draw is keyed by the seed and the step.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from sightline.spec import atomic
from sightline.training.optim import Average, own_name
from sightline.training.parallel import World
from sightline.weights.store import SafetensorsSource, write_safetensors

HEAD = "sightline-state"
FILE, POINTER = "state.safetensors", "state.json"


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
    if world.sharded:
        _write_shards(folder, tensors, facts, world)
    elif world.first:
        write_safetensors(folder / FILE, tensors, {HEAD: json.dumps(facts)})
        (folder / POINTER).unlink(missing_ok=True)
    world.wait()
    if world.first:
        kept = folder / f"step-{facts['step']}" if world.sharded else None
        for old in folder.glob("step-*"):
            if old != kept:
                shutil.rmtree(old)


def _write_shards(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], world: World) -> None:
    place = folder / f"step-{facts['step']}"
    if world.first and place.exists():  # left by a run that died while it wrote
        shutil.rmtree(place)
    world.wait()
    dcp.save(dict(tensors), checkpoint_id=place)
    world.wait()
    if world.first:
        with atomic(folder / POINTER) as partial:
            partial.write_text(json.dumps({**facts, "folder": place.name}))
        (folder / FILE).unlink(missing_ok=True)


def facts_of(folder: Path) -> dict[str, Any] | None:
    """What the saved state says about itself, such as its step; None where there is none.

    A run may go on in another shape than it was saved in. Where both forms are there, a process died between writing
    the new one and removing the old one: the later step counts.
    """
    found = []
    if (folder / FILE).exists():
        found.append(json.loads(SafetensorsSource(folder / FILE).header[HEAD]))
    if (folder / POINTER).exists():
        found.append(json.loads((folder / POINTER).read_text()))
    return max(found, key=lambda facts: facts["step"]) if found else None


@torch.no_grad()
def read(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Fill the tensors with what was saved, by however many processes, into those of this world."""
    if "folder" in facts:
        dcp.load(dict(tensors), checkpoint_id=folder / facts["folder"])
        return
    source = SafetensorsSource(folder / FILE)
    if set(source.shapes) != set(tensors):
        odd = sorted(set(source.shapes) ^ set(tensors))
        raise ValueError(f"{folder / FILE} is of another run: {odd[0]} is only on one side. Give another --out.")
    for name, tensor in tensors.items():
        value = source.read(name)
        if isinstance(tensor, DTensor):
            value = distribute_tensor(value, tensor.device_mesh, tensor.placements, src_data_rank=None)
        tensor.copy_(value)


def size(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of the whole state."""
    return sum(t.numel() * t.element_size() for t in tensors.values())
