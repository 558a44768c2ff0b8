"""Where heads look, and where decisions come from: distances, maps on images, films."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.attention.distance import AttentionDistance
from sightline.analysis.attention.head_attention import HeadAttention
from sightline.analysis.attention.rollout import AttentionMaps
from sightline.analysis.pca import FeaturePCA
from sightline.analysis.saliency.attribution import Attribution
from sightline.analysis.saliency.faithfulness import ObjectMass
from sightline.analysis.saliency.object_focus import ObjectFocus
from sightline.views.style import COLORS, INK, LIKENESS, PALE, bare, finite, mosaic, spread_out

IMAGES = 6  # that a figure shows


def draw_distance(r: AttentionDistance, figure: Any) -> None:
    """Sorted heads of the outer blocks (Raghu et al., figure 3), and every head by depth (ViT, figures 7 and 11)."""
    left, right = figure.subplots(1, 2, sharey=True)
    for i, (block, heads) in enumerate(r.sorted_heads()):
        left.plot(range(1, len(heads) + 1), heads, marker="o", color=COLORS[i], label=f"block {block}")
    left.set_xlabel("heads, sorted")
    left.set_ylabel("mean attention distance, pixels")
    left.set_xticks(spread_out(r.pixels.shape[1], 8) and [1 + i for i in spread_out(r.pixels.shape[1], 8)])
    depth = np.repeat(np.arange(len(r.pixels)), r.pixels.shape[1])
    dots = right.scatter(
        depth,
        r.pixels.ravel(),
        c=r.prefix_mass.ravel(),
        cmap=LIKENESS,
        vmin=0,
        vmax=1,
        s=26,
        zorder=3,
        edgecolors=INK,
        linewidths=0.7,
    )
    right.set_xlabel("block, first to last")
    for ax in (left, right):
        ax.axhline(r.uniform, color=PALE, linestyle="--", zorder=0, label="looking everywhere alike")
        ax.set_ylim(0, max(r.uniform, finite(r.pixels).max(initial=0)) * 1.08)
    left.legend(loc="lower right")
    if r.prefix:
        figure.colorbar(dots, ax=right, label="attention on the class token", fraction=0.06, pad=0.02)


def enlarged(map_: NDArray, size: tuple[int, int]) -> NDArray[np.float64]:
    """A small map at the size of its image, smoothly."""
    from PIL import Image

    wide = Image.fromarray(np.asarray(map_, dtype=np.float32)).resize((size[1], size[0]), Image.Resampling.BICUBIC)
    return np.clip(np.asarray(wide, dtype=np.float64), 0, None)


def overlaid(image: NDArray, map_: NDArray) -> NDArray[np.float64]:
    """The image where the map is large, dark where it is small, as the ViT paper shows it (figure 6)."""
    weight = enlarged(map_, image.shape[:2])
    weight = weight / max(float(weight.max()), 1e-12)
    return np.asarray(image / 255.0 * (0.12 + 0.88 * weight[..., None]), dtype=np.float64)


def draw_maps(r: AttentionMaps, figure: Any) -> None:
    """Images and what was attended to (ViT, figures 6 and 14); for single heads, one column each."""
    if r.maps.ndim == 4:
        _head_maps(r, figure)
        return
    _pairs(r.images, r.maps, figure)


def _pairs(images: NDArray | None, maps: NDArray, figure: Any) -> None:
    count = min(IMAGES, len(maps))
    axes = figure.subplots(2 if images is not None else 1, count, squeeze=False)
    for i in range(count):
        if images is not None:
            axes[0, i].imshow(images[i])
            axes[1, i].imshow(overlaid(images[i], maps[i]))
        else:
            axes[0, i].imshow(maps[i], cmap=LIKENESS, vmin=0)
    for ax in axes.flat:
        bare(ax)
    figure.supxlabel("images above, what is attended to below" if images is not None else "one map per image")


def _head_maps(r: AttentionMaps, figure: Any) -> None:
    heads = spread_out(r.maps.shape[1], 6)
    rows = min(3, len(r.maps))
    axes = figure.subplots(rows, len(heads) + (r.images is not None), squeeze=False)
    for i in range(rows):
        start = 0
        if r.images is not None:
            axes[i, 0].imshow(r.images[i])
            start = 1
        for j, head in enumerate(heads):
            axes[i, start + j].imshow(r.maps[i, head], cmap=LIKENESS, vmin=0)
            if i == 0:
                axes[i, start + j].set_title(f"head {head}", fontsize=8)
    for ax in axes.flat:
        bare(ax, ax.get_title())


def draw_attribution(r: Attribution, figure: Any) -> None:
    """Where the evidence lies, and whether blurring it away hurts more than blurring anything."""
    above, below = figure.subfigures(2, 1, height_ratios=(3, 2))
    _pairs(r.images, r.maps, above)
    ax = below.subplots()
    names = ("deletion", "insertion", "deletion, random order", "insertion, random order")
    values = (r.deletion, r.insertion, r.deletion_random, r.insertion_random)
    for i, value in enumerate(values):
        error = value.std(ddof=1) / len(value) ** 0.5 if len(value) > 1 else 0
        ax.barh(i, value.mean(), xerr=1.96 * error, color=(COLORS[0], COLORS[1], PALE, PALE)[i])
    ax.set_yticks(range(4), names)
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.set_xlabel("mean probability of the class (low deletion and high insertion are good)")


def draw_object_mass(r: ObjectMass, ax: Any) -> None:
    """Mass on the object against its area, one dot per image; above the line it is looked at."""
    ax.plot((0, 1), (0, 1), color=PALE, linestyle="--", label="as much as its area")
    ax.scatter(r.area, r.mass, s=16, color=COLORS[0])
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="object's share of the area", ylabel="share of the map on the object")
    ax.legend(loc="lower right")


def draw_focus(r: ObjectFocus, ax: Any) -> None:
    """Mass on the object minus its area for each kind of map, mean and 95 % interval over images."""
    gains = [r.gain(method) for method in r.methods]
    at = range(len(gains))
    ax.barh(at, [g[0] for g in gains], xerr=finite([g[1] for g in gains]), color=COLORS[0], capsize=3)
    ax.axvline(0, color=PALE, linestyle="--")
    ax.set_yticks(at, list(r.methods))
    ax.invert_yaxis()
    ax.set_xlabel("share of the map on the object, minus the object's share of the area")


def draw_head_attention(r: HeadAttention, figure: Any) -> None:
    """Every head of every block, seen from the middle of the first image."""
    y, x = r.grid
    cell = (y // 2) * x + x // 2
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    left.imshow(r.images[0])
    high, wide = r.images.shape[1] / y, r.images.shape[2] / x
    from matplotlib.patches import Rectangle

    left.add_patch(
        Rectangle((cell % x * wide, cell // x * high), wide, high, fill=False, edgecolor=COLORS[5], linewidth=2)
    )
    bare(left, "seen from the framed patch")
    blocks, heads = r.attention.shape[1:3]
    tiles = r.attention[0, :, :, r.prefix + cell].reshape(blocks * heads, y, x) / 255
    right.imshow(mosaic(tiles, heads), cmap=LIKENESS, vmin=0, vmax=1)
    right.set_xticks([(i + 0.5) * (x + 1) - 1 for i in range(heads)], [str(i) for i in range(heads)])
    right.set_yticks([(i + 0.5) * (y + 1) - 1 for i in range(blocks)], [str(i) for i in range(blocks)])
    right.set_xlabel("head")
    right.set_ylabel("block")
    right.spines[:].set_visible(False)


def as_rgb(cells: NDArray, grid: tuple[int, int]) -> NDArray[np.float64]:
    """The first three components as a color image."""
    three = cells[:, :3]
    low, high = np.percentile(three, 2, axis=0), np.percentile(three, 98, axis=0)
    return np.asarray(np.clip((three - low) / np.maximum(high - low, 1e-9), 0, 1).reshape(*grid, 3), dtype=np.float64)


def draw_feature_pca(r: FeaturePCA, figure: Any) -> None:
    """The images, and the first three principal components of their cells through the depth."""
    layers = spread_out(len(r.layers), 8)
    rows = min(3, len(r.images))
    axes = figure.subplots(rows, len(layers) + 1, squeeze=False)
    for i in range(rows):
        axes[i, 0].imshow(r.images[i])
        for j, layer in enumerate(layers):
            axes[i, j + 1].imshow(as_rgb(r.cells(i, layer), r.grids[layer]))
            if i == 0:
                axes[i, j + 1].set_title(f"block {layer}", fontsize=8)
    for ax in axes.flat:
        bare(ax, ax.get_title())
