"""Adam or SGD for a ResNet (ViT, table 7)."""

from collections.abc import Iterator
from typing import Any

from sightline.studies.definitions.settings import CIFAR, CIFAR_TEST, GUESS, LR, accuracy, few_shot, training
from sightline.studies.definitions.vit.data import OTHER, OTHER_TEST
from sightline.studies.engine.specs import Measurement, Training
from sightline.studies.engine.study import Decides, Question, SeedNumbers, Study


def train(optimizer: str, seed: int) -> Training:
    """SGD as in every study; AdamW with the rate and decay of the ViTs."""
    fields: dict[str, Any] = {} if optimizer == "SGD" else {"optimizer": "adamw", "lr": LR["ViT"], "weight_decay": 0.05}
    return training("BiT", CIFAR, seed=seed, **fields)


def measure(optimizer: str, seed: int) -> Iterator[tuple[str, Measurement]]:
    model = train(optimizer, seed)
    yield "accuracy", accuracy(model, CIFAR_TEST)
    yield "few-shot", few_shot(model, OTHER, OTHER_TEST)
    yield "suite", Measurement(name="suite", models=(model,))


def transfer(s: SeedNumbers, optimizer: str) -> float:
    return float(s("suite", optimizer=optimizer)["score"])


STUDY = Study(
    name="optimizer",
    question="Does Adam train a ResNet that transfers better than one trained with SGD?",
    source="ViT, table 7",
    axes={"optimizer": ("SGD", "Adam")},
    fixed={
        "images": "CIFAR-10, all 50,000, at 24 px; transfer: scenes-vtab, linear on frozen features",
        "model": "bit-nano",
        "steps": "1,500 of 64",
    },
    scale="BiT of 0.5 million parameters on CIFAR-10 at 24 px, 1,500 steps",
    measure=measure,
    decides=(
        Decides(
            claim="Adam for ResNets",
            source="ViT, table 7",
            statement="Pre-trained with Adam, a ResNet transfers better than with SGD.",
            paper="mean of five tasks, R50: 89.3 with Adam, 88.8 with SGD",
            questions=(
                Question(
                    what="mean over scenes-vtab, Adam minus SGD", of=lambda s: transfer(s, "Adam") - transfer(s, "SGD")
                ),
            ),
            null=Question(
                what="mean over scenes-vtab, SGD minus another seed",
                of=lambda s: transfer(s, "SGD") - transfer(s.next(), "SGD"),
                noise=True,
            ),
            control=Question(
                what="accuracy on CIFAR-10 itself, SGD", of=lambda s: s.accuracy(optimizer="SGD"), bound=GUESS
            ),
        ),
    ),
)
