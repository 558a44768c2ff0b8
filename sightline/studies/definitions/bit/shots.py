"""Few shots and episodes on frozen features (BiT, figure 4)."""

from collections.abc import Iterator
from functools import partial

from sightline.studies.definitions.settings import FIGURE, few_shot
from sightline.studies.definitions.vit.data import MUCH, OTHER, OTHER_TEST, train
from sightline.studies.engine.specs import Measurement
from sightline.studies.engine.study import Decides, Question, SeedNumbers, Study, seed_null

FAMILIES = ("ViT", "BiT", "hybrid")
WAYS, SHOTS = (2, 5, 10), (1, 5)


def measure(family: str, seed: int) -> Iterator[tuple[str, Measurement]]:
    model = train(family, MUCH, seed)
    yield "few-shot", few_shot(model, OTHER, OTHER_TEST)
    options = (("ways", WAYS), ("shots", SHOTS), ("queries", 15), ("episodes", 400))
    yield "episodes", Measurement(name="episodes", models=(model,), images=(OTHER_TEST,), options=options)


def more_shots(s: SeedNumbers, family: str, of: str = "accuracy") -> float:
    """The most shots minus one."""
    found = s("few-shot", family=family)[of]
    return float(found[-1] - found[0])


def fewer_ways(s: SeedNumbers, family: str) -> float:
    found = s("episodes", family=family)["accuracy"]
    return float(sum(a - b for a, b in zip(found[0], found[-1])) / len(found[0]))


def easiest(s: SeedNumbers, family: str) -> float:
    """Fewest ways, most shots; a guess is right half of the time."""
    return float(s("episodes", family=family)["accuracy"][0][-1])


def hardest(s: SeedNumbers, family: str) -> float:
    return float(s("episodes", family=family)["accuracy"][-1][0])


def support(s: SeedNumbers, family: str) -> float:
    found = s("episodes", family=family)["accuracy"]
    return float(sum(row[-1] - row[0] for row in found) / len(found))


STUDY = Study(
    name="shots",
    question="How does few-shot accuracy depend on shots and ways?",
    source="BiT, figure 4",
    axes={"family": FAMILIES},
    fixed={
        "models": "those of the study data, trained on all of CIFAR-10",
        "few-shot": "Fashion-MNIST, 1, 5 and 10 shots, 10 draws",
        "episodes": "Fashion-MNIST, 2, 5 and 10 ways, 1 and 5 shots, 400 episodes",
    },
    scale="features of models of 0.2 to 0.5 million parameters trained on CIFAR-10, on Fashion-MNIST",
    measure=measure,
    seeds=10,  # the second five for all claims alike, after five left many undecided: docs/log.md, 2026-11-18
    decides=(
        Decides(
            claim="B4",
            source="BiT, figure 4",
            statement="More shots give higher accuracy, and one shot has the largest variance.",
            paper=FIGURE,
            questions=tuple(
                q
                for f in FAMILIES
                for q in (
                    Question(what=f"10-shot minus 1-shot accuracy, {f}", of=partial(more_shots, family=f)),
                    Question(
                        what=f"spread over draws, 10-shot minus 1-shot, {f}",
                        of=partial(more_shots, family=f, of="spread"),
                        side="below",
                    ),
                )
            ),
            null=Question(
                what="1-shot accuracy, ViT minus another seed",
                of=lambda s: (
                    s("few-shot", family="ViT")["accuracy"][0] - s.next()("few-shot", family="ViT")["accuracy"][0]
                ),
                noise=True,
            ),
            control=Question(what="2-way 5-shot accuracy, BiT", of=lambda s: easiest(s, "BiT"), bound=1 / WAYS[0]),
        ),
        Decides(
            claim="B6",
            source="seminar notes",
            statement="Episodic accuracy falls with the number of ways and rises with the number of shots.",
            questions=tuple(
                q
                for f in FAMILIES
                for q in (
                    Question(what=f"2-way minus 10-way accuracy, {f}", of=partial(fewer_ways, family=f)),
                    Question(what=f"5-shot minus 1-shot accuracy, {f}", of=partial(support, family=f)),
                )
            ),
            null=seed_null("10-way 1-shot accuracy, ViT", lambda s: hardest(s, "ViT")),
            control=Question(what="2-way 5-shot accuracy, ViT", of=lambda s: easiest(s, "ViT"), bound=1 / WAYS[0]),
        ),
    ),
)
