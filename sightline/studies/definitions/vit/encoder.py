"""Where the norm of an encoder stands, and which norm it is (ViT, section 3.1)."""

from collections.abc import Iterator
from math import log
from typing import Any

from sightline.studies.definitions.settings import CIFAR, CIFAR_TEST, LR, STEPS, accuracy, training
from sightline.studies.engine.specs import Measurement, Training
from sightline.studies.engine.study import Decides, MissingNumberError, Question, SeedNumbers, Study

KINDS: dict[str, dict[str, Any]] = {
    "pre-norm": {},
    "post-norm": {"norm_at": "post"},
    "batch norm": {"norm": "batch"},
}
RATES = tuple(LR["ViT"] * factor for factor in (1, 1 / 4, 4, 16))
DEPTH = 12  # where the place of the norm begins to matter
LEARNED = 0.85 * log(10)  # cross-entropy; ln 10 is that of a guess


def train(encoder: str, rate: float, seed: int) -> Training:
    return training("ViT", CIFAR, seed=seed, changes={"depth": DEPTH, **KINDS[encoder]}, lr=rate, steps=STEPS // 3)


def measure(encoder: str, rate: float, seed: int) -> Iterator[tuple[str, Measurement]]:
    yield "accuracy", accuracy(train(encoder, rate, seed), CIFAR_TEST)


def learned(s: SeedNumbers, encoder: str) -> float:
    """Share of the rates at which it learns; a training that diverges does not."""
    return sum(learns(s, encoder, rate) for rate in RATES) / len(RATES)


def learns(s: SeedNumbers, encoder: str, rate: float) -> bool:
    found = s.by_seed[s.seed].get(("accuracy", (("encoder", encoder), ("rate", rate))))
    if found is None:
        raise MissingNumberError(f"{encoder} at {rate}")
    return "diverged" not in found and found["loss"] < LEARNED


STUDY = Study(
    name="encoder",
    question="Does it matter where the norms of an encoder stand?",
    source="ViT, section 3.1",
    axes={"encoder": tuple(KINDS), "rate": RATES},
    fixed={
        "images": "CIFAR-10, all 50,000, at 24 px; tested on 10,000",
        "model": "vit-nano4 with 12 blocks",
        "steps": "500 of 64",
        "learns": "cross-entropy on test images below 0.85 ln 10",
    },
    scale="ViT of 0.4 million parameters and 12 blocks on CIFAR-10 at 24 px, 500 steps, four learning rates",
    measure=measure,
    decides=(
        Decides(
            claim="pre-norm",
            source="ViT, section 3.1",
            statement="A deep encoder learns at more learning rates with norms before its sublayers than after them.",
            questions=(
                Question(
                    what="share of learning rates that train, pre-norm minus post-norm",
                    of=lambda s: learned(s, "pre-norm") - learned(s, "post-norm"),
                    step=1 / len(RATES),
                ),
            ),
            null=Question(
                what="share of learning rates that train, pre-norm minus another seed",
                of=lambda s: learned(s, "pre-norm") - learned(s.next(), "pre-norm"),
                step=1 / len(RATES),
                noise=True,
            ),
            control=Question(
                what="share of learning rates that train, pre-norm",
                of=lambda s: learned(s, "pre-norm"),
                step=1 / len(RATES),
            ),
        ),
    ),
)
