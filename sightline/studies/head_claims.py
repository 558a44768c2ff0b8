"""Claims about how far heads look (V8, V9, C5), and about what local heads are similar to (C7)."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.analysis.attention.distance import AttentionDistance
from sightline.analysis.attention.head_subsets import HeadSubsets
from sightline.analysis.embeddings import spearman
from sightline.studies.effects import Effect, Part, known_mean, missing, over_images
from sightline.studies.evidence import Evidence, Model, couples
from sightline.studies.verdict import Assessment

NEAR, FAR = 1 / 3, 2 / 3  # of the distance of uniform attention; our reading of "local" and "global"
MUCH_FARTHER = 2.0  # "all global" above "some local": at least twice as far; in the paper's figure 3 it is four times
RANGE = 1 / 3  # of uniform attention: "local and global heads" in one block lie at least a third of the scale apart
SOME = 4  # heads or subsets from which on a rank correlation says anything


def part(r: AttentionDistance) -> Part:
    """Distances as fractions of that of uniform attention, and without each group of images."""
    return r.pixels / r.uniform, r.replicates / r.uniform


def least(x: NDArray) -> float:
    """Of the heads that have a distance at all."""
    return float(np.nanmin(x)) if np.isfinite(x).any() else float("nan")


def most(x: NDArray) -> float:
    return -least(-x)


def _without_distance(r: AttentionDistance) -> str:
    """How many heads look at prefix tokens only."""
    count = int(np.isnan(r.pixels).sum())
    return f"; {count} heads attend to prefix tokens only and have no distance" if count else ""


def distances(e: Evidence) -> Iterator[Assessment]:
    for m, r in e.each(e.of("vit", "hybrid", ""), AttentionDistance):
        half, heads = max(1, len(r.pixels) // 2), r.pixels.shape[1]
        upper = "heads of the upper half that are global"

        def rise(x: NDArray, half: int = half) -> float:
            return known_mean(x[half:]) - known_mean(x[:half])

        def share(x: NDArray, half: int = half) -> float:
            known = x[half:][np.isfinite(x[half:])]
            return float((known > FAR).mean()) if known.size else float("nan")

        effects = (
            over_images(
                "most local head of the lowest block", lambda x: least(x[0]), part(r), bound=NEAR, side="below"
            ),
            over_images("most global head of the lowest block", lambda x: most(x[0]), part(r), bound=FAR),
            over_images("rise from the lower to the upper half", rise, part(r)),
            over_images(upper, share, part(r), bound=0.5, step=1 / (heads * max(1, len(r.pixels) - half))),
        )
        note = "distances as fractions of that of uniform attention; local: below 1/3, global: above 2/3"
        yield Assessment(models=(m.id,), effects=effects, note=note + _without_distance(r), images=r.about.images)


def hybrid_heads(e: Evidence) -> Iterator[Assessment]:
    what = "most local head of the lowest block, hybrid minus ViT"

    def judge(vit: Model, hybrid: Model, a: AttentionDistance, b: AttentionDistance) -> Assessment:
        effect = over_images(what, lambda x, y: least(y[0]) - least(x[0]), part(a), part(b))
        note = "fractions of the distance of uniform attention"
        return Assessment(models=(vit.id, hybrid.id), effects=(effect,), note=note)

    return e.compare(couples(e.of("vit"), e.of("hybrid")), AttentionDistance, judge)


def low_and_high_heads(e: Evidence) -> Iterator[Assessment]:
    for m, r in e.each(e.of("vit", ""), AttentionDistance):
        if len(r.pixels) < 4:
            continue
        effects = (
            over_images(
                "most local head of the two highest blocks over that of the two lowest",
                lambda x: least(x[-2:]) / max(least(x[:2]), 1e-12),
                part(r),
                bound=MUCH_FARTHER,
            ),
            over_images(
                "most global minus most local head of the two lowest blocks",
                lambda x: most(x[:2]) - least(x[:2]),
                part(r),
                bound=RANGE,
            ),
        )
        note = "fractions of the distance of uniform attention" + _without_distance(r)
        yield Assessment(models=(m.id,), effects=effects, note=note, images=r.about.images)


def ranks(similarity: NDArray, distance: NDArray) -> float:
    """Rank correlation of CKA and distance, mean over the CNN's layers."""
    far = torch.from_numpy(np.ascontiguousarray(distance, dtype=np.float64))
    each = [spearman(torch.from_numpy(np.ascontiguousarray(c, dtype=np.float64)), far) for c in similarity.T]
    return float(np.mean(each))


def rank_effect(what: str, distance: NDArray, similarity: Part) -> Effect:
    """Below 0, with an error of at least one swap of neighboring ranks. Heads without a distance have no rank, nor have
    those without a CKA, which say the same of every image."""
    known = np.isfinite(distance) & np.isfinite(similarity[0]).all(1)
    count = int(known.sum())
    if count < SOME:
        return missing(f"{what} ({count} are too few)", side="below")
    step = 12 / (count**3 - count)
    return over_images(what, lambda s: ranks(s[known], distance[known]), similarity, side="below", step=step)


def subsets(e: Evidence) -> Iterator[Assessment]:
    """All single heads of the lowest blocks, and neighboring heads, a quarter at a time, as in the figure."""
    for a, b, r in e.between(HeadSubsets):
        what = "rank correlation of CKA and distance"
        singles = (
            rank_effect(f"{what}, single heads of the lowest blocks", r.head_distance, (r.heads, r.head_replicates))
            if len(r.head_distance)
            else missing(f"{what}, single heads of the lowest blocks", side="below")
        )
        groups = rank_effect(f"{what}, subsets of the first block", r.distance, (r.similarity, r.replicates))
        effects = (singles, groups) if len(r.distance) >= SOME else (singles,)
        note = f"{len(r.head_distance)} heads, {len(r.subsets)} subsets, mean over {len(r.columns)} layers of the CNN"
        silent = int(np.isnan(r.heads).any(1).sum()) if len(r.head_distance) else 0
        note += f"; {silent} heads say the same of every image and have no CKA" if silent else ""
        yield Assessment(models=(a.id, b.id), effects=effects, note=note, images=r.about.images)
