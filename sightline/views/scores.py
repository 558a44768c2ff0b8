"""Measurements: accuracy by shots, depth, ways, class, task and test set."""

from typing import Any

import numpy as np

from sightline.analysis.probes import LayerProbes
from sightline.evals.accuracy import Classification, TestSets
from sightline.evals.episodic import Episodes
from sightline.evals.few_shot import FewShot
from sightline.evals.multilabel import MultiLabel, ReaL
from sightline.evals.probing.by_layer import ProbeAccuracy
from sightline.evals.reid import Retrieval
from sightline.evals.vtab_protocol import GROUPS, Vtab, vtab_references
from sightline.training.run.curves import Curves
from sightline.views.style import COLORS, PALE, finite, heat, legend, lines, spread_out

CLASSES = 60  # that a confusion matrix shows; of more classes, the worst confusions


def short(name: str, most: int = 18) -> str:
    """A name that fits an axis."""
    name = " ".join(name.split())
    return name if len(name) <= most else name[: most - 1] + "…"


def draw_fewshot(r: FewShot, ax: Any) -> None:
    """Accuracy by shots, mean and 95 % interval over draws (ViT, figure 4)."""
    x = np.arange(len(r.shots))
    ax.errorbar(x, 100 * r.mean, yerr=100 * finite(r.half_width), marker="o", color=COLORS[0], capsize=3)
    ax.axhline(100 / max(len(r.classes), 1), color=PALE, linestyle="--", label="chance")
    ax.set_xticks(x, [str(s) for s in r.shots])
    ax.set(xlabel="training images per class", ylabel="accuracy, %", ylim=(0, 100))
    ax.legend(loc="lower right")


def draw_episodes(r: Episodes, ax: Any) -> None:
    """Accuracy by shots, one line per number of ways."""
    names = [f"{k}-way" for k in r.ways]
    lines(ax, np.arange(len(r.shots)), 100 * r.mean, names, 100 * r.half_width)
    ax.set_xticks(range(len(r.shots)), [str(s) for s in r.shots])
    ax.set(xlabel="support images per class", ylabel="accuracy, %", ylim=(0, 100))
    ax.legend(loc="lower right")


def draw_layer_probes(r: LayerProbes, ax: Any) -> None:
    """Accuracy by block, one line per model and choice of tokens (Raghu et al., figures 11b and 13)."""
    lines(ax, np.arange(r.accuracy.shape[1]), 100 * r.accuracy, r.curves, 100 * r.half_width)
    ax.set(xlabel="block, first to last", ylabel="accuracy of a linear probe, %", ylim=(0, 100))
    ax.legend(loc="best")


def draw_probed(r: ProbeAccuracy, figure: Any) -> None:
    """Accuracy by layer; where every token was probed, also the maps over the grid (figures 11a and D.4)."""
    maps = [l for l in r.layers if r.grids and l in r.grids]
    shown = [maps[i] for i in spread_out(len(maps), 5)]
    above, below = figure.subfigures(2, 1, height_ratios=(3, 3)) if shown else (figure, None)
    ax = above.subplots()
    lines(ax, np.arange(len(r.layers)), 100 * r.mean[None], ["mean"], 100 * r.half_width[None])
    ax.set_xticks(range(len(r.layers)), [short(l) for l in r.layers], rotation=30, ha="right", fontsize=7)
    ax.set(ylabel="accuracy of a probe, %", ylim=(0, 100), xlabel="layer")
    for i, (cell, layer) in enumerate(zip(below.subplots(1, len(shown), squeeze=False)[0] if below else (), shown)):
        heat(cell, r.map(layer), label="accuracy", bar=i == len(shown) - 1)
        cell.set_title(short(layer), fontsize=7)
        cell.set_xticks([])
        cell.set_yticks([])


def draw_classification(r: Classification, figure: Any) -> None:
    """Confusion (rows: label) or, for many classes, the worst confusions; and confidence against accuracy."""
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    if len(r.classes) <= CLASSES:
        square = r.confusion().astype(float)
        heat(left, square / np.maximum(square.sum(1, keepdims=True), 1), label="share of the label's images")
        few = spread_out(len(r.classes), 12)
        left.set_xticks(few, [short(r.classes[i], 12) for i in few], rotation=60, ha="right", fontsize=7)
        left.set_yticks(few, [short(r.classes[i], 12) for i in few], fontsize=7)
        left.set(xlabel="prediction", ylabel="label")
    else:
        worst = r.confused(12)
        left.barh(range(len(worst)), [n for *_, n in worst], color=COLORS[1])
        left.set_yticks(range(len(worst)), [f"{short(a, 14)} → {short(b, 14)}" for a, b, _ in worst], fontsize=7)
        left.invert_yaxis()
        left.set_xlabel("images (label → prediction)")
    right.plot((0, 1), (0, 1), color=PALE, linestyle="--", label="perfectly calibrated")
    right.plot(r.bins[:, 0], r.bins[:, 1], marker="o", color=COLORS[0], label="model")
    right.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    right.legend(loc="upper left")


