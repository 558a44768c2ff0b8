"""The view of attention by position and by content."""

from typing import Any

import numpy as np

from sightline.analysis.attention.position_content import PARTS, SHOWN, PositionContent
from sightline.views.payload import compress, plane, sprite
from sightline.views.style import (
    COLORS,
    SIMILARITY,
    bare,
    between,
    equal_steps,
    frame_cell,
    is_narrow,
    map_rows,
    panels,
    whole_numbers,
)
from sightline.views.tokens import MAPS, outside_legend
from sightline.views.view import Paper, Payload, View, percent


def draw_split(r: PositionContent, figure: Any) -> None:
    """Shares by block and position by head above; attention and its parts from one patch below."""
    above, below = (figure, None) if is_narrow() else figure.subfigures(2, 1, height_ratios=(3, 2))
    left, right = panels(above, 2)
    bottom = np.zeros(r.total.shape[0])
    for name, share, color in zip(PARTS, r.by_block(), (COLORS[0], COLORS[1], COLORS[4])):
        left.bar(np.arange(1, len(share) + 1), share, bottom=bottom, color=color, label=name)
        bottom = bottom + share
    left.set(
        xlabel="block",
        ylabel="share of the logits' variance",
        ylim=(0, 1),
        xticks=equal_steps(len(bottom), MAPS),
    )
    outside_legend(left)
    blocks, heads = r.total.shape
    right.scatter(np.repeat(np.arange(1, blocks + 1), heads), r.share[0].ravel(), color=COLORS[0], s=22)
    right.set(xlabel="block", ylabel="share of position, one dot per head", ylim=(-0.03, 1.03))
    whole_numbers(right)
    if below is not None:
        _one_head(r, below)


def _one_head(r: PositionContent, figure: Any) -> None:
    block, head = r.most_positional()
    axes = map_rows(figure, 4, 1)[0]
    axes[0].imshow(r.image)
    cell = (r.grid[0] // 2) * r.grid[1] + r.grid[1] // 2
    frame_cell(axes[0], cell, r.grid, r.image.shape[:2])
    for i, name in enumerate(SHOWN):
        axes[i + 1].imshow(r.maps[i, block, head, cell].reshape(r.grid), cmap=SIMILARITY, vmin=0, vmax=255)
        frame_cell(axes[i + 1], cell, r.grid, r.grid, offset=0.5)
        bare(axes[i + 1], name)
    bare(axes[0], f"block {block + 1}, head {head + 1}")


def split_sentence(r: PositionContent) -> str:
    each = np.maximum(r.by_block(), 0.0)  # an unbiased estimate of a share can lie below 0
    most = int(each[0].argmax())
    block, head = r.most_positional()
    half = r.band() if len(r.replicates) else np.full(each.shape, np.nan)
    places = (0, 0), (0, most), (0, -1), (1, -1)
    first, top, last, key = (
        percent(float(each[at])) + between(float(each[at]), float(half[at]), percent, most=1) for at in places
    )
    share, wide = float(r.share[0, block, head]), float(r.head_band()[0, block, head])
    one = percent(share) + between(share, wide, percent, most=1)
    return (
        f"Position explains {first} of the variance of attention logits in the first block, {last} in the last, and "
        f"{top} at most (block {most + 1}). What an image adds to a key, regardless of the query, explains {key} in "
        f"the last block. The most positional is head {head + 1} of block {block + 1}: {one}."
    )


def split_payload(r: PositionContent, room: int) -> Payload | None:
    """The widget of the heads, with the parts of attention in the place of images, in as many shades as there is room
    for; nothing if there is none, the figure shows the shares."""
    packed = (compress((np.round(r.maps / step) * step).astype(np.uint8).tobytes()) for step in (5.0, 15.0, 51.0))
    data = next((text for text in packed if len(text) <= room * 4 / 3), None)
    if data is None:
        return None
    return {
        "widget": "headAttention",
        "images": sprite(np.stack([r.image] * len(SHOWN))),
        "shape": r.maps.shape,
        "data": data,
        "peaks": plane(r.peaks.astype(np.float64), bits=16),
        "grid": r.grid,
        "prefix": 0,
        "labels": [name[:1].upper() + name[1:] for name in SHOWN],
        "notice": "The image slider switches from attention to position alone and to content alone.",
    }


SPLIT = View(
    of=PositionContent,
    heading="Attention by position and by content",
    sentence=split_sentence,
    draw=draw_split,
    size=(9.0, 5.2),
    narrow=6.2,
    several_panels=True,
    paper=Paper(
        "Doshi et al. 2026, by a related decomposition of tokens",
        "Attention works mostly through content; heads specialize in position, in content, or in both.",
    ),
    payload=split_payload,
    figure_and_widget=True,
)
