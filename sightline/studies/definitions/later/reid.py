"""Individuals found again by patches of the foreground, or by whole images."""

from collections.abc import Iterator

from sightline.studies.definitions.settings import SIZE, untrained
from sightline.studies.definitions.vit.data import MUCH, train
from sightline.studies.engine.specs import Images, Measurement, Training
from sightline.studies.engine.study import Decides, Question, SeedNumbers, Study

INDIVIDUALS = Images(name="scenes/identity", split="test", num=400, size=SIZE)  # 40 individuals, 10 images of each


def measure(model: str, seed: int) -> Iterator[tuple[str, Measurement]]:
    trained = train("ViT", MUCH, seed)
    yield "retrieval", found_again(trained if model == "trained" else untrained(trained))


def found_again(model: Training) -> Measurement:
    return Measurement(name="retrieval", models=(model,), images=(INDIVIDUALS,))


def gain(s: SeedNumbers, first: str, second: str, model: str = "trained") -> float:
    found = s("retrieval", model=model)
    return float(found[first] - found[second])


STUDY = Study(
    name="reid",
    question="Do patches of the foreground find an individual again where the whole image does not?",
    source="seminar notes",
    axes={"model": ("trained", "untrained")},
    fixed={
        "models": "the ViT of the study data, trained on all of CIFAR-10, and its untrained twin",
        "images": "scenes/identity, 40 individuals in 10 poses and places each, every image a query",
        "patches": "the quarter least like the image's border; tokens of the last block, best matches both ways",
    },
    scale="ViT of 0.2 million parameters trained on CIFAR-10 at 24 px, on individuals of scenes",
    measure=measure,
    decides=(
        Decides(
            claim="re-identification",
            source="seminar notes",
            statement="Matching patches of the foreground finds an individual again better than the mean of all.",
            questions=(
                Question(
                    what="mean average precision, foreground patches minus whole images",
                    of=lambda s: gain(s, "patches", "whole"),
                ),
            ),
            null=Question(
                what="retrieval, foreground patches minus pooled, individuals shuffled",
                of=lambda s: gain(s, "patches by chance", "whole by chance"),
            ),
            control=Question(
                what="mean average precision of whole images, minus with individuals shuffled",
                of=lambda s: gain(s, "whole", "whole by chance"),
            ),
        ),
    ),
)
