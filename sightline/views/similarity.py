"""Views of similarity: CKA of layers, head subsets, ablation, localization, class token or average pooling."""

import math
from typing import Any

import numpy as np

from sightline.analysis.ablation import WhatIf
from sightline.analysis.attention.head_subsets import HeadSubsets
from sightline.analysis.similarity.block_similarity import BlockSimilarity
from sightline.analysis.similarity.cka import CKA, best_of_last
from sightline.analysis.similarity.localization import Localization
from sightline.analysis.similarity.pooling_comparison import BY_BLOCK as BY_BLOCK_STATISTICS
from sightline.analysis.similarity.pooling_comparison import PoolingComparison
from sightline.evals.interval import ends
from sightline.views.payload import block_marks, heat_map, tiles
from sightline.views.style import (
    COLORS,
    bare,
    equal_steps,
    finite,
    heat,
    is_narrow,
    legend,
    lines,
    mosaic,
    nice_top,
    panels,
    whole_numbers,
)
from sightline.views.view import (
    RAGHU,
    Paper,
    Payload,
    Show,
    View,
    counted,
    in_front,
    model_names,
    pair,
    percent,
    two_digits,
    with_interval,
)


def draw_cka(r: CKA, ax: Any) -> None:
    """All pairs of layers, the first at the lower left (Raghu et al., figures 1 and 2)."""
    heat(ax, r.similarity, label="CKA", origin="lower")
    names = model_names(r)
    ax.set_ylabel(f"layer{f' of {names[0]}' if names else ''} by {layer_marks(r)[1]}")
    ax.set_xlabel(f"layer{f' of {names[-1]}' if names else ''} by {layer_marks(r)[1]}")
    marks, _ = layer_marks(r)
    for ticks, set_ticks, count in zip(marks, (ax.set_yticks, ax.set_xticks), r.similarity.shape):
        set_ticks([at * count - 0.5 for at, _ in ticks], [text for _, text in ticks])


def cka_sentence(r: CKA) -> str:
    return _printed_sentence(r) + _ways_sentence(r)


def _ways_sentence(r: CKA) -> str:
    """The mean of all pairs looked at in the other ways."""
    numbers, ends = r.summary(), r.intervals()
    named = {name: name.replace("CKA", "mean") for name, value in other_ways(r).items() if np.isfinite(value).any()}
    means = [f"{with_interval(numbers[key], ends.get(key))} {name[5:]}" for name, key in named.items()]
    if not means:
        return ""
    known = r.p[np.isfinite(r.p)]
    beyond = f"; {percent(float(np.mean(known <= 0.05)))} of the pairs have p ≤ 0.05" if known.size else ""
    return f" Mean of all pairs, computed in other ways: {', '.join(means)}{beyond}."


def _printed_sentence(r: CKA) -> str:
    s, numbers, known = r.similarity, r.summary(), r.intervals()
    mean = with_interval(numbers["mean"], known.get("mean"))

    def cell(i: int, j: int) -> str:
        return with_interval(float(s[i, j]), ends(float(s[i, j]), float(r.band[i, j]), most=1.0), inside=True)

    if r.rows == r.columns and len(s) > 1:
        i, j = (int(k) for k in np.unravel_index(np.nanargmin(s), s.shape))
        halves = with_interval(numbers["lower half to upper half"], known.get("lower half to upper half"))
        return (
            f"Layers of the lower and the upper half have a mean CKA of {halves}, all pairs one of {mean}; "
            f"{counted(r.rows[i])} and {counted(r.columns[j])} are the least similar ({cell(i, j)})."
        )
    best = np.nan_to_num(s, nan=-np.inf).argmax(1)
    top = int(np.nanargmax(np.nan_to_num(s, nan=-np.inf).max(1)))
    last = with_interval(best_of_last(s), known.get("best match, top row"))
    return (
        f"{in_front(r.rows[top])} and {counted(r.columns[best[top]])} are the most similar "
        f"(CKA {cell(top, int(best[top]))}); the mean of all pairs is {mean}, and the best match of the first model's "
        f"last layer is {last}."
    )


