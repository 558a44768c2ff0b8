"""Views of measurements: accuracy by shots, depth, ways, class and task; training curves."""

import math
from typing import Any

import numpy as np

from sightline.analysis.probes import LayerProbes
from sightline.evals.accuracy import Classification
from sightline.evals.episodic import Episodes
from sightline.evals.few_shot import FewShot
from sightline.evals.multilabel import MultiLabel, ReaL
from sightline.evals.probing.by_layer import ProbeAccuracy
from sightline.evals.reid import Retrieval
from sightline.evals.vtab_protocol import GROUPS, Vtab, vtab_references
from sightline.training.failures import RANK
from sightline.training.run.curves import Curves
from sightline.views.measurements import published
from sightline.views.payload import SIDE, heat_map
from sightline.views.style import COLORS, PALE, finite, heat, in_a_row, is_narrow, legend, lines, panels, spread_out
from sightline.views.view import (
    RAGHU,
    Headline,
    Paper,
    Payload,
    View,
    accuracy_headline,
    counted,
    one_digit,
    percent,
    points,
    with_interval,
)

CLASSES = 12  # whose names and numbers fit a confusion matrix; of more, a figure shows the worst confusions


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


def fewshot_sentence(r: FewShot) -> str:
    rows = zip(r.shots, r.mean, r.half_width)
    parts = [
        f"{s} shot{'s' * (s != 1)} {100 * m:.1f} %" + (f" ± {100 * h:.1f}" if math.isfinite(h) else "")
        for s, m, h in rows
    ]
    return f"{', '.join(parts)}; chance is {100 / max(len(r.classes), 1):.1f} %."


FEW_SHOT = View(
    of=FewShot,
    heading="Few-shot accuracy",
    sentence=fewshot_sentence,
    draw=draw_fewshot,
    size=(5.6, 3.8),
    paper=published.of_few_shots,
)


def draw_episodes(r: Episodes, ax: Any) -> None:
    """Accuracy by shots, one line per number of ways."""
    names = [f"{k}-way" for k in r.ways]
    lines(ax, np.arange(len(r.shots)), 100 * r.mean, names, 100 * r.half_width)
    ax.set_xticks(range(len(r.shots)), [str(s) for s in r.shots])
    ax.set(xlabel="support images per class", ylabel="accuracy, %", ylim=(0, 100))
    ax.legend(loc="lower right")


def episodes_sentence(r: Episodes) -> str:
    low, high = np.unravel_index(r.mean.argmin(), r.mean.shape), np.unravel_index(r.mean.argmax(), r.mean.shape)
    ends = r.intervals()
    names = [f"{r.ways[i]}-way {r.shots[j]}-shot" for i, j in (low, high)]
    cells = [
        f"{n} ({with_interval(float(r.mean[at]), ends.get(n), points, inside=True)})"
        for n, at in zip(names, (low, high))
    ]
    within, other = (
        with_interval(r.within, ends.get("cosine within")),
        with_interval(r.between, ends.get("cosine between")),
    )
    return f"From {cells[0]} to {cells[1]}; cosine {within} within a class, {other} between classes."


EPISODES = View(
    of=Episodes,
    heading="Episodes on unseen classes",
    sentence=episodes_sentence,
    draw=draw_episodes,
    size=(5.6, 3.8),
    paper=Paper("seminar notes", "More ways hurt, more shots help."),
)


def draw_layer_probes(r: LayerProbes, ax: Any) -> None:
    """Accuracy by block, one line per model and choice of tokens (Raghu et al., figures 11b and 13)."""
    lines(ax, np.arange(1, r.accuracy.shape[1] + 1), 100 * r.accuracy, r.curves, 100 * r.half_width)
    ax.set(xlabel="block, first to last", ylabel="accuracy of a linear probe, %", ylim=(0, 100))
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.legend(loc="best")


def layer_probes_sentence(r: LayerProbes) -> str:
    last = [int(np.isfinite(row).sum()) - 1 for row in r.accuracy]
    values = [float(row[at]) for row, at in zip(r.accuracy, last)]
    order = np.argsort(values)[::-1]
    parts = (f"{r.curves[i]} {with_interval(values[i], r.interval(i, last[i]), points)}" for i in order)
    return f"At the last block: {', '.join(parts)}."


