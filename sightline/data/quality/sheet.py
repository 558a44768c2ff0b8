"""A contact sheet: a few images of every class, with the class names."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from sightline.data.datasets import Dataset
from sightline.data.errors import BadImage, printable
from sightline.data.images import decode
from sightline.files import atomic

INK, PAPER, GAP, LINE = (40, 40, 40), (250, 250, 248), 4, 14


def contact_sheet(dataset: Dataset, *, columns: int = 10, rows: int = 10, cell: int = 96, seed: int = 0) -> Image.Image:
    """A few images of each of the first `rows` classes, one class per row; unreadable images are crossed out.

    >>> sl.data.contact_sheet(sl.dataset("scenes/shape", num=100), columns=4, rows=3, cell=48).size
    (212, 202)
    """
    groups = _groups(dataset, columns, rows, seed)
    height = cell + LINE + GAP
    sheet = Image.new("RGB", (columns * (cell + GAP) + GAP, len(groups) * height + GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    for row, (name, members) in enumerate(groups):
        top = row * height + GAP
        draw.text((GAP, top), _ascii(name), fill=INK)
        for column, index in enumerate(members):
            left = GAP + column * (cell + GAP)
            sheet.paste(_tile(dataset, int(index), cell), (left, top + LINE))
    return sheet


def labeled_sheet(dataset: Dataset, captions: dict[int, tuple[str, str]], *, columns: int = 6) -> Image.Image:
    """Images of a dataset by index, each with two lines below it.

    >>> sl.data.labeled_sheet(sl.dataset("scenes/shape", num=4), {2: ("circle", "taken for a square")}).size
    (176, 206)
    """
    cell, line = 168, 15
    columns, height = max(1, min(columns, len(captions))), cell + 2 * line + GAP
    size = (columns * (cell + GAP) + GAP, math.ceil(len(captions) / columns) * height + GAP)
    sheet = Image.new("RGB", size, PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=12)
    for number, (index, texts) in enumerate(captions.items()):
        left, top = GAP + number % columns * (cell + GAP), GAP + number // columns * height
        sheet.paste(_tile(dataset, index, cell), (left, top))
        for i, text in enumerate(texts):
            draw.text((left, top + cell + i * line), _fitting(_ascii(text), font, cell), fill=INK, font=font)
    return sheet


def _fitting(text: str, font: Any, width: int) -> str:
    """As much of a text as fits below an image."""
    while text and font.getlength(text) > width:
        text = text[:-4] + "..." if text.endswith("...") else text[:-3] + "..."
        if text == "...":
            return ""
    return text


def save_sheet(sheet: Image.Image, path: str | Path) -> None:
    """Write a contact sheet; the extension of the file decides its format.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sl.data.save_sheet(sl.data.contact_sheet(sl.dataset("scenes/shape", num=8), columns=2), f"{folder}/a.png")
    """
    path = Path(path)
    Image.init()
    if path.suffix.lower() not in Image.EXTENSION:
        raise ValueError(f"A contact sheet is a .png or .jpg file; got {printable(path)}.")
    with atomic(path) as partial:
        sheet.save(partial, format=Image.EXTENSION[path.suffix.lower()])


def _groups(dataset: Dataset, columns: int, rows: int, seed: int) -> list[tuple[str, list[int]]]:
    if dataset.labels.ndim != 1 or len(dataset.classes) == 1:
        chosen = dataset.sample(min(len(dataset), columns * rows), seed=seed).origins()[1]
        pieces = np.array_split(chosen, math.ceil(len(chosen) / columns))
        return [("", [int(i) for i in piece]) for piece in pieces]
    ranks = dataset.ranks_within_class(seed)
    groups = []
    for label, name in list(enumerate(dataset.classes))[:rows]:
        members = np.flatnonzero(dataset.labels == label)
        members = members[np.argsort(ranks[members])][:columns]
        groups.append((name, [int(i) for i in members]))
    return groups


def _tile(dataset: Dataset, index: int, cell: int) -> Image.Image:
    tile = Image.new("RGB", (cell, cell), (228, 228, 226))
    try:
        image = decode(dataset.image(index))
    except BadImage:
        draw = ImageDraw.Draw(tile)
        draw.line((0, 0, cell, cell), fill="crimson", width=2)
        draw.line((0, cell, cell, 0), fill="crimson", width=2)
        return tile
    scale = cell / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    kernel = Image.Resampling.NEAREST if scale >= 2 else Image.Resampling.BICUBIC
    tile.paste(image.resize(size, kernel), ((cell - size[0]) // 2, (cell - size[1]) // 2))
    return tile


def _ascii(text: str) -> str:
    """Pillow's built-in font has no other characters."""
    return text.encode("ascii", "replace").decode()
