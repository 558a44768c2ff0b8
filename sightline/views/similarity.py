"""Likeness of layers: heat maps of CKA, head subsets, data scale, what-if, localization."""

from typing import Any

import numpy as np

from sightline.analysis.ablation import WhatIf
from sightline.analysis.attention.head_subsets import HeadSubsets
from sightline.analysis.similarity.block_similarity import BlockSimilarity
from sightline.analysis.similarity.cka import CKA
from sightline.analysis.similarity.localization import Localization
from sightline.analysis.similarity.pooling_comparison import PoolingComparison
from sightline.views.style import COLORS, bare, finite, heat, legend, lines, models_of, mosaic, nice_top


def draw_cka(r: CKA, ax: Any) -> None:
    """All pairs of layers, the first at the lower left (Raghu et al., figures 1 and 2)."""
    heat(ax, r.similarity, label="CKA", origin="lower")
    names = models_of(r)
    own = f" of {names[0]}" if names else ""
    other = f" of {names[-1]}" if names else ""
    ax.set_ylabel(f"layer{own}, first to last")
    ax.set_xlabel(f"layer{other}, first to last")


def draw_heads(r: HeadSubsets, ax: Any) -> None:
    """CKA with lower layers of a CNN against the heads' distance (Raghu et al., figure 5)."""
    lines(ax, r.distance, r.similarity.T, r.columns)
    ax.set_xlabel("mean attention distance of the subset, pixels")
    ax.set_ylabel("CKA with the CNN's layer")
    ax.set_ylim(finite(r.similarity).min(initial=0), 1)
    legend(ax, len(r.columns))


def draw_block_similarity(r: BlockSimilarity, ax: Any) -> None:
    """CKA with the reference by depth, one line per model (Raghu et al., figure 12)."""
    lines(ax, r.depth, r.similarity, r.models, r.band)
    ax.set_xlabel("relative depth (0 first block, 1 last)")
    ax.set_ylabel("CKA with the reference")
    ax.set_ylim(finite(r.similarity).min(initial=0), 1)
    ax.legend(loc="best")


def draw_what_if(r: WhatIf, figure: Any) -> None:
    """CKA of each layer with itself, and the accuracy, when a part is missing (compare Raghu et al., figure 8)."""
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    heat(left, r.similarity, label="CKA with the whole model", origin="upper")
    left.set_yticks(range(len(r.off)), r.off, fontsize=7 if len(r.off) > 16 else 8)
    left.set_xlabel("block, first to last")
    left.set_ylabel("switched off")
    known = np.isfinite(r.whole)
    values = r.accuracy if known else r.agreement
    right.barh(range(len(r.off)), 100 * values, color=COLORS[0])
    if known:
        right.axvline(100 * r.whole, color=COLORS[1], linestyle="--", label="nothing switched off")
        right.legend(loc="lower right")
    right.set_xlabel("accuracy, %" if known else "same answer as before, %")
    right.set_yticks([])
    right.set_ylim(len(r.off) - 0.5, -0.5)
    right.set_xlim(0, 100)


def draw_localization(r: Localization, ax: Any) -> None:
    """CKA of nine tokens with every input patch, the own place framed (Raghu et al., figures 9 and 10)."""
    y, x = r.grid
    places = [(i, j) for i in sorted({0, y // 2, y - 1}) for j in sorted({0, x // 2, x - 1})]
    tiles = np.stack([r.maps[i * x + j] for i, j in places])
    columns = len({j for _, j in places})
    heat(ax, mosaic(tiles, columns), top=nice_top(r.maps), label="CKA with the input patch")
    ax.set_aspect("equal")
    for number, (i, j) in enumerate(places):
        row, column = divmod(number, columns)
        corner = (column * (x + 1) + j - 0.5, row * (y + 1) + i - 0.5)
        ax.add_patch(_frame(corner))
    bare(ax)
    ax.set_xlabel("nine tokens by place; the own patch is framed")


def _frame(corner: tuple[float, float]) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(corner, 1, 1, fill=False, edgecolor="#56b4e9", linewidth=1.2)


def draw_pooling_comparison(r: PoolingComparison, figure: Any) -> None:
    """Twins that differ in what their head reads: likeness by block, probes by block (Raghu et al., figures 10, 11)."""
    left, right = figure.subplots(1, 2)
    left.plot(range(len(r.by_block)), r.by_block, marker="o", color=COLORS[0])
    left.set(xlabel="block, first to last", ylabel="CKA of the two", ylim=(finite(r.by_block).min(initial=0), 1))
    if len(r.curves):
        lines(right, np.arange(r.accuracy.shape[1]), 100 * r.accuracy, r.curves)
        right.legend(loc="best")
    right.set(xlabel="block, first to last", ylabel="accuracy of a linear probe, %", ylim=(0, 100))
