"""K-way N-shot episodes on classes that the model has never seen."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.datasets import Dataset, Subset
from sightline.data.draws import generator
from sightline.evals.inputs import (
    Given,
    as_features,
    check_finite,
    check_not_constant,
    check_positive,
    single_labels,
    vectors,
)
from sightline.evals.interval import Ends, RepeatedAccuracy, ends, image_groups, known_ends, over_groups
from sightline.evals.probing.ridge import L2, Ridge, sign_targets
from sightline.spec import Result

Classifier = Literal["prototype", "ridge"]


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One episode: row numbers of the support set and of the queries, by class.

    >>> import numpy as np
    >>> e = sl.evals.sample_episode(np.arange(40) % 8, ways=5, shots=2, queries=3, seed=0)
    >>> e.support.shape, e.query.shape, len(set(e.classes))
    ((5, 2), (5, 3), 5)
    """

    classes: tuple[int, ...]
    support: NDArray[np.int64]  # (ways, shots)
    query: NDArray[np.int64]  # (ways, queries)


def sample_episode(
    labels: NDArray[np.int64], *, ways: int, shots: int, queries: int, seed: int, number: int = 0
) -> Episode:
    """Episode `number` of a seed. Episodes are nested: with more ways or shots, the classes and the support set of
    fewer are kept, and the queries do not depend on the shots.

    >>> import numpy as np
    >>> few, many = (sl.evals.sample_episode(np.arange(40) % 8, ways=3, shots=n, queries=1, seed=0) for n in (1, 4))
    >>> bool((few.support == many.support[:, :1]).all()), bool((few.query == many.query).all())
    (True, True)
    """
    rng = generator(seed, "episode", number)
    order = np.argsort(labels, kind="stable")
    names, starts = np.unique(labels[order], return_index=True)
    members = dict(zip(names.tolist(), np.split(order, starts[1:])))
    classes = tuple(int(c) for c in rng.permutation(names)[:ways])
    rows = [members[c][generator(seed, "episode", number, c).permutation(len(members[c]))] for c in classes]
    return Episode(
        classes=classes,
        support=np.stack([r[:shots] for r in rows]),
        query=np.stack([r[len(r) - queries :] for r in rows]),
    )


@dataclass(frozen=True, kw_only=True)
class Episodes(RepeatedAccuracy, Result):
    """Accuracy of many episodes for each number of ways and shots, and feature similarity within and between classes.

    >>> import numpy as np
    >>> half = np.full((1, 1, 4), 0.5)
    >>> r = sl.evals.Episodes(title="", caption="", ways=(5,), shots=(1,), accuracy=half, within=0.8, between=0.1)
    >>> r.summary()
    {'5-way 1-shot': 0.5, '5-way 1-shot ±': 0.0, 'cosine within': 0.8, 'cosine between': 0.1}
    """

    ways: tuple[int, ...]
    shots: tuple[int, ...]
    accuracy: NDArray[np.float64]  # (ways, shots, episodes)
    within: float  # mean cosine similarity of two images of one class
    between: float  # of two images of different classes
    cosine_replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))  # both without each group
    # of images

    def summary(self) -> dict[str, float]:
        out: dict[str, float] = {}
        for i, k in enumerate(self.ways):
            for j, n in enumerate(self.shots):
                out[f"{k}-way {n}-shot"] = float(self.mean[i, j])
                if np.isfinite(self.half_width[i, j]):
                    out[f"{k}-way {n}-shot ±"] = float(self.half_width[i, j])
        return {**out, "cosine within": self.within, "cosine between": self.between}

    def intervals(self) -> dict[str, Ends]:
        """Of accuracies over episodes, of cosines over images."""
        cells = [(i, j) for i in range(len(self.ways)) for j in range(len(self.shots))]
        names = (f"{self.ways[i]}-way {self.shots[j]}-shot" for i, j in cells)
        found = {name: ends(float(self.mean[at]), float(self.half_width[at])) for name, at in zip(names, cells)}
        for i, name in enumerate(("within", "between")):
            part = np.array(getattr(self, name)), self.cosine_replicates[:, i]
            found[f"cosine {name}"] = over_groups(float, part, least=-1.0, most=1.0)
        return known_ends(found)


