"""Learning without labels before fine-tuning: masked patches (ViT, section 4.6, appendix B.1.2), MAE, LeJEPA."""

from collections.abc import Iterator
from dataclasses import replace

from sightline.studies.definitions.settings import (
    CIFAR,
    CIFAR_TEST,
    LR,
    STEPS,
    accuracy,
    lejepa_recipe,
    masked_recipe,
    recipe,
    training,
)
from sightline.studies.engine.specs import Measurement, Training
from sightline.studies.engine.study import Decides, Question, SeedNumbers, Study

TARGETS = {"mean color": "color", "4 x 4 colors": "color-4x4", "pixels": "pixels"}
STARTS = ("scratch", *TARGETS, "supervised", "MAE", "LeJEPA")
LABELS = 2000
TUNED = STEPS // 2
POINT = 0.01


def pretrained(start: str, seed: int) -> Training | None:
    """On all 50,000 images: with their labels, or without."""
    supervised = training("ViT", CIFAR, seed=seed)
    if start in TARGETS:
        return replace(supervised, recipe=masked_recipe(CIFAR.name, seed=seed, target=TARGETS[start]))
    match start:
        case "MAE":
            return replace(supervised, recipe=masked_recipe(CIFAR.name, seed=seed, task="mae", corrupt=0.75))
        case "LeJEPA":
            return replace(supervised, recipe=lejepa_recipe(CIFAR.name, seed=seed))
    return supervised if start == "supervised" else None


def train(start: str, seed: int) -> Training:
    """Then 2,000 labels, the same for every start."""
    few = replace(CIFAR, num=LABELS, seed=seed)
    short = recipe("ViT", few.name, seed=seed + 1000, steps=TUNED, lr=LR["ViT"] / 2)
    return replace(training("ViT", few, seed=seed), recipe=short, start=pretrained(start, seed))


def measure(start: str, seed: int) -> Iterator[tuple[str, Measurement]]:
    yield "accuracy", accuracy(train(start, seed), CIFAR_TEST)


def gain(s: SeedNumbers, start: str, than: str) -> float:
    return s.accuracy(start=start) - s.accuracy(start=than)


STUDY = Study(
    name="masked",
    question="Can a ViT learn from images without labels?",
    source="ViT, section 4.6 and appendix B.1.2",
    axes={"start": STARTS},
    fixed={
        "pre-training": "CIFAR-10, all 50,000, at 24 px, 1,500 steps of 64",
        "then": "2,000 labels, 750 steps of 64, the same for every start; tested on 10,000",
        "model": "vit-nano4",
        "LeJEPA": "64 views in a step, two of each of 32 images, so the same number of passes through the network",
        "MAE": "the encoder sees a quarter of the patches, so its steps are cheaper",
        "left out": "5,000 labels",
    },
    scale="ViT of 0.2 million parameters on CIFAR-10 at 24 px, 1,500 steps without labels, then 2,000 labels",
    measure=measure,
    decides=(
        Decides(
            claim="V11",
            source="ViT, section 4.6",
            statement="Masked patch prediction before fine-tuning beats training from scratch, not supervised "
            "pre-training on more data.",
            paper="79.9 % on ImageNet: 2 points above scratch, 4 below supervised pre-training",
            questions=(
                Question(what="accuracy, mean color minus scratch", of=lambda s: gain(s, "mean color", "scratch")),
                Question(
                    what="accuracy, supervised minus mean color", of=lambda s: gain(s, "supervised", "mean color")
                ),
                Question(
                    what="accuracy, mean color minus pixels",
                    of=lambda s: gain(s, "mean color", "pixels"),
                    bound=-POINT,
                ),
            ),
            null=Question(
                what="accuracy, scratch minus scratch of another seed",
                of=lambda s: s.accuracy(start="scratch") - s.next().accuracy(start="scratch"),
                noise=True,
            ),
            control=Question(what="accuracy, supervised minus scratch", of=lambda s: gain(s, "supervised", "scratch")),
        ),
        Decides(
            claim="views",
            source="our own question",
            statement="LeJEPA before fine-tuning beats training from scratch, and is at most a point behind masked "
            "patches and MAE.",
            questions=(
                Question(what="accuracy, LeJEPA minus scratch", of=lambda s: gain(s, "LeJEPA", "scratch")),
                Question(
                    what="accuracy, LeJEPA minus mean color",
                    of=lambda s: gain(s, "LeJEPA", "mean color"),
                    bound=-POINT,
                ),
                Question(what="accuracy, LeJEPA minus MAE", of=lambda s: gain(s, "LeJEPA", "MAE"), bound=-POINT),
            ),
            null=Question(
                what="accuracy, scratch minus scratch of another seed",
                of=lambda s: s.accuracy(start="scratch") - s.next().accuracy(start="scratch"),
                noise=True,
            ),
            control=Question(what="accuracy, supervised minus scratch", of=lambda s: gain(s, "supervised", "scratch")),
        ),
    ),
)
