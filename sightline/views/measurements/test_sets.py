"""The view of one model on several test sets."""

from typing import Any

import numpy as np

from sightline.evals.shift.test_sets import TestSets
from sightline.views.measurements.published import of_test_sets
from sightline.views.style import COLORS, PALE
from sightline.views.view import View, accuracy_headline, points, with_interval


def draw_test_sets(r: TestSets, ax: Any) -> None:
    """Top-1 on each set with its interval, and that of the first set on the same classes."""
    at, error = np.arange(len(r.names)), np.stack([r.top1 - r.low, r.high - r.top1]) * 100
    if len(r.first_top1):
        label = f"{r.names[0]}, the same classes"
        ax.plot(at[1:], 100 * r.first_top1[1:], "D", color=PALE, markerfacecolor="none", label=label)
    style = {"fmt": "o", "color": COLORS[0], "capsize": 4, "label": "this set"}
    ax.errorbar(at, 100 * r.top1, yerr=np.maximum(error, 0), **style)
    shown = [n if len(n) <= 18 else "…" + n[-17:] for n in r.names]
    ax.set_xticks(at, [f"{n}\n{c} classes" for n, c in zip(shown, r.classes)] if len(r.classes) else shown)
    ax.set(ylabel="top-1, %", ylim=(0, 100), xlim=(-0.5, len(r.names) - 0.5))
    if len(r.first_top1):
        ax.legend(loc="best")


def test_sets_sentence(r: TestSets) -> str:
    worst = int(r.top1.argmin())
    first, last = (with_interval(float(r.top1[i]), (float(r.low[i]), float(r.high[i])), points) for i in (0, worst))
    if not worst or not len(r.first_top1):
        return f"From {first} on {r.names[0]} to {last} on {r.names[worst]}."
    same = with_interval(r.baseline(worst), r.baseline_interval(worst), points)
    return f"{last} on {r.names[worst]}, {same} on {r.names[0]} with the same {r.classes[worst]} classes."


TEST_SETS = View(
    of=TestSets,
    heading="Several test sets",
    sentence=test_sets_sentence,
    draw=draw_test_sets,
    size=(6.4, 3.8),
    paper=of_test_sets,
    headline=lambda r: accuracy_headline(
        f"accuracy on {r.names[0]}", float(r.top1[0]), (float(r.low[0]), float(r.high[0]))
    ),
)
