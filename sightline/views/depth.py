"""What changes with depth: receptive fields, skip against branch; and what is there before: filters, positions."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.biases import InductiveBias
from sightline.analysis.embeddings import PatchFilters, PositionSimilarity
from sightline.analysis.receptive_fields import ReceptiveField
from sightline.analysis.residual import ResidualRatios
from sightline.analysis.similarity.neighbors import NeighborSimilarity
from sightline.views.style import COLORS, LIKENESS, PALE, bare, finite, heat, mosaic, spread_out


def draw_receptive(r: ReceptiveField, figure: Any) -> None:
    """Maps through the depth (Raghu et al., figure 6), and the radii that hold half and nine tenths of each."""
    above, below = figure.subfigures(2, 1, height_ratios=(3, 4))
    chosen = spread_out(len(r.maps), 6)
    axes = above.subplots(1, len(chosen), squeeze=False)[0]
    for ax, i in zip(axes, chosen):
        small = pooled(r.maps[i])
        ax.imshow(np.sqrt(small / max(float(small.max()), 1e-300)), cmap=LIKENESS, vmin=0, vmax=1)
        bare(ax, f"block {i}")
    ax = below.subplots()
    depth = np.arange(len(r.maps))
    for j, share in enumerate((50, 90)):
        error = None if r.radii_error is None else finite(1.96 * r.radii_error[:, j])
        ax.errorbar(
            depth, r.radii[:, j], yerr=error, marker="o", color=COLORS[j], capsize=2, label=f"{share} % of the mass"
        )
    side = "before" if r.side == "before" else "behind"
    ax.set_xlabel(f"block, first to last ({side} the addition)")
    ax.set_ylabel("radius, pixels")
    ax.set_ylim(bottom=0)
    ax.legend(loc="best")


def pooled(field: NDArray, side: int = 112) -> NDArray:
    """A field at a size that a figure can show: sums over squares of pixels."""
    step = max(1, min(field.shape) // side)
    y, x = (s // step * step for s in field.shape)
    return np.asarray(field[:y, :x].reshape(y // step, step, x // step, step).sum((1, 3)))


def draw_residual(r: ResidualRatios, figure: Any) -> None:
    """Norm ratio of skip and branch: every token by addition, and class token against patches (figure 7)."""
    tokens = r.per_token.shape[2] > 0 and np.isfinite(r.per_token[0]).any()
    axes = figure.subplots(1, 2 if tokens else 1, squeeze=False)[0]
    if tokens:
        with np.errstate(all="ignore"):
            log = np.log10(r.per_token[0])
        shown = axes[0].imshow(log, cmap="cividis", aspect="auto", origin="upper")
        axes[0].set_xlabel("token (0: class token)" if np.isfinite(r.class_token[0]).any() else "token")
        axes[0].set_ylabel("addition, first to last")
        axes[0].spines[:].set_visible(False)
        figure.colorbar(shown, ax=axes[0], label="log₁₀ |skip| / |branch|", fraction=0.05, pad=0.02)
    ax = axes[-1]
    kinds = sorted(set(r.sublayers), key=r.sublayers.index)
    for i, kind in enumerate(kinds):
        rows = r.of(kind)
        where = "patches" if tokens else "locations"
        ax.plot(rows, r.ratio[rows], marker="o", color=COLORS[i], label=f"{where}, {kind}")
        if np.isfinite(r.class_token[0]).any():
            ax.plot(rows, r.class_token[0][rows], marker="s", linestyle="--", color=COLORS[i], label=f"class, {kind}")
    ax.set_yscale("log")
    for axis_formatter in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
        axis_formatter(lambda value, _: f"{value:.3g}")
    ax.set_xlabel("addition, first to last")
    ax.set_ylabel("|skip| / |branch|")
    ax.legend(loc="best")


def draw_inductive_bias(r: InductiveBias, ax: Any) -> None:
    """Every number of the report; errors of 0 mean that a property holds exactly."""
    numbers = {k: v for k, v in r.summary().items() if np.isfinite(v)}
    color = [COLORS[2] if k.startswith("locality") else COLORS[0] for k in numbers]
    ax.barh(range(len(numbers)), list(numbers.values()), color=color)
    ax.set_yticks(range(len(numbers)), list(numbers))
    ax.invert_yaxis()
    ax.set_xlabel("share of the mass (locality), relative error (others)")


def draw_neighbors(r: NeighborSimilarity, ax: Any) -> None:
    """Correlation of patches by distance; the line is that of patches of other images."""
    ax.plot(r.by_distance[:, 0], r.by_distance[:, 1], color=COLORS[0], label="patches of one image")
    if np.isfinite(r.across):
        ax.axhline(r.across, color=PALE, linestyle="--", label="same place of other images")
    ax.set_xlabel("distance, patches")
    ax.set_ylabel("correlation of pixels")
    ax.legend(loc="best")


def draw_filters(r: PatchFilters, ax: Any) -> None:
    """The first principal components of the patch filters, as small images (ViT, figure 7 left)."""
    c = r.components - r.components.mean((1, 2, 3), keepdims=True)
    c = 0.5 + 0.5 * c / np.maximum(np.abs(c).max((1, 2, 3), keepdims=True), 1e-12)
    c = c if c.shape[-1] == 3 else np.repeat(c[..., :1], 3, axis=-1)
    ax.imshow(np.nan_to_num(mosaic(c, 7), nan=1.0))
    bare(ax)
    ax.set_xlabel(f"{len(c)} components, {100 * r.explained.sum():.0f} % of the variance")


def draw_positions(r: PositionSimilarity, figure: Any) -> None:
    """One tile per patch (ViT, figure 7 middle), and the mean cosine by distance."""
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    rows, columns = r.tiles.shape[1:]
    keep = [i * columns + j for i in spread_out(rows, 8) for j in spread_out(columns, 8)]
    heat(left, mosaic(r.tiles[keep], len(spread_out(columns, 8))), label="cosine")
    left.set_aspect("equal")
    bare(left)
    left.set_xlabel("a tile per patch, at its place")
    right.plot(r.by_distance[:, 0], r.by_distance[:, 1], color=COLORS[0])
    right.axhline(0, color=PALE, linewidth=0.8)
    right.set_xlabel("distance, patches")
    right.set_ylabel("mean cosine of position embeddings")
