"""Claims of Raghu et al. (C17 to C19, C22) about probes of tokens and layers."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.probes import LayerProbes
from sightline.evals.probing.by_layer import ProbeAccuracy
from sightline.spec import ModelId
from sightline.studies.effects import Effect, Part, left_out, over_images
from sightline.studies.evidence import Evidence, Model, couples
from sightline.studies.verdict import Assessment

CLOSE = 0.03  # accuracies that differ by less are called equal; what the paper calls equal differs by 1 to 3 points
EARLY, LATE = 1 / 3, 2 / 3  # of the depth
PROBES = "the probes as they were fitted, on other test images"


class ProbeCurves:
    """The curves of one set of probes, sorted by model and choice of tokens."""

    def __init__(self, r: LayerProbes):
        self.result = r
        self.rows = {tuple(name.rsplit("; ", 1)): i for i, name in enumerate(r.curves) if "; " in name}
        names = dict.fromkeys(model for model, _ in self.rows)
        self.cls = [m for m in names if (m, "class token") in self.rows]
        self.gap = [m for m in names if (m, "first token") in self.rows]
        self.cnn = [m for m in names if (m, "mean of the map") in self.rows]

    @property
    def one(self) -> float:
        """One test image: no accuracy shows a smaller difference. 0 where their number is unknown."""
        count = self.result.how.get("n")
        return 1 / count if isinstance(count, int) and count > 0 else 0.0

    def at(self, model: str, tokens: str) -> Part:
        """Accuracy by block up to the last one, and without each group of test images."""
        i = self.rows[model, tokens]
        known = np.isfinite(self.result.accuracy[i])
        return self.result.accuracy[i][known], left_out(self.result.replicates, i, known)

    def gap_of(self, what: str, a: Part, b: Part, where: Callable[[NDArray], float], **place: Any) -> Effect:
        """a minus b at some depth."""
        return over_images(what, lambda x, y: where(x) - where(y), a, b, step=self.one, **place)

    def assess(self, names: tuple[str, str], *effects: Effect, note: str = "") -> Assessment:
        """About two of the models, which the curves call by name."""
        known = self.result.about.models
        return Assessment(
            models=tuple(next((m for m in known if _is(m, name)), ModelId(name=name)) for name in names),
            effects=effects,
            note=f"{note}; {PROBES}" if note else PROBES,
            images=self.result.about.images,
        )


def _is(m: ModelId, name: str) -> bool:
    """Whether a model has this name, or had it before it was told apart from another one: "ViT" is "ViT (a)"."""
    return m.name == name or m.name.startswith(f"{name} (")


def early(x: NDArray) -> float:
    """The block a third of the way up."""
    return float(x[int(len(x) * EARLY)])


def middle(x: NDArray) -> float:
    """The middle block."""
    return float(x[len(x) // 2])


def middle_third(x: NDArray) -> float:
    """Mean over the middle third of the blocks."""
    third = len(x) // 3
    return float(x[third : len(x) - third].mean())


def up_to_late(x: NDArray) -> float:
    """Mean over the blocks before the last third."""
    return float(x[: max(1, int(len(x) * LATE))].mean())


def last(x: NDArray) -> float:
    return float(x[-1])


def every_token(r: ProbeAccuracy) -> bool:
    """Whether single tokens were probed."""
    return r.per_token is not None


def tokens_by_pool(e: Evidence) -> Iterator[Assessment]:
    what = "accuracy of single tokens at the top, mean over tokens, GAP minus CLS"

    def judge(cls: Model, gap: Model, x: ProbeAccuracy, y: ProbeAccuracy) -> Assessment:
        tops = [(r.accuracy.mean(1)[-1:], r.replicates[:, -1:]) for r in (x, y)]
        effect = over_images(what, lambda a, b: last(b) - last(a), *tops)
        return Assessment(models=(cls.id, gap.id), effects=(effect,), note=PROBES)

    pairs = couples(e.of("vit", pool="cls"), e.of("vit", pool="gap"))
    return e.compare(pairs, ProbeAccuracy, judge, where=every_token)


def _cls_and_gap(e: Evidence) -> Iterator[tuple[ProbeCurves, str, str]]:
    """Every CLS model with every GAP model of the same probes."""
    for r in e.all(LayerProbes):
        c = ProbeCurves(r)
        for a in c.cls:
            for b in c.gap:
                yield c, a, b


def five_curves(e: Evidence) -> Iterator[Assessment]:
    equal: dict[str, Any] = {"side": "within", "margin": CLOSE}
    for c, a, b in _cls_and_gap(e):
        cls, all_, patches = (c.at(a, t) for t in ("class token", "mean of all", "mean of patches"))
        mean, first = c.at(b, "mean of patches"), c.at(b, "first token")
        yield c.assess(
            (a, b),
            c.gap_of("CLS;CLS minus GAP;GAP at the end", cls, mean, last, **equal),
            c.gap_of("GAP;GAP minus GAP;first token, early", mean, first, early),
            c.gap_of("GAP;GAP minus GAP;first token at the end", mean, first, last, **equal),
            c.gap_of("CLS;GAP minus CLS;CLS before the last third", all_, cls, up_to_late, **equal),
            c.gap_of("CLS;CLS minus CLS;GAP at the end", cls, all_, last),
            c.gap_of("CLS;GAP without the class token minus CLS;GAP at the end", patches, all_, last, bound=-CLOSE),
            note=f"equal means within {100 * CLOSE:.0f} points",
        )


def middle_and_end(e: Evidence) -> Iterator[Assessment]:
    what = "CLS minus GAP model, mean of patches"
    for c, a, b in _cls_and_gap(e):
        x, y = c.at(a, "mean of patches"), c.at(b, "mean of patches")
        yield c.assess(
            (a, b),
            c.gap_of(f"{what}, middle block", x, y, middle, side="within", margin=CLOSE),
            over_images(f"|{what}|, last block", lambda x, y: abs(last(x) - last(y)), x, y, bound=CLOSE, step=c.one),
        )


def middle_of_both(e: Evidence) -> Iterator[Assessment]:
    for r in e.all(LayerProbes):
        c = ProbeCurves(r)
        for a in (*c.cls, *c.gap):
            for b in c.cnn:
                x, y = c.at(a, "mean of patches"), c.at(b, "mean of the map")
                yield c.assess((a, b), c.gap_of("probes of the middle third, ViT minus CNN", x, y, middle_third))
