"""Effective receptive field: which pixels move the middle of a layer (Raghu et al., figures 6, C.1 to C.4)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from sightline.models.taps import record
from sightline.observe.images import Data, ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.observe.selection import Layers, as_tokens, select_layers
from sightline.spec import Result


@dataclass(frozen=True, kw_only=True)
class ReceptiveField(Result):
    """Mean absolute gradient of one cell of each layer with respect to the pixels, each map summing to 1.

    >>> import numpy as np
    >>> one = np.zeros((1, 8, 8)); one[0, 4:, 4:] = 1 / 16
    >>> r = sl.analysis.ReceptiveField(title="", caption="", maps=one, names=("a",), centers=np.array([[6.0, 6.0]]),
    ...                       radii=np.array([[1.5, 2.5]]), own=np.array([1.0]))
    >>> r.summary()["a: radius of 50 %"]
    1.5
    """

    maps: NDArray[np.float64]  # (layers, height, width)
    names: tuple[str, ...]
    centers: NDArray[np.float64]  # (layers, 2): y, x of the cell's center in pixels
    radii: NDArray[np.float64]  # (layers, 2): within which 50 % and 90 % of the mass lie, in pixels
    own: NDArray[np.float64]  # (layers,): mass on the cell's own pixels
    radii_error: NDArray[np.float64] | None = None  # standard errors over groups of images; NaN for one group
    own_error: NDArray[np.float64] | None = None
    side: Literal["after", "before"] = "after"  # of the residual addition; before it, the branch alone
    replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0, 0)))  # without each group of images
    largest: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # (layers,): see `own_is_largest`
    largest_replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))

    def summary(self) -> dict[str, float]:
        first, last = self.names[0], self.names[-1]
        rows = {first: 0, last: len(self.names) - 1}
        numbers = {f"{name}: radius of 50 %": float(self.radii[i, 0]) for name, i in rows.items()}
        numbers |= {f"{name}: radius of 90 %": float(self.radii[i, 1]) for name, i in rows.items()}
        return numbers | {f"{name}: mass on its own cell": float(self.own[i]) for name, i in rows.items()}


def mass_radii(
    field: Float[Tensor, "y x"], center: tuple[float, float], shares: Sequence[float] = (0.5, 0.9)
) -> list[float]:
    """Radius in pixels around `center` within which each share of the mass lies; pixel (i, j) stands at (i + ½, j + ½).

    >>> import torch
    >>> field = torch.zeros(9, 9); field[4, 4] = 1
    >>> sl.analysis.mass_radii(field, (4.5, 4.5))
    [0.0, 0.0]
    """
    if not field.sum() > 0:
        return [float("nan")] * len(shares)
    y = torch.arange(field.shape[0], dtype=torch.float64) + 0.5 - center[0]
    x = torch.arange(field.shape[1], dtype=torch.float64) + 0.5 - center[1]
    far, order = torch.hypot(y[:, None], x[None, :]).flatten().sort()
    mass = field.double().flatten().cpu()[order].cumsum(0)
    mass = mass / mass[-1]
    return [far[int((mass < share - 1e-9).sum())].item() for share in shares]


def receptive_field(
    model: Model,
    data: Data,
    *,
    layers: Layers = "blocks",
    at: tuple[int, int] | None = None,
    side: Literal["after", "before"] = "after",
    n: int = 32,
    probes: int | None = 2,
    seed: int = 0,
) -> ReceptiveField:
    """Mean |gradient| of one cell of each layer with respect to the image, over channels and `n` images.

    `side`: "after" the residual addition, or "before" it, the branch alone (at a stage's first unit a ResNet's branch
    looks smaller for it). `at`: row and column of the cell; by default rows // 2, columns // 2, since an even grid has
    no middle. Each of the `probes` combines all channels with random signs, so that they do not cancel as in the
    gradient of a sum; `probes=None` takes every channel by itself, as the paper does, at one backward pass each.

    >>> model = sl.build("bit-nano", classes=0)
    >>> field = sl.receptive_field(model, sl.dataset("scenes/shape", num=2, size=32), n=2)
    >>> field.maps.shape[1:], bool(field.radii[0, 1] < field.radii[-1, 1])
    ((32, 32), True)
    """
    s = observe(model)
    names = _sides(s, select_layers(s, layers), side)
    if probes is not None and (isinstance(probes, bool) or probes < 1):
        raise ValueError(f"probes is a whole number from 1 up, or None for every channel; got {probes!r}.")
    random = torch.Generator().manual_seed(seed)
    groups: list[Tensor] = []  # one sum of maps per batch of images: how far they differ is the error
    cells: dict[str, Cell] = {}
    seen = 0
    source = ImageSource(data=data, batch=max(1, min(8, n // 4)), n=n, seed=seed)
    with evaluation_mode(s, gradients=True):
        for made in source.batches([s], what="receptive field"):
            images = made.images[0].requires_grad_()
            with record(s.model, *names) as tape:
                s.model(images)
            groups.append(torch.zeros(len(names), *s.image.size, dtype=torch.float64))
            for i, name in enumerate(names):
                cells[name] = Cell(s, name, tape[name], at)
                groups[-1][i] = gradients(cells[name].value(tape[name]), images, probes, random)
            seen += len(made)
    how = {"n": seen, "probes": probes or "every channel", "seed": seed}
    found = _result(s, names, torch.stack(groups), list(cells.values()), how=how, side=side)
    return replace(found, about=source.about(s))


def _sides(s: ObservedModel, names: list[str], side: str) -> list[str]:
    if side not in ("after", "before"):
        raise ValueError(f"side is 'after' or 'before' the residual addition; got {side!r}.")
    names = [name for name in names if name not in s.part or s.part[name].layout != "vector"]
    if side == "after":
        return names
    found = [s.part[name].branch if name in s.part else None for name in names]
    branches = [b for b in found if b is not None]
    if not branches:
        raise ValueError(f"These layers of {s.name} are no sums of skip and branch: there is no 'before'.")
    return branches


class Cell:
    """One place in a layer: which token it is, and which pixels it stands on."""

    def __init__(self, s: ObservedModel, name: str, value: Tensor, at: tuple[int, int] | None):
        self.target, self.name = s, name
        grid = (value.shape[2], value.shape[3]) if value.ndim == 4 else s.grid
        self.at = at if at is not None else (grid[0] // 2, grid[1] // 2)
        if not (0 <= self.at[0] < grid[0] and 0 <= self.at[1] < grid[1]):
            raise ValueError(f"{name} has {grid[0]} x {grid[1]} cells; there is no cell {self.at}.")
        self.number = self.at[0] * grid[1] + self.at[1]
        self.patch = (s.image.size[0] / grid[0], s.image.size[1] / grid[1])
        self.center = ((self.at[0] + 0.5) * self.patch[0], (self.at[1] + 0.5) * self.patch[1])

    def value(self, layer: Tensor) -> Float[Tensor, "b d"]:
        found = as_tokens(layer, self.target, self.name)
        return found.tokens[:, found.prefix + self.number]

    def share(self, field: Tensor) -> float:
        """Mass on the cell's own pixels."""
        (y, x), (p, q) = self.at, self.patch
        return field[round(y * p) : round((y + 1) * p), round(x * q) : round((x + 1) * q)].sum().item()


