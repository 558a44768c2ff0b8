"""Masks as COCO writes them: run lengths, column by column, and polygons."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.data.targets.target import Mask

STEP = 5  # how many times finer than a pixel a polygon's outline is followed, as COCO's code does
OFFSET = 48  # the character that stands for zero in compressed run lengths
MAX_OUTLINE = 2**26  # steps of that grid along one polygon
LONGEST = 12  # characters of one number; six bits each are more than any image has pixels


def encode_runs(mask: Mask) -> list[int]:
    """Lengths of alternating runs of 0 and 1, down the columns, 0 first.

    >>> import numpy as np
    >>> encode_runs(np.array([[0, 1], [1, 1]], bool))
    [1, 3]
    """
    flat = np.concatenate([[False], mask.T.ravel()])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    return np.diff(np.concatenate([[0], changes, [mask.size]])).tolist()


def decode_runs(counts: Sequence[int], size: tuple[int, int]) -> Mask:
    """The mask (h, w) of these run lengths; ValueError unless they add up to its pixels."""
    runs = [n for n in counts if isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= size[0] * size[1]]
    if len(runs) != len(counts) or sum(runs) != size[0] * size[1]:
        raise ValueError(f"its run lengths do not add up to {size[0]} x {size[1]} pixels")
    values = np.arange(len(runs)) % 2 == 1
    return np.repeat(values, runs).reshape(size[1], size[0]).T


def parse_counts(text: str) -> list[int]:
    """Run lengths from COCO's compressed form: five bits per character, and from the fourth number on the difference to
    the second number before it.

    >>> parse_counts("13")
    [1, 3]
    """
    counts: list[int] = []
    at = 0
    while at < len(text):
        value, shift, more = 0, 0, True
        while more:
            if at == len(text) or shift > 5 * LONGEST or not 0 <= ord(text[at]) - OFFSET < 64:
                raise ValueError("its compressed run lengths are damaged")
            bits = ord(text[at]) - OFFSET
            value |= (bits & 31) << shift
            more, shift, at = bool(bits & 32), shift + 5, at + 1
            if not more and bits & 16:
                value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
    return counts


def decode_segmentation(held: Any, size: tuple[int, int]) -> Mask:
    """The mask of a COCO annotation: polygons, run lengths or compressed run lengths. ValueError if it is none."""
    match held:
        case {"counts": counts, "size": [int(h), int(w)]} if (h, w) == size and isinstance(counts, str | list):
            return decode_runs(parse_counts(counts) if isinstance(counts, str) else counts, size)
        case {"size": other}:
            raise ValueError(f"its mask has size {other!s:.40}, the image {list(size)}")
        case [*polygons] if polygons:
            masks = [fill_polygon(_corners(p), size) for p in polygons]
            return np.logical_or.reduce(masks)
    raise ValueError("its segmentation is neither polygons nor run lengths")


def _corners(polygon: Any) -> NDArray[np.float64]:
    """Corners (n, 2), x and y, of a flat list of numbers."""
    numbers = [v for v in polygon if isinstance(v, int | float)] if isinstance(polygon, list) else []
    if len(numbers) < 6 or len(numbers) % 2 or len(numbers) != len(polygon):
        raise ValueError("a polygon of it is not a list of at least three corners x, y")
    corners = np.array(numbers, np.float64).reshape(-1, 2)
    if not (np.abs(corners) < 2**24).all():  # NaN too
        raise ValueError("a polygon of it has a corner that is not a finite place")
    return corners


def fill_polygon(corners: NDArray[np.float64], size: tuple[int, int]) -> Mask:
    """The pixels inside a polygon, by the rule of COCO's code: the outline is followed on a grid five times finer, and
    the pixels between two crossings of a column are inside.

    >>> import numpy as np
    >>> fill_polygon(np.array([[0, 0], [2, 0], [2, 1], [0, 1.0]]), (2, 3)).astype(int).tolist()
    [[1, 1, 0], [0, 0, 0]]
    """
    height, width = size
    points = np.trunc(STEP * corners + 0.5).astype(np.int64)
    closed = np.concatenate([points, points[:1]])
    if np.abs(np.diff(closed, axis=0)).max(1).sum() > MAX_OUTLINE:
        raise ValueError(f"the outline of a polygon of it is longer than {MAX_OUTLINE // STEP:,} pixels")
    line = np.concatenate([_line(a, b) for a, b in pairwise(closed)])
    x, y = line[:, 0], line[:, 1]
    moved = np.flatnonzero(x[1:] != x[:-1])
    column = np.where(x[moved + 1] < x[moved], x[moved + 1], x[moved + 1] - 1)
    column, row = (column + 0.5) / STEP - 0.5, np.minimum(y[moved], y[moved + 1])
    inside = (np.floor(column) == column) & (column >= 0) & (column <= width - 1)
    row = np.ceil(((row[inside] + 0.5) / STEP - 0.5).clip(0, height)).astype(np.int64)
    ends = np.sort(column[inside].astype(np.int64) * height + row)
    toggles = np.bincount(ends, minlength=width * height + 1)[: width * height]
    return (np.cumsum(toggles) % 2 == 1).reshape(width, height).T


def _line(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """Grid points from one corner to the next, one per step along the longer axis, (n, 2)."""
    (xs, ys), (xe, ye) = a.tolist(), b.tolist()
    dx, dy = abs(xe - xs), abs(ye - ys)
    if dx == dy == 0:
        return a[None]
    # always from the smaller coordinate on, so that a shared edge has the same points for both of its polygons
    flip = (dx >= dy and xs > xe) or (dx < dy and ys > ye)
    if flip:
        xs, xe, ys, ye = xe, xs, ye, ys
    t = np.arange(max(dx, dy) + 1)
    if dx >= dy:
        points = np.stack([t + xs, np.trunc(ys + (ye - ys) / dx * t + 0.5).astype(np.int64)], axis=1)
    else:
        points = np.stack([np.trunc(xs + (xe - xs) / dy * t + 0.5).astype(np.int64), t + ys], axis=1)
    return points[::-1] if flip else points
