"""How alike neighboring patches of images are, unlike neighboring words."""

from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from sightline.analysis.attention.statistics import cell_distances
from sightline.observe.images import Data, ImageSource
from sightline.observe.model import Model, observe
from sightline.spec import Result


@dataclass(frozen=True, kw_only=True)
class NeighborSimilarity(Result):
    """Mean correlation of the pixels of two patches of one image, by their distance in patches.

    >>> import numpy as np
    >>> r = sl.analysis.NeighborSimilarity(title="", caption="", by_distance=np.array([[1.0, 0.6], [2.0,
    ...     0.3]]), across=0.1)
    >>> r.summary()["neighbors"]
    0.6
    """

    by_distance: NDArray[np.float64]  # (distances, 2): distance in patches, mean correlation
    across: float  # mean correlation of patches at the same place of two different images

    def summary(self) -> dict[str, float]:
        return {
            "neighbors": float(self.by_distance[0, 1]),
            "farthest": float(self.by_distance[-1, 1]),
            "other images": self.across,
        }


def unit_patches(images: Float[Tensor, "b c y x"], grid: tuple[int, int]) -> Float[Tensor, "b n p"]:
    """Patches as unit vectors around the mean color of their image: their products are correlations."""
    centered = images - images.mean((2, 3), keepdim=True)
    patches = rearrange(centered, "b c (y p) (x q) -> b (y x) (c p q)", y=grid[0], x=grid[1])
    return patches / patches.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def neighbor_similarity(
    model: Model, data: Data, *, n: int | None = None, batch: int = 32, seed: int = 0
) -> NeighborSimilarity:
    """Correlation of the pixels of patches by distance, on the images and the grid that a model sees.

    >>> model = sl.build("vit-nano4", classes=0)
    >>> found = sl.analysis.neighbor_similarity(model, sl.dataset("scenes/shape", num=8, size=32))
    >>> bool(found.by_distance[0, 1] > found.by_distance[3, 1])
    True
    """
    s = observe(model)
    far = cell_distances(s.grid, (1.0, 1.0)).round(decimals=6)
    levels, group = far.unique(return_inverse=True)
    total, across, seen, pairs = torch.zeros(len(levels), dtype=torch.float64), 0.0, 0, 0
    count = torch.zeros_like(total).scatter_add_(0, group.flatten(), torch.ones(far.numel(), dtype=torch.float64))
    source = ImageSource(data=data, batch=batch, n=n, seed=seed)
    for made in source.batches([s], what="neighboring patches"):
        images = made.images[0]
        images = images[..., : images.shape[2] // s.grid[0] * s.grid[0], : images.shape[3] // s.grid[1] * s.grid[1]]
        unit = unit_patches(images.double(), s.grid).cpu()
        total.scatter_add_(0, group.flatten(), (unit @ unit.mT).sum(0).flatten())
        across += (unit[1:] * unit[:-1]).sum(-1).mean(1).sum().item()
        seen, pairs = seen + len(images), pairs + len(images) - 1
    table = torch.stack([levels, total / count / seen], dim=1)[1:]
    return NeighborSimilarity(
        title="Neighboring patches",
        caption=f"Correlation of the pixels of two patches of {s.patch} pixels by distance: {seen:,} images.",
        how={"n": seen, "grid": s.grid, "batch": batch, "seed": seed, "center": "mean color of each image"},
        about=source.about(s),
        by_distance=table.numpy(),
        across=across / pairs if pairs else float("nan"),
    )
