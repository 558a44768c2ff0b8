"""Changes to an image that a person makes with the mouse: paint over a part of it, or move a part elsewhere."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from sightline.data.opening import open_image

MOST = 64  # edits of one image
POINTS = 2000  # of one stroke


def edit_image(image: Any, edits: Sequence[Mapping[str, Any]]) -> Image.Image:
    """A copy of an image, or of the image in a file, with edits made one after the other, in shares of its sides.

    `{"paint": [[x, y], ...], "radius": r}` paints along a line in the image's mean color; r is a share of the width.
    `{"move": [left, top, width, height], "to": [left, top]}` puts a rectangle elsewhere and leaves that color behind.

    >>> from PIL import Image
    >>> image = Image.new("RGB", (8, 8), "red")
    >>> image.putpixel((0, 0), (0, 0, 255))
    >>> moved = sl.app.edit_image(image, [{"move": [0, 0, 0.125, 0.125], "to": [0.5, 0.5]}])
    >>> moved.getpixel((4, 4)), moved.getpixel((0, 0))
    ((0, 0, 255), (251, 0, 4))
    """
    check_edits(edits)
    image = open_image(image)
    out = image.copy()
    mean = np.asarray(image.resize((64, 64)) if image.width * image.height > 1 << 20 else image).mean((0, 1))
    color = (round(mean[0]), round(mean[1]), round(mean[2]))
    for edit in edits:
        if "paint" in edit:
            _paint(out, edit, color)
        else:
            _move(out, edit, color)
    return out


def check_edits(edits: Any) -> None:
    """Refuse what is no edit; they come from a browser."""
    if not isinstance(edits, list | tuple) or len(edits) > MOST:
        raise ValueError(f"Edits are a list of at most {MOST}.")
    for edit in edits:
        match edit:
            case {"paint": list(points), "radius": radius} if 0 < len(points) <= POINTS:
                wrong = not all(_numbers(p, 2) for p in points) or not _numbers([radius], 1) or not 0 < radius <= 1
            case {"move": box, "to": to}:
                wrong = not _numbers(box, 4) or not _numbers(to, 2) or min(box[2:]) <= 0
            case _:
                wrong = True
        if wrong:
            raise ValueError(
                'An edit is {"paint": [[x, y], ...], "radius": r} or {"move": [left, top, width, height], '
                f'"to": [left, top]}}, in shares of the image; got {str(edit)[:80]}.'
            )


def _numbers(values: Any, count: int) -> bool:
    good = isinstance(values, list | tuple) and len(values) == count
    return good and all(type(v) in (int, float) and math.isfinite(v) and abs(v) <= 2 for v in values)


def _paint(out: Image.Image, edit: Mapping[str, Any], color: tuple[int, int, int]) -> None:
    draw, radius = ImageDraw.Draw(out), max(1.0, edit["radius"] * out.width)
    line = [(x * out.width, y * out.height) for x, y in edit["paint"]]
    if len(line) > 1:
        draw.line(line, fill=color, width=max(1, round(2 * radius)), joint="curve")
    for x, y in line:
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)


def _move(out: Image.Image, edit: Mapping[str, Any], color: tuple[int, int, int]) -> None:
    left, top, width, height = edit["move"]
    box = tuple(
        round(v) for v in (left * out.width, top * out.height, (left + width) * out.width, (top + height) * out.height)
    )
    box = (max(0, box[0]), max(0, box[1]), min(out.width, box[2]), min(out.height, box[3]))
    if box[2] <= box[0] or box[3] <= box[1]:
        return
    part = out.crop(box)
    out.paste(color, box)
    out.paste(part, (round(edit["to"][0] * out.width), round(edit["to"][1] * out.height)))
