"""Data augmentation: the settings, and functions whose random draws are keyed by (seed, epoch, index)."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import Image, ImageEnhance
from torch import Tensor

from sightline.data.augment.randaugment import OPERATIONS, apply_operation
from sightline.data.augment.trivialaugment import TRIVIAL_OPERATIONS, apply_trivial
from sightline.data.draws import Draws, Number, generator
from sightline.data.images import KERNELS, Pixels
from sightline.spec import ImageSpec

TRIES = 10  # attempts of the inception crop before the center crop


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Settings of the training transform, in the order in which the steps apply. The defaults are the inception crop
    and the flip of the ViT and BiT papers; `None` or 0 turns a step off.

    >>> sl.data.Augment(randaugment=(2, 10), mixup=0.2).crop_area
    (0.05, 1.0)
    >>> sl.data.Augment(erase=2.0)
    Traceback (most recent call last):
        ...
    ValueError: Augment(erase=2.0): expected a probability, 0 to 1.
    """

    crop_area: tuple[Number, Number] | None = (0.05, 1.0)  # fraction of the image area (ViT, code of appendix B.1.1)
    crop_ratio: tuple[Number, Number] = (3 / 4, 4 / 3)  # width / height of the crop, before it is resized
    crop_side: Number | None = None  # instead of crop_area: a crop of this fraction of both sides (BiT: 128 of 160)
    flip: bool | Literal["alternating"] = (
        True  # alternating: every other epoch, which half of the images starts is drawn
    )
    shift: Number = 0.0  # random shift by up to this fraction of the side, reflected borders; for small images
    randaugment: tuple[int, Number] | None = None  # operations per image, magnitude 0..10
    trivial: bool = False  # TrivialAugment: one operation of a random strength per image
    jitter: Number | tuple[Number, Number, Number, Number] = 0.0  # brightness, contrast, saturation, hue (<= 0.5)
    erase: Number = 0.0  # probability of one erased rectangle
    mixup: Number = 0.0  # alpha of Beta(alpha, alpha), one draw per batch; labels become class weights
    cutmix: Number = 0.0  # the same; with both, one is chosen at random for each batch
    repeats: int = 1  # repeated augmentation: each image this many times in a row, with new draws each time

    def __post_init__(self) -> None:
        low, high = self.crop_area or (1.0, 1.0)
        _require(0 < low <= high <= 1, f"crop_area={self.crop_area}", "expected 0 < low <= high <= 1")
        low, high = self.crop_ratio
        _require(0 < low <= high, f"crop_ratio={self.crop_ratio}", "expected 0 < low <= high")
        side = 1.0 if self.crop_side is None else self.crop_side
        _require(0 < side <= 1, f"crop_side={self.crop_side}", "expected a fraction of the side, 0 < crop_side <= 1")
        both = self.crop_side is not None and self.crop_area is not None
        _require(
            not both,
            f"crop_area={self.crop_area}, crop_side={self.crop_side}",
            "give one of them and set the other to None",
        )
        _require(0 <= self.shift < 1, f"shift={self.shift}", "expected a fraction of the side, 0 <= shift < 1")
        count, level = self.randaugment or (0, 0)
        _require(
            count >= 0 and 0 <= level <= 10, f"randaugment={self.randaugment}", "expected (operations, magnitude 0..10)"
        )
        _require(
            self.flip in (True, False, "alternating"), f"flip={self.flip!r}", "expected true, false or alternating"
        )
        _require(not (count and self.trivial), "randaugment and trivial", "give one of them")
        _require(all(j >= 0 for j in self.jitters), f"jitter={self.jitter}", "expected numbers >= 0")
        _require(self.jitters[3] <= 0.5, f"jitter={self.jitter}", "expected a hue of at most 0.5")
        _require(0 <= self.erase <= 1, f"erase={self.erase}", "expected a probability, 0 to 1")
        _require(self.mixup >= 0, f"mixup={self.mixup}", "expected alpha >= 0")
        _require(self.cutmix >= 0, f"cutmix={self.cutmix}", "expected alpha >= 0")
        _require(self.repeats >= 1, f"repeats={self.repeats}", "expected at least 1")

    @property
    def jitters(self) -> tuple[Number, Number, Number, Number]:
        """Brightness, contrast, saturation, hue; a single number sets the first three."""
        return self.jitter if isinstance(self.jitter, tuple) else (self.jitter, self.jitter, self.jitter, 0.0)

    @property
    def varies(self) -> bool:
        """Whether an image looks different each time, apart from mixing."""
        shape = self.crop_area or self.crop_side not in (None, 1) or self.flip or self.shift or self.erase
        return bool(shape or self.randaugment or self.trivial or any(self.jitters))

    @property
    def mixes(self) -> bool:
        """Whether images are mixed, so that labels become class weights."""
        return self.mixup > 0 or self.cutmix > 0


