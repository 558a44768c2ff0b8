"""The fifteen kinds of corruption: noise, blur, weather, digital. Each takes pixels in 0..1 and one strength.

The kinds and the order of severity are those of Hendrycks & Dietterich 2019; strengths are ours, for any resolution:
lengths are shares of the shorter side, and noise and compression grow with it about as from CIFAR-10-C to ImageNet-C.
Frost is drawn by rule; theirs is made of photographs.
"""

import io
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from sightline.data.corruptions.filters import Floats, clouds, disk, filtered, gaussian, sampled, streak

Random = np.random.Generator
SMALL = 32  # pixels, of the images that strengths are given for


def growth(pixels: Floats, power: float) -> float:
    """How much stronger a corruption is than at 32 pixels."""
    return float((min(pixels.shape[:2]) / SMALL) ** power)


def gaussian_noise(x: Floats, strength: float, rng: Random) -> Floats:
    return x + strength * growth(x, 0.4) * rng.standard_normal(x.shape)


def shot_noise(x: Floats, strength: float, rng: Random) -> Floats:
    photons = strength / growth(x, 0.8)
    return rng.poisson(np.clip(x, 0, 1) * photons) / photons


def impulse_noise(x: Floats, strength: float, rng: Random) -> Floats:
    chance = rng.random(x.shape[:2])[..., None]
    share = min(0.5, strength * growth(x, 0.5))
    return np.where(chance < share / 2, 0.0, np.where(chance < share, 1.0, x))


def defocus_blur(x: Floats, strength: float, rng: Random) -> Floats:
    return filtered(x, disk(0.4 + strength * min(x.shape[:2])))  # a fraction of a pixel blurs small images, too


def glass_blur(x: Floats, strength: float, rng: Random) -> Floats:
    """Pixels change places with near ones: `strength` is their share."""
    reach = max(1, round(0.015 * min(x.shape[:2])))
    rows, columns = np.indices(x.shape[:2])
    moved = rng.random(x.shape[:2]) < strength
    dy, dx = (rng.integers(-reach, reach + 1, x.shape[:2]) * moved for _ in range(2))
    soft = filtered(x, gaussian(0.25 + 0.25 * strength))
    y, column = np.clip(rows + dy, 0, x.shape[0] - 1), np.clip(columns + dx, 0, x.shape[1] - 1)
    return soft[y, column]


def motion_blur(x: Floats, strength: float, rng: Random) -> Floats:
    return filtered(x, streak(strength * min(x.shape[:2]), rng.uniform(-math.pi / 4, math.pi / 4)))


def zoom_blur(x: Floats, strength: float, rng: Random) -> Floats:
    """The mean of the image and of enlarged ones up to 1 + strength."""
    y, column = np.indices(x.shape[:2]).astype(np.float64)
    middle = [(n - 1) / 2 for n in x.shape[:2]]
    scales = np.linspace(1, 1 + strength, 9)
    views = [sampled(x, middle[0] + (y - middle[0]) / s, middle[1] + (column - middle[1]) / s) for s in scales]
    return np.mean(views, axis=0)


def snow(x: Floats, strength: float, rng: Random) -> Floats:
    """Flakes that fall aslant, over an image that loses color and gains light."""
    angle = rng.uniform(math.pi / 4, 3 * math.pi / 4)
    dots = (rng.random(x.shape[:2]) < 0.16 * strength).astype(np.float64)
    flakes = filtered(dots, streak(max(2.0, 0.09 * min(x.shape[:2])), angle))
    gray = np.maximum(x, x.mean(2, keepdims=True) * 1.5 + 0.5 * strength)
    veiled = (1 - 0.4 * strength) * x + 0.4 * strength * gray
    return veiled + np.clip(3.2 * flakes, 0, 1)[..., None] * (0.35 + 0.5 * strength)


def frost(x: Floats, strength: float, rng: Random) -> Floats:
    """Crystals that grow from the borders: the ridges of a random field."""
    height, width = x.shape[:2]
    ridges = 1 - abs(2 * clouds((height, width), rng, roughness=1.2) - 1)
    y, column = (abs(np.linspace(-1, 1, n)) for n in (height, width))
    near = np.maximum(y[:, None], column[None]) ** 2
    ice = np.clip(2.2 * ridges**3 * (0.35 + near), 0, 1)[..., None] * strength
    return (1 - 0.55 * strength) * x * (1 - ice) + ice * np.array([0.82, 0.9, 1.0]) + 0.12 * strength


