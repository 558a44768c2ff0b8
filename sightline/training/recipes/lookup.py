"""The table of recipes that `--recipe` takes."""

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from sightline.training.recipe import Recipe
from sightline.training.recipes.bit import bit_upstream
from sightline.training.recipes.hyperrule import bit_hyperrule
from sightline.training.recipes.laptop import (
    laptop_bit,
    laptop_dense,
    laptop_lejepa,
    laptop_masked,
    laptop_tune,
    laptop_vit,
)
from sightline.training.recipes.speed import speed_bit, speed_hybrid, speed_vit
from sightline.training.recipes.vit import (
    deit,
    mae_pretrain,
    vit_finetune,
    vit_masked,
    vit_pretrain,
    vit_s16_baseline,
)

CONTEXT = ("model", "data", "num_images", "image_area")
RECIPES: dict[str, Callable[..., Recipe]] = {
    recipe.__name__: recipe
    for recipe in (
        vit_pretrain,
        vit_finetune,
        vit_masked,
        vit_s16_baseline,
        mae_pretrain,
        deit,
        bit_upstream,
        bit_hyperrule,
        laptop_vit,
        laptop_bit,
        laptop_masked,
        laptop_lejepa,
        laptop_dense,
        laptop_tune,
        speed_vit,
        speed_bit,
        speed_hybrid,
    )
}


def names() -> list[str]:
    """The names that `--recipe` takes.

    >>> sl.recipes.names()[:3]
    ['vit_pretrain', 'vit_finetune', 'vit_masked']
    """
    return list(RECIPES)


def about() -> dict[str, str]:
    """The first line of each recipe's docstring, by name.

    >>> sl.recipes.about()["deit"]
    "DeiT's strong augmentation without distillation (Touvron et al. 2020, table 9)."
    """
    return {name: (inspect.getdoc(recipe) or "").splitlines()[0] for name, recipe in RECIPES.items()}


def get(name: str, **context: Any) -> Recipe:
    """The recipe of this name for a run; `context` is what is known about it: model, data, num_images, image_area.

    Each recipe uses what it needs and ignores the rest. `NAME:DATA` selects the row of other data than the run's own,
    such as `vit_pretrain:imagenet` for a folder that contains ImageNet.

    >>> sl.recipes.get("bit_hyperrule", model="bit-r50x1", num_images=50_000, image_area=1024).steps
    10000
    >>> sl.recipes.get("vit_fintune")
    Traceback (most recent call last):
        ...
    ValueError: There is no recipe 'vit_fintune'. Did you mean vit_finetune, ...
    """
    plain, _, row = name.partition(":")
    plain = plain.replace("-", "_")
    if plain not in RECIPES:
        near = difflib.get_close_matches(plain, RECIPES, n=3, cutoff=0.5) or names()
        raise ValueError(f"There is no recipe {name!r}. Did you mean {', '.join(near)}?")
    if unknown := [key for key in context if key not in CONTEXT]:
        raise ValueError(f"A recipe depends on {', '.join(CONTEXT)} only; got {unknown[0]}. Change fields with --set.")
    known = {**context, "data": row} if row else context
    wanted = inspect.signature(RECIPES[plain]).parameters
    if missing := [p.name for p in wanted.values() if p.default is p.empty and known.get(p.name) is None]:
        raise ValueError(
            f"The recipe {plain} depends on {' and '.join(missing)}: give {'it' if len(missing) == 1 else 'them'}."
        )
    return RECIPES[plain](**{key: value for key, value in known.items() if key in wanted and value is not None})
