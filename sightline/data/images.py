"""From a file to pixels: decoding that survives anything, resizing as models expect it, normalising on the device."""

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
from PIL import Image, ImageOps
from torch import Tensor

from sightline.data.errors import BadImage, shown
from sightline.spec import ImageSpec

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

Pixels = NDArray[np.uint8]  # (h, w, 3)
Box = tuple[
    int | float, int | float, int | float, int | float
]  # left, upper, right, lower, in pixels of the whole picture

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
SUFFIXES = (".jpg", ".jpeg", ".jpe", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
MOST_PIXELS = 89_478_485  # where Pillow begins to speak of a decompression bomb: 256 MB of RGB
MOST_BYTES = 1 << 28
KERNELS = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "nearest": Image.Resampling.NEAREST,
}
ORIENTATION = 0x0112  # the EXIF tag


@dataclass(frozen=True)
class Encoded:
    """A picture still in its file format, and the name to blame when it is broken."""

    data: bytes
    name: str


Picture = Encoded | Pixels


def read_bytes(path: str | Path) -> Encoded:
    """The bytes of a regular file. A pipe or a device would block or never end, so it is refused."""
    name = shown(path)
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BadImage(f"{name} is not a regular file.")
            if status.st_size > MOST_BYTES:
                raise BadImage(f"{name} has {status.st_size:,} bytes; a picture may have {MOST_BYTES:,}.")
            return Encoded(file.read(), name)
    except (OSError, ValueError) as error:
        if isinstance(error, BadImage):
            raise
        raise BadImage(f"{name} cannot be read ({_reason(error)}).") from error


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def decode(picture: Picture, *, box: Box | None = None, size: tuple[int, int] | None = None) -> Image.Image:
    """An RGB image, upright. Given a box and the (height, width) it will be resized to, a JPEG is decoded at a
    half, a quarter or an eighth of its scale where that still leaves more pixels than are asked for.

    Animations give their first frame, transparency is laid over white, 16-bit and float pictures are scaled to 8 bits.
    """
    if isinstance(picture, np.ndarray):
        return Image.fromarray(picture)
    image = begin(picture)
    return finish(image, picture.name, box=box, size=size)


def begin(picture: Encoded) -> Image.Image:
    """The header only: format, size and mode are known and allowed, no pixel has been decoded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(io.BytesIO(picture.data), formats=FORMATS)
        except Exception as error:  # Pillow raises a dozen kinds for broken files, KeyError and struct.error among them
            raise BadImage(f"{picture.name} is not a picture that can be read ({_reason(error)}).") from error
    if image.width * image.height > MOST_PIXELS:
        raise BadImage(f"{picture.name} has {image.width} x {image.height} pixels; at most {MOST_PIXELS:,} are read.")
    return image


def finish(image: Image.Image, name: str, *, box: Box | None, size: tuple[int, int] | None) -> Image.Image:
    """Decode what `begin` opened."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if box is not None and size is not None and (scale := scale_for(box, size)) > 1:
                image.draft("RGB", (image.width // scale, image.height // scale))  # heeded by JPEG alone
            image.load()
            return eight_bit_rgb(upright(image))
        except Exception as error:  # as above: whatever a broken file provokes becomes one kind of error
            raise BadImage(f"{name} is broken ({_reason(error)}).") from error


def scale_for(box: Box, size: tuple[int, int]) -> int:
    """By how much a JPEG may be shrunk while it is decoded, so that the box still has at least the pixels of `size`."""
    spare = min((box[2] - box[0]) / size[1], (box[3] - box[1]) / size[0])
    return next((s for s in (8, 4, 2) if s <= spare), 1)


def turbo(picture: Encoded, header: Image.Image) -> Pixels | None:
    """A plain RGB JPEG by simplejpeg, where there is a wheel of it: the same library and settings as Pillow's, so
    the same pixels, in two thirds of the time. None: let Pillow do it, and judge it."""
    if simplejpeg is None or header.format != "JPEG" or header.mode != "RGB":
        return None
    try:
        return simplejpeg.decode_jpeg(picture.data, fastdct=False, fastupsample=False)
    except Exception:  # broken, or merely odd
        return None


def upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF orientation says."""
    return ImageOps.exif_transpose(image) if orientation(image) != 1 else image


def orientation(image: Image.Image) -> int:
    """How the camera was held, 1 to 8. An EXIF block may be broken while the picture is whole: then it counts as 1."""
    if "exif" not in image.info:
        return 1
    try:
        found = image.getexif().get(ORIENTATION, 1)
    except Exception:
        return 1
    return found if found in range(1, 9) else 1


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Width and height after `upright`, known before decoding."""
    return (image.height, image.width) if orientation(image) >= 5 else image.size


def eight_bit_rgb(image: Image.Image) -> Image.Image:
    """Any mode of Pillow as RGB, by rules that lose as little as possible."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return _scaled(image)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _scaled(image: Image.Image) -> Image.Image:
    values: NDArray[np.floating] = np.nan_to_num(np.asarray(image, dtype=np.float32))
    if image.mode == "F":  # no agreed range: spread what is there
        low, high = float(values.min()), float(values.max())
        values = (values - low) / (high - low or 1.0) * 255
    else:
        values = values / 257 if image.mode.startswith("I;16") or values.max() > 255 else values
    return Image.fromarray(np.clip(values + 0.5, 0, 255).astype(np.uint8)).convert("RGB")


def fit(image: Image.Image, spec: ImageSpec) -> Pixels:
    """What the model sees of a picture in evaluation: to the last bit what torchvision's Resize and CenterCrop give.
    (One pass through Pillow's `box` would be quicker, but some pixels then differ by several levels.)"""
    height, width = spec.size
    whole = whole_size(image.size, spec)
    if image.size != whole:
        image = image.resize(whole, KERNELS[spec.interpolation])
    left, upper = round((whole[0] - width) / 2), round((whole[1] - height) / 2)
    return np.asarray(image)[upper : upper + height, left : left + width]


def whole_size(size: tuple[int, int], spec: ImageSpec) -> tuple[int, int]:
    """The (width, height) to which a picture is resized before the centre is cut: short side to size / crop."""
    height, width = spec.size
    if spec.fit == "squash":
        return width, height
    short = math.floor(width / spec.crop), math.floor(height / spec.crop)
    if short[0] * size[1] >= short[1] * size[0]:  # the width is what is short
        return short[0], max(height, short[0] * size[1] // size[0])
    return max(width, short[1] * size[0] // size[1]), short[1]


def normalise(images: UInt8[Tensor, "b 3 y x"], spec: ImageSpec) -> Float[Tensor, "b 3 y x"]:
    """Bytes to the numbers a model takes, on the device where the bytes are.

    >>> import torch
    >>> sl.normalise(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8), sl.ImageSpec(size=(2, 2))).unique()
    tensor([1.])
    """
    mean, std = (torch.tensor(v, device=images.device).view(-1, 1, 1) for v in (spec.mean, spec.std))
    return images.to(torch.float32).mul_(1 / (255 * std)).sub_(mean / std)


def to_tensor(stack: list[Pixels] | Pixels) -> UInt8[Tensor, "b 3 y x"]:
    """Pictures of one size as a batch of bytes."""
    rows = stack if isinstance(stack, np.ndarray) else np.stack(stack)
    return torch.from_numpy(np.ascontiguousarray(rows.transpose(0, 3, 1, 2)))


def _reason(error: BaseException) -> str:
    """The first line of an error, without Pillow's memory addresses."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    return "unknown format" if "cannot identify image file" in text else shown(text.rstrip("."))[:160]
