"""The sums over batches behind CKA, for every way to look at it, with and without each group of images."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sightline.analysis.similarity.grams import NEIGHBORS, SMALLEST, Grams, stack_grams
from sightline.analysis.similarity.measures import neighbor_mask, u_center
from sightline.analysis.similarity.ways import (
    PERMUTATIONS,
    deletion_weights,
    ordinary_images,
    permuted,
    within_class,
)

PRINTED, CALIBRATED, WITHIN, LEAN, UNTRAINED = WAYS = (
    "printed",
    "calibrated",
    "within class",
    "without outliers",
    "untrained",
)


class PairSums:
    """<K^, L^> of every pair of layers of two models, summed over batches in float64.

    xy, xx and yy are summed each before there is any ratio. They are not divided by m(m-3): HSIC_1 of a batch of 4 is
    noise, and would count as much as that of a full batch. `less` is what each sum loses without a group of images: the
    rows and the columns of its images, their own block once.
    """

    def __init__(self, rows: int, columns: int, groups: int = 0):
        shapes = (rows, columns), (rows,), (columns,)
        self.total = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]  # xy, xx, yy
        self.less = [torch.zeros(groups, *shape, dtype=torch.float64) for shape in shapes]

    def add(self, x: Tensor, y: Tensor, groups: Tensor | None = None, weights: Tensor | None = None) -> None:
        """One batch: centered Gram matrices (layers, m, m), the group of each image, and what its loss weighs."""
        for total, part in zip(self.total, _products(x, y)):
            total += part.cpu()
        if groups is None:
            return
        m = x.shape[-1]
        root = (torch.full((m,), m / (m - 1)) if weights is None else weights).sqrt().to(x)
        for g in groups.unique().tolist():
            rows = (groups == g).nonzero().flatten().to(x.device)
            one = x[:, rows] * root[rows, None]
            other = one if x is y else y[:, rows] * root[rows, None]
            block = one[:, :, rows] * root[rows]
            across = block if x is y else other[:, :, rows] * root[rows]
            for less, line, twice in zip(self.less, _products(one, other), _products(block, across)):
                less[g] += (2 * line - twice).cpu()

    def cka(self) -> Tensor:
        """The ratio, as it comes out."""
        return _ratio(*self.total)

    def without_groups(self) -> Tensor:
        """The ratio without each group of images: (groups, rows, columns)."""
        return _ratio(*(total - less for total, less in zip(self.total, self.less)))


def _products(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a, b = x.flatten(1), y.flatten(1)
    own = a.square().sum(1)
    return a @ b.mT, own, own if x is y else b.square().sum(1)


def _ratio(xy: Tensor, xx: Tensor, yy: Tensor) -> Tensor:
    scale = (xx[..., :, None] * yy[..., None, :]).clamp(min=0).sqrt()
    return torch.where(scale > 0, xy / scale, torch.nan)


class NeighborGroups:
    """What each group of images has to do with mutual neighbors: how many its images share with others, and how often
    they are shared themselves, beside how often they are neighbors at all.

    An image that is left out no longer asks for its neighbors, and is nobody's neighbor: another one takes its place,
    which is shared with the probability that all are. So a share T loses what its images share, and the number of times
    that they are shared less T times the mean number of times that they are neighbors in either layer. Leaving out the
    questions alone covered 0.80 where both cover 0.95 (docs/log.md).
    """

    def __init__(self, groups: int, rows: int, columns: int):
        shapes = (rows, columns), (rows, columns), (rows,), (columns,), ()
        self.asks, self.asked, self.degrees, self.others, self.images = (
            torch.zeros(groups, *shape, dtype=torch.float64) for shape in shapes
        )

    def add(self, each: Tensor, near: Tensor, other: Tensor, *, groups: Tensor) -> None:
        """One batch: neighbors in common (m, rows, columns), and the masks of neighbors (m, layers, m)."""
        self.asks.index_add_(0, groups, each)
        shared = (near.permute(2, 1, 0) @ other.permute(2, 0, 1)).double().cpu()  # by who is shared
        self.asked.index_add_(0, groups, shared)
        self.degrees.index_add_(0, groups, near.sum(0).mT.double().cpu())
        self.others.index_add_(0, groups, other.sum(0).mT.double().cpu())
        self.images.index_add_(0, groups, torch.ones(len(each), dtype=torch.float64))

    def without_groups(self, share: Tensor, images: int) -> Tensor:
        """The share of neighbors in common without the images of each group: (groups, rows, columns)."""
        typical = share * (self.degrees[:, :, None] + self.others[:, None, :]) / 2
        lost = self.asks + self.asked - typical
        left = (images - self.images).clamp(min=1)[:, None, None]
        return (share * images - lost / NEIGHBORS) / left


class Sums:
    """One pass over the images: CKA of every pair of layers in each of the `ways`, and neighbors in common.

    `shared` counts neighbors as `PairSums` sums products. `null` are the printed sums under permuted image order.
    """

    def __init__(
        self,
        rows: Sequence[str],
        columns: Sequence[str] | None,
        *,
        ways: Sequence[str] = (),
        groups: int = 0,
        seed: int = 0,
    ):
        self.rows, self.columns = list(rows), None if columns is None else list(columns)
        tall, wide = len(self.rows), len(self.rows if self.columns is None else self.columns)
        self.ways = {way: PairSums(tall, wide, groups) for way in (PRINTED, *ways) if way != CALIBRATED}
        self.null = torch.zeros(PERMUTATIONS, tall, wide) if CALIBRATED in ways else None
        self.shared = torch.zeros(tall, wide, dtype=torch.float64)
        self.groups_near = NeighborGroups(groups, tall, wide)
        self.images = self.batches = self.near = 0  # near: images of batches large enough to have neighbors
        self.seed = seed

    def add(
        self, m: int, a: Grams, b: Grams | None, *, groups: Tensor | None = None, labels: Tensor | None = None
    ) -> None:
        """One batch of m images. Layers without a Gram matrix become NaN."""
        here, there = self._stacks(m, a.whole, None if b is None else b.whole)
        x = u_center(here)
        y = x if there is here else u_center(there)
        self.ways[PRINTED].add(x, y, groups)
        if self.null is not None:
            self.null += permuted(x, y, seed=self.seed, batch=self.batches).cpu()
        if WITHIN in self.ways and labels is not None:
            x = within_class(here, labels)
            y = x if there is here else within_class(there, labels)
            self.ways[WITHIN].add(x, y, groups, deletion_weights(labels))
        if LEAN in self.ways:
            self._add_lean(m, a, b, groups)
        self._add_neighbors(m, a, b, groups)
        self.images += m
        self.batches += 1

    def add_untrained(self, m: int, a: Grams, b: Grams | None, *, groups: Tensor | None = None) -> None:
        """The same batch, seen by the untrained twins."""
        here, there = self._stacks(m, a.whole, None if b is None else b.whole)
        x = u_center(here)
        self.ways[UNTRAINED].add(x, x if there is here else u_center(there), groups)

    def _add_lean(self, m: int, a: Grams, b: Grams | None, groups: Tensor | None) -> None:
        here, there = self._stacks(m, a.lean, None if b is None else b.lean)
        keep = ordinary_images(here) if there is here else ordinary_images(here, there)
        if len(keep) < SMALLEST:
            return
        x = u_center(here[:, keep[:, None], keep])
        y = x if there is here else u_center(there[:, keep[:, None], keep])
        self.ways[LEAN].add(x, y, None if groups is None else groups[keep.cpu()])

    def _add_neighbors(self, m: int, a: Grams, b: Grams | None, groups: Tensor | None) -> None:
        if not a.near or (b is not None and not b.near):
            return
        near = self._masks(a.near, self.rows, m)
        other = near if b is None else self._masks(b.near, self.columns or (), m)
        each = (near @ other.mT).double().cpu()  # (images, rows, columns), whole numbers
        self.shared += each.sum(0) / NEIGHBORS
        self.near += m
        if groups is not None:
            self.groups_near.add(each, near, other, groups=groups)

    def _stacks(self, m: int, a: dict[str, Tensor], b: dict[str, Tensor] | None) -> tuple[Tensor, Tensor]:
        here = stack_grams(a, self.rows, m)
        return here, here if b is None else stack_grams(b, self.columns or (), m)

    @staticmethod
    def _masks(near: dict[str, Tensor], names: Sequence[str], m: int) -> Tensor:
        """(m, layers, m)."""
        some = next(iter(near.values()))
        out = torch.full((m, len(names), m), torch.nan, device=some.device)
        for i, name in enumerate(names):
            if name in near:
                out[:, i] = neighbor_mask(near[name])
        return out

    def cka(self) -> Tensor:
        """As printed."""
        return self.ways[PRINTED].cka()

    def knn(self) -> Tensor:
        """Share of neighbors in common; NaN where a layer has no Gram matrix or batches were too small."""
        known = torch.isfinite(self.cka()) & (self.near > 0)
        return torch.where(known, self.shared / max(self.near, 1), torch.nan)

    def knn_without_groups(self) -> Tensor:
        """The same without the images of each group: (groups, rows, columns)."""
        return self.groups_near.without_groups(self.knn(), self.near)

    def null_cka(self) -> Tensor:
        """CKA under each permutation: (permutations, rows, columns)."""
        assert self.null is not None
        _, xx, yy = self.ways[PRINTED].total
        return _ratio(self.null.double(), xx.expand(PERMUTATIONS, -1), yy.expand(PERMUTATIONS, -1))
