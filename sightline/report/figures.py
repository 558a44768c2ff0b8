"""The figures of a page: files beside it, and drawings within it."""

import io
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from sightline.spec import Result, atomic
from sightline.studies.effects import Effect
from sightline.views.drawing import draw
from sightline.views.points import points
from sightline.views.style import INK, figure_style

WIDTH = 300  # of the small plot of an effect


@dataclass(frozen=True)
class Drawing:
    """A figure as SVG, and the labels of its points."""

    svg: str
    points: list[tuple[float, float, str]]


def save_drawing(result: Result, base: Path) -> Drawing:
    """Write `base`.png with the title, and `base`.svg without, as the page shows it under a heading of its own."""
    with figure_style():
        figure = draw(result)
        with atomic(f"{base}.png") as partial:
            figure.savefig(partial, format="png", dpi=110)
        _remove_title(figure, result.title)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        drawing = Drawing(buffer.getvalue(), points(figure))
    with atomic(f"{base}.svg") as partial:
        partial.write_text(drawing.svg, encoding="utf-8")
    return drawing


def _remove_title(figure: Any, title: str) -> None:
    if figure.get_suptitle():
        figure.suptitle("")
    for ax in figure.axes:
        if ax.get_title() == title:
            ax.set_title("")


def inline_svg(svg: str, name: str, alt: str) -> Markup:
    """A matplotlib drawing as part of the page: in the page's text color, with unique ids and an alt text."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    body = re.sub(r'\b(id|xlink:href|href)="(#?)(?!data:)', rf'\g<1>="\g<2>{name}-', body)
    body = body.replace("url(#", f"url(#{name}-")
    for ink in (INK, INK.upper()):
        body = body.replace(ink, "currentColor")
    body = re.sub(r' (?:width|height)="[\d.]+pt"', "", body, count=2)
    return Markup(body.replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1))  # matplotlib escapes texts


def interval_plot(e: Effect) -> dict[str, float | None] | None:
    """Where bound, claimed side, interval and value of an effect are in a small plot; None without a value."""
    if not math.isfinite(e.value):
        return None
    ends = [x for x in (e.low, e.high, e.value, e.bound) if math.isfinite(x)]
    low, high = min(ends), max(ends)
    pad = (high - low) * 0.15 or max(abs(high), 1) * 0.15
    low, high = low - pad, high + pad

    def at(x: float) -> float:
        return round(WIDTH * (x - low) / (high - low), 1)

    known = math.isfinite(e.low) and math.isfinite(e.high) and e.high > e.low
    left, right = (at(e.bound), float(WIDTH)) if e.side == "above" else (0.0, at(e.bound))
    return {
        "left": left,
        "width": round(right - left, 1),
        "bound": at(e.bound),
        "low": at(e.low) if known else None,
        "high": at(e.high) if known else None,
        "value": at(e.value),
    }
