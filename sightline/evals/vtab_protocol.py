"""The VTAB-1k protocol: 800 training and 200 validation images, all 1,000 for the final fit, and a test set."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.data.datasets import Dataset
from sightline.data.named.suites import SuiteTask, suite
from sightline.evals.extraction import describe, extract
from sightline.evals.few_shot import l2_values
from sightline.evals.inputs import check_train, vectors
from sightline.evals.interval import NO_ENDS, Z95, Ends, ends, known_ends
from sightline.evals.probing.ridge import Ridge, apply
from sightline.observe.identity import identify
from sightline.observe.images import fingerprint
from sightline.progress import progress
from sightline.references.rows import find
from sightline.spec import About, Result

Fit = Callable[[Any, SuiteTask, dict[str, Dataset]], float]
GROUPS = ("natural", "specialized", "structured")
PRETRAINING = {"jft-300m": "JFT", "imagenet-21k": "ImageNet-21k"}  # in the titles of table 9


@dataclass(frozen=True, kw_only=True)
class Vtab(Result):
    """Accuracy on the tasks of a suite; the score is the mean over tasks, not over groups.

    >>> rows = sl.evals.vtab_references()
    >>> [round(100 * row.score, 2) for row in rows]
    [77.63, 76.29, 72.71]
    """

    suite: str
    tasks: tuple[str, ...]
    groups: tuple[str, ...]  # of each task
    accuracy: NDArray[np.float64]  # of each task
    complete: bool  # whether it covers every task of the suite
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # test images of each task

    @property
    def score(self) -> float:
        """Mean accuracy over tasks: over all 19 for VTAB-1k."""
        return float(self.accuracy.mean())

    @property
    def by_group(self) -> dict[str, float]:
        """Mean accuracy of each group of tasks."""
        of = np.array(self.groups)
        return {g: float(self.accuracy[of == g].mean()) for g in GROUPS if (of == g).any()}

    def summary(self) -> dict[str, float]:
        name = f"mean of {len(self.tasks)}" + ("" if self.complete else f" of {len(suite(self.suite))} tasks")
        return {name: self.score, **self.by_group}

    def interval(self, tasks: NDArray[np.bool_] | None = None) -> Ends:
        """95 % interval of the mean over some tasks, over their test images; the tasks are those of the suite."""
        if len(self.counts) != len(self.accuracy):
            return NO_ENDS
        a, n = (x if tasks is None else x[tasks] for x in (self.accuracy, self.counts))
        error = float(np.sqrt((a * (1 - a) / np.maximum(n - 1, 1)).sum()) / len(a))
        return ends(float(a.mean()), Z95 * error, least=0.0, most=1.0)

    def intervals(self) -> dict[str, Ends]:
        of = np.array(self.groups)
        each = [self.interval(), *(self.interval(of == g) for g in self.by_group)]
        return known_ends(dict(zip(self.summary(), each)))


def vtab_references() -> tuple[Vtab, ...]:
    """The rows of the ViT paper's table 9, as results.

    >>> sl.evals.vtab_references()[0].by_group["structured"]
    0.65025
    """
    return tuple(
        _published(model, data) for model, data in dict.fromkeys((r.model, r.pretraining) for r in find("vit-9"))
    )


def _published(model: str, pretraining: str) -> Vtab:
    rows = find("vit-9", model=model, pretraining=pretraining)
    accuracy = {row.dataset.removeprefix("vtab/"): row.value for row in rows}
    name = f"{rows[0].printed} ({PRETRAINING[pretraining]})"
    tasks = suite("vtab")
    return Vtab(
        title=name,
        caption=f"{name}, fine-tuned (ViT, table 9).",
        how={"source": rows[0].source, "protocol": "fine-tuned, 2500 steps"},
        suite="vtab",
        tasks=tuple(t.name for t in tasks),
        groups=tuple(t.group for t in tasks),
        accuracy=np.array([accuracy[t.name] for t in tasks]),
        complete=True,
    )


def vtab(
    model: Any,
    name: str = "scenes-vtab",
    *,
    tasks: Sequence[str] | None = None,
    root: str | Path | None = None,
    fit: Fit | None = None,
    batch: int = 64,
    workers: int = 0,
) -> Vtab:
    """Evaluate a model on a suite of tasks with 1,000 training images each: "scenes-vtab", or "vtab" with its data.

    By default, a linear classifier on frozen features: l2 is chosen on the 200 after fitting the 800, then it is fitted
    to all 1,000 and tested once. The rows of table 9 are fine-tuned; for that give `fit(model, task, splits) ->
    accuracy`, with splits train800, val200, train1000 and test. `tasks` selects some; the score is their mean.

    >>> model = sl.build("vit-nano4")
    >>> sl.evals.vtab(model, tasks=["cells"], fit=lambda model, task, splits: len(splits["test"]) / 4000).accuracy
    array([0.5])
    """
    every = suite(name)
    unknown = set(tasks or ()) - {t.name for t in every}
    if unknown:
        raise ValueError(f"{name} has no task {', '.join(sorted(unknown))}; it has {', '.join(t.name for t in every)}.")
    chosen = [t for t in every if tasks is None or t.name in tasks]
    if not chosen:
        raise ValueError(f"No tasks were selected; {name} has {', '.join(t.name for t in every)}.")
    settings = {"size": model.image.size[0]} if name == "scenes-vtab" else {}
    splits = {t.name: t.splits(root=root, **settings) for t in chosen}  # all first: missing data fails early
    run = fit or linear(batch=batch, workers=workers)
    accuracy = [run(model, t, splits[t.name]) for t in progress(chosen, name)]
    return Vtab(
        title=f"{describe(model)} on {name}",
        caption=f"{len(chosen)} tasks of 1,000 training images, "
        + ("frozen features, linear classifier." if fit is None else "by a function of the user's."),
        how={"model": describe(model), "protocol": "800 / 200 / 1000", "fit": "linear" if fit is None else "given"},
        about=About(models=(identify(model),), images="+".join(fingerprint(s["test"]) for s in splits.values())),
        suite=name,
        tasks=tuple(t.name for t in chosen),
        groups=tuple(t.group for t in chosen),
        accuracy=np.array(accuracy, dtype=np.float64),
        complete=len(chosen) == len(every),
        counts=np.array([len(splits[t.name]["test"]) for t in chosen]),
    )


def linear(*, batch: int = 64, workers: int = 0, l2: Sequence[float] | str = "sweep") -> Fit:
    """Frozen features and ridge regression under the 800/200/1000 protocol; each image passes the model once."""

    def run(model: Any, task: SuiteTask, splits: Mapping[str, Dataset]) -> float:
        train, val, test = (
            extract(model, splits[part], batch=batch, workers=workers) for part in ("train800", "val200", "test")
        )
        x, v, z = check_train(train), vectors(val), vectors(test)
        y, w = torch.from_numpy(train.labels), torch.from_numpy(val.labels)
        ridge = Ridge.of_labels(x, y, task.classes)
        right = {
            value: int((torch.cat([*apply(v, ridge.solve(value), ridge.scaling)]).argmax(1) == w).sum())
            for value in l2_values(l2)
        }
        best = max(right, key=lambda value: right[value])
        final = Ridge.of_labels(torch.cat([x, v]), torch.cat([y, w]), task.classes)
        guesses = torch.cat([s.argmax(1) for s in apply(z, final.solve(best), final.scaling)])
        return float((guesses.numpy() == test.labels).mean())

    return run


def vtab_rows(result: Vtab) -> list[dict[str, Any]]:
    """One row per task, group and overall mean; for VTAB-1k with the paper's results for comparison.

    >>> from dataclasses import replace
    >>> sl.evals.vtab_rows(replace(sl.evals.vtab_references()[0], suite="scenes-vtab"))[0]["task"]
    'caltech101'
    """
    others = vtab_references() if result.suite == "vtab" else ()
    rows: list[dict[str, Any]] = []
    for i, task in enumerate(result.tasks):
        row: dict[str, Any] = {"task": task, "group": result.groups[i], "accuracy": float(result.accuracy[i])}
        rows.append(row | {o.title: float(o.accuracy[o.tasks.index(task)]) for o in others})
    for group, mean in result.by_group.items():
        rows.append({"task": "mean", "group": group, "accuracy": mean} | {o.title: o.by_group[group] for o in others})
    whole = f"mean of {len(result.tasks)}"
    rows.append({"task": whole, "group": "", "accuracy": result.score} | {o.title: o.score for o in others})
    return rows
