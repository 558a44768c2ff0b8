"""Do a ViT and a CNN see alike without labels? Twins that learned from labels, from views (LeJEPA), and not at all."""

from collections.abc import Iterator
from dataclasses import replace

from sightline.studies.definitions.settings import (
    CIFAR,
    CIFAR_TEST,
    LEARN,
    TEST,
    few_shot,
    lejepa_recipe,
    similarity,
    thirds,
    training,
    untrained,
)
from sightline.studies.engine.specs import Measurement, Training
from sightline.studies.engine.study import Decides, Question, SeedNumbers, Study, seed_null

LEARNED = ("labels", "views", "nothing")
MARGIN = 0.1  # of CKA, within which lower layers count as equally alike


def train(family: str, learned: str, seed: int) -> Training:
    """Twins: the same initialization, images and steps. Those with labels are trainings of the study data."""
    twin = training(family, CIFAR, seed=seed)
    if learned == "nothing":
        return untrained(twin)
    return twin if learned == "labels" else replace(twin, recipe=lejepa_recipe(CIFAR.name, seed=seed))


def measure(learned: str, seed: int) -> Iterator[tuple[str, Measurement]]:
    vit, bit = (train(family, learned, seed) for family in ("ViT", "BiT"))
    yield "ViT to BiT", similarity(vit, bit, CIFAR_TEST)
    yield "ViT to other seed", similarity(vit, train("ViT", learned, seed + 1), CIFAR_TEST)
    yield "few-shot, ViT", few_shot(vit, LEARN, TEST)
    yield "few-shot, BiT", few_shot(bit, LEARN, TEST)


def alike(s: SeedNumbers, learned: str, third: int) -> float:
    """CKA of ViT and CNN at equal relative depth: mean of the lowest (0) or of the top third (1)."""
    return thirds(s("ViT to BiT", learned=learned)["blocks"])[third]


def by_labels(s: SeedNumbers, third: int) -> float:
    """How much more alike labels make them than views do."""
    return alike(s, "labels", third) - alike(s, "views", third)


def same_family(s: SeedNumbers) -> float:
    """CKA of two supervised ViTs minus that of ViT and CNN, mean over blocks."""
    pairs = (s(name, learned="labels")["blocks"] for name in ("ViT to other seed", "ViT to BiT"))
    own, other = (sum(blocks) / len(blocks) for blocks in pairs)
    return float(own - other)


STUDY = Study(
    name="unlabeled",
    question="Do Vision Transformers and convolutional networks see alike without labels?",
    source="our own question, with the statistic of Raghu et al.",
    axes={"learned": LEARNED},
    fixed={
        "models": "vit-nano4 and bit-nano, the same initialization whatever they learn from",
        "labels": "1,500 steps of 64 images of CIFAR-10 at 24 px, the trainings of the study data",
        "views": "LeJEPA: 1,500 steps of 64 views, two of each of 32 images, AdamW for both families",
        "similarity": "CKA of blocks at equal relative depth, 1,024 test images; by thirds of the depth",
        "beside": "few-shot accuracy of every twin, and the untrained ones",
    },
    scale="ViT of 0.2 and BiT of 0.5 million parameters on CIFAR-10 at 24 px, 1,500 steps",
    measure=measure,
    decides=(
        Decides(
            claim="without labels",
            source="our own question",
            statement="Labels make a ViT and a CNN alike at the top: trained on views instead they are less alike "
            "there, and about as alike below.",
            paper="not asked",
            questions=(
                Question(what="CKA of ViT and CNN, top third, labels minus views", of=lambda s: by_labels(s, 1)),
                Question(
                    what="CKA of ViT and CNN, lowest third, labels minus views",
                    of=lambda s: by_labels(s, 0),
                    side="within",
                    margin=MARGIN,
                ),
            ),
            null=seed_null("CKA of ViT and CNN, top third, views", lambda s: alike(s, "views", 1)),
            control=Question(
                what="CKA of two ViTs minus that of ViT and CNN, with labels", of=lambda s: same_family(s)
            ),
        ),
    ),
)
