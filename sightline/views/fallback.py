"""A drawing and a sentence of results that have no view of their own."""

import math
from dataclasses import fields
from typing import Any

import numpy as np

from sightline.spec import Result, number
from sightline.views.style import COLORS, finite, heat, lines
from sightline.views.view import with_interval


def summary_sentence(r: Result) -> str:
    """The first numbers of the summary."""
    known, ends = [(k, v) for k, v in r.summary().items() if math.isfinite(v)][:4], r.intervals()
    parts = (f"{k} {with_interval(v, ends.get(k), lambda x: number(x, 3))}" for k, v in known)
    return ("; ".join(parts) or "This result has no summary") + "."


def draw_anything(r: Result, figure: Any) -> None:
    """Curves of equal length over their steps, one heat map of a table, or the numbers of the summary."""
    arrays = {f.name: v for f in fields(r) if isinstance(v := getattr(r, f.name), np.ndarray) and v.size}
    for name in [f.name for f in fields(r) if isinstance(getattr(r, f.name), dict) and f.name != "how"]:
        inner = getattr(r, name)
        arrays |= {f"{k}": np.asarray(v) for k, v in inner.items() if np.ndim(v) == 1 and np.size(v)}
    numeric = {k: v for k, v in arrays.items() if np.issubdtype(v.dtype, np.number)}
    curves = {k: v for k, v in numeric.items() if v.ndim == 1 and len(v) > 1}
    tables = {k: v for k, v in numeric.items() if v.ndim == 2}
    if curves:
        _draw_curves(curves, figure)
    elif tables:
        name, table = next(iter(tables.items()))
        ax = figure.subplots()
        heat(ax, table.astype(float), top=max(finite(table).max(initial=0), 1e-9), label=name)
        ax.set(xlabel="column", ylabel="row")
    else:
        _draw_numbers(r.summary(), figure)


def _draw_curves(curves: dict[str, Any], figure: Any) -> None:
    """One panel per curve: their units are not known to be the same."""
    steps = next((k for k in ("step", "steps", "epoch", "epochs") if k in curves), None)
    names = [k for k in curves if k != steps][:12]
    columns = min(3, len(names))
    axes = figure.subplots(-(-len(names) // columns), columns, squeeze=False).ravel()
    for ax, name in zip(axes, names):
        fits = steps is not None and len(curves[steps]) == len(curves[name])
        lines(ax, curves[steps] if fits and steps else np.arange(len(curves[name])), curves[name][None], [name])
        ax.set(xlabel=steps if fits else "entry", title=name)
    for ax in axes[len(names) :]:
        ax.remove()


def _draw_numbers(numbers: dict[str, float], figure: Any) -> None:
    ax = figure.subplots()
    known = {k: v for k, v in numbers.items() if np.isfinite(v)}
    ax.barh(range(len(known)), list(known.values()), color=COLORS[0])
    ax.set_yticks(range(len(known)), list(known))
    ax.invert_yaxis()
    ax.set_xlabel("value" if known else "this result has no numbers to show")
