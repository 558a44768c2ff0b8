"""What measurements take: features with labels, checked, and two sets of them brought to the same classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.evals.feature_table import FeatureTable
from sightline.spec import About

Given = FeatureTable | tuple[Any, Any]  # features and labels, from `sl.extract` or as two arrays
CHUNK = 8192  # rows looked at in one go


def given(data: Given, what: str = "features") -> FeatureTable:
    """Features and labels from whatever a user has."""
    if isinstance(data, FeatureTable):
        return data
    if isinstance(data, tuple) and len(data) == 2:
        return FeatureTable.of(data[0], data[1])
    raise ValueError(f"{what} come from sl.extract, or as a pair (features, labels); got a {type(data).__name__}.")


def combine(*abouts: About) -> About:
    """What a result of several sets of features is about: every model once, and the images of all of them."""
    models = tuple(dict.fromkeys(m for about in abouts for m in about.models))
    images = list(dict.fromkeys(about.images for about in abouts))
    return About(models=models, images="+".join(images) if all(images) else "")


def vectors(data: FeatureTable, what: str = "features") -> Tensor:
    """The one vector per image, or a word on how to get there."""
    x = data.features
    if x.ndim != 2:
        raise ValueError(
            f"The {what} hold {x.shape[1]} tokens an image; this takes one vector. Reduce them: .reduce('gap')."
        )
    return x


def check_finite(x: Tensor, what: str) -> None:
    """NaN and infinite features are refused: no accuracy that comes out of them means anything."""
    bad = [i for s in range(0, len(x), CHUNK) for i in _broken(x[s : s + CHUNK], s)]
    if bad:
        listed = ", ".join(map(str, bad[:5])) + (" ..." if len(bad) > 5 else "")
        raise ValueError(f"{len(bad)} of {len(x)} rows of the {what} hold NaN or infinite values: {listed}.")


def _broken(x: Tensor, start: int) -> list[int]:
    if torch.isfinite(x.sum()):
        return []
    return (~torch.isfinite(x)).flatten(1).any(1).nonzero().flatten().add(start).tolist()


def check_varied(x: Tensor, what: str) -> None:
    """Single constant features are harmless; if all are, nothing can be learnt."""
    first = x[:1]
    if all(bool((x[s : s + CHUNK] == first).all()) for s in range(0, len(x), CHUNK)):
        raise ValueError(f"All rows of the {what} are the same: there is nothing to tell classes apart by.")


def single_labels(data: FeatureTable, what: str) -> NDArray[np.int64]:
    if data.labels.ndim != 1:
        raise ValueError(f"The {what} have several labels per image; this needs one.")
    return data.labels


def checked_train(data: FeatureTable, what: str = "training features") -> Tensor:
    """The rules for what is learnt from: rows there are, finite and not all alike, of at least two classes."""
    x = vectors(data, what)
    if len(x) == 0:
        raise ValueError(f"There are no {what}.")
    check_finite(x, what)
    check_varied(x, what)
    if data.labels.ndim == 1 and len(np.unique(data.labels)) < 2:
        raise ValueError(f"The {what} are of one class only; there is nothing to tell it from.")
    return x


def same_width(train: Tensor, test: Tensor) -> None:
    if train.shape[1:] != test.shape[1:]:
        raise ValueError(
            f"Training features are {tuple(train.shape[1:])} wide, test features {tuple(test.shape[1:])}: "
            "extract both with the same model, layer and tokens."
        )


def aligned(train: FeatureTable, test: FeatureTable) -> tuple[FeatureTable, FeatureTable]:
    """Both with the same class numbers: the same names in another order are matched by name, others are refused."""
    if train.labels.ndim != test.labels.ndim:
        raise ValueError("Training and test set must both have one label per image, or both several.")
    if train.classes == test.classes:
        return train, test
    if "by number" in (train.how.get("classes"), test.how.get("classes")):
        return _by_number(train, test)
    only = [_listed(set(a.classes) - set(b.classes)) for a, b in ((train, test), (test, train))]
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
    """Classes without names: every class that is tested must have been trained."""
    if train.labels.ndim == 1:
        missing = set(np.unique(test.labels).tolist()) - set(np.unique(train.labels).tolist())
        if missing:
            raise ValueError(f"Classes {_listed(missing)} are in the test set only.")
    elif train.labels.shape[1] != test.labels.shape[1]:
        raise ValueError(f"Training has {train.labels.shape[1]} classes, the test set {test.labels.shape[1]}.")
    names = max(train.classes, test.classes, key=len)
    return tuple(  # type: ignore[return-value]
        FeatureTable(layers=e.layers, labels=e.labels, classes=names, grids=e.grids, prefix=e.prefix, how=e.how)
        for e in (train, test)
    )


def _listed(names: Any) -> str:
    every = sorted(map(str, names))
    return ", ".join(every[:5]) + (" ..." if len(every) > 5 else "")


def used_classes(*sets: FeatureTable) -> NDArray[np.int64]:
    """Numbers of the classes that have images in any of these sets; a class without any takes no part."""
    return np.unique(np.concatenate([e.labels for e in sets]))


def positive_whole(name: str, values: Sequence[Any]) -> None:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} are whole numbers from 1 up; got {value!r}.")
