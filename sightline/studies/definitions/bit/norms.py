"""Group or batch normalization, with or without weight standardization (BiT, tables 4 and 5)."""

from collections.abc import Iterator
from typing import Any

from sightline.studies.definitions.settings import BATCH, CIFAR, CIFAR_TEST, GUESS, LR, STEPS, accuracy, training
from sightline.studies.engine.specs import Measurement, Training
from sightline.studies.engine.study import Decides, Question, SeedNumbers, Study

NORMS: dict[str, dict[str, Any]] = {
    "GN+WS": {},  # BiT's own
    "GN": {"standardize": False},
    "BN+WS": {"norm": "batch"},
    "BN": {"norm": "batch", "standardize": False},
}
LARGE, SMALL = 512, 32
POINT = 0.01


def train(norm: str, batch: int, seed: int) -> Training:
    """The same number of images at every batch size; the learning rate follows the batch."""
    steps, rate = STEPS * BATCH // batch, LR["BiT"] * batch / BATCH
    return training("BiT", CIFAR, seed=seed, changes=NORMS[norm], batch=batch, steps=steps, lr=rate)


def measure(norm: str, batch: int, seed: int) -> Iterator[tuple[str, Measurement]]:
    model = train(norm, batch, seed)
    yield "accuracy", accuracy(model, CIFAR_TEST)
    if batch == LARGE and norm in ("GN+WS", "BN", "GN"):
        yield "suite", Measurement(name="suite", models=(model,))


def more(s: SeedNumbers, norm: str, than: str) -> float:
    return s.accuracy(norm=norm, batch=LARGE) - s.accuracy(norm=than, batch=LARGE)


def transfer(s: SeedNumbers, norm: str) -> float:
    return float(s("suite", norm=norm, batch=LARGE)["score"])


STUDY = Study(
    name="norms",
    question="Can group normalization with weight standardization replace batch normalization?",
    source="BiT, tables 4 and 5",
    axes={"norm": tuple(NORMS), "batch": (LARGE, SMALL)},
    fixed={
        "images": "CIFAR-10, all 50,000, at 24 px; tested on 10,000",
        "model": "bit-nano",
        "images seen": "96,000 at either batch size; learning rate in proportion to the batch",
        "transfer": "scenes-vtab, linear on frozen features, at the large batch",
    },
    scale="BiT of 0.5 million parameters on CIFAR-10 at 24 px, 96,000 images seen",
    measure=measure,
    decides=(
        Decides(
            claim="B2",
            source="BiT, table 4",
            statement="At a large batch GN with WS is as good as BN, and GN alone is clearly worse.",
            paper="BN 75.6, BN+WS 75.8, GN 70.2, GN+WS 76.0",
            questions=(
                Question(what="accuracy, GN+WS minus BN", of=lambda s: more(s, "GN+WS", "BN"), bound=-POINT),
                Question(what="accuracy, GN+WS minus GN", of=lambda s: more(s, "GN+WS", "GN")),
            ),
            null=Question(
                what="accuracy, GN+WS minus GN+WS of another seed",
                of=lambda s: s.accuracy(norm="GN+WS", batch=LARGE) - s.next().accuracy(norm="GN+WS", batch=LARGE),
                noise=True,
            ),
            control=Question(what="accuracy, GN+WS", of=lambda s: s.accuracy(norm="GN+WS", batch=LARGE), bound=GUESS),
        ),
        Decides(
            claim="B3",
            source="BiT, table 5",
            statement="GN with WS transfers best.",
            paper="VTAB: 70.4 with GN+WS, 67.7 with BN",
            questions=(
                Question(
                    what="mean over scenes-vtab, GN+WS minus BN", of=lambda s: transfer(s, "GN+WS") - transfer(s, "BN")
                ),
            ),
            null=Question(
                what="mean over scenes-vtab, GN+WS minus GN+WS of another seed",
                of=lambda s: transfer(s, "GN+WS") - transfer(s.next(), "GN+WS"),
                noise=True,
            ),
            control=Question(
                what="accuracy of GN+WS, in small batches minus a guess",
                of=lambda s: s.accuracy(norm="GN+WS", batch=SMALL) - GUESS,
            ),
        ),
    ),
)
