"""Which layers learn when a trained model meets new data, and how fast: four strategies, and rates by depth.

The seminar notes know four cases by the size of the new data and its likeness to the old; their images are lost. What
is here is the standard reading of such charts. Layers that learn do so at a tenth of the rate; the others stand still.
"""

import os.path
from dataclasses import replace
from fractions import Fraction
from typing import Literal

from torch import nn

from sightline.models.bit import BiT
from sightline.models.hybrid import Hybrid
from sightline.models.parts import anatomy
from sightline.models.vit import ViT
from sightline.training.recipe import Recipe

Size = Literal["small", "large"]
Similarity = Literal["similar", "different"]

# Share of the blocks that learn, counted from the head: all, a part, or the head alone. Data that differs needs to be
# met further down than data that does not.
LEARNING: dict[tuple[str, str], Fraction] = {
    ("large", "different"): Fraction(1),
    ("large", "similar"): Fraction(1, 3),
    ("small", "different"): Fraction(1, 2),
    ("small", "similar"): Fraction(0),
}
BELOW = ("root", "embed", "prefix", "positions", "backbone")  # what stands below the blocks of our models


def transfer(
    size: Size, similarity: Similarity, *, recipe: Recipe, model: nn.Module, share: float | None = None
) -> Recipe:
    """A recipe for carrying a trained model to new data, by the data's size and its likeness to what the model knows.

    | data             | what learns, at a tenth of the recipe's rate                                     |
    |------------------|----------------------------------------------------------------------------------|
    | large, different | everything, from the trained weights                                             |
    | large, similar   | the head and the last third of the blocks                                        |
    | small, different | the head and the last half of the blocks, with RandAugment: the hardest case     |
    | small, similar   | the head alone; to train all would overfit                                       |

    `share` sets another part of the blocks. Blocks are those of `sl.anatomy`: encoder blocks, residual units, and both
    in a hybrid. A frozen layer may still contain dropout, which a recipe switches off with dropout=0.

    >>> r = sl.recipes.vit_finetune("pets")
    >>> t = sl.training.transfer("small", "similar", recipe=r, model=sl.build("vit-nano4"))
    >>> t.trained, t.lr == r.lr / 10
    (('head.*',), True)
    """
    if (size, similarity) not in LEARNING:
        raise ValueError(
            f"transfer({size!r}, {similarity!r}): expected small or large, then similar or different, "
            'such as transfer("small", "similar").'
        )
    if share is not None and not 0 <= share <= 1:
        raise ValueError(f"share={share}: expected a part of the blocks, from 0 (the head alone) to 1 (everything).")
    if recipe.trained:
        raise ValueError(f"The recipe says already what learns (trained={recipe.trained}): drop it, or the strategy.")
    part = LEARNING[size, similarity] if share is None else share
    augment = recipe.augment
    if (size, similarity) == ("small", "different") and augment.randaugment is None:
        augment = replace(augment, randaugment=(2, 10))
    return replace(
        recipe,
        trained=learning(model, float(part)),
        lr=recipe.lr / 10,
        end_lr=recipe.end_lr / 10,
        augment=augment,
    )


def learning(model: nn.Module, share: float) -> tuple[str, ...]:
    """Globs of the parameters of the last `share` of the blocks and all above them; () stands for everything."""
    if share == 1:
        return ()
    blocks = block_paths(model)
    count = round(share * len(blocks))
    if not count:
        return _globs(classifier(model))
    listed = layers(model)
    lowest = next(i for i, names in enumerate(listed) if names[-1].startswith(f"{blocks[-count]}."))
    return _globs([name for names in listed[lowest:] for name in names], blocks)


def classifier(model: nn.Module) -> list[str]:
    """Names of the parameters that turn features into logits."""
    _check_ours(model)
    head = next((part.path for part in anatomy(model) if part.kind == "logits"), None)
    if head is None:
        raise ValueError("This model has no head to train; give it one: sl.load(..., classes=10).")
    paths = (head, *(("head_distill", "pre_logits") if isinstance(model, ViT) else ()))
    return [name for name, _ in model.named_parameters() if name.startswith(tuple(f"{p}." for p in paths))]


def _globs(names: list[str], blocks: list[str] | None = None) -> tuple[str, ...]:
    """Few globs that match just these parameters: whole blocks by their path, the rest module by module."""
    found: dict[str, None] = {}
    for name in names:
        block = next((b for b in blocks or () if name.startswith(f"{b}.")), None)
        module = block or name.rpartition(".")[0]
        found[f"{module}.*" if module else name] = None
    return tuple(found)


def layer_scales(model: nn.Module, decay: float) -> dict[str, float]:
    """Layer-wise rates: a factor for each parameter by its name, 1 at the head and times `decay` for each layer down.

    The stem of a ViT with 12 blocks gets decay^13, its first block decay^12, its last decay^1 (BEiT, MAE). A BiT counts
    its residual units, a hybrid units, then embedding, then encoder blocks.

    >>> scales = sl.training.layer_scales(sl.build("vit-nano4", classes=10), 0.5)
    >>> scales["head.weight"], scales["norm.weight"], scales["blocks.5.mlp.fc1.weight"], scales["prefix"] == 0.5**7
    (1.0, 1.0, 0.5, True)
    """
    if not 0 < decay <= 1:
        raise ValueError(f"layer_decay={decay}: expected a factor above 0 and up to 1, such as 0.75.")
    listed = layers(model)
    return {name: float(decay) ** (len(listed) - 1 - i) for i, names in enumerate(listed) for name in names}


def layers(model: nn.Module) -> list[list[str]]:
    """All parameters by name, layer by layer from the pixels to the logits: stem, blocks, then norm and head."""
    names = [name for name, _ in model.named_parameters()]
    blocks = block_paths(model)
    inside = [[n for n in names if n.startswith(f"{b}.")] for b in blocks]
    if (
        isinstance(model, ViT) and model.encoder_config.position_at == "every"
    ):  # each table is added where its block begins
        for i, block in enumerate(inside[-model.encoder_config.depth :]):
            block[:0] = [n for n in names if n.startswith(f"positions.{i}.")]
    rest = [n for n in names if n not in {n for block in inside for n in block}]
    below = [n for n in rest if n.split(".")[0] in BELOW]
    top = [n for n in rest if n not in below]
    if not isinstance(model, Hybrid):
        return [below, *inside, top]
    units = len(blocks) - model.encoder_config.depth
    root = [n for n in below if n.startswith("backbone.")]
    middle = [n for n in below if n not in root]
    return [root, *inside[:units], middle, *inside[units:], top]


def block_paths(model: nn.Module) -> list[str]:
    """Module path of each block, from the anatomy: what all parts of the block have in common."""
    _check_ours(model)
    parts: dict[int, list[str]] = {}
    for part in anatomy(model):
        if part.block is not None:
            parts.setdefault(part.block, []).append(part.path)
    return [os.path.commonpath([p.replace(".", "/") for p in parts[i]]).replace("/", ".") for i in sorted(parts)]


def _check_ours(model: nn.Module) -> None:
    if not isinstance(model, ViT | BiT):
        raise ValueError(
            f"The layers of a {type(model).__name__} are not known here: load its weights into one of our models."
        )
