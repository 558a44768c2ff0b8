"""Small sketches of what the papers' figures look like, drawn by us: shapes of curves and maps, no data of theirs."""

import itertools
from collections.abc import Callable, Iterator, Sequence

from markupsafe import Markup, escape

WIDTH, HEIGHT = 260, 132
LEFT, RIGHT, TOP, BOTTOM = 30, 8, 20, 24  # margins of a chart
LETTER = 7.0  # pixels of one letter of a name, in a wide font
COLORS = ("#0072b2", "#d55e00", "#009e73")
Point = tuple[float, float]  # within 0..1, from the lower left
Box = tuple[float, float, float, float]  # left, top, right, bottom
Curve = tuple[str, list[Point]]


def sketch(kind: str) -> Markup | None:
    """The sketch for a type of result by its name; None where the papers show no such figure."""
    make = SKETCHES.get(kind)
    return None if make is None else make()


def _svg(body: str, alt: str) -> Markup:
    return Markup(
        f'<svg class="sketch" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{escape(alt)}">'
        f"{body}</svg>"
    )


def _text(x: float, y: float, words: str, *, color: str = "currentColor", anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="12" fill="{color}" text-anchor="{anchor}">{escape(words)}</text>'


def curves(across: str, up: str, *lines: Curve) -> Callable[[], Markup]:
    """A chart without numbers: named curves between two named axes."""

    def make() -> Markup:
        axes = f"M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"
        body = f'<path d="{axes}" fill="none" stroke="currentColor" opacity=".5"/>'
        body += _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 7, across, anchor="middle")
        middle = (TOP + HEIGHT - BOTTOM) / 2
        body += f'<g transform="rotate(-90 14 {middle})">{_text(14, middle + 4, up, anchor="middle")}</g>'
        drawn = [[_at(p) for p in points] for _, points in lines]
        for color, points in zip(COLORS, drawn):
            path = "M" + "L".join(f"{x:.0f} {y:.0f}" for x, y in points)
            body += f'<path d="{path}" fill="none" stroke="{color}" stroke-width="2.5" stroke-linejoin="round"/>'
        named = [(color, name, points) for color, (name, _), points in zip(COLORS, lines, drawn) if name]
        for (color, name, _), (x, y) in zip(named, places([n for _, n, _ in named], [p for *_, p in named])):
            body += _text(x, y, name, color=color, anchor="end")
        names = "; ".join(name for name, _ in lines if name)
        return _svg(body, f"Sketch: {up} by {across}. {names}")

    return make


def _at(p: Point) -> Point:
    """A point within 0..1 as pixels from the upper left."""
    return LEFT + p[0] * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - p[1] * (HEIGHT - TOP - BOTTOM)


def places(names: Sequence[str], drawn: Sequence[Sequence[Point]]) -> list[Point]:
    """Where each name ends: as far right as it touches no curve, no axis and no other name, next to its own curve."""
    free: list[Point] = []
    taken: list[Box] = []
    for name, points in zip(names, drawn):
        spots = ((x, y) for x in range(WIDTH - RIGHT, LEFT, -4) for y in _rows(name, x, points))
        fits = (
            p for p in spots if not _meets(box := _box(name, p), drawn) and not any(_overlap(box, t) for t in taken)
        )
        place = next(fits, None)
        if place is None:
            raise AssertionError(f"The sketch has no room for {name}.")
        free.append(place)
        taken.append(_box(name, place))
    return free


def _box(name: str, end: Point) -> Box:
    """Left, top, right and bottom of a name whose baseline ends there, with some air."""
    return end[0] - LETTER * len(name) - 2, end[1] - 12, end[0] + 2, end[1] + 5


def _rows(name: str, x: float, points: Sequence[Point]) -> tuple[float, float]:
    """The baselines closest above and below the part of a curve that is as wide as the name."""
    left, _, right, _ = _box(name, (x, 0))
    heights = [y for a, y in _walk(points) if left <= a <= right] or [points[-1][1]]
    return min(heights) - 7, max(heights) + 14


def _walk(points: Sequence[Point]) -> Iterator[Point]:
    """Points along a curve, close together."""
    for (a, b), (c, d) in itertools.pairwise(points):
        yield from ((a + (c - a) * i / 64, b + (d - b) * i / 64) for i in range(65))


def _meets(box: Box, drawn: Sequence[Sequence[Point]]) -> bool:
    """Whether a curve or an axis runs through the box, or the box leaves the sketch."""
    left, top, right, bottom = box
    if left < LEFT + 1 or top < 0 or bottom > HEIGHT - BOTTOM or right > WIDTH:
        return True
    return any(left <= x <= right and top <= y <= bottom for points in drawn for x, y in _walk(points))


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _cells(values: list[list[float]], x: float, y: float, side: float) -> str:
    """Squares from dark to light."""
    step = side / len(values)
    return "".join(
        f'<rect x="{x + j * step:.1f}" y="{y + i * step:.1f}" width="{step + 0.4:.1f}" height="{step + 0.4:.1f}" '
        f'fill="rgb({30 + 222 * v:.0f},{20 + 160 * v:.0f},{70 + 70 * v:.0f})"/>'
        for i, row in enumerate(values)
        for j, v in enumerate(row)
    )


