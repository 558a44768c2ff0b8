"""Claims of Raghu et al. about effective receptive fields (C8, C9)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.receptive_fields import ReceptiveField
from sightline.studies.effects import Effect, Part, left_out, missing, over_images
from sightline.studies.evidence import OTHER_IMAGES, Evidence, Model, couples
from sightline.studies.verdict import Assessment

ALIKE = 0.05  # of the mass: a ResNet's field before and after the addition differ by less where they are "the same"
NINETY, OWN = 1, 2  # columns of `replicates`: radius of 90 %, mass on the own cell


def after_addition(r: ReceptiveField) -> bool:
    """Receptive fields of the sum of skip and branch."""
    return bool(r.side == "after")


def before_addition(r: ReceptiveField) -> bool:
    """Receptive fields of the branch alone."""
    return bool(r.side == "before")


def radii(r: ReceptiveField) -> Part:
    """Radius of 90 % of the mass by block, in widths of the image."""
    wide = r.maps.shape[2]
    return r.radii[:, 1] / wide, left_out(r.replicates, ..., NINETY) / wide


def largest_step(x: NDArray) -> float:
    return float(np.diff(x).max()) if len(x) > 1 else float("nan")


def receptive(e: Evidence) -> Iterator[Assessment]:
    def judge(vit: Model, cnn: Model, a: ReceptiveField, b: ReceptiveField) -> Assessment:
        low = over_images(
            "radius of 90 % of the mass in the lowest block, ViT minus CNN",
            lambda x, y: x[0] - y[0],
            radii(a),
            radii(b),
        )
        jump = over_images(
            "largest growth from one block to the next, ViT minus CNN",
            lambda x, y: largest_step(x) - largest_step(y),
            radii(a),
            radii(b),
        )
        return Assessment(models=(vit.id, cnn.id), effects=(low, jump), note="in widths of the image")

    return e.compare(couples(e.of("vit"), e.of("cnn")), ReceptiveField, judge, where=after_addition)


def own(r: ReceptiveField) -> Part:
    return r.own, left_out(r.replicates, ..., OWN)


def _paired(after: ReceptiveField, before: ReceptiveField) -> tuple[Part, Part] | None:
    """The mass on the own cell after and before the same additions; None where it is unknown which these are.

    A ViT's are paired block by block. Of a CNN in which some units have no skip, those that have one are compared.
    """
    one, other = own(after), own(before)
    if len(one[0]) == len(other[0]):
        return one, other
    sums = list(before.how.get("sums", ()))
    if len(sums) != len(other[0]) or not set(sums) <= set(after.names):
        return None
    at = [after.names.index(name) for name in sums]
    return (one[0][at], left_out(one[1], at)), other


def _both(m: Model, images: str) -> tuple[ReceptiveField, ReceptiveField] | None:
    after = m.each(ReceptiveField, after_addition).get(images)
    before = m.each(ReceptiveField, before_addition).get(images)
    return None if after is None or before is None else (after, before)


def center_patch(e: Evidence) -> Iterator[Assessment]:
    for vit, after in e.each(e.of("vit", ""), ReceptiveField, after_addition):
        both = _both(vit, after.about.images)
        if both is None:
            continue
        mine = _of_vit(*both)
        cnns = [(cnn, _both(cnn, after.about.images)) for cnn in e.of("cnn")]
        found = [(cnn, pair) for cnn, pair in cnns if pair is not None]
        for cnn, pair in found:
            effects = (*mine, _of_cnn(*pair))
            yield Assessment(models=(vit.id, cnn.id), effects=effects, images=after.about.images)
        if not found:
            other = [f"{cnn.id.name} {OTHER_IMAGES}" for cnn, _ in cnns if cnn.each(ReceptiveField)]
            note = "; ".join(other) or "there is no ResNet beside it"
            effects = (*mine, missing(IN_A_CNN, side="within", margin=ALIKE))
            yield Assessment(models=(vit.id,), effects=effects, note=note, images=after.about.images)


IN_A_VIT = "mass on the own patch, after minus before the addition, at the depth where it is smallest"
IN_A_CNN = "mass on the own cell in the CNN, after minus before the addition, mean over depth"


def _of_vit(after: ReceptiveField, before: ReceptiveField) -> tuple[Effect, Effect]:
    pair, name = _paired(after, before), IN_A_VIT
    gap = missing(name) if pair is None else over_images(name, lambda x, y: float((x - y).min()), *pair)
    what = "images in which the own patch is the largest of all, at the depth where they are fewest"
    if not len(after.largest):
        return gap, missing(what, bound=0.5)
    images = max(1, int(after.how.get("n", 1)))
    part = (after.largest, after.largest_replicates)
    return gap, over_images(what, lambda x: float(x.min()), part, bound=0.5, step=1 / images)


def _of_cnn(after: ReceptiveField, before: ReceptiveField) -> Effect:
    place: dict[str, Any] = {"side": "within", "margin": ALIKE}
    pair = _paired(after, before)
    if pair is None:
        return missing(IN_A_CNN, **place)
    return over_images(IN_A_CNN, lambda x, y: float((x - y).mean()), *pair, **place)
