"""What the page's script is given: arrays as compressed bytes, images as JPEG, names as they are."""

import base64
import io
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sightline.analysis.ablation import WhatIf
from sightline.analysis.attention.head_attention import HeadAttention
from sightline.analysis.attention.rollout import AttentionMaps
from sightline.analysis.embeddings import PositionSimilarity
from sightline.analysis.pca import FeaturePCA
from sightline.analysis.receptive_fields import ReceptiveField
from sightline.analysis.saliency.attribution import Attribution
from sightline.analysis.similarity.cka import CKA
from sightline.analysis.similarity.localization import Localization
from sightline.evals.accuracy import Classification
from sightline.spec import Result
from sightline.views.style import models_of, nice_top

SIDE = 400  # rows or columns that a heat map shows; more are averaged
FIELD = 96  # pixels along an axis of a receptive field
SHOWN = 12  # images with maps
GAZE = 2 << 20  # compressed bytes of attention on one page


def encoded(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 9)).decode()


def plane(values: NDArray, top: float = 1.0, *, bits: int = 16) -> dict[str, Any]:
    """Numbers between their own ends, as whole numbers of so many bits; the three largest stand for what is not finite:
    not a number, infinity, minus infinity."""
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    most = 2**bits - 4
    with np.errstate(invalid="ignore"):
        steps = np.round((values - low) / max(high - low, 1e-30) * most)
    others = np.where(np.isnan(values), most + 1, np.where(values > 0, most + 2, most + 3))
    whole = np.where(np.isfinite(values), steps, others).astype(np.uint8 if bits == 8 else np.dtype("<u2"))
    return {"shape": values.shape, "low": low, "high": high, "bits": bits, "top": top, "data": encoded(whole.tobytes())}


def sprite(images: NDArray[np.uint8]) -> dict[str, Any]:
    """Images side by side in one JPEG."""
    count, high, wide = images.shape[:3]
    row = np.ascontiguousarray(images.transpose(1, 0, 2, 3)).reshape(high, count * wide, 3)
    buffer = io.BytesIO()
    Image.fromarray(row).save(buffer, "JPEG", quality=82)
    data = base64.b64encode(buffer.getvalue()).decode()
    return {"count": count, "height": high, "width": wide, "uri": f"data:image/jpeg;base64,{data}"}


def coarser(values: NDArray, names: tuple[tuple[str, ...], ...]) -> tuple[NDArray, list[list[str]], str]:
    """A table of at most SIDE rows and columns: groups of neighbors averaged, their names joined; and what to say."""
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


def heat(values: dict[str, NDArray], names: tuple[tuple[str, ...], ...], **more: Any) -> dict[str, Any]:
    """A heat map with one or several planes over the same rows and columns."""
    planes = []
    for name, table in values.items():
        small, labels, notice = coarser(table, names)
        planes.append({"name": name, **plane(small, more.get("top", 1.0))})
    return {"widget": "heat", "rows": labels[0], "columns": labels[1], "planes": planes, "notice": notice, **more}


def _cka(r: CKA) -> dict[str, Any]:
    told = models_of(r) or [""]
    planes = {"CKA": r.similarity, "mutual neighbors": r.knn}
    if np.isfinite(r.band).any():
        planes["± of CKA"] = r.band
    return heat(planes, (r.rows, r.columns), lower=True, row=told[0], column=told[-1])


def _what_if(r: WhatIf) -> dict[str, Any]:
    known = np.isfinite(r.whole)
    bars = (r.accuracy if known else r.agreement).tolist()
    told = "accuracy" if known else "same answer"
    found = heat({"CKA with the whole model": r.similarity}, (r.off, r.layers), row="switched off", column="layer")
    return {**found, "bars": bars, "bar": told, "whole": float(r.whole)}


def _confusion(r: Classification) -> dict[str, Any] | None:
    if not 1 < len(r.classes) <= SIDE:
        return None
    square = r.confusion().astype(float)
    share = square / np.maximum(square.sum(1, keepdims=True), 1)
    return heat({"share of the label's images": share}, (r.classes, r.classes), row="label", column="prediction")


