"""How alike neighboring patches of images are, unlike neighboring words."""

from dataclasses import dataclass, field

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from sightline.analysis.attention.statistics import cell_distances
from sightline.evals.interval import Ends, intervals_of, known_ends, over_groups
from sightline.observe.groups import ImageGroups
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
    # without each group of images: (groups, distances) of the correlations, (groups,) of `across`
    replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    across_replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def summary(self) -> dict[str, float]:
        return {
            "neighbors": float(self.by_distance[0, 1]),
            "farthest": float(self.by_distance[-1, 1]),
            "other images": self.across,
        }

    def intervals(self) -> dict[str, Ends]:
        part = self.by_distance[:, 1], self.replicates
        other = over_groups(float, (np.array(self.across), self.across_replicates), least=-1.0, most=1.0)
        found = intervals_of({"neighbors": lambda x: float(x[0]), "farthest": lambda x: float(x[-1])}, part)
        return found | known_ends({"other images": other})


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
    source = ImageSource(data=data, batch=batch, n=n, seed=seed)
    groups = ImageGroups(source.total, seed)
    cells = torch.ones(far.numel(), dtype=torch.float64)
    count = torch.zeros(len(levels), dtype=torch.float64).scatter_add_(0, group.flatten(), cells)
    total = torch.zeros(groups.count, len(levels), dtype=torch.float64)
    seen, across_of, pairs_of = (torch.zeros(groups.count, dtype=torch.float64) for _ in range(3))
    across, pairs = torch.zeros((), dtype=torch.float64), 0
    for made in source.batches([s], what="neighboring patches"):
        images = made.images[0]
        images = images[..., : images.shape[2] // s.grid[0] * s.grid[0], : images.shape[3] // s.grid[1] * s.grid[1]]
        unit = unit_patches(images.double(), s.grid).cpu()
        member = torch.from_numpy(groups(made.index))
        for g in member.unique().tolist():
            own = unit[member == g]
            total[g].scatter_add_(0, group.flatten(), (own @ own.mT).sum(0).flatten())
        ones = torch.ones(len(images), dtype=torch.float64)
        seen.index_add_(0, member, ones)
        alike = (unit[1:] * unit[:-1]).sum(-1).mean(1)
        across, pairs = across + alike.sum(), pairs + len(alike)
        for ends in (member[1:], member[:-1][member[1:] != member[:-1]]):  # a pair is gone with either of its images
            kept = alike if len(ends) == len(alike) else alike[member[1:] != member[:-1]]
            across_of.index_add_(0, ends, kept)
            pairs_of.index_add_(0, ends, torch.ones_like(kept))
    table = torch.stack([levels, total.sum(0) / count / seen.sum()], dim=1)[1:]
    left = (total.sum(0) - total) / count / (seen.sum() - seen)[:, None]
    images_seen = int(seen.sum())
    return NeighborSimilarity(
        title="Neighboring patches",
        caption=f"Correlation of the pixels of two patches of {s.patch} pixels by distance: {images_seen:,} images.",
        how={"n": images_seen, "grid": s.grid, "batch": batch, "seed": seed, "center": "mean color of each image"},
        about=source.about(s),
        by_distance=table.numpy(),
        across=(across / pairs).item(),
        replicates=left[:, 1:].numpy(),
        across_replicates=((across - across_of) / (pairs - pairs_of)).numpy(),
    )
