"""Before step 1: what the run will be, what it will cost, and a refusal of what silently fails elsewhere."""

import math
import os
import shutil
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from sightline.data.arrays import Arrays
from sightline.data.datasets import Dataset
from sightline.data.draws import Ints
from sightline.data.folder import Files
from sightline.data.scenes.scenes import Scenes
from sightline.data.shards.read import Shards
from sightline.models.checks import pair
from sightline.models.construct import Model, change
from sightline.spec import ImageSpec
from sightline.training import memory, optim
from sightline.training.parallel import World
from sightline.training.recipe import Recipe
from sightline.training.train_state import TrainState


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The run in numbers. Sizes in bytes, times in seconds; what a trial step measured is None where none was made."""

    steps: int
    epoch_steps: int
    epochs: float
    batch: int
    micro: int  # images of one forward pass on one device
    passes: int  # forward passes of one device for one step
    warmup: int
    warmup_share: float
    stages: tuple[tuple[int, int], ...]  # (first step, size in pixels) of progressive resolution
    eval_every: int
    save_every: int
    parameters: int = 0
    learning: int = 0
    groups: tuple[dict[str, Any], ...] = ()
    state_bytes: int = 0
    activation_bytes: int = 0  # of one pass, at most
    memory_bytes: int = 0  # of all that a step takes, at most
    free_bytes: int = 0  # on the device, before the first step
    step_seconds: float | None = None
    loader_images_per_second: float | None = None
    model_images_per_second: float | None = None

    def stage(self, step: int) -> tuple[int | None, int]:
        """The size at a step (None: the model's own) and the step at which the next size begins."""
        size, until = None, self.steps
        for first, pixels in self.stages:
            if first <= step:
                size = pixels
            else:
                until = min(until, first)
        return size, until

    def with_micro(self, micro: int | None, world: World) -> "Plan":
        """With passes of so many images; None: all that a device has of a batch."""
        share = self.batch // world.size
        micro = min(micro or share, share)
        return replace(self, micro=micro, passes=math.ceil(share / micro) if share else 0)

    def lines(self) -> Iterator[str]:
        """For people, before anything was tried."""
        yield (
            f"{self.steps:,} steps of {self.batch:,} images: {self.epochs:.4g} epochs of {self.epoch_steps:,} steps; "
            f"{self.passes} pass{'es' if self.passes > 1 else ''} a step"
        )
        yield f"warm-up {self.warmup:,} steps ({self.warmup_share:.1%} of training)"
        for g in self.groups:
            count = f"{g['tensors']} tensors, {g['parameters']:,} parameters"
            yield f"{count} at {g['scale']:g} x the rate, decay {g['decay']:g}"
        if self.learning < self.parameters:
            yield f"{self.parameters - self.learning:,} of {self.parameters:,} parameters are frozen"
        yield (
            f"memory: at most about {self.memory_bytes / 2**20:,.0f} MiB of {self.free_bytes / 2**20:,.0f} free, "
            f"{self.activation_bytes / 2**20:,.0f} of them activations of a pass of {self.micro:,} images (micro)"
        )

    def measured(self) -> Iterator[str]:
        """What the trial found, for people."""
        if self.step_seconds is not None:
            yield (
                f"a step takes about {self.step_seconds:.3g} s: {_hours(self.step_seconds * self.steps)} in all, "
                f"evaluation apart"
            )
            yield (
                f"the loader makes {self.loader_images_per_second:,.0f} images/s, the model takes "
                f"{self.model_images_per_second:,.0f}"
            )


def planned(recipe: Recipe, images: int, world: World) -> Plan:
    """The arithmetic of a run."""
    steps, warmup = recipe.total(images), recipe.warmup_steps(images)
    tenth = max(1, math.ceil(steps / 10))
    plan = Plan(
        steps=steps,
        epoch_steps=recipe.epoch_steps(images),
        epochs=steps * recipe.batch / images,
        batch=recipe.batch,
        micro=0,
        passes=0,
        warmup=warmup,
        warmup_share=warmup / steps if steps else math.inf,
        stages=tuple((round(s * steps), size) for s, size in recipe.sizes),
        eval_every=recipe.eval_every or tenth,
        save_every=recipe.save_every or tenth,
    )
    return plan.with_micro(recipe.micro, world)


def check(
    model: Model, train: Dataset, recipe: Recipe, *, val: Dataset | None, world: World, evals: Sequence[Any] = ()
) -> Plan:
    """Refuse what cannot be meant; give the plan of what can."""
    for data in (train, val):
        if data is not None and not len(data):
            raise ValueError(f"{data.name} holds no images.")
    plan = planned(recipe, len(train), world)
    check_time(plan, recipe, len(train), world)
    if recipe.task == "classify":
        check_labels(model, train, recipe)
    if val is not None:
        check_val(train, val, labeled=recipe.task == "classify")
    elif recipe.patience is not None:
        raise ValueError(f"patience={recipe.patience} stops a run by its validation, and there is no validation data.")
    for one in evals:
        if not (isinstance(one, tuple | list) and len(one) == 2 and isinstance(one[0], int) and one[0] > 0):
            raise ValueError(f"evals are pairs (every so many steps, function of the model); got {one!r}.")
    check_images(model)
    for _, size in recipe.sizes:
        change(model.config, size=pair(size))  # the configuration refuses sizes that its patches do not divide
    if world.sharded and recipe.sizes:
        raise ValueError("Progressive resolution (sizes) does not go with --parallel fsdp: use ddp, or one size.")
    if recipe.task != "classify" and recipe.sizes:
        raise ValueError(f"Progressive resolution (sizes) is for task=classify; this recipe is for {recipe.task}.")
    return plan


def check_time(plan: Plan, recipe: Recipe, images: int, world: World) -> None:
    if plan.steps < 1:
        raise ValueError(
            f"epochs={recipe.epochs} of {images:,} images in batches of {recipe.batch} make no optimizer step: "
            "give more epochs, or a smaller batch."
        )
    if recipe.batch > images and not recipe.repeat:
        raise ValueError(
            f"One step takes batch={recipe.batch} images ({plan.passes} passes accumulated), but the training data "
            f"has only {images:,}: --set batch={2 ** int(math.log2(images))}, or --set repeat=true to see images "
            "several times in a batch."
        )
    if plan.warmup >= plan.steps:
        raise ValueError(
            f"The warm-up of {plan.warmup:,} steps is as long as the training of {plan.steps:,}: --set warmup=0.1 "
            "makes it a tenth."
        )
    if recipe.batch % world.size:
        raise ValueError(f"batch={recipe.batch} cannot be shared evenly by {world.size} processes.")
    if plan.stages and plan.stages[-1][0] >= plan.steps:
        raise ValueError(f"sizes={recipe.sizes}: {plan.steps:,} steps end before the last size is reached.")
    if recipe.decay == "staircase" and recipe.milestones and recipe.milestones[0] >= plan.steps:
        raise ValueError(f"The first milestone ({recipe.milestones[0]:,}) lies behind the last step ({plan.steps:,}).")


def check_labels(model: Model, train: Dataset, recipe: Recipe) -> None:
    names, known = tuple(train.classes), getattr(model, "class_names", None)
    if (train.labels == train.labels[0]).all():
        only = [names[i] for i in np.flatnonzero(train.labels[0])] if train.labels.ndim == 2 else names[train.labels[0]]
        raise ValueError(
            f"All {len(train):,} images of {train.name} have the label {only!r}: there is nothing to learn."
        )
    if model.config.classes != len(names):
        raise ValueError(
            f"The model has {model.config.classes} classes, {train.name} has {len(names)}: give it a new head, "
            f"sl.load(..., classes=data.classes) or sl.build(..., classes={len(names)}); sightline tune does."
        )
    if known is not None and tuple(known) != names:
        i = next(i for i, (a, b) in enumerate(zip(known, names)) if a != b)
        raise ValueError(
            f"The model calls class {i} {known[i]!r}, {train.name} calls it {names[i]!r}: give it a new head with "
            "sl.load(..., classes=data.classes)."
        )
    if train.labels.ndim == 2 and recipe.loss == "softmax":
        raise ValueError(f"{train.name} has several labels per image, which need --set loss=sigmoid.")


def check_val(train: Dataset, val: Dataset, *, labeled: bool = True) -> None:
    if labeled and tuple(val.classes) != tuple(train.classes):
        raise ValueError(
            f"Training and validation data have different classes ({len(train.classes)} and {len(val.classes)}, such "
            f"as {sorted(set(train.classes) ^ set(val.classes))[:3] or 'in another order'})."
        )
    if both := overlap(train, val):
        raise ValueError(
            f"{both:,} of the {len(val):,} validation images are also training images: split with "
            "train, val = data.split(0.9)."
        )


def overlap(train: Dataset, val: Dataset) -> int:
    """How many validation images are training images: by number in one source, by file, or by their very pixels.

    A published test set may hold a few twins of training images (CIFAR-10's does); by pixels, up to one in a hundred
    is let pass.
    """
    (source, mine), (other, theirs) = train.origins(), val.origins()
    if source is other:
        return int(np.isin(theirs, mine).sum())
    known, asked = _places(source, mine), _places(other, theirs)
    if known is not None and asked is not None:
        return len(set(known) & set(asked))
    if isinstance(source, Arrays) and isinstance(other, Arrays):
        seen = {hash(source.stack[i].tobytes()) for i in mine}
        both = sum(hash(other.stack[i].tobytes()) in seen for i in theirs)
        return both if both > 0.01 * len(val) else 0
    return len(val) if train.fingerprint() == val.fingerprint() else 0


def _places(source: Dataset, numbers: Ints) -> list[Hashable] | None:
    """Where each image comes from, such that the same place means the same image; None where nobody can tell."""
    match source:
        case Files():
            return [os.path.realpath(source.paths[i]) for i in numbers]
        case Shards():
            paths = [os.path.realpath(path) for path in source.paths]
            return [(paths[int(source.shard[i])], int(source.offset[i])) for i in numbers]
        case Scenes():
            return [(source.task, source.split_name, source.seed, int(i)) for i in numbers]
        case _:
            return None


def check_images(model: Model) -> None:
    made: ImageSpec | None = getattr(model, "prepared", None)
    image = model.image
    if made is not None and (made.mean, made.std) != (image.mean, image.std):
        raise ValueError(
            f"The weights were made with images normalized by mean {made.mean}, std {made.std}; here it is "
            f"{image.mean}, {image.std}: leave image= out of sl.load, or train from scratch with sl.build."
        )


def check_disk(folder: Path, plan: Plan, model: Model, free: int | None = None) -> None:
    """State twice (the old one stays until the new one is complete) and the weights three times must fit."""
    weights = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    need = 2 * plan.state_bytes + 3 * weights
    there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free if free is None else free
    if need > free:
        raise ValueError(
            f"The checkpoints of this run need {need / 2**20:,.0f} MiB, and {folder} has {free / 2**20:,.0f} free: "
            "give another --out, or make room."
        )


def sized(state: TrainState, plan: Plan, *, workers: int = 0, free: int | None = None) -> Plan:
    """The plan with what learns, the memory that a step takes, and passes that fit into what is free."""
    recipe, world = state.recipe, state.world
    with unchanged(state):
        need = memory.need(state, workers=workers)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world.size))
    free = int(world.least(memory.free(state.device, here=here) if free is None else free))
    micro = memory.chosen(need, free, state.device, asked=recipe.micro)
    if micro < need.share and recipe.micro is None and any(isinstance(m, _BatchNorm) for m in state.task.modules()):
        raise ValueError(
            f"A batch of {need.share:,} images does not fit into memory, and BatchNorm's statistics are those of a "
            f"pass, so smaller passes change the result: --set micro={micro} if that is meant, or --set batch={micro}."
        )
    plan = plan.with_micro(micro, world)
    parts, sizes = optim.groups(state.task, recipe), {n: p.numel() for n, p in state.params.items()}
    return replace(
        plan,
        parameters=sum(sizes.values()),
        learning=sum(sizes[n] for g in parts for n in g.names),
        groups=tuple(
            {
                "scale": g.scale,
                "decay": g.weight_decay,
                "tensors": len(g.names),
                "parameters": sum(sizes[n] for n in g.names),
            }
            for g in parts
        ),
        state_bytes=state.bytes(),
        activation_bytes=need.activations(plan.micro),
        memory_bytes=need.at(plan.micro),
        free_bytes=free,
    )


