"""Small charts as SVG in the page's own color of text: lines, dots, heat maps, tiles."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray
from PIL import Image

from sightline.views.style import COLORS, colors

WIDTH, HEIGHT = 340, 230
LEFT, RIGHT, TOP, BOTTOM = 48, 10, 10, 40
Point = tuple[float, float, float, float]  # x, value, low, high; NaN where there is no interval


@dataclass(frozen=True, kw_only=True)
class Axes:
    """What the axes of a chart say."""

    x: str
    y: str
    log: bool = False  # of x
    names: tuple[str, ...] = ()  # of the places 0, 1, 2, ... on x
    joined: bool = True  # points of one name; heads of two blocks are not the same head


def text(x: float, y: float, words: str, *, at: str = "middle", turn: bool = False) -> str:
    turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turn else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{at}"{turned}>{escape(words)}</text>'


def svg(body: Sequence[str], width: float, height: float, alt: str) -> Markup:
    """The drawing as SVG; its text takes the page's font and color."""
    return Markup(
        f'<svg class="chart" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(alt)}">'
        + "".join(body)
        + "</svg>"
    )


def ticks(low: float, high: float) -> list[float]:
    """Round numbers between two, four or so of them."""
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (m * step) <= 6)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def span(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis, with room beyond the values."""
    known = [v for v in values if math.isfinite(v)]
    low, high = min(known), max(known)
    pad = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return low - pad, high + pad


def lines(series: Mapping[str, Sequence[Point]], axes: Axes) -> Markup:
    """One line for each name, with the interval of every point."""
    every = [p for points in series.values() for p in points]
    xs = [math.log10(p[0]) if axes.log else p[0] for p in every]
    (x0, x1), (y0, y1) = span(xs), span([v for p in every for v in p[1:]])

    def at(x: float, y: float) -> tuple[float, float]:
        x = math.log10(x) if axes.log else x
        across = LEFT + (WIDTH - LEFT - RIGHT) * (x - x0) / (x1 - x0)
        return across, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - y0) / (y1 - y0)

    body = frame(axes, [(y, at(every[0][0], y)[1]) for y in ticks(y0, y1)])
    for x in x_marks(axes, sorted({p[0] for p in every})):
        name = axes.names[int(x)] if axes.names else f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.4g}"
        body.append(text(at(x, y0)[0], HEIGHT - BOTTOM + 14, name))
    for color, points in zip(COLORS * 3, series.values()):
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in (at(p[0], p[1]) for p in points))
        if axes.joined:
            body.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.8"/>')
        for x, value, low, high in points:
            a, b = at(x, value)
            body.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.8" fill="{color}"/>')
            if math.isfinite(low):
                body.append(f'<path d="M{a:.1f} {at(x, low)[1]:.1f}V{at(x, high)[1]:.1f}" stroke="{color}"/>')
    return svg([*body, *legend(list(series))], WIDTH, HEIGHT + 14 * rows_of(series), f"{axes.y} by {axes.x}")


def x_marks(axes: Axes, places: Sequence[float]) -> Sequence[float]:
    """Where x is marked: at the levels that were measured where they are few, else at round numbers."""
    if axes.names or axes.log or len(places) < 2:
        return places
    whole = all(x == round(x) for x in places)  # blocks and heads have no halves
    return [x for x in ticks(places[0], places[-1]) if not whole or x == round(x)]


def rows_of(names: Mapping[str, object] | Sequence[str]) -> int:
    """Lines that a legend takes, two names each."""
    return 0 if len(names) < 2 else math.ceil(len(names) / 2)


def legend(names: Sequence[str]) -> list[str]:
    """Names in their colors below a chart; a single one needs none."""
    body = []
    for i, (color, name) in enumerate(zip(COLORS * 3, names if len(names) > 1 else ())):
        x, y = 10 + (i % 2) * WIDTH / 2, HEIGHT + 6 + 14 * (i // 2)
        body.append(f'<rect x="{x}" y="{y - 8}" width="10" height="10" fill="{color}"/>')
        body.append(text(x + 15, y + 1, name, at="start"))
    return body


def frame(axes: Axes, marks: Sequence[tuple[float, float]]) -> list[str]:
    """Axes with their names, and lines at round values."""
    body = [text((LEFT + WIDTH) / 2, HEIGHT - 8, axes.x), text(11, (TOP + HEIGHT - BOTTOM) / 2, axes.y, turn=True)]
    for value, y in marks:
        body.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="currentColor" opacity=".15"/>')
        body.append(text(LEFT - 5, y + 4, f"{value:.4g}", at="end"))
    return body


def dots(values: Mapping[str, tuple[float, float, float]], axes: Axes) -> Markup:
    """One line for each name: its value, and its interval."""
    low, high = span([v for row in values.values() for v in row])

    def at(x: float) -> float:
        return 128 + (WIDTH - 128 - RIGHT) * (x - low) / (high - low)

    body = []
    for i, (name, (value, least, most)) in enumerate(values.items()):
        y = 12 + 20 * i
        body.append(text(122, y + 10, name, at="end"))
        body.append(f'<circle cx="{at(value):.1f}" cy="{y + 6.5}" r="4" fill="{COLORS[0]}"/>')
        if math.isfinite(least):
            body.append(
                f'<path d="M{at(least):.1f} {y + 6.5}H{at(most):.1f}" stroke="currentColor" stroke-width="1.6"/>'
            )
    end = 12 + 20 * len(values)
    for value in ticks(low, high):
        body.append(f'<path d="M{at(value):.1f} 8V{end}" stroke="currentColor" opacity=".15"/>')
        body.append(text(at(value), end + 14, f"{value:.4g}"))
    return svg([*body, text((128 + WIDTH) / 2, end + 30, axes.y)], WIDTH, end + 36, axes.y)


def png(pixels: NDArray[np.uint8]) -> str:
    """Pixels as the address of an image inside the page."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def painted(values: NDArray, low: float, high: float) -> NDArray[np.uint8]:
    """Numbers in the colors of similarity; NaN is gray."""
    ramp = colors()
    place = np.clip((np.nan_to_num(values) - low) / (high - low or 1), 0, 1)
    out = ramp[np.round(255 * place).astype(int)]
    out[~np.isfinite(values)] = 128
    return out


def image_with_axes(pixels: NDArray[np.uint8], axes: Axes, *, side: float = 240) -> Markup:
    """An image with its axes named, its lower left corner where both begin."""
    height = side * pixels.shape[0] / pixels.shape[1]
    body = [
        f'<image x="22" y="4" width="{side}" height="{height:.0f}" style="image-rendering:pixelated" '
        f'preserveAspectRatio="none" href="{png(pixels)}"/>',
        text(22 + side / 2, height + 20, axes.x),
        text(14, 4 + height / 2, axes.y, turn=True),
    ]
    return svg(body, side + 30, height + 26, f"{axes.y} by {axes.x}")


def heat(values: NDArray, axes: Axes) -> Markup:
    """Similarity of layers, 0 to 1, the lowest layers at the bottom left as in the paper."""
    return image_with_axes(painted(values[::-1], 0.0, 1.0), axes)


def tiles(maps: NDArray, axes: Axes, *, columns: int) -> Markup:
    """Many small maps in one image, all in one scale, with a line between them; (maps, rows, columns[, 3])."""
    known = maps[np.isfinite(maps)]
    rgb = (
        np.round(255 * maps).astype(np.uint8)
        if maps.ndim == 4
        else painted(maps, float(known.min()), float(known.max()))
    )
    count, height, width = rgb.shape[:3]
    rows = math.ceil(count / columns)
    sheet = np.full((rows * (height + 1), columns * (width + 1), 3), 255, np.uint8)
    for i in range(count):
        y, x = (i // columns) * (height + 1), (i % columns) * (width + 1)
        sheet[y : y + height, x : x + width] = rgb[i]
    return image_with_axes(sheet[:-1, :-1], axes)
