"""`sl.attention_distance`: how far each head of each block looks, over many images."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.analysis.attention.statistics import cell_distances
from sightline.observe.attention import attention_probs
from sightline.observe.images import Data, ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.spec import About, Result

CHUNK = 1 << 18  # probabilities that are reduced at a time: they stay in the cache


@dataclass(frozen=True, kw_only=True)
class AttentionDistance(Result):
    """Mean attention distance per block and head (ViT, figure 11; Raghu et al., figure 3).

    `pixels` leaves the prefix tokens out and renormalizes; `raw` does not renormalize, so attention on the class token
    counts as distance 0; `prefix_mass` is what the two differ by.

    >>> import numpy as np
    >>> d = np.array([[10.0, 90.0], [80.0, 100.0]])
    >>> r = sl.analysis.AttentionDistance(title="", caption="", pixels=d, raw=d, error=0 * d,
    ...     prefix_mass=0 * d, entropy=0 * d,
    ...                          uniform=116.5, image_size=(224, 224), grid=(14, 14), prefix=1)
    >>> r.sorted_heads()[0], r.summary()["lowest block, most local head"]
    ((0, [10.0, 90.0]), 10.0)
    """

    pixels: NDArray[np.float64]  # (blocks, heads)
    raw: NDArray[np.float64]
    error: NDArray[np.float64]  # standard error of `pixels` over images
    prefix_mass: NDArray[np.float64]
    entropy: NDArray[np.float64]  # nats, of the patches' attention over all tokens
    uniform: float  # distance in pixels of attention that is the same everywhere
    image_size: tuple[int, int]
    grid: tuple[int, int]
    prefix: int
    replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0, 0)))  # without each group of images

    @property
    def fraction(self) -> NDArray[np.float64]:
        """Distances as a fraction of the image's width; of its diagonal where it is not square."""
        y, x = self.image_size
        return self.pixels / (x if x == y else float(np.hypot(y, x)))

    @property
    def entropy_fraction(self) -> NDArray[np.float64]:
        """Entropy as a fraction of the largest possible."""
        return self.entropy / np.log(self.grid[0] * self.grid[1] + self.prefix)

    def sorted_heads(self) -> list[tuple[int, list[float]]]:
        """Heads from near to far, of the two lowest and the two highest blocks (Raghu et al., figure 3)."""
        depth = len(self.pixels)
        return [
            (b, np.sort(self.pixels[b]).tolist()) for b in sorted({0, min(1, depth - 1), max(depth - 2, 0), depth - 1})
        ]

    def summary(self) -> dict[str, float]:
        low, high = self.pixels[:2], self.pixels[-2:]
        return {
            "lowest block, most local head": float(self.pixels[0].min()),
            "lowest block, most global head": float(self.pixels[0].max()),
            "two lowest blocks, most local head": float(low.min()),
            "two highest blocks, most local head": float(high.min()),
            "lower half, mean": float(self.pixels[: max(1, len(self.pixels) // 2)].mean()),
            "upper half, mean": float(self.pixels[len(self.pixels) // 2 :].mean()),
            "uniform attention": self.uniform,
            "attention on prefix tokens, mean": float(self.prefix_mass.mean()),
        }


def attention_distance(
    model: Model, data: Data, *, n: int | None = None, batch: int = 16, seed: int = 0
) -> AttentionDistance:
    """Mean distance, entropy and prefix mass of every head, averaged over the patches and then over the images.

    The ViT paper takes 128 images, Raghu et al. 5,000. The attention of a model of another library is seen without
    changing the model; `how["proof"]` says how many attentions were seen and how exactly.

    >>> model = sl.build("vit-nano4", classes=10)
    >>> far = sl.attention_distance(model, sl.dataset("scenes/shape", num=8, size=32))
    >>> far.pixels.shape, bool((far.pixels < far.uniform * 1.2).all())
    ((6, 4), True)
    """
    s = observe(model)
    sums = HeadSums(s)
    images = ImageSource(data=data, batch=batch, n=n, seed=seed)
    with evaluation_mode(s), attention_probs(s, sums.keep) as taps:
        for made in images.batches([s], what="attention distance"):
            s.model(made.images[0])
            sums.images += len(made)
    return _result(s, sums, {"n": sums.images, "batch": batch, "seed": seed, "proof": taps.proof}, images.about(s))


class HeadSums:
    """Sums over images of each measure, per block and head, in float64: memory does not grow with images."""

    def __init__(self, s: ObservedModel):
        self.target, self.images = s, 0
        self.cells = cell_distances(s.grid, s.patch)
        self.total: dict[int, Tensor] = {}  # block: (measures + 1, heads)

    def keep(self, block: int, probs: Tensor) -> None:
        self.cells = self.cells.to(device=probs.device, dtype=probs.dtype)
        size = max(1, CHUNK // probs[0].numel())
        for part in probs.split(size):
            found = self.reduce(part)
            self.total[block] = self.total.get(block, 0) + found

    def reduce(self, probs: Tensor) -> Tensor:
        """(measures + the square of the first, heads), summed over a few images."""
        p = self.target.prefix
        rows = probs[..., p:, :]
        inner = rows[..., p:]
        far = (inner * self.cells).sum(-1)
        spent = rows[..., :p].sum(-1) if p else torch.zeros_like(far)
        near = torch.where(spent < 1, far / (1 - spent), torch.nan).nanmean(-1)
        logs = rows.clamp(min=torch.finfo(rows.dtype).tiny).log_()  # entr is not vectorized: five times as slow
        entropy = -logs.mul_(rows).sum(-1).mean(-1)
        each = torch.stack([near, far.mean(-1), spent.mean(-1), entropy, near.square()]).double()
        return each.nansum(1).cpu()


def _result(s: ObservedModel, sums: HeadSums, how: dict[str, Any], about: About) -> AttentionDistance:
    mean = torch.stack([sums.total[b] for b in sorted(sums.total)], dim=1) / sums.images  # (measures, blocks, heads)
    spread = (mean[4] - mean[0].square()).clamp(min=0)
    error = (spread / max(sums.images - 1, 1)).sqrt()
    uniform = cell_distances(s.grid, s.patch).mean().item()
    return AttentionDistance(
        title=f"Attention distance of {s.name}",
        caption=(
            f"Mean distance in pixels between a patch and what it attends to, per block and head, over "
            f"{sums.images:,} images; prefix tokens left out, renormalized. {how['proof']}."
        ),
        how={**how, "renormalized": True, "tokens": "patches"},
        about=about,
        pixels=mean[0].numpy(),
        raw=mean[1].numpy(),
        prefix_mass=mean[2].numpy(),
        entropy=mean[3].numpy(),
        error=error.numpy(),
        uniform=uniform,
        image_size=s.image.size,
        grid=s.grid,
        prefix=s.prefix,
    )
