"""Classification losses."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from sightline.data.draws import Draws
from sightline.models.construct import Model


class ClassificationObjective(nn.Module):
    """The model and its classification loss, the mean over the images of a batch."""

    def __init__(self, model: Model, *, loss: str = "softmax", smoothing: float = 0.0):
        super().__init__()
        self.model, self.loss, self.smoothing = model, loss, smoothing

    def forward(self, images: Tensor, labels: Tensor, draws: Draws | None = None) -> Float[Tensor, ""]:
        return classification_loss(self.model(images), labels, loss=self.loss, smoothing=self.smoothing)


def classification_loss(logits: Tensor, labels: Tensor, *, loss: str = "softmax", smoothing: float = 0.0) -> Tensor:
    """Mean over the images of the softmax cross-entropy, or of the sum of all classes' sigmoid cross-entropies.

    Labels are class numbers (b,) or class probabilities (b, k). Smoothing spreads that share of each label evenly over
    all classes. With a zero head the first loss is ln k, or k ln 2.

    >>> import torch
    >>> round(float(sl.training.classification_loss(torch.zeros(2, 10), torch.tensor([1, 2]))), 6)
    2.302585
    """
    if loss == "softmax":
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)
    if labels.ndim == 1:
        labels = F.one_hot(labels, logits.shape[1])
    targets = labels.to(logits.dtype) * (1 - smoothing) + smoothing / logits.shape[1]
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(logits)
