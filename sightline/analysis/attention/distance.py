"""`sl.attention_distance`: how far each head of each block looks, over many images."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.analysis.attention.statistics import cell_distances
from sightline.evals.interval import Ends, intervals_of, known_ends, over_groups
from sightline.observe.attention import attention_probs
from sightline.observe.groups import ImageGroups
from sightline.observe.images import Data, ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.spec import About, Result

CHUNK = 1 << 18  # probabilities that are reduced at a time: they stay in the cache


@dataclass(frozen=True, kw_only=True)
class AttentionDistance(Result):
    """Mean attention distance per block and head (ViT, figure 11; Raghu et al., figure 3).

    `pixels` leaves the prefix tokens out and renormalizes; `raw` does not renormalize, so attention on the class token
    counts as distance 0; `prefix_mass` is what the two differ by. A head that spends all its attention on prefix tokens
    has no distance: it is NaN in `pixels`, left out of means, and counted in `missing`.

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
    missing: NDArray[np.float64] = field(
        default_factory=lambda: np.zeros((0, 0))
    )  # (blocks, heads), share of the images
    # on which the head has no distance
    replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0, 0)))  # (groups of images, blocks,
    # heads): `pixels` without each group
    mass_replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0, 0)))  # the same of
    # `prefix_mass`

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
        """Heads from near to far, of the two lowest and the two highest blocks (Raghu et al., figure 3).

        Heads without a distance are left out.
        """
        depth = len(self.pixels)
        chosen = sorted({0, min(1, depth - 1), max(depth - 2, 0), depth - 1})
        return [(b, np.sort(self.pixels[b][np.isfinite(self.pixels[b])]).tolist()) for b in chosen]

    def summary(self) -> dict[str, float]:
        numbers = {name: statistic(self.pixels) for name, statistic in STATISTICS.items()}
        numbers |= {"uniform attention": self.uniform, SPENT: float(self.prefix_mass.mean())}
        none = int(np.isnan(self.pixels).sum())
        return numbers | {"heads without a distance": float(none)} if none else numbers

    def intervals(self) -> dict[str, Ends]:
        spent = over_groups(np.mean, (self.prefix_mass, self.mass_replicates), least=0.0, most=1.0)
        return intervals_of(STATISTICS, (self.pixels, self.replicates), least=0.0) | known_ends({SPENT: spent})

    def beyond(self, pixels: NDArray[np.float64] | None = None) -> float:
        """The share of heads whose distance exceeds two thirds of that of uniform attention."""
        return float(np.mean(_known(self.pixels if pixels is None else pixels) > 2 / 3 * self.uniform))


