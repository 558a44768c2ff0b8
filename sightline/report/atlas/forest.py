"""Forest plots: one effect with its bound, and all claims on one axis."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from sightline.studies.effects import decisive_effect, distance_to_bound

WIDTH = 260  # of the plot of one effect
LIMIT = 6.0  # half widths of an interval on either side of the bound; beyond, an arrow
ROW, LABEL, PLOT = 26, 178, 190
FULL = LABEL + PLOT + 6  # width of the plot of all claims
LETTERS = 29  # that fit before the plot
HUES = {"holds": "var(--yes)", "does not hold": "var(--no)", "undecided": "var(--open)"}


def forest(e: Mapping[str, Any]) -> dict[str, float | None] | None:
    """Where an effect lies in a plot with its bound in the middle, so that those of all claims share one line."""
    if not math.isfinite(e["value"]):
        return None
    known = math.isfinite(e["low"]) and math.isfinite(e["high"])
    ends = [e["value"], *((e["low"], e["high"]) if known else ())]
    reach = 1.15 * max([abs(x - e["bound"]) for x in ends] + [e["margin"]]) or 1.0

    def at(x: float) -> float:
        return round(WIDTH / 2 * (1 + (x - e["bound"]) / reach), 1)

    match e["side"]:
        case "above":
            left, right = WIDTH / 2, float(WIDTH)
        case "below":
            left, right = 0.0, WIDTH / 2
        case _:
            left, right = at(e["bound"] - e["margin"]), at(e["bound"] + e["margin"])
    ends_at = (at(e["low"]), at(e["high"])) if known else (None, None)
    return {
        "left": left,
        "width": round(right - left, 1),
        "value": at(e["value"]),
        "low": ends_at[0],
        "high": ends_at[1],
    }


def all_claims(rows: Sequence[Mapping[str, Any]]) -> Markup:
    """Every claim by the effect that decides it, in half widths of its interval from its bound: right is as claimed."""
    height = ROW * len(rows) + 34
    body = [
        f'<rect x="{LABEL + PLOT / 2}" y="0" width="{PLOT / 2}" height="{height - 30}" fill="#009e73" opacity=".1"/>',
        f'<path d="M{LABEL + PLOT / 2} 0V{height - 30}" stroke="currentColor" stroke-dasharray="3 3" opacity=".7"/>',
    ]
    for i, row in enumerate(rows):
        body.append(line(row, ROW * i + ROW / 2))
    for tick in (-4, -2, 0, 2, 4):
        x = LABEL + at(tick)
        body.append(f'<text x="{x:.0f}" y="{height - 16}" text-anchor="middle">{tick}</text>')
    words = "half widths of the interval from the bound"
    body.append(f'<text x="{LABEL + PLOT}" y="{height - 2}" text-anchor="end">{words}</text>')
    drawn = "".join(body)
    return Markup(
        f'<svg class="chart forest" viewBox="0 0 {FULL} {height}" role="img" aria-label="All claims">{drawn}</svg>'
    )


def at(x: float) -> float:
    return PLOT / 2 * (1 + max(-LIMIT, min(LIMIT, x)) / LIMIT)


def line(row: Mapping[str, Any], y: float) -> str:
    """One claim: its name, its interval, and an arrow where it lies beyond the plot."""
    effect = decisive_effect(row["effects"])
    far = math.nan if effect is None else distance_to_bound(effect)
    color, state = HUES[row["state"]], row["state"]
    label = f"{row['claim']} ({row['study']})"
    label = label if len(label) <= LETTERS else row["claim"]
    narrow = f' textLength="{LABEL - 8}" lengthAdjust="spacingAndGlyphs"' if len(label) > LETTERS else ""
    place = f'x="{LABEL - 8}" y="{y + 4}" text-anchor="end"{narrow}'
    words = f'<a href="#{escape(row["id"])}"><text {place}>{escape(label)}</text></a>'
    if not math.isfinite(far):
        return words + f'<text x="{LABEL + PLOT / 2 + 6}" y="{y + 4}" opacity=".6">no interval yet</text>'
    low, high = LABEL + at(far - 1), LABEL + at(far + 1)
    if abs(far) > LIMIT - 1:
        x, sign = LABEL + at(far), math.copysign(1, far)
        mark = f'<path d="M{x} {y}l{-9 * sign} -5v10z" fill="{color}"/>'
    else:
        mark = f'<circle cx="{LABEL + at(far):.1f}" cy="{y}" r="4" fill="{color}"/>'
    bar = f'<path d="M{low:.1f} {y}H{high:.1f}" stroke="{color}" stroke-width="2.5"/>'
    return f"<g><title>{escape(label)}: {state}</title>{words}{bar}{mark}</g>"
