"""Claims of Raghu et al. (C1 to C4) about similarity within and between models."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.similarity.cka import CKA
from sightline.evals.interval import t95
from sightline.studies.evidence import Evidence, Model, couples
from sightline.studies.verdict import Assessment, around, mean_of

LINEAR, PAPER = 0.25, 0.125  # mean depth in the ViT that a CNN's lower half matches: layer by layer; in the paper


def spread(r: CKA) -> NDArray[np.float64]:
    """Standard deviation of each cell over repeats; NaN with one repeat.

    Repeats share images, so what counts is how far single ones differ, not how well their mean is known.
    """
    n = int(r.how.get("repeats", 1))
    return np.full(r.band.shape, np.nan) if n < 2 else np.asarray(r.band * n**0.5 / t95(n - 1))


def half_of(r: CKA, cells: NDArray[np.bool_]) -> float:
    """Half width of the mean over some cells, as if all of them erred together."""
    found = spread(r)[cells & np.isfinite(r.similarity)]
    known = found[np.isfinite(found)]
    return 2 * float(known.mean()) if known.size else float("nan")


def within(r: CKA) -> bool:
    """All layers of one model with each other."""
    return len(r.about.models) == 1 and r.rows == r.columns and len(r.rows) >= 4


def across(r: CKA) -> bool:
    """All layers of one model with all layers of another; not pooled features."""
    return len(r.about.models) == 2 and r.about.analysis != "cka-pooled"


def corner(r: CKA) -> NDArray[np.bool_]:
    """Pairs of one layer of the lower and one of the upper half."""
    mask = np.zeros(r.similarity.shape, dtype=bool)
    mask[: len(mask) // 2, len(mask) // 2 :] = True
    return mask


def evenness(e: Evidence) -> Iterator[Assessment]:
    def judge(vit: Model, cnn: Model, a: CKA, b: CKA) -> Assessment:
        means = [float(np.nanmean(r.similarity[corner(r)])) for r in (a, b)]
        half = float(np.hypot(half_of(a, corner(a)), half_of(b, corner(b))))
        off = [~np.eye(len(r.rows), dtype=bool) for r in (a, b)]
        spreads = [float(np.nanstd(r.similarity[o])) for r, o in zip((a, b), off)]
        half_spread = float(np.hypot(half_of(a, off[0]), half_of(b, off[1])))
        effects = (
            around("CKA of lower and upper half, ViT minus CNN", means[0] - means[1], half, "repeats"),
            around("spread of the heat map, CNN minus ViT", spreads[1] - spreads[0], half_spread, "repeats"),
        )
        return Assessment(models=(vit.id, cnn.id), effects=effects)

    return e.compare(couples(e.of("vit"), e.of("cnn")), CKA, judge, where=within)


def parts(r: CKA, stages: tuple[int, ...]) -> tuple[float, NDArray[np.bool_]]:
    """Mean CKA within parts minus between parts, without the diagonal."""
    of = np.array(stages)
    known = of >= 0
    same = (of[:, None] == of) & known[:, None] & known
    other = (of[:, None] != of) & known[:, None] & known
    np.fill_diagonal(same, False)
    return float(np.nanmean(r.similarity[same]) - np.nanmean(r.similarity[other])), same | other


def stage_blocks(e: Evidence) -> Iterator[Assessment]:
    def judge(vit: Model, cnn: Model, a: CKA, b: CKA) -> Assessment | None:
        count = len(set(b.row_stages) - {-1})
        if count < 2:
            return None
        equal = tuple(int(i * count // len(a.rows)) for i in range(len(a.rows)))
        (x, mx), (y, my) = parts(a, equal), parts(b, b.row_stages)
        half = float(np.hypot(half_of(a, mx), half_of(b, my)))
        effect = around("CKA within stages minus between them, CNN minus ViT", y - x, half, "repeats")
        return Assessment(models=(vit.id, cnn.id), effects=(effect,), note=f"the ViT cut into {count} equal parts")

    return e.compare(couples(e.of("vit"), e.of("cnn")), CKA, judge, where=within)


def vit_rows(e: Evidence) -> Iterator[tuple[Model, Model, CKA, NDArray, NDArray]]:
    """Heat maps with the layers of a ViT as rows and those of a CNN as columns, and the spread of their cells."""
    for a, b, r in e.between(CKA):
        if {a.id.kind, b.id.kind} != {"vit", "cnn"} or not across(r):
            continue
        s, d = r.similarity, spread(r)
        yield (a, b, r, s, d) if a.id.kind == "vit" else (b, a, r, s.T, d.T)


def lower_half(e: Evidence) -> Iterator[Assessment]:
    for vit, cnn, r, s, _ in vit_rows(e):
        known = np.isfinite(s).any(0)
        best = np.nan_to_num(s, nan=-np.inf).argmax(0) / max(len(s) - 1, 1)
        low = best[: s.shape[1] // 2][known[: s.shape[1] // 2]]
        what = "relative depth in the ViT that matches the CNN's lower half best"
        effect = mean_of(what, low, "the CNN's layers", bound=(LINEAR + PAPER) / 2, side="below")
        note = f"{LINEAR} would be layer by layer, {PAPER} the paper's lowest quarter"
        yield Assessment(models=(vit.id, cnn.id), effects=(effect,), note=note, images=r.about.images)


def top_third(e: Evidence) -> Iterator[Assessment]:
    for vit, cnn, r, s, d in vit_rows(e):
        known = np.isfinite(s).any(1)
        best = np.nan_to_num(s, nan=-np.inf).max(1)
        top = np.arange(len(s)) >= len(s) - len(s) // 3
        gap = best[top & known].mean() - best[~top & known].mean()
        half = 2 * float(np.nanmean(d)) * 2**0.5 if np.isfinite(d).any() else float("nan")
        effect = around("best CKA with any CNN layer, top third minus the rest", gap, half, "repeats", side="below")
        yield Assessment(models=(vit.id, cnn.id), effects=(effect,), images=r.about.images)
