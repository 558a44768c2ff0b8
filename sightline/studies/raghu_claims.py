"""Claims of Raghu et al. (C) about attention, receptive fields, skip connections, localization and data."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.attention.distance import AttentionDistance
from sightline.analysis.attention.head_subsets import HeadSubsets
from sightline.analysis.receptive_fields import ReceptiveField
from sightline.analysis.residual import ResidualRatios
from sightline.analysis.similarity.block_similarity import BlockSimilarity
from sightline.analysis.similarity.localization import Localization
from sightline.spec import ModelId
from sightline.studies.evidence import OTHER_IMAGES, Evidence, Model, couples
from sightline.studies.verdict import Assessment, Effect, around, mean_of, share_difference, share_of
from sightline.studies.vit_claims import FAR, NEAR, extreme, head_effect

ENOUGH = 1000  # images from which on the CKA of a single token with a patch is reliable; ours


def low_and_high_heads(e: Evidence) -> Iterator[Assessment]:
    for m, r in e.each(e.of("vit", ""), AttentionDistance):
        if len(r.pixels) < 4:
            continue
        low, high = range(0, 2), range(len(r.pixels) - 2, len(r.pixels))
        effects = (
            head_effect("most local head of the two lowest blocks", r, extreme(r, low, "local"), NEAR, "below"),
            head_effect("most global head of the two lowest blocks", r, extreme(r, low, "global"), FAR, "above"),
            head_effect("most local head of the two highest blocks", r, extreme(r, high, "local"), FAR, "above"),
        )
        note = "fractions of the distance of uniform attention"
        yield Assessment(models=(m.id,), effects=effects, note=note, images=r.about.images)


def subsets(e: Evidence) -> Iterator[Assessment]:
    for a, b, r in e.between(HeadSubsets):
        low, high = r.interval()
        effect = Effect(
            what="rank correlation of CKA and distance, mean over the CNN's layers",
            value=float(np.mean(r.ranks())),
            low=low,
            high=high,
            bound=-0.3,
            side="below",
            over="subsets without a common head",
        )
        note = f"{len(r.subsets)} subsets of heads"
        yield Assessment(models=(a.id, b.id), effects=(effect,), note=note, images=r.about.images)


def after_addition(r: ReceptiveField) -> bool:
    """Receptive fields of the sum of skip and branch."""
    return bool(r.side == "after")


def before_addition(r: ReceptiveField) -> bool:
    """Receptive fields of the branch alone."""
    return bool(r.side == "before")


def _radius(r: ReceptiveField) -> tuple[float, float]:
    """Radius of half the mass in the first block as a fraction of the image's width, and its error."""
    width = r.maps.shape[2]
    error = np.nan if r.radii_error is None else r.radii_error[0, 0]
    return float(r.radii[0, 0] / width), float(error / width)


def receptive(e: Evidence) -> Iterator[Assessment]:
    def judge(vit: Model, cnn: Model, a: ReceptiveField, b: ReceptiveField) -> Assessment:
        (x, ex), (y, ey) = _radius(a), _radius(b)
        what = "radius of half the mass in the first block, ViT minus CNN"
        effect = around(what, x - y, 2 * float(np.hypot(ex, ey)), "images")
        note = "in image widths; growth with depth is not judged"
        return Assessment(models=(vit.id, cnn.id), effects=(effect,), note=note)

    return e.compare(couples(e.of("vit"), e.of("cnn")), ReceptiveField, judge, where=after_addition)


def _center(m: Model, images: str) -> tuple[float, float] | None:
    """Mass on the token's own cell after the addition minus before it, mean over blocks, and its error."""
    after = m.each(ReceptiveField, after_addition).get(images)
    before = m.each(ReceptiveField, before_addition).get(images)
    if after is None or before is None:
        return None
    count = min(len(after.own), len(before.own))
    errors = [np.nan if x.own_error is None else float(np.mean(x.own_error[:count])) for x in (after, before)]
    return float(np.mean(after.own[:count]) - np.mean(before.own[:count])), float(np.hypot(errors[0], errors[1]))


def center_patch(e: Evidence) -> Iterator[Assessment]:
    for m, after in e.each(e.of("vit", ""), ReceptiveField, after_addition):
        images = after.about.images
        own = _center(m, images)
        if own is None:
            continue
        gap, error = own
        effects = [around("mass on the own patch, after minus before the addition", gap, 2 * error, "images")]
        effects += _stands_out(after, m.last(AttentionDistance))
        models, other = [m.id], []
        for cnn in e.of("cnn"):
            theirs = _center(cnn, images)
            if theirs is not None:
                models.append(cnn.id)
                half = 2 * float(np.hypot(error, theirs[1]))
                effects.append(around("that difference, ViT minus CNN", gap - theirs[0], half, "images"))
            elif any(_center(cnn, others) is not None for others in cnn.each(ReceptiveField)):
                other.append(f"{cnn.id.name} {OTHER_IMAGES}")
        yield Assessment(models=tuple(models), effects=tuple(effects), note="; ".join(other), images=images)


def _stands_out(after: ReceptiveField, distance: AttentionDistance | None) -> list[Effect]:
    """The mass on the own patch against its area, at the depth where it is smallest; the grid is the distance's."""
    if distance is None or after.own_error is None:
        return []
    worst = int(np.argmin(after.own))
    cells = distance.grid[0] * distance.grid[1]
    what = "mass on the own patch over its area, at the depth where it is smallest"
    return [around(what, after.own[worst] * cells, 2 * after.own_error[worst] * cells, "images", bound=10)]


def _halves(x: NDArray) -> tuple[NDArray, NDArray]:
    half = len(x) // 2
    return x[:half], x[half:]


