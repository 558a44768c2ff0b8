"""The view of accuracy against compute, with the Pareto front (ViT, figure 5)."""

from typing import Any

import numpy as np

from sightline.training.run.compute import AccuracyByCompute
from sightline.views.style import COLORS, PALE
from sightline.views.view import VIT, Paper, View, points, with_interval

NAMED = 12  # runs that are labeled; of more, those on the front
MARKS = "os^Dv"


def draw_compute(r: AccuracyByCompute, ax: Any) -> None:
    """Accuracy with its interval against training MACs, one color per family, and the front as a line."""
    error = 100 * np.maximum(np.stack([r.accuracy - r.low, r.high - r.accuracy]), 0)
    for i, family in enumerate(dict.fromkeys(r.families)):
        own = np.array([f == family for f in r.families])
        style = {"fmt": MARKS[i % len(MARKS)], "color": COLORS[i % len(COLORS)], "capsize": 3, "label": family}
        ax.errorbar(r.macs[own], 100 * r.accuracy[own], yerr=error[:, own], **style)
    front = [i for i in np.argsort(r.macs) if r.front[i]]
    steps = "steps-post" if len(front) > 1 else "default"
    ax.plot(r.macs[front], 100 * r.accuracy[front], color=PALE, zorder=0, drawstyle=steps, label="Pareto front")
    for i, name in enumerate(r.runs):
        if len(r.runs) <= NAMED or r.front[i]:
            place = {"xytext": (5, 5), "textcoords": "offset points"}
            ax.annotate(name if len(name) <= 24 else "…" + name[-23:], (r.macs[i], 100 * r.accuracy[i]), **place)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:.0e}".replace("e+", "e"))  # formulas are not drawn
    ax.xaxis.set_minor_formatter(lambda value, _: "")
    ax.margins(x=0.18, y=0.12)
    ax.set(xlabel="training compute, multiply-accumulates", ylabel="validation accuracy, %")
    ax.legend(loc="best")


def compute_sentence(r: AccuracyByCompute) -> str:
    front = [i for i in np.argsort(r.macs) if r.front[i]]
    ends = r.intervals()
    shown = [with_interval(float(r.accuracy[i]), ends.get(r.runs[i]), points, inside=True) for i in front]
    parts = [f"{r.runs[i]} ({text}; {r.macs[i]:.2g} MACs)" for i, text in zip(front, shown)]
    return f"On the Pareto front of {len(r.runs)} runs: {', '.join(parts)}."


COMPUTE = View(
    of=AccuracyByCompute,
    heading="Accuracy against compute",
    sentence=compute_sentence,
    draw=draw_compute,
    size=(7.0, 4.6),
    paper=Paper(
        f"{VIT}, figure 5",
        "ViTs take 2 to 4 times less compute than ResNets for the same accuracy; hybrids lead at small budgets.",
    ),
)
