"""From a file to pixels: safe decoding, EXIF orientation, resizing for evaluation, normalization."""

import io
import math
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sightline.data.errors import BadImage, printable
from sightline.spec import ImageSpec
from sightline.untrusted import open_regular

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

Pixels = NDArray[np.uint8]  # (h, w, 3)
Box = tuple[int | float, int | float, int | float, int | float]  # left, upper, right, lower, in pixels of the image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
SUFFIXES = (".jpg", ".jpeg", ".jpe", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
MAX_PIXELS = 89_478_485  # where Pillow starts to warn of a decompression bomb: 256 MB of RGB
MAX_BYTES = 1 << 28
MAX_ASPECT_RATIO = 100  # long to short side; ImageNet has up to 15 (500 x 33), and a square crop of 100 shows 1 %
MAX_RESIZED_PIXELS = 1 << 24  # limit of an image resized before the center crop, 64 MB: aspect ratio 16 at 1024 pixels
KERNELS = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "nearest": Image.Resampling.NEAREST,
}
EXIF_ORIENTATION = 0x0112  # tag number
FLIPPED_COLUMNS, FLIPPED_ROWS = (2, 3, 6, 7), (3, 4, 7, 8)  # EXIF orientation values


@dataclass(frozen=True)
class EncodedImage:
    """The bytes of an image file, and its name for error messages."""

    data: bytes
    name: str


RawImage = EncodedImage | Pixels


def read_bytes(path: str | Path) -> EncodedImage:
    """The bytes of a regular file. Pipes and devices, which may block or never end, are not read."""
    name = printable(path)
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                raise BadImage(f"{name} has {size:,} bytes; at most {MAX_BYTES:,} are read.")
            return EncodedImage(file.read(), name)
    except FileNotFoundError as error:
        raise BadImage(f"There is no image {name}.") from error
    except (OSError, ValueError) as error:
        if isinstance(error, BadImage):
            raise
        raise BadImage(f"{name} cannot be read ({reason(error)}).") from error


def decode(raw: RawImage) -> Image.Image:
    """An RGB image, upright.

    Of an animation the first frame is used, transparency becomes white, 16-bit and float images are scaled to 8 bits.
    """
    if isinstance(raw, np.ndarray):
        return Image.fromarray(raw)
    image = read_header(raw)
    orientation = exif_orientation(image)
    return orient_image(decode_pixels(image, raw.name), orientation)


