"""Refuses a run that cannot work, before anything is written."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sightline.data.datasets import Dataset
from sightline.data.targets.view import check_augment, with_targets
from sightline.models.bit import BiT
from sightline.models.checks import pair
from sightline.models.construct import Model, change
from sightline.models.mixer import refuse_other_grid
from sightline.spec import ImageSpec
from sightline.training.parallel import ProcessGroup
from sightline.training.preflight.execution import find_compiler, survives_bfloat16
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
    if recipe.dense:
        check_targets(train, recipe, val=val, processes=processes)
    if val is not None:
        check_val(train, val, labeled=recipe.task == "classify")
    elif recipe.patience is not None:
        raise ValueError(f"patience={recipe.patience} needs validation data, and there is none.")
    if val is not None and recipe.patience is not None and recipe.task == "lejepa" and not has_labels(val):
        raise ValueError(
            f"patience={recipe.patience} waits for neighbors of the same class, and {val.name} has no classes: "
            "--set patience=none."
        )
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
    if recipe.precision == "bfloat16" and next(model.parameters()).device.type == "cpu" and not survives_bfloat16():
        raise ValueError(
            "A product in bfloat16 kills the process on this CPU, which announces instructions that do not work here: "
            "--set precision=float32."
        )
    for _, size in recipe.sizes:
        # refuses sizes that are not multiples of the patch size, and another number of patches for a Mixer
        refuse_other_grid(model.config, change(model.config, size=pair(size)))
    if processes.sharded and recipe.sizes:
        raise ValueError("Progressive resolution (sizes) does not work with --parallel fsdp: use ddp, or one size.")
    check_task(recipe, processes)
    return plan


def check_task(recipe: Recipe, processes: ProcessGroup) -> None:
    """Refuse settings that make no sense for learning without labels."""
    if recipe.task == "classify":
        return
    if recipe.sizes:
        raise ValueError(f"Progressive resolution (sizes) is for task=classify; this recipe is for {recipe.task}.")
    if recipe.task == "lejepa":
        check_views(recipe, processes)
    elif recipe.task in ("masked", "mae") and recipe.augment.cutmix:
        raise ValueError(
            f"CutMix pastes parts of other images, which nothing around a hidden patch can predict: "
            f"--set augment.cutmix=0 for task={recipe.task}."
        )


def check_views(recipe: Recipe, processes: ProcessGroup) -> None:
    """LeJEPA needs every view of an image in one process, and the whole batch in one pass."""
    if recipe.views < 2:
        raise ValueError(
            "LeJEPA compares several views of an image, and augment.repeats=1 makes one: --set augment.repeats=2, or "
            "--recipe laptop_lejepa."
        )
    if not recipe.augment.varies:
        raise ValueError(
            "LeJEPA compares different views of an image, and with this augmentation they are all the same: "
            '--set "augment.crop_area=(0.2,1)", or --recipe laptop_lejepa.'
        )
    if recipe.augment.mixes:
        name = "mixup" if recipe.augment.mixup else "cutmix"
        raise ValueError(
            f"augment.{name} mixes images, and LeJEPA asks which views show the same one: --set augment.{name}=0."
        )
    unit = recipe.views * processes.size
    if recipe.batch % unit:
        each = f" on {processes.size} processes" if processes.size > 1 else ""
        raise ValueError(
            f"batch={recipe.batch} counts views, and {recipe.views} of each image{each} take a multiple of {unit}: "
            f"--set batch={max(1, recipe.batch // unit) * unit}."
        )
    if recipe.micro is not None and recipe.micro < recipe.batch // processes.size:
        raise ValueError(
            f"micro={recipe.micro}: SIGReg is a statistic of the whole batch, which passes of a part of it would "
            f"change: --set micro=none, or a smaller --set batch."
        )


def check_schedule(plan: Plan, recipe: Recipe, images: int, processes: ProcessGroup) -> None:
    if plan.steps < 1:
        raise ValueError(
            f"epochs={recipe.epochs} of {images:,} images in batches of {recipe.batch} make no optimizer step: "
            "give more epochs, or a smaller batch."
        )
    if recipe.batch > images * recipe.views and not recipe.repeat:
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
    if recipe.lookahead is not None and recipe.lookahead > plan.steps:
        raise ValueError(
            f"lookahead={recipe.lookahead} never happens in {plan.steps:,} steps: give a smaller one, or "
            "--set lookahead=none."
        )
    if plan.stages and plan.stages[-1][0] >= plan.steps:
        raise ValueError(f"sizes={recipe.sizes}: {plan.steps:,} steps end before the last size starts.")
    if recipe.decay == "staircase" and recipe.milestones and recipe.milestones[0] >= plan.steps:
        raise ValueError(f"The first milestone ({recipe.milestones[0]:,}) comes after the last step ({plan.steps:,}).")


def check_labels(model: Model, train: Dataset, recipe: Recipe) -> None:
    names, known = tuple(train.classes), getattr(model, "class_names", None)
    if (train.labels == train.labels[0]).all():
        only = [names[i] for i in np.flatnonzero(train.labels[0])] if train.labels.ndim == 2 else names[train.labels[0]]
        raise ValueError(
            f"All {len(train):,} images of {train.name} have the label {only!r}: there is nothing to learn. "
            "In a folder, every class has a folder of its own, such as photos/cat and photos/dog."
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


def has_labels(data: Dataset) -> bool:
    """Whether each image has one label, and not all the same."""
    return data.labels.ndim == 1 and len(set(data.labels.tolist())) > 1


def check_targets(train: Dataset, recipe: Recipe, *, val: Dataset | None, processes: ProcessGroup) -> None:
    """Refuse data, settings and processes that a dense task cannot use."""
    masks = with_targets(train)
    if recipe.task == "detect" and not masks.instances:
        raise ValueError(
            f"{train.name} has classes of pixels but tells no objects apart: --task segment, or give masks of objects."
        )
    if train.labels.ndim == 2 and not train.labels.any():  # COCO's files say of each image which classes are in it
        raise ValueError(f"{train.name} has no object in any of its {len(train):,} images: there is nothing to learn.")
    if val is not None and with_targets(val).object_classes != masks.object_classes:
        raise ValueError(
            f"Training and validation data have different classes of objects ({len(masks.object_classes)} and "
            f"{len(with_targets(val).object_classes)})."
        )
    check_augment(recipe.augment)
    if processes.sharded:
        raise ValueError(f"task={recipe.task} does not work with --parallel fsdp: use ddp.")


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


def check_disk(folder: Path, plan: Plan, model: Model, *, kept: int = 0, free: int | None = None) -> None:
    """Three states (the last two stay until a new one is complete) and three copies of the weights must fit, and those
    that are kept along the way."""
    weights = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    need = 3 * plan.state_bytes + (3 + kept) * weights
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free if free is None else free
    if need > free:
        raise ValueError(
            f"The checkpoints of this run need {need / 2**20:,.0f} MiB, and {folder} has {free / 2**20:,.0f} free: "
            "give another --out, or free some space."
        )
