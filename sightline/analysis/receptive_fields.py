"""Effective receptive field: which pixels move the middle of a layer (Raghu et al., figures 6, C.1 to C.4)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from sightline.evals.interval import Ends, ends, jackknife, known_ends, t95
from sightline.models.taps import record
from sightline.observe.groups import ImageGroups
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
    radii_error: NDArray[np.float64] | None = None  # standard errors over images, by the jackknife; NaN for few images
    own_error: NDArray[np.float64] | None = None
    side: Literal["after", "before"] = "after"  # of the residual addition; before it, the branch alone
    replicates: NDArray[np.float64] = field(
        default_factory=lambda: np.zeros((0, 0, 0))
    )  # (groups of images, layers, 3):
    # both radii and the own mass without each group
    largest: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # (layers,): share of the images in which
    # no other cell of the layer's grid has more mass than the own one
    largest_replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))  # (groups, layers)

    def summary(self) -> dict[str, float]:
        first, last = self.names[0], self.names[-1]
        rows = {first: 0, last: len(self.names) - 1}
        numbers = {f"{name}: radius of 50 %": float(self.radii[i, 0]) for name, i in rows.items()}
        numbers |= {f"{name}: radius of 90 %": float(self.radii[i, 1]) for name, i in rows.items()}
        return numbers | {f"{name}: mass on its own cell": float(self.own[i]) for name, i in rows.items()}

    def interval(self, layer: int, column: int) -> Ends:
        """95 % interval over images of one of the three numbers of a layer: both radii, and the mass on its own cell.

        An older file holds no replicates, but it may hold standard errors.
        """
        value = float((*self.radii[layer], self.own[layer])[column])
        if len(self.replicates):
            half = float(jackknife(self.replicates[:, layer, column]))
        else:
            held = self.radii_error if column < 2 else self.own_error
            half = np.nan if held is None else 1.96 * float(held[layer, column] if column < 2 else held[layer])
        return ends(value, half, least=0.0, most=np.inf if column < 2 else 1.0)

    def intervals(self) -> dict[str, Ends]:
        what = "radius of 50 %", "radius of 90 %", "mass on its own cell"
        rows = {self.names[0]: 0, self.names[-1]: len(self.names) - 1}
        return known_ends(
            {f"{name}: {text}": self.interval(i, j) for name, i in rows.items() for j, text in enumerate(what)}
        )


def mass_radii(
    field: Float[Tensor, "y x"], center: tuple[float, float], shares: Sequence[float] = (0.5, 0.9)
) -> list[float]:
    """Radius in pixels around `center` within which each share of the mass lies; pixel (i, j) stands at (i + ½, j + ½).

    >>> import torch
    >>> field = torch.zeros(9, 9); field[4, 4] = 1
    >>> sl.analysis.mass_radii(field, (4.5, 4.5))
    [0.0, 0.4]
    """
    return all_radii(field[None], center, shares)[0].tolist()


def all_radii(
    fields: Float[Tensor, "g y x"], center: tuple[float, float], shares: Sequence[float] = (0.5, 0.9)
) -> Float[Tensor, "g s"]:
    """The same for several fields around one center; NaN for a field without mass.

    A pixel is one pixel wide: its mass comes in evenly while the radius grows from half a pixel before its middle to
    half a pixel behind. A radius that could only be the distance of a pixel would jump from one to the next, and its
    error over images could not be told.
    """
    y = torch.arange(fields.shape[1], dtype=torch.float64) + 0.5 - center[0]
    x = torch.arange(fields.shape[2], dtype=torch.float64) + 0.5 - center[1]
    far = torch.hypot(y[:, None], x[None, :]).flatten()
    radius, order = torch.cat([far - 0.5, far + 0.5]).sort()
    each = fields.double().flatten(1).cpu()
    growth = torch.cat([each, -each], 1)[:, order].cumsum(1)  # of the mass, from each radius to the next
    mass = torch.nn.functional.pad((growth[:, :-1] * radius.diff()).cumsum(1), (1, 0))
    whole = each.sum(1, keepdim=True)
    found = []
    for share in shares:
        after = (mass < share * whole).sum(1, keepdim=True).clamp(1, len(radius) - 1)
        missing = share * whole - mass.gather(1, after - 1)
        more = missing / growth.gather(1, after - 1).clamp(min=1e-300)
        found.append((radius[after - 1] + more.clamp(max=1.0)).clamp(min=0)[:, 0])
    return torch.where(whole > 0, torch.stack(found, dim=1), torch.nan)


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
    chosen = spatial_layers(s, layers)
    names = _sides(s, chosen, side)
    if probes is not None and (isinstance(probes, bool) or probes < 1):
        raise ValueError(f"probes is a whole number from 1 up, or None for every channel; got {probes!r}.")
    source = ImageSource(data=data, batch=max(1, min(8, n // 4)), n=n, seed=seed)
    groups = ImageGroups(source.total, seed)
    sums = FieldSums(groups.count, len(names), s.image.size)
    cells: dict[str, Cell] = {}
    for made in field_batches(s, source, names, at=at, probes=probes):
        member = torch.from_numpy(groups(made.index))
        sums.images.index_add_(0, member, torch.ones(len(member), dtype=torch.float64))
        cells = made.cells
        for i, name in enumerate(names):
            sums.add(i, made.fields[name], cells[name], member)
    how: dict[str, Any] = {
        "n": int(sums.images.sum()),
        "probes": probes or "every channel",
        "seed": seed,
        "groups": groups.count,
    }
    if side == "before":  # units without a skip have no branch, and the others have names of their own
        how["sums"] = [name for name in chosen if name in s.part and s.part[name].branch]
    found = _result(s, names, sums, list(cells.values()), how=how, side=side)
    return replace(found, about=source.about(s))


@dataclass(frozen=True)
class Fields:
    """The fields of a batch of images, (b, y, x) for each layer."""

    index: NDArray[np.int64]  # which images these are
    cells: dict[str, "Cell"]
    fields: dict[str, Tensor]


def field_batches(
    s: ObservedModel,
    source: ImageSource,
    names: list[str],
    *,
    at: tuple[int, int] | None = None,
    probes: int | None = 2,
    wanted: Sequence[str] | None = None,
) -> Iterator[Fields]:
    """Fields batch by batch. `wanted` leaves the other layers out, with the same probes for those that are left."""
    random = torch.Generator().manual_seed(source.seed)
    with evaluation_mode(s, gradients=True):
        for made in source.batches([s], what="receptive field"):
            images = made.images[0].requires_grad_()
            with record(s.model, *names) as tape:
                s.model(images)
            cells = {name: Cell(s, name, tape[name], at) for name in names}
            found: dict[str, Tensor] = {}
            for name in names:
                value = cells[name].value(tape[name])
                signs = random_signs(value.shape[1], probes, random)
                if wanted is None or name in wanted:
                    found[name] = gradients(value, images, signs)
            yield Fields(made.index, cells, found)


def spatial_layers(s: ObservedModel, layers: Layers) -> list[str]:
    """The chosen layers that have a place for each cell."""
    names = select_layers(s, layers)
    return [name for name in names if name not in s.part or s.part[name].layout != "vector"]


def _sides(s: ObservedModel, names: list[str], side: str) -> list[str]:
    if side not in ("after", "before"):
        raise ValueError(f"side is 'after' or 'before' the residual addition; got {side!r}.")
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
        self.grid, self.number = grid, self.at[0] * grid[1] + self.at[1]
        self.patch = (s.image.size[0] / grid[0], s.image.size[1] / grid[1])
        self.center = ((self.at[0] + 0.5) * self.patch[0], (self.at[1] + 0.5) * self.patch[1])

    def value(self, layer: Tensor) -> Float[Tensor, "b d"]:
        if layer.ndim == 4:  # not through `as_tokens`: the backward pass of batch norms is wrong for its strides
            return layer[:, :, self.at[0], self.at[1]]
        found = as_tokens(layer, self.target, self.name)
        return found.tokens[:, found.prefix + self.number]

    def is_largest(self, fields: Float[Tensor, "b y x"]) -> Tensor:
        """For each image, whether no other cell of the grid has more mass than this one."""
        cells = torch.nn.functional.adaptive_avg_pool2d(fields[:, None], self.grid).flatten(1)
        return (cells[:, self.number] > 0) & (cells.argmax(1) == self.number)

    def share(self, field: Tensor) -> float:
        """Mass on the cell's own pixels."""
        (y, x), (p, q) = self.at, self.patch
        return field[round(y * p) : round((y + 1) * p), round(x * q) : round((x + 1) * q)].sum().item()