LAYER_PROBES = View(
    of=LayerProbes,
    heading="Linear probes by block",
    sentence=layer_probes_sentence,
    draw=draw_layer_probes,
    size=(6.6, 4.2),
    paper=Paper(
        f"{RAGHU}, figures 11b and 13", "Class tokens and averaged patch tokens predict the class at different depths."
    ),
)


def draw_probes(r: ProbeAccuracy, figure: Any) -> None:
    """Accuracy by layer; where every token was probed, also the maps over the grid (figures 11a and D.4)."""
    maps = [l for l in r.layers if r.grids and l in r.grids]
    shown = [maps[i] for i in spread_out(len(maps), in_a_row(5))]
    above, below = figure.subfigures(2, 1, height_ratios=(3, 3)) if shown else (figure, None)
    ax = above.subplots()
    lines(ax, np.arange(len(r.layers)), 100 * r.mean[None], ["mean"], 100 * r.half_width[None])
    ax.set_xticks(range(len(r.layers)), [short(l) for l in r.layers], rotation=30, ha="right")
    ax.set(ylabel="accuracy, %", ylim=(0, 100), xlabel="layer")
    for i, (cell, layer) in enumerate(zip(below.subplots(1, len(shown), squeeze=False)[0] if below else (), shown)):
        heat(cell, r.map(layer), label="accuracy", bar=i == len(shown) - 1)
        cell.set_title(short(layer))
        cell.set_xticks([])
        cell.set_yticks([])


def probes_sentence(r: ProbeAccuracy) -> str:
    best = int(np.nanargmax(r.mean))
    top = with_interval(float(r.mean[best]), r.interval(best), points, inside=True)
    last = with_interval(float(r.mean[-1]), r.interval(-1), points)
    return f"The best layer is {counted(r.layers[best])} ({top}); the last reaches {last}."


PROBES = View(
    of=ProbeAccuracy,
    heading="Linear probes by layer and token",
    sentence=probes_sentence,
    draw=draw_probes,
    size=(8.0, 5.4),
    narrow=5.0,
    several_panels=True,
    paper=Paper(
        f"{RAGHU}, figures 11a and D.4",
        "After GAP training single tokens predict the class; after CLS training they hardly do.",
    ),
)


def draw_classification(r: Classification, figure: Any) -> None:
    """Confusion (rows: label) or, for many classes, the worst confusions; and confidence against accuracy."""
    if is_narrow():  # each with its own margins: long names of classes must not squeeze the other
        left, right = (part.subplots() for part in figure.subfigures(2, 1))
    else:
        left, right = panels(figure, 2, (3, 2))
    if len(r.classes) <= CLASSES:
        square = r.confusion().astype(float)
        share = square / np.maximum(square.sum(1, keepdims=True), 1)
        heat(left, share, label="share of the label's images")
        for (i, j), value in np.ndenumerate(share):
            ink = "black" if value > 0.6 else "white"
            left.text(j, i, f"{100 * value:.0f}" if value >= 0.005 else "", ha="center", va="center", color=ink)
        names = [short(name, 12) for name in r.classes]
        left.set_xticks(range(len(names)), names, rotation=60, ha="right")
        left.set_yticks(range(len(names)), names)
        left.set(xlabel="prediction", ylabel="label")
    else:
        worst = r.confused(12)
        left.barh(range(len(worst)), [n for *_, n in worst], color=COLORS[1])
        most = 10 if is_narrow() else 14
        left.set_yticks(range(len(worst)), [f"{short(a, most)} → {short(b, most)}" for a, b, _ in worst])
        left.invert_yaxis()
        left.set_xlabel("images (label → prediction)")
    right.plot((0, 1), (0, 1), color=PALE, linestyle="--", label="perfectly calibrated")
    right.plot(r.bins[:, 0], r.bins[:, 1], marker="o", color=COLORS[0], label="model")
    right.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    right.legend(loc="upper left")


