"""Claims of the ViT paper about positions, filters and rollout (V), of BiT and about few-shot learning (B)."""

from collections.abc import Iterator

import numpy as np

from sightline.analysis.embeddings import PatchFilters, PositionSimilarity
from sightline.analysis.saliency.faithfulness import ObjectMass
from sightline.analysis.saliency.object_focus import ObjectFocus
from sightline.evals.episodic import Episodes
from sightline.evals.few_shot import FewShot
from sightline.spec import ModelId
from sightline.studies.effects import against_nulls
from sightline.studies.evidence import Evidence
from sightline.studies.verdict import Assessment, exact, mean_of

DECAY = -0.3  # rank correlation: a weaker one leaves over nine tenths of the ranks' variance to other things


def positions(e: Evidence) -> Iterator[Assessment]:
    for m, r in e.each(list(e.models), PositionSimilarity):
        what = "same row or column, minus others as far apart; minus isotropic tables"
        effects = (
            exact("rank correlation of cosine and distance", r.decay, bound=DECAY, side="below"),
            against_nulls(what, r.row_column, r.isotropic, "isotropic tables of the same decay"),
        )
        yield Assessment(models=(m.id,), effects=effects)


def filters(e: Evidence) -> Iterator[Assessment]:
    for m, r in e.each(e.of("vit", ""), PatchFilters):
        over, count = "random filters of the same shape", len(r.explained)
        explained = float(r.explained.sum())
        effects = (
            against_nulls(f"variance that {count} components explain, minus random", explained, r.noise[:, 0], over),
            against_nulls("energy at low frequencies, minus random", r.smoothness, r.noise[:, 1], over),
        )
        note = f"{explained:.0%} of the variance, {r.smoothness:.0%} of its energy at low frequencies"
        yield Assessment(models=(m.id,), effects=effects, note=note)


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
        what = f"{r.shots[-1]}-shot minus {r.shots[0]}-shot accuracy"
        gain = mean_of(what, r.accuracy[-1] - r.accuracy[0], "draws of the shots")
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
