"""Views of what changes with depth: features, receptive fields, skips."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.pca import FeaturePCA
from sightline.analysis.receptive_fields import ReceptiveField
from sightline.analysis.residual import MEDIAN, TAKE_OVER, ResidualRatios
from sightline.evals.interval import over_groups
from sightline.views.payload import compress, plane, sprite
from sightline.views.style import (
    COLORS,
    SIMILARITY,
    bare,
    finite,
    in_a_row,
    is_narrow,
    legend_above,
    panels,
    spread_out,
    whole_numbers,
)
from sightline.views.view import (
    RAGHU,
    Paper,
    Payload,
    View,
    captions,
    counted,
    crossing,
    in_front,
    one_digit,
    pair,
    percent,
    pixels,
    whole,
    with_interval,
)

FIELD = 96  # pixels along an axis of a receptive field on the page


def as_rgb(cells: NDArray, grid: tuple[int, int]) -> NDArray[np.float64]:
    """The first three components as a color image."""
    three = cells[:, :3]
    low, high = np.percentile(three, 2, axis=0), np.percentile(three, 98, axis=0)
    return np.asarray(np.clip((three - low) / np.maximum(high - low, 1e-9), 0, 1).reshape(*grid, 3), dtype=np.float64)


def draw_feature_pca(r: FeaturePCA, figure: Any) -> None:
    """The images, and the first three principal components of their cells by depth."""
    layers = spread_out(len(r.layers), 8)
    rows = min(3, len(r.images))
    axes = figure.subplots(rows, len(layers) + 1, squeeze=False)
    for i in range(rows):
        axes[i, 0].imshow(r.images[i])
        for j, layer in enumerate(layers):
            axes[i, j + 1].imshow(as_rgb(r.cells(i, layer), r.grids[layer]))
            if i == 0:
                axes[i, j + 1].set_title(f"block {layer + 1}")
    for ax in axes.flat:
        bare(ax, ax.get_title())


def feature_pca_sentence(r: FeaturePCA) -> str:
    ends, numbers = r.intervals(), r.summary()
    each = [with_interval(value, ends.get(name), inside=True) for name, value in numbers.items()]
    low, high = r.change()
    way = "more similar" if low > 0 else "less similar" if high < 0 else "not shown to be more or less similar"
    shown = f"The components shown explain at least {percent(float(r.explained.min()))} of the variance."
    if len(each) == 1:
        return f"Cells of the same image have a mean cosine of {each[0]} after the only block. {shown}"
    ends_said = f"after the last block (mean cosine {each[-1]}) than after the first ({each[0]})"
    return f"Cells of the same image are {way} {ends_said}. {shown}"


def feature_pca_payload(r: FeaturePCA, room: int) -> Payload:
    return {
        "widget": "featurePca",
        "images": sprite(r.images),
        "captions": captions(r, len(r.images)),
        "shape": r.features.shape,
        "data": compress(r.features.tobytes()),
        "grids": r.grids,
        "names": [in_front(name) for name in r.layers],
    }


FEATURE_PCA = View(
    of=FeaturePCA,
    heading="An image on its way through the network (PCA of features)",
    sentence=feature_pca_sentence,
    draw=draw_feature_pca,
    size=(9.0, 3.6),
    several_panels=True,
    payload=feature_pca_payload,
)


def draw_receptive(r: ReceptiveField, figure: Any) -> None:
    """Maps by depth (Raghu et al., figure 6), and the radii that hold 50 % and 90 % of their mass."""
    above, below = (None, figure) if is_narrow() else figure.subfigures(2, 1, height_ratios=(3, 4))
    if above is not None:
        _fields(r, above)
    ax = below.subplots()
    depth = np.arange(1, len(r.maps) + 1)
    for j, share in enumerate((50, 90)):
        error = finite(np.abs([r.interval(i, j) for i in range(len(r.maps))] - r.radii[:, j, None])).T
        ax.errorbar(
            depth, r.radii[:, j], yerr=error, marker="o", color=COLORS[j], capsize=2, label=f"{share} % of the mass"
        )
    side, gap = "before" if before_addition(r) else "after", "\n" if is_narrow() else " "
    ax.set_xlabel(f"block, first to last{gap}({side} the residual addition)")
    whole_numbers(ax)
    ax.set_ylabel("radius, pixels")
    ax.set_ylim(bottom=0)
    ax.legend(loc="best")


def _fields(r: ReceptiveField, figure: Any) -> None:
    chosen = spread_out(len(r.maps), in_a_row(6))
    axes = figure.subplots(1, len(chosen), squeeze=False)[0]
    for ax, i in zip(axes, chosen):
        small = coarse_field(r.maps[i])
        ax.imshow(np.sqrt(small / max(float(small.max()), 1e-300)), cmap=SIMILARITY, vmin=0, vmax=1)
        bare(ax, f"block {i + 1}")


def coarse_field(field: NDArray, side: int = 112) -> NDArray:
    """A field at a size that a figure can show: sums over squares of pixels."""
    step = max(1, min(field.shape) // side)
    y, x = (s // step * step for s in field.shape)
    return np.asarray(field[:y, :x].reshape(y // step, step, x // step, step).sum((1, 3)))


def before_addition(r: ReceptiveField) -> bool:
    """Whether only the branch was followed, without the skip connection."""
    return bool(r.side == "before")


def receptive_sentence(r: ReceptiveField) -> str:
    width = r.maps.shape[2]
    first, last = (with_interval(float(r.radii[i, 0]), r.interval(i, 0), pixels) for i in (0, -1))
    own = [with_interval(float(r.own[i]), r.interval(i, 2), percent) for i in (0, -1)]
    return (
        f"Half of the receptive field lies within {first} pixels of the token in the first block and within {last} in "
        f"the last (the image is {width} pixels wide); the token's own cell holds {own[0]} of it in the first block "
        f"and {own[1]} in the last."
    )


def receptive_payload(r: ReceptiveField, room: int) -> Payload:
    step = max(1, -(-max(r.maps.shape[1:]) // FIELD))
    y, x = (s // step * step for s in r.maps.shape[1:])
    small = r.maps[:, :y, :x].reshape(len(r.maps), y // step, step, x // step, step).sum((2, 4))
    small = np.sqrt(small / np.maximum(small.max((1, 2), keepdims=True), 1e-300))
    return {
        "widget": "stack",
        "names": r.names,
        "radii": r.radii.tolist(),
        "own": r.own.tolist(),
        "width": r.maps.shape[2],
        "centers": (r.centers / np.array(r.maps.shape[1:])).tolist(),
        **plane(small, bits=8),
    }


RECEPTIVE_FIELD = View(
    of=ReceptiveField,
    heading="Effective receptive fields",
    sentence=receptive_sentence,
    draw=draw_receptive,
    size=(8.6, 5.0),
    narrow=2.9,
    several_panels=True,
    paper=Paper(
        f"{RAGHU}, figures 6 and C.1 to C.4",
        "A ViT's receptive fields are large from the first blocks on; after the residual addition a token's own patch "
        "dominates.",
    ),
    variant=lambda r: "before the residual addition" if before_addition(r) else pair(r),
    payload=receptive_payload,
    figure_and_widget=True,
)


def draw_residual(r: ResidualRatios, figure: Any) -> None:
    """Norm ratio of skip and branch: every token by addition, and class token against patches (figure 7)."""
    tokens = r.per_token.shape[2] > 0 and np.isfinite(r.per_token[0]).any()
    axes = panels(figure, 2 if tokens else 1)
    if not np.isfinite(r.ratio).any():  # an untrained network whose branches start at zero: axes would show nothing
        axes[0].set_axis_off()
        axes[0].text(0.5, 0.5, "no addition has a ratio", transform=axes[0].transAxes, ha="center", va="center")
        return
    if tokens:
        with np.errstate(all="ignore"):
            log = np.log10(r.per_token[0])
        ends = (0.5, log.shape[1] + 0.5, log.shape[0] + 0.5, 0.5)
        shown = axes[0].imshow(log, cmap="cividis", aspect="auto", origin="upper", extent=ends)
        axes[0].set_xlabel("token (the first: class token)" if np.isfinite(r.class_token[0]).any() else "token")
        axes[0].set_ylabel("addition, first to last")
        whole_numbers(axes[0])
        axes[0].spines[:].set_visible(False)
        figure.colorbar(shown, ax=axes[0], label="log₁₀ |skip| / |branch|", fraction=0.05, pad=0.02)
    ax = axes[-1]
    kinds = sorted(set(r.sublayers), key=r.sublayers.index)
    for i, kind in enumerate(kinds):
        rows = r.of(kind)
        where = "patches" if tokens else "locations"
        at = np.asarray(rows) + 1
        ax.plot(at, r.ratio[rows], marker="o", color=COLORS[i], label=f"{where}, {kind}")
        if np.isfinite(r.class_token[0]).any():
            ax.plot(at, r.class_token[0][rows], marker="s", linestyle="--", color=COLORS[i], label=f"class, {kind}")
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    ax.yaxis.set_minor_formatter(lambda value, _: f"{value:.3g}" if f"{value:.0e}"[0] in "25" else "")
    ax.set_xlabel("addition, first to last")
    whole_numbers(ax)
    ax.set_ylabel("|skip| / |branch|")
    legend_above(ax)


def residual_sentence(r: ResidualRatios) -> str:
    if np.isnan(r.ratio).all():
        why = next(iter(r.reasons.values()), "no reason is known")
        return f"None of the {len(r.names)} additions has a ratio of skip to branch ({why})."
    i = int(np.nanargmax(r.ratio))
    numbers, ends = r.summary(), r.intervals()
    ratio = with_interval(numbers[MEDIAN], ends.get(MEDIAN), one_digit)
    most = with_interval(float(r.ratio[i]), over_groups(lambda x: float(x[i]), r.part(0), least=0.0), one_digit)
    text = (
        f"What a skip connection carries has {ratio} times the norm of what its branch adds (median of all additions); "
        f"at {counted(r.names[i])}, where it is most, {most} times"
    )
    if not r.has_class_token:
        return text + "."
    above = r.class_minus_patches() > 0
    count = over_groups(lambda c, p: float((c > p).sum()), r.part(1), r.part(0), step=1.0, least=0, most=len(above))
    many = with_interval(float(above.sum()), count, whole)
    text += f". The ratio is larger for the class token than for patches at {many} of {len(above)} additions"
    if np.isfinite(numbers[TAKE_OVER]):
        text += f", and falls below theirs {crossing(numbers[TAKE_OVER], ends.get(TAKE_OVER))}"
    return text + "."


RESIDUAL = View(
    of=ResidualRatios,
    heading="What the skip connections carry (norm ratios)",
    sentence=residual_sentence,
    draw=draw_residual,
    size=(9.0, 4.0),
    narrow=lambda r: 6.4 if r.per_token.shape[2] else 3.4,
    several_panels=True,
    paper=Paper(
        f"{RAGHU}, figures 7, E.1, E.2",
        "The class token passes through the skip connections in lower blocks and is rewritten in upper blocks; patch "
        "tokens do the reverse.",
    ),
)