def read_header(raw: EncodedImage) -> Image.Image:
    """Read format, size, mode and EXIF data and check the size, without decoding any pixels."""
    if not raw.data:
        raise BadImage(f"{raw.name} is empty.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(io.BytesIO(raw.data), formats=FORMATS)
        except Exception as error:  # broken files make Pillow raise many types, such as KeyError and struct.error
            raise BadImage(f"{raw.name} is not an image that can be read ({reason(error)}).") from error
    check_size(image.size, raw.name)
    if image.format == "PNG" and "exif" not in image.info and (exif := _png_exif(raw.data)):
        image.info["exif"] = exif
    return image


def check_size(size: tuple[int, int], name: str) -> None:
    """Raise BadImage if a (width, height) has too many pixels, or is too long and thin to show anything in a square."""
    actual = f"{name} has {size[0]} x {size[1]} pixels"
    if size[0] * size[1] > MAX_PIXELS:
        raise BadImage(f"{actual}; at most {MAX_PIXELS:,} are read.")
    if max(size) > MAX_ASPECT_RATIO * min(size):
        raise BadImage(f"{actual}; the long side may be {MAX_ASPECT_RATIO} times the short side: crop it first.")


def _png_exif(data: bytes) -> bytes | None:
    """The EXIF block of a PNG. It may come after the pixels, where Pillow finds it only after decoding them."""
    at = 8
    while at + 8 <= len(data):
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if kind == b"eXIf":
            return b"Exif\0\0" + data[at + 8 : at + 8 + length]
        at += 12 + length
    return None


def decode_pixels(image: Image.Image, name: str, *, scale: int = 1) -> Image.Image:
    """Decode what `read_header` opened to RGB, in its stored orientation. A JPEG may be decoded at 1 / scale."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if scale > 1:
                image.draft("RGB", (image.width // scale, image.height // scale))  # affects only JPEG
            image.load()
            return to_rgb(image)
        except Exception as error:  # as above: one type of error for all broken files
            raise BadImage(f"{name} is broken ({reason(error)}).") from error


def from_pil(image: Image.Image, name: str) -> Image.Image:
    """An image opened with Pillow, treated like a file: RGB, upright, or BadImage."""
    check_size(image.size, name)
    pixels = decode_pixels(image, name)
    return orient_image(pixels, exif_orientation(image))


def jpeg_scale(box: Box, size: tuple[int, int]) -> int:
    """The largest reduction at which a JPEG can be decoded while the box still has at least `size` pixels."""
    ratio = min((box[2] - box[0]) / size[1], (box[3] - box[1]) / size[0])
    return next((s for s in (8, 4, 2) if s <= ratio), 1)


def decode_jpeg(image: EncodedImage, header: Image.Image) -> Pixels | None:
    """Decode an RGB JPEG with simplejpeg if it is installed: the same library and settings as Pillow's, so the same
    pixels, in two thirds of the time. None: leave it to Pillow, which also reports errors."""
    if simplejpeg is None or header.format != "JPEG" or header.mode != "RGB":
        return None
    try:
        return simplejpeg.decode_jpeg(image.data, fastdct=False, fastupsample=False)
    except Exception:  # broken, or a rare variant
        return None


def exif_orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 (upright) to 8. Coordinates always refer to the upright image. A broken EXIF block in an
    intact image counts as 1."""
    if "exif" not in image.info and "Raw profile type exif" not in image.info:
        return 1
    try:
        value = Image.Image.getexif(image).get(
            EXIF_ORIENTATION, 1
        )  # the method of PNG images would decode the pixels first
    except Exception:
        return 1
    return value if value in range(1, 9) else 1


def orient_image(image: Image.Image, orientation: int) -> Image.Image:
    """A decoded image, rotated or mirrored to upright."""
    return (
        image
        if orientation == 1
        else Image.fromarray(np.ascontiguousarray(orient_pixels(np.asarray(image), orientation)))
    )


def orient_pixels(pixels: Pixels, orientation: int) -> Pixels:
    """A view of stored pixels as an upright image. EXIF orientations 5 to 8 swap the axes; then columns (2, 3, 6, 7)
    and rows (3, 4, 7, 8) may be reversed."""
    pixels = pixels.swapaxes(0, 1) if orientation >= 5 else pixels
    return pixels[:: -1 if orientation in FLIPPED_ROWS else 1, :: -1 if orientation in FLIPPED_COLUMNS else 1]


def oriented_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Width and height of the upright image from those of the stored one, and vice versa."""
    return (size[1], size[0]) if orientation >= 5 else size


def stored_box(box: Box, size: tuple[int, int], orientation: int) -> Box:
    """The box in the stored pixels that shows a box of the upright image of this (width, height)."""
    left, upper, right, lower = box
    if orientation in FLIPPED_COLUMNS:
        left, right = size[0] - right, size[0] - left
    if orientation in FLIPPED_ROWS:
        upper, lower = size[1] - lower, size[1] - upper
    return (upper, left, lower, right) if orientation >= 5 else (left, upper, right, lower)


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode of Pillow to RGB with as little loss as possible."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return _to_8_bit(image)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _to_8_bit(image: Image.Image) -> Image.Image:
    values: NDArray[np.floating] = np.nan_to_num(np.asarray(image, dtype=np.float32))
    if image.mode == "F":  # no standard range: stretch the values
        low, high = float(values.min()), float(values.max())
        values = (values - low) / (high - low or 1.0) * 255
    else:
        values = values / 257 if image.mode.startswith("I;16") or values.max() > 255 else values
    return Image.fromarray(np.clip(values + 0.5, 0, 255).astype(np.uint8)).convert("RGB")


def resize_and_crop(image: Image.Image, spec: ImageSpec) -> Pixels:
    """The evaluation transform: bit-identical to torchvision's Resize and CenterCrop.

    One pass with Pillow's `box` would be faster, but changes some pixels by several levels; it is used only if the
    resized image would have more than MAX_RESIZED_PIXELS pixels, which no photograph reaches.
    """
    height, width = spec.size
    whole = resized_size(image.size, spec)
    left, upper = round((whole[0] - width) / 2), round((whole[1] - height) / 2)
    if whole[0] * whole[1] > MAX_RESIZED_PIXELS:
        x, y = image.width / whole[0], image.height / whole[1]
        box = (left * x, upper * y, (left + width) * x, (upper + height) * y)
        return np.asarray(image.resize((width, height), KERNELS[spec.interpolation], box=box))
    if image.size != whole:
        image = image.resize(whole, KERNELS[spec.interpolation])
    return np.asarray(image)[upper : upper + height, left : left + width]


def resized_size(size: tuple[int, int], spec: ImageSpec) -> tuple[int, int]:
    """The (width, height) to which an image is resized before the center crop: short side to size / crop."""
    height, width = spec.size
    if spec.fit == "squash":
        return width, height
    short = math.floor(width / spec.crop), math.floor(height / spec.crop)
    if short[0] * size[1] >= short[1] * size[0]:  # the width is the short side
        return short[0], max(height, short[0] * size[1] // size[0])
    return max(width, short[1] * size[0] // size[1]), short[1]


def normalize(images: UInt8[Tensor, "b 3 y x"], spec: ImageSpec) -> Float[Tensor, "b 3 y x"]:
    """From uint8 to the input of a model, on the device of the images.

    >>> import torch
    >>> sl.data.normalize(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8), sl.ImageSpec(size=(2, 2))).unique()
    tensor([1.])
    """
    mean, std = (torch.tensor(v, device=images.device).view(-1, 1, 1) for v in (spec.mean, spec.std))
    return images.to(torch.float32).mul_(1 / (255 * std)).sub_(mean / std)


def to_tensor(stack: list[Pixels] | Pixels) -> UInt8[Tensor, "b 3 y x"]:
    """Images of one size as a uint8 batch."""
    rows = stack if isinstance(stack, np.ndarray) else np.stack(stack)
    return torch.from_numpy(np.ascontiguousarray(rows.transpose(0, 3, 1, 2)))


def reason(error: BaseException) -> str:
    """The first line of an error, without the memory addresses that Pillow prints."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    return "unknown format" if "cannot identify image file" in text else printable(text.rstrip("."))[:160]
