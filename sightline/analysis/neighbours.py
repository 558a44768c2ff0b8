"""How alike neighbouring patches of pictures are, unlike neighbouring words (R76)."""

from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.analysis.distance import cell_distances
from sightline.analysis.pictures import Data, Pictures
from sightline.analysis.subject import subject
from sightline.spec import Result


@dataclass(frozen=True, kw_only=True)
class NeighbourSimilarity(Result):
    """Mean correlation of the pixels of two patches of one picture, by their distance in patches.

    >>> import numpy as np
    >>> r = sl.NeighbourSimilarity(title="", caption="", by_distance=np.array([[1.0, 0.6], [2.0, 0.3]]), across=0.1)
    >>> r.summary()["neighbours"]
    0.6
    """

    by_distance: NDArray[np.float64]  # (distances, 2): distance in patches, mean correlation
    across: float  # mean correlation of patches at the same place of two different pictures

    def summary(self) -> dict[str, float]:
        return {
            "neighbours": float(self.by_distance[0, 1]),
            "farthest": float(self.by_distance[-1, 1]),
            "other pictures": self.across,
        }


def unit_patches(images: Float[Tensor, "b c y x"], grid: tuple[int, int]) -> Float[Tensor, "b n p"]:
    """Patches as unit vectors around the mean colour of their picture: their products are correlations."""
    centred = images - images.mean((2, 3), keepdim=True)
    patches = rearrange(centred, "b c (y p) (x q) -> b (y x) (c p q)", y=grid[0], x=grid[1])
    return patches / patches.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def neighbour_similarity(
    model: nn.Module, data: Data, *, n: int | None = None, batch: int = 32, seed: int = 0
) -> NeighbourSimilarity:
    """Correlation of the pixels of patches by distance, on the pictures and the grid that a model sees.

    >>> model = sl.build("vit-nano4", classes=0)
    >>> found = sl.neighbour_similarity(model, sl.dataset("scenes/shape", num=8, size=32))
    >>> bool(found.by_distance[0, 1] > found.by_distance[3, 1])
    True
    """
    s = subject(model)
    far = cell_distances(s.grid, (1.0, 1.0)).round(decimals=6)
    levels, group = far.unique(return_inverse=True)
    total, across, pictures, pairs = torch.zeros(len(levels), dtype=torch.float64), 0.0, 0, 0
    count = torch.zeros_like(total).scatter_add_(0, group.flatten(), torch.ones(far.numel(), dtype=torch.float64))
    for made in Pictures(data=data, batch=batch, n=n, seed=seed).batches([s], what="neighbouring patches"):
        images = made.images[0]
        images = images[..., : images.shape[2] // s.grid[0] * s.grid[0], : images.shape[3] // s.grid[1] * s.grid[1]]
        unit = unit_patches(images.double(), s.grid).cpu()
        total.scatter_add_(0, group.flatten(), (unit @ unit.mT).sum(0).flatten())
        across += (unit[1:] * unit[:-1]).sum(-1).mean(1).sum().item()
        pictures, pairs = pictures + len(images), pairs + len(images) - 1
    table = torch.stack([levels, total / count / pictures], dim=1)[1:]
    return NeighbourSimilarity(
        title="Neighbouring patches",
        caption=f"Correlation of the pixels of two patches of {s.patch} pixels by distance: {pictures:,} pictures.",
        how={"n": pictures, "grid": s.grid, "batch": batch, "seed": seed, "centre": "mean colour of each picture"},
        by_distance=table.numpy(),
        across=across / pairs if pairs else float("nan"),
    )
