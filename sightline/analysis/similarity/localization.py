"""Which input patch each token of a layer still knows: CKA of tokens with patches (Raghu et al., figures 9, 10)."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from sightline.analysis.similarity.grams import SMALLEST
from sightline.analysis.similarity.measures import u_center
from sightline.analysis.similarity.sums import PairSums
from sightline.evals.interval import Ends, known_ends, over_groups
from sightline.models.taps import record
from sightline.observe.groups import ImageGroups
from sightline.observe.images import Data, ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.observe.selection import as_tokens, select_layers
from sightline.spec import Result

MOST = 1 << 24  # values that are kept without each group of images; a finer grid (over 900 cells) has no interval
log = logging.getLogger("sightline.analysis")


@dataclass(frozen=True, kw_only=True)
class Localization(Result):
    """CKA of each token of one layer with each input patch; for a CNN a token is all channels at one location.

    >>> import numpy as np
    >>> r = sl.analysis.Localization(title="", caption="", maps=np.eye(4).reshape(4, 2, 2),
    ...     class_token=np.zeros((0, 2, 2)),
    ...                     layer="blocks.5.mlp_sum", grid=(2, 2))
    >>> r.summary()["tokens most like their own patch"]
    1.0
    """

    maps: NDArray[np.float64]  # (tokens, rows, columns), tokens in raster order
    class_token: NDArray[np.float64]  # (1 or 0, rows, columns)
    layer: str
    grid: tuple[int, int]
    replicates: NDArray[np.floating] = field(
        default_factory=lambda: np.zeros((0, 0, 0, 0))
    )  # (groups of images, tokens,
    # rows, columns): the maps without each group
    hits: NDArray[np.float64] = field(
        default_factory=lambda: np.zeros((0, 2))
    )  # after each batch: how many images, and
    # the share of interior tokens that are most like their own patch
    stages: tuple[str, ...] = ()  # the last layer of each earlier stage of a CNN
    earlier: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # (stages,): see `own_minus_other`
    earlier_replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))

    def own(self) -> NDArray[np.float64]:
        """CKA of each token with the patch at its own position."""
        flat = self.maps.reshape(len(self.maps), -1)
        return flat.diagonal().copy()

    def summary(self) -> dict[str, float]:
        """Own-position scores: how often the best patch is the own one, and by how much it stands out (C14)."""
        if not np.isfinite(self.own()).any():
            return {"tokens most like their own patch": float("nan")}
        return {name: statistic(self.maps) for name, statistic in STATISTICS.items()}

    def intervals(self) -> dict[str, Ends]:
        part = self.maps, np.asarray(self.replicates, dtype=np.float64)
        one = 1 / len(self.maps)  # the least that a share of tokens can change by
        shares = {n: over_groups(f, part, step=one, least=0, most=1) for n, f in STATISTICS.items() if "tokens" in n}
        means = {n: over_groups(f, part, least=-1.0, most=1.0) for n, f in STATISTICS.items() if "tokens" not in n}
        return known_ends(shares | means)


def _own(maps: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """Of each token with a CKA with its own patch: whether that is the best, the CKA, and the mean of the others.

    A patch that is the same in all images (a black border) has no CKA with anything; the other patches have.
    """
    flat = maps.reshape(len(maps), -1)
    own, seen = flat.diagonal(), np.isfinite(flat)
    known = np.isfinite(own)
    rest = np.where(seen, flat, 0).sum(1) - np.where(known, own, 0)
    others = rest / np.maximum(seen.sum(1) - known, 1)
    hit = np.nan_to_num(flat, nan=-np.inf).argmax(1) == np.arange(len(flat))
    return hit[known], own[known], others[known]


def share_of_all_hits(maps: NDArray) -> float:
    """Share of the tokens that are most similar to their own patch of all patches, those at the border as well."""
    return float(_own(maps)[0].mean())


def _inner_hits(maps: NDArray) -> float:
    inside = np.zeros(maps.shape[1:], dtype=bool)
    inside[1:-1, 1:-1] = True
    inner = inside.ravel()[np.isfinite(maps.reshape(len(maps), -1).diagonal())]
    return float(_own(maps)[0][inner].mean()) if inner.any() else float("nan")


STATISTICS: dict[str, Callable[[NDArray], float]] = {
    "tokens most like their own patch": share_of_all_hits,
    "interior tokens most like their own patch": _inner_hits,
    "CKA with the own patch, mean": lambda maps: float(_own(maps)[1].mean()),
    "CKA with other patches, mean": lambda maps: float(_own(maps)[2].mean()),
}


def interior(grid: tuple[int, int]) -> NDArray[np.bool_]:
    """Cells that are not at the border; all cells of a grid that has no others."""
    inside = np.zeros(grid, dtype=bool)
    inside[1:-1, 1:-1] = True
    return inside.ravel() if inside.any() else np.ones(inside.size, dtype=bool)


def own_minus_other(maps: NDArray) -> float:
    """Mean CKA of interior tokens with their own patch, minus that with the other interior patches.

    The others are interior patches as well: a token that knows nothing but the whole image is more similar to patches
    in the middle than to those at the border, whichever token it is, and would seem to know its place.
    """
    inside = interior((maps.shape[1], maps.shape[2]))
    square = maps.reshape(len(maps), -1)[np.ix_(inside, inside)]
    own, known = np.eye(len(square), dtype=bool), np.isfinite(square)
    if len(square) < 2 or not known[own].any():
        return float("nan")
    return float(square[own & known].mean() - square[~own & known].mean())


def share_of_hits(maps: NDArray) -> float:
    """Share of interior tokens that are most similar to their own patch of all patches."""
    flat = maps.reshape(len(maps), -1)
    best = np.nan_to_num(flat, nan=-np.inf).argmax(1) == np.arange(len(flat))
    known = interior((maps.shape[1], maps.shape[2])) & ~np.isnan(flat).all(1)
    return float(best[known].mean()) if known.any() else float("nan")


def localization(
    model: Model,
    data: Data,
    *,
    layer: str | None = None,
    grid: tuple[int, int] | None = None,
    n: int | None = None,
    batch: int = 128,
    seed: int = 0,
) -> Localization:
    """CKA of every token of a layer (by default the output of the last block) with the raw pixels of every patch.

    The images are cut into as many patches as the layer has cells, or into `grid`, to which tokens are averaged: two
    networks are compared on the coarser grid of both. Of a CNN the ends of its earlier stages are looked at as well,
    averaged to the same grid. Sums run over batches, as in `sl.cka`.

    >>> model = sl.build("vit-nano4", classes=10, depth=1)
    >>> found = sl.localization(model, sl.dataset("scenes/objects", num=64, size=32), batch=64)
    >>> found.maps.shape, found.summary()["tokens most like their own patch"] > 0.5
    ((64, 8, 8), True)
    """
    s = observe(model)
    name = s.block_outputs[-1].path if layer is None else _only(select_layers(s, layer), layer)
    images = ImageSource(data=data, batch=batch, n=n, seed=seed, shuffle=n is not None, distinct=True)
    groups = ImageGroups(images.total, seed)
    sums, hits = PatchSums(groups.count), []
    earlier = {path: PatchSums(groups.count) for path in (_stage_ends(s) if layer is None else ())}
    with evaluation_mode(s):
        for made in images.batches([s], what="localization"):
            if len(made) < SMALLEST:
                log.warning("The last batch has fewer than %d images (%d): left out.", SMALLEST, len(made))
                continue
            with record(s.model, name, *earlier) as tape:
                s.model(made.images[0])
            member = torch.from_numpy(groups(made.index))
            sums.add(*_cells(tape[name], made.images[0], s, name, grid), groups=member)
            for path, stage in earlier.items():
                stage.add(*_cells(tape[path], made.images[0], s, path, sums.grid), groups=member)
            hits.append((sums.images, share_of_hits(sums.maps())))
    how = {"n": sums.images, "batch": batch, "seed": seed, "duplicates": images.duplicates[0], "groups": sums.groups}
    found = replace(_result(s, name, sums, how), hits=np.array(hits), about=images.about(s))
    if not earlier:
        return found
    own = np.array([own_minus_other(e.maps()) for e in earlier.values()])
    left = [[own_minus_other(maps) for maps in e.maps_without_groups()] for e in earlier.values()]
    return replace(found, stages=tuple(earlier), earlier=own, earlier_replicates=np.array(left).T)


def _stage_ends(s: ObservedModel) -> list[str]:
    """The last unit of each stage of a CNN but the last."""
    ends = {p.stage: p.path for p in s.block_outputs if p.stage is not None}
    return [] if s.attention_blocks else list(ends.values())[:-1]


def _only(names: list[str], given: str) -> str:
    if len(names) != 1:
        raise ValueError(f"localization takes one layer; {given!r} matches {len(names)}.")
    return names[0]


def _cells(
    layer: Tensor, images: Tensor, s: ObservedModel, name: str, wanted: tuple[int, int] | None
) -> tuple[Tensor, Tensor, int, tuple[int, int]]:
    """Tokens (t, m, d), patches (p, m, pixels), how many of the tokens are prefix, and the grid of the rest."""
    found = as_tokens(layer, s, name)
    tokens, prefix, grid = found.tokens, found.prefix, found.grid or s.grid
    if tokens.shape[1] - prefix != grid[0] * grid[1]:
        raise ValueError(
            f"{name} has {tokens.shape[1] - prefix} tokens, not one for each of {grid[0]} x {grid[1]} cells."
        )
    if wanted is not None and wanted != grid:
        tokens, grid = _averaged(tokens, prefix, grid, wanted), wanted
    size = tuple(max(1, round(i / g)) * g for i, g in zip(images.shape[2:], grid))
    if size != tuple(images.shape[2:]):
        images = F.interpolate(images, size=size, mode="bilinear", antialias=True)
    patches = rearrange(images, "b c (y p) (x q) -> (y x) b (c p q)", y=grid[0], x=grid[1])
    return tokens.transpose(0, 1), patches, prefix, grid


def _averaged(tokens: Tensor, prefix: int, grid: tuple[int, int], wanted: tuple[int, int]) -> Tensor:
    """Tokens on a coarser grid."""
    if wanted[0] > grid[0] or wanted[1] > grid[1] or min(wanted) < 1:
        raise ValueError(
            f"grid is at most that of the layer, {grid[0]} x {grid[1]} cells; got {wanted[0]} x {wanted[1]}."
        )
    cells = tokens[:, prefix:].mT.unflatten(2, grid)
    return torch.cat([tokens[:, :prefix], F.adaptive_avg_pool2d(cells, wanted).flatten(2).mT], dim=1)


def centered_grams(x: Float[Tensor, "t m d"]) -> Float[Tensor, "t m m"]:
    """U-centered Gram matrices of many small sets of features."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    centered = x - x.mean(1, keepdim=True)
    return u_center((centered @ centered.mT).double())