def classification_sentence(r: Classification) -> str:
    wrong = r.confused(1)
    often = f"{wrong[0][2]} time{'s' * (wrong[0][2] > 1)}" if wrong else ""
    most = f" Most often, {wrong[0][0]} is taken for {wrong[0][1]} ({often})." if wrong else ""
    low, high = r.interval
    ends = r.intervals()
    top5 = f" Top-5 accuracy {with_interval(r.top5, ends.get('top-5'), points)}." if len(r.classes) > 5 else ""
    off = with_interval(100 * r.calibration_error, _times_100(ends.get("calibration error")), one_digit)
    count = int(r.counts.sum())
    return (
        f"{100 * r.top1:.1f} % of {count:,} image{'s' * (count > 1)} correct (95 % interval {100 * low:.1f} to "
        f"{100 * high:.1f} %).{top5}{most} Confidence and accuracy differ by {off} points on average (calibration "
        "error)."
    )


def _times_100(ends: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if ends is None else (100 * ends[0], 100 * ends[1])


def confusion_payload(r: Classification, room: int) -> Payload | None:
    if not CLASSES < len(r.classes) <= SIDE:  # a small one is in the figure
        return None
    square = r.confusion().astype(float)
    share = square / np.maximum(square.sum(1, keepdims=True), 1)
    return heat_map({"share of the label's images": share}, (r.classes, r.classes), row="label", column="prediction")


ACCURACY = View(
    of=Classification,
    heading="Accuracy",
    sentence=classification_sentence,
    draw=draw_classification,
    size=(9.0, 4.6),
    narrow=7.2,
    several_panels=True,
    payload=confusion_payload,
    figure_and_widget=True,
    paper=published.of_accuracy,
    headline=lambda r: accuracy_headline("accuracy", r.top1, r.interval),
)


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
    ax.set_xticks(range(len(r.tasks)), [short(t) for t in r.tasks], rotation=50, ha="right")
    ax.set(ylabel="accuracy, %", ylim=(0, 100))
    ax.axhline(100 * r.score, color=PALE, linestyle="--", label=f"mean {100 * r.score:.1f}")
    ax.legend(loc="upper right", ncols=2)


def vtab_sentence(r: Vtab) -> str:
    ends = r.intervals()
    groups = ", ".join(f"{g} {with_interval(v, ends.get(g), points)}" for g, v in r.by_group.items())
    return f"Mean of {len(r.tasks)} tasks {with_interval(r.score, r.interval(), points)}: {groups}."


VTAB = View(
    of=Vtab,
    heading="VTAB",
    sentence=vtab_sentence,
    draw=draw_vtab,
    size=(8.6, 4.6),
    paper=published.of_vtab,
    headline=lambda r: accuracy_headline(f"accuracy, mean of {len(r.tasks)} tasks", r.score),
)


def draw_multilabel(r: MultiLabel, ax: Any) -> None:
    """Average precision by class, sorted."""
    order = np.argsort(-np.nan_to_num(r.precision, nan=-1))
    order = order[np.isfinite(r.precision[order])]
    ax.bar(range(len(order)), 100 * r.precision[order], color=COLORS[0], width=0.9)
    few = spread_out(len(order), 16)
    ax.set_xticks(few, [short(r.classes[order[i]]) for i in few], rotation=50, ha="right")
    ax.set(ylabel="average precision, %", ylim=(0, 100))


def multilabel_sentence(r: MultiLabel) -> str:
    ends = r.intervals()
    return (
        f"The top prediction is among the labels of {with_interval(r.top1, ends.get('top-1 in the set'), percent)} of "
        f"{r.scored} images; mAP {with_interval(r.mean_average_precision, ends.get('mAP'))}."
    )


MULTI_LABEL = View(
    of=MultiLabel,
    heading="Several labels per image",
    sentence=multilabel_sentence,
    draw=draw_multilabel,
    size=(7.0, 3.8),
    headline=lambda r: Headline(f"{r.mean_average_precision:.3f}", "mean average precision"),
)


def draw_real(r: ReaL, ax: Any) -> None:
    """One number and its interval."""
    low, high = r.interval
    ax.errorbar(
        [100 * r.accuracy], [0], xerr=[[100 * (r.accuracy - low)], [100 * (high - r.accuracy)]], fmt="o", capsize=4
    )
    ax.set(xlim=(0, 100), xlabel=f"accuracy against reassessed labels, % ({r.scored:,} images)", yticks=[])


def real_sentence(r: ReaL) -> str:
    return f"{with_interval(r.accuracy, r.interval, points)} of {r.scored:,} images correct by the reassessed labels."


REAL = View(
    of=ReaL,
    heading="Reassessed labels",
    sentence=real_sentence,
    draw=draw_real,
    size=(6.0, 1.8),
    paper=published.of_real,
    headline=lambda r: accuracy_headline("accuracy, reassessed labels", r.accuracy, r.interval),
)


def draw_retrieval(r: Retrieval, ax: Any) -> None:
    """Share of queries with a match among the first k images."""
    ax.plot(np.arange(1, len(r.cmc) + 1), 100 * r.cmc, marker="o", color=COLORS[0])
    ax.set(xlabel="first k images", ylabel="queries with a match, %", ylim=(0, 100))
    legend(ax, 0)


def retrieval_sentence(r: Retrieval) -> str:
    ends = r.intervals()
    first = with_interval(float(r.cmc[0]), ends.get("rank-1"), percent)
    mean = with_interval(float(np.nanmean(r.precision)), ends.get("mAP"))
    return f"The first image is a match for {first} of the queries; mAP {mean}."


RETRIEVAL = View(
    of=Retrieval,
    heading="Retrieval",
    sentence=retrieval_sentence,
    draw=draw_retrieval,
    size=(5.6, 3.8),
)


def draw_curves(r: Curves, figure: Any) -> None:
    """A run by step: one panel per kind of number (loss, accuracy, rate ...), training and validation together."""
    kinds: dict[str, list[str]] = {}
    for name in r.names:
        if len(r.of(name)[0]):
            kinds.setdefault(name.rsplit("/", 1)[-1], []).append(name)
    shown = sorted(kinds, key=lambda kind: (not _is_evaluation(kinds[kind]), -len(kinds[kind])))[:6]
    if not shown:
        figure.subplots().set_xlabel("nothing was logged")
        return
    columns = 1 if is_narrow() else min(3, len(shown))
    axes = figure.subplots(-(-len(shown) // columns), columns, squeeze=False).ravel()
    for ax, kind in zip(axes, shown):
        for i, name in enumerate(kinds[kind]):
            steps, values = r.of(name)
            ax.plot(steps, values, color=COLORS[i % len(COLORS)], marker="o" if len(steps) < 12 else "", label=name)
        ax.set(xlabel="step", ylabel=kind)
        legend(ax, len(kinds[kind]))
    for ax in axes[len(shown) :]:
        ax.remove()


def curves_sentence(r: Curves) -> str:
    steps = int(r.step[-1]) if len(r.step) else 0
    ends = [f"{name} {r.of(name)[1][0]:.3g} → {r.of(name)[1][-1]:.3g}" for name in r.names if len(r.of(name)[0]) > 1]
    chosen = [e for e in ends if any(word in e for word in ("loss", "top", "accuracy", "knn", "rank"))] or ends
    said = f"After {steps:,} steps: {'; '.join(chosen[:4]) or 'nothing was logged twice'}."
    ranks = [r.of(name)[1][-1] for name in r.names if name.endswith("rank") and len(r.of(name)[1])]
    return f"{said} The run has collapsed: all images look alike to it." if any(x < RANK for x in ranks) else said


def _is_evaluation(names: list[str]) -> bool:
    return any(name.startswith("val/") or name.endswith("rank") for name in names)


TRAINING = View(
    of=Curves,
    heading="Training",
    sentence=curves_sentence,
    draw=draw_curves,
    size=(9.0, 4.4),
    narrow=lambda r: 2.3 * min(6, max(1, len({name.rsplit("/", 1)[-1] for name in r.names}))),
    several_panels=True,
)
