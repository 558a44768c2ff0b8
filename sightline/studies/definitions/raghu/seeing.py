"""Do ViTs see like CNNs? Every analysis of the full-data models of the study data (Raghu et al.; ViT, figure 7)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sightline.studies.claims import CLAIMS
from sightline.studies.definitions.settings import CIFAR_TEST, FIGURE, SIZE, untrained
from sightline.studies.definitions.vit.data import MUCH, train
from sightline.studies.engine.analyses import ONE_GRID
from sightline.studies.engine.specs import Images, Measurement, Training
from sightline.studies.engine.study import Decides, Study

FAMILIES = ("ViT", "BiT", "hybrid")
JUDGED = (
    "C1", "C2", "C3", "C4", "C5", "C7", "C8", "C9", "C10", "C11", "C12", "C14", "C22", "V8", "V9", "V10",
)  # fmt: skip
OBJECTS = Images(name="scenes/shape", split="test", num=512, size=SIZE)
# Raise it when the statistics of the claims change: the analyses are then done again.
VERSION = 2  # since radii of receptive fields are continuous
LARGE = (
    32  # pixels where both networks are localized: at 24 the last map of the BiT has one cell that is not at its edge
)
PAPER = {  # what the paper prints; the other claims are figures without a number
    "C3": "60 layers of ResNet50 match about 25 of ViT-B/32, 100 of ResNet152 about 30 of H/14",
    "C11": "above ResNet50 at every depth",
    "C14": "most interior tokens of ViT-B/32 and L/16",
    "V10": "28 components",
}
BESIDE = {"verdicts": "untrained", "objects": "untrained objects", "on one grid": "untrained on one grid"}


def measure(models: str, seed: int) -> Iterator[tuple[str, Measurement]]:
    trained = tuple(train(family, MUCH, seed) for family in FAMILIES)
    yield "verdicts", judged(trained, FAMILIES, CIFAR_TEST, 1024)
    large = replace(CIFAR_TEST, size=LARGE)
    yield "on one grid", judged(trained[:2], FAMILIES[:2], large, 1024, only=ONE_GRID, size=LARGE)
    yield "objects", judged(trained[:1], FAMILIES[:1], OBJECTS, 256)
    yield "figures", replace(judged(trained, FAMILIES, CIFAR_TEST, 1024), name="figures")
    twins = tuple(map(untrained, trained))
    yield "untrained", judged(twins, FAMILIES, CIFAR_TEST, 1024)
    yield "untrained on one grid", judged(twins[:2], FAMILIES[:2], large, 1024, only=ONE_GRID, size=LARGE)
    yield "untrained objects", judged(twins[:1], FAMILIES[:1], OBJECTS, 256)


def judged(models: tuple[Training, ...], names: tuple[str, ...], images: Images, n: int, **more: Any) -> Measurement:
    options = (("names", names), ("n", n), *more.items())
    return Measurement(name="verdicts", models=models, images=(images,), options=options, version=VERSION)


def decides(claim: str, measured: str) -> Decides:
    """A claim whose statistic is that of `sl.verdicts`, one value per seed."""
    known = next(c for c in CLAIMS if c.number == claim)
    return Decides(
        claim=claim,
        paper=PAPER.get(claim, FIGURE),
        source=known.source,
        statement=known.statement,
        from_verdicts=measured,
        beside=BESIDE[measured],
    )


STUDY = Study(
    name="seeing",
    question="Do Vision Transformers see like convolutional neural networks?",
    source="Raghu et al., figures 1 to 13; ViT, figures 6, 7 and 11",
    axes={"models": ("full data",)},
    fixed={
        "models": "ViT, BiT and hybrid of the study data, trained on all of CIFAR-10",
        "images": "1,024 test images of CIFAR-10; masks: 256 scenes",
        "C15": "at 32 px, both networks on the coarser grid of 4 x 4",
        "statistics": "those of sl.verdicts, one value per training seed",
    },
    scale="ViT, BiT and hybrid of 0.2 to 0.5 million parameters on CIFAR-10 at 24 px, 1,500 steps",
    measure=measure,
    seeds=10,  # the second five for all claims alike, after five left many undecided: docs/log.md, 2026-11-18
    decides=(
        *(decides(claim, "verdicts") for claim in JUDGED),
        decides("C15", "on one grid"),
        decides("V14", "objects"),
    ),
)
