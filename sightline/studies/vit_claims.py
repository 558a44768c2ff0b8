"""Claims of the ViT paper (V) and of BiT and the seminar's few-shot notes (B) that saved results can decide."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from sightline.analysis.attention.distance import AttentionDistance
from sightline.analysis.embeddings import PatchFilters, PositionSimilarity
from sightline.analysis.saliency.faithfulness import ObjectMass
from sightline.analysis.saliency.object_focus import ObjectFocus
from sightline.evals.episodic import Episodes
from sightline.evals.few_shot import FewShot
from sightline.studies.evidence import Evidence
from sightline.studies.verdict import Effect, around, exact, mean_of, share_difference, share_of

Judged = tuple[tuple[str, ...], list[Effect], int, str]  # models, effects, seeds, note
NEAR, FAR = 1 / 3, 2 / 3  # of the distance of uniform attention; our reading of "local" and "global"


def positions(e: Evidence) -> Iterator[Judged]:
    for m in e.models:
        r = m.get(PositionSimilarity)
        if r is not None:
            yield (
                (m.name,),
                [
                    exact("rank correlation of cosine and distance", r.decay, bound=-0.3, side="below"),
                    exact("same row or column, minus others as far", r.row_column),
                ],
                1,
                "",
            )


def head_effect(what: str, r: AttentionDistance, place: tuple[int, int], bound: float, side: Any) -> Effect:
    """The distance of one head as a fraction of uniform attention's."""
    value, error = r.pixels[place] / r.uniform, r.error[place] / r.uniform
    return around(what, value, 1.96 * error, "images", bound=bound, side=side)


def extreme(r: AttentionDistance, rows: range, pick: str) -> tuple[int, int]:
    """Block and head of the nearest or farthest head within some blocks."""
    part = r.pixels[rows.start : rows.stop]
    flat = np.argmin(part) if pick == "nearest" else np.argmax(part)
    block, head = divmod(int(flat), part.shape[1])
    return rows.start + block, head


def distances(e: Evidence) -> Iterator[Judged]:
    for m in e.of("vit", "hybrid", ""):
        r = m.get(AttentionDistance)
        if r is None:
            continue
        half = max(1, len(r.pixels) // 2)
        rise = (r.pixels[half:].mean() - r.pixels[:half].mean()) / r.uniform
        error = (r.error[half:].mean() + r.error[:half].mean()) / r.uniform  # as if all heads erred together
        first = range(0, 1)
        yield (
            (m.name,),
            [
                head_effect("nearest head of the lowest block", r, extreme(r, first, "nearest"), NEAR, "below"),
                head_effect("farthest head of the lowest block", r, extreme(r, first, "farthest"), FAR, "above"),
                around("rise from lower to upper half", rise, 1.96 * error, "images"),
                share_of(
                    "heads of the upper half that are global", r.pixels[half:] > FAR * r.uniform, "heads", bound=0.5
                ),
            ],
            1,
            "distances as fractions of uniform attention's; local: below 1/3, global: above 2/3",
        )


def hybrid_heads(e: Evidence) -> Iterator[Judged]:
    for vit, hybrid in e.couples("vit", "hybrid"):
        a, b = vit.get(AttentionDistance), hybrid.get(AttentionDistance)
        if a is not None and b is not None:
            local = [x.pixels[0] < NEAR * x.uniform for x in (a, b)]
            effect = share_difference("local heads of the lowest block, ViT minus hybrid", local[0], local[1], "heads")
            yield (vit.name, hybrid.name), [effect], 1, ""


def filters(e: Evidence) -> Iterator[Judged]:
    for m in e.of("vit", ""):
        r = m.get(PatchFilters)
        if r is not None:
            low = float((r.low_frequency * r.explained).sum() / r.explained.sum())
            yield (
                (m.name,),
                [
                    exact(f"variance that {len(r.explained)} components explain", float(r.explained.sum()), bound=0.5),
                    exact("energy at low frequencies, minus noise", low - r.low_frequency_of_noise),
                ],
                1,
                "",
            )


def object_focus(e: Evidence) -> Iterator[Judged]:
    for r in e.all(ObjectMass):
        names = r.about.names
        yield names, [mean_of("mass on the object minus its area", r.mass - r.area, "images")], 1, ""


def rollout_focus(e: Evidence) -> Iterator[Judged]:
    yield from object_focus(e)
    for r in e.all(ObjectFocus):
        names = r.about.names
        if "rollout" in r.methods:
            more = (r.mass - r.area)[r.methods.index("rollout")]
            yield names, [mean_of("rollout: mass on the object minus its area", more, "images")], 1, ""


def _names(r: FewShot | Episodes) -> tuple[str, ...]:
    return r.about.names or (str(r.how.get("model", "")),)


def shots(e: Evidence) -> Iterator[Judged]:
    for r in e.all(FewShot):
        if len(r.shots) < 2:
            continue
        gain = mean_of(f"{r.shots[-1]}-shot minus {r.shots[0]}-shot accuracy", r.accuracy[-1] - r.accuracy[0], "draws")
        spread = r.accuracy.std(1, ddof=1) if len(r.seeds) > 1 else np.full(len(r.shots), np.nan)
        note = f"spread over draws: {spread[0]:.3f} at {r.shots[0]}, {spread[-1]:.3f} at {r.shots[-1]} shots"
        yield _names(r), [gain], len(r.seeds), note


def ways_and_shots(e: Evidence) -> Iterator[Judged]:
    for r in e.all(Episodes):
        effects = []
        if len(r.ways) > 1:
            few, many = np.argmin(r.ways), np.argmax(r.ways)
            falls = (r.accuracy[few] - r.accuracy[many]).mean(0)
            effects.append(mean_of(f"{r.ways[few]}-way minus {r.ways[many]}-way accuracy", falls, "episodes"))
        if len(r.shots) > 1:
            one, most = np.argmin(r.shots), np.argmax(r.shots)
            rises = (r.accuracy[:, most] - r.accuracy[:, one]).mean(0)
            effects.append(mean_of(f"{r.shots[most]}-shot minus {r.shots[one]}-shot accuracy", rises, "episodes"))
        if len(effects) == 2:
            yield _names(r), effects, r.accuracy.shape[2], ""