def draw_test_sets(r: TestSets, ax: Any) -> None:
    """Top-1 on each set with its interval."""
    error = np.stack([r.top1 - r.low, r.high - r.top1]) * 100
    ax.errorbar(range(len(r.names)), 100 * r.top1, yerr=np.maximum(error, 0), fmt="o", color=COLORS[0], capsize=4)
    ax.set_xticks(range(len(r.names)), [short(n) for n in r.names])
    ax.set(ylabel="top-1, %", ylim=(0, 100), xlim=(-0.5, len(r.names) - 0.5))


def draw_vtab(r: Vtab, ax: Any) -> None:
    """Accuracy by task, colored by group; for VTAB-1k the paper's rows as marks (ViT, table 9)."""
    color = {g: COLORS[i] for i, g in enumerate(GROUPS)}
    for group in dict.fromkeys(r.groups):
        rows = [i for i, g in enumerate(r.groups) if g == group]
        ax.bar(rows, 100 * r.accuracy[rows], color=color.get(group, PALE), label=group)
    others = vtab_references() if r.suite == "vtab" else ()
    for mark, other in zip("_x+", others):
        at = [other.tasks.index(t) for t in r.tasks]
        ax.plot(range(len(at)), 100 * other.accuracy[at], mark, color="black", label=other.title)
    ax.set_xticks(range(len(r.tasks)), [short(t) for t in r.tasks], rotation=50, ha="right", fontsize=7)
    ax.set(ylabel="accuracy, %", ylim=(0, 100))
    ax.axhline(100 * r.score, color=PALE, linestyle="--", label=f"mean {100 * r.score:.1f}")
    ax.legend(loc="upper right", ncols=2)


def draw_multilabel(r: MultiLabel, ax: Any) -> None:
    """Average precision by class, sorted."""
    order = np.argsort(-np.nan_to_num(r.precision, nan=-1))
    order = order[np.isfinite(r.precision[order])]
    ax.bar(range(len(order)), 100 * r.precision[order], color=COLORS[0], width=0.9)
    few = spread_out(len(order), 16)
    ax.set_xticks(few, [short(r.classes[order[i]]) for i in few], rotation=50, ha="right", fontsize=7)
    ax.set(ylabel="average precision, %", ylim=(0, 100))


def draw_real(r: ReaL, ax: Any) -> None:
    """One number and its interval."""
    low, high = r.interval
    ax.errorbar(
        [100 * r.accuracy], [0], xerr=[[100 * (r.accuracy - low)], [100 * (high - r.accuracy)]], fmt="o", capsize=4
    )
    ax.set(xlim=(0, 100), xlabel=f"accuracy against reassessed labels, % ({r.scored:,} images)", yticks=[])


def draw_retrieval(r: Retrieval, ax: Any) -> None:
    """Share of queries with a right image among the first k."""
    ax.plot(np.arange(1, len(r.cmc) + 1), 100 * r.cmc, marker="o", color=COLORS[0])
    ax.set(xlabel="first k images", ylabel="queries with a right one, %", ylim=(0, 100))
    legend(ax, 0)


def draw_curves(r: Curves, figure: Any) -> None:
    """A run by step: one panel per kind of number (loss, accuracy, rate ...), training and validation together."""
    kinds: dict[str, list[str]] = {}
    for name in r.names:
        if len(r.of(name)[0]):
            kinds.setdefault(name.rsplit("/", 1)[-1], []).append(name)
    shown = sorted(kinds, key=lambda kind: -len(kinds[kind]))[:6]
    if not shown:
        figure.subplots().set_xlabel("nothing was logged")
        return
    axes = figure.subplots(-(-len(shown) // 3), min(3, len(shown)), squeeze=False).ravel()
    for ax, kind in zip(axes, shown):
        for i, name in enumerate(kinds[kind]):
            steps, values = r.of(name)
            ax.plot(steps, values, color=COLORS[i % len(COLORS)], marker="o" if len(steps) < 12 else "", label=name)
        ax.set(xlabel="step", ylabel=kind)
        legend(ax, len(kinds[kind]))
    for ax in axes[len(shown) :]:
        ax.remove()
