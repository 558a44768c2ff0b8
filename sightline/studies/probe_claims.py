"""Claims of Raghu et al. (C17 to C19, C22) about probes of tokens and layers."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.probes import LayerProbes
from sightline.evals.probing.by_layer import ProbeAccuracy
from sightline.studies.evidence import Evidence
from sightline.studies.verdict import Effect, around, mean_of
from sightline.studies.vit_claims import Judged

CLOSE = 0.05  # accuracies that differ by less are called equal; ours


class Curves:
    """The curves of one set of probes, sorted by model and choice of tokens."""

    def __init__(self, r: LayerProbes):
        self.result = r
        self.rows = {tuple(name.rsplit("; ", 1)): i for i, name in enumerate(r.curves) if "; " in name}
        names = dict.fromkeys(model for model, _ in self.rows)
        self.cls = [m for m in names if (m, "class token") in self.rows]
        self.gap = [m for m in names if (m, "first token") in self.rows]
        self.cnn = [m for m in names if (m, "mean of the map") in self.rows]

    def at(self, model: str, tokens: str) -> tuple[NDArray, NDArray]:
        """Accuracy and half width by block, without what lies behind the last block."""
        i = self.rows[model, tokens]
        known = np.isfinite(self.result.accuracy[i])
        return self.result.accuracy[i][known], self.result.half_width[i][known]

    @property
    def seeds(self) -> int:
        given = self.result.how.get("seeds", 1)
        return given if isinstance(given, int) else len(given)


def _gap(what: str, a: tuple[NDArray, NDArray], b: tuple[NDArray, NDArray], at: tuple[int, int]) -> Effect:
    """a minus b at one block of each."""
    half = float(np.hypot(a[1][at[0]], b[1][at[1]]))
    return around(what, a[0][at[0]] - b[0][at[1]], half, "draws")


def _close(e: Effect) -> Effect:
    """|difference| below what counts as equal."""
    half = (e.high - e.low) / 2
    return around(f"|{e.what}|", abs(e.value), half, e.over, bound=CLOSE, side="below")


def _apart(e: Effect) -> Effect:
    half = (e.high - e.low) / 2
    return around(f"|{e.what}|", abs(e.value), half, e.over, bound=CLOSE)


def tokens_by_pool(e: Evidence) -> Iterator[Judged]:
    for a in e.of("vit", pool="cls"):
        for b in e.of("vit", pool="gap"):
            x, y = a.get(ProbeAccuracy), b.get(ProbeAccuracy)
            if x is None or y is None or x.per_token is None or y.per_token is None:
                continue
            tops = [r.map(r.layers[-1]).ravel() for r in (x, y)]
            if len(tops[0]) == len(tops[1]):
                what = "accuracy of single tokens at the top, GAP minus CLS"
                yield (a.name, b.name), [mean_of(what, tops[1] - tops[0], "tokens")], len(x.seeds), ""


def five_curves(e: Evidence) -> Iterator[Judged]:
    for r in e.all(LayerProbes):
        c = Curves(r)
        for a in c.cls:
            for b in c.gap:
                own, mean = c.at(a, "class token"), c.at(b, "mean of patches")
                first = c.at(b, "first token")
                early = len(first[0]) // 3
                effects = [
                    _close(_gap("CLS;CLS minus GAP;GAP at the end", own, mean, (-1, -1))),
                    _gap("GAP;GAP minus GAP;first token, early", mean, first, (early, early)),
                    _close(_gap("GAP;GAP minus GAP;first token at the end", mean, first, (-1, -1))),
                ]
                yield (a, b), effects, c.seeds, f"equal means within {100 * CLOSE:.0f} points"


def middle_and_end(e: Evidence) -> Iterator[Judged]:
    for r in e.all(LayerProbes):
        c = Curves(r)
        for a in c.cls:
            for b in c.gap:
                x, y = c.at(a, "mean of patches"), c.at(b, "mean of patches")
                half = (len(x[0]) // 2, len(y[0]) // 2)
                effects = [
                    _close(_gap("CLS minus GAP model, mean of patches, middle block", x, y, half)),
                    _apart(_gap("CLS minus GAP model, mean of patches, last block", x, y, (-1, -1))),
                ]
                yield (a, b), effects, c.seeds, ""


def middle_of_both(e: Evidence) -> Iterator[Judged]:
    for r in e.all(LayerProbes):
        c = Curves(r)
        for a in (*c.cls, *c.gap):
            for b in c.cnn:
                x, y = c.at(a, "mean of patches"), c.at(b, "mean of the map")
                effect = _gap("probe of the middle block, ViT minus CNN", x, y, (len(x[0]) // 2, len(y[0]) // 2))
                yield (a, b), [effect], c.seeds, ""
