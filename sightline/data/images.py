"""From a file to pixels: decoding that survives anything, resizing as models expect it, normalizing on the device."""

import io
import math
import os
import stat
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

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

Pixels = NDArray[np.uint8]  # (h, w, 3)
Box = tuple[
    int | float, int | float, int | float, int | float
]  # left, upper, right, lower, in pixels of the whole image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
SUFFIXES = (".jpg", ".jpeg", ".jpe", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
MAX_PIXELS = 89_478_485  # where Pillow begins to speak of a decompression bomb: 256 MB of RGB
MAX_BYTES = 1 << 28
MAX_ASPECT_RATIO = (
    100  # long side to short side; odd ones of ImageNet have 15 (500 x 33), and of 100 a square shows 1 %
)
MAX_RESIZED_PIXELS = 1 << 24  # pixels of a whole image resized before the center is cut, 64 MB: 16 to 1 at 1024 px
KERNELS = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "nearest": Image.Resampling.NEAREST,
}
EXIF_ORIENTATION = 0x0112  # the EXIF tag
FLIPPED_COLUMNS, FLIPPED_ROWS = (2, 3, 6, 7), (3, 4, 7, 8)  # its values


@dataclass(frozen=True)
class EncodedImage:
    """An image still in its file format, and the name to blame when it is broken."""

    data: bytes
    name: str


RawImage = EncodedImage | Pixels


def read_bytes(path: str | Path) -> EncodedImage:
    """The bytes of a regular file. A pipe or a device would block or never end, so it is refused."""
    name = printable(path)
    try:
        with open(path, "rb", opener=_open_nonblocking) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BadImage(f"{name} is not a regular file.")
            if status.st_size > MAX_BYTES:
                raise BadImage(f"{name} has {status.st_size:,} bytes; an image may have {MAX_BYTES:,}.")
            return EncodedImage(file.read(), name)
    except (OSError, ValueError) as error:
        if isinstance(error, BadImage):
            raise
        raise BadImage(f"{name} cannot be read ({_reason(error)}).") from error


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def decode(raw: RawImage) -> Image.Image:
    """An RGB image, upright.

    Animations give their first frame, transparency is laid over white, 16-bit and float images are scaled to 8 bits.
    """
    if isinstance(raw, np.ndarray):
        return Image.fromarray(raw)
    image = read_header(raw)
    orientation = exif_orientation(image)
    return orient_image(decode_pixels(image, raw.name), orientation)


