"""Inputs of measurements: features with labels, checked, and the classes of two sets aligned."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.evals.feature_table import FeatureTable
from sightline.spec import About

Given = FeatureTable | tuple[Any, Any]  # features and labels, from `sl.extract` or as two arrays
CHUNK = 8192  # rows checked at a time


def as_features(data: Given, what: str = "features") -> FeatureTable:
    """A FeatureTable from what the user gave."""
    if isinstance(data, FeatureTable):
        return data
    if isinstance(data, tuple) and len(data) == 2:
        return FeatureTable.of(data[0], data[1])
    raise ValueError(f"{what} come from sl.extract, or as a pair (features, labels); got a {type(data).__name__}.")


def combine(*abouts: About) -> About:
    """`about` for a result of several feature tables: every model once, and the images of all of them."""
    models = tuple(dict.fromkeys(m for about in abouts for m in about.models))
    images = list(dict.fromkeys(about.images for about in abouts))
    return About(models=models, images="+".join(images) if all(images) else "")


def vectors(data: FeatureTable, what: str = "features") -> Tensor:
    """One vector per image; the error says how to reduce tokens to one."""
    x = data.features
    if x.ndim != 2:
        raise ValueError(
            f"The {what} have {x.shape[1]} tokens per image; this takes one vector. Reduce them: .reduce('gap')."
        )
    return x


def check_finite(x: Tensor, what: str) -> None:
    """Refuse NaN and infinite features, from which no meaningful accuracy can be computed."""
    bad = [i for s in range(0, len(x), CHUNK) for i in _bad_rows(x[s : s + CHUNK], s)]
    if bad:
        listed = ", ".join(map(str, bad[:5])) + (" ..." if len(bad) > 5 else "")
        raise ValueError(f"{len(bad)} of {len(x)} rows of the {what} have NaN or infinite values: {listed}.")


def _bad_rows(x: Tensor, start: int) -> list[int]:
    if torch.isfinite(x.sum()):
        return []
    return (~torch.isfinite(x)).flatten(1).any(1).nonzero().flatten().add(start).tolist()


def check_not_constant(x: Tensor, what: str) -> None:
    """Some constant features are harmless; if all are constant, nothing can be learned."""
    first = x[:1]
    if all(bool((x[s : s + CHUNK] == first).all()) for s in range(0, len(x), CHUNK)):
        raise ValueError(f"All rows of the {what} are the same: classes cannot be distinguished.")


def single_labels(data: FeatureTable, what: str) -> NDArray[np.int64]:
    if data.labels.ndim != 1:
        raise ValueError(f"The {what} have several labels per image; this needs one.")
    return data.labels


def check_train(data: FeatureTable, what: str = "training features") -> Tensor:
    """Training features must be non-empty, finite, not all equal, and of at least two classes."""
    x = vectors(data, what)
    if len(x) == 0:
        raise ValueError(f"There are no {what}.")
    check_finite(x, what)
    check_not_constant(x, what)
    if data.labels.ndim == 1 and len(np.unique(data.labels)) < 2:
        raise ValueError(f"The {what} have only one class; a classifier needs at least two.")
    return x


def same_width(train: Tensor, test: Tensor) -> None:
    if train.shape[1:] != test.shape[1:]:
        raise ValueError(
            f"Training features are {tuple(train.shape[1:])} wide, test features {tuple(test.shape[1:])}: "
            "extract both with the same model, layer and tokens."
        )


def align_classes(train: FeatureTable, test: FeatureTable) -> tuple[FeatureTable, FeatureTable]:
    """Both tables with the same class numbers: classes are matched by name; different names are refused."""
    if train.labels.ndim != test.labels.ndim:
        raise ValueError("Training and test set must both have one label per image, or both have several.")
    if train.classes == test.classes:
        return train, test
    if "by number" in (train.how.get("classes"), test.how.get("classes")):
        return _by_number(train, test)
    only = [_format_names(set(a.classes) - set(b.classes)) for a, b in ((train, test), (test, train))]
    if any(only):
        raise ValueError(
            "Training and test set have different classes: "
            + " and ".join(f"{names} only in {where}" for names, where in zip(only, ("training", "test")) if names)
            + "."
        )
    number = {name: i for i, name in enumerate(train.classes)}
    order = np.array([number[name] for name in test.classes])
    labels = order[test.labels] if test.labels.ndim == 1 else test.labels[:, np.argsort(order)]
    return train, FeatureTable(
        layers=test.layers,
        labels=labels,
        classes=train.classes,
        grids=test.grids,
        prefix=test.prefix,
        how=test.how,
    )


def _by_number(train: FeatureTable, test: FeatureTable) -> tuple[FeatureTable, FeatureTable]:
    """Classes without names: every class in the test set must be in the training set."""
    if train.labels.ndim == 1:
        missing = set(np.unique(test.labels).tolist()) - set(np.unique(train.labels).tolist())
        if missing:
            raise ValueError(f"Classes {_format_names(missing)} are in the test set only.")
    elif train.labels.shape[1] != test.labels.shape[1]:
        raise ValueError(f"Training has {train.labels.shape[1]} classes, the test set {test.labels.shape[1]}.")
    names = max(train.classes, test.classes, key=len)
    return tuple(  # type: ignore[return-value]
        FeatureTable(layers=e.layers, labels=e.labels, classes=names, grids=e.grids, prefix=e.prefix, how=e.how)
        for e in (train, test)
    )


def _format_names(names: Any) -> str:
    every = sorted(map(str, names))
    return ", ".join(every[:5]) + (" ..." if len(every) > 5 else "")


def used_classes(*sets: FeatureTable) -> NDArray[np.int64]:
    """Numbers of the classes that have images in any of these sets."""
    return np.unique(np.concatenate([e.labels for e in sets]))


def check_positive(name: str, values: Sequence[Any]) -> None:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} must be positive whole numbers; got {value!r}.")
