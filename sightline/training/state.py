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
    if not world.sharded:
        if world.first:
            write_safetensors(folder / FILE, tensors, {HEAD: json.dumps(facts)})
        world.wait()
        return
    place = folder / f"step-{facts['step']}"
    if world.first and place.exists():  # left by a run that died while it wrote
        shutil.rmtree(place)
    world.wait()
    dcp.save(dict(tensors), checkpoint_id=place)
    world.wait()
    if world.first:
        with atomic(folder / POINTER) as partial:
            partial.write_text(json.dumps({**facts, "folder": place.name}))
        for old in folder.glob("step-*"):
            if old != place:
                shutil.rmtree(old)
    world.wait()


def facts_of(folder: Path, world: World) -> dict[str, Any] | None:
    """What the saved state says about itself, such as its step; None where there is none."""
    if (folder / FILE).exists():
        _same_kind(world, sharded=False)
        return json.loads(SafetensorsSource(folder / FILE).header[HEAD])
    if (folder / POINTER).exists():
        _same_kind(world, sharded=True)
        return json.loads((folder / POINTER).read_text())
    return None


def _same_kind(world: World, *, sharded: bool) -> None:
    if world.sharded != sharded:
        names = ("sharded, by --parallel fsdp on several processes", "whole, by one process or --parallel ddp")
        there, here = names if sharded else names[::-1]
        raise ValueError(f"The state of this run was saved {there}; this job would go on {here}: start it as before.")


@torch.no_grad()
def read(folder: Path, tensors: Mapping[str, Tensor], world: World) -> None:
    """Fill the tensors with what was saved."""
    if world.sharded:
        held = dict(tensors)
        dcp.load(held, checkpoint_id=folder / json.loads((folder / POINTER).read_text())["folder"])
        return
    source = SafetensorsSource(folder / FILE)
    if set(source.shapes) != set(tensors):
        odd = sorted(set(source.shapes) ^ set(tensors))
        raise ValueError(f"{folder / FILE} is of another run: {odd[0]} is only on one side. Give another --out.")
    for name, tensor in tensors.items():
        tensor.copy_(source.read(name))


def size(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of the whole state."""
    return sum(t.numel() * t.element_size() for t in tensors.values())
