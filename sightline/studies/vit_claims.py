"""Claims of the ViT paper (V), of BiT and about few-shot learning (B) that saved results can decide."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from sightline.analysis.attention.distance import AttentionDistance
from sightline.analysis.embeddings import PatchFilters, PositionSimilarity
from sightline.analysis.saliency.faithfulness import ObjectMass
from sightline.analysis.saliency.object_focus import ObjectFocus
from sightline.evals.episodic import Episodes
from sightline.evals.few_shot import FewShot
from sightline.spec import ModelId
from sightline.studies.evidence import Evidence, Model, couples
from sightline.studies.verdict import Assessment, Effect, around, exact, mean_of, share_difference, share_of

NEAR, FAR = 1 / 3, 2 / 3  # of the distance of uniform attention; our reading of "local" and "global"


def positions(e: Evidence) -> Iterator[Assessment]:
    for m, r in e.each(list(e.models), PositionSimilarity):
        effects = (
            exact("rank correlation of cosine and distance", r.decay, bound=-0.3, side="below"),
            exact("same row or column, minus others as far apart", r.row_column),
        )
        yield Assessment(models=(m.id,), effects=effects)


def head_effect(what: str, r: AttentionDistance, place: tuple[int, int], bound: float, side: Any) -> Effect:
    """The distance of one head as a fraction of that of uniform attention."""
    value, error = r.pixels[place] / r.uniform, r.error[place] / r.uniform
    return around(what, value, 1.96 * error, "images", bound=bound, side=side)


def extreme(r: AttentionDistance, rows: range, pick: str) -> tuple[int, int]:
    """Block and head of the most local or most global head within some blocks."""
    part = r.pixels[rows.start : rows.stop]
    flat = np.argmin(part) if pick == "local" else np.argmax(part)
    block, head = divmod(int(flat), part.shape[1])
    return rows.start + block, head


def distances(e: Evidence) -> Iterator[Assessment]:
    first = range(0, 1)
    for m, r in e.each(e.of("vit", "hybrid", ""), AttentionDistance):
        half = max(1, len(r.pixels) // 2)
        rise = (r.pixels[half:].mean() - r.pixels[:half].mean()) / r.uniform
        error = (r.error[half:].mean() + r.error[:half].mean()) / r.uniform  # as if all heads erred together
        far = r.pixels[half:] > FAR * r.uniform
        effects = (
            head_effect("most local head of the lowest block", r, extreme(r, first, "local"), NEAR, "below"),
            head_effect("most global head of the lowest block", r, extreme(r, first, "global"), FAR, "above"),
            around("rise from the lower to the upper half", rise, 1.96 * error, "images"),
            share_of("heads of the upper half that are global", far, "heads", bound=0.5),
        )
        note = "distances as fractions of that of uniform attention; local: below 1/3, global: above 2/3"
        yield Assessment(models=(m.id,), effects=effects, note=note, images=r.about.images)


def hybrid_heads(e: Evidence) -> Iterator[Assessment]:
    def judge(vit: Model, hybrid: Model, a: AttentionDistance, b: AttentionDistance) -> Assessment:
        local = [share_of("", x.pixels[0] < NEAR * x.uniform, "heads") for x in (a, b)]
        effect = share_difference("local heads of the lowest block, ViT minus hybrid", local[0], local[1])
        return Assessment(models=(vit.id, hybrid.id), effects=(effect,))

    return e.compare(couples(e.of("vit"), e.of("hybrid")), AttentionDistance, judge)


def filters(e: Evidence) -> Iterator[Assessment]:
    for m, r in e.each(e.of("vit", ""), PatchFilters):
        low = float((r.low_frequency * r.explained).sum() / r.explained.sum())
        effects = (
            exact(f"variance that {len(r.explained)} components explain", float(r.explained.sum()), bound=0.5),
            exact("energy at low frequencies, minus noise", low - r.low_frequency_of_noise),
        )
        yield Assessment(models=(m.id,), effects=effects)


def rollout_focus(e: Evidence) -> Iterator[Assessment]:
    for r in e.all(ObjectMass):
        effect = mean_of("mass on the object minus its area", r.mass - r.area, "images")
        yield Assessment(models=r.about.models, effects=(effect,), images=r.about.images)
    for f in e.all(ObjectFocus):
        if "rollout" in f.methods:
            gain = (f.mass - f.area)[f.methods.index("rollout")]
            effect = mean_of("rollout: mass on the object minus its area", gain, "images")
            yield Assessment(models=f.about.models, effects=(effect,), images=f.about.images)


def _models(r: FewShot | Episodes) -> tuple[ModelId, ...]:
    return r.about.models or (ModelId(name=str(r.how.get("model", ""))),)


def shots(e: Evidence) -> Iterator[Assessment]:
    for r in e.all(FewShot):
        if len(r.shots) < 2:
            continue
        gain = mean_of(f"{r.shots[-1]}-shot minus {r.shots[0]}-shot accuracy", r.accuracy[-1] - r.accuracy[0], "draws")
        spread = r.accuracy.std(1, ddof=1) if len(r.seeds) > 1 else np.full(len(r.shots), np.nan)
        note = f"spread over draws: {spread[0]:.3f} at {r.shots[0]}, {spread[-1]:.3f} at {r.shots[-1]} shots"
        yield Assessment(models=_models(r), effects=(gain,), note=note, images=r.about.images)


def ways_and_shots(e: Evidence) -> Iterator[Assessment]:
    for r in e.all(Episodes):
        if len(r.ways) < 2 or len(r.shots) < 2:
            continue
        few, many = np.argmin(r.ways), np.argmax(r.ways)
        one, most = np.argmin(r.shots), np.argmax(r.shots)
        falls = (r.accuracy[few] - r.accuracy[many]).mean(0)
        rises = (r.accuracy[:, most] - r.accuracy[:, one]).mean(0)
        effects = (
            mean_of(f"{r.ways[few]}-way minus {r.ways[many]}-way accuracy", falls, "episodes"),
            mean_of(f"{r.shots[most]}-shot minus {r.shots[one]}-shot accuracy", rises, "episodes"),
        )
        yield Assessment(models=_models(r), effects=effects, images=r.about.images)