def gradients(
    value: Float[Tensor, "b d"], images: Float[Tensor, "b c y x"], probes: int | None, random: torch.Generator
) -> Float[Tensor, "y x"]:
    """Mean |d value / d pixel| over channels of value and image, summed over the batch. Images do not mix."""
    width = value.shape[1]
    if probes is None:
        signs = torch.eye(width)
    else:  # E|sum of signed gradients| grows with the root of the width
        signs = torch.randint(0, 2, (probes, width), generator=random) * 2.0 - 1
        signs /= width**0.5
    total = torch.zeros(images.shape[2:], dtype=torch.float64)
    for row in signs.to(value):
        (g,) = torch.autograd.grad((value @ row).sum(), images, retain_graph=True)
        total += g.abs().mean(1).double().sum(0).cpu()
    return total / len(signs)


def spread(groups: Tensor, cells: list[Cell]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Standard errors of radii and of the mass on the own cell, from one map per group of images and layer."""
    maps = groups / groups.sum((2, 3), keepdim=True).clamp(min=1e-300)
    radii = np.array([[mass_radii(m, c.center) for m, c in zip(group, cells)] for group in maps])
    own = np.array([[c.share(m) for m, c in zip(group, cells)] for group in maps])
    if len(groups) < 2:
        return np.full(radii.shape[1:], np.nan), np.full(own.shape[1:], np.nan)
    root = len(groups) ** 0.5
    return radii.std(0, ddof=1) / root, own.std(0, ddof=1) / root


def _result(
    s: ObservedModel,
    names: list[str],
    groups: Tensor,
    cells: list[Cell],
    *,
    how: dict[str, Any],
    side: Literal["after", "before"],
) -> ReceptiveField:
    total = groups.sum(0) / how["n"]
    radii_error, own_error = spread(groups, cells)
    mass = total.sum((1, 2), keepdim=True)
    maps = total / mass.clamp(min=1e-300)
    radii = np.array([mass_radii(m, c.center) for m, c in zip(maps, cells)])
    where = "after the addition" if side == "after" else "of the branch, before the addition"
    return ReceptiveField(
        title=f"Effective receptive fields of {s.name}",
        caption=(
            f"Mean absolute gradient of the middle cell (rows // 2, columns // 2 unless said) {where} with respect to "
            f"the pixels: {how['n']} images, {how['probes']} probes; each map sums to 1."
        ),
        how={
            **how,
            "groups": len(groups),
            "cells": {c.name: c.at for c in cells},
            "gradient sums": mass.flatten().tolist(),
        },
        maps=maps.numpy(),
        names=tuple(names),
        centers=np.array([c.center for c in cells]),
        radii=radii,
        own=np.array([c.share(m) for c, m in zip(cells, maps)]),
        radii_error=radii_error,
        own_error=own_error,
        side=side,
    )
