"""The figures of a page: image files next to it, and inline SVG."""

import io
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from sightline.files import atomic
from sightline.spec import Result
from sightline.studies.effects import Effect
from sightline.views.drawing import draw
from sightline.views.points import points
from sightline.views.style import INK, enlarge_text, figure_style, fix_layout, narrow_figures

WIDTH = 300  # size of the small plot of an effect
PIXELS = 1.12  # per point: at 10 points, text has 11 pixels


@dataclass(frozen=True)
class Drawing:
    """A figure as SVG, and the labels of its points."""

    svg: str
    points: list[tuple[float, float, str]]
    width: int  # pixels at which no text is too small


def save_drawing(result: Result, base: Path) -> Drawing:
    """Write `base`.svg and `base`.png, without the title: page and Markdown have their own heading."""
    with figure_style():
        figure = draw(result, title=False)
        enlarge_text(figure)
        drawing = _as_svg(figure)
        with atomic(f"{base}.png") as partial:
            figure.savefig(partial, format="png", dpi=110)
    with atomic(f"{base}.svg") as partial:
        partial.write_text(drawing.svg, encoding="utf-8")
    return drawing


def narrow_drawing(result: Result) -> Drawing:
    """The same figure for a phone or half of a wide page: panels one below the other."""
    with figure_style(), narrow_figures():
        figure = draw(result, title=False)
        enlarge_text(figure)
        return _as_svg(figure)


def _as_svg(figure: Any) -> Drawing:
    fix_layout(figure)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return Drawing(buffer.getvalue(), points(figure), round(72 * figure.get_figwidth() * PIXELS))


def inline_svg(svg: str, name: str, alt: str) -> Markup:
    """A matplotlib SVG for the page: in the page's text color, with unique ids and an alt text."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    body = re.sub(r'\b(id|xlink:href|href)="(#?)(?!data:)', rf'\g<1>="\g<2>{name}-', body)
    body = body.replace("url(#", f"url(#{name}-")
    for ink in (INK, INK.upper()):
        body = body.replace(ink, "currentColor")
    body = re.sub(r' (?:width|height)="[\d.]+pt"', "", body, count=2)
    return Markup(body.replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1))  # matplotlib escapes text


def interval_plot(e: Effect) -> dict[str, float | None] | None:
    """Positions of bound, claimed side, interval and value of an effect in a small plot; None without a value."""
    if not math.isfinite(e.value):
        return None
    edges = (e.bound - e.margin, e.bound + e.margin)  # of a claim that two things are equal
    ends = [x for x in (e.low, e.high, e.value, *edges) if math.isfinite(x)]
    low, high = min(ends), max(ends)
    pad = (high - low) * 0.15 or max(abs(high), 1) * 0.15
    low, high = low - pad, high + pad

    def at(x: float) -> float:
        return round(WIDTH * (x - low) / (high - low), 1)

    known = math.isfinite(e.low) and math.isfinite(e.high) and e.high > e.low
    left, right = at(edges[0]), at(edges[1])
    if e.side != "within":
        left, right = (left, float(WIDTH)) if e.side == "above" else (0.0, right)
    return {
        "left": left,
        "width": round(right - left, 1),
        "bound": at(e.bound),
        "low": at(e.low) if known else None,
        "high": at(e.high) if known else None,
        "value": at(e.value),
    }
