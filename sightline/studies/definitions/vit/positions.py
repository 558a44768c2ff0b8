"""Whether a ViT needs position embeddings, and which (ViT, table 8 and figures 7 and 10)."""

from collections.abc import Iterator
from functools import partial
from math import hypot

from sightline.studies.definitions.settings import CIFAR, CIFAR_TEST, FIGURE, GUESS, LR, accuracy, training, untrained
from sightline.studies.engine.specs import Measurement, Training
from sightline.studies.engine.study import Decides, Question, SeedNumbers, Study

# the eight cells of table 8: kind, and where it is added
KINDS = {
    "none": ("none", "stem"),
    "1d": ("1d", "stem"),
    "2d": ("2d", "stem"),
    "relative": ("relative", "stem"),
    "1d in every layer": ("1d", "every"),
    "2d in every layer": ("2d", "every"),
    "1d shared by layers": ("1d", "shared"),
    "2d shared by layers": ("2d", "shared"),
}
USED = tuple(k for k in KINDS if k != "none")
RATES = (LR["ViT"], LR["ViT"] / 4)
POINT = 0.01


def train(position: str, rate: float, seed: int) -> Training:
    kind, where = KINDS[position]
    changes = {} if position == "1d" else {"position": kind, "position_at": where}  # 1d at the stem is the default
    return training("ViT", CIFAR, seed=seed, changes=changes, lr=rate)


def measure(position: str, rate: float, seed: int) -> Iterator[tuple[str, Measurement]]:
    if rate != RATES[0] and position != "1d":
        return
    model = train(position, rate, seed)
    yield "accuracy", accuracy(model, CIFAR_TEST)
    if position == "1d":
        yield "positions", Measurement(name="positions", models=(model,))
    if position == "1d" and rate == RATES[0]:
        yield "untrained positions", Measurement(name="positions", models=(untrained(model),))


def worth(s: SeedNumbers, position: str) -> float:
    """Accuracy above that of no positions."""
    return s.accuracy(position=position) - s.accuracy(position="none")


def spread(s: SeedNumbers) -> float:
    """Range among the kinds, minus a third of what the least useful of them is worth."""
    gains = [worth(s, kind) for kind in USED]
    return max(gains) - min(gains) - min(gains) / 3


def pattern(s: SeedNumbers, rate: float) -> list[float]:
    return [x for row in s("positions", position="1d", rate=rate)["tiles"] for x in row]


def untrained_pattern(s: SeedNumbers) -> list[float]:
    return [x for row in s("untrained positions", position="1d")["tiles"] for x in row]


def apart(a: list[float], b: list[float]) -> float:
    """Root mean squared difference of two similarity patterns."""
    return hypot(*(x - y for x, y in zip(a, b))) / len(a) ** 0.5


def between_rates(s: SeedNumbers) -> float:
    return apart(pattern(s, RATES[0]), pattern(s, RATES[1]))


def between_seeds(s: SeedNumbers, rate: float = RATES[0]) -> float:
    return apart(pattern(s, rate), pattern(s.next(), rate))


def beyond_distance(s: SeedNumbers, name: str = "positions") -> float:
    """The row and column effect, minus that of a table that depends on distance alone."""
    found = s(name, position="1d")
    return float(found["row column"] - found["row column, isotropic"])


STUDY = Study(
    name="positions",
    question="Does a ViT need to be told where its patches are, and does the way matter?",
    source="ViT, table 8 and figures 7 and 10",
    axes={"position": tuple(KINDS), "rate": RATES},
    fixed={
        "images": "CIFAR-10, all 50,000, at 24 px; tested on 10,000",
        "model": "vit-nano4, 36 patches",
        "steps": "1,500 of 64",
        "left out": "the lower learning rate for all but the 1-D table",
    },
    scale="ViT of 0.2 million parameters on CIFAR-10 at 24 px, 1,500 steps",
    measure=measure,
    decides=(
        Decides(
            claim="V4",
            source="ViT, table 8",
            statement="Without position embeddings a ViT is clearly worse; which kind it has matters much less.",
            paper="61.4 % without, 63.9 to 64.3 % with; 2.8 points against a range of 0.3",
            questions=(
                *(Question(what=f"accuracy, {kind} minus none", of=partial(worth, position=kind)) for kind in USED),
                Question(
                    what="range among the kinds, minus a third of what the least useful is worth",
                    of=spread,
                    side="below",
                ),
            ),
            null=Question(
                what="accuracy, 1d minus 1d of another seed",
                of=lambda s: s.accuracy(position="1d") - s.next().accuracy(position="1d"),
                noise=True,
            ),
            control=Question(what="accuracy with none", of=lambda s: s.accuracy(position="none"), bound=GUESS),
        ),
        Decides(
            claim="V13",
            source="ViT, figure 10",
            statement="The pattern of similar position embeddings depends on the training's hyperparameters.",
            paper="three ViT-L/16 that differ in rate, weight decay and epochs",
            questions=(
                Question(
                    what="distance of the patterns, between two learning rates minus between two seeds",
                    of=lambda s: between_rates(s) - between_seeds(s),
                ),
            ),
            null=Question(
                what="distance of the patterns, between two seeds minus between two others",
                of=lambda s: between_seeds(s) - between_seeds(s.next()),
                noise=True,
            ),
            control=Question(
                what="distance of the patterns, from the untrained table minus between two seeds",
                of=lambda s: apart(pattern(s, RATES[0]), untrained_pattern(s)) - between_seeds(s),
            ),
        ),
        Decides(
            claim="V7",
            source="ViT, figure 7 middle",
            statement="Close patches have similar position embeddings, and so do those of one row or column.",
            paper=FIGURE,
            questions=(
                Question(
                    what="rank correlation of similarity and distance",
                    of=lambda s: s("positions", position="1d")["decay"],
                    side="below",
                    bound=-0.3,
                ),
                Question(what="row and column effect minus that of an isotropic table", of=beyond_distance),
            ),
            null=Question(
                what="the row and column effect of the untrained twin",
                of=lambda s: beyond_distance(s, "untrained positions"),
            ),
            control=Question(
                what="rank correlation of similarity and distance, trained minus untrained",
                of=lambda s: s("positions", position="1d")["decay"] - s("untrained positions", position="1d")["decay"],
                side="below",
            ),
        ),
    ),
)
