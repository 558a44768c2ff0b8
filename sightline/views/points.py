"""The points of a drawing: where they are and what they show, for a page whose charts answer to the mouse."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from sightline.spec import number
from sightline.views.style import spread_out

MOST = 400  # points of one line that answer; of longer ones, evenly spaced points


def points(figure: Any) -> list[tuple[float, float, str]]:
    """Every point of every line, bar and scatter: x and y from the upper left in points (1/72 inch), and its text.

    For a figure that was just saved as SVG: only then does matplotlib know where everything is.
    """
    scale, top = 72 / figure.dpi, 72 * figure.get_figheight()
    found = []
    for ax in figure.axes:
        if hasattr(ax, "_colorbar"):
            continue
        across, along = _names(ax.xaxis), _names(ax.yaxis)
        for x, y, name in _data(ax):
            if np.isfinite((x, y)).all():
                right, up = ax.transData.transform((x, y)) * scale
                what = f"{name}: " if name and not name.startswith("_") else ""
                text = f"{what}{_label(ax.xaxis, across, x)}, {_label(ax.yaxis, along, y)}"
                found.append((round(float(right), 1), round(float(top - up), 1), text))
    return found


def _data(ax: Any) -> Iterator[tuple[float, float, str]]:
    """The numbers that were drawn, with the label of their line, bars or scatter."""
    from matplotlib.collections import PathCollection
    from matplotlib.container import BarContainer

    for line in ax.lines:
        if (
            line.get_transform() is ax.transData and line.get_label() != "_nolegend_"
        ):  # no rulers, no ends of error bars
            data = line.get_xydata()
            yield from ((float(x), float(y), str(line.get_label())) for x, y in data[spread_out(len(data), MOST)])
    for cloud in ax.collections:
        if isinstance(cloud, PathCollection):
            yield from ((float(x), float(y), str(cloud.get_label())) for x, y in np.asarray(cloud.get_offsets()))
    for bars in ax.containers:
        if isinstance(bars, BarContainer):
            for bar in bars.patches:
                x, y, wide, high = bar.get_x(), bar.get_y(), bar.get_width(), bar.get_height()
                end = (x + wide / 2, y + high) if bars.orientation == "vertical" else (x + wide, y + high / 2)
                yield float(end[0]), float(end[1]), str(bars.get_label())


def _names(axis: Any) -> dict[float, str]:
    """The tick labels of an axis by their positions; a numeric axis has none."""
    from matplotlib.ticker import FixedLocator

    if not isinstance(axis.get_major_locator(), FixedLocator):
        return {}
    return {round(float(at), 6): t.get_text() for at, t in zip(axis.get_majorticklocs(), axis.get_ticklabels())}


def _label(axis: Any, names: dict[float, str], value: float) -> str:
    """The tick label at a position, or the number with the name of its axis."""
    if named := names.get(round(value, 6)):
        return named
    name = " ".join(axis.get_label_text().split())
    return f"{name} {number(value)}" if name else number(value)
