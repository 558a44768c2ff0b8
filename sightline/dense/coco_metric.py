"""Average precision of detections by COCO's definition.

Precision is averaged over 101 recalls, classes, and overlaps of 0.5 to 0.95. A detection matches the object that it
overlaps most, the most confident first; crowds and objects outside an area range are neither hits nor misses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sightline.data.targets.target import Target, mask_boxes
from sightline.dense.scores import RESAMPLES, Floats, percentile_interval, resample_weights

OVERLAPS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)
MOST = 100  # detections of a class in an image that count
AREAS = {"all": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
MEASURES = ("AP", "AP50", "AP75", "small", "medium", "large")
What = Literal["masks", "boxes"]


@dataclass(frozen=True, kw_only=True)
class Detections:
    """What was detected in one image: masks with classes (from 1 on, as in `sl.data.Target`) and scores.

    >>> import numpy as np
    >>> masks = np.ones((1, 2, 3), bool)
    >>> sl.dense.Detections(classes=np.array([1]), scores=np.array([0.9]), masks=masks).boxes.tolist()
    [[0, 0, 3, 2]]
    """

    classes: NDArray[np.int64]  # (k,)
    scores: Floats  # (k,)
    masks: NDArray[np.bool_]  # (k, h, w)

    @property
    def boxes(self) -> NDArray[np.int64]:
        """Left, upper, right, lower of each mask, (k, 4)."""
        return mask_boxes(self.masks)


class Matches(NamedTuple):
    """The detections of one class in one image, the most confident first, for one range of areas."""

    scores: Floats  # (d,)
    hit: NDArray[np.bool_]  # (overlaps, d)
    ignored: NDArray[np.bool_]  # (overlaps, d)
    positives: int  # objects to be detected


ImageMatches = dict[tuple[int, str], Matches]  # by class and range of areas


def match_image(found: Detections, target: Target, what: What = "masks") -> ImageMatches:
    """Match the detections of one image to its objects, class by class.

    >>> import numpy as np
    >>> masks = np.ones((1, 4, 4), bool)
    >>> found = sl.dense.Detections(classes=np.array([2]), scores=np.array([0.9]), masks=masks)
    >>> matches = sl.dense.match_image(found, sl.data.Target(classes=np.array([2]), masks=masks))
    >>> matches[2, "all"].hit.all(), matches[2, "all"].positives
    (np.True_, 1)
    """
    crowd = target.is_crowd
    areas = target.areas if target.areas is not None else target.masks.sum((1, 2)).astype(np.float64)
    out: ImageMatches = {}
    for number in np.union1d(found.classes, target.classes).tolist():
        mine = np.flatnonzero(found.classes == number)
        mine = mine[np.argsort(-found.scores[mine], kind="stable")][:MOST]
        theirs = np.flatnonzero(target.classes == number)
        overlap, sizes = overlaps(found.masks[mine], target.masks[theirs], crowd[theirs], what)
        for name, (low, high) in AREAS.items():
            skipped = crowd[theirs] | (areas[theirs] < low) | (areas[theirs] > high)
            hit, ignored = _greedy(overlap, crowd[theirs], skipped)
            ignored |= ~hit & ((sizes < low) | (sizes > high))
            out[number, name] = Matches(found.scores[mine], hit, ignored, int((~skipped).sum()))
    return out


def overlaps(
    found: NDArray[np.bool_], true: NDArray[np.bool_], crowd: NDArray[np.bool_], what: What
) -> tuple[Floats, Floats]:
    """Intersection over union of detections and objects (d, g), and the areas of the detections. Of a crowd, the share
    of the detection that lies in it."""
    if what == "masks":
        a, b = (m.reshape(len(m), m.shape[1] * m.shape[2]).astype(np.float32) for m in (found, true))
        both = (a @ b.T).astype(np.float64)
        sizes, others = (m.sum((1, 2)).astype(np.float64) for m in (found, true))
    else:
        a, b = mask_boxes(found).astype(np.float64), mask_boxes(true).astype(np.float64)
        low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
        both = np.clip(high - low, 0, None).prod(2)
        sizes, others = ((x[:, 2:] - x[:, :2]).prod(1) for x in (a, b))
    either = np.where(crowd, sizes[:, None], sizes[:, None] + others - both)
    return both / np.where(either > 0, either, np.inf), sizes


def _greedy(
    overlap: Floats, crowd: NDArray[np.bool_], skipped: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which detections hit an object at each overlap, and which hit one that does not count. An object is hit once, a
    crowd any number of times; an object that counts is preferred to one that does not."""
    hit, ignored = (np.zeros((len(OVERLAPS), len(overlap)), np.bool_) for _ in range(2))
    for t, least in enumerate(np.minimum(OVERLAPS, 1 - 1e-10)):
        free = np.ones(len(crowd), np.bool_)
        for d, row in enumerate(overlap):
            for group in (~skipped, skipped):
                open_ = np.flatnonzero(group & (free | crowd) & (row >= least))
                if len(open_):
                    best = open_[len(open_) - 1 - np.argmax(row[open_][::-1])]  # of equals the last one, as COCO's code
                    hit[t, d], ignored[t, d], free[best] = True, skipped[best], False
                    break
    return hit, ignored