def trial(state: TrainState, train: Dataset, plan: Plan, *, workers: int = 0) -> Plan:
    """The plan with what one real pass costs, measured: the model and its random numbers are left as they were."""
    recipe, world, model = state.recipe, state.world, state.model
    spec = replace(model.image, size=pair(model.config.size))
    batches = train.batches(
        spec, batch=recipe.batch, train=recipe.augment, seed=recipe.seed, rank=world.rank, world=world.size,
        device=state.device,
    )  # fmt: skip
    start = time.perf_counter()
    images, labels = next(iter(batches))
    made, few = time.perf_counter() - start, slice(plan.micro)
    with unchanged(state):
        took = _seconds(state, images[few], labels[few])
        if world.any(took < 1):  # the first pass also fills caches; a long one need not be made again
            took = _seconds(state, images[few], labels[few])
    took *= len(images) / len(images[few])
    return replace(
        plan,
        step_seconds=max(took, made / max(1, workers)) if workers else took + made,
        loader_images_per_second=len(images) * max(1, workers) / made,
        model_images_per_second=len(images) / took,
    )


def _seconds(state: TrainState, images: Tensor, labels: Tensor) -> float:
    start = time.perf_counter()
    state.backward(images, labels, step=0)
    return time.perf_counter() - start


@contextmanager
def unchanged(state: TrainState) -> Iterator[None]:
    """Whatever is tried meanwhile leaves no gradients and no statistics behind."""
    held = {n: b.clone() for n, b in state.task.named_buffers()}
    try:
        yield
    finally:
        state.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, buffer in state.task.named_buffers():
                buffer.copy_(held[name])


def facts(plan: Plan) -> dict[str, Any]:
    """The plan as JSON takes it."""
    return asdict(plan)


def _hours(seconds: float) -> str:
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds / 86400:.2g} days"