def random_signs(width: int, probes: int | None, random: torch.Generator) -> Float[Tensor, "p d"]:
    """The combinations of channels whose gradients are taken: every channel, or all of them with random signs."""
    if probes is None:
        return torch.eye(width)
    signs = torch.randint(0, 2, (probes, width), generator=random) * 2.0 - 1
    return signs / width**0.5  # E|sum of signed gradients| grows with the root of the width


def gradients(
    value: Float[Tensor, "b d"], images: Float[Tensor, "b c y x"], signs: Float[Tensor, "p d"]
) -> Float[Tensor, "b y x"]:
    """Mean |d value / d pixel| over channels of value and image, of each image. Images do not mix."""
    total = torch.zeros(len(images), *images.shape[2:], dtype=torch.float64)
    for row in signs.to(value):
        (g,) = torch.autograd.grad((value @ row).sum(), images, retain_graph=True)
        total += g.abs().mean(1).double().cpu()
    return total / len(signs)


class FieldSums:
    """Sums of the maps of each group of images, and in how many of them the own cell has the most mass."""

    def __init__(self, groups: int, layers: int, size: tuple[int, int]):
        self.maps = torch.zeros(groups, layers, *size, dtype=torch.float64)
        self.hits = torch.zeros(groups, layers, dtype=torch.float64)
        self.images = torch.zeros(groups, dtype=torch.float64)

    def add(self, layer: int, fields: Float[Tensor, "b y x"], cell: Cell, groups: Tensor) -> None:
        self.maps[:, layer].index_add_(0, groups, fields)
        self.hits[:, layer].index_add_(0, groups, cell.is_largest(fields).double())

    def without_groups(self, cells: list[Cell]) -> NDArray[np.float64]:
        """(groups, layers, 3): both radii and the own mass."""
        if len(self.images) < 2:
            return np.zeros((0, len(cells), 3))
        left = _normalized(self.maps.sum(0) - self.maps)
        radii = torch.stack([all_radii(left[:, i], c.center) for i, c in enumerate(cells)], dim=1)
        own = torch.tensor([[c.share(m) for c, m in zip(cells, group)] for group in left], dtype=torch.float64)
        return torch.cat([radii, own[..., None]], dim=2).numpy()


