"""A study of a few steps; `python -m tests.studies.tiny OUT local|slurm` runs it in a process of its own."""

import sys

import sightline as sl
from sightline.studies.definitions.table import STUDIES
from sightline.studies.engine import slurm
from sightline.studies.engine.study import Decides, Question, Study

IMAGES = sl.studies.Images(name="scenes/shape", num=64, size=16)
TEST = sl.studies.Images(name="scenes/shape", split="test", num=40, size=16)


def train(rate: float, seed: int, *, steps: int = 6) -> sl.studies.Training:
    recipe = sl.Recipe(lr=rate, batch=16, steps=steps, micro=16, seed=seed, save_every=1)
    changes = (("depth", 1),)
    return sl.studies.Training(model="vit-nano4", images=IMAGES, recipe=recipe, seed=seed, changes=changes)


def measure(rate: float, seed: int):
    model = train(rate, seed)
    yield "accuracy", sl.studies.Measurement(name="accuracy", models=(model,), images=(TEST,))
    if rate == 1e-3:
        again = sl.studies.Training(model=model.model, images=IMAGES, recipe=model.recipe, seed=seed, start=model)
        yield "tuned", sl.studies.Measurement(name="accuracy", models=(again,), images=(TEST,))


def difference(s):
    return s.accuracy(rate=1e-3) - s.accuracy(rate=1e-2)


TINY = Study(
    name="tiny",
    question="Does the rate matter?",
    source="nowhere",
    axes={"rate": (1e-3, 1e-2)},
    fixed={"steps": "6"},
    measure=measure,
    seeds=3,
    decides=(
        Decides(
            claim="T1",
            source="nowhere",
            statement="It does.",
            questions=(Question(what="low minus high", of=difference),),
            null=Question(
                what="low minus low", of=lambda s: s.accuracy(rate=1e-3) - s.next().accuracy(rate=1e-3), noise=True
            ),
        ),
    ),
)


if __name__ == "__main__":
    STUDIES["tiny"] = TINY
    slurm.POLL = 0.2  # seconds: its jobs take two
    place = sl.studies.Cluster(group=6, hours=0.2) if sys.argv[2] == "slurm" else "local"
    sl.studies.run_studies(["tiny"], out=sys.argv[1], on=place)
