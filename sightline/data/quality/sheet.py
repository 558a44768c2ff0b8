"""A contact sheet: images of a dataset, class by class, with their names."""

import math

import numpy as np
from PIL import Image, ImageDraw

from sightline.data.datasets import Dataset
from sightline.data.errors import BadImage
from sightline.data.images import decode

INK, PAPER, GAP, LINE = (40, 40, 40), (250, 250, 248), 4, 14


def contact_sheet(dataset: Dataset, *, columns: int = 10, rows: int = 10, cell: int = 96, seed: int = 0) -> Image.Image:
    """Some images of every class (of the first ones, if there are many), a class to a row, bad ones crossed out.

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
            sheet.paste(_small(dataset, int(index), cell), (left, top + LINE))
    return sheet


def _groups(dataset: Dataset, columns: int, rows: int, seed: int) -> list[tuple[str, list[int]]]:
    if dataset.labels.ndim != 1 or len(dataset.classes) == 1:
        chosen = dataset.sample(min(len(dataset), columns * rows), seed=seed).origins()[1]
        pieces = np.array_split(chosen, math.ceil(len(chosen) / columns))
        return [("", [int(i) for i in piece]) for piece in pieces]
    ranks = dataset.ranks_within_class(seed)
    found = []
    for label, name in list(enumerate(dataset.classes))[:rows]:
        members = np.flatnonzero(dataset.labels == label)
        members = members[np.argsort(ranks[members])][:columns]
        found.append((name, [int(i) for i in members]))
    return found


def _small(dataset: Dataset, index: int, cell: int) -> Image.Image:
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
    """Pillow's built-in letters know no others."""
    return text.encode("ascii", "replace").decode()
