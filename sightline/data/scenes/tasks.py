"""Tasks: what the label of a scene is, and how to compose scenes for given labels.

Scenes are composed around their labels, so labels are exact and classes equally frequent. The label of scene i is
i mod k for k classes (identity: i div 10), whatever the seed: labels are known without drawing, every prefix is
balanced, and a dataset of 1,000 scenes is a prefix of the one of 300,000.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from sightline.data.draws import Draws, Ints
from sightline.data.scenes.parameters import Objects, SceneParameters, random_objects, random_parameters, rgb
from sightline.data.scenes.shapes import POINTED, SHAPES, SOLID
from sightline.data.scenes.textures import TEXTURES

BACK, FRONT = 4, 2  # slots of clutter behind the target and of occluders in front of it
PAIRS = tuple((i, (i + step) % len(TEXTURES)) for step in (1, 4) for i in range(len(SHAPES)))
RELATIONS = ("left of", "right of", "above", "below", "in front of", "behind")
DEPTHS = np.geomspace(1.0, 3.6, 7)  # edges of the six classes of scenes/distance
HORIZON = 0.36


@dataclass(frozen=True, kw_only=True)
class SceneTask:
    """A classification task on scenes."""

    compose: Callable[[Draws, Ints], SceneParameters]
    classes: tuple[str, ...]
    group: str  # of the suite: natural, specialized, structured; empty: not part of it
    about: str
    views: int | None = None  # images of each individual, where the classes are individuals

    def labels(self, num: int) -> Ints:
        """Labels of the first `num` scenes."""
        return np.arange(num) % len(self.classes) if self.views is None else np.arange(num) // self.views


def _numbers(names: tuple[str, ...], of: tuple[str, ...]) -> Ints:
    return np.array([of.index(n) for n in names])


def _target_scene(draws: Draws, *, radius: tuple[float, float] = (0.2, 0.34)) -> SceneParameters:
    """One large object among smaller ones: clutter behind it, and occluders that hide a part of it."""
    o = random_objects(draws, BACK + 1 + FRONT)
    target = BACK
    low, high = radius
    o.radius[:, target] = low + (high - low) * draws.uniform("subject radius")
    inside = np.maximum(o.radius[:, target] * 0.9, 0.1)
    o.x[:, target], o.y[:, target] = (inside + (1 - 2 * inside) * draws.uniform(f"subject {a}") for a in "xy")
    small = 0.3 + 0.25 * draws.many("small", BACK + FRONT)
    others = [i for i in range(BACK + 1 + FRONT) if i != target]
    o.radius[:, others] = np.maximum(small * o.radius[:, [target]], 0.05)
    o.present[:, others] = draws.many("there", BACK + FRONT) < np.array([0.75] * BACK + [0.45] * FRONT)
    around = draws.many("around", FRONT) * 2 * np.pi  # on the rim of the target: an occluder hides a part of it
    away = (0.85 + 0.4 * draws.many("away", FRONT)) * o.radius[:, [target]]
    o.x[:, target + 1 :] = o.x[:, [target]] + away * np.cos(around)
    o.y[:, target + 1 :] = o.y[:, [target]] + away * np.sin(around)
    return random_parameters(draws, o, target)


def objects(draws: Draws, labels: Ints) -> SceneParameters:
    params = _target_scene(draws)
    pairs = np.array(PAIRS)[labels]
    params.objects.shape[:, BACK], params.objects.texture[:, BACK] = pairs[:, 0], pairs[:, 1]
    return params


def shape(draws: Draws, labels: Ints) -> SceneParameters:
    params = _target_scene(draws)
    params.objects.shape[:, BACK] = labels
    return params


def texture(draws: Draws, labels: Ints) -> SceneParameters:
    params = _target_scene(draws)
    params.objects.texture[:, BACK] = labels
    return params


def location(draws: Draws, labels: Ints) -> SceneParameters:
    params = _target_scene(draws, radius=(0.09, 0.15))
    o = params.objects
    o.x[:, BACK] = 0.1 + 0.8 * (labels + draws.uniform("within")) / 16
    o.y[:, BACK] = 0.15 + 0.7 * draws.uniform("height")
    return params


def orientation(draws: Draws, labels: Ints) -> SceneParameters:
    params = _target_scene(draws, radius=(0.24, 0.36))
    o = params.objects
    o.shape[:, BACK] = _numbers(POINTED, SHAPES)[draws.integers("pointed", len(POINTED))]
    o.angle[:, BACK] = (labels + draws.uniform("within")) / 16 * 2 * np.pi
    return params


def _scatter(draws: Draws, slots: int, *, radius: tuple[float, float]) -> Objects:
    """Objects on a jittered 3 x 3 grid, in random order, so that they hardly overlap."""
    o = random_objects(draws, slots)
    place = np.argsort(draws.many("places", 9), axis=1)[:, :slots]
    o.x[...] = (place % 3 + 0.5 + 0.3 * (draws.many("jitter x", slots) - 0.5)) / 3
    o.y[...] = (place // 3 + 0.5 + 0.3 * (draws.many("jitter y", slots) - 0.5)) / 3
    o.radius[...] = radius[0] + (radius[1] - radius[0]) * draws.many("sizes", slots)
    return o


def count(draws: Draws, labels: Ints) -> SceneParameters:
    o = _scatter(draws, 8, radius=(0.08, 0.14))
    o.present[...] = np.arange(8) <= labels[:, None]
    return random_parameters(draws, o, -1)


def layout(draws: Draws, labels: Ints) -> SceneParameters:
    """A small object and a large one. "In front of" and "behind" differ only in which one is occluded."""
    o = random_objects(draws, 3)  # small, large, small: only one of the small ones is present
    large, small = draws.uniform("large", 0.17, 0.22), draws.uniform("little", 0.08, 0.11)
    o.radius[...] = np.stack([small, large, small], axis=1)
    o.shape[:, 1] = _numbers(SOLID, SHAPES)[draws.integers("solid", len(SOLID))]
    before = np.where(labels < 4, draws.uniform("order") < 0.5, labels == 4)
    o.present[:, 0], o.present[:, 2] = ~before, before
    apart = np.where(labels < 4, large + small + draws.uniform("gap", 0.0, 0.05), 0.75 * large)
    way = np.array([np.pi, 0, 1.5 * np.pi, 0.5 * np.pi, 0, 0])[labels]
    way = way + np.where(labels < 4, draws.uniform("tilt", -0.45, 0.45), draws.uniform("any way", 0, 2 * np.pi))
    dx, dy = apart * np.cos(way), apart * np.sin(way)
    x, y = (draws.uniform(f"middle {a}", 0.4, 0.6) for a in "xy")
    for slot, side in ((0, 0.5), (1, -0.5), (2, 0.5)):
        o.x[:, slot], o.y[:, slot] = x + side * dx, y + side * dy
    return random_parameters(draws, o, 1)


def distance(draws: Draws, labels: Ints) -> SceneParameters:
    """Objects on a plain: nearer ones are larger, lower in the image, less hazy, and occlude farther ones."""
    o = random_objects(draws, 3)
    nearest = np.exp(np.interp(labels + draws.uniform("within"), np.arange(7), np.log(DEPTHS)))
    depth = nearest[:, None] * np.concatenate(
        [1.25 + 1.5 * draws.many("further", 2), np.ones((len(labels), 1))], axis=1
    )
    depth[:, :2] = -np.sort(-depth[:, :2], axis=1)  # from far to near
    o.present[:, :2] = draws.many("there", 2) < 0.7
    o.radius[...] = (0.26 + 0.06 * (draws.many("sizes", 3) - 0.5)) / depth
    o.y[...] = np.clip(HORIZON + 0.5 / depth - 0.55 * o.radius, 0, 1)
    o.x[...] = 0.12 + 0.76 * draws.many("along", 3)
    o.haze[...] = np.clip((depth - 1) / 7, 0, 0.6)
    params = random_parameters(draws, o, 2)
    params.horizon[...] = HORIZON
    return params


def identity(draws: Draws, labels: Ints) -> SceneParameters:
    """The same individual in different poses and scenes: its appearance depends only on its label."""
    params = _target_scene(draws)
    one = random_objects(Draws(draws.key, labels), 1, prefix="individual ")
    for name in ("shape", "texture", "scale", "phase", "first", "second"):
        getattr(params.objects, name)[:, BACK] = getattr(one, name)[:, 0]
    params.objects.identity[:, BACK] = labels
    return params


def _cells(draws: Draws, odd: Ints) -> SceneParameters:
    """A slide of round cells, `odd` of them star-shaped."""
    o = _scatter(draws, 9, radius=(0.07, 0.105))
    o.x[...], o.y[...] = 0.5 + 0.7 * (o.x - 0.5), 0.5 + 0.7 * (o.y - 0.5)  # within the round field of view
    o.shape[...] = np.where(np.arange(9) < odd[:, None], SHAPES.index("star"), SHAPES.index("disc"))
    o.present[...] = (np.arange(9) < 4) | (draws.many("there", 9) < 0.7)
    o.first[...] = rgb(draws.many("stain", 9), 0 * o.x, 0.1 + 0.35 * draws.many("deep", 9))
    params = random_parameters(draws, o, -1)
    params.colors[...] = 190 + 0.25 * params.colors
    return replace(params, style="microscope")


def cells(draws: Draws, labels: Ints) -> SceneParameters:
    return _cells(draws, labels * (1 + draws.integers("how many", 2)))


def grade(draws: Draws, labels: Ints) -> SceneParameters:
    return _cells(draws, labels)


def aerial(draws: Draws, labels: Ints) -> SceneParameters:
    """Houses of one shape, seen from above."""
    o = _scatter(draws, 9, radius=(0.12, 0.145))
    o.shape[...] = labels[:, None]
    o.texture[...] = o.texture[:, :1]
    o.angle[...] = o.angle[:, :1]
    o.first[...], o.second[...] = o.first[:, :1], o.second[:, :1]
    o.present[...] = draws.many("there", 9) < 0.75
    o.present[:, 0] = True
    return replace(random_parameters(draws, o, -1), style="aerial")


def _task(
    compose: Callable[[Draws, Ints], SceneParameters], classes: tuple[str, ...], group: str, about: str
) -> SceneTask:
    return SceneTask(compose=compose, classes=classes, group=group, about=about)


_named = tuple(f"{TEXTURES[t]} {SHAPES[s]}" for s, t in PAIRS)
_columns = tuple(f"column {i + 1}" for i in range(16))
_sectors = tuple(f"{22.5 * i:g} to {22.5 * (i + 1):g} degrees" for i in range(16))
_numerals = tuple(str(i) for i in range(9))
_ranges = tuple(f"{a:.1f} to {b:.1f}" for a, b in pairwise(DEPTHS))
TASKS: dict[str, SceneTask] = {
    "objects": _task(
        objects, _named, "natural", "shape and texture of the largest object; either alone leaves two classes"
    ),
    "shape": _task(shape, SHAPES, "natural", "shape of the largest object"),
    "texture": _task(texture, TEXTURES, "natural", "texture of the largest object"),
    "identity": SceneTask(
        compose=identity, classes=(), group="", about="which individual it is, across poses and backgrounds", views=10
    ),
    "cells": _task(
        cells, ("healthy", "affected"), "specialized", "whether there are star-shaped cells among round ones"
    ),
    "grade": _task(grade, _numerals[:5], "specialized", "number of star-shaped cells"),
    "aerial": _task(aerial, SHAPES, "specialized", "shape of the houses, seen from above"),
    "layout": _task(layout, RELATIONS, "structured", "position of the small object relative to the large one"),
    "count": _task(count, _numerals[1:], "structured", "number of objects"),
    "location": _task(location, _columns, "structured", "column of the largest object, in 16 bins"),
    "orientation": _task(orientation, _sectors, "structured", "angle of the largest object, in 16 sectors"),
    "distance": _task(distance, _ranges, "structured", "depth of the nearest object, in 6 bins"),
}
