"""Gram matrices of many layers, built inside the hooks of one forward pass, and the sums over batches behind CKA."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sightline.analysis.similarity.measures import gram, neighbors, u_center
from sightline.models.taps import record
from sightline.observe.model import ObservedModel
from sightline.observe.selection import MissingTokenError, Tokens, select_tokens

NEIGHBORS = 10  # of the second opinion, within a batch
SMALLEST = 4  # images in a batch: HSIC_1 divides by m - 3
STILL = 1e-12  # of the squared mean: less variance than rounding makes is none


def flat_grams(
    s: ObservedModel, images: Tensor, names: Sequence[str], tokens: Tokens
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """One forward pass: the Gram matrix of each layer, and why some have none. No activation outlives its hook."""
    why: dict[str, str] = {}

    def keep(path: str, value: Tensor) -> Tensor | None:
        try:
            rows = select_tokens(value, tokens, s, path)
        except MissingTokenError as error:
            why[path] = f"{path} {error}"
            return None
        made = gram(rows.detach())
        if reason := unusable(made, rows):
            why[path] = f"{path} {reason}"
            return None
        return made

    with record(s.model, *names, keep=keep) as tape:
        s.model(images)
    return {k: v for k, v in tape.items() if v is not None}, why


def unusable(made: Tensor, rows: Tensor) -> str | None:
    """Why a layer's features have no CKA on these images."""
    spread = made.diagonal().sum()
    if not torch.isfinite(spread):
        return "holds NaN or infinite values"
    first = rows[0].double()
    if spread <= STILL * len(rows) * (first @ first):
        return "is the same for every image"
    return None


class Sums:
    """<K^, L^> of every pair of layers of two models (or of one with itself), summed over batches in float64.

    xy, xx and yy are summed each before there is any ratio. They are not divided by m(m-3): HSIC_1 of a batch of 4 is
    noise, and would count as much as that of a full batch. `shared` counts neighbors in common in the same way.
    `moments` are sums of squares and products of what the batches say: from them comes how far they are apart, without
    keeping any.
    """

    def __init__(self, rows: Sequence[str], columns: Sequence[str] | None):
        self.rows, self.columns = list(rows), None if columns is None else list(columns)
        wide = len(self.columns if self.columns is not None else self.rows)
        self.xy = torch.zeros(len(self.rows), wide, dtype=torch.float64)
        self.xx, self.yy = torch.zeros(len(self.rows), dtype=torch.float64), torch.zeros(wide, dtype=torch.float64)
        self.shared = torch.zeros(len(self.rows), wide, dtype=torch.float64)
        self.moments = {key: torch.zeros_like(self.xy) for key in ("xy xy", "xy xx", "xy yy", "xx yy")}
        self.squares = torch.zeros_like(self.xx), torch.zeros_like(self.yy)
        self.images = self.batches = self.near = 0  # near: images of batches large enough to have neighbors

    def add(self, m: int, a: dict[str, Tensor], b: dict[str, Tensor] | None) -> None:
        """One batch of m images. Layers without a Gram matrix become NaN."""
        here = stacked(a, self.rows, m)
        there = here if b is None else stacked(b, self.columns or (), m)
        x = u_center(here).flatten(1)
        y = x if b is None else u_center(there).flatten(1)
        self._note((x @ y.mT).cpu(), x.square().sum(1).cpu(), y.square().sum(1).cpu())
        if m > NEIGHBORS:
            near = neighbors(here, NEIGHBORS).flatten(1)
            other = near if b is None else neighbors(there, NEIGHBORS).flatten(1)
            self.shared += (near @ other.mT).double().cpu() / NEIGHBORS
            self.near += m
        self.images += m

    def _note(self, xy: Tensor, xx: Tensor, yy: Tensor) -> None:
        """The three numbers of one batch, for every pair."""
        self.xy += xy
        self.xx += xx
        self.yy += yy
        rows, columns = xx[:, None], yy[None, :]
        for key, product in {
            "xy xy": xy * xy,
            "xy xx": xy * rows,
            "xy yy": xy * columns,
            "xx yy": rows * columns,
        }.items():
            self.moments[key] += product
        self.squares[0].add_(xx * xx)
        self.squares[1].add_(yy * yy)
        self.batches += 1

    def error(self) -> Tensor:
        """Standard error of the ratio over batches, to first order (delta method); NaN with one batch.

        A batch moves R = xy / sqrt(xx yy) by u = xy_b / sqrt(xx yy) - R/2 (xx_b / xx + yy_b / yy); the u add up to 0.
        """
        if self.batches < 2:
            return torch.full_like(self.xy, torch.nan)
        r, rows, columns = self.cka(), self.xx[:, None], self.yy[None, :]
        scale, sums = (rows * columns).sqrt(), self.moments
        own = self.squares[0][:, None] / rows**2 + self.squares[1][None, :] / columns**2
        spread = sums["xy xy"] / scale**2 + r**2 / 4 * (own + 2 * sums["xx yy"] / scale**2)
        spread -= r * (sums["xy xx"] / rows + sums["xy yy"] / columns) / scale
        return (spread.clamp(min=0) * self.batches / (self.batches - 1)).sqrt()  # below 0 by rounding only

    def cka(self) -> Tensor:
        """The ratio, as it comes out."""
        scale = (self.xx[:, None] * self.yy[None, :]).sqrt()
        return torch.where(scale > 0, self.xy / scale, torch.nan)

    def knn(self) -> Tensor:
        """Share of neighbors in common; NaN where a layer has no Gram matrix or batches were too small."""
        known = torch.isfinite(self.cka()) & (self.near > 0)
        return torch.where(known, self.shared / max(self.near, 1), torch.nan)


def stacked(grams: dict[str, Tensor], names: Sequence[str], m: int) -> Tensor:
    """(layers, m, m) in float64; what is missing is NaN and makes its row and column NaN."""
    some = next(iter(grams.values()), torch.zeros(m, m, dtype=torch.float64))
    out = torch.full((len(names), m, m), torch.nan, dtype=torch.float64, device=some.device)
    for i, name in enumerate(names):
        if name in grams:
            out[i] = grams[name]
    return out
