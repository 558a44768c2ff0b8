"""Scores for several labels per image: average precision per class, and ReaL accuracy (top-1 in the label set)."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sightline.evals.interval import Ends, image_groups, known_ends, over_groups, wilson
from sightline.spec import About, Result
from sightline.untrusted import read_json


def average_precision(scores: NDArray[Any], labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Area under the precision-recall curve of each class, as a step function; equal scores count as one step, so the
    order of rows does not matter. NaN for a class without a positive row."""
    return np.array([_precision(scores[:, k], labels[:, k]) for k in range(labels.shape[1])])


def _precision(scores: NDArray[Any], labels: NDArray[np.bool_]) -> float:
    total = labels.sum()
    if total == 0:
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))  # the last row of each run of equal scores
    hits = np.cumsum(labels[order])[ends]
    gained = np.diff(np.concatenate([[0], hits]))
    return float((gained * hits / (ends + 1)).sum() / total)


@dataclass(frozen=True, kw_only=True)
class MultiLabel(Result):
    """Scores on images that may have several labels or none.

    >>> import numpy as np
    >>> r = sl.evals.score_labels(np.array([[2., 0.], [0., 1.]]), np.array([[True, True], [False, False]]))
    >>> r.top1, r.scored, r.skipped
    (1.0, 1, 1)
    """

    top1: float  # ReaL: the top class is among the labels; images without a label are skipped
    scored: int
    skipped: int
    mean_average_precision: float
    precision: NDArray[np.float64]  # average precision by class; NaN for a class without positive images
    classes: tuple[str, ...]
    replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # mAP without each group of images

    def summary(self) -> dict[str, float]:
        return {"top-1 in the set": self.top1, "mAP": self.mean_average_precision, "scored": float(self.scored)}

    def intervals(self) -> dict[str, Ends]:
        mean = over_groups(float, (np.array(self.mean_average_precision), self.replicates), least=0.0, most=1.0)
        return known_ends({"top-1 in the set": wilson(round(self.top1 * self.scored), self.scored), "mAP": mean})


def score_labels(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    classes: Sequence[str] | None = None,
    how: dict[str, Any] | None = None,
    about: About | None = None,
) -> MultiLabel:
    """Score predictions (n, k) against boolean labels (n, k).

    >>> import numpy as np
    >>> sl.evals.score_labels(np.eye(3), np.eye(3) > 0).mean_average_precision
    1.0
    """
    s, y = np.asarray(scores), np.asarray(labels)
    if s.ndim != 2 or s.shape != y.shape:
        raise ValueError(f"Scores and labels must both be (n, classes); got {s.shape} and {y.shape}.")
    y = y.astype(np.bool_)
    if np.isnan(s).any():
        raise ValueError(f"{int(np.isnan(s).any(1).sum())} rows of the scores have NaN.")
    some = y.any(1)
    if not some.any():
        raise ValueError("No image has a label: there is nothing to score.")
    precision = average_precision(s, y)
    return MultiLabel(
        title="Multi-label accuracy",
        caption=f"{int(some.sum())} images with labels, {int((~some).sum())} without, skipped in top-1.",
        how=how or {},
        about=about or About(),
        top1=float(y[some, s[some].argmax(1)].mean()),
        scored=int(some.sum()),
        skipped=int((~some).sum()),
        mean_average_precision=float(np.nanmean(precision)),
        precision=precision,
        classes=tuple(classes) if classes is not None else tuple(map(str, range(y.shape[1]))),
        replicates=_without_groups(s, y),
    )


def _without_groups(scores: NDArray[Any], labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """mAP without each group of images."""
    group = image_groups(len(labels))
    left = [group != g for g in range(group.max() + 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # no label is left
        return np.array([np.nanmean(average_precision(scores[rows], labels[rows])) for rows in left])


@dataclass(frozen=True, kw_only=True)
class ReaL(Result):
    """Accuracy against reassessed labels (Beyer et al. 2020): correct if the prediction is among an image's labels.

    >>> r = sl.evals.score_real([3, 1, 7], [[3, 4], [2], []])
    >>> r.accuracy, r.scored, r.skipped
    (0.5, 2, 1)
    """

    accuracy: float
    scored: int
    skipped: int
    interval: tuple[float, float]  # 95 %, Wilson

    def summary(self) -> dict[str, float]:
        return {"ReaL": self.accuracy, "scored": float(self.scored), "skipped": float(self.skipped)}

    def intervals(self) -> dict[str, Ends]:
        return known_ends({"ReaL": self.interval})


def score_real(
    predictions: ArrayLike, lists: Sequence[Sequence[int]] | str | Path, *, how: dict[str, Any] | None = None
) -> ReaL:
    """ReaL accuracy: row i of the lists belongs to ILSVRC2012_val_{i + 1:08d}.JPEG; empty lists are skipped.

    `predictions` are class numbers (n,) or scores (n, 1000); `lists` is the list itself or the path of real.json.

    >>> sl.evals.score_real([[0.1, 0.9], [0.8, 0.2]], [[1], [1]]).accuracy
    0.5
    """
    if isinstance(lists, str | Path):
        lists = _read(lists)
    guesses = np.asarray(predictions)
    if guesses.ndim == 2:
        guesses = guesses.argmax(1)
    if guesses.ndim != 1 or not np.issubdtype(guesses.dtype, np.integer):
        raise ValueError("Predictions are class numbers (n,) or scores (n, classes).")
    if len(guesses) != len(lists):
        raise ValueError(f"There are {len(guesses)} predictions for {len(lists)} lists of labels.")
    hits = [int(guess) in set(labels) for guess, labels in zip(guesses, lists) if len(labels)]
    if not hits:
        raise ValueError("Every list of labels is empty: there is nothing to score.")
    return ReaL(
        title="ReaL accuracy",
        caption=f"Share of {len(hits)} images whose prediction is among their reassessed labels; "
        f"{len(lists) - len(hits)} without labels skipped.",
        how=how or {},
        accuracy=float(np.mean(hits)),
        scored=len(hits),
        skipped=len(lists) - len(hits),
        interval=wilson(sum(hits), len(hits)),
    )


def _read(path: str | Path) -> list[list[int]]:
    try:
        lists = read_json(path)
        good = isinstance(lists, list) and all(isinstance(r, list) and all(type(c) is int for c in r) for r in lists)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as lists of class numbers ({error!s:.200}).") from error
    if not good:
        raise ValueError(f"{path} does not contain a list of lists of class numbers.")
    return lists