def episodes(
    features: Given,
    ways: int | Sequence[int] = 5,
    shots: int | Sequence[int] = 1,
    *,
    queries: int = 15,
    episodes: int = 600,
    classifier: Classifier = "prototype",
    trained_on: Iterable[str] = (),
    seed: int = 0,
) -> Episodes:
    """K-way N-shot accuracy: K classes with N labeled images each, and queries of those classes to classify.

    `trained_on` names the classes that the model was trained on: none of them may be among the features' classes,
    because episodes test classes that the model has never seen; `sl.evals.split_classes` splits a dataset that way.
    "prototype" predicts the class whose mean normalized feature has the largest cosine similarity, "ridge" fits the
    classifier of `sl.fewshot` to the support set. Several ways or shots give every combination, on the same episodes.

    >>> import torch
    >>> y = torch.arange(200) % 10
    >>> x = torch.nn.functional.one_hot(y, 10) + 0.1 * torch.randn(200, 10)
    >>> sl.evals.episodes((x, y), ways=(2, 5), shots=(1, 3), queries=5, episodes=20).accuracy.shape
    (2, 2, 20)
    """
    data = as_features(features)
    x, y = vectors(data), single_labels(data, "features")
    check_finite(x, "features")
    check_not_constant(x, "features")
    check_disjoint([data.classes[i] for i in np.unique(y)], trained_on)
    many = tuple((v,) if isinstance(v, int) else tuple(v) for v in (ways, shots))
    check_positive("ways and shots", [*many[0], *many[1]])
    check_positive("queries and episodes", (queries, episodes))
    if classifier not in ("prototype", "ridge"):
        raise ValueError(f"classifier is 'prototype' or 'ridge'; got {classifier!r}.")
    if min(many[0]) < 2:
        raise ValueError("An episode needs at least two ways.")
    check_sizes(y, data.classes, ways=max(many[0]), needed=max(many[1]) + queries)
    kept = torch.nn.functional.normalize(x.double(), dim=1) if classifier == "prototype" else x
    accuracy = np.zeros((len(many[0]), len(many[1]), episodes))
    for number in range(episodes):
        whole = sample_episode(y, ways=max(many[0]), shots=max(many[1]), queries=queries, seed=seed, number=number)
        support, query = _rows(kept, whole.support), _rows(kept, whole.query)
        for i, k in enumerate(many[0]):
            for j, n in enumerate(many[1]):
                accuracy[i, j, number] = classify(support[:k, :n], query[:k], classifier)
    within, between = cosine_similarity(x, y)
    return Episodes(
        title="Episodes",
        caption=f"{episodes} episodes with {queries} queries per class, {classifier} classifier, 95 % interval.",
        how={**data.how, "classifier": classifier, "queries": queries, "seed": seed},
        about=data.about,
        ways=many[0],
        shots=many[1],
        accuracy=accuracy,
        within=within,
        between=between,
        cosine_replicates=_without_groups(x, y),
    )


