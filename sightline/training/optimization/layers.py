"""Which layers are fine-tuned on new data, and how fast: four transfer strategies, and layer-wise rates.

The seminar notes name four cases by the size of the new data and its similarity to the old; their figures are lost.
What is here is the standard reading of such charts. Trained layers get a tenth of the rate; the others are frozen.
"""

import os.path
from dataclasses import replace
from fractions import Fraction
from typing import Literal

from torch import nn

from sightline.models.construct import Model
from sightline.models.hybrid import Hybrid
from sightline.models.parts import anatomy
from sightline.models.vit import ViT
from sightline.training.recipe import Recipe

Size = Literal["small", "large"]
Similarity = Literal["similar", "different"]

# Share of the blocks that are trained, counted from the head: all, a part, or the head alone. Data that differs more
# needs deeper changes.
TRAINED_SHARE: dict[tuple[str, str], Fraction] = {
    ("large", "different"): Fraction(1),
    ("large", "similar"): Fraction(1, 3),
    ("small", "different"): Fraction(1, 2),
    ("small", "similar"): Fraction(0),
}
BELOW = ("root", "embed", "prefix", "positions", "backbone")  # what comes before the blocks of our models


def transfer(
    size: Size, similarity: Similarity, *, recipe: Recipe, model: nn.Module, share: float | None = None
) -> Recipe:
    """A recipe for fine-tuning on new data, by the data's size and its similarity to what the model was trained on.

    | data             | what is trained, at a tenth of the recipe's rate                                 |
    |------------------|----------------------------------------------------------------------------------|
    | large, different | everything, from the trained weights                                             |
    | large, similar   | the head and the last third of the blocks                                        |
    | small, different | the head and the last half of the blocks, with RandAugment: the hardest case     |
    | small, similar   | the head alone; training everything would overfit                                |

    `share` sets another share of the blocks. Blocks are those of `sl.anatomy`: encoder blocks, residual units, and both
    in a hybrid. A frozen layer may still contain dropout, which a recipe turns off with dropout=0.

    >>> r = sl.recipes.vit_finetune("pets")
    >>> t = sl.training.transfer("small", "similar", recipe=r, model=sl.build("vit-nano4"))
    >>> t.trained, t.lr == r.lr / 10
    (('head.*',), True)
    """
    if (size, similarity) not in TRAINED_SHARE:
        raise ValueError(
            f"transfer({size!r}, {similarity!r}): expected small or large, then similar or different, "
            'such as transfer("small", "similar").'
        )
    if share is not None and not 0 <= share <= 1:
        raise ValueError(f"share={share}: expected a share of the blocks, from 0 (the head alone) to 1 (everything).")
    if recipe.trained:
        raise ValueError(
            f"The recipe already sets trained={recipe.trained}: drop that setting, or the transfer strategy."
        )
    part = TRAINED_SHARE[size, similarity] if share is None else share
    augment = recipe.augment
    if (size, similarity) == ("small", "different") and augment.randaugment is None:
        augment = replace(augment, randaugment=(2, 10))
    return replace(
        recipe,
        trained=trainable_globs(model, float(part)),
        lr=recipe.lr / 10,
        end_lr=recipe.end_lr / 10,
        augment=augment,
    )


def trainable_globs(model: nn.Module, share: float) -> tuple[str, ...]:
    """Globs of the parameters in the last `share` of the blocks and everything after them; () stands for all."""
    if share == 1:
        return ()
    blocks = block_paths(model)
    count = round(share * len(blocks))
    if not count:
        return _globs(head_parameters(model))
    listed = parameters_by_layer(model)
    lowest = next(i for i, names in enumerate(listed) if names[-1].startswith(f"{blocks[-count]}."))
    return _globs([name for names in listed[lowest:] for name in names], blocks)


def head_parameters(model: nn.Module) -> list[str]:
    """Names of the parameters that turn features into logits."""
    _check_ours(model)
    head = next((part.path for part in anatomy(model) if part.kind == "logits"), None)
    if head is None:
        raise ValueError("This model has no head to train; give it one: sl.load(..., classes=10).")
    paths = (head, *(("head_distill", "pre_logits") if isinstance(model, ViT) else ()))
    return [name for name, _ in model.named_parameters() if name.startswith(tuple(f"{p}." for p in paths))]


def _globs(names: list[str], blocks: list[str] | None = None) -> tuple[str, ...]:
    """A few globs that match exactly these parameters: whole blocks by their path, the rest module by module."""
    found: dict[str, None] = {}
    for name in names:
        block = next((b for b in blocks or () if name.startswith(f"{b}.")), None)
        module = block or name.rpartition(".")[0]
        found[f"{module}.*" if module else name] = None
    return tuple(found)


def layer_scales(model: nn.Module, decay: float) -> dict[str, float]:
    """Layer-wise learning rates: a factor per parameter name, 1 at the head and times `decay` for each layer below.

    The stem of a ViT with 12 blocks gets decay^13, its first block decay^12, its last decay^1 (BEiT, MAE). A
    Mixer counts likewise, a BiT its residual units, a hybrid units, then embedding, then encoder blocks.

    >>> scales = sl.training.layer_scales(sl.build("vit-nano4", classes=10), 0.5)
    >>> scales["head.weight"], scales["norm.weight"], scales["blocks.5.mlp.fc1.weight"], scales["prefix"] == 0.5**7
    (1.0, 1.0, 0.5, True)
    """
    if not 0 < decay <= 1:
        raise ValueError(f"layer_decay={decay}: expected a factor above 0 and up to 1, such as 0.75.")
    listed = parameters_by_layer(model)
    return {name: float(decay) ** (len(listed) - 1 - i) for i, names in enumerate(listed) for name in names}


def parameters_by_layer(model: nn.Module) -> list[list[str]]:
    """All parameters by name, layer by layer from the pixels to the logits: stem, blocks, then norm and head."""
    names = [name for name, _ in model.named_parameters()]
    blocks = block_paths(model)
    inside = [[n for n in names if n.startswith(f"{b}.")] for b in blocks]
    if isinstance(model, ViT) and model.encoder_config.position_at == "every":  # each block adds its own table
        for i, block in enumerate(inside[-model.encoder_config.layers :]):
            block[:0] = [n for n in names if n.startswith(f"positions.{i}.")]
    rest = [n for n in names if n not in {n for block in inside for n in block}]
    below = [n for n in rest if n.split(".")[0] in BELOW]
    top = [n for n in rest if n not in below]
    if not isinstance(model, Hybrid):
        return [below, *inside, top]
    units = len(blocks) - model.encoder_config.layers
    root = [n for n in below if n.startswith("backbone.")]
    middle = [n for n in below if n not in root]
    return [root, *inside[:units], middle, *inside[units:], top]


def block_paths(model: nn.Module) -> list[str]:
    """Module path of each block, from the anatomy: the common prefix of all its parts."""
    _check_ours(model)
    parts: dict[int, list[str]] = {}
    for part in anatomy(model):
        if part.block is not None:
            parts.setdefault(part.block, []).append(part.path)
    return [os.path.commonpath([p.replace(".", "/") for p in parts[i]]).replace("/", ".") for i in sorted(parts)]


def _check_ours(model: nn.Module) -> None:
    if not isinstance(model, Model):
        raise ValueError(
            f"The layers of a {type(model).__name__} are not known: load its weights into one of ours with sl.load."
        )
