"""Claims of Raghu et al. (C) about attention, receptive fields, skips, localization and probes."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.attention.distance import AttentionDistance
from sightline.analysis.attention.head_subsets import HeadSubsets
from sightline.analysis.receptive_fields import ReceptiveField
from sightline.analysis.residual import ResidualRatios
from sightline.analysis.similarity.block_similarity import BlockSimilarity
from sightline.analysis.similarity.localization import Localization
from sightline.studies.evidence import Evidence
from sightline.studies.verdict import Effect, around, mean_of, share_of
from sightline.studies.vit_claims import FAR, NEAR, Judged, extreme, head_effect

ENOUGH = 1000  # images from which on the CKA of a single token with a patch is worth its name; ours


def low_and_high_heads(e: Evidence) -> Iterator[Judged]:
    for m in e.of("vit", ""):
        r = m.get(AttentionDistance)
        if r is None or len(r.pixels) < 4:
            continue
        low, high = range(0, 2), range(len(r.pixels) - 2, len(r.pixels))
        yield (
            (m.name,),
            [
                head_effect("nearest head of the two lowest blocks", r, extreme(r, low, "nearest"), NEAR, "below"),
                head_effect("farthest head of the two lowest blocks", r, extreme(r, low, "farthest"), FAR, "above"),
                head_effect("nearest head of the two highest blocks", r, extreme(r, high, "nearest"), FAR, "above"),
            ],
            1,
            "fractions of uniform attention's distance",
        )


def subsets(e: Evidence) -> Iterator[Judged]:
    for a, b, r in e.between(HeadSubsets):
        low, high = r.interval()
        effect = Effect(
            what="rank correlation of CKA and distance, mean over the CNN's layers",
            value=float(np.mean(r.ranks())),
            low=low,
            high=high,
            bound=-0.3,
            side="below",
            over="subsets without a common head",
        )
        yield (a.name, b.name), [effect], 1, f"{len(r.subsets)} subsets of heads"


def _radius(r: ReceptiveField) -> tuple[float, float]:
    """Radius of half the mass in the first block as a fraction of the image's width, and its error."""
    width = r.maps.shape[2]
    error = np.nan if r.radii_error is None else r.radii_error[0, 0]
    return float(r.radii[0, 0] / width), float(error / width)


def receptive(e: Evidence) -> Iterator[Judged]:
    for vit, cnn in e.couples("vit", "cnn"):
        a, b = vit.get(ReceptiveField, side="after"), cnn.get(ReceptiveField, side="after")
        if a is None or b is None:
            continue
        (x, ex), (y, ey) = _radius(a), _radius(b)
        effect = around(
            "radius of half the mass in the first block, ViT minus CNN", x - y, 2 * float(np.hypot(ex, ey)), "images"
        )
        yield (vit.name, cnn.name), [effect], 1, "in image widths; how it grows with depth is not judged"


def _center(r: ReceptiveField, before: ReceptiveField) -> tuple[float, float]:
    """Own cell's mass behind the addition minus before it, mean over blocks, and its error."""
    count = min(len(r.own), len(before.own))
    errors = [np.nan if x.own_error is None else float(np.mean(x.own_error[:count])) for x in (r, before)]
    return float(np.mean(r.own[:count]) - np.mean(before.own[:count])), float(np.hypot(errors[0], errors[1]))


def center_patch(e: Evidence) -> Iterator[Judged]:
    for m in e.of("vit", ""):
        after, before = m.get(ReceptiveField, side="after"), m.get(ReceptiveField, side="before")
        if after is None or before is None:
            continue
        gap, error = _center(after, before)
        effects = [around("mass on the own patch, behind minus before the addition", gap, 2 * error, "images")]
        effects += _stands_out(after, m.get(AttentionDistance))
        names: tuple[str, ...] = (m.name,)
        for cnn in e.of("cnn"):
            other = cnn.get(ReceptiveField, side="after"), cnn.get(ReceptiveField, side="before")
            if other[0] is None or other[1] is None:
                continue
            theirs, their_error = _center(other[0], other[1])
            names += (cnn.name,)
            half = 2 * float(np.hypot(error, their_error))
            effects.append(around("that difference, ViT minus CNN", gap - theirs, half, "images"))
        yield names, effects, 1, ""


def _stands_out(after: ReceptiveField, distance: AttentionDistance | None) -> list[Effect]:
    """The own patch's mass against its area at the depth where it is least."""
    if distance is None or after.own_error is None:
        return []
    worst = int(np.argmin(after.own))
    cells = distance.grid[0] * distance.grid[1]
    what = "own patch's mass over its area, at the depth where it is least"
    return [around(what, after.own[worst] * cells, 2 * after.own_error[worst] * cells, "images", bound=10)]


def _halves(x: NDArray) -> tuple[NDArray, NDArray]:
    half = len(x) // 2
    return x[:half], x[half:]


def class_token_skips(e: Evidence) -> Iterator[Judged]:
    for m in e.of("vit", "hybrid", ""):
        r = m.get(ResidualRatios)
        if r is None or not np.isfinite(r.class_token[0]).any():
            continue
        low, high = _halves(r.class_minus_patches())
        yield (
            (m.name,),
            [
                mean_of("log norm ratio, class token minus patches, lower half", low, "additions"),
                mean_of("log norm ratio, class token minus patches, upper half", high, "additions", side="below"),
            ],
            1,
            "",
        )