def _tiles(maps: NDArray, grid: tuple[int, int], what: str, about: str) -> dict[str, Any]:
    return {"widget": "tiles", "grid": grid, "what": what, "about": about, **plane(maps, nice_top(maps), bits=8)}


def _receptive(r: ReceptiveField) -> dict[str, Any]:
    side = max(r.maps.shape[1:])
    step = max(1, -(-side // FIELD))
    y, x = (s // step * step for s in r.maps.shape[1:])
    small = r.maps[:, :y, :x].reshape(len(r.maps), y // step, step, x // step, step).sum((2, 4))
    small = np.sqrt(small / np.maximum(small.max((1, 2), keepdims=True), 1e-300))
    return {
        "widget": "stack",
        "names": r.names,
        "radii": r.radii.tolist(),
        "own": r.own.tolist(),
        "width": r.maps.shape[2],
        "centers": (r.centers / np.array(r.maps.shape[1:])).tolist(),
        **plane(small, bits=8),
    }


def _maps(r: AttentionMaps | Attribution) -> dict[str, Any] | None:
    if r.images is None:
        return None
    maps = r.maps[:SHOWN]
    maps = maps[:, None] if maps.ndim == 3 else maps
    scale = maps / np.maximum(maps.max((-1, -2), keepdims=True), 1e-12)
    return {"widget": "maps", "images": sprite(r.images[:SHOWN]), **plane(scale, bits=8)}


def _head_attention(r: HeadAttention, room: int = GAZE) -> dict[str, Any]:
    """As many images as there is room for, at least one."""
    kept = len(r.attention)
    coarse = (np.round(r.attention / 5.0) * 5).astype(np.uint8)  # 52 shades are enough for the eye, and pack better
    data = encoded(coarse.tobytes())
    while len(data) > room * 4 / 3 and kept > 1:
        kept -= 1
        data = encoded(coarse[:kept].tobytes())
    notice = "" if kept == len(r.attention) else f"{kept} of {len(r.attention)} images fit the page."
    return {
        "widget": "head-attention",
        "images": sprite(r.images[:kept]),
        "shape": (kept, *r.attention.shape[1:]),
        "data": data,
        "peaks": plane(r.peaks[:kept].astype(np.float64), bits=16),
        "grid": r.grid,
        "prefix": r.prefix,
        "notice": notice,
    }


def _film(r: FeaturePCA) -> dict[str, Any]:
    return {
        "widget": "film",
        "images": sprite(r.images),
        "shape": r.features.shape,
        "data": encoded(r.features.tobytes()),
        "grids": r.grids,
        "names": r.layers,
    }


def _localization(r: Localization) -> dict[str, Any]:
    return _tiles(r.maps, r.grid, "CKA with the input patch", f"token of {r.layer}")


def _positions(r: PositionSimilarity) -> dict[str, Any]:
    grid = (r.tiles.shape[1], r.tiles.shape[2])
    return _tiles(r.tiles, grid, "cosine", "position embedding")


PAYLOADS: dict[type[Result], Callable[[Any], dict[str, Any] | None]] = {
    CKA: _cka,
    WhatIf: _what_if,
    Classification: _confusion,
    ReceptiveField: _receptive,
    AttentionMaps: _maps,
    Attribution: _maps,
    HeadAttention: _head_attention,
    FeaturePCA: _film,
    Localization: _localization,
    PositionSimilarity: _positions,
}
ALSO_DRAWN = (Classification, PositionSimilarity, ReceptiveField)  # the figure says more than the widget


def payload(r: Result, room: int = GAZE) -> dict[str, Any] | None:
    """The data of a widget, or None where the figure is all there is."""
    if isinstance(r, HeadAttention):
        return _head_attention(r, room)
    make = PAYLOADS.get(type(r))
    return make(r) if make is not None else None
