"""Every analysis of trained models, kept in a folder: verdicts and the papers' figures are read from the same files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.attention.distance import AttentionDistance
from sightline.analysis.attention.head_subsets import HeadSubsets
from sightline.analysis.catalog import COMPARE
from sightline.analysis.embeddings import PatchFilters
from sightline.analysis.inspection import compare, look
from sightline.analysis.receptive_fields import ReceptiveField
from sightline.analysis.residual import ResidualRatios
from sightline.analysis.similarity.cka import CKA
from sightline.analysis.similarity.localization import Localization
from sightline.data.datasets import Dataset
from sightline.files import lock
from sightline.models.construct import Model
from sightline.spec import Result

SHOWN = 28  # principal components of the filters (ViT, figure 7)
ONE_GRID = ("localization-a", "localization-b")  # of both models on the coarser grid, which alone can be compared
FIELD = 12  # side of a receptive field, in cells of the average


def analyze(
    folder: Path,
    models: Sequence[Model],
    names: Sequence[str],
    images: Dataset,
    *,
    n: int,
    only: Sequence[str] = (),
) -> list[Result]:
    """Every analysis of each model, and of the first beside each other one; what the folder has is not done again.

    `only` names analyses of two models side by side, and nothing else is done.
    """
    paths = []
    with lock(folder / ".analyses"):  # verdicts and figures of the same models may come at the same time
        for name, model in zip(() if only else names, models):
            rows = look(model, images, folder / "look" / name, n=n, name=name)
            paths += [folder / "look" / name / r.path for r in rows if r.path]
        for name, model in zip(names[1:], models[1:]):
            place = folder / "compare" / name
            rows = compare(models[0], model, images, place, only=tuple(only or COMPARE), n=n, names=(names[0], name))
            paths += [place / r.path for r in rows if r.path]
    return [Result.load(path) for path in paths]


def curves(results: Sequence[Result]) -> dict[str, dict[str, Any]]:
    """What the papers' figures show, by kind and by the names of the models."""
    found: dict[str, dict[str, Any]] = {}
    for r in results:
        who = ", ".join(m.name for m in r.about.models)
        match r:
            case CKA() if r.about.analysis == "cka":
                found.setdefault("cka", {})[who] = packed(r.similarity)
            case AttentionDistance():
                found.setdefault("distance", {})[who] = packed(np.sort(r.pixels / r.uniform))
            case PatchFilters():
                found.setdefault("filters", {})[who] = packed(mosaic(r.components[:SHOWN]))
            case HeadSubsets():
                found.setdefault("subsets", {})[who] = {"cka": packed(r.similarity), "distance": r.distance}
            case ReceptiveField() if r.side == "after":
                found.setdefault("fields", {})[who] = fields(r)
            case ResidualRatios():
                found.setdefault("residual", {})[who] = residual(r)
            case Localization():
                found.setdefault("places", {})[who] = {"maps": packed(flat(r.maps)), "grid": r.grid}
    return found


def packed(rows: NDArray) -> list[str]:
    """A table as text, a line for every row: a tenth of the size, and three digits are all that a figure shows."""
    return [" ".join(f"{x:.3g}" for x in row) for row in np.atleast_2d(rows)]


def unpacked(rows: Sequence[str]) -> NDArray[np.float64]:
    """The table that `packed` wrote.

    >>> unpacked(packed(np.array([[0.5, 1.0]]))).tolist()
    [[0.5, 1.0]]
    """
    return np.array([[float(x) for x in row.split()] for row in rows])


def flat(maps: NDArray) -> NDArray:
    """One row for every map."""
    return maps.reshape(len(maps), -1)


def mosaic(components: NDArray) -> NDArray:
    """Filters as rows of numbers from 0 to 1, each scaled to its own range."""
    rows = flat(components)
    low, high = rows.min(1, keepdims=True), rows.max(1, keepdims=True)
    return (rows - low) / np.where(high > low, high - low, 1)


def fields(r: ReceptiveField) -> dict[str, Any]:
    """First, middle and last layer's field as a small map, and the radius of 90 % of the mass of every layer."""
    shown = (0, len(r.names) // 2, len(r.names) - 1)
    side = min(FIELD, *r.maps.shape[1:])
    small = np.stack([averaged(r.maps[i], side) for i in shown])
    return {"maps": packed(flat(small)), "radii": r.radii[:, 1], "own": r.own, "size": r.maps.shape[1]}


def averaged(image: NDArray, side: int) -> NDArray:
    """A square map in so many cells a side."""
    edges = np.linspace(0, len(image), side + 1).astype(int)
    rows = np.add.reduceat(image, edges[:-1], 0)
    return np.add.reduceat(rows, edges[:-1], 1)


def residual(r: ResidualRatios) -> dict[str, Any]:
    """Norm ratios by addition: of the patches or locations, and of the class token where there is one."""
    token = r.class_token[0] if r.class_token.size and np.isfinite(r.class_token[0]).any() else np.zeros(0)
    return {"patches": r.ratio, "class token": token, "sublayers": list(r.sublayers)}
