"""RandAugment (Cubuk et al. 2020) with the sixteen operations and the magnitudes of its released code.

That code translates by up to 100 pixels and cuts out 80 of 224: here both are fractions of the image size, so that
they suit small images too. Pixels from outside the image are gray (128), as in that code.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps

from sightline.data.draws import Number

GRAY = (128, 128, 128)


def affine(image: Image.Image, matrix: tuple[Number, ...]) -> Image.Image:
    """An affine map of the coordinates, bilinear; gray where nothing comes from."""
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR, fillcolor=GRAY
    )


def _solarize_add(image: Image.Image, amount: int) -> Image.Image:
    """SolarizeAdd: brighten pixels darker than 128."""
    table = [min(255, v + amount) if v < 128 else v for v in range(256)]
    return image.point(table * 3)


def _cutout(image: Image.Image, share: float, place: NDArray[np.float64]) -> Image.Image:
    image = image.copy()
    x, y = place[0] * image.width, place[1] * image.height
    half_w, half_h = share * image.width, share * image.height
    box = (max(0, round(x - half_w)), max(0, round(y - half_h)), round(x + half_w), round(y + half_h))
    image.paste(GRAY, (box[0], box[1], min(box[2], image.width), min(box[3], image.height)))
    return image


def _enhancement(level: Number) -> float:
    return level / 10 * 1.8 + 0.1


Operation = Callable[[Image.Image, float, float, NDArray[np.float64]], Image.Image]  # image, level, sign, place
TABLE: dict[str, Operation] = {
    "autocontrast": lambda im, l, s, p: ImageOps.autocontrast(im),
    "equalize": lambda im, l, s, p: ImageOps.equalize(im),
    "invert": lambda im, l, s, p: ImageOps.invert(im),
    "rotate": lambda im, l, s, p: im.rotate(s * l * 3, resample=Image.Resampling.BILINEAR, fillcolor=GRAY),
    "posterize": lambda im, l, s, p: ImageOps.posterize(im, max(1, round(l / 10 * 4))),
    "solarize": lambda im, l, s, p: ImageOps.solarize(im, round(l / 10 * 256)),
    "solarize_add": lambda im, l, s, p: _solarize_add(im, round(l * 11)),
    "color": lambda im, l, s, p: ImageEnhance.Color(im).enhance(_enhancement(l)),
    "contrast": lambda im, l, s, p: ImageEnhance.Contrast(im).enhance(_enhancement(l)),
    "brightness": lambda im, l, s, p: ImageEnhance.Brightness(im).enhance(_enhancement(l)),
    "sharpness": lambda im, l, s, p: ImageEnhance.Sharpness(im).enhance(_enhancement(l)),
    "shear_x": lambda im, l, s, p: affine(im, (1, s * l * 0.03, 0, 0, 1, 0)),
    "shear_y": lambda im, l, s, p: affine(im, (1, 0, 0, s * l * 0.03, 1, 0)),
    "translate_x": lambda im, l, s, p: affine(im, (1, 0, s * l * 10 / 224 * im.width, 0, 1, 0)),
    "translate_y": lambda im, l, s, p: affine(im, (1, 0, 0, 0, 1, s * l * 10 / 224 * im.height)),
    "cutout": lambda im, l, s, p: _cutout(im, l * 4 / 224, p),
}
OPERATIONS = tuple(TABLE)


def apply_operation(
    operation: str, image: Image.Image, *, level: Number, sign: float, place: NDArray[np.float64]
) -> Image.Image:
    """One operation at a level of 0..10; `sign` reverses rotations and shifts, `place` (0..1) centers a cutout."""
    return TABLE[operation](image, level, sign, place)
