"""Accuracy at equal compute, and what to make larger (ViT, figures 5 and 8)."""

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from sightline.models.construct import build
from sightline.models.costs import cost
from sightline.studies.definitions.settings import (
    BATCH,
    CIFAR,
    CIFAR_TEST,
    FIGURE,
    MODELS,
    SIZE,
    STEPS,
    accuracy,
    training,
)
from sightline.studies.engine.specs import Measurement, Training
from sightline.studies.engine.study import Decides, Question, SeedNumbers, Study

FAMILIES = ("ViT", "BiT", "hybrid", "large ViT", "large BiT")
# at one budget: twice the depth against 1.4 times the width, and small against large patches
SHAPES: dict[str, dict[str, Any]] = {
    "deep": {"depth": 12},
    "wide": {"width": 88, "mlp_width": 176},
    "large patches": {"patch": 8},
}
BUDGETS = (0.5, 1.0, 2.0)  # of what the small ViT takes for 1,500 steps
SMALLEST, USUAL, LARGEST = BUDGETS
POINT = 0.01


@cache
def macs(model: str) -> int:
    """Multiply-adds of one image."""
    family, changes = family_of(model)
    name, own = MODELS[family]
    return cost(build(name, classes=10, size=SIZE, device="meta", **{**own, **changes})).macs


def family_of(model: str) -> tuple[str, dict[str, Any]]:
    """A model as a family with changes."""
    return ("ViT", SHAPES[model]) if model in SHAPES else (model, {})


def train(model: str, budget: float, seed: int) -> Training:
    """As many steps as the budget pays for."""
    family, changes = family_of(model)
    steps = round(STEPS * budget * macs("ViT") / macs(model))
    return training(family, CIFAR, seed=seed, changes=changes, steps=steps, batch=BATCH)


def measure(model: str, budget: float, seed: int) -> Iterator[tuple[str, Measurement]]:
    if model in SHAPES and budget != USUAL:
        return
    trained = train(model, budget, seed)
    yield "accuracy", accuracy(trained, CIFAR_TEST)
    yield "course", Measurement(name="course", models=(trained,))


def best(s: SeedNumbers, family: str, budget: float) -> float:
    """The better size of a family: chosen over all seeds, not for each."""
    sizes = [m for m in FAMILIES if m.removeprefix("large ") == family]
    means = {m: mean(s, m, budget) for m in sizes}
    return s.accuracy(model=max(means, key=lambda m: means[m]), budget=budget)


def mean(s: SeedNumbers, model: str, budget: float) -> float:
    found = [n.get(("accuracy", (("model", model), ("budget", budget)))) for n in s.by_seed.values()]
    known = [f["accuracy"] for f in found if f is not None and "accuracy" in f]
    return sum(known) / len(known) if known else 0.0


def ahead(s: SeedNumbers, first: str, second: str, budget: float) -> float:
    return best(s, first, budget) - best(s, second, budget)


STUDY = Study(
    name="compute",
    question="Which family makes the most of a given number of operations?",
    source="ViT, figures 5 and 8",
    axes={"model": (*FAMILIES, *SHAPES), "budget": BUDGETS},
    fixed={
        "images": "CIFAR-10, all 50,000, at 24 px; tested on 10,000",
        "budget": "training MACs, in units of 1,500 steps of 64 images of vit-nano4 (2.4 tera-MACs); batch 64",
        "left out": "the shapes of figure 8 at other budgets than 1",
    },
    scale="models of 0.2 to 0.8 million parameters on CIFAR-10 at 24 px, 1.2 to 4.9 tera-MACs of training",
    measure=measure,
    seeds=3,
    decides=(
        Decides(
            claim="V3",
            source="ViT, figure 5",
            statement="At equal compute a ViT is at least as good as a ResNet; hybrids lead at small budgets, less at "
            "larger ones.",
            paper="a ViT takes 2 to 4 times less compute than a ResNet for the same accuracy",
            questions=(
                *(
                    Question(
                        what=f"accuracy at budget {b:g}, ViT minus BiT",
                        of=partial(ahead, first="ViT", second="BiT", budget=b),
                        bound=-POINT,
                    )
                    for b in BUDGETS
                ),
                Question(
                    what="accuracy at the smallest budget, hybrid minus ViT",
                    of=lambda s: ahead(s, "hybrid", "ViT", SMALLEST),
                ),
                Question(
                    what="lead of the hybrid over the ViT, smallest minus largest budget",
                    of=lambda s: ahead(s, "hybrid", "ViT", SMALLEST) - ahead(s, "hybrid", "ViT", LARGEST),
                ),
            ),
            null=Question(
                what="accuracy at the smallest budget, ViT minus another seed",
                of=lambda s: best(s, "ViT", SMALLEST) - best(s.next(), "ViT", SMALLEST),
                noise=True,
            ),
            control=Question(
                what="accuracy of the ViT, largest minus smallest budget",
                of=lambda s: best(s, "ViT", LARGEST) - best(s, "ViT", SMALLEST),
            ),
        ),
        Decides(
            claim="V12",
            source="ViT, figure 8",
            statement="More depth helps more than more width, and smaller patches help.",
            paper=FIGURE,
            questions=(
                Question(
                    what="accuracy at equal MACs, twice the depth minus 1.4 times the width",
                    of=lambda s: s.accuracy(model="deep", budget=USUAL) - s.accuracy(model="wide", budget=USUAL),
                ),
                Question(
                    what="accuracy at equal MACs, patches of 4 minus patches of 8",
                    of=lambda s: (
                        s.accuracy(model="ViT", budget=USUAL) - s.accuracy(model="large patches", budget=USUAL)
                    ),
                ),
            ),
            null=Question(
                what="accuracy at budget 1, ViT minus another seed",
                of=lambda s: s.accuracy(model="ViT", budget=USUAL) - s.next().accuracy(model="ViT", budget=USUAL),
                noise=True,
            ),
            control=Question(
                what="accuracy of the ViT, budget 2 minus 0.5",
                of=lambda s: s.accuracy(model="ViT", budget=LARGEST) - s.accuracy(model="ViT", budget=SMALLEST),
            ),
        ),
    ),
)
