"""Which input patch each token of a layer still knows: CKA of tokens with patches (Raghu et al., figures 9, 10)."""

import logging
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
from sightline.models.taps import record
from sightline.observe.images import Data, ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.observe.selection import as_tokens, select_layers
from sightline.spec import Result

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
    replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0, 0, 0)))
    hits: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))  # images so far, share of hits
    stages: tuple[str, ...] = ()  # the last layer of each earlier stage of a CNN
    earlier: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # (stages,): own minus other patches
    earlier_replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))

    def own(self) -> NDArray[np.float64]:
        """CKA of each token with the patch at its own position."""
        flat = self.maps.reshape(len(self.maps), -1)
        return flat.diagonal().copy()

    def summary(self) -> dict[str, float]:
        """Own-position scores: how often the best patch is the own one, and by how much it stands out (C14)."""
        flat = self.maps.reshape(len(self.maps), -1)
        known = np.isfinite(flat).all(1)
        if not known.any():
            return {"tokens most like their own patch": float("nan")}
        hit = (np.nan_to_num(flat, nan=-np.inf).argmax(1) == np.arange(len(flat)))[known]
        inside = np.zeros(self.grid, dtype=bool)
        inside[1:-1, 1:-1] = True
        inner = inside.flatten()[known]
        others = (flat.sum(1) - self.own()) / max(flat.shape[1] - 1, 1)
        return {
            "tokens most like their own patch": float(hit.mean()),
            "interior tokens most like their own patch": float(hit[inner].mean()) if inner.any() else float("nan"),
            "CKA with the own patch, mean": float(self.own()[known].mean()),
            "CKA with other patches, mean": float(others[known].mean()),
        }


def localization(
    model: Model, data: Data, *, layer: str | None = None, n: int | None = None, batch: int = 128, seed: int = 0
) -> Localization:
    """CKA of every token of a layer (by default the output of the last block) with the raw pixels of every patch.

    The images are cut into as many patches as the layer has cells. Sums run over batches, as in `sl.cka`.

    >>> model = sl.build("vit-nano4", classes=10, depth=1)
    >>> found = sl.localization(model, sl.dataset("scenes/objects", num=64, size=32), batch=64)
    >>> found.maps.shape, found.summary()["tokens most like their own patch"] > 0.5
    ((64, 8, 8), True)
    """
    s = observe(model)
    name = s.block_outputs[-1].path if layer is None else _only(select_layers(s, layer), layer)
    sums = PatchSums()
    images = ImageSource(data=data, batch=batch, n=n, seed=seed, shuffle=n is not None)
    with evaluation_mode(s):
        for made in images.batches([s], what="localization"):
            if len(made) < SMALLEST:
                log.warning("The last batch has %d images, fewer than %d: left out.", len(made), SMALLEST)
                continue
            with record(s.model, name) as tape:
                s.model(made.images[0])
            sums.add(*_cells(tape[name], made.images[0], s, name))
    found = _result(s, name, sums, {"n": sums.images, "batch": batch, "seed": seed})
    return replace(found, about=images.about(s))


def _only(names: list[str], given: str) -> str:
    if len(names) != 1:
        raise ValueError(f"localization takes one layer; {given!r} matches {len(names)}.")
    return names[0]


def _cells(layer: Tensor, images: Tensor, s: ObservedModel, name: str) -> tuple[Tensor, Tensor, int, tuple[int, int]]:
    """Tokens (t, m, d), patches (p, m, pixels), how many of the tokens are prefix, and the grid of the rest."""
    found = as_tokens(layer, s, name)
    tokens, prefix, grid = found.tokens, found.prefix, found.grid or s.grid
    if tokens.shape[1] - prefix != grid[0] * grid[1]:
        raise ValueError(
            f"{name} has {tokens.shape[1] - prefix} tokens, not one for each of {grid[0]} x {grid[1]} cells."
        )
    size = tuple(max(1, round(i / g)) * g for i, g in zip(images.shape[2:], grid))
    if size != tuple(images.shape[2:]):
        images = F.interpolate(images, size=size, mode="bilinear", antialias=True)
    patches = rearrange(images, "b c (y p) (x q) -> (y x) b (c p q)", y=grid[0], x=grid[1])
    return tokens.transpose(0, 1), patches, prefix, grid


def centered_grams(x: Float[Tensor, "t m d"]) -> Float[Tensor, "t mm"]:
    """U-centered Gram matrices of many small sets of features, flattened."""
    centered = x - x.mean(1, keepdim=True)
    return u_center((centered @ centered.mT).double()).flatten(1)


class PatchSums:
    """<K^, L^> of tokens with patches, summed over batches: one of m images weighs m(m-3), as in `grams.Sums`."""

    def __init__(self) -> None:
        self.xy: Any = 0.0
        self.xx: Any = 0.0
        self.yy: Any = 0.0
        self.images, self.prefix, self.grid = 0, 0, (1, 1)

    def add(self, tokens: Tensor, patches: Tensor, prefix: int, grid: tuple[int, int]) -> None:
        m = tokens.shape[1]
        x, y = centered_grams(tokens), centered_grams(patches)
        self.xy = self.xy + (x @ y.mT).cpu()
        self.xx = self.xx + x.square().sum(1).cpu()
        self.yy = self.yy + y.square().sum(1).cpu()
        self.images, self.prefix, self.grid = self.images + m, prefix, grid


def _result(s: ObservedModel, name: str, sums: PatchSums, how: dict[str, Any]) -> Localization:
    if sums.images == 0:
        raise ValueError(f"Localization needs batches of at least {SMALLEST} images.")
    scale = (sums.xx[:, None] * sums.yy[None, :]).sqrt()
    found = torch.where(scale > 0, sums.xy / scale, torch.nan).unflatten(1, sums.grid).numpy()
    p = sums.prefix
    return Localization(
        title=f"What the tokens of {s.name} know of the image",
        caption=(
            f"Unbiased CKA of each token of {name} with each of {sums.grid[0]} x {sums.grid[1]} input patches (raw "
            f"pixels), {sums.images:,} images in batches of {how['batch']}."
        ),
        how={**how, "tokens": "each", "layer": name},
        maps=found[p:],
        class_token=found[: min(p, 1)],
        layer=name,
        grid=sums.grid,
    )
