"""Measurements before the first step: memory, passes that fit, speed."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from sightline.data.datasets import Dataset
from sightline.models.checks import pair
from sightline.training.optimization.optimizer import parameter_groups
from sightline.training.preflight import free_memory, memory
from sightline.training.preflight.plan import Plan
from sightline.training.train_state import TrainState


def fit_to_memory(state: TrainState, plan: Plan, *, workers: int = 0, free: int | None = None) -> Plan:
    """The plan with parameter groups, the memory that a step takes, and passes that fit into the free memory."""
    recipe, processes = state.recipe, state.processes
    with preserve_state(state):
        need = memory.estimate_memory(state, workers=workers)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", processes.size))
    free = int(processes.min(free_memory.free_bytes(state.device, processes=local) if free is None else free))
    micro = memory.select_micro(need, free, state.device, asked=recipe.micro)
    split = micro < need.share and recipe.micro is None
    if split and getattr(state.objective, "whole_batch", False):
        raise ValueError(
            f"A batch of {need.share:,} views does not fit into memory, and SIGReg is a statistic of the whole batch, "
            f"so smaller passes would change it: --set batch={max(1, micro // recipe.views) * recipe.views}."
        )
    if split and any(isinstance(m, _BatchNorm) for m in state.objective.modules()):
        raise ValueError(
            f"A batch of {need.share:,} images does not fit into memory, and BatchNorm computes its statistics "
            f"per pass, so smaller passes change the result: --set micro={micro} to accept that, or "
            f"--set batch={micro}."
        )
    plan = plan.with_micro(micro, processes)
    groups, sizes = parameter_groups(state.objective, recipe), {n: p.numel() for n, p in state.params.items()}
    return replace(
        plan,
        parameters=sum(sizes.values()),
        trainable=sum(sizes[n] for g in groups for n in g.names),
        groups=tuple(
            {
                "scale": g.scale,
                "decay": g.weight_decay,
                "orthogonal": g.orthogonal,
                "tensors": len(g.names),
                "parameters": sum(sizes[n] for n in g.names),
            }
            for g in groups
        ),
        state_bytes=state.size_in_bytes(),
        activation_bytes=need.activations(plan.micro),
        memory_bytes=need.total(plan.micro),
        free_bytes=free,
    )


def measure_speed(state: TrainState, train: Dataset, plan: Plan, *, workers: int = 0) -> Plan:
    """The plan with the measured time of one real pass; model and random numbers are left unchanged."""
    recipe, processes, model = state.recipe, state.processes, state.model
    spec = replace(model.image, size=pair(model.config.size))
    batches = train.batches(
        spec, batch=recipe.batch, train=recipe.augment, seed=recipe.seed, rank=processes.rank, world=processes.size,
        device=state.device,
    )  # fmt: skip
    start = time.perf_counter()
    images, labels = next(iter(batches))
    loading, part = time.perf_counter() - start, slice(plan.micro)
    with preserve_state(state):
        if recipe.compile:
            _time_pass(state, images[part], labels[part])  # compiles
        compute = _time_pass(state, images[part], labels[part])
        if processes.any(compute < 1):  # the first pass also fills caches; a long one need not be repeated
            compute = _time_pass(state, images[part], labels[part])
    compute *= len(images) / len(images[part])
    return replace(
        plan,
        step_seconds=max(compute, loading / max(1, workers)) if workers else compute + loading,
        loader_images_per_second=len(images) * max(1, workers) / loading,
        model_images_per_second=len(images) / compute,
    )


def _time_pass(state: TrainState, images: Tensor, labels: Tensor) -> float:
    start = time.perf_counter()
    state.backward(images, labels, step=0)
    return time.perf_counter() - start


@contextmanager
def preserve_state(state: TrainState) -> Iterator[None]:
    """Trial passes inside the `with` block leave no gradients and no statistics behind."""
    held = {n: b.clone() for n, b in state.objective.named_buffers()}
    try:
        yield
    finally:
        state.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, buffer in state.objective.named_buffers():
                buffer.copy_(held[name])
