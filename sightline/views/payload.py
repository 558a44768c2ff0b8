"""How arrays and images travel to the page's script: compressed bytes, JPEG, names as they are."""

import base64
import io
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sightline.views.style import nice_top
from sightline.views.view import Payload

SIDE = 400  # rows or columns that a heat map shows; more are averaged
SHOWN = 12  # images with maps
ROOM = 2 << 20  # compressed bytes of attention on one page


def compress(raw: bytes) -> str:
    """Bytes as text."""
    return base64.b64encode(zlib.compress(raw, 9)).decode()


def plane(values: NDArray, top: float = 1.0, *, bits: int = 16) -> Payload:
    """Quantize to integers of so many bits between minimum and maximum; the three largest stand for NaN, infinity and
    minus infinity."""
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    most = 2**bits - 4
    with np.errstate(invalid="ignore"):
        steps = np.round((values - low) / max(high - low, 1e-30) * most)
    others = np.where(np.isnan(values), most + 1, np.where(values > 0, most + 2, most + 3))
    whole = np.where(np.isfinite(values), steps, others).astype(np.uint8 if bits == 8 else np.dtype("<u2"))
    return {
        "shape": values.shape,
        "low": low,
        "high": high,
        "bits": bits,
        "top": top,
        "data": compress(whole.tobytes()),
    }


def sprite(images: NDArray[np.uint8]) -> Payload:
    """Images side by side in one JPEG."""
    count, high, wide = images.shape[:3]
    row = np.ascontiguousarray(images.transpose(1, 0, 2, 3)).reshape(high, count * wide, 3)
    buffer = io.BytesIO()
    Image.fromarray(row).save(buffer, "JPEG", quality=82)
    data = base64.b64encode(buffer.getvalue()).decode()
    return {"count": count, "height": high, "width": wide, "uri": f"data:image/jpeg;base64,{data}"}


def coarser(values: NDArray, names: tuple[tuple[str, ...], ...]) -> tuple[NDArray, list[list[str]], str]:
    """Average neighbors until a table has at most SIDE rows and columns; with its labels, and a notice about it."""
    steps = [-(-n // SIDE) for n in values.shape]
    if max(steps) == 1:
        return values, [list(n) for n in names], ""
    rows = [np.arange(0, n, s) for n, s in zip(values.shape, steps)]
    known = np.isfinite(values)
    total = np.add.reduceat(np.add.reduceat(np.where(known, values, 0.0), rows[0], 0), rows[1], 1)
    count = np.add.reduceat(np.add.reduceat(known.astype(float), rows[0], 0), rows[1], 1)
    small = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    labels = [[f"{n[i]} … {n[min(i + s, len(n)) - 1]}" for i in r] for n, r, s in zip(names, rows, steps)]
    shape = f"{values.shape[0]:,} x {values.shape[1]:,}"
    return small, labels, f"{shape} values are shown as means of {steps[0]} x {steps[1]}; the data has them all."


def heat_map(values: dict[str, NDArray], names: tuple[tuple[str, ...], ...], **more: Any) -> Payload:
    """A heat map with one or several planes over the same rows and columns."""
    planes = []
    for name, table in values.items():
        small, labels, notice = coarser(table, names)
        planes.append({"name": name, **plane(small, more.get("top", 1.0))})
    return {"widget": "heat", "rows": labels[0], "columns": labels[1], "planes": planes, "notice": notice, **more}


def block_marks(blocks: Sequence[str]) -> list[tuple[float, str]]:
    """The middle of each run of layers of one block, within 0..1, with its name; at most 14. No name: no mark."""
    ends = [i for i in range(1, len(blocks)) if blocks[i] != blocks[i - 1]]
    runs = [(a, b) for a, b in zip([0, *ends], [*ends, len(blocks)]) if blocks and blocks[a]]
    step = -(-len(runs) // 14) or 1
    return [((a + b) / 2 / len(blocks), blocks[a]) for a, b in runs[::step]]


def tiles(maps: NDArray, grid: tuple[int, int], *, what: str, about: str) -> Payload:
    """One map per grid cell."""
    return {"widget": "tiles", "grid": grid, "what": what, "about": about, **plane(maps, nice_top(maps), bits=8)}


def maps_on_images(maps: NDArray, images: NDArray[np.uint8] | None, captions: list[str]) -> Payload | None:
    """Maps over the images they belong to; nothing where the images were not kept."""
    if images is None:
        return None
    some = maps[:SHOWN, None] if maps.ndim == 3 else maps[:SHOWN]
    scale = some / np.maximum(some.max((-1, -2), keepdims=True), 1e-12)
    shown = {"images": sprite(images[:SHOWN]), "captions": captions[:SHOWN]}
    return {"widget": "maps", **shown, **plane(scale, bits=8)}


def film(
    images: NDArray[np.uint8],
    planes: dict[str, tuple[NDArray, float]],
    names: tuple[str, ...],
    *,
    titles: tuple[str, ...],
    other: NDArray[np.uint8] | None = None,
    notes: list[list[str]] | None = None,
    words: tuple[NDArray, list[str]] | None = None,
    captions: list[str] | None = None,
) -> Payload:
    """Maps (image, depth, rows, columns) by what they measure, each with the top of its scale, beside their images.

    `other` are second images, `notes` a line per image and depth, `words` the number of a name for each cell,
    `captions` what is said of each image.
    """
    made: Payload = {"widget": "film", "images": sprite(images), "names": names, "titles": titles}
    made["planes"] = [{"name": name, **plane(values, top)} for name, (values, top) in planes.items()]
    if other is not None:
        made["other"] = sprite(other)
    if notes is not None:
        made["notes"] = notes
    if captions:
        made["captions"] = captions
    if words is not None:
        made |= {"words": compress(words[0].astype("<u2").tobytes()), "classes": words[1]}
    return made