NOTES = {
    "CKA": "As the papers print it: unbiased, summed over batches.",
    "CKA, calibrated": "Less what permuted images give, divided by 1 less that: 0 is chance, 1 is equal.",
    "p": "How often 99 permutations of the images, and the observed order, give at least the observed value.",
    "CKA, within class": "Features centered within each class: what is alike beyond the classes themselves.",
    "CKA, without outliers": "Without the 1 % of images and of channels that carry most of the variance.",
    "CKA, untrained": "The same layers before training: what the architecture alone makes alike.",
    "mutual neighbors": "Share of the 10 nearest images that two layers have in common.",
    "± of CKA": "Half of the 95 % interval over images.",
}


def other_ways(r: CKA) -> dict[str, Any]:
    """CKA in every other way that a result holds, by its name."""
    ways = ("calibrated", "within class", "without outliers", "untrained")
    return {f"CKA, {way}": r.way(way) for way in ways if r.has(way)}


def cka_payload(r: CKA, room: int) -> Payload:
    names = model_names(r) or [""]
    planes = {"CKA": r.similarity, **other_ways(r)}
    planes |= {"p": r.p} if r.p.size else {}
    planes["mutual neighbors"] = r.knn
    if np.isfinite(r.band).any():
        planes["± of CKA"] = r.band
    notes = {name: NOTES[name] for name in planes}
    marks, unit = layer_marks(r)
    axes = {"row": names[0], "column": names[-1], "marks": marks, "unit": unit}
    return heat_map(planes, (r.rows, r.columns), lower=True, notes=notes, **axes)


def layer_marks(r: CKA) -> tuple[list[list[tuple[float, str]]], str]:
    """Ticks of both axes by block, or by stage for a CNN, and what their numbers are."""
    rows, columns = _axis(r.row_stages, r.row_blocks), _axis(r.column_stages, r.column_blocks)
    staged = any(name.startswith("s") for name in (*rows[0], *columns[0]))
    unit = " and ".join(dict.fromkeys((rows[1], columns[1]))) + (", s for stage" if staged else "")
    return [block_marks(rows[0]), block_marks(columns[0])], unit


def _axis(stages: tuple[int, ...], blocks: tuple[int, ...]) -> tuple[list[str], str]:
    """The name of every layer's block or stage from 1, and what these names are. A hybrid has first s1 and so on."""
    encoder = [b for s, b in zip(stages, blocks) if s < 0 <= b]
    if max(stages, default=-1) >= 0 and encoder:
        names = [f"s{s + 1}" if s >= 0 else _number(b - min(encoder)) if b >= 0 else "" for s, b in zip(stages, blocks)]
        return names, "block"
    if max(stages, default=-1) >= 0 and max(stages) + 1 < len(set(blocks)):
        return list(map(_number, stages)), "stage"
    return list(map(_number, blocks)), "block"


def _number(index: int) -> str:
    return str(index + 1) if index >= 0 else ""


def cka_variant(r: CKA) -> str:
    pooled = r.how.get("tokens") in (("gap", "gap"), ["gap", "gap"])
    return f"{pair(r)}, average over positions" if pooled and pair(r) else pair(r)


LAYERS = View(
    of=CKA,
    heading="Similarity of layers (CKA)",
    sentence=cka_sentence,
    draw=draw_cka,
    size=(5.6, 4.8),
    paper=Paper(
        f"{RAGHU}, figures 1 and 2",
        "A ViT's layers are similar from bottom to top; a ResNet's fall into stages, and its lower half matches the "
        "lowest quarter of a ViT.",
    ),
    variant=cka_variant,
    payload=cka_payload,
)


def draw_heads(r: HeadSubsets, ax: Any) -> None:
    """CKA with lower layers of a CNN against the heads' distance (Raghu et al., figure 5)."""
    lines(ax, r.distance, r.similarity.T, r.columns)
    ax.set_xlabel("mean attention distance of the subset, pixels")
    ax.set_ylabel("CKA with the CNN's layer")
    ax.set_ylim(finite(r.similarity).min(initial=0), 1)
    legend(ax, len(r.columns))


def heads_sentence(r: HeadSubsets) -> str:
    numbers, ends = r.summary(), r.intervals()
    names = "most local subset, mean CKA", "most global subset, mean CKA", "rank correlation of CKA and distance, mean"
    near, far, rho = (with_interval(numbers[name], ends.get(name)) for name in names)
    return (
        f"The most local heads have a mean CKA of {near} with the CNN's lower layers, the most global {far}; "
        f"the rank correlation with distance is {rho}."
    )


