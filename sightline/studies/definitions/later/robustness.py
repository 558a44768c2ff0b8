"""Whether a ViT is robust but hungry for data: corrupted images, and what more training images are worth."""

from collections.abc import Iterator
from dataclasses import replace

from sightline.studies.definitions.settings import CIFAR_TEST, accuracy
from sightline.studies.definitions.vit.data import LITTLE, MUCH, train
from sightline.studies.engine.specs import Measurement, Training
from sightline.studies.engine.study import Decides, Question, SeedNumbers, Study

FAMILIES = ("ViT", "BiT", "hybrid")
SEVERITIES = (1, 3, 5)
SEEN = replace(CIFAR_TEST, num=1000)  # 46 times: clean, and 15 kinds at each severity


def measure(family: str, images: int, seed: int) -> Iterator[tuple[str, Measurement]]:
    trained = train(family, images, seed)
    yield "accuracy", accuracy(trained, CIFAR_TEST)
    yield "corruptions", corrupted(trained)


def corrupted(t: Training) -> Measurement:
    return Measurement(name="corruptions", models=(t,), images=(SEEN,), options=(("severities", SEVERITIES),))


def kept(s: SeedNumbers, family: str) -> float:
    """The share of the accuracy beyond guessing that is left on corrupted images, after all of the data."""
    return float(s("corruptions", family=family, images=MUCH)["kept"])


def gain(s: SeedNumbers, family: str) -> float:
    """What all of the data is worth, in accuracy on clean images."""
    return s.accuracy(family=family, images=MUCH) - s.accuracy(family=family, images=LITTLE)


def mild_minus_severe(s: SeedNumbers) -> float:
    by_severity = s("corruptions", family="ViT", images=MUCH)["by severity"]
    return float(by_severity[0] - by_severity[-1])


STUDY = Study(
    name="robustness",
    question="Is a ViT, which assumes less, more robust than a CNN, and hungrier for data?",
    source="seminar notes",
    axes={"family": FAMILIES, "images": (LITTLE, MUCH)},
    fixed={
        "models": "ViT, BiT and hybrid of the study data: 8 to 11 million MACs an image, 1,500 steps of 64 each",
        "images": "corrupted: 1,000 test images of CIFAR-10 at 24 px, 15 kinds at severities 1, 3 and 5; clean: 10,000",
        "kept": "accuracy on corrupted images over that on clean ones, both less the tenth of a guess",
    },
    scale="ViT, BiT and hybrid of 0.2 to 0.5 million parameters on 1,000 or 50,000 images of CIFAR-10 at 24 px",
    measure=measure,
    decides=(
        Decides(
            claim="robust but data-hungry",
            source="seminar notes",
            statement="Having fewer built-in assumptions, a ViT is more robust than a CNN, and needs more data.",
            questions=(
                Question(
                    what="share of the accuracy kept on corrupted images, ViT minus BiT",
                    of=lambda s: kept(s, "ViT") - kept(s, "BiT"),
                ),
                Question(
                    what="accuracy gained from 1,000 to 50,000 images, ViT minus BiT",
                    of=lambda s: gain(s, "ViT") - gain(s, "BiT"),
                ),
            ),
            null=Question(
                what="share kept, ViT minus the same ViT of another seed",
                of=lambda s: kept(s, "ViT") - kept(s.next(), "ViT"),
                noise=True,
            ),
            control=Question(what="accuracy of the ViT at severity 1 minus at severity 5", of=mild_minus_severe),
        ),
    ),
)
