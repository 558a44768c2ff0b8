"""Views of filters and positions, of attention by position and content, of neighbors and of inductive biases."""

from typing import Any

import numpy as np

from sightline.analysis.attention.position_content import PARTS, SHOWN, PositionContent
from sightline.analysis.biases import InductiveBias
from sightline.analysis.embeddings import PatchFilters, PositionSimilarity
from sightline.analysis.similarity.neighbors import NeighborSimilarity
from sightline.views.payload import compress, plane, sprite, tiles
from sightline.views.style import (
    COLORS,
    PALE,
    SIMILARITY,
    bare,
    between,
    equal_steps,
    frame_cell,
    heat,
    is_narrow,
    map_rows,
    mosaic,
    panels,
    spread_out,
    whole_numbers,
)
from sightline.views.tokens import MAPS, outside_legend
from sightline.views.view import (
    VIT,
    Paper,
    Payload,
    Show,
    View,
    percent,
    two_digits,
    with_interval,
)


def draw_filters(r: PatchFilters, ax: Any) -> None:
    """The first principal components of the patch filters, as small images (ViT, figure 7 left)."""
    c = r.components - r.components.mean((1, 2, 3), keepdims=True)
    c = 0.5 + 0.5 * c / np.maximum(np.abs(c).max((1, 2, 3), keepdims=True), 1e-12)
    c = c if c.shape[-1] == 3 else np.repeat(c[..., :1], 3, axis=-1)
    ax.imshow(np.nan_to_num(mosaic(c, 7), nan=1.0))
    bare(ax)
    ax.set_xlabel(f"{len(c)} components, {100 * r.explained.sum():.0f} % of the variance")


def filters_sentence(r: PatchFilters) -> str:
    s = r.summary()
    return (
        f"{len(r.explained)} components explain {percent(s['variance explained'])} of the variance; "
        f"{percent(s['energy at low frequencies'])} of their energy is at low frequencies, against "
        f"{percent(s['energy at low frequencies, noise'])} for noise."
    )


PATCH_FILTERS = View(
    of=PatchFilters,
    heading="Patch filters (principal components)",
    sentence=filters_sentence,
    draw=draw_filters,
    size=(6.4, 4.0),
    paper=Paper(f"{VIT}, figure 7 left", "The first components look like a basis of smooth patterns."),
)


def draw_positions(r: PositionSimilarity, figure: Any) -> None:
    """One tile per patch (ViT, figure 7 middle), and the mean cosine by distance."""
    left, right = panels(figure, 2, (3, 2))
    rows, columns = r.tiles.shape[1:]
    keep = [i * columns + j for i in spread_out(rows, 8) for j in spread_out(columns, 8)]
    heat(left, mosaic(r.tiles[keep], len(spread_out(columns, 8))), label="cosine")
    left.set_aspect("equal")
    bare(left)
    left.set_xlabel("one tile per patch, at its position")
    right.plot(r.by_distance[:, 0], r.by_distance[:, 1], color=COLORS[0])
    right.axhline(0, color=PALE, linewidth=0.8)
    right.set_xlabel("distance, patches")
    right.set_ylabel("mean cosine of position embeddings")


def positions_sentence(r: PositionSimilarity) -> str:
    way = "falls" if r.decay < 0 else "does not fall"
    return (
        f"Similarity {way} with distance (rank correlation {r.decay:.2f}); within a row or column it "
        f"differs by {r.row_column:+.2f} from that of other pairs as far apart, and one sine wave per dimension "
        f"explains {percent(r.sinusoid)} of the embeddings."
    )


def positions_payload(r: PositionSimilarity, room: int) -> Payload:
    return tiles(r.tiles, (r.tiles.shape[1], r.tiles.shape[2]), what="cosine", about="position embedding")


POSITIONS = View(
    of=PositionSimilarity,
    heading="Position embeddings",
    sentence=positions_sentence,
    draw=draw_positions,
    size=(8.6, 4.4),
    narrow=6.2,
    several_panels=True,
    paper=Paper(
        f"{VIT}, figure 7 middle",
        "Closer patches have more similar embeddings, and so have patches of one row or column.",
    ),
    payload=positions_payload,
    figure_and_widget=True,
)


def draw_neighbors(r: NeighborSimilarity, ax: Any) -> None:
    """Correlation of patches by distance; the line is that of patches of other images."""
    ax.plot(r.by_distance[:, 0], r.by_distance[:, 1], color=COLORS[0], label="patches of one image")
    if np.isfinite(r.across):
        ax.axhline(r.across, color=PALE, linestyle="--", label="same position in other images")
    ax.set_xlabel("distance, patches")
    ax.set_ylabel("correlation of pixels")
    ax.legend(loc="best")


def neighbors_sentence(r: NeighborSimilarity) -> str:
    ends = r.intervals()
    near, far, other = (with_interval(value, ends.get(name)) for name, value in r.summary().items())
    found = f"The pixels of neighboring patches correlate at {near}, those of the farthest at {far}"
    return f"{found}, and those of patches of different images at {other}." if np.isfinite(r.across) else f"{found}."


NEIGHBORS = View(
    of=NeighborSimilarity,
    heading="Neighboring patches (correlation of pixels)",
    sentence=neighbors_sentence,
    draw=draw_neighbors,
    size=(6.0, 3.6),
)


def draw_inductive_bias(r: InductiveBias, ax: Any) -> None:
    """Every number of the summary; an error of 0 means that a property holds exactly."""
    numbers = {k: v for k, v in r.summary().items() if np.isfinite(v)}
    color = [COLORS[2] if k.startswith("locality") else COLORS[0] for k in numbers]
    ax.barh(range(len(numbers)), list(numbers.values()), color=color)
    ax.set_yticks(range(len(numbers)), list(numbers))
    ax.invert_yaxis()
    ax.set_xlabel("share of the mass (locality), relative error (others)", loc="right")


def inductive_bias_sentence(r: InductiveBias) -> str:
    ends, numbers = r.intervals(), r.summary()

    def one(name: str, show: Show = two_digits) -> str:
        return with_interval(numbers[name], ends.get(name), show)

    return (
        f"{one('locality of the first block', percent)} of the first block's receptive field lies within an eighth of "
        f"the image, {one('locality of the last block', percent)} of the last block's; a shift by one cell leaves an "
        f"equivariance error of {one('equivariance error')}, and shuffling the patches changes the pooled features by "
        f"{one('permutation error of pooled features')}."
    )


INDUCTIVE_BIAS = View(
    of=InductiveBias,
    heading="Inductive biases, measured",
    sentence=inductive_bias_sentence,
    draw=draw_inductive_bias,
    size=(7.0, 3.2),
)


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
