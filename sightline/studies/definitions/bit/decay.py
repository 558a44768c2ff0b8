"""Low weight decay learns faster and ends worse (BiT, section 4.2)."""

from collections.abc import Iterator
from dataclasses import replace

from sightline.studies.definitions.settings import CIFAR, CIFAR_TEST, STEPS, training
from sightline.studies.engine.specs import Measurement, Training
from sightline.studies.engine.study import Decides, Question, SeedNumbers, Study

USUAL, LOW = 5e-4, 5e-5
LONG = 2 * STEPS


def train(decay: float, seed: int) -> Training:
    """Scored on the test images ten times on the way; nothing is chosen by these scores."""
    model = training("BiT", CIFAR, seed=seed, steps=LONG, weight_decay=decay)
    assert model.recipe is not None
    return replace(model, val=CIFAR_TEST, recipe=replace(model.recipe, eval_every=LONG // 10))


def measure(decay: float, seed: int) -> Iterator[tuple[str, Measurement]]:
    yield "course", Measurement(name="course", models=(train(decay, seed),))


def at(s: SeedNumbers, decay: float, share: float) -> float:
    """Accuracy after a share of the training."""
    curve = s("course", decay=decay)["val"]
    return float(min(curve, key=lambda point: abs(point[0] - share * curve[-1][0]))[1])


def gap(s: SeedNumbers, share: float) -> float:
    return at(s, LOW, share) - at(s, USUAL, share)


STUDY = Study(
    name="decay",
    question="Is low weight decay a false friend?",
    source="BiT, section 4.2",
    axes={"decay": (USUAL, LOW)},
    fixed={
        "images": "CIFAR-10, all 50,000, at 24 px; tested on 10,000",
        "model": "bit-nano",
        "steps": "3,000 of 64; scored at every tenth of the way",
    },
    scale="BiT of 0.5 million parameters on CIFAR-10 at 24 px, 3,000 steps",
    measure=measure,
    decides=(
        Decides(
            claim="B5",
            source="BiT, section 4.2",
            statement="With less weight decay training looks faster at first and ends worse.",
            paper="1e-5 against 1e-4",
            questions=(
                Question(what="accuracy after 30 % of the steps, low minus usual decay", of=lambda s: gap(s, 0.3)),
                Question(what="accuracy at the end, low minus usual decay", of=lambda s: gap(s, 1.0), side="below"),
            ),
            null=Question(
                what="accuracy at the end, usual decay minus another seed",
                of=lambda s: at(s, USUAL, 1.0) - at(s.next(), USUAL, 1.0),
                side="below",
                noise=True,
            ),
            control=Question(
                what="accuracy with the usual decay, at the end minus at 10 %",
                of=lambda s: at(s, USUAL, 1.0) - at(s, USUAL, 0.1),
            ),
        ),
    ),
)
