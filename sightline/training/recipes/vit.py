"""Recipes for Vision Transformers: pre-training, fine-tuning, masked prediction, DeiT."""

import difflib
import fnmatch
from dataclasses import dataclass
from typing import Any

from sightline.data.augment.augment import Augment
from sightline.training.recipe import Recipe
from sightline.training.recipes.hyperrule import LARGE, SMALL
from sightline.training.recipes.upstream import I1K, I21K, JFT, SEVERAL_LABELS


@dataclass(frozen=True)
class PretrainingRow:
    """One row of the ViT paper's table 3."""

    models: tuple[str, ...]
    data: str
    epochs: tuple[int, ...]
    lr: float


# ViT, table 3: batch 4096, warm-up of 10,000 steps, 224 px, Adam (0.9, 0.999)
TABLE_3 = (
    PretrainingRow(("vit-b16", "vit-b32"), JFT, (7,), 8e-4),
    PretrainingRow(("vit-l32",), JFT, (7,), 6e-4),
    PretrainingRow(("vit-l16",), JFT, (7, 14), 4e-4),
    PretrainingRow(("vit-h14",), JFT, (14,), 3e-4),
    PretrainingRow(("bit-r50x1", "bit-r50x2"), JFT, (7,), 1e-3),
    PretrainingRow(("bit-r101x1",), JFT, (7,), 8e-4),
    PretrainingRow(("bit-r152x1", "bit-r152x2"), JFT, (7,), 6e-4),
    PretrainingRow(("r50-vit-b16", "r50-vit-b32"), JFT, (7,), 8e-4),
    PretrainingRow(("r50-vit-l32",), JFT, (7,), 2e-4),
    PretrainingRow(("r50-vit-l16",), JFT, (7, 14), 4e-4),
    PretrainingRow(("vit-b16", "vit-b32"), I21K, (90,), 1e-3),
    PretrainingRow(("vit-l16", "vit-l32"), I21K, (30, 90), 1e-3),
    PretrainingRow(("vit-*",), I1K, (300,), 3e-3),
)
REGULARIZED: dict[str, dict[str, Any]] = {  # table 3: weight decay, dropout, decay of the rate
    JFT: {"weight_decay": 0.1, "dropout": 0.0, "decay": "linear", "end_lr": 1e-5},  # the code ends linear at 1e-5
    I21K: {"weight_decay": 0.03, "dropout": 0.1, "decay": "linear", "end_lr": 1e-5},
    I1K: {"weight_decay": 0.3, "dropout": 0.1, "decay": "cosine", "clip": 1.0},  # and clipping, B.1
}
# ViT, table 4: steps, learning rates to try, share of the training data to select on
TABLE_4: dict[str, tuple[int, tuple[float, ...], float]] = {
    "imagenet": (20_000, (0.003, 0.01, 0.03, 0.06), 0.01),
    "cifar100": (10_000, (0.001, 0.003, 0.01, 0.03), 0.02),
    "cifar10": (10_000, (0.001, 0.003, 0.01, 0.03), 0.02),
    "pets": (500, (0.001, 0.003, 0.01, 0.03), 0.1),
    "flowers102": (500, (0.001, 0.003, 0.01, 0.03), 0.1),
    "vtab": (2_500, (0.01,), 0.2),
}


def vit_pretrain(model: str, data: str, *, epochs: int | None = None) -> Recipe:
    """ViT pre-training (Dosovitskiy et al. 2020, table 3), one row per model and data: jft, imagenet21k or imagenet.

        sightline train imagenet --model vit-b16 --with head=mlp --recipe vit_pretrain

    The weight decay is decoupled and scales with the rate (p -= lr * wd * p). Where the table gives two durations, the
    longer one, unless `epochs` selects the other. `--with head=mlp` gives the model its pre-training head.
    Expected on ImageNet after `vit_finetune` at 384 px (table 5): B/16 77.91 % from imagenet, 83.97 % from imagenet21k,
    84.15 % from jft; H/14 88.04 % from jft. Time: 230 TPUv3-core-days for L/16 on imagenet21k, 2,500 for H/14 on jft
    (table 2).

    >>> r = sl.recipes.vit_pretrain("vit-l16", "imagenet21k")
    >>> r.epochs, r.lr, r.weight_decay, r.dropout
    (90, 0.001, 0.03, 0.1)
    """
    row = _row(model, data)
    if epochs is not None and epochs not in row.epochs:
        raise ValueError(
            f"Table 3 trains {model} on {data} for {_or(row.epochs)} epochs; got {epochs}. Try --set epochs=N."
        )
    return Recipe(
        name="vit_pretrain",
        lr=row.lr,
        batch=4096,
        epochs=epochs or max(row.epochs),
        warmup=10_000,
        size=224,
        **_without_dropout(model, REGULARIZED[data]),
        **({} if data == I1K else SEVERAL_LABELS),
    )


