"""Segmentation and detection: a dense head around a model, its loss, and its file in the run folder."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sightline.data.draws import Draws
from sightline.dense.config import DenseConfig
from sightline.dense.heads import QueryHead, build_head
from sightline.dense.losses import pixel_loss, segment_loss
from sightline.models import checks
from sightline.models.construct import Model


class DenseObjective(nn.Module):
    """A dense head around any model: `forward` returns the loss, `.model` is the model, `.dense` the head.

    >>> import numpy as np, torch
    >>> from sightline.data.draws import Draws
    >>> config = sl.dense.DenseConfig(task="segment", kind="linear", classes=("cat",))
    >>> objective = sl.training.DenseObjective(sl.build("bit-nano", classes=0), config)
    >>> maps = torch.zeros(2, 2, 32, 32, dtype=torch.int16)
    >>> round(objective(torch.zeros(2, 3, 32, 32), maps, Draws(0, np.arange(2))).item(), 3)
    0.693
    """

    def __init__(self, model: Model, config: DenseConfig, *, seed: int = 0):
        super().__init__()
        self.model, self.config = model, config
        self.dense = build_head(model, config, seed=seed)

    def forward(self, images: Tensor, labels: Tensor, draws: Draws) -> Float[Tensor, ""]:
        """The mean loss of images and their label maps."""
        if isinstance(self.dense, QueryHead):
            return segment_loss(self.dense(self.model, images), labels, self.config)
        return pixel_loss(self.dense(self.model, images), labels)

    def blank_labels(self, images: int, device: torch.device) -> Tensor:
        """Label maps to measure memory with: as many objects as there may be queries for."""
        y, x = checks.pair(self.model.config.size)
        maps = torch.zeros(images, 2, y, x, dtype=torch.int16, device=device)
        maps[:, 0, : y // 2] = 1
        maps[:, 1, : y // 2] = 1 + torch.arange(x, device=device, dtype=torch.int16) % min(self.config.queries, x)
        return maps
