"""Whether an MLP-Mixer sees more like a ViT or more like a CNN (Raghu et al., appendix H)."""

from collections.abc import Iterator

from sightline.studies.definitions.settings import CIFAR_TEST, FIGURE, accuracy, similarity, untrained
from sightline.studies.definitions.vit.data import MUCH, train
from sightline.studies.engine.specs import Measurement
from sightline.studies.engine.study import Decides, Question, SeedNumbers, Study, seed_null


def measure(other: str, seed: int) -> Iterator[tuple[str, Measurement]]:
    """The Mixer beside a ViT and a BiT of the same seed, and beside another Mixer."""
    mixer = train("Mixer", MUCH, seed)
    if other == "Mixer":
        yield "accuracy", accuracy(mixer, CIFAR_TEST)
        yield "similarity", similarity(mixer, train("Mixer", MUCH, seed + 1), CIFAR_TEST)
        return
    twin = train(other, MUCH, seed)
    yield "similarity", similarity(mixer, twin, CIFAR_TEST)
    yield "untrained", similarity(untrained(mixer), untrained(twin), CIFAR_TEST)


def alike(s: SeedNumbers, other: str) -> float:
    """CKA at equal relative depth, mean over the blocks of the Mixer: other models have more or fewer of them."""
    blocks = s("similarity", other=other)["blocks"]
    return float(sum(blocks) / len(blocks))


STUDY = Study(
    name="mixer",
    question="Is an MLP-Mixer closer to a ViT than to a CNN?",
    source="Raghu et al., appendix H",
    axes={"other": ("ViT", "BiT", "Mixer")},
    fixed={
        "models": "mixer-nano4, with 6 % more operations than vit-nano4; ViT and BiT of the study data",
        "images": "trained on all of CIFAR-10 at 24 px; CKA on 1,024 test images, at equal relative depth",
        "steps": "1,500 of 64",
    },
    scale="models of 0.2 to 0.5 million parameters on CIFAR-10 at 24 px, 1,500 steps",
    measure=measure,
    decides=(
        Decides(
            claim="C24",
            source="Raghu et al., appendix H",
            statement="The layers of a Mixer are more similar to those of a ViT than to those of a ResNet.",
            paper=FIGURE,
            questions=(
                Question(
                    what="CKA of Mixer and ViT minus Mixer and BiT", of=lambda s: alike(s, "ViT") - alike(s, "BiT")
                ),
            ),
            null=seed_null("CKA of Mixer and ViT", lambda s: alike(s, "ViT")),
            control=Question(
                what="CKA of two Mixers minus Mixer and BiT", of=lambda s: alike(s, "Mixer") - alike(s, "BiT")
            ),
        ),
    ),
)
