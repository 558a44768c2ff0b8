"""What the skip connections carry: skip against branch, per token and block (Raghu et al., figures 7, E.1, E.2)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from sightline.adoption.shortcuts import same_sum
from sightline.evals.interval import Ends, Part, intervals_of
from sightline.models.parts import Part as ModelPart
from sightline.models.taps import record
from sightline.observe.groups import ImageGroups
from sightline.observe.images import Data, ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.observe.selection import as_tokens
from sightline.spec import About, Result


def skip_branch_ratio(skip: Float[Tensor, "b n d"], branch: Float[Tensor, "b n d"]) -> Float[Tensor, "3 b n"]:
    """Per token: |z| / |f(z)|, cos(z, f(z)) and cos(z, z + f(z)).

    >>> import torch
    >>> z = torch.tensor([[[3.0, 0.0]]])
    >>> sl.analysis.skip_branch_ratio(z, torch.tensor([[[0.0, 4.0]]])).flatten().tolist()
    [0.75, 0.0, 0.6]
    """
    z, f = (t if t.dtype == torch.float64 else t.float() for t in (skip, branch))
    zz, ff, zf = z.square().sum(-1).double(), f.square().sum(-1).double(), (z * f).sum(-1).double()
    if not (torch.isfinite(zz).all() and torch.isfinite(ff).all()):  # squares beyond float32: from 1e19 on
        z, f = z.double(), f.double()
        zz, ff, zf = z.square().sum(-1), f.square().sum(-1), (z * f).sum(-1)
    size, added, whole = zz.sqrt(), ff.sqrt(), (zz + 2 * zf + ff).clamp(min=0).sqrt()
    return torch.stack([size / added, zf / (size * added), (zz + zf) / (size * whole)])


@dataclass(frozen=True, kw_only=True)
class ResidualRatios(Result):
    """Norm ratio |z| / |f(z)| and both cosines of every addition: large ratios, and cosines of the sum near 1, mean
    that the skip dominates. Rows are additions in the order of computation, first to last.

    >>> import numpy as np
    >>> x = np.ones((2, 1))
    >>> r = sl.analysis.ResidualRatios(title="", caption="", names=("a", "b"), sublayers=("attention", "mlp"),
    ...     blocks=(0, 0),
    ...                      ratio=x[:, 0], cosine_branch=x[:, 0], cosine_sum=x[:, 0], class_token=np.ones((3, 2)),
    ...                      per_token=np.ones((3, 2, 4)))
    >>> r.summary()["ratio of the patches, mean"]
    1.0
    """

    names: tuple[str, ...]
    sublayers: tuple[str, ...]  # attention, mixing, mlp, convolution
    blocks: tuple[int, ...]
    ratio: NDArray[np.float64]  # (additions,), mean over patches or locations and images
    cosine_branch: NDArray[np.float64]  # cos(z, f(z))
    cosine_sum: NDArray[np.float64]  # cos(z, z + f(z))
    class_token: NDArray[np.float64]  # (3 measures, additions), NaN without one
    per_token: NDArray[np.float64]  # (3 measures, additions, tokens), prefix first; no tokens for a CNN: maps differ
    reasons: dict[str, str] = field(default_factory=dict)  # addition: why it, or some of its places, have no value
    replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0, 0)))  # (groups of images, 4,
    # additions): without each group, `ratio` and that of the class token, `cosine_sum` and that of the class token

    def of(self, sublayer: str) -> NDArray[np.intp]:
        """The rows of one kind of sublayer."""
        return np.flatnonzero(np.array(self.sublayers) == sublayer)

    def class_minus_patches(self) -> NDArray[np.float64]:
        """log ratio of the class token minus that of the patches, by addition; C10: its sign changes."""
        return np.asarray(_gap(self.class_token[0], self.ratio))

    @property
    def has_class_token(self) -> bool:
        """Whether there is a ratio of a class token."""
        return bool(np.isfinite(self.class_token[0]).any())

    def part(self, row: int) -> Part:
        """One row of `replicates`, without each group, beside its value over all images."""
        whole = (self.ratio, self.class_token[0], self.cosine_sum, self.class_token[2])[row]
        kept = self.replicates.ndim == 3 and self.replicates.shape[1] > row
        return whole, self.replicates[:, row] if kept else np.zeros((0, *whole.shape))

    def summary(self) -> dict[str, float]:
        numbers = {"ratio of the patches, mean": _mean(self.ratio), MEDIAN: _median(self.ratio)}
        numbers |= {"cos(z, z + f(z)), mean": _mean(self.cosine_sum)}
        if not self.has_class_token:
            return numbers
        return numbers | {name: f(self.class_token[0], self.ratio) for name, f in CLASS_STATISTICS.items()}

    def intervals(self) -> dict[str, Ends]:
        means = {"ratio of the patches, mean": _mean, MEDIAN: _median}
        found = intervals_of(means, self.part(0), least=0.0)
        found |= intervals_of({"cos(z, z + f(z)), mean": _mean}, self.part(2), least=-1.0, most=1.0)
        if self.has_class_token:
            found |= intervals_of(CLASS_STATISTICS, self.part(1), self.part(0))
        return found


def _mean(values: NDArray[np.float64]) -> float:
    """Of what is a number, infinities too: a branch of zeros at one place makes the mean ratio infinite."""
    known = values[~np.isnan(values)]
    with np.errstate(invalid="ignore"):  # infinity less infinity
        return float(known.mean()) if known.size else math.nan


def _median(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else math.nan


def _gap(class_token: NDArray, patches: NDArray) -> NDArray:
    """Log ratio of the class token minus that of the patches."""
    with np.errstate(all="ignore"):
        return np.asarray(np.log(class_token) - np.log(patches))


def crossing(x: NDArray) -> int:
    """How many values come before the one change of sign, from + to -, that fits a curve best; at least one on either
    side."""
    steps = np.cumsum(np.nan_to_num(x))
    return int(np.argmax((2 * steps - steps[-1])[:-1])) + 1


def crossing_place(x: NDArray) -> float:
    """Where along a curve its sign changes from + to -, between two values where the line between them is 0; counted
    from 0 at the first value. NaN for fewer than two."""
    if len(x) < 2:
        return math.nan
    at = crossing(x)
    before, after = float(x[at - 1]), float(x[at])
    return at - 1 + (before / (before - after) if before > 0 > after else 0.5)


def take_over(class_token: NDArray, patches: NDArray) -> float:
    """The addition, counted from 1 as on the page, at which the class token's ratio falls below the patches': from
    there on it is rewritten more than they are. NaN where it does not."""
    x = _gap(class_token, patches)
    at = crossing_place(x)
    known = math.isfinite(at) and x[int(at)] > 0 > x[int(at) + 1]
    return 1 + at if known else math.nan


MEDIAN = "ratio of the patches, median"
TAKE_OVER = "addition at which the class token's ratio falls below the patches'"
CLASS_STATISTICS: dict[str, Callable[[NDArray, NDArray], float]] = {
    "log ratio, class token minus patches, lower half": lambda c, p: _mean(_gap(c, p)[: len(p) // 2]),
    "log ratio, class token minus patches, upper half": lambda c, p: _mean(_gap(c, p)[len(p) // 2 :]),
    TAKE_OVER: take_over,
}


def residual_ratios(
    model: Model, data: Data, *, n: int | None = None, batch: int = 32, seed: int = 0
) -> ResidualRatios:
    """Skip against branch at every addition, averaged over images: attention and MLP apart, the class token apart.

    The branch is taken as it is added: after norm, LayerScale and stochastic depth, in evaluation mode. Where the
    shortcut of a ResNet is a convolution, z is its output; where a ReLU follows the addition, it is left out.

    >>> found = sl.residual_ratios(sl.build("vit-nano4", classes=10), sl.dataset("scenes/shape", num=8, size=32))
    >>> found.per_token.shape, found.sublayers[:2]
    ((3, 12, 65), ('attention', 'mlp'))
    """
    s = observe(model)
    sums = [p for p in s.parts if p.kind == "sum" and p.skip and p.branch]
    if not sums:
        raise ValueError(f"{s.name} does not say what is added to what, so skip and branch cannot be compared.")
    images = ImageSource(data=data, batch=batch, n=n, seed=seed)
    groups = ImageGroups(images.total, seed)
    watch = Additions(s, sums, groups.count)
    with evaluation_mode(s):
        for made in images.batches([s], what="residual study"):
            watch.groups = torch.from_numpy(groups(made.index))
            with record(s.model, *watch.paths, keep=watch.keep):
                s.model(made.images[0])
            watch.images.index_add_(0, watch.groups, torch.ones(len(made)))
    how = {"n": int(watch.images.sum()), "batch": batch, "seed": seed, "groups": groups.count}
    return _result(s, watch, how, images.about(s))


class Additions:
    """Sums over the images of each group; a tensor is held only until the addition it takes part in is done."""

    def __init__(self, s: ObservedModel, sums: list[ModelPart], count: int):
        self.target, self.sums, self.images = s, {p.path: p for p in sums}, torch.zeros(count)
        self.groups = torch.zeros(0, dtype=torch.long)  # of the images of the current batch
        self.paths = list(dict.fromkeys(q for p in sums for q in (p.skip, p.branch, p.path) if q))
        self.skips = {p.skip for p in sums}
        self.held: dict[str, Tensor] = {}
        self.total: dict[str, Tensor] = {}  # (groups, 3, tokens)
        self.count: dict[str, Tensor] = {}  # the same: how many images have each
        self.prefix: dict[str, int] = {}
        self.why: dict[str, str] = {}

    def keep(self, path: str, value: Tensor) -> None:
        p = self.sums.get(path)
        if p is None:
            self.held[path] = value
            return
        assert p.skip is not None
        assert p.branch is not None
        skip, branch = self.held.pop(p.skip), self.held.pop(p.branch)
        if path in self.skips:
            self.held[path] = value
        if not (torch.isfinite(skip).all() and torch.isfinite(branch).all()):
            wider = "float64" if skip.dtype == torch.float32 else "float32"
            self.why[path] = f"{path}: skip or branch holds NaN or infinite values; try the model in {wider}"
            return
        if not same_sum(skip[:1], branch[:1], value[:1]):
            self.why[path] = f"{path} is not the sum of skip and branch: this block has no skip connection"
            return
        if not branch.any():
            self.why[path] = f"{path}: the branch adds nothing"
            return
        layer = as_tokens(skip, self.target, path)
        z, f = layer.tokens, as_tokens(branch, self.target, path).tokens
        self.prefix[path] = layer.prefix
        found = skip_branch_ratio(z, f).transpose(0, 1).cpu()  # (images, 3, tokens)
        known = ~found.isnan()  # where skip or branch is zero there is no cosine, where both are no ratio either
        empty = torch.zeros(2, len(self.images), *found.shape[1:], dtype=torch.float64)
        self.total.setdefault(path, empty[0]).index_add_(0, self.groups, found.where(known, 0.0))
        self.count.setdefault(path, empty[1]).index_add_(0, self.groups, known.double())


def _over_tokens(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the last axis of what is known; NaN where nothing is."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):  # nothing is known, or an infinite ratio
        return np.asarray(np.where(known, values, 0).sum(-1) / known.sum(-1))


def zero_places(name: str, count: NDArray[np.float64], images: int) -> str:
    """What is left out of the means of an addition, from how many images have each measure at each token."""
    ratio, *cosines = 1 - count.sum(0).mean(1) / images
    if not max(cosines) > 0:
        return ""
    said = f"{name}: {max(cosines):.1%} of the places have no cosine, since skip, branch or sum is zero there"
    return f"{said}, and {ratio:.1%} no ratio, since skip and branch are" if ratio > 0 else said


def _result(s: ObservedModel, watch: Additions, how: dict[str, Any], about: About) -> ResidualRatios:
    names = tuple(watch.sums)
    tokens = s.prefix + s.grid[0] * s.grid[1] if s.encoder_blocks else 0
    patches, first = np.full((3, len(names)), np.nan), np.full((3, len(names)), np.nan)
    each = np.full((3, len(names), tokens), np.nan)
    left = np.full((len(watch.images), 4, len(names)), np.nan)
    for i, name in enumerate(names):
        if name in watch.total and name not in watch.why:
            groups, count, prefix = watch.total[name].numpy(), watch.count[name].numpy(), watch.prefix[name]
            with np.errstate(invalid="ignore", divide="ignore"):  # an infinite ratio, or all images in one group
                mean = groups.sum(0) / count.sum(0)
                less = ((groups.sum(0) - groups) / (count.sum(0) - count))[:, [0, 2]]
            patches[:, i] = _over_tokens(mean[:, prefix:])
            left[:, 0::2, i] = _over_tokens(less[:, :, prefix:])
            if why := zero_places(name, count, int(how["n"])):
                watch.why[name] = why
            if s.class_token and prefix:
                first[:, i], left[:, 1::2, i] = mean[:, 0], less[:, :, 0]
            if mean.shape[1] == tokens:
                each[:, i] = mean
    parts = watch.sums.values()
    return ResidualRatios(
        title=f"Skip connections of {s.name}",
        caption=(
            f"|z| / |f(z)|, cos(z, f(z)) and cos(z, z + f(z)) of {len(names)} additions, over {how['n']:,} "
            "images; z is the skip, f(z) the branch as it is added. Rows run from the first block to the last."
        ),
        how={**how, "tokens": "each, the class token apart", "axis": "first block first"},
        about=about,
        names=names,
        sublayers=tuple(p.sublayer or "" for p in parts),
        blocks=tuple(-1 if p.block is None else p.block for p in parts),
        ratio=patches[0],
        cosine_branch=patches[1],
        cosine_sum=patches[2],
        class_token=first,
        per_token=each,
        reasons=watch.why,
        replicates=left,
    )
