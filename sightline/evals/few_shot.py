"""Few-shot accuracy by closed-form ridge regression (ViT, section 4.1; big_vision's fewshot_lsr)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.datasets import Dataset
from sightline.data.draws import Draws, hash_key
from sightline.evals.extraction import extract
from sightline.evals.feature_table import FeatureTable
from sightline.evals.inputs import (
    Given,
    align_classes,
    as_features,
    check_finite,
    check_positive,
    check_train,
    combine,
    same_width,
    single_labels,
    used_classes,
    vectors,
)
from sightline.evals.interval import Ends, RepeatedAccuracy, ends, known_ends
from sightline.evals.probing.ridge import L2, SWEEP, Ridge, apply, best_l2, check_l2
from sightline.spec import About, Result

Shot = int | Literal["all"]
Penalty = float | Sequence[float] | Literal["sweep"]


@dataclass(frozen=True, kw_only=True)
class FewShot(RepeatedAccuracy, Result):
    """Accuracy by number of training images per class, for several random draws.

    >>> import numpy as np
    >>> found = np.array([[0.5, 0.7], [0.8, 0.8]])
    >>> r = sl.evals.FewShot(title="", caption="", shots=(1, 5), seeds=(0, 1), classes=("a",), accuracy=found,
    ...                per_class=found[:, :1], l2=np.full((2, 2), 1024.0))
    >>> {k: round(v, 3) for k, v in r.summary().items()}
    {'1-shot': 0.6, '1-shot ±': 1.271, '5-shot': 0.8, '5-shot ±': 0.0}
    """

    shots: tuple[Shot, ...]
    seeds: tuple[int, ...]
    classes: tuple[str, ...]
    accuracy: NDArray[np.float64]  # (shots, seeds)
    per_class: NDArray[np.float64]  # (shots, classes), mean over seeds; NaN for a class without test images
    l2: NDArray[np.float64]  # (shots, seeds)

    def summary(self) -> dict[str, float]:
        out: dict[str, float] = {}
        for shot, mean, half in zip(self.shots, self.mean, self.half_width):
            out[f"{shot}-shot"] = float(mean)
            if np.isfinite(half):
                out[f"{shot}-shot ±"] = float(half)
        return out

    def intervals(self) -> dict[str, Ends]:
        """Over draws of the training images."""
        rows = zip(self.shots, self.mean, self.half_width)
        return known_ends({f"{s}-shot": ends(float(m), float(h), least=0.0, most=1.0) for s, m, h in rows if h > 0})


def fewshot(
    train: Given,
    test: Given,
    shots: Sequence[Shot] = (1, 5, 10, 25),
    seeds: int | Sequence[int] = 5,
    *,
    l2: Penalty = L2,
) -> FewShot:
    """Few-shot accuracy of frozen features: ridge regression to +-1 targets in closed form.

    Features are standardized with mean and standard deviation (+ 1e-5) of the shots, a constant feature of 100 serves
    as the bias, and the primal or dual problem is solved by eigh in float64. Shots are nested: for a seed, the 1-shot
    images are among the 5-shot ones, and they are those of `Dataset.few_shot`. `shots` may include "all".
    `l2` is a number, a sequence or "sweep" (2**-4 to 2**20): then each draw uses the l2 that does best on held-out
    shots, a fifth (at least one) of each class at a time; every l2 uses the same decomposition, and the test set plays
    no role. One shot leaves nothing to hold out: then it is the value nearest to 2**10.

    Every class that occurs needs at least as many training images as the largest number of shots, and there must be at
    least two classes. A constant feature has no weight; if all are constant it is an error, as are NaN and infinite
    values. The same class names in another order are matched by name; different names are refused.

    >>> import torch
    >>> labels = torch.arange(40) % 4
    >>> features = torch.nn.functional.one_hot(labels, 4) + 0.1 * torch.randn(40, 4)
    >>> sl.fewshot((features, labels), (features, labels), shots=(1, 5), seeds=2).shots
    (1, 5)
    """
    task = prepare(as_features(train, "training features"), as_features(test, "test features"))
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not numbers:
        raise ValueError("At least one seed is needed.")
    check_shots(shots, task.y, task.names)
    hits, chosen = np.zeros((len(shots), len(numbers), len(task.names))), np.zeros((len(shots), len(numbers)))
    for row, shot in enumerate(shots):
        for column, seed in enumerate(numbers):
            if shot == "all" and column > 0:  # nothing is drawn at random, so every seed gives the same result
                hits[row, column], chosen[row, column] = hits[row, 0], chosen[row, 0]
            else:
                hits[row, column], chosen[row, column] = task.run(shot_rows(task.y, shot, seed=seed), l2)
    counts = np.bincount(task.truth, minlength=len(task.names))
    return FewShot(
        title="Few-shot accuracy",
        caption=f"Ridge regression on frozen features, {len(task.names)} classes, {len(task.truth)} test images, "
        f"mean of {len(numbers)} draws.",
        how={**task.how, "l2": l2 if isinstance(l2, str | float | int) else tuple(l2)},
        about=task.about,
        shots=tuple(shots),
        seeds=numbers,
        classes=task.names,
        accuracy=hits.sum(2) / len(task.truth),
        per_class=hits.mean(1) / np.where(counts > 0, counts, np.nan),
        l2=chosen,
    )


@dataclass(frozen=True)
class FewShotProblem:
    """Training and test features that passed the checks, with consecutive class numbers."""

    x: Tensor
    y: NDArray[np.int64]
    z: Tensor
    truth: NDArray[np.int64]
    names: tuple[str, ...]
    how: dict[str, Any]
    about: About

    def run(self, rows: NDArray[np.int64], l2: Penalty) -> tuple[NDArray[np.int64], float]:
        """Correct predictions by class after training on these rows, and the l2 that was used."""
        guess, used = fit_predict(self.x, self.y, rows, test=self.z, classes=len(self.names), l2=l2)
        return np.bincount(self.truth[guess == self.truth], minlength=len(self.names)), used


def prepare(train: FeatureTable, test: FeatureTable) -> FewShotProblem:
    """Check both sets and align their classes; a class without images is left out."""
    train, test = align_classes(train, test)
    x, z = check_train(train), vectors(test, "test features")
    same_width(x, z)
    check_finite(z, "test features")
    y, truth = single_labels(train, "training features"), single_labels(test, "test features")
    if len(z) == 0:
        raise ValueError("There are no test features.")
    kept = used_classes(train, test)
    protocol = {"standardize": "mean and std + 1e-5 of the shots", "constant": 100.0, "targets": "+-1"}
    names = tuple(train.classes[i] for i in kept)
    return FewShotProblem(
        x=x,
        y=np.searchsorted(kept, y),
        z=z,
        truth=np.searchsorted(kept, truth),
        names=names,
        how={**train.how, **protocol},
        about=combine(train.about, test.about),
    )


def check_shots(shots: Sequence[Shot], labels: NDArray[np.int64], names: Sequence[str]) -> None:
    """Every class must have enough training images."""
    if isinstance(shots, str | int) or not len(shots):
        raise ValueError(f"shots must be a sequence such as (1, 5, 10); got {shots!r}.")
    numbers = [s for s in shots if s != "all"]
    check_positive("shots", numbers)
    counts = np.bincount(labels, minlength=len(names))
    most = max([1, *(int(n) for n in numbers)])
    short = [f"{name} ({n})" for name, n in zip(names, counts) if n < most]
    if short:
        listed = ", ".join(short[:5]) + (" ..." if len(short) > 5 else "")
        fewest = int(counts.min())
        fits = ",".join(str(s) for s in shots if s == "all" or int(s) <= fewest) or str(fewest)
        advice = f"ask for fewer, such as --shots {fits}" if fewest else "take more images"
        raise ValueError(f"{most} shots need {most} training images of every class; too few in {listed}: {advice}.")


def shot_rows(labels: NDArray[np.int64], shots: Shot, *, seed: int) -> NDArray[np.int64]:
    """The first `shots` rows of each class in a random order: nested for a seed, the same as `Dataset.few_shot`."""
    if shots == "all":
        return np.arange(len(labels))
    chance = Draws(hash_key(seed, "class order"), np.arange(len(labels))).uniform("rank")
    order = np.lexsort((chance, labels))
    starts = np.searchsorted(labels[order], labels[order])
    return np.sort(order[np.arange(len(labels)) - starts < shots])


def fit_predict(
    x: Tensor, y: NDArray[np.int64], rows: NDArray[np.int64], *, test: Tensor, classes: int, l2: Penalty
) -> tuple[NDArray[np.int64], float]:
    """Predictions for the test rows by ridge regression on the given training rows, and the l2 that was used."""
    labels, chosen = torch.from_numpy(y[rows]), x[torch.from_numpy(rows)]
    if isinstance(l2, int | float):
        check_l2(l2)
        value = float(l2)
    else:
        ranks = torch.from_numpy(class_ranks(y[rows]))
        value = best_l2(chosen, labels, l2_values(l2), classes=classes, ranks=ranks)
    ridge = Ridge.of_labels(chosen, labels, classes)
    weights = ridge.solve(value)
    return torch.cat([s.argmax(1) for s in apply(test, weights, ridge.scaling)]).numpy(), value


def class_ranks(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each row, the number of earlier rows of its class."""
    order = np.argsort(labels, kind="stable")
    ranks = np.empty(len(labels), dtype=np.int64)
    ranks[order] = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])
    return ranks


