"""What a step minimizes: a module around the model that turns images and labels into one loss."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from sightline.data.draws import Draws
from sightline.models.construct import Model
from sightline.models.layers import DropPath
from sightline.models.vit import Block
from sightline.training.masked import MAE, MaskedPatches
from sightline.training.recipe import Recipe


class Classify(nn.Module):
    """The model and its classification loss, the mean over the images of a batch."""

    def __init__(self, model: Model, *, loss: str = "softmax", smoothing: float = 0.0):
        super().__init__()
        self.model, self.loss, self.smoothing = model, loss, smoothing

    def forward(self, images: Tensor, labels: Tensor, draws: Draws | None = None) -> Float[Tensor, ""]:
        return classification_loss(self.model(images), labels, loss=self.loss, smoothing=self.smoothing)


def classification_loss(logits: Tensor, labels: Tensor, *, loss: str = "softmax", smoothing: float = 0.0) -> Tensor:
    """Mean over the images of the softmax cross-entropy, or of the sum of all classes' sigmoid cross-entropies.

    Labels are class numbers (b,) or shares of classes (b, k). Smoothing moves so much of each label to all classes
    alike. The head's first loss at zero is ln k, or k ln 2.

    >>> import torch
    >>> round(float(sl.training.classification_loss(torch.zeros(2, 10), torch.tensor([1, 2]))), 6)
    2.302585
    """
    if loss == "softmax":
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)
    if labels.ndim == 1:
        labels = F.one_hot(labels, logits.shape[1])
    shares = labels.to(logits.dtype) * (1 - smoothing) + smoothing / logits.shape[1]
    return F.binary_cross_entropy_with_logits(logits, shares, reduction="sum") / len(logits)


def task(model: Model, recipe: Recipe) -> nn.Module:
    """The module that a recipe trains; the model itself is its `.model`."""
    match recipe.task:
        case "classify":
            return Classify(model, loss=recipe.loss, smoothing=float(recipe.smoothing))
        case "masked":
            return MaskedPatches(model, corrupt=float(recipe.corrupt), target=recipe.target, seed=recipe.seed)
        case "mae":
            return MAE(model, corrupt=float(recipe.corrupt), decoder=recipe.decoder, seed=recipe.seed)


@torch.no_grad()
def prepare(model: Model, recipe: Recipe, *, fresh: bool = True) -> None:
    """Set on the model what the recipe says about it: the head's first bias, dropout, stochastic depth."""
    if recipe.head_bias is not None and fresh:
        head = model.head
        if not isinstance(head, nn.Linear | nn.Conv2d) or head.bias is None or head.weight.any():
            raise ValueError(f"head_bias={recipe.head_bias} starts a new head; this one is not new: drop head_bias.")
        head.bias.fill_(float(recipe.head_bias))
    set_rates(model, recipe)


def set_rates(model: Model, recipe: Recipe) -> None:
    """Dropout and stochastic depth as the recipe wants them."""
    if recipe.dropout is not None:
        drops = [m for m in model.modules() if isinstance(m, nn.Dropout)]
        if not drops and recipe.dropout:
            raise ValueError(f"dropout={recipe.dropout}: a {type(model).__name__} has none to set; drop it.")
        for drop in drops:
            drop.p = float(recipe.dropout)
    if recipe.drop_path is not None:
        blocks = [m for m in model.modules() if isinstance(m, Block)]
        if not blocks and recipe.drop_path:
            raise ValueError(f"drop_path={recipe.drop_path}: a {type(model).__name__} has no blocks to leave out.")
        for i, block in enumerate(blocks):
            rate = float(recipe.drop_path) * i / max(len(blocks) - 1, 1)
            for path in (m for m in block.modules() if isinstance(m, DropPath)):
                path.rate = rate
    model.checkpointing = model.checkpointing or recipe.checkpointing


def first_loss(classes: int, *, loss: str = "softmax") -> float:
    """What a new zero head must show at step 0; anything else means that something is wrong (R49)."""
    return math.log(classes) if loss == "softmax" else classes * math.log(2)
