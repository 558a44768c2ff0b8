"""Shapes as signed distance functions: negative inside, zero on the outline.

Unlike bitmaps, they have a smooth outline at every size, with a soft edge of one pixel. Coordinates are those of the
object, u to the right and v down; every shape fills the circle of radius 1. Outside, the distance is in radii.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.floating]  # float32 throughout


def _length(u: Field, v: Field) -> Field:
    return np.sqrt(u * u + v * v)


def disc(u: Field, v: Field) -> Field:
    return _length(u, v) - 0.92


def square(u: Field, v: Field) -> Field:
    return np.maximum(np.abs(u), np.abs(v)) - 0.74


def triangle(u: Field, v: Field) -> Field:
    return np.maximum(0.866 * np.abs(u) - 0.5 * v, v) - 0.5


def star(u: Field, v: Field) -> Field:
    """Five points: by symmetry, the plane is folded onto half of one point, which has one straight edge."""
    x, y = np.abs(u), -v
    for c, s in ((0.809017, -0.587785), (-0.809017, -0.587785)):
        side = np.maximum(0, c * x + s * y) * 2
        x, y = x - c * side, y - s * side
    return np.abs(x) * 0.923 + (y - 1.0) * 0.384


def cross(u: Field, v: Field) -> Field:
    x, y = np.abs(u), np.abs(v)
    return np.maximum(np.minimum(x, y) - 0.3, np.maximum(x, y) - 0.9)


def ring(u: Field, v: Field) -> Field:
    return np.abs(_length(u, v) - 0.68) - 0.25


def crescent(u: Field, v: Field) -> Field:
    return np.maximum(_length(u, v) - 0.95, 0.78 - _length(u - 0.42, v))


def heart(u: Field, v: Field) -> Field:
    """Two discs above a wedge."""
    x = np.abs(u)
    lobe = _length(x - 0.42, v + 0.3) - 0.48
    wedge = np.maximum(0.72 * x + 0.69 * v - 0.58, -v - 0.09)
    return np.minimum(lobe, wedge)


def drop(u: Field, v: Field) -> Field:
    """A disc with a point above it."""
    body = _length(u, v - 0.34) - 0.58
    tip = np.maximum(0.9 * np.abs(u) - 0.42 * (v + 0.95), v - 0.1)
    return np.minimum(body, tip)


def arrow(u: Field, v: Field) -> Field:
    """A head and a shaft, pointing up."""
    head = np.maximum(0.74 * np.abs(u) - 0.67 * (v + 0.95), v + 0.02)
    shaft = np.maximum(np.abs(u) - 0.26, np.abs(v - 0.42) - 0.5)
    return np.minimum(head, shaft)


DRAW: dict[str, Callable[[Field, Field], Field]] = {
    f.__name__: f for f in (disc, square, triangle, star, cross, ring, crescent, heart, drop, arrow)
}
SHAPES = tuple(DRAW)
POINTED = (
    "crescent",
    "heart",
    "drop",
    "arrow",
)  # no rotation maps them onto themselves, so their orientation is defined
SOLID = ("disc", "square", "heart", "drop")  # no holes: what is behind them is hidden
