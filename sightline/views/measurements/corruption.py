"""The view of accuracy on corrupted images: by severity, and by kind and severity."""

from typing import Any

import numpy as np

from sightline.data.corruptions.kinds import KINDS
from sightline.evals.interval import ends
from sightline.evals.shift.robustness import CorruptionAccuracy
from sightline.views.style import COLORS, PALE, heat, panels
from sightline.views.view import View, accuracy_headline, points, with_interval


def draw_corruption(r: CorruptionAccuracy, figure: Any) -> None:
    """Accuracy by severity, the mean and each group of kinds; and every kind at every severity."""
    left, right = panels(figure, 2, (3, 2))
    at = np.arange(len(r.severities))
    mean, half = r.by_severity()
    left.axhline(100 * r.clean.mean(), color=PALE, linestyle="--", label="clean")
    families = [KINDS[kind].family for kind in r.kinds]
    groups = {name: [i for i, family in enumerate(families) if family == name] for name in dict.fromkeys(families)}
    for color, (name, rows) in zip(COLORS[1:], groups.items()):
        if len(groups) > 1:
            left.plot(at, 100 * r.accuracy[rows].mean(0), color=color, marker="o", label=name)
    left.errorbar(at, 100 * mean, yerr=100 * half, color=COLORS[0], marker="s", capsize=3, label="mean")
    left.set_xticks(at, [str(s) for s in r.severities])
    left.set(xlabel="severity", ylabel="accuracy, %", ylim=(0, 100), xlim=(-0.3, len(at) - 0.7))
    left.legend(loc="best")
    heat(right, r.accuracy, label="accuracy")
    right.set_yticks(range(len(r.kinds)), r.kinds)
    right.set_xticks(at, [str(s) for s in r.severities])
    right.set_xlabel("severity")
    right.set_aspect("auto")


def corruption_sentence(r: CorruptionAccuracy) -> str:
    numbers, known = r.summary(), r.intervals()
    means, halves = r.by_kind()
    i = int(means.argmin())
    worst = with_interval(
        float(means[i]), ends(float(means[i]), float(halves[i]), least=0.0, most=1.0), points, inside=True
    )
    clean, corrupted = (with_interval(numbers[name], known.get(name), points) for name in ("clean", "corrupted"))
    return f"{clean} on clean images, {corrupted} on corrupted ones; worst is {r.kinds[i]} ({worst})."


CORRUPTION = View(
    of=CorruptionAccuracy,
    heading="Corrupted images",
    sentence=corruption_sentence,
    draw=draw_corruption,
    size=(9.0, 4.6),
    narrow=7.2,
    several_panels=True,
    headline=lambda r: accuracy_headline("accuracy, corrupted images", float(r.summary()["corrupted"])),
)
