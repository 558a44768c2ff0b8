"""Predictions of a dense model on image files, and images with masks and boxes drawn into them."""

import colorsys
import logging
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from sightline.data.errors import BadImage, printable
from sightline.data.opening import image_files, open_image
from sightline.dense.coco_metric import Detections
from sightline.dense.evaluation import prepare
from sightline.dense.model import DenseModel, load_dense
from sightline.files import atomic
from sightline.spec import Displayable

log = logging.getLogger("sightline.dense")
READABLE = 256  # pixels of the shorter side, at least
OPAQUE = 0.5  # of a mask over its image
GOLDEN = 0.618034  # turns of hue from one color to the next, so that neighbors differ
SURE = 0.5  # score from which objects are drawn
Color = tuple[int, int, int]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True, kw_only=True)
class DensePrediction(Displayable):
    """What a dense model sees in one image: a class per pixel, or objects.

    >>> import numpy as np
    >>> p = sl.dense.DensePrediction(image="a.png", pixels=np.zeros((2, 2, 3), np.uint8), names=("background", "cat"),
    ...                              segments=np.array([[0, 1], [1, 1]]))
    >>> p.shares()
    {'background': 0.25, 'cat': 0.75}
    """

    image: str
    pixels: NDArray[np.uint8]  # (h, w, 3)
    names: tuple[str, ...]
    segments: NDArray[np.int64] | None = None  # (h, w), class of every pixel
    objects: Detections | None = None  # the most confident first

    def shares(self) -> dict[str, float]:
        """The share of the pixels of each class that occurs."""
        if self.segments is None:
            raise ValueError("Objects were detected, not pixels classified: see .objects.")
        counts = np.bincount(self.segments.ravel(), minlength=len(self.names)) / self.segments.size
        return {name: float(share) for name, share in zip(self.names, counts) if share}


def predict_dense(
    model: DenseModel | str | PathLike[str],
    images: str | PathLike[str] | Iterable[str | PathLike[str]],
    *,
    score: float = SURE,
    batch: int = 16,
    bad: dict[str, str] | None = None,
) -> list[DensePrediction]:
    """Segment or detect on image files, a folder or a pattern; objects with a score below `score` are left out.

    An image that cannot be read is logged, added to `bad` with the reason, and left out; it is an error only if no
    image can be read.

    >>> import tempfile; from PIL import Image
    >>> folder = tempfile.mkdtemp()
    >>> Image.new("RGB", (40, 30), "red").save(f"{folder}/red.png")
    >>> model = sl.build("vit-nano4", classes=0)
    >>> config = sl.dense.DenseConfig(task="segment", kind="linear", classes=("cat",))
    >>> dense = sl.dense.DenseModel(model, sl.dense.build_head(model, config), config)
    >>> sl.dense.predict_dense(dense, folder)[0].segments.shape
    (30, 40)
    """
    if not 0 <= score <= 1:
        raise ValueError(f"score={score}: expected a number from 0 to 1.")
    dense = (model if isinstance(model, DenseModel) else load_dense(model)).eval()
    unread: dict[str, str] = {}
    files = _files([images] if isinstance(images, str | PathLike) else images, unread)
    if not files and not unread:
        raise ValueError("There are no images to predict: give files, a folder or a pattern.")
    out: list[DensePrediction] = []
    for start in range(0, len(files), batch):
        opened = _open(files[start : start + batch], unread)
        if opened:
            out += _predict(dense, list(opened), list(opened.values()), score)
    if not out:
        first = next(iter(unread.values()))
        raise BadImage(
            first if len(unread) == 1 else f"None of the {len(unread)} images can be read. The first: {first}"
        )
    for reason in unread.values():
        log.warning("bad image: %s", reason)
    if bad is not None:
        bad.update(unread)
    return out


def _files(images: Iterable[str | PathLike[str]], unread: dict[str, str]) -> list[str]:
    """Every image file once; a path or pattern without any is added to `unread`."""
    files: dict[str, None] = {}
    for where in images:
        try:
            files.update(dict.fromkeys(image_files(where)))
        except BadImage as error:
            unread[os.fspath(where)] = str(error)
    return list(files)


def _open(files: Sequence[str], unread: dict[str, str]) -> dict[str, NDArray[np.uint8]]:
    """The pixels of the images that can be read, by name; the others are added to `unread`."""
    opened: dict[str, NDArray[np.uint8]] = {}
    for file in files:
        try:
            opened[printable(file)] = np.asarray(open_image(file))
        except BadImage as error:
            unread[file] = str(error)
    return opened


def _predict(
    dense: DenseModel, names: Sequence[str], pixels: list[NDArray[np.uint8]], score: float
) -> list[DensePrediction]:
    batch = prepare(pixels, dense).to(next(dense.parameters()).device)
    sizes = [(p.shape[0], p.shape[1]) for p in pixels]
    known = dense.config.names
    if dense.config.task == "segment":
        maps = dense.segment(batch, sizes)
        return [DensePrediction(image=n, pixels=p, names=known, segments=s) for n, p, s in zip(names, pixels, maps)]
    found = [sure_objects(d, score) for d in dense.detect(batch, sizes)]
    return [DensePrediction(image=n, pixels=p, names=known, objects=d) for n, p, d in zip(names, pixels, found)]