def _require(holds: bool, given: str, expected: str) -> None:
    if not holds:
        raise ValueError(f"Augment({given}): {expected}.")


def crop_boxes(sizes: NDArray[np.int64], augment: Augment, draws: Draws) -> NDArray[np.float64]:
    """Inception crops of images with these (width, height): left, upper, right, lower, one row each.

    The area and the logarithm of the ratio are uniform; the first of ten attempts that fits into the image is used,
    else the largest center crop of an allowed ratio. With `crop_side`, crops of that fraction of both sides.
    """
    width, height = sizes[:, :1].astype(float), sizes[:, 1:].astype(float)
    if augment.crop_side is not None:
        return _window_boxes(sizes.astype(float), augment.crop_side, draws)
    if augment.crop_area is None:
        return np.concatenate([0 * width, 0 * height, width, height], axis=1)
    low, high = augment.crop_area
    area = width * height * (low + (high - low) * draws.many("crop area", TRIES))
    bounds = np.log(augment.crop_ratio)
    ratio = np.exp(bounds[0] + (bounds[1] - bounds[0]) * draws.many("crop ratio", TRIES))
    w, h = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (w >= 1) & (h >= 1) & (w <= width) & (h <= height)
    first, rows = fits.argmax(1), np.arange(len(sizes))
    ratio = np.clip(width / height, *augment.crop_ratio)[:, 0]
    missed = ~fits.any(1)
    w = np.where(missed, np.minimum(width[:, 0], np.rint(height[:, 0] * ratio)), w[rows, first])
    h = np.where(missed, np.minimum(height[:, 0], np.rint(width[:, 0] / ratio)), h[rows, first])
    spare_x, spare_y = width[:, 0] - w, height[:, 0] - h
    left = np.where(missed, spare_x // 2, np.floor(draws.uniform("crop left") * (spare_x + 1)))
    upper = np.where(missed, spare_y // 2, np.floor(draws.uniform("crop upper") * (spare_y + 1)))
    return np.stack([left, upper, left + w, upper + h], axis=1)


def _window_boxes(sizes: NDArray[np.float64], side: Number, draws: Draws) -> NDArray[np.float64]:
    """A random c x c crop after resizing to r x r is a crop of c / r of both sides, resized to c x c."""
    inside = np.maximum(1, np.rint(sizes * side))
    chance = np.stack([draws.uniform("crop left"), draws.uniform("crop upper")], axis=1)
    corner = np.floor(chance * (sizes - inside + 1))
    return np.concatenate([corner, corner + inside], axis=1)


def resize(pixels: Pixels, spec: ImageSpec) -> Pixels:
    """Resize a crop to the size of the model, with antialiasing. torch's uint8 kernel differs from Pillow by at most
    one level of 255 and takes half the time."""
    if pixels.shape[:2] == spec.size:
        return pixels
    if spec.interpolation == "nearest":
        return np.asarray(Image.fromarray(pixels).resize(spec.size[::-1], KERNELS["nearest"]))
    own = pixels if pixels.flags.writeable else pixels.copy()  # torch warns of an array that must not be written to
    planes = torch.from_numpy(own).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(planes, size=spec.size, mode=spec.interpolation, antialias=True)
    return resized[0].permute(1, 2, 0).numpy()


@dataclass(frozen=True)
class AugmentParameters:
    """All random draws of a batch; row i is for image i."""

    boxes: NDArray[np.float64]
    mirror: NDArray[np.bool_]
    shifts: NDArray[np.int64]  # (b, 2), pixels down and to the right
    operations: NDArray[np.int64]  # (b, operations of RandAugment)
    signs: NDArray[np.float64]  # (b, the same), -1 or 1
    places: NDArray[np.float64]  # (b, the same, 2), center of a cutout
    trivial: NDArray[np.float64]  # (b, 3): operation of TrivialAugment, strength, sign
    colors: NDArray[np.float64]  # (b, 4), in -1..1
    erased: NDArray[np.int64]  # (b, 4): upper, lower, left, right


def draw_parameters(
    sizes: NDArray[np.int64],
    augment: Augment,
    draws: Draws,
    *,
    size: tuple[int, int],
    mirror: NDArray[np.bool_] | None = None,
) -> AugmentParameters:
    """All random draws for images of these (width, height); `mirror` says which to flip if that is not random."""
    count = augment.randaugment[0] if augment.randaugment else 0
    flip = draws.uniform("flip") < 0.5
    return AugmentParameters(
        boxes=crop_boxes(sizes, augment, draws),
        mirror=mirror if mirror is not None else flip if augment.flip else np.zeros_like(flip),
        shifts=np.rint((2 * draws.many("shift", 2) - 1) * augment.shift * np.array(size)).astype(np.int64),
        operations=draws.choices("operation", len(OPERATIONS), count),
        signs=np.where(draws.many("sign", count) < 0.5, -1.0, 1.0),
        places=draws.many("place", 2 * count).reshape(len(flip), count, 2),
        trivial=_draw_trivial(draws) if augment.trivial else np.zeros((len(flip), 3)),
        colors=2 * draws.many("colour", 4) - 1,  # a key, not a word: spelled as it was first
        erased=erase_boxes(augment.erase, draws, size),
    )


def _draw_trivial(draws: Draws) -> NDArray[np.float64]:
    operation = draws.integers("trivial operation", len(TRIVIAL_OPERATIONS))
    sign = np.where(draws.uniform("trivial sign") < 0.5, -1.0, 1.0)
    return np.stack([operation, draws.uniform("trivial strength"), sign], axis=1)


def alternating_flips(draws: Draws, epoch: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each image is mirrored: half of them in even epochs, the others in odd ones (Jordan 2024).

    `draws` must not depend on the epoch. Every image is seen both ways within two epochs, which random flips do not
    achieve.
    """
    return (draws.uniform("flip") < 0.5) ^ (epoch % 2 == 1)


def transform(pixels: Pixels, row: int, steps: AugmentParameters, *, augment: Augment, spec: ImageSpec) -> Pixels:
    """The remaining steps for the crop of image `row`: resize, flip, shift, colors, erase."""
    pixels = resize(pixels, spec)
    if steps.mirror[row]:
        pixels = pixels[:, ::-1]
    down, right = (int(v) for v in steps.shifts[row])
    if down or right:
        pixels = pixels[reflected_indices(pixels.shape[0], down)][:, reflected_indices(pixels.shape[1], right)]
    if augment.randaugment or augment.trivial or any(augment.jitters):
        pixels = np.asarray(_apply_colors(Image.fromarray(np.ascontiguousarray(pixels)), row, steps, augment))
    hole = steps.erased[row]
    if hole[1] > hole[0]:
        pixels = pixels.copy()
        pixels[hole[0] : hole[1], hole[2] : hole[3]] = np.rint(np.multiply(spec.mean, 255))  # zero after normalization
    return pixels


def transform_stack(stack: Pixels, steps: AugmentParameters, *, augment: Augment, spec: ImageSpec) -> Tensor | None:
    """`transform` for all images of one size at once, (b, h, w, 3) to (b, 3, y, x), several times faster. None if the
    settings need more than flips, shifts and erasing."""
    colors = augment.randaugment or augment.trivial or any(augment.jitters)
    if augment.crop_area or augment.crop_side or colors:
        return None
    planes = torch.from_numpy(stack).permute(0, 3, 1, 2)
    if tuple(planes.shape[2:]) != spec.size:
        if spec.interpolation == "nearest":
            return None
        planes = torch.nn.functional.interpolate(planes, size=spec.size, mode=spec.interpolation, antialias=True)
    height, width = spec.size
    edge = np.abs(steps.shifts).max(0, initial=0)
    wide = np.pad(planes.numpy(), ((0, 0), (0, 0), (edge[0],) * 2, (edge[1],) * 2), mode="reflect")
    mirrored = wide[..., ::-1]
    pixels = np.empty((len(stack), 3, height, width), np.uint8)
    for row, (y, x) in enumerate((edge - steps.shifts).tolist()):
        pixels[row] = (mirrored if steps.mirror[row] else wide)[row, :, y : y + height, x : x + width]
    for row in np.flatnonzero(steps.erased[:, 1] > steps.erased[:, 0]).tolist():
        top, bottom, left, right = (int(v) for v in steps.erased[row])
        pixels[row, :, top:bottom, left:right] = np.rint(np.multiply(spec.mean, 255))[:, None, None]
    return torch.from_numpy(pixels)


def reflected_indices(length: int, move: int) -> NDArray[np.int64]:
    """The indices of a shifted axis, with reflected borders."""
    at = np.abs(np.arange(length) - move)
    return length - 1 - np.abs(length - 1 - at)


def _apply_colors(image: Image.Image, row: int, steps: AugmentParameters, augment: Augment) -> Image.Image:
    if augment.randaugment:
        for number, sign, place in zip(steps.operations[row], steps.signs[row], steps.places[row]):
            image = apply_operation(
                OPERATIONS[number], image, level=augment.randaugment[1], sign=float(sign), place=place
            )
    if augment.trivial:
        number, strength, sign = steps.trivial[row].tolist()
        image = apply_trivial(TRIVIAL_OPERATIONS[int(number)], image, strength=strength, sign=sign)
    return jitter_colors(image, augment.jitters, steps.colors[row]) if any(augment.jitters) else image


def jitter_colors(
    image: Image.Image, amounts: tuple[Number, Number, Number, Number], draws: NDArray[np.float64]
) -> Image.Image:
    """Multiply brightness, contrast and saturation by 1 +- amount, rotate the hue by +- amount."""
    factors = np.maximum(0, 1 + np.multiply(amounts, draws))
    for kind, factor in zip((ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color), factors):
        if factor != 1:
            image = kind(image).enhance(float(factor))
    if amounts[3]:
        hue, *rest = image.convert("HSV").split()
        rotated = np.asarray(hue).astype(np.int16) + round(256 * amounts[3] * float(draws[3]))
        hue = Image.fromarray((rotated % 256).astype(np.uint8))
        image = Image.merge("HSV", (hue, *rest)).convert("RGB")
    return image


def erase_boxes(probability: Number, draws: Draws, size: tuple[int, int]) -> NDArray[np.int64]:
    """Random erasing (Zhong et al. 2020): area 2 to 33 %, aspect ratio 0.3 to 3.3. Zeros where nothing is erased."""
    height, width = size
    area = draws.uniform("erase area", 0.02, 1 / 3) * height * width
    ratio = np.exp(draws.uniform("erase ratio", math.log(0.3), math.log(3.3)))
    h = np.clip(np.rint(np.sqrt(area * ratio)), 1, height).astype(np.int64)
    w = np.clip(np.rint(np.sqrt(area / ratio)), 1, width).astype(np.int64)
    upper = np.floor(draws.uniform("erase upper") * (height - h + 1)).astype(np.int64)
    left = np.floor(draws.uniform("erase left") * (width - w + 1)).astype(np.int64)
    chosen = draws.uniform("erase") < probability
    return np.stack([upper, upper + h, left, left + w], axis=1) * chosen[:, None]


def mix(
    images: UInt8[Tensor, "b 3 y x"], shares: Float[Tensor, "b k"], *, augment: Augment, key: int
) -> tuple[UInt8[Tensor, "b 3 y x"], Float[Tensor, "b k"]]:
    """Mixup (Zhang et al. 2018) or CutMix (Yun et al. 2019) with one ratio for the whole batch, as in the papers.

    Neighboring images are mixed (0 and 1, 2 and 3, ...; an odd last image is left alone). The batch is shuffled, so the
    pairs are random, and a rank with a contiguous, even part of the batch has both images of every pair.
    """
    chance = generator(key, "mix")
    cut = augment.cutmix > 0 and (augment.mixup == 0 or chance.random() < 0.5)
    alpha = augment.cutmix if cut else augment.mixup
    share = float(chance.beta(alpha, alpha))
    partner = torch.arange(len(images)) ^ 1
    partner[partner >= len(images)] = len(images) - 1
    if cut:
        images, share = _paste(images, images[partner], share, chance.random(2))
    else:
        images = torch.lerp(images[partner].float(), images.float(), share).round_().to(torch.uint8)
    return images, share * shares + (1 - share) * shares[partner]


def _paste(
    images: UInt8[Tensor, "b 3 y x"], others: UInt8[Tensor, "b 3 y x"], share: float, center: NDArray[np.float64]
) -> tuple[UInt8[Tensor, "b 3 y x"], float]:
    """Paste a rectangle of 1 - share of the area from the other image; returns the actual share after clipping."""
    height, width = images.shape[-2:]
    half = math.sqrt(1 - share) / 2
    y0, y1 = (int(np.clip(round((center[0] + s * half) * height), 0, height)) for s in (-1, 1))
    x0, x1 = (int(np.clip(round((center[1] + s * half) * width), 0, width)) for s in (-1, 1))
    images = images.clone()
    images[..., y0:y1, x0:x1] = others[..., y0:y1, x0:x1]
    return images, 1 - (y1 - y0) * (x1 - x0) / (height * width)