def _known(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[np.isfinite(values)]


def of_heads(what: Any, values: NDArray[np.float64]) -> float:
    """Of the heads that have a distance; NaN where none has."""
    known = _known(values)
    return float(what(known)) if known.size else float("nan")


SPENT = "attention on prefix tokens, mean"
STATISTICS: dict[str, Callable[[NDArray[np.float64]], float]] = {
    "lowest block, most local head": lambda x: of_heads(np.min, x[0]),
    "lowest block, most global head": lambda x: of_heads(np.max, x[0]),
    "two lowest blocks, most local head": lambda x: of_heads(np.min, x[:2]),
    "two highest blocks, most local head": lambda x: of_heads(np.min, x[-2:]),
    "lower half, mean": lambda x: of_heads(np.mean, x[: max(1, len(x) // 2)]),
    "upper half, mean": lambda x: of_heads(np.mean, x[len(x) // 2 :]),
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
    images = ImageSource(data=data, batch=batch, n=n, seed=seed)
    groups = ImageGroups(images.total, seed)
    sums = HeadSums(s, groups.count)
    with evaluation_mode(s), attention_probs(s, sums.keep) as taps:
        for made in images.batches([s], what="attention distance"):
            sums.groups = torch.from_numpy(groups(made.index))
            s.model(made.images[0])
            sums.images += len(made)
            sums.members.index_add_(0, sums.groups, torch.ones(len(made)))
    how = {"n": sums.images, "batch": batch, "seed": seed, "proof": taps.proof, "groups": groups.count}
    return _result(s, sums, how, images.about(s))


class HeadSums:
    """Sums over the images of each group, per block and head, in float64: memory does not grow with images."""

    def __init__(self, s: ObservedModel, count: int):
        self.target, self.images, self.count = s, 0, count
        self.members = torch.zeros(count)  # images of each group
        self.groups = torch.zeros(0, dtype=torch.long)  # of the images of the current batch
        self.cells = cell_distances(s.grid, s.patch)
        self.total: dict[int, Tensor] = {}  # block: (groups, measures, heads)

    def keep(self, block: int, probs: Tensor) -> None:
        self.cells = self.cells.to(device=probs.device, dtype=torch.promote_types(probs.dtype, torch.float32))
        size = max(1, CHUNK // probs[0].numel())
        each = torch.cat([self.reduce(part) for part in probs.split(size)], dim=1)  # (measures, images, heads)
        empty = torch.zeros(self.count, *each[:, 0].shape, dtype=torch.float64)
        total = self.total.setdefault(block, empty)
        total.index_add_(0, self.groups, each.transpose(0, 1).cpu())

    def reduce(self, probs: Tensor) -> Tensor:
        """(measures, images, heads): distance, its square, whether there is one, raw distance, prefix mass, entropy."""
        p = self.target.prefix
        rows = probs[..., p:, :].to(self.cells.dtype)
        inner = rows[..., p:]
        far = (inner * self.cells).sum(-1)
        spent = rows[..., :p].sum(-1) if p else torch.zeros_like(far)
        stays = 1 - spent
        rounded = probs.dtype != rows.dtype  # in bfloat16 a row sums to 1 by two digits
        if p and (rounded or (stays < 0.1).any()):  # a small difference of numbers near 1 has no digits either
            stays = inner.sum(-1)
        near = torch.where(stays > torch.finfo(far.dtype).eps, far / stays, torch.nan).nanmean(-1)
        known = ~near.isnan()
        near = near.nan_to_num(nan=0.0)
        logs = rows.clamp(min=torch.finfo(rows.dtype).tiny).log_()  # entr is not vectorized: five times as slow
        entropy = -logs.mul_(rows).sum(-1).mean(-1)
        return torch.stack([near, near.square(), known, far.mean(-1), spent.mean(-1), entropy]).double()


def _result(s: ObservedModel, sums: HeadSums, how: dict[str, Any], about: About) -> AttentionDistance:
    groups = torch.stack([sums.total[b] for b in sorted(sums.total)], dim=2)  # (groups, measures, blocks, heads)
    total = groups.sum(0)
    mean = total / sums.images
    near, square = total[0] / total[2], total[1] / total[2]  # NaN where no image gives a distance
    error = ((square - near.square()).clamp(min=0) / (total[2] - 1).clamp(min=1)).sqrt()
    left = (total[0] - groups[:, 0]) / (total[2] - groups[:, 2])
    count = sums.members.double()
    mass = (total[4] - groups[:, 4]) / (sums.images - count).clamp(min=1)[:, None, None]
    none = int(near.isnan().sum())
    without = (
        f" {none} of {near.numel()} heads spend all attention on prefix tokens and have no distance." if none else ""
    )
    uniform = cell_distances(s.grid, s.patch).mean().item()
    return AttentionDistance(
        title=f"Attention distance of {s.name}",
        caption=(
            f"Mean distance in pixels between a patch and what it attends to, per block and head, over "
            f"{sums.images:,} images; prefix tokens left out, renormalized. {how['proof']}.{without}"
        ),
        how={**how, "renormalized": True, "tokens": "patches"},
        about=about,
        pixels=near.numpy(),
        raw=mean[3].numpy(),
        prefix_mass=mean[4].numpy(),
        entropy=mean[5].numpy(),
        error=error.numpy(),
        missing=1 - mean[2].numpy(),
        replicates=left.numpy(),
        mass_replicates=mass.numpy() if len(mass) > 1 else np.zeros((0, *near.shape)),
        uniform=uniform,
        image_size=s.image.size,
        grid=s.grid,
        prefix=s.prefix,
    )
