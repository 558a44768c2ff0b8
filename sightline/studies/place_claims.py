"""Claims of Raghu et al. about localization (C14 to C16): does a token of the last block know its own place?"""

from collections.abc import Iterator

import numpy as np

from sightline.analysis.similarity.localization import Localization, own_minus_other, share_of_hits
from sightline.studies.effects import Effect, Part, missing, over_images
from sightline.studies.evidence import Evidence, Model, couples
from sightline.studies.verdict import Assessment

OWN = "CKA of interior tokens with their own patch minus that with others"


def part(r: Localization) -> Part:
    return r.maps, r.replicates


def _note(*results: Localization) -> str:
    """The share of hits depends on the number of images: few add noise that hides localization."""
    said = []
    for r in results:
        grown = f" ({r.hits[0, 1]:.0%} with {r.hits[0, 0]:.0f})" if len(r.hits) > 1 else ""
        said.append(f"{share_of_hits(r.maps):.0%} of interior tokens with {int(r.how.get('n', 0)):,} images{grown}")
    return f"own patch most similar of all: {'; '.join(said)}"


def own_place(e: Evidence) -> Iterator[Assessment]:
    for m, r in e.each(e.of("vit", pool="cls"), Localization):
        effect = over_images(OWN, own_minus_other, part(r))
        yield Assessment(models=(m.id,), effects=(effect,), note=_note(r), images=r.about.images)


def difference(what: str, a: Localization, b: Localization) -> Effect:
    return over_images(what, lambda x, y: own_minus_other(x) - own_minus_other(y), part(a), part(b))


def comparable(a: Localization, b: Localization) -> str:
    """Why two results cannot be compared: another number of patches or images changes CKA by itself."""
    if a.grid != b.grid:
        grids = " and ".join(f"{r.grid[0]} x {r.grid[1]}" for r in (a, b))
        return f"not compared: {grids} cells; sightline compare takes the coarser grid for both"
    counts = [int(r.how.get("n", 0)) for r in (a, b)]
    return f"not compared: {counts[0]:,} and {counts[1]:,} images" if counts[0] != counts[1] else ""


def own_place_of_both(e: Evidence) -> Iterator[Assessment]:
    def judge(vit: Model, cnn: Model, a: Localization, b: Localization) -> Assessment:
        if why := comparable(a, b):
            return Assessment(models=(vit.id, cnn.id), effects=(), note=why)
        last = difference(f"{OWN}, last block, ViT minus CNN", a, b)
        return Assessment(models=(vit.id, cnn.id), effects=(last, *_earlier(a, b)), note=_note(a, b))

    return e.compare(couples(e.of("vit", pool="cls"), e.of("cnn")), Localization, judge)


def _earlier(a: Localization, b: Localization) -> tuple[Effect, Effect]:
    """The CNN's best localized earlier stage against its last, and against the ViT."""
    more, less = f"{OWN}, CNN, best earlier stage minus the last", f"{OWN}, ViT minus the CNN's best earlier stage"
    if not len(b.earlier):
        return missing(more), missing(less)
    earlier = b.earlier, b.earlier_replicates
    return (
        over_images(more, lambda x, y: float(np.nanmax(x)) - own_minus_other(y), earlier, part(b)),
        over_images(less, lambda x, y: own_minus_other(x) - float(np.nanmax(y)), part(a), earlier),
    )


def own_place_by_pool(e: Evidence) -> Iterator[Assessment]:
    def judge(cls: Model, gap: Model, a: Localization, b: Localization) -> Assessment:
        if why := comparable(a, b):
            return Assessment(models=(cls.id, gap.id), effects=(), note=why)
        effect = difference(f"{OWN}, CLS minus GAP", a, b)
        return Assessment(models=(cls.id, gap.id), effects=(effect,), note=_note(a, b))

    return e.compare(couples(e.of("vit", pool="cls"), e.of("vit", pool="gap")), Localization, judge)
