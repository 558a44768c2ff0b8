"""Fine-tuning and testing at a higher resolution than that of training (ViT, section 3.2)."""

from collections.abc import Iterator
from dataclasses import replace

from sightline.studies.definitions.settings import CIFAR, CIFAR_TEST, GUESS, LR, SIZE, STEPS, accuracy, recipe, training
from sightline.studies.engine.specs import Measurement, Training
from sightline.studies.engine.study import Decides, Question, Study, seed_null

ABOVE, HIGH = 28, 32
TUNED = STEPS // 5


def base(seed: int) -> Training:
    return training("ViT", CIFAR, seed=seed)


def tune(size: int, seed: int) -> Training:
    """The same number of steps at either resolution."""
    images = replace(CIFAR, size=size)
    short = recipe("ViT", images.name, seed=seed + 1000, steps=TUNED, lr=LR["ViT"] / 5)
    return replace(base(seed), images=images, recipe=short, start=base(seed), changes=())


def measure(size: int, tuned: str, seed: int) -> Iterator[tuple[str, Measurement]]:
    test = replace(CIFAR_TEST, size=size)
    if tuned == "no":
        yield "accuracy", accuracy(base(seed), test, size=size)
    elif size != ABOVE:
        yield "accuracy", accuracy(tune(size, seed), test)


STUDY = Study(
    name="resolution",
    question="Does a ViT gain from a higher resolution after training?",
    source="ViT, section 3.2 and table 5",
    axes={"size": (SIZE, ABOVE, HIGH), "tuned": ("no", "yes")},
    fixed={
        "images": "CIFAR-10, all 50,000; trained at 24 px, then 300 steps at 24 or 32 px; tested on 10,000",
        "model": "vit-nano4; position embeddings resampled",
    },
    scale="ViT of 0.2 million parameters on CIFAR-10, trained at 24 px for 1,500 steps, tuned for 300",
    measure=measure,
    decides=(
        Decides(
            claim="V6",
            source="ViT, section 3.2",
            statement="Fine-tuning at a higher resolution than that of pre-training helps.",
            questions=(
                Question(
                    what="accuracy after tuning, at 32 px minus at 24 px",
                    of=lambda s: s.accuracy(size=HIGH, tuned="yes") - s.accuracy(size=SIZE, tuned="yes"),
                ),
            ),
            null=Question(
                what="accuracy after tuning at 24 px, minus another seed",
                of=lambda s: s.accuracy(size=SIZE, tuned="yes") - s.next().accuracy(size=SIZE, tuned="yes"),
                noise=True,
            ),
            control=Question(
                what="accuracy at 32 px, tuned there minus not tuned",
                of=lambda s: s.accuracy(size=HIGH, tuned="yes") - s.accuracy(size=HIGH, tuned="no"),
            ),
        ),
        Decides(
            claim="test resolution",
            source="Touvron et al. (2019)",
            statement="Tested a little above its training resolution, without tuning, a model does better.",
            questions=(
                Question(
                    what="accuracy without tuning, at 28 px minus at 24 px",
                    of=lambda s: s.accuracy(size=ABOVE, tuned="no") - s.accuracy(size=SIZE, tuned="no"),
                ),
            ),
            null=seed_null("accuracy without tuning at 24 px", lambda s: s.accuracy(size=SIZE, tuned="no")),
            control=Question(
                what="accuracy without tuning at 28 px", of=lambda s: s.accuracy(size=ABOVE, tuned="no"), bound=GUESS
            ),
        ),
    ),
)
