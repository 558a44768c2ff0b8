"""What a block without skip connections does to a ViT (Raghu et al., figure 8)."""

from collections.abc import Iterator
from statistics import fmean

from sightline.studies.definitions.settings import CIFAR, CIFAR_TEST, GUESS, accuracy, training
from sightline.studies.engine.specs import Measurement, Training
from sightline.studies.engine.study import Decides, Question, SeedNumbers, Study

DEPTH = 6
INTACT = -1
BLOCKS = (0, 1, 3, 4, 5)  # first, quarter, middle, three quarters, last
INNER = (1, 3, 4)  # with blocks on either side
MIDDLE = 3


def train(removed: int, seed: int) -> Training:
    changes = {} if removed == INTACT else {"no_skip": (removed,)}
    return training("ViT", CIFAR, seed=seed, changes=changes)


def measure(removed: int, seed: int) -> Iterator[tuple[str, Measurement]]:
    model = train(removed, seed)
    yield "accuracy", accuracy(model, CIFAR_TEST)
    yield "layers", Measurement(name="layers", models=(model,), images=(CIFAR_TEST,), options=(("n", 1024),))


def across(s: SeedNumbers, removed: int, at: int) -> float:
    """Mean CKA of a block before `at` with one from `at` on."""
    found = s("layers", removed=removed)["similarity"]
    return fmean(found[i][j] for i in range(at) for j in range(at, DEPTH))


def within(s: SeedNumbers, removed: int, at: int) -> float:
    """Mean CKA of two blocks on the same side of `at`."""
    found = s("layers", removed=removed)["similarity"]
    sides = (range(at), range(at, DEPTH))
    return fmean(found[i][j] for side in sides for i in side for j in side if i < j)


def change(s: SeedNumbers, of: str) -> float:
    """Removed minus intact, mean over the inner blocks."""
    mean = across if of == "across" else within
    return fmean(mean(s, at, at) - mean(s, INTACT, at) for at in INNER)


STUDY = Study(
    name="skips",
    question="What do skip connections carry through a ViT?",
    source="Raghu et al., figure 8",
    axes={"removed": (INTACT, *BLOCKS)},
    fixed={
        "images": "CIFAR-10, all 50,000, at 24 px; tested on 10,000",
        "model": "vit-nano4, six blocks; both skips of one removed, counted from 0; -1: none",
        "steps": "1,500 of 64",
    },
    scale="ViT of 0.2 million parameters and six blocks on CIFAR-10 at 24 px, 1,500 steps",
    measure=measure,
    decides=(
        Decides(
            claim="C13",
            source="Raghu et al., figure 8",
            statement="Without the skips of a block, what is before and after it differs, each side stays alike, and "
            "in the middle it costs accuracy.",
            paper="4 points of accuracy in the middle",
            questions=(
                Question(
                    what="CKA across the block, removed minus intact", of=lambda s: change(s, "across"), side="below"
                ),
                Question(
                    what="CKA within either side, removed minus intact",
                    of=lambda s: change(s, "within"),
                    side="within",
                    margin=0.1,
                ),
                Question(
                    what="accuracy, intact minus removed in the middle",
                    of=lambda s: s.accuracy(removed=INTACT) - s.accuracy(removed=MIDDLE),
                ),
            ),
            null=Question(
                what="CKA across the middle, intact minus another seed",
                of=lambda s: across(s, INTACT, MIDDLE) - across(s.next(), INTACT, MIDDLE),
                side="below",
                noise=True,
            ),
            control=Question(what="accuracy, intact", of=lambda s: s.accuracy(removed=INTACT), bound=GUESS),
        ),
    ),
)