def maps(*named: tuple[str, Callable[[float, float], float]]) -> Callable[[], Markup]:
    """Two maps side by side, each a function of its cell within 0..1."""

    def make() -> Markup:
        n, side, body = 10, 96, ""
        for i, (name, value) in enumerate(named):
            x = 14 + i * 130
            table = [[value((c + 0.5) / n, 1 - (r + 0.5) / n) for c in range(n)] for r in range(n)]
            body += _cells(table, x, 4, side) + _text(x + side / 2, 118, name, anchor="middle")
        return _svg(body, "Sketch: " + "; ".join(name for name, _ in named))

    return make


def _near(x: float, y: float, width: float) -> Callable[[float, float], float]:
    return lambda a, b: max(0.05, 1 - (((a - x) ** 2 + (b - y) ** 2) ** 0.5 / width))


def _stages(x: float, y: float) -> float:
    return 0.85 if (x < 0.55) == (y < 0.55) else 0.25


def _even(x: float, y: float) -> float:
    return 0.95 - 0.35 * abs(x - y)


def _cross(x: float, y: float) -> float:
    return max(0.1, 0.95 - 1.6 * abs(x - 0.3), 0.8 - 1.6 * abs(y - 0.7))


def _wave(x: float, y: float) -> float:
    return 0.5 + 0.45 * (1 if int(x * 4) % 2 == int(y * 2) % 2 else -1)


def _split(x: float, y: float) -> float:
    return 0.85 if (x < 0.5) == (y < 0.5) else 0.15


RISING = [(0.0, 0.1), (0.3, 0.3), (0.6, 0.65), (1.0, 0.9)]
SKETCHES: dict[str, Callable[[], Markup]] = {
    "AttentionDistance": curves(
        "heads, sorted",
        "distance",
        ("upper blocks", [(0.0, 0.8), (1.0, 0.93)]),
        ("lower blocks", [(0.0, 0.1), (0.25, 0.25), (0.5, 0.5), (1.0, 0.58)]),
    ),
    "CKA": maps(("ViT", _even), ("ResNet", _stages)),
    "HeadSubsets": curves("distance of the heads", "CKA", ("", [(0.05, 0.9), (0.4, 0.6), (1.0, 0.15)])),
    "ReceptiveField": curves(
        "block",
        "radius",
        ("ViT", [(0.0, 0.45), (0.2, 0.75), (0.6, 0.88), (1.0, 0.92)]),
        ("ResNet", [(0.0, 0.05), (0.5, 0.18), (0.8, 0.4), (1.0, 0.6)]),
    ),
    "ResidualRatios": curves(
        "block",
        "skip / branch",
        ("patches", [(0.0, 0.1), (0.5, 0.2), (0.7, 0.6), (1.0, 0.75)]),
        ("class token", [(0.0, 0.95), (0.35, 0.9), (0.6, 0.5), (1.0, 0.3)]),
    ),
    "Localization": maps(("ViT: its own place", _near(0.35, 0.65, 0.28)), ("ResNet: blurred", _near(0.4, 0.55, 1.1))),
    "AttentionMaps": maps(("image", _near(0.6, 0.45, 0.6)), ("attention on it", _near(0.6, 0.45, 0.32))),
    "HeadAttention": maps(("a local head", _near(0.3, 0.7, 0.25)), ("a global head", _near(0.6, 0.4, 1.0))),
    "PatchFilters": maps(("one filter", _wave), ("another", lambda x, y: 0.5 + 0.45 * (1 if y > 0.5 else -1))),
    "PositionSimilarity": maps(("one position", _cross), ("another", lambda x, y: _cross(1 - x, 1 - y))),
    "WhatIf": maps(("whole", _even), ("without one skip", _split)),
    "BlockSimilarity": curves(
        "block",
        "CKA",
        ("all data", [(0.0, 0.95), (1.0, 0.9)]),
        ("3 % of it", [(0.0, 0.92), (0.4, 0.8), (0.7, 0.45), (1.0, 0.25)]),
    ),
    "PoolingComparison": curves("block", "CKA", ("", [(0.0, 0.95), (0.5, 0.88), (0.75, 0.55), (1.0, 0.2)])),
    "LayerProbes": curves(
        "block",
        "accuracy",
        ("class token", [(0.0, 0.05), (0.5, 0.15), (0.75, 0.6), (1.0, 0.95)]),
        ("mean of patches", [(0.0, 0.15), (0.4, 0.3), (0.8, 0.55), (1.0, 0.62)]),
    ),
    "ProbeAccuracy": maps(("CLS: single tokens", lambda x, y: 0.2), ("GAP: single tokens", _near(0.5, 0.5, 1.6))),
    "FewShot": curves("shots", "accuracy", ("", RISING)),
}
