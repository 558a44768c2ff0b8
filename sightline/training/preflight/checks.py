"""Refuses a run that cannot work, before anything is written."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sightline.data.datasets import Dataset
from sightline.models.bit import BiT
from sightline.models.checks import pair
from sightline.models.construct import Model, change
from sightline.spec import ImageSpec
from sightline.training.parallel import ProcessGroup
from sightline.training.preflight.execution import find_compiler
from sightline.training.preflight.overlap import count_overlap
from sightline.training.preflight.plan import Plan, make_plan
from sightline.training.recipe import Recipe
from sightline.training.run.trackers import check_tracker


def check_run(
    model: Model,
    train: Dataset,
    recipe: Recipe,
    *,
    val: Dataset | None,
    processes: ProcessGroup,
    evals: Sequence[Any] = (),
) -> Plan:
    """Refuse a run that cannot work; return the plan of one that can."""
    for data in (train, val):
        if data is not None and not len(data):
            raise ValueError(f"{data.name} holds no images.")
    plan = make_plan(recipe, len(train), processes)
    check_schedule(plan, recipe, len(train), processes)
    if recipe.task == "classify":
        check_labels(model, train, recipe)
    if val is not None:
        check_val(train, val, labeled=recipe.task == "classify")
    elif recipe.patience is not None:
        raise ValueError(f"patience={recipe.patience} needs validation data, and there is none.")
    for one in evals:
        if not (isinstance(one, tuple | list) and len(one) == 2 and isinstance(one[0], int) and one[0] > 0):
            raise ValueError(f"evals are pairs (every so many steps, function of the model); got {one!r}.")
    check_normalization(model)
    for name in recipe.trackers:
        check_tracker(name)
    if recipe.layout == "channels-last" and not isinstance(model, BiT):
        raise ValueError(
            f"layout=channels-last is for convolutions; a {type(model).__name__} has tokens: --set layout=plain."
        )
    if recipe.compile and next(model.parameters()).device.type == "cpu":
        check_compiler()
    for _, size in recipe.sizes:
        change(model.config, size=pair(size))  # refuses sizes that are not multiples of the patch size
    if processes.sharded and recipe.sizes:
        raise ValueError("Progressive resolution (sizes) does not work with --parallel fsdp: use ddp, or one size.")
    if recipe.task != "classify" and recipe.augment.cutmix:
        raise ValueError(
            f"CutMix pastes parts of other images, which nothing around a hidden patch can predict: "
            f"--set augment.cutmix=0 for task={recipe.task}."
        )
    if recipe.task != "classify" and recipe.sizes:
        raise ValueError(f"Progressive resolution (sizes) is for task=classify; this recipe is for {recipe.task}.")
    return plan


def check_schedule(plan: Plan, recipe: Recipe, images: int, processes: ProcessGroup) -> None:
    if plan.steps < 1:
        raise ValueError(
            f"epochs={recipe.epochs} of {images:,} images in batches of {recipe.batch} make no optimizer step: "
            "give more epochs, or a smaller batch."
        )
    if recipe.batch > images and not recipe.repeat:
        raise ValueError(
            f"One step takes batch={recipe.batch} images ({plan.passes} passes accumulated), but the training data "
            f"has only {images:,}: --set batch={2 ** int(math.log2(images))}, or --set repeat=true to repeat images "
            "within a batch."
        )
    if plan.warmup >= plan.steps:
        raise ValueError(
            f"The warm-up of {plan.warmup:,} steps is as long as the training of {plan.steps:,}: --set warmup=0.1 "
            "makes it a tenth of training."
        )
    if recipe.batch % processes.size:
        raise ValueError(f"batch={recipe.batch} cannot be split evenly over {processes.size} processes.")
    if plan.stages and plan.stages[-1][0] >= plan.steps:
        raise ValueError(f"sizes={recipe.sizes}: {plan.steps:,} steps end before the last size starts.")
    if recipe.decay == "staircase" and recipe.milestones and recipe.milestones[0] >= plan.steps:
        raise ValueError(f"The first milestone ({recipe.milestones[0]:,}) comes after the last step ({plan.steps:,}).")


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
    if both := count_overlap(train, val):
        raise ValueError(
            f"{both:,} of the {len(val):,} validation images are also training images: split with "
            "train, val = data.split(0.9)."
        )


def check_normalization(model: Model) -> None:
    trained_on: ImageSpec | None = getattr(model, "prepared", None)
    image = model.image
    if trained_on is not None and (trained_on.mean, trained_on.std) != (image.mean, image.std):
        raise ValueError(
            f"The weights were trained on images normalized by mean {trained_on.mean}, std {trained_on.std}; here it "
            f"is {image.mean}, {image.std}: leave image= out of sl.load, or train from scratch with sl.build."
        )


def check_compiler() -> None:
    """torch.compile writes C++ for a CPU, which something has to compile."""
    found, names = find_compiler()
    if found is None:
        raise ValueError(
            f"compile=true needs a C++ compiler, and {' or '.join(names)} is not here: install g++, or "
            "--set compile=false."
        )


def check_disk(folder: Path, plan: Plan, model: Model, free: int | None = None) -> None:
    """Three states (the last two stay until a new one is complete) and three copies of the weights must fit."""
    weights = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    need = 3 * plan.state_bytes + 3 * weights
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free if free is None else free
    if need > free:
        raise ValueError(
            f"The checkpoints of this run need {need / 2**20:,.0f} MiB, and {folder} has {free / 2**20:,.0f} free: "
            "give another --out, or free some space."
        )
