"""The smallest study: two trainings of two steps, one of which continues the other, and a measurement of each."""

import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import sightline as sl
from sightline.studies.definitions.table import STUDIES
from sightline.studies.engine.study import Decides, Question, Study
from sightline.studies.engine.work import do
from tests.studies.tiny import IMAGES, TEST, train


def measure(rate: float, seed: int):
    model = train(rate, seed, steps=2)
    model = replace(
        model, recipe=replace(model.recipe, log_every=1)
    )  # a loss in the log is a mean since the last start
    again = sl.studies.Training(model=model.model, images=IMAGES, recipe=model.recipe, seed=seed, start=model)
    for name, trained in (("accuracy", model), ("tuned", again)):
        yield name, sl.studies.Measurement(name="accuracy", models=(trained,), images=(TEST,))


SMALL = Study(
    name="small",
    question="Does it end?",
    source="nowhere",
    axes={"rate": (1e-3,)},
    fixed={},
    measure=measure,
    seeds=1,
    decides=(
        Decides(
            claim="S1",
            source="nowhere",
            statement="It does.",
            questions=(Question(what="accuracy", of=lambda s: s.accuracy()),),
        ),
    ),
)


def known():
    """While this is open, the study has its name."""
    return mock.patch.dict(STUDIES, {"small": SMALL})


def run(out: Path) -> None:
    """With a process for its tasks, and in tests for faults in this one; ValueError if a task failed."""
    with known():
        (path,) = sl.studies.run_studies(["small"], out=out, say=lambda text: None)
        sl.report.write_atlas(path.parent)
    if not sl.spec.from_json(path.read_text())["complete"]:
        raise ValueError(f"{out} is not complete")


def run_here(out: Path) -> None:
    """All in this process."""
    with mock.patch("sightline.studies.engine.running.run_local", _in_turn):
        run(out)


def _in_turn(store, tasks, **_) -> None:
    for task in tasks:
        do(store, task)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
