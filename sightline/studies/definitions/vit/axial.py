"""Attention along rows and columns instead of over all patches (ViT, appendix D.6)."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from sightline.models.construct import build
from sightline.models.costs import cost
from sightline.studies.definitions.settings import (
    CIFAR,
    CIFAR_TEST,
    FIGURE,
    GUESS,
    MODELS,
    SIZE,
    STEPS,
    accuracy,
    training,
)
from sightline.studies.engine.specs import Measurement
from sightline.studies.engine.study import Decides, Question, SeedNumbers, Study, seed_null

FULL, AXIAL, HALF = "full", "axial", "axial, half the depth"
CHANGES: dict[str, dict[str, Any]] = {
    FULL: {},
    AXIAL: {"attention": "axial"},
    HALF: {"attention": "axial", "depth": 3},
}


@cache
def macs(attention: str) -> int:
    """Multiply-adds of one image."""
    return cost(build(MODELS["ViT"][0], classes=10, size=SIZE, device="meta", **CHANGES[attention])).macs


def measure(attention: str, seed: int) -> Iterator[tuple[str, Measurement]]:
    """Of half the depth, as many steps as the ViT's operations pay for."""
    steps = round(STEPS * macs(FULL) / macs(HALF)) if attention == HALF else STEPS
    model = training("ViT", CIFAR, seed=seed, changes=CHANGES[attention], steps=steps)
    yield "accuracy", accuracy(model, CIFAR_TEST)
    yield "course", Measurement(name="course", models=(model,))


def ahead(s: SeedNumbers, attention: str) -> float:
    return s.accuracy(attention=attention) - s.accuracy(attention=FULL)


NULL = seed_null("accuracy, full attention", lambda s: s.accuracy(attention=FULL))

STUDY = Study(
    name="axial",
    question="Is attention along rows, then along columns, better than attention over all patches?",
    source="ViT, appendix D.6",
    axes={"attention": (FULL, AXIAL, HALF)},
    fixed={
        "images": "CIFAR-10, all 50,000, at 24 px; tested on 10,000",
        "model": "vit-nano4 of the study data; axial: a row attention and a column attention in place of each, an MLP "
        "behind both, so twice the blocks, or as many at half the depth",
        "steps": "1,500 of 64; at half the depth as many as the operations of the ViT pay for (1,664)",
    },
    scale="ViT of 0.2 million parameters on CIFAR-10 at 24 px, 1,500 steps",
    measure=measure,
    decides=(
        Decides(
            claim="axial attention",
            source="ViT, appendix D.6",
            statement="At equal depth axial attention is more accurate, at a higher cost.",
            paper=FIGURE,
            questions=(Question(what="accuracy, axial minus full attention", of=lambda s: ahead(s, AXIAL)),),
            null=NULL,
            control=Question(what="accuracy, axial attention", of=lambda s: s.accuracy(attention=AXIAL), bound=GUESS),
        ),
        Decides(
            claim="axial attention at equal compute",
            source="ours, after ViT, appendix D.6",
            statement="At equal multiply-adds of training, axial attention is more accurate.",
            questions=(Question(what="accuracy, axial at half the depth minus full", of=lambda s: ahead(s, HALF)),),
            null=NULL,
            control=Question(what="accuracy, axial, half depth", of=lambda s: s.accuracy(attention=HALF), bound=GUESS),
        ),
    ),
)
