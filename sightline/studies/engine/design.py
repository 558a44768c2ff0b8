"""What a study will do and cost, before anything runs."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from sightline.models.construct import build
from sightline.models.costs import cost
from sightline.studies.definitions.table import get_study
from sightline.studies.effects import requirement
from sightline.studies.engine.specs import Training
from sightline.studies.engine.store import with_needs
from sightline.studies.engine.study import check_seeds

CLASSES = 20
BASE = 400 * 2**20  # bytes of a process with torch before it builds a model
STATE = 16  # bytes of a parameter, its gradient and two averages
TRIED = 2  # steps that are timed


def describe_study(name: str, *, seeds: int | Sequence[int] | None = None) -> dict[str, Any]:
    """The grid of a study, its statistics and bounds, and expected core-hours and memory.

    Core-hours are those of the trainings, from a few timed steps of each model on this machine.

    >>> sl.studies.describe_study("dat")
    Traceback (most recent call last):
        ...
    ValueError: There is no study 'dat'. Did you mean data? ...
    """
    study = get_study(name)
    given = check_seeds(study.seeds if seeds is None else seeds)
    plan = study.plan(given)
    tasks = with_needs([m for rows in plan.values() for m in rows.values()])
    trainings = [t for t in tasks if isinstance(t, Training) and t.recipe is not None]
    seconds, memory = expected_cost(trainings)
    return {
        "study": study.name,
        "question": study.question,
        "source": study.source,
        "scale": study.scale,
        "axes": {axis: list(levels) for axis, levels in study.axes.items()},
        "fixed": dict(study.fixed),
        "statistics": [row for d in study.decides for row in statistics(d)],
        "cost": {
            "training seeds": list(given),
            "trainings": len(trainings),
            "measurements": sum(len(rows) for rows in plan.values()),
            "core-hours of training": round(seconds / 3600, 2),
            "memory of one process": memory,
        },
    }


def statistics(d: Any) -> list[dict[str, Any]]:
    """The questions of one claim, and those of its controls."""
    rows = [
        {"claim": d.claim, "statistic": q.what, "required": requirement(vars(q)), "control": ""} for q in d.questions
    ]
    for kind, q in (("null: must not hold", d.null), ("positive: must hold", d.control)):
        if q is not None:
            rows.append({"claim": d.claim, "statistic": q.what, "required": requirement(vars(q)), "control": kind})
    if d.from_verdicts:
        rows.append({"claim": d.claim, "statistic": "that of sl.verdicts, per seed", "required": "", "control": ""})
    return rows


def expected_cost(trainings: Sequence[Training]) -> tuple[float, int]:
    """Core-seconds of all trainings, and bytes of the largest."""
    known: dict[Any, tuple[float, int]] = {}
    total, most = 0.0, 0
    for t in trainings:
        assert t.recipe is not None
        size = t.images.size
        same = (t.model, t.changes, size, t.recipe.batch)
        if same not in known:
            known[same] = timed(replace(t, images=replace(t.images, size=size)))
        steps = t.recipe.total_steps(t.images.num or 50_000)
        total += steps * known[same][0]
        most = max(most, known[same][1])
    return total, most


def timed(t: Training) -> tuple[float, int]:
    """Core-seconds of one step, and bytes."""
    assert t.recipe is not None
    model = build(t.model, classes=CLASSES, size=t.images.size, **dict(t.changes))
    spent, batch = cost(model), t.recipe.batch
    images, labels = torch.zeros(batch, 3, t.images.size, t.images.size), torch.zeros(batch, dtype=torch.long)
    start = 0.0
    for i in range(TRIED + 1):
        start = time.process_time() if i == 1 else start  # the first one warms up
        torch.nn.functional.cross_entropy(model(images), labels).backward()
    seconds = (time.process_time() - start) / TRIED
    return seconds, BASE + STATE * spent.parameters + batch * spent.activation_bytes
