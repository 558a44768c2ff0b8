"""Views of attention: distance, maps on images, every head of every block."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.attention.distance import AttentionDistance, of_heads
from sightline.analysis.attention.head_attention import OWN, PEAK, HeadAttention
from sightline.analysis.attention.rollout import AttentionMaps
from sightline.evals.interval import of_mean, over_groups
from sightline.views.payload import compress, maps_on_images, plane, sprite
from sightline.views.style import (
    COLORS,
    INK,
    PALE,
    SIMILARITY,
    bare,
    equal_steps,
    finite,
    in_a_row,
    is_narrow,
    mosaic,
    panels,
    spread_out,
    whole_numbers,
)
from sightline.views.view import RAGHU, VIT, Paper, Payload, View, captions, pair, percent, pixels, with_interval

IMAGES = 6  # that a figure shows


def draw_distance(r: AttentionDistance, figure: Any) -> None:
    """Sorted heads of the outer blocks (Raghu et al., figure 3), and every head by depth (ViT, figures 7 and 11)."""
    left, right = panels(figure, 2, share_y=True)
    for i, (block, heads) in enumerate(r.sorted_heads()):
        left.plot(range(1, len(heads) + 1), heads, marker="o", color=COLORS[i], label=f"block {block + 1}")
    left.set_xlabel("heads, sorted")
    left.set_ylabel("mean attention distance, pixels")
    left.set_xticks(equal_steps(r.pixels.shape[1], 8))
    depth = np.repeat(np.arange(1, len(r.pixels) + 1), r.pixels.shape[1])
    dots = right.scatter(
        depth,
        r.pixels.ravel(),
        c=r.prefix_mass.ravel(),
        cmap=SIMILARITY,
        vmin=0,
        vmax=1,
        s=26,
        zorder=3,
        edgecolors=INK,
        linewidths=0.7,
    )
    right.set(xlabel="block, first to last", ylabel="distance, pixels" if is_narrow() else "")
    for ax in (left, right):
        ax.axhline(r.uniform, color=PALE, linestyle="--", zorder=0, label="uniform attention")
        ax.set_ylim(0, max(r.uniform, finite(r.pixels).max(initial=0)) * 1.08)
    whole_numbers(right)
    where = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0)} if is_narrow() else {"loc": "best"}
    left.legend(**where)
    if r.prefix:
        alone = r.prefix == 1 and not any(m.pool == "gap" for m in r.about.models)
        spent = f"attention on {'the class token' if alone else 'prefix tokens'}"
        figure.colorbar(dots, ax=right, label=spent, fraction=0.06, pad=0.02)


def distance_sentence(r: AttentionDistance) -> str:
    known = r.pixels[np.isfinite(r.pixels)]
    none = r.pixels.size - known.size
    without = (
        f" {none} of {r.pixels.size} heads spend all attention on prefix tokens and have no distance." if none else ""
    )
    if not known.size:
        return without.strip()
    part = r.pixels, r.replicates
    far = with_interval(r.beyond(), over_groups(r.beyond, part, step=1 / known.size, least=0.0, most=1.0), percent)
    return (
        f"The heads' mean attention distance lies between {_range(r, 0)} in the first block, and between "
        f"{_range(r, -1)} in the last; uniform attention would give {r.uniform:.0f}. {far} of all heads exceed two "
        f"thirds of that.{without}"
    )


def _range(r: AttentionDistance, block: int) -> str:
    """The most local and the most global head of a block, each with its interval over images."""

    def one(what: Any) -> str:
        ends = over_groups(lambda x: of_heads(what, x[block]), (r.pixels, r.replicates), least=0.0)
        return with_interval(of_heads(what, r.pixels[block]), ends, pixels)

    return f"{one(np.min)} and {one(np.max)} pixels"


DISTANCE = View(
    of=AttentionDistance,
    heading="Attention distance",
    sentence=distance_sentence,
    draw=draw_distance,
    size=(9.0, 4.0),
    several_panels=True,
    narrow=7.0,
    paper=Paper(
        f"{VIT}, figure 7; {RAGHU}, figure 3",
        "Lower blocks mix local and global heads; in upper blocks all heads are global.",
    ),
)


def enlarge(map_: NDArray, size: tuple[int, int]) -> NDArray[np.float64]:
    """A small map at the size of its image, smoothly."""
    from PIL import Image

    wide = Image.fromarray(np.asarray(map_, dtype=np.float32)).resize((size[1], size[0]), Image.Resampling.BICUBIC)
    return np.clip(np.asarray(wide, dtype=np.float64), 0, None)


def overlay(image: NDArray, map_: NDArray) -> NDArray[np.float64]:
    """The image where the map is large, dark where it is small, as the ViT paper shows it (figure 6)."""
    weight = enlarge(map_, image.shape[:2])
    weight = weight / max(float(weight.max()), 1e-12)
    return np.asarray(image / 255.0 * (0.12 + 0.88 * weight[..., None]), dtype=np.float64)


def draw_maps(r: AttentionMaps, figure: Any) -> None:
    """Images and attention on them (ViT, figures 6 and 14); for single heads, one column each."""
    if r.maps.ndim == 4:
        _draw_head_maps(r, figure)
        return
    draw_on_images(r.images, r.maps, figure)


def draw_on_images(images: NDArray | None, maps: NDArray, figure: Any) -> None:
    """Images above, the same weighted by their maps below; without images, the maps."""
    count = min(in_a_row(IMAGES), len(maps))
    axes = figure.subplots(2 if images is not None else 1, count, squeeze=False)
    for i in range(count):
        if images is not None:
            axes[0, i].imshow(images[i])
            axes[1, i].imshow(overlay(images[i], maps[i]))
        else:
            axes[0, i].imshow(maps[i], cmap=SIMILARITY, vmin=0)
    for ax in axes.flat:
        bare(ax)
    figure.supxlabel("images above, weighted by their maps below" if images is not None else "one map per image")


def _draw_head_maps(r: AttentionMaps, figure: Any) -> None:
    heads = spread_out(r.maps.shape[1], 6)
    rows = min(3, len(r.maps))
    axes = figure.subplots(rows, len(heads) + (r.images is not None), squeeze=False)
    for i in range(rows):
        start = 0
        if r.images is not None:
            axes[i, 0].imshow(r.images[i])
            start = 1
        for j, head in enumerate(heads):
            axes[i, start + j].imshow(r.maps[i, head], cmap=SIMILARITY, vmin=0)
            if i == 0:
                axes[i, start + j].set_title(f"head {head + 1}")
    for ax in axes.flat:
        bare(ax, ax.get_title())


def maps_sentence(r: AttentionMaps) -> str:
    each = r.top_tenth()
    most = with_interval(float(each.mean()), of_mean(each, least=0.0, most=1.0), percent)
    return f"The tenth of the patches that receives most gets {most} of the attention."


ROLLOUTS = {"gradient": "gradient rollout", "with identity": "rollout with the identity"}


def maps_variant(r: AttentionMaps) -> str:
    """The kind of rollout, or the block whose heads are shown."""
    if isinstance(kind := r.how.get("kind"), str):
        return ROLLOUTS.get(kind, f"rollout {kind}")
    return f"heads of block {r.how['block'] + 1}" if isinstance(r.how.get("block"), int) else pair(r)


def maps_payload(r: AttentionMaps, room: int) -> Payload | None:
    return maps_on_images(r.maps, r.images, captions(r, len(r.maps)))


MAPS = View(
    of=AttentionMaps,
    heading="Attention on images",
    sentence=maps_sentence,
    draw=draw_maps,
    size=(8.6, 3.6),
    several_panels=True,
    paper=Paper(f"{VIT}, figures 6 and 14", "Attention rollout highlights the regions that matter for the class."),
    variant=maps_variant,
    payload=maps_payload,
)


def draw_head_attention(r: HeadAttention, figure: Any) -> None:
    """Every head of every block, from the middle patch of the first image."""
    y, x = r.grid
    cell = (y // 2) * x + x // 2
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    left.imshow(r.images[0])
    high, wide = r.images.shape[1] / y, r.images.shape[2] / x
    from matplotlib.patches import Rectangle

    left.add_patch(
        Rectangle((cell % x * wide, cell // x * high), wide, high, fill=False, edgecolor=COLORS[5], linewidth=2)
    )
    bare(left, "attention from the framed patch")
    blocks, heads = r.attention.shape[1:3]
    tiles = r.attention[0, :, :, r.prefix + cell].reshape(blocks * heads, y, x) / 255
    right.imshow(mosaic(tiles, heads), cmap=SIMILARITY, vmin=0, vmax=1)
    right.set_xticks([(i + 0.5) * (x + 1) - 1 for i in range(heads)], [str(i + 1) for i in range(heads)])
    right.set_yticks([(i + 0.5) * (y + 1) - 1 for i in range(blocks)], [str(i + 1) for i in range(blocks)])
    right.set_xlabel("head")
    right.set_ylabel("block")
    right.spines[:].set_visible(False)


def head_attention_sentence(r: HeadAttention) -> str:
    numbers, ends = r.summary(), r.intervals()
    own, most = (with_interval(numbers[name], ends.get(name), percent) for name in (OWN, PEAK))
    n, blocks, heads = r.attention.shape[:3]
    return (
        f"{blocks} blocks of {heads} heads on {n} image{'s' * (n > 1)}; {own} of the heads attend most to "
        f"their own patch, and the most attended patch receives {most} of the attention on average."
    )


def head_attention_payload(r: HeadAttention, room: int) -> Payload:
    """As many images as there is room for, at least one."""
    kept = len(r.attention)
    coarse = (np.round(r.attention / 5.0) * 5).astype(np.uint8)  # 52 shades are enough for the eye, and pack better
    data = compress(coarse.tobytes())
    while len(data) > room * 4 / 3 and kept > 1:
        kept -= 1
        data = compress(coarse[:kept].tobytes())
    return {
        "widget": "headAttention",
        "images": sprite(r.images[:kept]),
        "captions": captions(r, kept),
        "shape": (kept, *r.attention.shape[1:]),
        "data": data,
        "peaks": plane(r.peaks[:kept].astype(np.float64), bits=16),
        "grid": r.grid,
        "prefix": r.prefix,
        "notice": "" if kept == len(r.attention) else f"{kept} of {len(r.attention)} images fit on this page.",
    }


HEAD_ATTENTION = View(
    of=HeadAttention,
    heading="Where each head attends",
    sentence=head_attention_sentence,
    draw=draw_head_attention,
    size=(8.0, 5.6),
    several_panels=True,
    paper=Paper(f"{VIT}, figure 6", "Heads attend to the regions that matter for the class."),
    payload=head_attention_payload,
)
