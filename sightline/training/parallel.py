"""One process or many: who is here, how the model is spread, and sums over everyone."""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel

from sightline.models.bit import Unit
from sightline.models.vit import Block

Kind = Literal["ddp", "fsdp"]


@dataclass(frozen=True, kw_only=True)
class World:
    """The processes of a job and this one's place among them."""

    rank: int = 0
    size: int = 1
    kind: Kind = "ddp"

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def sharded(self) -> bool:
        """Whether each process holds only a part of every parameter."""
        return self.kind == "fsdp" and self.size > 1

    def sum(self, values: list[float], op: Any = dist.ReduceOp.SUM) -> list[float]:
        """Each value added over all processes, in float64."""
        if self.size == 1:
            return values
        device = device_here() if dist.get_backend() == "nccl" else torch.device("cpu")
        tensor = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(tensor, op)
        return tensor.tolist()

    def least(self, value: float) -> float:
        """The smallest over all processes."""
        return self.sum([value], dist.ReduceOp.MIN)[0]

    def any(self, flag: bool) -> bool:
        """Whether it holds in at least one process."""
        return self.sum([float(flag)])[0] > 0

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


def device_here() -> torch.device:
    """The accelerator of this process, or the CPU."""
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    kind = torch.accelerator.current_accelerator()
    return torch.device(kind.type if kind else "cpu", int(os.environ.get("LOCAL_RANK", 0)))


def joined(kind: Kind = "ddp") -> World:
    """The world that torchrun set up (RANK, WORLD_SIZE ...), or that the caller already joined, or this process alone.

    It is left when the process ends: a group that was left once cannot be joined again.
    """
    if kind not in ("ddp", "fsdp"):
        raise ValueError(f"parallel is ddp or fsdp; got {kind!r}.")
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", 1)) == 1:
            return World(kind=kind)
        device = device_here()
        if device.type != "cpu":
            torch.accelerator.set_device_index(device.index)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(_leave)
    return World(rank=dist.get_rank(), size=dist.get_world_size(), kind=kind)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def shard(task: nn.Module, world: World) -> None:
    """FSDP2: every block a unit of its own, so that one at a time is gathered, and the rest in the root.

    The root is whatever is called: the model, or a task with parameters of its own that calls parts of the model.
    """
    device = next(task.parameters()).device
    mesh = init_device_mesh(device.type, (world.size,))
    for module in task.modules():
        if isinstance(module, Block | Unit):
            fully_shard(module, mesh=mesh)
    own = len(list(task.parameters())) > len(list(task.model.parameters()))  # type: ignore[union-attr]
    root = task if own else task.model
    fully_shard(root, mesh=mesh)  # type: ignore[arg-type]
    if not own:
        register_fsdp_forward_method(root, "features")  # type: ignore[arg-type]


def spread(task: nn.Module, world: World) -> nn.Module:
    """What the loop calls: the task itself (alone, or already sharded), or DDP around it."""
    if world.size == 1 or world.sharded:
        return task
    device = next(task.parameters()).device
    own = len(list(task.parameters())) > len(list(task.model.parameters()))  # type: ignore[union-attr]
    used = all(p.requires_grad for p in task.parameters()) and not own  # a masked task leaves the model's head alone
    return DistributedDataParallel(
        task,
        device_ids=[device.index] if device.type == "cuda" else None,
        find_unused_parameters=not used,
        gradient_as_bucket_view=True,
    )


def forget(task: nn.Module) -> None:
    """Drop what FSDP has gathered: a root keeps its parameters after a forward pass, even if they change meanwhile."""
    for module in task.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@contextmanager
def together(module: nn.Module, last: bool) -> Iterator[None]:
    """Gradients are exchanged in the last of several backward passes only."""
    for root in (module, getattr(module, "model", None)):
        if isinstance(root, FSDPModule):
            root.set_requires_gradient_sync(last)
    quiet: Any = module.no_sync() if isinstance(module, DistributedDataParallel) and not last else nullcontext()
    with quiet:
        yield


def whole(tensor: Tensor) -> Tensor:
    """A tensor as every process would see it alone; for a sharded one, all must ask."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