def fog(x: Floats, strength: float, rng: Random) -> Floats:
    bright = float(x.max())
    mist = clouds((x.shape[0], x.shape[1]), rng, roughness=1.7)[..., None]
    return (x + strength * (0.25 + 0.75 * mist)) * bright / (bright + strength)


def brightness(x: Floats, strength: float, rng: Random) -> Floats:
    """The value of each color (HSV) is raised."""
    value = x.max(2, keepdims=True)
    raised = np.minimum(value + strength, 1)
    return np.where(value > 1e-6, x * raised / np.maximum(value, 1e-6), raised)


def contrast(x: Floats, strength: float, rng: Random) -> Floats:
    mean = x.mean((0, 1), keepdims=True)
    return mean + (x - mean) * (1 - strength)


def elastic(x: Floats, strength: float, rng: Random) -> Floats:
    """Every place is moved by a smooth random field; `strength` is the typical way, as a share of the side."""
    side = min(x.shape[:2])
    kernel = gaussian(max(1.0, 0.06 * side))
    rows, columns = np.indices(x.shape[:2]).astype(np.float64)
    ways = [filtered(rng.uniform(-1, 1, x.shape[:2]), kernel) for _ in range(2)]
    scale = [strength * side / max(float(way.std()), 1e-9) for way in ways]
    return sampled(x, rows + scale[0] * ways[0], columns + scale[1] * ways[1])


def pixelate(x: Floats, strength: float, rng: Random) -> Floats:
    share = (1 - strength) / max(1.0, growth(x, 0.25))
    image = _image(x)
    small = [max(1, round(n * share)) for n in image.size]
    coarse = image.resize((small[0], small[1]), Image.Resampling.BOX).resize(image.size, Image.Resampling.NEAREST)
    return np.asarray(coarse, dtype=np.float64) / 255


def jpeg(x: Floats, strength: float, rng: Random) -> Floats:
    file = io.BytesIO()
    _image(x).save(file, "JPEG", quality=max(3, round(strength / growth(x, 0.5))))
    return np.asarray(Image.open(file), dtype=np.float64) / 255


def _image(x: Floats) -> Image.Image:
    return Image.fromarray(np.round(np.clip(x, 0, 1) * 255).astype(np.uint8))


@dataclass(frozen=True)
class Kind:
    """One kind of corruption, with its strength at each severity."""

    family: str  # noise, blur, weather or digital
    apply: Callable[[Floats, float, Random], Floats]
    strengths: tuple[float, float, float, float, float]


# the names key random draws: they are never renamed
KINDS: dict[str, Kind] = {
    "gaussian-noise": Kind("noise", gaussian_noise, (0.04, 0.06, 0.08, 0.1, 0.12)),
    "shot-noise": Kind("noise", shot_noise, (500, 250, 100, 75, 50)),
    "impulse-noise": Kind("noise", impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus-blur": Kind("blur", defocus_blur, (0.012, 0.02, 0.028, 0.036, 0.046)),
    "glass-blur": Kind("blur", glass_blur, (0.2, 0.35, 0.5, 0.7, 0.95)),
    "motion-blur": Kind("blur", motion_blur, (0.05, 0.075, 0.1, 0.13, 0.17)),
    "zoom-blur": Kind("blur", zoom_blur, (0.06, 0.11, 0.16, 0.21, 0.26)),
    "snow": Kind("weather", snow, (0.12, 0.2, 0.3, 0.4, 0.5)),
    "frost": Kind("weather", frost, (0.15, 0.25, 0.35, 0.45, 0.55)),
    "fog": Kind("weather", fog, (0.2, 0.5, 0.75, 1.0, 1.5)),
    "brightness": Kind("weather", brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": Kind("digital", contrast, (0.25, 0.5, 0.6, 0.7, 0.85)),
    "elastic": Kind("digital", elastic, (0.006, 0.01, 0.014, 0.02, 0.027)),
    "pixelate": Kind("digital", pixelate, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "jpeg": Kind("digital", jpeg, (80, 65, 50, 35, 22)),
}
