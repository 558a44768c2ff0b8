"""Why a CNN does better with little data: its prior is that near pixels belong together (ViT, section 4.3)."""

from collections.abc import Iterator
from dataclasses import replace

from sightline.studies.definitions.settings import CIFAR_TEST, accuracy
from sightline.studies.definitions.vit.data import LITTLE, MUCH, train
from sightline.studies.engine.specs import Measurement
from sightline.studies.engine.study import Decides, Question, SeedNumbers, Study, seed_null

PATCH = 4
POINT = 0.01


def measure(family: str, images: int, patches: str, seed: int) -> Iterator[tuple[str, Measurement]]:
    """One fixed permutation of the patches, for training and test alike. A ViT can learn it with its positions."""
    model, test = train(family, images, seed), CIFAR_TEST
    assert model.recipe is not None
    still = replace(model.recipe, augment=replace(model.recipe.augment, flip=False, shift=0.0))
    model = replace(model, recipe=still)
    if patches == "permuted":
        model = replace(model, images=replace(model.images, permuted=PATCH))
        test = replace(test, permuted=PATCH)
    yield "accuracy", accuracy(model, test)


def gap(s: SeedNumbers, images: int, patches: str) -> float:
    """Accuracy, BiT minus ViT."""
    bit, vit = (s.accuracy(family=family, images=images, patches=patches) for family in ("BiT", "ViT"))
    return bit - vit


def prior(s: SeedNumbers, images: int) -> float:
    """How much of the lead of the BiT is gone once neighbors are no longer near."""
    return gap(s, images, "in order") - gap(s, images, "permuted")


def loss(s: SeedNumbers, images: int) -> float:
    """What the permutation costs a ViT."""
    moved, still = (s.accuracy(family="ViT", images=images, patches=p) for p in ("permuted", "in order"))
    return moved - still


STUDY = Study(
    name="locality",
    question="Is it the prior of locality that a CNN owes its lead to?",
    source="ViT, section 4.3",
    axes={"family": ("ViT", "BiT"), "images": (LITTLE, MUCH), "patches": ("in order", "permuted")},
    fixed={
        "images": "CIFAR-10 at 24 px, patches of 4 x 4 in order or in one fixed random order; tested on 10,000",
        "augmentation": "none: shifts and flips would mix the patches",
        "models": "vit-nano4, bit-nano",
        "steps": "1,500 of 64",
    },
    scale="ViT and BiT of 0.2 and 0.5 million parameters on CIFAR-10 at 24 px, 1,500 steps",
    measure=measure,
    decides=(
        Decides(
            claim="reason of V1",
            source="ViT, section 4.3",
            statement="A ResNet leads with little data because of its prior of locality, which a ViT does not have.",
            questions=(
                Question(what="BiT minus ViT, in order minus permuted, 1,000 images", of=lambda s: prior(s, LITTLE)),
                Question(what="BiT minus ViT, in order minus permuted, 50,000 images", of=lambda s: prior(s, MUCH)),
                Question(
                    what="ViT, permuted minus in order, 1,000 images",
                    of=lambda s: loss(s, LITTLE),
                    side="within",
                    margin=POINT,
                ),
                Question(
                    what="ViT, permuted minus in order, 50,000 images",
                    of=lambda s: loss(s, MUCH),
                    side="within",
                    margin=POINT,
                ),
            ),
            null=seed_null("BiT minus ViT, in order, 1,000 images", lambda s: gap(s, LITTLE, "in order")),
            control=Question(
                what="accuracy of the BiT in order, 50,000 minus 1,000 images",
                of=lambda s: (
                    s.accuracy(family="BiT", images=MUCH, patches="in order")
                    - s.accuracy(family="BiT", images=LITTLE, patches="in order")
                ),
            ),
        ),
    ),
)