def _without_groups(x: Tensor, labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Cosines within and between classes without each group of images."""
    group = image_groups(len(labels))
    return np.array([cosine_similarity(x[group != g], labels[group != g]) for g in range(group.max() + 1)])


def _rows(x: Tensor, index: NDArray[np.int64]) -> Tensor:
    return x[torch.from_numpy(index.ravel())].double().unflatten(0, index.shape)


def check_sizes(labels: NDArray[np.int64], classes: Sequence[str], *, ways: int, needed: int) -> None:
    """Require enough classes, and enough images in each for support and queries."""
    counts = np.bincount(labels, minlength=len(classes))
    if (counts > 0).sum() < max(ways, 2):
        raise ValueError(f"{ways} ways need {ways} classes; the features have {int((counts > 0).sum())}.")
    small = [f"{name} ({n})" for name, n in zip(classes, counts) if 0 < n < needed]
    if small:
        listed = ", ".join(small[:5]) + (" ..." if len(small) > 5 else "")
        raise ValueError(
            f"Shots and queries together need {needed} images of every class; too few in {listed}. "
            "Ask for fewer shots or queries, or leave these classes out."
        )


def classify(support: Tensor, query: Tensor, classifier: Classifier = "prototype") -> float:
    """Accuracy of one episode: support (k, n, d), query (k, q, d); ties go to the first class."""
    k, n, _ = support.shape
    flat = query.flatten(0, 1)
    if classifier == "prototype":
        scores = flat @ torch.nn.functional.normalize(support.mean(1), dim=1).mT
    else:
        targets = sign_targets(torch.arange(k).repeat_interleave(n), k)
        ridge = Ridge.of(support.flatten(0, 1), targets)
        scores = ridge.scaling(flat) @ ridge.solve(L2)
    truth = torch.arange(k).repeat_interleave(query.shape[1])
    return (scores.argmax(1) == truth).double().mean().item()


def check_disjoint(classes: Iterable[str], trained_on: Iterable[str]) -> None:
    """Classes of episodes must not be among those of training."""
    shared = sorted(set(classes) & set(trained_on))
    if shared:
        listed = ", ".join(shared[:5]) + (" ..." if len(shared) > 5 else "")
        raise ValueError(
            f"Episodes need classes that the model was not trained on; it was trained on {listed}. "
            "Split them: sl.evals.split_classes."
        )


def split_classes(dataset: Dataset, fraction: float = 0.5, *, seed: int = 0) -> tuple[Dataset, Dataset]:
    """Split a dataset into two parts with disjoint classes: one to train on, one to draw episodes from.

    >>> base, novel = sl.evals.split_classes(sl.dataset("scenes/objects", num=100), 0.6, seed=0)
    >>> len(base.classes), len(novel.classes), set(base.classes) & set(novel.classes)
    (12, 8, set())
    """
    count = len(dataset.classes)
    first = round(fraction * count)
    if not 0 < first < count:
        raise ValueError(f"A fraction of {fraction} of {count} classes leaves one part without classes.")
    if dataset.labels.ndim != 1:
        raise ValueError(f"{dataset.name} has several labels per image; classes cannot be split.")
    order = generator(seed, "class split").permutation(count)
    return _select_classes(dataset, np.sort(order[:first])), _select_classes(dataset, np.sort(order[first:]))


def _select_classes(dataset: Dataset, classes: NDArray[np.int64]) -> Dataset:
    part = Subset(dataset, np.flatnonzero(np.isin(dataset.labels, classes)))
    part.classes = tuple(dataset.classes[i] for i in classes)
    part.labels = np.searchsorted(classes, part.labels)
    return part


def cosine_similarity(x: Tensor, labels: Any) -> tuple[float, float]:
    """Mean cosine similarity of all pairs within a class, and of all pairs from different classes.

    >>> import torch
    >>> sl.evals.cosine_similarity(torch.tensor([[1.0, 0], [2, 0], [0, 1], [0, 3]]), [0, 0, 1, 1])
    (1.0, 0.0)
    """
    unit = torch.nn.functional.normalize(x.double(), dim=1)
    _, number = np.unique(np.asarray(labels), return_inverse=True)
    index = torch.from_numpy(number.astype(np.int64))
    count = torch.bincount(index).double()
    sums = torch.zeros(len(count), unit.shape[1], dtype=torch.float64).index_add_(0, index, unit)
    same = sums.square().sum() - unit.square().sum()
    other = sums.sum(0).square().sum() - sums.square().sum()
    pairs = (count * (count - 1)).sum(), len(index) ** 2 - count.square().sum()
    return tuple((v / p).item() if p > 0 else float("nan") for v, p in zip((same, other), pairs))  # type: ignore[return-value]