HEAD_SUBSETS = View(
    of=HeadSubsets,
    heading="Local heads and the lower layers of a CNN (CKA)",
    sentence=heads_sentence,
    draw=draw_heads,
    size=(6.0, 3.8),
    paper=Paper(
        f"{RAGHU}, figure 5",
        "The more local the heads, the more similar their output is to the lower layers of a ResNet.",
    ),
)


def draw_block_similarity(r: BlockSimilarity, ax: Any) -> None:
    """CKA with the reference by depth, one line per model (Raghu et al., figure 12)."""
    lines(ax, r.depth, r.similarity, r.models, r.band)
    ax.set_xlabel("relative depth (0 first block, 1 last)")
    ax.set_ylabel("CKA with the reference")
    ax.set_ylim(finite(r.similarity).min(initial=0), 1)
    ax.legend(loc="best")


def block_similarity_sentence(r: BlockSimilarity) -> str:
    parts = []
    for name, row, half in zip(r.models, r.similarity, r.band):
        known = np.flatnonzero(np.isfinite(row))[[0, -1]]
        first, last = (with_interval(float(row[i]), ends(float(row[i]), float(half[i]), most=1.0)) for i in known)
        parts.append(f"{name}: CKA {first} in the first block, {last} in the last")
    return "; ".join(parts) + "."


BY_BLOCK = View(
    of=BlockSimilarity,
    heading="Similarity by block (CKA)",
    sentence=block_similarity_sentence,
    draw=draw_block_similarity,
    size=(6.0, 3.8),
    paper=Paper(
        f"{RAGHU}, figure 12",
        "With less training data, lower blocks stay the same and upper blocks change.",
        applies=lambda r: r.varied == "data",
    ),
)


def draw_what_if(r: WhatIf, figure: Any) -> None:
    """CKA of each layer with itself, and the accuracy, when a part is missing (compare Raghu et al., figure 8)."""
    left, right = panels(figure, 2, (3, 2))
    heat(left, r.similarity, label="CKA with the whole model", origin="upper")
    left.set_yticks(range(len(r.off)), [counted(name) for name in r.off])
    left.set_xticks(range(0, len(r.layers), 2), [str(i + 1) for i in range(0, len(r.layers), 2)])
    left.set_xlabel("block, first to last")
    left.set_ylabel("switched off")
    known = np.isfinite(r.whole)
    values = r.accuracy if known else r.agreement
    right.barh(range(len(r.off)), 100 * values, color=COLORS[0])
    if known:
        right.axvline(100 * r.whole, color=COLORS[1], linestyle="--", label="nothing switched off")
        right.legend(loc="lower right")
    right.set_xlabel("accuracy, %" if known else "same prediction as before, %")
    right.set_yticks(*((range(len(r.off)), [counted(name) for name in r.off]) if is_narrow() else ([],)))
    right.set_ylim(len(r.off) - 0.5, -0.5)
    right.set_xlim(0, 100)


def what_if_sentence(r: WhatIf) -> str:
    known = math.isfinite(r.whole)
    values, what = (r.accuracy, "accuracy") if known else (r.agreement, "agreement with the whole model")
    i, j = int(np.nanargmin(values)), int(np.nanargmax(values))
    start = (
        f"The accuracy of the whole model is {with_interval(r.whole, r.share_interval(r.whole), percent)}. "
        if known
        else ""
    )
    most, least = (
        with_interval(float(values[k]), r.share_interval(float(values[k])), percent, inside=True) for k in (i, j)
    )
    return (
        f"{start}Switching off {counted(r.off[i])} costs most ({what} {most}), switching off "
        f"{counted(r.off[j])} least ({least})."
    )


def what_if_payload(r: WhatIf, room: int) -> Payload:
    known = np.isfinite(r.whole)
    table = heat_map(
        {"CKA with the whole model": r.similarity},
        (tuple(map(counted, r.off)), r.layers),
        row="switched off",
        column="block, first to last",
        across=[((i - 0.5) / len(r.layers), str(i)) for i in equal_steps(len(r.layers), 12)],
    )
    bars = (r.accuracy if known else r.agreement).tolist()
    return {**table, "bars": bars, "bar": "accuracy" if known else "same prediction", "whole": float(r.whole)}