def _normalized(maps: Float[Tensor, "*l y x"]) -> Float[Tensor, "*l y x"]:
    return maps / maps.sum((-1, -2), keepdim=True).clamp(min=1e-300)


def _result(
    s: ObservedModel,
    names: list[str],
    sums: FieldSums,
    cells: list[Cell],
    *,
    how: dict[str, Any],
    side: Literal["after", "before"],
) -> ReceptiveField:
    total = sums.maps.sum(0) / how["n"]
    maps = _normalized(total)
    left = sums.without_groups(cells)
    error = jackknife(left) / t95(len(left) - 1)
    hits, n = sums.hits.numpy(), sums.images.numpy()
    where = "after the addition" if side == "after" else "of the branch, before the addition"
    return ReceptiveField(
        title=f"Effective receptive fields of {s.name}",
        caption=(
            f"Mean absolute gradient of the middle cell (rows // 2, columns // 2 unless said) {where} with respect to "
            f"the pixels: {how['n']} images, {how['probes']} probes; each map sums to 1."
        ),
        how={**how, "cells": {c.name: c.at for c in cells}, "gradient sums": total.sum((1, 2)).tolist()},
        maps=maps.numpy(),
        names=tuple(names),
        centers=np.array([c.center for c in cells]),
        radii=np.array([mass_radii(m, c.center) for m, c in zip(maps, cells)]),
        own=np.array([c.share(m) for c, m in zip(cells, maps)]),
        radii_error=error[:, :2],
        own_error=error[:, 2],
        side=side,
        replicates=left,
        largest=hits.sum(0) / n.sum(),
        largest_replicates=(hits.sum(0) - hits) / (n.sum() - n)[:, None] if len(n) > 1 else np.zeros((0, len(cells))),
    )