def l2_values(l2: Sequence[float] | str) -> tuple[float, ...]:
    """The l2 values to try."""
    if isinstance(l2, str):
        if l2 != "sweep":
            raise ValueError(f"l2 must be a number, a sequence of numbers or 'sweep'; got {l2!r}.")
        return SWEEP
    if not len(l2):
        raise ValueError("A sweep over l2 needs at least one value.")
    return tuple(float(v) for v in l2)


def fewshot_evaluator(
    train: Dataset, test: Dataset, *, shots: Sequence[Shot] = (5, 10), seeds: int = 3, l2: Penalty = L2, **settings: Any
) -> Callable[[Any], dict[str, float]]:
    """A function that measures the few-shot accuracy of a model, to be called during training.

    `settings` go to `sl.extract` (batch, workers, tokens). The model's training mode is restored.

    >>> train, test = (sl.dataset("scenes/shape", split, num=40) for split in ("train", "test"))
    >>> few = sl.evals.fewshot_evaluator(train, test, shots=(2,))
    >>> list(few(sl.build("vit-nano4")))
    ['fewshot/2-shot', 'fewshot/2-shot ±']
    """

    def evaluate(model: Any) -> dict[str, float]:
        known, asked = (extract(model, part, **settings) for part in (train, test))
        said = fewshot(known, asked, shots=shots, seeds=seeds, l2=l2).summary()
        return {f"fewshot/{name}": value for name, value in said.items()}

    return evaluate