ABLATION = View(
    of=WhatIf,
    heading="What if a part were missing (ablation)",
    sentence=what_if_sentence,
    draw=draw_what_if,
    size=(8.6, 5.0),
    several_panels=True,
    paper=Paper(
        f"{RAGHU}, figure 8",
        "In a ViT trained without the skip connections of one block, layers before and after that block are no longer "
        "similar; here nothing is retrained.",
    ),
    payload=what_if_payload,
)


def draw_localization(r: Localization, ax: Any) -> None:
    """CKA of nine tokens with every input patch, their own positions framed (Raghu et al., figures 9 and 10)."""
    y, x = r.grid
    places = [(i, j) for i in sorted({0, y // 2, y - 1}) for j in sorted({0, x // 2, x - 1})]
    chosen = np.stack([r.maps[i * x + j] for i, j in places])
    columns = len({j for _, j in places})
    heat(ax, mosaic(chosen, columns), top=nice_top(r.maps), label="CKA with the input patch")
    ax.set_aspect("equal")
    for number, (i, j) in enumerate(places):
        row, column = divmod(number, columns)
        corner = (column * (x + 1) + j - 0.5, row * (y + 1) + i - 0.5)
        ax.add_patch(_frame(corner))
    bare(ax)
    ax.set_xlabel("nine tokens by position; each token's own patch is framed")


def _frame(corner: tuple[float, float]) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(corner, 1, 1, fill=False, edgecolor="#56b4e9", linewidth=1.2)


def localization_sentence(r: Localization) -> str:
    s = r.summary()
    ends = r.intervals() if len(s) > 1 else {}

    def one(name: str, show: Show = two_digits) -> str:
        return with_interval(s.get(name, math.nan), ends.get(name), show)

    return (
        f"{one('tokens most like their own patch', percent)} of the tokens of {counted(r.layer)} are most similar to "
        f"their own input patch (chance {percent(1 / len(r.maps))}); the mean CKA is "
        f"{one('CKA with the own patch, mean')} with their own patch and "
        f"{one('CKA with other patches, mean')} with the others."
    )


def localization_payload(r: Localization, room: int) -> Payload:
    return tiles(r.maps, r.grid, what="CKA with the input patch", about=f"token of {counted(r.layer)}")


LOCALIZATION = View(
    of=Localization,
    heading="Which position a token still represents (localization by CKA)",
    sentence=localization_sentence,
    draw=draw_localization,
    size=(5.4, 4.8),
    paper=Paper(
        f"{RAGHU}, figures 9 and 10",
        "Trained with a class token, a ViT's tokens stay localized up to the last block; those of a ResNet or of a "
        "GAP model do so less.",
    ),
    payload=localization_payload,
)


def draw_pooling_comparison(r: PoolingComparison, figure: Any) -> None:
    """Two models that differ in what their head reads: CKA and probes by block (Raghu et al., figures 10 and 11)."""
    left, right = panels(figure, 2)
    left.plot(range(1, len(r.by_block) + 1), r.by_block, marker="o", color=COLORS[0])
    left.set(xlabel="block, first to last", ylabel="CKA of the two", ylim=(finite(r.by_block).min(initial=0), 1))
    whole_numbers(left)
    if len(r.curves):
        lines(right, np.arange(1, r.accuracy.shape[1] + 1), 100 * r.accuracy, r.curves)
        right.legend(loc="best")
    right.set(xlabel="block, first to last", ylabel="accuracy of a linear probe, %", ylim=(0, 100))
    whole_numbers(right)


def pooling_sentence(r: PoolingComparison) -> str:
    numbers, known = r.summary(), r.intervals()
    low, last = (with_interval(numbers[name], known.get(name)) for name in BY_BLOCK_STATISTICS)
    halves = zip(r.own, r.own_half)
    own = [with_interval(float(x), ends(float(x), float(half), least=0.0, most=1.0), percent) for x, half in halves]
    return (
        f"The two models have a CKA of {low} in the lower half and {last} "
        f"in the last block; {own[0]} of the tokens are most similar to their own patch with a class "
        f"token, {own[1]} with average pooling."
    )


POOLING = View(
    of=PoolingComparison,
    heading="Class token or average pooling",
    sentence=pooling_sentence,
    draw=draw_pooling_comparison,
    size=(9.0, 4.0),
    narrow=6.0,
    several_panels=True,
    paper=Paper(
        f"{RAGHU}, figures 10, 11 and D.4",
        "Models trained with a class token and with average pooling agree up to the middle and differ at the end.",
    ),
)
