"""Textures: the fraction of the second color, 0..1, in coordinates of the object, so that they rotate with it.

`wide` is the size of a pixel in periods: edges are softened over that width, so that a texture finer than the pixels
fades into the mean of its colors instead of aliasing.
"""

from collections.abc import Callable

import numpy as np

from sightline.data.scenes.shapes import Field

TAU = np.float32(2 * np.pi)


def _triangle_wave(x: Field) -> Field:
    """A triangle wave of period 1 between 0 and 1."""
    return np.abs((x - np.floor(x)) * 2 - 1)


def _edge(x: Field, wide: Field) -> Field:
    """A soft step at 0; `x` changes by 2 per period."""
    return np.clip(x / (2 * wide) + 0.5, 0, 1)


def plain(u: Field, v: Field, wide: Field) -> Field:
    return np.zeros_like(u)


def striped(u: Field, v: Field, wide: Field) -> Field:
    return _edge(_triangle_wave(u) - 0.5, wide)


def checked(u: Field, v: Field, wide: Field) -> Field:
    return _edge((_triangle_wave(u * 0.7) - 0.5) * (_triangle_wave(v * 0.7) - 0.5) * 4, wide)


def dotted(u: Field, v: Field, wide: Field) -> Field:
    x, y = u - np.floor(u) - 0.5, v - np.floor(v) - 0.5
    return _edge(1.2 - 4 * np.sqrt(x * x + y * y), wide)


def ringed(u: Field, v: Field, wide: Field) -> Field:
    return _edge(_triangle_wave(np.sqrt(u * u + v * v) * 1.2) - 0.5, wide)


def zigzag(u: Field, v: Field, wide: Field) -> Field:
    return _edge(_triangle_wave(u + 0.6 * _triangle_wave(v * 0.8)) - 0.5, wide)


def netted(u: Field, v: Field, wide: Field) -> Field:
    return _edge(np.maximum(_triangle_wave(u * 0.9), _triangle_wave(v * 0.9)) - 0.68, wide)


def bricked(u: Field, v: Field, wide: Field) -> Field:
    row = np.floor(v * 1.2)
    along = u * 0.6 + 0.5 * (row - 2 * np.floor(row / 2))
    return _edge(np.maximum(_triangle_wave(along) - 0.8, _triangle_wave(v * 1.2) - 0.66), wide)


def marbled(u: Field, v: Field, wide: Field) -> Field:
    return 0.5 + 0.5 * np.sin(TAU * 0.45 * (u + np.sin(TAU * 0.5 * v + np.sin(TAU * 0.33 * u))))


def graded(u: Field, v: Field, wide: Field) -> Field:
    return np.clip(_triangle_wave(v * 0.32), 0, 1)


DRAW: dict[str, Callable[[Field, Field, Field], Field]] = {
    f.__name__: f for f in (plain, striped, checked, dotted, ringed, zigzag, netted, bricked, marbled, graded)
}
TEXTURES = tuple(DRAW)