def sure_objects(found: Detections, score: float) -> Detections:
    """The detections from a score on."""
    kept = found.scores >= score
    return Detections(classes=found.classes[kept], scores=found.scores[kept], masks=found.masks[kept])


def draw_dense(prediction: DensePrediction) -> Image.Image:
    """The image with masks in color: of objects also boxes, names and scores, of classes a line of names below. Small
    images are enlarged, so that names can be read.

    >>> import numpy as np
    >>> p = sl.dense.DensePrediction(image="a.png", pixels=np.zeros((96, 64, 3), np.uint8),
    ...                              names=("background", "cat"), segments=np.ones((96, 64), int))
    >>> sl.dense.draw_dense(p).width
    256
    """
    times = math.ceil(READABLE / min(prediction.pixels.shape[:2]))
    pixels = prediction.pixels.astype(np.float32)
    if prediction.objects is None:
        assert prediction.segments is not None
        shown = [number for number in np.unique(prediction.segments).tolist() if number]
        for number in shown:  # the background stays as it is
            _blend(pixels, prediction.segments == number, color(number))
        return _with_names(_enlarged(pixels, times), {prediction.names[i]: color(i) for i in shown})
    order = range(len(prediction.objects.masks) - 1, -1, -1)  # the most confident on top
    for i in order:
        _blend(pixels, prediction.objects.masks[i], color(i + 1))
    image = _enlarged(pixels, times)
    for i in order:
        _draw_box(image, prediction.objects, i, prediction.names, times)
    return image


def _enlarged(pixels: NDArray[np.float32], times: int) -> Image.Image:
    return Image.fromarray(pixels.round().astype(np.uint8).repeat(times, 0).repeat(times, 1))


def _blend(pixels: NDArray[np.float32], mask: NDArray[np.bool_], tint: Color) -> None:
    pixels[mask] = (1 - OPAQUE) * pixels[mask] + OPAQUE * np.array(tint, np.float32)


def _draw_box(image: Image.Image, found: Detections, i: int, names: tuple[str, ...], times: int) -> None:
    draw, font = ImageDraw.Draw(image), _font(image)
    left, upper, right, lower = (times * v for v in found.boxes[i].tolist())
    draw.rectangle((left, upper, right - 1, lower - 1), outline=color(i + 1), width=max(1, min(image.size) // 200))
    text = f"{names[int(found.classes[i]) - 1]} {found.scores[i]:.2f}"
    height = _text_size(text, font)[1]
    _write_name(draw, (left, max(0, upper - height)), text, color(i + 1), font)  # on the box, or inside at the border


def _with_names(image: Image.Image, tints: dict[str, Color]) -> Image.Image:
    """The image, and below it the names of classes on their colors, in as many lines as it takes."""
    places: dict[str, tuple[int, int]] = {}
    font, x, y = _font(image), 0, image.height
    line = _text_size("Ag", font)[1]
    for name in tints:
        width = _text_size(name, font)[0]
        x, y = (0, y + line) if x and x + width > image.width else (x, y)
        places[name] = (x, y)
        x += width + line // 2
    out = Image.new("RGB", (image.width, y + line if tints else y), "white")
    out.paste(image)
    for name, place in places.items():
        _write_name(ImageDraw.Draw(out), place, name, tints[name], font)
    return out


def _font(image: Image.Image) -> Font:
    return ImageFont.load_default(size=max(10, min(image.size) // 25))


def _text_size(text: str, font: Font) -> tuple[int, int]:
    left, _, right, lower = font.getbbox(text)
    return math.ceil(right - left) + 2, math.ceil(lower) + 2


def _write_name(draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, tint: Color, font: Font) -> None:
    width, height = _text_size(text, font)
    draw.rectangle((*place, place[0] + width - 1, place[1] + height - 1), fill=tint)
    draw.text(place, text, fill="white", font=font)


def color(number: int) -> Color:
    """A color of its own for each number."""
    red, green, blue = colorsys.hsv_to_rgb(number * GOLDEN % 1, 0.85, 0.8 if number % 2 else 0.6)
    return round(255 * red), round(255 * green), round(255 * blue)


def write_drawings(predictions: Sequence[DensePrediction], folder: str | PathLike[str]) -> list[Path]:
    """Write each drawing as a PNG of the image's name into a folder, and return the files.

    >>> import tempfile, numpy as np
    >>> p = sl.dense.DensePrediction(image="a.jpg", pixels=np.zeros((9, 7, 3), np.uint8), names=("background", "cat"),
    ...                              segments=np.ones((9, 7), int))
    >>> [path.name for path in sl.dense.write_drawings([p], tempfile.mkdtemp())]
    ['a.png']
    """
    home = Path(os.fspath(folder))
    if home.exists() and not home.is_dir():
        raise ValueError(f"{printable(home)} is a file: give a folder for the drawings.")
    paths: list[Path] = []
    for one in predictions:
        stem = Path(one.image).stem
        same = sum(p.stem.partition("~")[0] == stem for p in paths)  # two images of one name in different folders
        path = home / (f"{stem}~{same + 1}.png" if same else f"{stem}.png")
        with atomic(path) as partial:
            draw_dense(one).save(partial, format="PNG")
        paths.append(path)
    return paths
