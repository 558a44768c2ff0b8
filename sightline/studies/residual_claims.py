"""Claims of Raghu et al. about what skip connections carry (C10 to C12)."""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.residual import ResidualRatios, crossing, crossing_place
from sightline.studies.effects import Effect, Part, known_mean, left_out, missing, over_images
from sightline.studies.evidence import Evidence, Model, couples
from sightline.studies.verdict import Assessment

ONCE = 0.8  # nine tenths of all that the curve deviates from 0 lies on the side that one change of sign allows
DEPTHS = 12  # relative depths at which curves of networks of different depths are compared
PATCHES, CLASS, PATCH_COSINE, CLASS_COSINE = range(4)  # rows of `replicates`


def has_class_token(r: ResidualRatios) -> bool:
    """Whether there is a ratio of a class token, and the head reads it: of a mean of patches it is a register."""
    averages = any(m.pool == "gap" for m in r.about.models)
    return bool(np.isfinite(r.class_token[0]).any()) and not averages


def logs(r: ResidualRatios, row: int) -> Part:
    """Log ratio by addition: of the patches, or of the class token."""
    with np.errstate(all="ignore"):
        return np.log(r.ratio if row == PATCHES else r.class_token[0]), np.log(left_out(r.replicates, row))


def cosines(r: ResidualRatios, row: int) -> Part | None:
    """Cosine of skip and sum by addition; None where the groups of images were not kept."""
    if r.replicates.ndim != 3 or r.replicates.shape[1] < 4:
        return None
    return (r.cosine_sum if row == PATCH_COSINE else r.class_token[2]), r.replicates[:, row]


def once(x: NDArray) -> float:
    """1 where a curve changes its sign exactly once, from + to -; about 0 where it does so at random."""
    x = np.nan_to_num(x)
    at, whole = crossing(x), np.abs(x).sum()
    return float((x[:at].sum() - x[at:].sum()) / whole) if whole > 0 else math.nan


def depth_of(x: NDArray) -> float:
    """Relative depth of the change of sign, between two additions where the line between them is 0."""
    return crossing_place(x) / max(len(x) - 1, 1)


def class_token_skips(e: Evidence) -> Iterator[Assessment]:
    for m, r in e.each(e.of("vit", "hybrid", ""), ResidualRatios, has_class_token):
        parts = logs(r, CLASS), logs(r, PATCHES)
        what = "log norm ratio, class token minus patches"
        effects = (
            over_images(f"{what}: mean below the crossing", lambda c, p: below(c - p), *parts),
            over_images(f"{what}: mean above the crossing", lambda c, p: above(c - p), *parts, side="below"),
            over_images(f"{what}: one change of sign", lambda c, p: once(c - p), *parts, bound=ONCE),
        )
        at = over_images("", lambda c, p: depth_of(c - p), *parts)
        known = f" [{at.low:.2f}, {at.high:.2f}]" if math.isfinite(at.low) else ""
        note = f"the sign changes at {at.value:.2f}{known} of the depth"
        yield Assessment(models=(m.id,), effects=effects, note=note, images=r.about.images)


def below(x: NDArray) -> float:
    """Mean before the change of sign."""
    return known_mean(x[: crossing(x)])


def above(x: NDArray) -> float:
    """Mean after the change of sign."""
    return known_mean(x[crossing(x) :])


def skips_of_both(e: Evidence) -> Iterator[Assessment]:
    def judge(vit: Model, cnn: Model, a: ResidualRatios, b: ResidualRatios) -> Assessment:
        parts = logs(a, PATCHES), logs(b, PATCHES)
        effect = over_images("log norm ratio, ViT minus CNN, mean over depth", gap, *parts)
        each = by_depth(parts[0][0]) - by_depth(parts[1][0])
        note = f"larger at {int((each > 0).sum())} of {int(np.isfinite(each).sum())} depths"
        return Assessment(models=(vit.id, cnn.id), effects=(effect,), note=note)

    return e.compare(couples(e.of("vit"), e.of("cnn")), ResidualRatios, judge)


def by_depth(x: NDArray) -> NDArray:
    """A curve at the same relative depths for all networks; NaN where it has no value."""
    return np.interp(np.linspace(0, 1, DEPTHS), np.linspace(0, 1, len(x)), x)


def gap(x: NDArray, y: NDArray) -> float:
    """Mean difference of two curves over the depths where both have a value; one that has none says nothing."""
    return known_mean(by_depth(x) - by_depth(y))


def late_class_token(e: Evidence) -> Iterator[Assessment]:
    for m, r in e.each(e.of("vit", ""), ResidualRatios, has_class_token):
        mlp, attention = (np.array(r.sublayers) == kind for kind in ("mlp", "attention"))
        if not (mlp.any() and attention.any()):
            continue

        def more(c: NDArray, p: NDArray, mlp: NDArray = mlp, attention: NDArray = attention) -> float:
            at = min(crossing(c - p), len(c) - 2)  # the last block at least, both of its additions
            late = np.arange(len(c)) >= at
            change = np.exp(-c)  # |f(z)| / |z|
            sums = [float(np.nansum(change[kind & late])) for kind in (mlp, attention)]
            return (sums[0] - sums[1]) / (sums[0] + sums[1]) if sum(sums) > 0 else math.nan

        what = "share of the class token's change above the crossing, MLP minus attention"
        effects = (over_images(what, more, logs(r, CLASS), logs(r, PATCHES)), *_cosines(r))
        yield Assessment(models=(m.id,), effects=effects, images=r.about.images)


def _cosines(r: ResidualRatios) -> tuple[Effect, Effect]:
    """Whether the cosine of skip and sum changes its sign where the ratio does."""
    what = "cosine of skip and sum, class token minus patches: mean"
    cos = cosines(r, CLASS_COSINE), cosines(r, PATCH_COSINE)
    if cos[0] is None or cos[1] is None:
        return missing(f"{what} below the crossing"), missing(f"{what} above the crossing", side="below")
    parts = logs(r, CLASS), logs(r, PATCHES), cos[0], cos[1]

    def low(c: NDArray, p: NDArray, x: NDArray, y: NDArray) -> float:
        return known_mean((x - y)[: crossing(c - p)])

    def high(c: NDArray, p: NDArray, x: NDArray, y: NDArray) -> float:
        return known_mean((x - y)[crossing(c - p) :])

    return (
        over_images(f"{what} below the crossing", low, *parts),
        over_images(f"{what} above the crossing", high, *parts, side="below"),
    )