def _without_dropout(model: str, settings: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in settings.items() if not (k == "dropout" and model.startswith("bit-"))}


def _row(model: str, data: str) -> PretrainingRow:
    for row in TABLE_3:
        if data == row.data and any(fnmatch.fnmatchcase(model, name) for name in row.models):
            return row
    pairs = {f"{name} on {row.data}": None for row in TABLE_3 for name in row.models}
    near = difflib.get_close_matches(f"{model} on {data}", pairs, n=3, cutoff=0.0)
    raise ValueError(f"Table 3 of the ViT paper has no row for {model} on {data}; the nearest are {', '.join(near)}.")


def vit_finetune(
    data: str | None = None,
    *,
    num_images: int | None = None,
    steps: int | None = None,
    lr: float = 0.01,
    size: int = 384,
    polyak: bool = False,
) -> Recipe:
    """ViT fine-tuning (Dosovitskiy et al. 2020, table 4): SGD 0.9, batch 512, cosine, clip 1, no decay, zero head.

        sightline tune cifar10 --model vit-b16.i21k --recipe vit_finetune --set lr=0.03

    The steps are the table's for the data it lists; for other data 500, 10,000 or 20,000 by `num_images`, the rule that
    the table follows. The rate is the one in every row; `vit_finetune_grid` returns all that the paper tries. Warm-up
    as in the released code: 500 steps, in short trainings a fifth. `polyak` averages with decay 0.9999, as table 2 does
    on ImageNet at 512 px (L/16) and 518 px (H/14). Images are flipped and cropped to 5 to 100 % of their area.
    Expected: 98.95 % on CIFAR-10, 83.97 % on ImageNet (table 5, B/16, imagenet21k); in 500 steps 98.59 % on CIFAR-10
    (README of the released code). Time: not reported.

    >>> r = sl.recipes.vit_finetune("pets")
    >>> r.steps, r.warmup, r.batch, r.size, r.clip
    (500, 100, 512, 384, 1.0)
    """
    steps = steps or _finetuning_steps(data, num_images)
    return Recipe(
        name="vit_finetune",
        optimizer="sgd",
        lr=lr,
        batch=512,
        steps=steps,
        warmup=min(500, steps // 5),
        decay="cosine",
        clip=1.0,
        ema=0.9999 if polyak else None,
        size=size,
        repeat=True,
    )


def _finetuning_steps(data: str | None, num_images: int | None) -> int:
    if data in TABLE_4:
        return TABLE_4[data][0]
    if num_images is not None:
        return 500 if num_images < SMALL else 10_000 if num_images < LARGE else 20_000
    if data is None:
        return 10_000
    near = difflib.get_close_matches(data, TABLE_4, n=3, cutoff=0.4) or list(TABLE_4)
    raise ValueError(
        f"Table 4 of the ViT paper has no row for {data}: did you mean {_or(near)}? Otherwise give num_images."
    )


def vit_finetune_grid(data: str, **settings: Any) -> tuple[Recipe, ...]:
    """One `vit_finetune` for every learning rate that table 4 tries. The paper selects the best on a held-out share of
    the training data (the last entry of `TABLE_4[data]`), then trains on all of it.

    >>> [r.lr for r in sl.recipes.vit_finetune_grid("imagenet")]
    [0.003, 0.01, 0.03, 0.06]
    """
    _finetuning_steps(data, None)
    return tuple(vit_finetune(data, lr=lr, **settings) for lr in TABLE_4[data][1])


def vit_masked(*, steps: int = 1_000_000, target: str = "color") -> Recipe:
    """Masked patch prediction (Dosovitskiy et al. 2020, B.1.2): half of the patches corrupted, their color predicted.

        sightline train jft --model vit-b16 --recipe vit_masked

    Adam, rate 2e-4, batch 4096, warm-up of 10,000 steps, cosine; the paper names no weight decay, so there is none.
    Expected: 79.9 % on ImageNet after fine-tuning, 2 points above no pre-training, 4 below a supervised one (section
    4.6). Most of the gain comes in the first 100,000 steps. Time: not reported.

    >>> r = sl.recipes.vit_masked(steps=100_000)
    >>> r.task, r.corrupt, r.target
    ('masked', 0.5, 'color')
    """
    return Recipe(
        name="vit_masked",
        task="masked",
        lr=2e-4,
        batch=4096,
        steps=steps,
        warmup=10_000,
        size=224,
        target=target,  # type: ignore[arg-type]
    )


def mae_pretrain(*, epochs: int = 800) -> Recipe:
    """Masked autoencoder (He et al. 2021, table 8): three quarters of the patches hidden, their pixels predicted.

        sightline train imagenet --model vit-b16 --recipe mae_pretrain

    AdamW (0.9, 0.95), rate 1.5e-4 x batch / 256, decay 0.05, batch 4096, warm-up of 40 epochs, crops of 20 to 100 %,
    decoder of width 512 and depth 8. Expected: 83.6 % on ImageNet after 1,600 epochs and fine-tuning (B/16).

    >>> r = sl.recipes.mae_pretrain()
    >>> r.lr, r.warmup, r.corrupt, r.decoder
    (0.0024, 0.05, 0.75, (512, 8))
    """
    return Recipe(
        name="mae_pretrain",
        task="mae",
        lr=1.5e-4 * 4096 / 256,
        batch=4096,
        epochs=epochs,
        warmup=40 / epochs,
        betas=(0.9, 0.95),
        weight_decay=0.05,
        size=224,
        augment=Augment(crop_area=(0.2, 1.0)),
        corrupt=0.75,
        decoder=(512, 8),
    )


def vit_s16_baseline(*, epochs: int = 90) -> Recipe:
    """The plain ViT-S/16 baseline on ImageNet (Beyer et al. 2022): 90 epochs, no tricks.

        sightline train imagenet --model vit-s16 --with pool=gap --with position=sincos --recipe vit_s16_baseline

    AdamW 1e-3, batch 1024, warm-up of 10,000 steps, cosine, clip 1, RandAugment (2, 10), mixup 0.2. The weight decay
    of 1e-4 is big_vision's, which is independent of the peak rate: torch would call it 0.1.
    Expected: 76.5 % in 90 epochs, 80 % in 300; 6 to 7 hours on a TPUv3-8 for 90 (big_vision, vit_s16_i1k.py).

    >>> r = sl.recipes.vit_s16_baseline()
    >>> r.weight_decay, r.decay_rule, r.warmup
    (0.0001, 'schedule', 10000)
    """
    return Recipe(
        name="vit_s16_baseline",
        lr=1e-3,
        batch=1024,
        epochs=epochs,
        warmup=10_000,
        weight_decay=1e-4,
        decay_rule="schedule",
        clip=1.0,
        size=224,
        augment=Augment(randaugment=(2, 10), mixup=0.2),
    )


def deit(*, epochs: int = 300, batch: int = 1024) -> Recipe:
    """DeiT's strong augmentation without distillation (Touvron et al. 2020, table 9).

        sightline train imagenet --model vit-s16 --recipe deit

    AdamW, rate 5e-4 x batch / 512, decay 0.05, five epochs of warm-up, cosine to 1e-5, label smoothing 0.1, stochastic
    depth 0.1, RandAugment (2, 9), mixup 0.8, cutmix 1.0, erasing 0.25, each image three times.
    Expected on ImageNet: Ti 72.2 %, S 79.9 %, B 81.8 % (README of deit). Time: two days on eight V100 for B.

    >>> r = sl.recipes.deit()
    >>> r.lr, r.augment.mixup, r.augment.cutmix, r.augment.repeats
    (0.001, 0.8, 1.0, 3)
    """
    return Recipe(
        name="deit",
        lr=5e-4 * batch / 512,
        batch=batch,
        epochs=epochs,
        warmup=5 / epochs,
        end_lr=1e-5,
        weight_decay=0.05,
        smoothing=0.1,
        drop_path=0.1,
        size=224,
        augment=Augment(crop_area=(0.08, 1.0), randaugment=(2, 9), erase=0.25, mixup=0.8, cutmix=1.0, repeats=3),
    )


def _or(choices: Any) -> str:
    return " or ".join(map(str, choices))