class PatchSums:
    """<K^, L^> of tokens with patches, summed over batches: one of m images weighs m(m-3), as in `sums.PairSums`."""

    def __init__(self, groups: int = 0) -> None:
        self.groups = groups
        self.pairs: PairSums | None = None  # as many rows and columns as the first batch has
        self.images, self.prefix, self.grid = 0, 0, (1, 1)

    def add(
        self, tokens: Tensor, patches: Tensor, prefix: int, grid: tuple[int, int], groups: Tensor | None = None
    ) -> None:
        if self.pairs is None:
            self.groups = self.groups if self.groups * len(tokens) * len(patches) <= MOST else 0
            self.pairs = PairSums(len(tokens), len(patches), self.groups)
        self.pairs.add(centered_grams(tokens), centered_grams(patches), groups if self.groups else None)
        self.images, self.prefix, self.grid = self.images + tokens.shape[1], prefix, grid

    def maps(self) -> NDArray[np.float64]:
        """CKA of the tokens of the grid with every patch."""
        assert self.pairs is not None
        return self.pairs.cka()[self.prefix :].unflatten(1, self.grid).numpy()

    def maps_without_groups(self) -> NDArray[np.float64]:
        """The same without each group of images."""
        assert self.pairs is not None
        return self.pairs.without_groups()[:, self.prefix :].unflatten(2, self.grid).numpy()


def _result(s: ObservedModel, name: str, sums: PatchSums, how: dict[str, Any]) -> Localization:
    if sums.pairs is None:
        raise ValueError(f"Localization needs batches of at least {SMALLEST} different images.")
    found = sums.pairs.cka().unflatten(1, sums.grid).numpy()
    p = sums.prefix
    return Localization(
        title=f"What the tokens of {s.name} know of the image",
        caption=(
            f"Unbiased CKA of each token of {name} with each of {sums.grid[0]} x {sums.grid[1]} input patches (raw "
            f"pixels), {sums.images:,} images in batches of {how['batch']}."
        ),
        how={**how, "tokens": "each", "layer": name},
        maps=found[p:],
        class_token=found[: 1 if s.class_token and p else 0],
        replicates=sums.maps_without_groups().astype(np.float32),
        layer=name,
        grid=sums.grid,
    )
