"""Accuracy against compute (ViT, figure 5): training MACs and accuracy of runs, and their Pareto front."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from sightline.evals.interval import wilson
from sightline.models.costs import cost
from sightline.models.variants import Config
from sightline.spec import Result
from sightline.training.run.folder import Run
from sightline.weights.containers.header import from_json


@dataclass(frozen=True, kw_only=True)
class AccuracyByCompute(Result):
    """Training compute and validation accuracy of several runs on one dataset.

    Compute is in multiply-accumulates: those of a forward pass times the images that were trained on. A backward pass
    takes about twice as much again, for every family alike.

    >>> import numpy as np
    >>> r = sl.training.AccuracyByCompute(title="", caption="", runs=("a", "b", "c"), families=("ViT", "BiT", "BiT"),
    ...     macs=np.array([1e9, 2e9, 3e9]), accuracy=np.array([.5, .4, .6]), low=np.zeros(3), high=np.ones(3))
    >>> r.front.tolist()
    [True, False, True]
    """

    runs: tuple[str, ...]
    families: tuple[str, ...]
    macs: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    low: NDArray[np.float64]  # ends of the 95 % interval over the validation images
    high: NDArray[np.float64]

    @property
    def front(self) -> NDArray[np.bool_]:
        """Which runs are on the Pareto front: no other is as accurate for less, or more accurate for as much."""
        cheaper, better = self.macs[None] <= self.macs[:, None], self.accuracy[None] >= self.accuracy[:, None]
        strictly = (self.macs[None] < self.macs[:, None]) | (self.accuracy[None] > self.accuracy[:, None])
        return np.asarray(~(cheaper & better & strictly).any(1))

    def summary(self) -> dict[str, float]:
        return {self.runs[i]: float(self.accuracy[i]) for i in np.argsort(self.macs) if self.front[i]}

    def intervals(self) -> dict[str, tuple[float, float]]:
        return {self.runs[i]: (float(self.low[i]), float(self.high[i])) for i in np.flatnonzero(self.front)}


def accuracy_by_compute(runs: str | Path | Sequence[str | Path], *, data: str | None = None) -> AccuracyByCompute:
    """Accuracy against training MACs of the runs in a folder, or of given runs; all on one dataset (`data` selects it).

    The accuracy is the last one on the validation images, the compute that up to its step. Runs without validation and
    models of other libraries are left out; `how` names them.

    >>> import tempfile
    >>> sl.training.accuracy_by_compute(tempfile.mkdtemp())
    Traceback (most recent call last):
        ...
    ValueError: ... contains no run with validation accuracy: ...
    """
    given = [runs] if isinstance(runs, str | Path) else list(runs)
    folders = [path.parent for one in given for path in sorted(Path(one).rglob("run.json"), key=lambda p: p.parent)]
    points, left_out = [], {}
    for folder in dict.fromkeys(folders):
        try:
            points.append(_point(Run(folder)))
        except ValueError as error:
            left_out[str(folder)] = str(error)
    chosen = _of_one_dataset(points, data, given)
    names = [p["run"] for p in chosen]
    return AccuracyByCompute(
        title=f"Accuracy against compute on {chosen[0]['data']}",
        caption=f"{len(chosen)} runs: validation accuracy with its 95 % interval, and MACs of a forward pass times the "
        "images trained on.",
        how={"data": chosen[0]["data"], "left out": left_out},
        runs=_short(names),
        families=tuple(p["family"] for p in chosen),
        macs=np.array([p["macs"] for p in chosen], dtype=np.float64),
        accuracy=np.array([p["accuracy"] for p in chosen]),
        low=np.array([p["interval"][0] for p in chosen]),
        high=np.array([p["interval"][1] for p in chosen]),
    )


def _point(run: Run) -> dict[str, Any]:
    about, curves = run.about, run.curves()
    steps, values = curves.of("val/accuracy") if "val/accuracy" in curves.names else (np.zeros(0), np.zeros(0))
    count = about["data"].get("val")
    if not len(values) or not isinstance(count, int):
        raise ValueError(f"{run.folder} has no validation accuracy.")
    return {
        "run": str(run.folder),
        "data": about["data"]["name"],
        "family": type(_config(run)).__name__.removesuffix("Config").replace("Hybrid", "hybrid"),
        "macs": training_macs(run, int(steps[-1])),
        "accuracy": float(values[-1]),
        "interval": wilson(round(float(values[-1]) * count), count),
    }


def training_macs(run: Run, steps: int | None = None) -> float:
    """MACs of a forward pass times images, up to a step; with progressive resolution each step counts at its size.

    >>> import tempfile
    >>> sl.training.training_macs(sl.Run(tempfile.mkdtemp()))
    Traceback (most recent call last):
        ...
    ValueError: ... contains no run: there is no run.json.
    """
    plan, config = run.about["plan"], _config(run)
    end = plan["steps"] if steps is None else steps
    stages = [(0, None), *((int(first), int(size)) for first, size in plan.get("stages") or ())]
    total = 0.0
    for (first, size), after in zip(stages, [*(s[0] for s in stages[1:]), end]):
        done = max(0, min(after, end) - min(first, end))
        total += done * plan["batch"] * cost(config, size).macs if done else 0
    return total


def _config(run: Run) -> Config:
    """The configuration of one of our models, from run.json: weights need not be read, or be there."""
    values = run.about["identity"]["model"].get("config")
    for kind in get_args(Config):
        if isinstance(values, dict) and set(values) == {f.name for f in fields(kind)}:
            return from_json(kind, values)
    raise ValueError(f"{run.folder} trains a model of another library, whose compute is not in its record.")


def _of_one_dataset(points: list[dict[str, Any]], data: str | None, given: Sequence[Any]) -> list[dict[str, Any]]:
    names = sorted({p["data"] for p in points})
    if not points:
        where = ", ".join(map(str, given))
        raise ValueError(f"{where} contains no run with validation accuracy: train with validation images.")
    if data is None and len(names) > 1:
        raise ValueError(f"The runs are on {', '.join(names)}: choose one dataset with data= or --data.")
    if data is not None and data not in names:
        raise ValueError(f"No run is on {data}; they are on {', '.join(names)}.")
    return [p for p in points if data in (None, p["data"])]


def _short(names: Sequence[str]) -> tuple[str, ...]:
    """Folders without what all of them begin with."""
    parts = [Path(name).parts for name in names]
    same = 0
    while len(names) > 1 and len({p[: same + 1] for p in parts}) == 1:
        same += 1
    return tuple("/".join(p[same:] if len(names) > 1 else p[-1:]) for p in parts)