def read_header(raw: EncodedImage) -> Image.Image:
    """The header only: format, size, mode and orientation are known and allowed, no pixel has been decoded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(io.BytesIO(raw.data), formats=FORMATS)
        except Exception as error:  # Pillow raises a dozen kinds for broken files, KeyError and struct.error among them
            raise BadImage(f"{raw.name} is not an image that can be read ({_reason(error)}).") from error
    check_size(image.size, raw.name)
    if image.format == "PNG" and "exif" not in image.info and (exif := _png_exif(raw.data)):
        image.info["exif"] = exif
    return image


def check_size(size: tuple[int, int], name: str) -> None:
    """Refuse a (width, height) of too many pixels, or so long and thin that nothing can be seen of it in a square."""
    given = f"{name} has {size[0]} x {size[1]} pixels"
    if size[0] * size[1] > MAX_PIXELS:
        raise BadImage(f"{given}; at most {MAX_PIXELS:,} are read.")
    if max(size) > MAX_ASPECT_RATIO * min(size):
        raise BadImage(f"{given}; the long side may be {MAX_ASPECT_RATIO} times the short one: crop it first.")


def _png_exif(data: bytes) -> bytes | None:
    """The EXIF block of a PNG, which may stand behind the pixels, where Pillow finds it only after decoding them."""
    at = 8
    while at + 8 <= len(data):
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if kind == b"eXIf":
            return b"Exif\0\0" + data[at + 8 : at + 8 + length]
        at += 12 + length
    return None


def decode_pixels(image: Image.Image, name: str, *, scale: int = 1) -> Image.Image:
    """Decode what `begin` opened, as it is stored: RGB, not turned upright yet. A JPEG may be decoded at 1 / scale."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if scale > 1:
                image.draft("RGB", (image.width // scale, image.height // scale))  # heeded by JPEG alone
            image.load()
            return to_rgb(image)
        except Exception as error:  # as above: whatever a broken file provokes becomes one kind of error
            raise BadImage(f"{name} is broken ({_reason(error)}).") from error


def from_pil(image: Image.Image, name: str) -> Image.Image:
    """An image that someone else opened with Pillow, by the rules of files: RGB, upright, or BadImage."""
    check_size(image.size, name)
    pixels = decode_pixels(image, name)
    return orient_image(pixels, exif_orientation(image))


def jpeg_scale(box: Box, size: tuple[int, int]) -> int:
    """By how much a JPEG may be shrunk while it is decoded, so that the box still has at least the pixels of `size`."""
    spare = min((box[2] - box[0]) / size[1], (box[3] - box[1]) / size[0])
    return next((s for s in (8, 4, 2) if s <= spare), 1)


def decode_jpeg(image: EncodedImage, header: Image.Image) -> Pixels | None:
    """A plain RGB JPEG by simplejpeg, where there is a wheel of it: the same library and settings as Pillow's, so
    the same pixels, in two thirds of the time. None: let Pillow do it, and judge it."""
    if simplejpeg is None or header.format != "JPEG" or header.mode != "RGB":
        return None
    try:
        return simplejpeg.decode_jpeg(image.data, fastdct=False, fastupsample=False)
    except Exception:  # broken, or merely odd
        return None


def exif_orientation(image: Image.Image) -> int:
    """How the camera was held, 1 to 8, by EXIF: image coordinates are those of the image turned upright, everywhere.
    An EXIF block may be broken while the image is whole: then it counts as 1."""
    if "exif" not in image.info and "Raw profile type exif" not in image.info:
        return 1
    try:
        found = Image.Image.getexif(image).get(EXIF_ORIENTATION, 1)  # PNG's own method would decode the pixels first
    except Exception:
        return 1
    return found if found in range(1, 9) else 1


def orient_image(image: Image.Image, orientation: int) -> Image.Image:
    """A whole decoded image, turned as its orientation says."""
    return (
        image
        if orientation == 1
        else Image.fromarray(np.ascontiguousarray(orient_pixels(np.asarray(image), orientation)))
    )


def orient_pixels(pixels: Pixels, orientation: int) -> Pixels:
    """A view of stored pixels in which they stand upright. The eight orientations of EXIF are a swap of the axes (5 to
    8), after which columns (2, 3, 6, 7) and rows (3, 4, 7, 8) may run backwards."""
    pixels = pixels.swapaxes(0, 1) if orientation >= 5 else pixels
    return pixels[:: -1 if orientation in FLIPPED_ROWS else 1, :: -1 if orientation in FLIPPED_COLUMNS else 1]


def oriented_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Width and height upright, of stored width and height; and the other way round."""
    return (size[1], size[0]) if orientation >= 5 else size


def stored_box(box: Box, size: tuple[int, int], orientation: int) -> Box:
    """Where a box of an upright image of this (width, height) lies in the pixels as they are stored."""
    left, upper, right, lower = box
    if orientation in FLIPPED_COLUMNS:
        left, right = size[0] - right, size[0] - left
    if orientation in FLIPPED_ROWS:
        upper, lower = size[1] - lower, size[1] - upper
    return (upper, left, lower, right) if orientation >= 5 else (left, upper, right, lower)


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode of Pillow as RGB, by rules that lose as little as possible."""
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
    if image.mode == "F":  # no agreed range: spread what is there
        low, high = float(values.min()), float(values.max())
        values = (values - low) / (high - low or 1.0) * 255
    else:
        values = values / 257 if image.mode.startswith("I;16") or values.max() > 255 else values
    return Image.fromarray(np.clip(values + 0.5, 0, 255).astype(np.uint8)).convert("RGB")


def resize_and_crop(image: Image.Image, spec: ImageSpec) -> Pixels:
    """What the model sees of an image in evaluation: to the last bit what torchvision's Resize and CenterCrop give.

    One pass through Pillow's `box` would be quicker, but some pixels then differ by several levels; it is taken where
    the whole resized image would have more than MAX_RESIZED_PIXELS pixels, which no photograph reaches.
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
    """The (width, height) to which an image is resized before the center is cut: short side to size / crop."""
    height, width = spec.size
    if spec.fit == "squash":
        return width, height
    short = math.floor(width / spec.crop), math.floor(height / spec.crop)
    if short[0] * size[1] >= short[1] * size[0]:  # the width is what is short
        return short[0], max(height, short[0] * size[1] // size[0])
    return max(width, short[1] * size[0] // size[1]), short[1]


def normalize(images: UInt8[Tensor, "b 3 y x"], spec: ImageSpec) -> Float[Tensor, "b 3 y x"]:
    """Bytes to the numbers a model takes, on the device where the bytes are.

    >>> import torch
    >>> sl.data.normalize(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8), sl.ImageSpec(size=(2, 2))).unique()
    tensor([1.])
    """
    mean, std = (torch.tensor(v, device=images.device).view(-1, 1, 1) for v in (spec.mean, spec.std))
    return images.to(torch.float32).mul_(1 / (255 * std)).sub_(mean / std)


def to_tensor(stack: list[Pixels] | Pixels) -> UInt8[Tensor, "b 3 y x"]:
    """Images of one size as a batch of bytes."""
    rows = stack if isinstance(stack, np.ndarray) else np.stack(stack)
    return torch.from_numpy(np.ascontiguousarray(rows.transpose(0, 3, 1, 2)))


def _reason(error: BaseException) -> str:
    """The first line of an error, without Pillow's memory addresses."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    return "unknown format" if "cannot identify image file" in text else printable(text.rstrip("."))[:160]
