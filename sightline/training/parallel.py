"""One process or many: which process this is, how the model is distributed, and reductions over all processes."""

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

from sightline.models.bit import BasicUnit, Unit
from sightline.models.mixer import MixerBlock
from sightline.models.vit import Block

Strategy = Literal["ddp", "fsdp"]


@dataclass(frozen=True, kw_only=True)
class ProcessGroup:
    """The processes of a job and the rank of this one."""

    rank: int = 0
    size: int = 1
    strategy: Strategy = "ddp"

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def sharded(self) -> bool:
        """Whether each process holds only a part of every parameter."""
        return self.strategy == "fsdp" and self.size > 1

    def sum(self, values: list[float], op: Any = dist.ReduceOp.SUM) -> list[float]:
        """Each value summed over all processes, in float64."""
        if self.size == 1:
            return values
        device = local_device() if dist.get_backend() == "nccl" else torch.device("cpu")
        tensor = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(tensor, op)
        return tensor.tolist()

    def min(self, value: float) -> float:
        """The smallest value over all processes."""
        return self.sum([value], dist.ReduceOp.MIN)[0]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in at least one process."""
        return self.sum([float(flag)])[0] > 0

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


def local_device() -> torch.device:
    """The accelerator of this process, or the CPU."""
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    kind = torch.accelerator.current_accelerator()
    return torch.device(kind.type if kind else "cpu", int(os.environ.get("LOCAL_RANK", 0)))


def find_device(name: str | None = None) -> torch.device:
    """The device of this name, if it works here; by default the accelerator of this process, or the CPU.

    >>> sl.training.find_device("cpu")
    device(type='cpu')
    """
    try:
        device = local_device() if name is None else torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"The device {name} is not available ({reason}): try --device cpu.") from error
    return device


def join_processes(strategy: Strategy = "ddp") -> ProcessGroup:
    """The group that torchrun set up (RANK, WORLD_SIZE ...), or that the caller already joined, or this process alone.

    The group is destroyed when the process ends: a group that was left once cannot be joined again.
    """
    if strategy not in ("ddp", "fsdp"):
        raise ValueError(f"parallel is ddp or fsdp; got {strategy!r}.")
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", 1)) == 1:
            return ProcessGroup(strategy=strategy)
        device = local_device()
        if device.type != "cpu":
            torch.accelerator.set_device_index(device.index)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(_leave_group)
    return ProcessGroup(rank=dist.get_rank(), size=dist.get_world_size(), strategy=strategy)


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def shard_parameters(objective: nn.Module, processes: ProcessGroup) -> None:
    """FSDP2: every block is a unit of its own, so that one at a time is gathered; the rest belongs to the root.

    The root is whatever is called: the model, or an objective with parameters of its own that calls parts of the model.
    """
    device = next(objective.parameters()).device
    mesh = init_device_mesh(device.type, (processes.size,))
    for module in objective.modules():
        if isinstance(module, Block | MixerBlock | Unit | BasicUnit):
            fully_shard(module, mesh=mesh)
    root: Any = objective if _has_own_parameters(objective) else objective.model
    fully_shard(root, mesh=mesh)
    for method in ("features",) if root is not objective else ("represent", "embed"):
        if hasattr(root, method):
            register_fsdp_forward_method(root, method)


def wrap_ddp(objective: nn.Module, processes: ProcessGroup) -> nn.Module:
    """What the loop calls: the objective itself (one process, or already sharded), or DDP around it."""
    if processes.size == 1 or processes.sharded:
        return objective
    device = next(objective.parameters()).device
    # a masked objective never calls the model's head
    all_used = all(p.requires_grad for p in objective.parameters()) and not _has_own_parameters(objective)
    return DistributedDataParallel(
        objective,
        device_ids=[device.index] if device.type == "cuda" else None,
        find_unused_parameters=not all_used,
        gradient_as_bucket_view=True,
    )


def _has_own_parameters(objective: nn.Module) -> bool:
    """Whether an objective has parameters beside those of its model."""
    return len(list(objective.parameters())) > len(list(objective.model.parameters()))  # type: ignore[union-attr]


def reshard(objective: nn.Module) -> None:
    """Drop what FSDP has gathered: a root keeps its parameters after a forward pass, even if they change meanwhile."""
    for module in objective.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@contextmanager
def sync_gradients(module: nn.Module, enabled: bool) -> Iterator[None]:
    """Exchange gradients in this backward pass, or wait for the last of several passes."""
    for root in (module, getattr(module, "model", None)):
        if isinstance(root, FSDPModule):
            root.set_requires_gradient_sync(enabled)
    ddp = isinstance(module, DistributedDataParallel)
    no_sync: Any = module.no_sync() if ddp and not enabled else nullcontext()  # type: ignore[operator]
    with no_sync:
        yield


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded; all processes must call it then."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
