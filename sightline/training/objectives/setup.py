"""The objective that a recipe asks for, and the model configured for it."""

import torch
from torch import nn

from sightline.dense.config import DenseConfig
from sightline.models.construct import Model
from sightline.models.layers import DropPath
from sightline.models.vit import Block
from sightline.training.objectives.classification import ClassificationObjective
from sightline.training.objectives.dense import DenseObjective
from sightline.training.objectives.lejepa import LeJEPA
from sightline.training.objectives.masked_autoencoder import MAE
from sightline.training.objectives.masked_patches import MaskedPatches
from sightline.training.recipe import Recipe


def build_objective(model: Model, recipe: Recipe, *, classes: tuple[str, ...] = ()) -> nn.Module:
    """A module around the model that turns images and labels into one loss; the model itself is its `.model`.
    `classes` are those of the objects in masks."""
    match recipe.task:
        case "classify":
            return ClassificationObjective(model, loss=recipe.loss, smoothing=float(recipe.smoothing))
        case "masked":
            return MaskedPatches(model, corrupt=float(recipe.corrupt), target=recipe.target, seed=recipe.seed)
        case "mae":
            return MAE(model, corrupt=float(recipe.corrupt), decoder=recipe.decoder, seed=recipe.seed)
        case "lejepa":
            weight = float(recipe.sigreg)
            return LeJEPA(model, views=recipe.views, weight=weight, projector=recipe.projector, seed=recipe.seed)
        case "segment" | "detect":
            return DenseObjective(model, dense_config(recipe, classes), seed=recipe.seed)


def dense_config(recipe: Recipe, classes: tuple[str, ...]) -> DenseConfig:
    """The dense head that a recipe asks for."""
    assert recipe.task in ("segment", "detect")
    width, blocks = recipe.decoder
    return DenseConfig(
        task=recipe.task,
        kind=recipe.head or ("linear" if recipe.task == "segment" else "queries"),
        classes=classes,
        queries=recipe.queries,
        width=width,
        blocks=blocks,
        mask_stride=recipe.mask_stride,
    )


@torch.no_grad()
def initialize_head(model: Model, recipe: Recipe) -> None:
    """Set the bias of a new head to the recipe's `head_bias`, if it has one."""
    if recipe.head_bias is None:
        return
    head = model.head
    if not isinstance(head, nn.Linear | nn.Conv2d) or head.bias is None or head.weight.any():
        raise ValueError(f"head_bias={recipe.head_bias} initializes a new head; this one is not new: drop head_bias.")
    head.bias.fill_(float(recipe.head_bias))


def configure_model(model: Model, recipe: Recipe) -> None:
    """Set dropout, stochastic depth and activation checkpointing as the recipe asks."""
    if recipe.dropout is not None:
        drops = [m for m in model.modules() if isinstance(m, nn.Dropout)]
        if not drops and recipe.dropout:
            raise ValueError(f"dropout={recipe.dropout}: a {type(model).__name__} has no dropout; drop the setting.")
        for drop in drops:
            drop.p = float(recipe.dropout)
    if recipe.drop_path is not None:
        blocks = [m for m in model.modules() if isinstance(m, Block)]
        if not blocks and recipe.drop_path:
            raise ValueError(f"drop_path={recipe.drop_path}: a {type(model).__name__} has no blocks to skip.")
        for i, block in enumerate(blocks):
            rate = float(recipe.drop_path) * i / max(len(blocks) - 1, 1)
            for path in (m for m in block.modules() if isinstance(m, DropPath)):
                path.rate = rate
    model.checkpointing = model.checkpointing or recipe.checkpointing
