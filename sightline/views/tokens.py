"""Views of single tokens: outliers and attention sinks, the logit lens, activation patching."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.tokens.logit_lens import LogitLens
from sightline.analysis.tokens.outliers import OutlierTokens
from sightline.analysis.tokens.patching import TAKE_OVER, ActivationPatching
from sightline.evals.interval import half_width, wilson
from sightline.views.payload import film
from sightline.views.style import (
    COLORS,
    INK,
    PALE,
    SIMILARITY,
    banded,
    bare,
    between,
    equal_steps,
    heat,
    in_a_row,
    is_narrow,
    map_rows,
    nice_top,
    panels,
    spread_out,
)
from sightline.views.view import (
    Paper,
    Payload,
    Show,
    View,
    captions,
    counted,
    in_front,
    one_digit,
    pair,
    percent,
    whole,
    with_interval,
)

FILMED = 8  # images of a film on the page
MAPS = 7  # maps in a row of a figure


def places_axis(ax: Any, places: Sequence[str]) -> None:
    """The places of the residual stream along the bottom, as many labels as fit."""
    shown = spread_out(len(places), MAPS)
    ax.set_xticks(
        shown, [counted(places[i]).removeprefix("block ") if "." not in places[i] else str(i + 1) for i in shown]
    )
    ax.set_xlabel("after block" if places[0] == "input" else "after unit")


def outside_legend(ax: Any) -> None:
    """A legend beside the axes, or above them on a narrow figure."""
    if is_narrow():
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0))
    else:
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def place_title(place: str) -> str:
    """A place as the title of a map: "block 3", or of a CNN's "layer4.2" "unit 3"."""
    last = place.split(".")[-1]
    return f"unit {int(last) + 1}" if last.isdigit() else counted(place).split(".")[-1]


def counted_ticks(count: int, most: int) -> tuple[list[int], list[str]]:
    """Positions of a heat map's rows or columns, and their numbers from 1."""
    shown = [i - 1 for i in equal_steps(count, most)]
    return shown, [str(i + 1) for i in shown]


def draw_outliers(r: OutlierTokens, figure: Any) -> None:
    """Norms by depth and who receives attention above; norms of single images where outliers are most below."""
    above, below = (figure, None) if is_narrow() else figure.subfigures(2, 1, height_ratios=(3, 2))
    left, middle, right = panels(above, 3, (3, 3, 2))
    at = np.arange(len(r.places))
    bands = r.norm_band if len(r.norm_band) else np.full((len(at), 3), np.nan)
    banded(left, at, r.typical, bands[:, 0], marker="o", color=COLORS[0], label="patches, median")
    banded(left, at, r.largest, bands[:, 1], marker="o", color=COLORS[1], label="patches, largest")
    for i, norm in enumerate(r.prefix_norm.T[:2]):
        left.plot(at, norm, linestyle="--", color=COLORS[2 + i], label=r.groups[i])
    left.set_ylim(bottom=0)
    left.set_ylabel("norm, mean over images")
    places_axis(left, r.places)
    left.legend(loc="best")
    bottom = np.zeros(len(r.mass))
    for i, (name, share) in enumerate(zip(r.groups, r.mass.T)):
        color = PALE if name == "other patches" else COLORS[(2 + i) % len(COLORS)]
        color = COLORS[1] if name == "outlier patches" else color
        middle.bar(np.arange(1, len(share) + 1), share, bottom=bottom, color=color, label=name)
        bottom = bottom + share
    middle.set(xlabel="block", ylabel="share of attention received", ylim=(0, 1))
    middle.set_xticks(equal_steps(len(r.mass), MAPS))
    middle.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    top = r.top_channels(6)
    right.barh(range(len(top)), [share for _, share in top], color=COLORS[0])
    right.set_yticks(range(len(top)), [str(channel) for channel, _ in top])
    right.invert_yaxis()
    right.set_xlabel("share of squared norm")
    right.set_ylabel(f"channel, {counted(r.places[r.peak])}")
    if below is not None:
        _norm_maps(r, below)


