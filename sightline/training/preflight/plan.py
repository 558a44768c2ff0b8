"""The plan of a run in numbers: steps, passes, memory, time."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from sightline.spec import number
from sightline.training.parallel import ProcessGroup
from sightline.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run in numbers. Sizes are in bytes, times in seconds; speeds are None until a trial pass has measured them."""

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
    trainable: int = 0
    groups: tuple[dict[str, Any], ...] = ()
    compiled: bool = False
    layout: str = "plain"
    state_bytes: int = 0
    activation_bytes: int = 0  # of one pass, upper bound
    memory_bytes: int = 0  # of a whole step, upper bound
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

    def with_micro(self, micro: int | None, processes: ProcessGroup) -> "Plan":
        """The plan with passes of this many images; None: a device's whole share of the batch."""
        share = self.batch // processes.size
        micro = min(micro or share, share)
        return replace(self, micro=micro, passes=math.ceil(share / micro) if share else 0)

    def describe(self) -> Iterator[str]:
        """The plan in sentences, without the measured speeds."""
        passes = f", {self.passes} passes per step" if self.passes > 1 else ""
        steps, images = (
            f"{self.steps:,} step{'s' * (self.steps != 1)}",
            f"{self.batch:,} image{'s' * (self.batch != 1)}",
        )
        yield f"{steps} of {images} ({self.epochs:.3g} epoch{'s' * (self.epochs != 1)}){passes}"
        share = f"{self.warmup:,} step{'s' * (self.warmup > 1)}, {100 * self.warmup_share:.0f} % of the training"
        yield f"warm-up: {share if self.warmup else 'none'}"
        if self.compiled or self.layout != "plain":
            yield ", ".join(
                ["steps compiled (torch.compile)"] * self.compiled
                + ["channels last in memory"] * (self.layout != "plain")
            )
        for g in self.groups:
            count = f"{g['tensors']} tensors, {g['parameters']:,} parameters"
            muon = ", orthogonalized (Muon)" if g.get("orthogonal") else ""
            yield f"{count} at {g['scale']:g} x the learning rate, weight decay {g['decay']:g}{muon}"
        if self.trainable < self.parameters:
            yield f"{self.parameters - self.trainable:,} of {self.parameters:,} parameters are frozen"
        yield (
            f"memory: at most about {self.memory_bytes / 2**20:,.0f} MiB of {self.free_bytes / 2**20:,.0f} free, "
            f"{self.activation_bytes / 2**20:,.0f} of them for activations in a pass of {self.micro:,} images (micro)"
        )

    def describe_speed(self) -> Iterator[str]:
        """The measured speeds in sentences."""
        if self.step_seconds is not None:
            yield (
                f"a step takes about {self.step_seconds:.3g} s: {_duration(self.step_seconds * self.steps)} in total, "
                "without evaluation"
            )
            yield (
                f"the loader prepares {number(self.loader_images_per_second or 0)} images/s, the model trains on "
                f"{number(self.model_images_per_second or 0)}"
            )


def make_plan(recipe: Recipe, images: int, processes: ProcessGroup) -> Plan:
    """The plan of a run on this many training images."""
    steps, warmup = recipe.total_steps(images), recipe.warmup_steps(images)
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
        compiled=recipe.compile,
        layout=recipe.layout,
    )
    return plan.with_micro(recipe.micro, processes)


def _duration(seconds: float) -> str:
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds / 86400:.2g} days"
