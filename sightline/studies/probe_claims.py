"""Claims of Raghu et al. (C17 to C19, C22) about probes of tokens and layers."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.probes import LayerProbes
from sightline.evals.probing.by_layer import ProbeAccuracy
from sightline.spec import ModelId
from sightline.studies.evidence import Evidence, Model, couples
from sightline.studies.verdict import Assessment, Effect, around, mean_of

CLOSE = 0.05  # accuracies that differ by less are called equal; ours
Curve = tuple[NDArray, NDArray]  # accuracy and half width by block


class ProbeCurves:
    """The curves of one set of probes, sorted by model and choice of tokens."""

    def __init__(self, r: LayerProbes):
        self.result = r
        self.rows = {tuple(name.rsplit("; ", 1)): i for i, name in enumerate(r.curves) if "; " in name}
        names = dict.fromkeys(model for model, _ in self.rows)
        self.cls = [m for m in names if (m, "class token") in self.rows]
        self.gap = [m for m in names if (m, "first token") in self.rows]
        self.cnn = [m for m in names if (m, "mean of the map") in self.rows]

    def at(self, model: str, tokens: str) -> Curve:
        """Accuracy and half width by block, up to the last block."""
        i = self.rows[model, tokens]
        known = np.isfinite(self.result.accuracy[i])
        return self.result.accuracy[i][known], self.result.half_width[i][known]

    def assess(self, names: tuple[str, str], *effects: Effect, note: str = "") -> Assessment:
        """About two of the models, which the curves call by name."""
        known = self.result.about.models
        return Assessment(
            models=tuple(next((m for m in known if _is(m, name)), ModelId(name=name)) for name in names),
            effects=effects,
            note=note,
            images=self.result.about.images,
        )


def _is(m: ModelId, name: str) -> bool:
    """Whether a model has this name, or had it before it was told apart from another one: "ViT" is "ViT (a)"."""
    return m.name == name or m.name.startswith(f"{name} (")


def _gap(what: str, a: Curve, b: Curve, at: tuple[int, int]) -> Effect:
    """a minus b at one block of each."""
    half = float(np.hypot(a[1][at[0]], b[1][at[1]]))
    return around(what, a[0][at[0]] - b[0][at[1]], half, "draws")


def _close(e: Effect) -> Effect:
    """|difference| below what counts as equal."""
    half = (e.high - e.low) / 2
    return around(f"|{e.what}|", abs(e.value), half, e.over, bound=CLOSE, side="below")


def _apart(e: Effect) -> Effect:
    """|difference| above what counts as equal."""
    half = (e.high - e.low) / 2
    return around(f"|{e.what}|", abs(e.value), half, e.over, bound=CLOSE)


def every_token(r: ProbeAccuracy) -> bool:
    """Whether single tokens were probed."""
    return r.per_token is not None


def tokens_by_pool(e: Evidence) -> Iterator[Assessment]:
    def judge(a: Model, b: Model, x: ProbeAccuracy, y: ProbeAccuracy) -> Assessment | None:
        tops = [r.map(r.layers[-1]).ravel() for r in (x, y)]
        if len(tops[0]) != len(tops[1]):
            return None
        effect = mean_of("accuracy of single tokens at the top, GAP minus CLS", tops[1] - tops[0], "tokens")
        return Assessment(models=(a.id, b.id), effects=(effect,))

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
    for c, a, b in _cls_and_gap(e):
        own, mean, first = c.at(a, "class token"), c.at(b, "mean of patches"), c.at(b, "first token")
        early = len(first[0]) // 3
        yield c.assess(
            (a, b),
            _close(_gap("CLS;CLS minus GAP;GAP at the end", own, mean, (-1, -1))),
            _gap("GAP;GAP minus GAP;first token, early", mean, first, (early, early)),
            _close(_gap("GAP;GAP minus GAP;first token at the end", mean, first, (-1, -1))),
            note=f"equal means within {100 * CLOSE:.0f} points",
        )


def middle_and_end(e: Evidence) -> Iterator[Assessment]:
    for c, a, b in _cls_and_gap(e):
        x, y = c.at(a, "mean of patches"), c.at(b, "mean of patches")
        half = (len(x[0]) // 2, len(y[0]) // 2)
        yield c.assess(
            (a, b),
            _close(_gap("CLS minus GAP model, mean of patches, middle block", x, y, half)),
            _apart(_gap("CLS minus GAP model, mean of patches, last block", x, y, (-1, -1))),
        )


def middle_of_both(e: Evidence) -> Iterator[Assessment]:
    for r in e.all(LayerProbes):
        c = ProbeCurves(r)
        for a in (*c.cls, *c.gap):
            for b in c.cnn:
                x, y = c.at(a, "mean of patches"), c.at(b, "mean of the map")
                middle = (len(x[0]) // 2, len(y[0]) // 2)
                yield c.assess((a, b), _gap("probe of the middle block, ViT minus CNN", x, y, middle))