def skips_of_both(e: Evidence) -> Iterator[Judged]:
    for vit, cnn in e.couples("vit", "cnn"):
        a, b = vit.get(ResidualRatios), cnn.get(ResidualRatios)
        if a is None or b is None:
            continue
        at = np.linspace(0, 1, 12)
        curves = [np.interp(at, np.linspace(0, 1, len(r.ratio)), np.log(r.ratio)) for r in (a, b)]
        gap = curves[0] - curves[1]
        gap = gap[~np.isnan(gap)]  # a depth without a ratio says nothing
        yield (
            (vit.name, cnn.name),
            [
                mean_of("log norm ratio, ViT minus CNN", gap, "depths"),
                share_of("depths where the ViT's ratio is larger", gap > 0, "depths", bound=0.5),
            ],
            1,
            f"larger at {int((gap > 0).sum())} of {len(gap)} depths",
        )


def late_class_token(e: Evidence) -> Iterator[Judged]:
    for m in e.of("vit", ""):
        r = m.get(ResidualRatios)
        if r is None or not np.isfinite(r.class_token[0]).any():
            continue
        rows = {kind: r.of(kind) for kind in ("attention", "mlp")}
        if len(rows["attention"]) != len(rows["mlp"]) or not len(rows["mlp"]):
            continue
        log = np.log(r.class_token[0])
        more = _halves(log[rows["attention"]] - log[rows["mlp"]])[1]
        low, high = _halves(r.class_token[2] - r.cosine_sum)
        yield (
            (m.name,),
            [
                mean_of("upper half, class token: log ratio of attention minus MLP", more, "blocks"),
                mean_of("cosine of skip and sum, class minus patches, lower half", low, "additions"),
                mean_of("cosine of skip and sum, class minus patches, upper half", high, "additions", side="below"),
            ],
            1,
            "",
        )


def hits(r: Localization, *, inside: bool = True) -> NDArray[np.bool_]:
    """Which tokens are most like their own patch; those in the interior alone."""
    flat = r.maps.reshape(len(r.maps), -1)
    own = np.nan_to_num(flat, nan=-np.inf).argmax(1) == np.arange(len(flat))
    mask = np.ones(r.grid, dtype=bool)
    if inside and min(r.grid) > 2:
        mask[:] = False
        mask[1:-1, 1:-1] = True
    return np.asarray(own[mask.ravel() & ~np.isnan(flat).all(1)])


def places(r: Localization) -> Effect:
    """The share of hits. Few images hide places behind noise and show none that are not there: up, it is open."""
    found = share_of("interior tokens most like their own patch", hits(r), "tokens", bound=0.5)
    return replace(found, high=1.0) if int(r.how.get("n", 0)) < ENOUGH else found


def apart(what: str, a: Effect, b: Effect) -> Effect:
    """One share minus another, by the distances of their ends (Newcombe)."""
    value = a.value - b.value
    down, up = np.hypot(a.value - a.low, b.high - b.value), np.hypot(a.high - a.value, b.value - b.low)
    return Effect(what=what, value=value, low=float(value - down), high=float(value + up), over="tokens")


def _noted(*results: Localization) -> str:
    few = min(int(r.how.get("n", 0)) for r in results)
    return f"{few:,} images" + (f"; {ENOUGH:,} are needed to say that a place is lost" if few < ENOUGH else "")


def own_place(e: Evidence) -> Iterator[Judged]:
    for m in e.of("vit", pool="cls"):
        r = m.get(Localization)
        if r is not None:
            yield (m.name,), [places(r)], 1, _noted(r)


def own_place_of_both(e: Evidence) -> Iterator[Judged]:
    for vit, cnn in e.couples("vit", "cnn"):
        a, b = vit.get(Localization), cnn.get(Localization)
        if a is not None and b is not None and vit.pool == "cls":
            what = "tokens most like their own patch, ViT minus CNN"
            yield (vit.name, cnn.name), [apart(what, places(a), places(b))], 1, _noted(a, b)


def own_place_by_pool(e: Evidence) -> Iterator[Judged]:
    for a in e.of("vit", pool="cls"):
        for b in e.of("vit", pool="gap"):
            x, y = a.get(Localization), b.get(Localization)
            if x is not None and y is not None:
                what = "tokens most like their own patch, CLS minus GAP"
                yield (a.name, b.name), [apart(what, places(x), places(y))], 1, _noted(x, y)


def data_scale(e: Evidence) -> Iterator[Judged]:
    """Only of results that say that the data varied: `varied == "data"`."""
    for r in e.all(BlockSimilarity):
        if r.varied != "data":
            continue
        for name, row in zip(r.models, r.similarity):
            row = row[np.isfinite(row)]
            low, high = _halves(row)
            if len(low) and not np.allclose(row, 1):
                half = 2 * float(np.hypot(low.std(), high.std()) / max(len(low), 1) ** 0.5)
                effect = around(
                    "CKA with the full model, lower minus upper half", low.mean() - high.mean(), half, "blocks"
                )
                yield (name,), [effect], int(r.how.get("seeds", 1)), ""
