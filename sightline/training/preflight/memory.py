"""What a training step takes in memory, and how many images fit into one pass."""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from sightline.models.checks import pair
from sightline.models.costs import SavedForBackward
from sightline.training.objectives.dense import DenseObjective
from sightline.training.parallel import full_tensor, reshard
from sightline.training.run import checkpoint
from sightline.training.train_state import TrainState

# Share of the free memory that automatic passes may take: a CPU shares it with everything else that runs, and large
# passes are no faster there. A `micro` that was asked for may take all of it.
SHARE = {"cpu": 0.5}
ACCELERATOR_SHARE = 0.8
# Beside the saved activations, a backward pass holds gradients and copies inside kernels: this many of the largest
# tensor.
TRANSIENT = 3
# Allocator overhead: malloc cannot reuse every gap, least of all between several passes. These factors, and what a
# process takes for its first step (compiled kernels, thread buffers), are upper bounds of measurements: docs/log.md.
SLACK = {"cpu": 1.6}
ACCELERATOR_SLACK = 1.2
SPLIT = 1.4
FIRST_STEP = 64 * 2**20
# Recomputed at one time under checkpointing, as a share of all activations: the first stage of a ResNet-50 is the
# largest.
RECOMPUTED = 0.25


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """Peak memory of a training step in bytes, beyond what the process already uses."""

    fixed: int  # parameters, gradients, optimizer state, average; the batch; converted weights
    image: int  # activations of one image of a pass
    share: int  # images of a batch on one device

    def activations(self, micro: int) -> int:
        """Of a pass of this many images."""
        return int(micro * self.image * (SPLIT if micro < self.share else 1))

    def total(self, micro: int) -> int:
        """Of a whole step with passes of this many images."""
        return self.fixed + self.activations(micro)

    def largest_micro(self, free: float) -> int:
        """The largest pass that fits, found by halving the share: so a little more or less free memory gives the same
        answer. At least one image."""
        micro, passes = self.share, 1
        while micro > 1 and self.total(micro) > free:
            passes *= 2
            micro = math.ceil(self.share / passes)
        return micro


def estimate_memory(state: TrainState, *, workers: int = 0) -> MemoryNeed:
    """Peak memory of a step, from the activations that two tiny forward passes save. An upper bound: docs/log.md."""
    recipe, model = state.recipe, state.model
    y, x = pair(model.config.size)
    largest = max([y * x, *(size * size for _, size in recipe.sizes)])
    views = recipe.views
    (first, _), (second, largest_tensor) = (_activations(state, images * views) for images in (1, 2))
    slack = SLACK.get(state.device.type, ACCELERATOR_SLACK)
    image = int(slack * (second - first + TRANSIENT * largest_tensor // 2) * largest / (y * x) / views)
    trainable = sum(_bytes(p) for p in state.trainable)
    values = model.config.channels * largest * recipe.batch // state.processes.size
    # this batch and the next one in float32, and its bytes; a worker prepares two batches of bytes ahead
    batch = values * (4 + 4 + 1 + 2 * workers)
    # gradients, and a copy of the trained parameters on steps that log the norm of their update
    held = sum(map(_bytes, checkpoint.state_tensors(state.objective, state.optimizer, state.average).values()))
    fixed = FIRST_STEP + held + 2 * trainable + max(0, 2 * first - second) + batch
    return MemoryNeed(fixed=fixed, image=image, share=recipe.batch // state.processes.size)


def select_micro(need: MemoryNeed, free: int, device: torch.device, *, asked: int | None) -> int:
    """Images per pass: what was asked for, or as many as fit. Refuses what does not fit."""
    best = need.largest_micro(SHARE.get(device.type, ACCELERATOR_SHARE) * free)
    micro = min(asked or best, need.share)
    if need.total(micro) <= free:
        return micro
    available = f"{free / 2**20:,.0f} MiB are free"
    if need.total(best) <= free:
        raise ValueError(
            f"A step in passes of micro={asked} images takes up to {need.total(micro) / 2**20:,.0f} MiB of memory, and "
            f"{available}: --set micro={best}, or --set micro=none to choose it automatically."
        )
    raise ValueError(
        f"Even in passes of one image a step takes up to {need.total(1) / 2**20:,.0f} MiB of memory, "
        f"{need.fixed / 2**20:,.0f} of them for parameters, optimizer and a batch of {need.share:,} images, "
        f"and {available}: --set batch={max(1, need.share // 4)}, a smaller --size, or a smaller model."
    )


def _bytes(tensor: Tensor) -> int:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.numel() * local.element_size()


def _activations(state: TrainState, images: int) -> tuple[int, int]:
    """Bytes that autograd saves in a forward pass, and the largest tensor among them."""
    model = state.model
    saved = _saved(state, images)
    if not model.checkpointing:
        return saved
    model.checkpointing = False
    try:
        everything = _saved(state, images)
    finally:
        model.checkpointing = True
    if state.device.type == "cpu":  # measured: malloc keeps fragments, so checkpointing saves little
        return everything
    return saved[0] + int(RECOMPUTED * everything[0]), everything[1]


def _saved(state: TrainState, images: int) -> tuple[int, int]:
    c = state.model.config
    blank = torch.zeros(images, c.channels, *pair(c.size), device=state.device)
    labels = torch.zeros(images, dtype=torch.long, device=state.device)
    if isinstance(state.objective, DenseObjective):
        labels = state.objective.blank_labels(images, state.device)
    saved = SavedForBackward([full_tensor(p) for p in state.params.values()])
    # a compiled model would be compiled for these two sizes
    eager: Any = torch.compiler.set_stance("force_eager") if state.recipe.compile else nullcontext()
    with eager, saved_tensors_hooks(saved.pack, saved.unpack):
        state.forward(blank, labels, step=0)
    reshard(state.objective)
    return saved.bytes, saved.largest
