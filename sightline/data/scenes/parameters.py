"""The parameters of scenes: objects from back to front, the background, the light. No pixels."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from sightline.data.draws import Draws, Ints, Number
from sightline.data.scenes.shapes import SHAPES
from sightline.data.scenes.textures import TEXTURES

Floats = NDArray[np.float64]
WAVES = 10  # plane waves of a background


@dataclass(kw_only=True)
class Objects:
    """The objects of n scenes in k slots; later slots are in front of earlier ones. Positions and radii are fractions
    of the side of the image, angles are in radians (clockwise), colors 0..255."""

    present: NDArray[np.bool_]  # (n, k), as all below
    shape: Ints
    texture: Ints
    x: Floats
    y: Floats
    radius: Floats
    angle: Floats
    scale: Floats  # periods of the texture per radius
    phase: Floats  # (n, k, 2), periods
    first: Floats  # (n, k, 3)
    second: Floats  # (n, k, 3)
    haze: Floats  # opacity of the haze in front of it, 0..1
    identity: Ints

    def take(self, rows: Ints | slice) -> "Objects":
        """A subset of the scenes."""
        return Objects(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


@dataclass(kw_only=True)
class SceneParameters:
    """n scenes. `target` is the slot that the label describes (-1: the whole scene)."""

    objects: Objects
    target: Ints  # (n,)
    colors: Floats  # (n, 3, 3), of the background
    waves: Floats  # (n, WAVES, 4): amplitude, cycles along x, cycles along y, phase
    sharpness: Floats  # (n,), of the background: clouds to hard-edged patches
    horizon: Floats  # (n,), fraction of the height that is sky; 0: none
    light: Floats  # (n, 2), gradient of the brightness
    grain: Floats  # (n, 4): amplitude, offsets and sign of the noise
    style: str = "plain"  # "plain" | "microscope" (a stained slide) | "aerial" (seen from above)

    def take(self, rows: Ints | slice) -> "World":
        """A subset of the scenes."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("objects", "style")}
        return SceneParameters(
            objects=self.objects.take(rows), style=self.style, **{k: v[rows] for k, v in arrays.items()}
        )


def rgb(hue: Floats, saturation: Floats, value: Floats) -> Floats:
    """Colors 0..255 on a new last axis."""
    sector = (hue[..., None] * 6 + np.array([5.0, 3.0, 1.0])) % 6
    return 255 * value[..., None] * (1 - saturation[..., None] * np.clip(np.minimum(sector, 4 - sector), 0, 1))


def random_objects(draws: Draws, slots: int, prefix: str = "") -> Objects:
    """Objects with all factors drawn at random; a task then sets those that its label describes."""

    def u(name: str, low: Number = 0.0, high: Number = 1.0) -> Floats:
        return low + (high - low) * draws.many(prefix + name, slots)

    hue, value = u("hue"), u("value", 0.0, 1.0)
    bright = value < 0.5  # the two colors of a texture always differ in brightness
    first = rgb(hue, u("saturation", 0.2, 0.8), np.where(bright, u("light", 0.75, 1.0), u("dark", 0.2, 0.5)))
    turn = hue + u("second hue", 0.15, 0.85)
    second = rgb(
        turn % 1, u("second saturation", 0.05, 0.65), np.where(bright, u("dark2", 0.15, 0.45), u("light2", 0.7, 1))
    )
    return Objects(
        present=np.ones(hue.shape, dtype=np.bool_),
        shape=draws.choices(prefix + "shape", len(SHAPES), slots),
        texture=draws.choices(prefix + "texture", len(TEXTURES), slots),
        x=u("x"),
        y=u("y"),
        radius=u("radius", 0.2, 0.34),
        angle=u("angle", 0, 2 * np.pi),
        scale=u("scale", 1.35, 2.1),
        phase=draws.many(prefix + "phase", 2 * slots).reshape(*hue.shape, 2),
        first=first,
        second=second,
        haze=np.zeros(hue.shape),
        identity=np.full(hue.shape, -1),
    )


def random_parameters(draws: Draws, objects: Objects, target: int) -> SceneParameters:
    """Scenes of these objects with a random background, light and grain."""
    n = len(draws.items)
    hue = draws.many("ground hue", 3) * 0.35 + draws.many("ground base", 1)
    value = 0.25 + 0.65 * draws.many("ground value", 3)
    angle = draws.uniform("light", 0, 2 * np.pi)
    return SceneParameters(
        objects=objects,
        target=np.full(n, target, dtype=np.int64),
        colors=rgb(hue % 1, 0.08 + 0.37 * draws.many("ground saturation", 3), value),
        waves=_waves(draws),
        sharpness=np.exp(draws.uniform("sharpness", np.log(0.5), np.log(6.0))),
        horizon=np.zeros(n),
        light=draws.uniform("brightness", 0.05, 0.3)[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1),
        grain=np.concatenate([2 + 9 * draws.many("grain", 1), draws.many("grain place", 3)], axis=1),
    )


def _waves(draws: Draws) -> Floats:
    """Clouds (many waves, the longest strongest), or a regular pattern (stripes or a lattice: one or two waves)."""
    length, turn = draws.many("wave length", WAVES), draws.many("wave angle", WAVES) * 2 * np.pi
    cycles = np.exp(np.log(0.7) + (np.log(9.0) - np.log(0.7)) * length)
    few = draws.uniform("pattern") < 0.35  # a regular pattern: one wave, or two at a right angle
    lattice = draws.uniform("lattice") < 0.5
    turn[:, 1] = np.where(few, turn[:, 0] + np.pi / 2, turn[:, 1])
    cycles[:, 0] = np.where(few, 2.0 + 5 * length[:, 0], cycles[:, 0])
    cycles[:, 1] = np.where(few, cycles[:, 0], cycles[:, 1])
    amplitude = cycles**-0.8 / 1.5
    regular = np.zeros_like(amplitude)
    regular[:, 0], regular[:, 1] = 0.5, np.where(lattice, 0.5, 0.0)
    amplitude = np.where(few[:, None], regular, amplitude)
    return np.stack([amplitude, cycles * np.cos(turn), cycles * np.sin(turn), draws.many("wave phase", WAVES)], axis=2)