def has_class_token(r: ResidualRatios) -> bool:
    """Whether there is a ratio of the class token."""
    return bool(np.isfinite(r.class_token[0]).any())


def class_token_skips(e: Evidence) -> Iterator[Assessment]:
    for m, r in e.each(e.of("vit", "hybrid", ""), ResidualRatios, has_class_token):
        low, high = _halves(r.class_minus_patches())
        effects = (
            mean_of("log norm ratio, class token minus patches, lower half", low, "additions"),
            mean_of("log norm ratio, class token minus patches, upper half", high, "additions", side="below"),
        )
        yield Assessment(models=(m.id,), effects=effects, images=r.about.images)


def skips_of_both(e: Evidence) -> Iterator[Assessment]:
    def judge(vit: Model, cnn: Model, a: ResidualRatios, b: ResidualRatios) -> Assessment:
        at = np.linspace(0, 1, 12)
        curves = [np.interp(at, np.linspace(0, 1, len(r.ratio)), np.log(r.ratio)) for r in (a, b)]
        gap = curves[0] - curves[1]
        gap = gap[~np.isnan(gap)]  # a depth without a ratio says nothing
        effects = (
            mean_of("log norm ratio, ViT minus CNN", gap, "depths"),
            share_of("depths where the ViT's ratio is larger", gap > 0, "depths", bound=0.5),
        )
        note = f"larger at {int((gap > 0).sum())} of {len(gap)} depths"
        return Assessment(models=(vit.id, cnn.id), effects=effects, note=note)

    return e.compare(couples(e.of("vit"), e.of("cnn")), ResidualRatios, judge)


def late_class_token(e: Evidence) -> Iterator[Assessment]:
    for m, r in e.each(e.of("vit", ""), ResidualRatios, has_class_token):
        rows = {kind: r.of(kind) for kind in ("attention", "mlp")}
        if len(rows["attention"]) != len(rows["mlp"]) or not len(rows["mlp"]):
            continue
        log = np.log(r.class_token[0])
        more = _halves(log[rows["attention"]] - log[rows["mlp"]])[1]
        low, high = _halves(r.class_token[2] - r.cosine_sum)
        effects = (
            mean_of("upper half, class token: log ratio of attention minus MLP", more, "blocks"),
            mean_of("cosine of skip and sum, class minus patches, lower half", low, "additions"),
            mean_of("cosine of skip and sum, class minus patches, upper half", high, "additions", side="below"),
        )
        yield Assessment(models=(m.id,), effects=effects, images=r.about.images)


def hits(r: Localization, *, inside: bool = True) -> NDArray[np.bool_]:
    """Which tokens are most similar to their own patch; of the interior tokens alone."""
    flat = r.maps.reshape(len(r.maps), -1)
    own = np.nan_to_num(flat, nan=-np.inf).argmax(1) == np.arange(len(flat))
    mask = np.ones(r.grid, dtype=bool)
    if inside and min(r.grid) > 2:
        mask[:] = False
        mask[1:-1, 1:-1] = True
    return np.asarray(own[mask.ravel() & ~np.isnan(flat).all(1)])


def localization_share(r: Localization) -> Effect:
    """The share of hits. Few images add noise that hides localization and never feigns it: the interval is open
    upward."""
    found = share_of("interior tokens most similar to their own patch", hits(r), "tokens", bound=0.5)
    return replace(found, high=1.0) if int(r.how.get("n", 0)) < ENOUGH else found


def _image_note(*results: Localization) -> str:
    few = min(int(r.how.get("n", 0)) for r in results)
    return f"{few:,} images" + (f"; {ENOUGH:,} are needed to say that localization is lost" if few < ENOUGH else "")


def own_place(e: Evidence) -> Iterator[Assessment]:
    for m, r in e.each(e.of("vit", pool="cls"), Localization):
        yield Assessment(models=(m.id,), effects=(localization_share(r),), note=_image_note(r), images=r.about.images)


def _own_place(what: str, e: Evidence, first: list[Model], second: list[Model]) -> Iterator[Assessment]:
    def judge(a: Model, b: Model, x: Localization, y: Localization) -> Assessment:
        effect = share_difference(what, localization_share(x), localization_share(y))
        return Assessment(models=(a.id, b.id), effects=(effect,), note=_image_note(x, y))

    return e.compare(couples(first, second), Localization, judge)


def own_place_of_both(e: Evidence) -> Iterator[Assessment]:
    return _own_place("tokens most similar to their own patch, ViT minus CNN", e, e.of("vit", pool="cls"), e.of("cnn"))


def own_place_by_pool(e: Evidence) -> Iterator[Assessment]:
    what = "tokens most similar to their own patch, CLS minus GAP"
    return _own_place(what, e, e.of("vit", pool="cls"), e.of("vit", pool="gap"))


def varies_data(r: BlockSimilarity) -> bool:
    """Whether the models differ in how much data they were trained on."""
    return bool(r.varied == "data")


def data_scale(e: Evidence) -> Iterator[Assessment]:
    what = "CKA with the full model, lower minus upper half"
    for r in filter(varies_data, e.all(BlockSimilarity)):
        for name, values in zip(r.models, r.similarity):
            row = values[np.isfinite(values)]
            low, high = _halves(row)
            if len(low) and not np.allclose(row, 1):
                half = 2 * float(np.hypot(low.std(), high.std()) / max(len(low), 1) ** 0.5)
                effect = around(what, low.mean() - high.mean(), half, "blocks")
                model = ModelId(name=name)
                yield Assessment(models=(model,), effects=(effect,), images=r.about.images)
