"""Long-tailed training data: what is learned of frequent and of rare classes."""

from collections.abc import Iterator
from dataclasses import replace

from sightline.studies.definitions.settings import (
    CIFAR,
    CIFAR_TEST,
    GUESS,
    LEARN,
    TEST,
    accuracy,
    probes,
    similarity,
    training,
)
from sightline.studies.engine.specs import Measurement, Training
from sightline.studies.engine.study import Decides, Question, SeedNumbers, Study

RATIO, IMAGES = 100, 12_406  # the first class has 5,000 images, the last 50; as many in all, in equal parts
HEAD, TAIL = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)
PARTS = {"head": HEAD, "tail": TAIL}


def train(images: str, seed: int) -> Training:
    part = replace(CIFAR, tail=RATIO, seed=seed) if images == "long tail" else replace(CIFAR, num=IMAGES, seed=seed)
    return training("ViT", part, seed=seed)


def measure(images: str, seed: int) -> Iterator[tuple[str, Measurement]]:
    """A balanced training with another seed is what the long tail is held against."""
    model = train(images, seed)
    yield "accuracy", accuracy(model, CIFAR_TEST)
    for part, classes in PARTS.items():
        other = train("balanced", seed if images == "long tail" else seed + 1)
        yield f"to balanced, {part}", similarity(model, other, CIFAR_TEST, classes=classes)
        yield f"probes, {part}", probes(model, LEARN, TEST, classes=classes)


def head_first(s: SeedNumbers, images: str) -> float:
    """CKA with the balanced twin, middle block, frequent minus rare classes."""
    head, tail = (s(f"to balanced, {part}", images=images)["blocks"] for part in PARTS)
    return float(head[len(head) // 2] - tail[len(tail) // 2])


def probe(s: SeedNumbers, images: str, part: str) -> float:
    curve = s(f"probes, {part}", images=images)["curves"]["mean of patches"]
    return float(curve[len(curve) // 2])


def gained(s: SeedNumbers, part: str) -> float:
    """Probe of the middle block on some of the classes, long tail minus balanced."""
    return probe(s, "long tail", part) - probe(s, "balanced", part)


STUDY = Study(
    name="imbalance",
    question="Does a long tail of rare classes harm what is learned of them?",
    source="seminar notes",
    axes={"images": ("long tail", "balanced")},
    fixed={
        "images": "CIFAR-10 at 24 px: 5,000 of the first class to 50 of the last, or 12,406 in equal parts",
        "model": "vit-nano4",
        "steps": "1,500 of 64",
        "head and tail": "the first and the last five classes, each against the same classes of the balanced twin",
    },
    scale="ViT of 0.2 million parameters, 12,406 images of CIFAR-10 at 24 px, 1,500 steps",
    measure=measure,
    decides=(
        Decides(
            claim="long tail",
            source="seminar notes",
            statement="A long tail changes what middle layers know of rare classes more than of frequent ones.",
            questions=(
                Question(
                    what="CKA with the balanced twin in the middle, frequent minus rare classes",
                    of=lambda s: head_first(s, "long tail"),
                ),
                Question(
                    what="probe in the middle, long tail minus balanced, frequent minus rare classes",
                    of=lambda s: gained(s, "head") - gained(s, "tail"),
                ),
            ),
            null=Question(
                what="the first of a balanced training with another seed, minus that of the next one",
                of=lambda s: head_first(s, "balanced") - head_first(s.next(), "balanced"),
                noise=True,
            ),
            control=Question(
                what="accuracy of the balanced training", of=lambda s: s.accuracy(images="balanced"), bound=GUESS
            ),
        ),
    ),
)