def _norm_maps(r: OutlierTokens, figure: Any) -> None:
    count = min(len(r.images), in_a_row(8) // 2)
    axes = map_rows(figure, 2 * count, 1)[0]
    relative = relative_norm(r)[:, r.peak]
    top = max(3.0, float(relative.max()))
    for i, image in enumerate(r.images[:count]):
        axes[2 * i].imshow(image)
        shown = axes[2 * i + 1].imshow(relative[i].reshape(r.grid), cmap=SIMILARITY, vmin=0, vmax=top)
    figure.colorbar(shown, ax=list(axes), label="norm / median", fraction=0.03, pad=0.01)
    figure.supxlabel(f"images, and the norm of their patches after {counted(r.places[r.peak])}", fontsize=9)


def relative_norm(r: OutlierTokens) -> NDArray[np.float64]:
    """Norms in multiples of the median of the image's patches (shown, places, patches)."""
    return np.asarray(r.norm / np.maximum(np.median(r.norm, axis=2, keepdims=True), 1e-30), dtype=np.float64)


def outliers_sentence(r: OutlierTokens) -> str:
    numbers, known = r.summary(), r.intervals()

    def one(name: str, show: Show) -> str:
        return with_interval(numbers[name], known.get(name), show)

    sinks = one("patches that are attention sinks, most", one_digit)
    ends = f" In block {int(r.sinks.argmax()) + 1}, {sinks} patches per image are attention sinks."
    ratio = "largest norm over median norm, most"
    if not r.share.any():
        images = int(r.how.get("n", 0))
        rare = f" up to {percent(wilson(0, images)[1])} of such images could still have one" if images else ""
        count = f"in {images} image{'s' * (images > 1)};{rare}" if images else "in these images"
        return (
            f"No outliers {count}. On average the largest norm is {one(ratio, one_digit)} times the median of its "
            f"image.{ends}"
        )
    many = one("share of patches that are outliers, most", percent)
    return (
        f"After {counted(r.places[r.peak])}, {many} of the patches are outliers. On average the largest norm is "
        f"{one(ratio, whole)} times the median of its image; channel {r.top_channels(1)[0][0]} holds "
        f"{one('share of the largest channel', percent)} of the squared norm, and outliers receive up to "
        f"{one('attention on outlier patches, most', percent)} of the attention.{ends}"
    )


def outliers_payload(r: OutlierTokens, room: int) -> Payload:
    n, grid = len(r.images), r.grid
    norms = relative_norm(r).reshape(n, -1, *grid)
    got = np.concatenate([r.received, np.full_like(r.received[:, :1], np.nan)], 1).reshape(n, -1, *grid)
    planes = {
        "norm / median": (norms, max(3.0, float(norms.max()))),
        "attention received by the next block, times an even share": (got, max(3.0, float(np.nanmax(got)))),
    }
    counts = r.outlier.sum(2)
    notes = [[f"{c} of the patches {'is an outlier' if c == 1 else 'are outliers'}." for c in row] for row in counts]
    return film(r.images, planes, named(r.places), titles=("Image", "Map"), notes=notes, captions=captions(r, n))


def named(places: Sequence[str]) -> tuple[str, ...]:
    """The places as the film calls them."""
    return tuple("The input" if p == "input" else in_front(p) for p in places)


OUTLIERS = View(
    of=OutlierTokens,
    heading="Outlier tokens and attention sinks",
    sentence=outliers_sentence,
    draw=draw_outliers,
    size=(9.6, 5.0),
    narrow=8.2,
    several_panels=True,
    paper=Paper(
        "Darcet et al. 2023; Jiang et al. 2025",
        "Large ViTs that were trained for long turn a few patches of the background into tokens of very large norm, "
        "which draw attention; a few neurons make them, and a token added at test time can take them over.",
    ),
    variant=lambda r: "with a test-time register" if r.register else pair(r),
    payload=outliers_payload,
    figure_and_widget=True,
)


def draw_lens(r: LogitLens, figure: Any) -> None:
    """Where each image's class can be read, by depth; below, how it comes about."""
    above, below = (None, figure) if is_narrow() else figure.subfigures(2, 1, height_ratios=(3, 2))
    if above is not None:
        _lens_maps(r, above)
    where = r.identifiability
    ax, at = below.subplots(), np.arange(len(r.places))
    ax.plot(at, r.agrees.mean(0), marker="o", color=COLORS[0], label="images: the class as at the end")
    ends = np.array([wilson(int(np.nansum(row)), len(row)) for row in r.agrees.T]).T
    ax.fill_between(at, *ends, color=COLORS[0], alpha=0.18, linewidth=0)
    hits, below_it = (x[..., r.prefix :].mean(2) for x in ((r.rank == 0).astype(np.float64), where))
    label = "patches: that class is highest"
    banded(ax, at, hits.mean(0), half_width(hits, 0), marker="o", color=COLORS[1], label=label)
    label = "patches: classes below it"
    banded(ax, at, below_it.mean(0), half_width(below_it, 0), linestyle="--", color=COLORS[2], label=label)
    ax.axhline(0.5, color=PALE, linestyle=":", label="the same by chance")
    ax.set(ylim=(-0.03, 1.03), ylabel="share")
    places_axis(ax, r.places)
    outside_legend(ax)


def _lens_maps(r: LogitLens, above: Any) -> None:
    rows, chosen = min(2, len(r.images)), spread_out(len(r.places), in_a_row(MAPS + 1) - 1)
    axes = map_rows(above, len(chosen) + 1, rows)
    where = r.identifiability
    for i in range(rows):
        axes[i, 0].imshow(r.images[i])
        bare(axes[i, 0], r.name(int(r.targets[i])))
        for j, place in enumerate(chosen):
            cells = where[i, place, r.prefix :].reshape(r.grid)
            shown = axes[i, j + 1].imshow(cells, cmap=SIMILARITY, vmin=0, vmax=1)
            if i == 0:
                bare(axes[i, j + 1], place_title(r.places[place]))
    above.colorbar(shown, ax=list(axes[:, -1]), label="share of classes\nbelow the target", fraction=0.08, pad=0.02)


def lens_sentence(r: LogitLens) -> str:
    by_place = np.array([((r.decided() >= 0) & (r.decided() <= i)).sum() for i in range(len(r.places))])
    early = np.flatnonzero(2 * by_place >= len(r.targets))
    at = int(early[0]) if early.size else len(r.places) - 1
    low, high = (percent(end) for end in wilson(int(by_place[at]), len(r.targets)))
    count = f"{len(r.targets)} image{'s' * (len(r.targets) > 1)}"
    share = f"{percent(by_place[at] / len(r.targets))} of {count} ({low} to {high})"
    if len(r.targets) == 1:
        share = "this one image"
    when = f"is settled from {counted(r.places[at])} on in {share}" if by_place[at] else f"is never settled ({count})"
    hits = (r.rank == 0)[..., r.prefix :].mean(2)[:, -1]
    value, half = float(hits.mean()), float(half_width(hits))
    return (
        f"Read with the model's own head, the predicted class {when}; after {counted(r.places[-1])}, "
        f"{percent(value)}{between(value, half, percent, most=1)} of the patch tokens give it."
    )


def lens_payload(r: LogitLens, room: int) -> Payload:
    n, p = min(FILMED, len(r.images)), r.prefix
    shape = (n, len(r.places), *r.grid)
    where, likely = (x[:n, :, p:].reshape(shape) for x in (r.identifiability, r.probability))
    used, index = np.unique(r.top[:n, :, p:], return_inverse=True)
    planes = {
        "share of classes below the target": (where, 1.0),
        "probability of the target": (likely, nice_top(likely)),
    }
    notes = [[_lens_note(r, i, j) for j in range(len(r.places))] for i in range(n)]
    words = (index.reshape(shape), [r.name(int(c)) for c in used])
    titles = ("Image", "What the head reads at each patch")
    return film(r.images[:n], planes, named(r.places), titles=titles, notes=notes, words=words)


def _lens_note(r: LogitLens, image: int, place: int) -> str:
    share = percent(float(r.answer[image, place]))
    return f"Target: {r.name(int(r.targets[image]))}, {share} as the model reads it here."


LENS = View(
    of=LogitLens,
    heading="What each token says: the logit lens",
    sentence=lens_sentence,
    draw=draw_lens,
    size=(9.6, 5.2),
    narrow=3.2,
    several_panels=True,
    paper=Paper(
        "Vilas et al. 2023",
        "The class can be read from image tokens too, and better the deeper the block.",
    ),
    payload=lens_payload,
    figure_and_widget=lambda r: len(r.places) > 1,
)


def draw_patching(r: ActivationPatching, figure: Any) -> None:
    """One pair and where its difference is by depth above; the class token, branches and heads below."""
    above, below = (None, figure) if is_narrow() else figure.subfigures(2, 1, height_ratios=(4, 5))
    if above is not None:
        _patching_maps(r, above)
    axes = panels(below, 3 if r.heads.size else 2)
    _draw_depth(r, axes[0])
    for i, kind in enumerate(r.kinds):
        row = r.branches[..., i]
        at = np.arange(1, row.shape[1] + 1)
        banded(axes[1], at, row.mean(0), half_width(row, 0), marker="o", color=COLORS[i], label=kind)
    axes[1].axhline(0, color=PALE, linewidth=0.8)
    axes[1].set(
        xlabel="block",
        ylabel="share restored by a branch",
        xticks=equal_steps(r.branches.shape[1], MAPS),
    )
    if r.kinds:
        axes[1].legend(loc="best")
    if r.heads.size:
        mean = r.heads.mean(0)
        heat(axes[2], mean.T, top=nice_top(mean), label="share restored by a head")
        axes[2].set(xlabel="block", ylabel="head")
        axes[2].set_yticks(*counted_ticks(mean.shape[1], 8))
        axes[2].set_xticks(*counted_ticks(len(mean), MAPS))


def _patching_maps(r: ActivationPatching, above: Any) -> None:
    chosen = spread_out(len(r.places), in_a_row(MAPS + 1) - 2)
    axes = map_rows(above, len(chosen) + 2, 1)[0]
    for i in range(2):
        axes[i].imshow(r.images[0, i])
        bare(axes[i], ("from: ", "to: ")[i] + r.name(int(r.classes[0, i])))
    top = nice_top(r.regions[0])
    for ax, place in zip(axes[2:], chosen):
        shown = ax.imshow(r.regions[0, place], cmap=SIMILARITY, vmin=0, vmax=top)
        bare(ax, place_title(r.places[place]))
    above.colorbar(shown, ax=list(axes), label="share restored\nby a region", fraction=0.03, pad=0.01)


def _draw_depth(r: ActivationPatching, ax: Any) -> None:
    at = np.arange(len(r.places))
    for i, share in enumerate(r.prefix.mean(0).T[:2]):
        label = "class token" if i == 0 and r.class_token else f"prefix token {i}"
        ax.plot(at, share, marker="o", color=COLORS[2 + i], label=label)
    ax.plot(at, r.regions.mean(0).max((1, 2)), marker="o", color=COLORS[0], label="best region")
    ax.plot(at, r.controls[:, 1].mean(0), linestyle="--", color=INK, linewidth=0.9, label="everything")
    ax.axhline(0, color=PALE, linewidth=0.8)
    ax.set_ylabel("share restored")
    places_axis(ax, r.places)
    ax.legend(loc="best")


def patching_sentence(r: ActivationPatching) -> str:
    if not r.kinds:
        return f"{len(r.classes)} pair(s) of images, {r.passes:,} patched runs; no layer adds to what enters it."
    mean = np.nan_to_num(r.branches.mean(0), nan=-np.inf)
    block, kind = np.unravel_index(int(mean.argmax()), mean.shape)
    name = "MLP" if r.kinds[kind] == "mlp" else r.kinds[kind]
    share = percent(float(mean[block, kind]))
    wide = float(half_width(r.branches[:, block, kind]))
    share += between(float(mean[block, kind]), wide, percent)
    where = "In this pair" if len(r.classes) == 1 else f"In {len(r.classes)} pairs, on average,"
    text = f"{where} the {name} branch of block {block + 1} restores {share} of the difference, more than any other"
    if r.heads.size:
        heads = r.heads.mean(0)
        b, h = np.unravel_index(int(heads.argmax()), heads.shape)
        share = percent(float(heads[b, h])) + between(float(heads[b, h]), float(half_width(r.heads[:, b, h])), percent)
        text += f"; of the heads, head {h + 1} of block {b + 1} restores most, {share}"
    if r.has_class_token:
        most = np.flatnonzero(r.prefix[..., 0].mean(0) >= 0.5)
        where = f"from {counted(r.places[most[0]])} on{_first_place(r)}" if most.size else "nowhere"
        text += f"; the class token alone carries half of it {where}"
    return f"{text}. {r.passes:,} patched runs."


def _first_place(r: ActivationPatching) -> str:
    """The places between which the class token takes over, by the interval over pairs: a place counts once half of the
    difference is reached there."""
    found = r.intervals().get(TAKE_OVER)
    if found is None:
        return ""
    first, last = (counted(r.places[int(end)]) for end in found)
    return f" ({first} to {last})"


def patching_payload(r: ActivationPatching, room: int) -> Payload:
    n = min(FILMED, len(r.images))
    notes = [[_patching_note(r, i, j) for j in range(len(r.places))] for i in range(n)]
    planes = {"share of the difference restored": (r.regions[:n], nice_top(r.regions[:n]))}
    titles = ("Source", "Destination", "Where the source replaces it")
    return film(r.images[:n, 0], planes, named(r.places), titles=titles, other=r.images[:n, 1], notes=notes)


def _patching_note(r: ActivationPatching, pair_: int, place: int) -> str:
    a, b = (r.name(int(c)) for c in r.classes[pair_])
    own = f"; the class token alone restores {r.prefix[pair_, place, 0]:.2f}" if r.has_class_token else ""
    return f"From {a} to {b}{own}."


PATCHING = View(
    of=ActivationPatching,
    heading="What carries the difference between two images (activation patching)",
    sentence=patching_sentence,
    draw=draw_patching,
    size=(9.6, 4.8),
    narrow=lambda r: 7.8 if r.heads.size else 5.2,
    several_panels=True,
    paper=Paper(
        "Zhang and Nanda 2023, on language models",
        "The difference of two logits is the measure to use, and patching in one direction shows what is sufficient.",
    ),
    payload=patching_payload,
    figure_and_widget=True,
)
