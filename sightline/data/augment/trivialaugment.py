"""TrivialAugment (Mueller & Hutter 2021): one operation per image, at a strength drawn anew for each image.

The operations and ranges are those of its "wide" search space. Pixels from outside the image are gray (128), as in
RandAugment.
"""

from collections.abc import Callable

from PIL import Image, ImageEnhance, ImageOps

from sightline.data.augment.randaugment import GRAY, affine

LARGEST_SHIFT = 32  # pixels

Operation = Callable[[Image.Image, float, float], Image.Image]  # image, strength 0..1, sign
TABLE: dict[str, Operation] = {
    "identity": lambda im, a, s: im,
    "shear_x": lambda im, a, s: affine(im, (1, s * a * 0.99, 0, 0, 1, 0)),
    "shear_y": lambda im, a, s: affine(im, (1, 0, 0, s * a * 0.99, 1, 0)),
    "translate_x": lambda im, a, s: affine(im, (1, 0, s * a * LARGEST_SHIFT, 0, 1, 0)),
    "translate_y": lambda im, a, s: affine(im, (1, 0, 0, 0, 1, s * a * LARGEST_SHIFT)),
    "rotate": lambda im, a, s: im.rotate(s * a * 135, resample=Image.Resampling.BILINEAR, fillcolor=GRAY),
    "brightness": lambda im, a, s: ImageEnhance.Brightness(im).enhance(1 + s * a * 0.99),
    "color": lambda im, a, s: ImageEnhance.Color(im).enhance(1 + s * a * 0.99),
    "contrast": lambda im, a, s: ImageEnhance.Contrast(im).enhance(1 + s * a * 0.99),
    "sharpness": lambda im, a, s: ImageEnhance.Sharpness(im).enhance(1 + s * a * 0.99),
    "posterize": lambda im, a, s: ImageOps.posterize(im, 8 - round(6 * a)),
    "solarize": lambda im, a, s: ImageOps.solarize(im, 256 - round(256 * a)),
    "autocontrast": lambda im, a, s: ImageOps.autocontrast(im),
    "equalize": lambda im, a, s: ImageOps.equalize(im),
}
TRIVIAL_OPERATIONS = tuple(TABLE)


def apply_trivial(operation: str, image: Image.Image, *, strength: float, sign: float) -> Image.Image:
    """One operation at a strength of 0..1; `sign` reverses those that have a direction."""
    return TABLE[operation](image, strength, sign)