class Ranked(NamedTuple):
    """All detections of one class, the most confident first."""

    images: NDArray[np.int64]
    hit: NDArray[np.bool_]  # (overlaps, d), of those that are not ignored
    miss: NDArray[np.bool_]
    positives: Floats  # by image


def rank(matches: Sequence[ImageMatches], number: int, area: str) -> Ranked:
    """The detections of a class over all images in one order."""
    held = [m.get((number, area)) for m in matches]
    there = [(i, m) for i, m in enumerate(held) if m is not None]
    scores = np.concatenate([m.scores for _, m in there]) if there else np.zeros(0)
    order = np.argsort(-scores, kind="stable")
    images = np.concatenate([np.full(len(m.scores), i) for i, m in there]) if there else np.zeros(0)
    blank = np.zeros((len(OVERLAPS), 0), np.bool_)
    hit = np.concatenate([blank, *(m.hit for _, m in there)], axis=1)[:, order]
    ignored = np.concatenate([blank, *(m.ignored for _, m in there)], axis=1)[:, order]
    positives = np.array([0 if m is None else m.positives for m in held], np.float64)
    return Ranked(images.astype(np.int64)[order], hit & ~ignored, ~hit & ~ignored, positives)


def precision(ranked: Ranked, weights: Floats) -> Floats:
    """Mean precision over the 101 recalls at each overlap, (10,); NaN without objects. `weights` count the images."""
    total = float(weights @ ranked.positives)
    if total == 0:
        return np.full(len(OVERLAPS), np.nan)
    w = weights[ranked.images]
    hits, misses = np.cumsum(w * ranked.hit, axis=1), np.cumsum(w * ranked.miss, axis=1)
    recall, exact = hits / total, hits / np.maximum(hits + misses, np.spacing(1))
    exact = np.maximum.accumulate(exact[:, ::-1], axis=1)[:, ::-1]  # the best precision at this recall or a higher one
    out = np.zeros(len(OVERLAPS))
    for t in range(len(OVERLAPS)):
        at = np.searchsorted(recall[t], RECALLS, side="left")
        out[t] = exact[t][at[at < recall.shape[1]]].sum() / len(RECALLS)
    return out


class AveragePrecision(NamedTuple):
    """Six measures (`MEASURES`), NaN where there are no such objects, 95 % intervals of the first three, and AP by
    class."""

    values: Floats  # (6,)
    interval: Floats  # (3, 2)
    per_class: Floats  # (classes,)


def average_precision(
    matches: Sequence[ImageMatches], classes: int, *, resamples: int = RESAMPLES, seed: int = 0
) -> AveragePrecision:
    """AP of matched images (`sl.dense.match_image`) by COCO's definition, with bootstrap intervals over the images.

    >>> import numpy as np
    >>> mask = np.zeros((1, 8, 8), bool); mask[0, 2:5, 2:6] = True
    >>> found = sl.dense.Detections(classes=np.array([1]), scores=np.array([0.9]), masks=mask)
    >>> truth = sl.data.Target(classes=np.array([1]), masks=mask)
    >>> float(sl.dense.average_precision([sl.dense.match_image(found, truth)], 1).values[0])
    1.0
    """
    if not matches:
        raise ValueError("There are no images to compute an average precision of.")
    ones = np.ones(len(matches))
    ranked = {area: [rank(matches, c + 1, area) for c in range(classes)] for area in AREAS}
    tables = {area: np.stack([precision(r, ones) for r in ranked[area]]) for area in AREAS}  # (classes, overlaps)
    whole = tables["all"]
    values = [*_measures(whole), *(_mean(tables[area]) for area in ("small", "medium", "large"))]
    again = [
        _measures(np.stack([precision(r, w) for r in ranked["all"]]))
        for w in resample_weights(len(matches), resamples=resamples, seed=seed)
    ]
    return AveragePrecision(np.array(values), percentile_interval(np.array(again)), whole.mean(1))


def _measures(table: Floats) -> tuple[float, float, float]:
    return _mean(table), _mean(table[:, 0]), _mean(table[:, 5])  # all overlaps, 0.5, 0.75


def _mean(table: Floats) -> float:
    return float(np.nanmean(table)) if np.isfinite(table).any() else float("nan")
