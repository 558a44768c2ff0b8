"""Probes: small classifiers on frozen features, as fit / predict / score."""

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sightline.data.draws import Draws, hash_key
from sightline.evals.feature_table import FeatureTable
from sightline.evals.few_shot import Penalty, class_ranks, l2_values
from sightline.evals.inputs import align_classes, check_finite, check_train, same_width, vectors
from sightline.evals.probing import logistic
from sightline.evals.probing.ridge import SWEEP, Ridge, Scaling, apply, best_l2, check_l2

Data = FeatureTable | ArrayLike | Tensor
TRAIN_ROWS, TEST_ROWS = 16_384, 1024  # rows in a block of similarities (128 MB)


def as_table(features: Data, labels: ArrayLike | Tensor | None) -> FeatureTable:
    """A FeatureTable from features and labels, given together or separately."""
    if isinstance(features, FeatureTable):
        if labels is not None:
            raise ValueError("Features from sl.extract include their labels: omit labels.")
        return features
    if labels is None:
        raise ValueError("Give labels with the features, or use features from sl.extract.")
    return FeatureTable.of(features, labels)


def as_vectors(features: Data, width: int) -> Tensor:
    """Rows to predict, checked for the right width."""
    if isinstance(features, FeatureTable):
        x = vectors(features, "features")
    else:
        x = torch.as_tensor(features)
        if x.ndim != 2:
            raise ValueError(f"A probe takes features (n, d); got {tuple(x.shape)}.")
    if x.shape[1] != width:
        raise ValueError(f"The probe was fitted to features {width} wide; got {x.shape[1]}.")
    check_finite(x, "features")
    return x


class _Probe:
    """Shared by the probes: `predict` takes the class with the best of `scores`, `score` is the accuracy."""

    train: FeatureTable | None = None

    def fit(self, features: Data, labels: ArrayLike | Tensor | None = None) -> "_Probe":
        raise NotImplementedError

    def scores(self, features: Data) -> Tensor:
        raise NotImplementedError

    def training_table(self) -> FeatureTable:
        if self.train is None:
            raise ValueError("The probe has not been fitted: call .fit(features, labels) first.")
        return self.train

    def predict(self, features: Data) -> NDArray[Any]:
        """Class numbers (n,); for several labels per row a table (n, k) of bool."""
        train, scores = self.training_table(), self.scores(features)
        return (scores > 0).numpy() if train.labels.ndim == 2 else scores.argmax(1).numpy()

    def score(self, features: Data, labels: ArrayLike | Tensor | None = None) -> float:
        """Accuracy; for several labels per row, the mean average precision."""
        train, test = align_classes(self.training_table(), as_table(features, labels))
        if len(test) == 0:
            raise ValueError("There are no rows to score.")
        if train.labels.ndim == 2:
            from sightline.evals.multilabel import average_precision  # needed only here

            return float(np.nanmean(average_precision(self.scores(test).numpy(), test.labels)))
        return float((self.predict(test) == test.labels).mean())


class LinearProbe(_Probe):
    """A linear classifier on frozen features: closed-form ridge to +-1 targets, or logistic regression by L-BFGS.

    Features are standardized as in `sl.fewshot`. `l2` is a number, a sequence or "sweep": then it is chosen on held-out
    fifths of each class, and the final fit uses all rows. The chosen value is `l2_`.

    >>> import torch
    >>> y = torch.arange(60) % 3
    >>> x = torch.nn.functional.one_hot(y, 5).float() + 0.1 * torch.randn(60, 5)
    >>> sl.evals.LinearProbe().fit(x[:30], y[:30]).score(x[30:], y[30:])
    1.0
    """

    def __init__(self, method: Literal["ridge", "logistic"] = "ridge", *, l2: Penalty = "sweep"):
        if method not in ("ridge", "logistic"):
            raise ValueError(f"method is 'ridge' or 'logistic'; got {method!r}.")
        if isinstance(l2, int | float):
            check_l2(l2)
        self.method, self.l2 = method, l2

    def fit(self, features: Data, labels: ArrayLike | Tensor | None = None) -> "LinearProbe":
        train = as_table(features, labels)
        x = check_train(train)
        y = torch.from_numpy(train.labels)
        classes, ranks = len(train.classes), fold_ranks(train.labels)
        sweep = (float(self.l2),) if isinstance(self.l2, int | float) else l2_values(self.l2)
        if self.method == "ridge":
            self.l2_ = best_l2(x, y, sweep, classes=classes, ranks=ranks)
            solved = Ridge.of_labels(x, y, classes)
            self.weights, self.scaling = solved.solve(self.l2_), solved.scaling
        else:
            sweep = logistic.SWEEP if sweep == SWEEP else sweep
            self.l2_ = logistic.best_l2(x, y, sweep, classes=classes, ranks=ranks)
            self.scaling = Scaling.of(x)
            self.weights = logistic.solve(self.scaling(x), y, classes=classes, l2=self.l2_)
        self.train = train.take(slice(0))  # only its classes and kind of labels
        return self

    def scores(self, features: Data) -> Tensor:
        """One score per row and class: the larger, the more likely."""
        self.training_table()
        x = as_vectors(features, len(self.scaling.mean))
        return torch.cat([*apply(x, self.weights, self.scaling), torch.empty(0, self.weights.shape[1])])

    def probabilities(self, features: Data) -> Tensor:
        """Probabilities of a logistic probe: softmax over classes, or a sigmoid per class for several labels."""
        if self.method != "logistic":
            raise ValueError("Only a logistic probe has probabilities: LinearProbe('logistic').")
        scores = self.scores(features)
        return scores.sigmoid() if self.training_table().labels.ndim == 2 else scores.softmax(1)


def fold_ranks(labels: NDArray[Any]) -> Tensor:
    """Random rank of each row within its class, which decides in which fold it is held out, even in sorted data."""
    chance = np.argsort(Draws(hash_key(0, "held out"), np.arange(len(labels))).uniform("rank"), kind="stable")
    ranks = np.empty(len(labels), dtype=np.int64)
    ranks[chance] = np.arange(len(labels)) if labels.ndim == 2 else class_ranks(labels[chance])
    return torch.from_numpy(ranks)


class KNNProbe(_Probe):
    """k-nearest-neighbor classifier by cosine similarity; votes are equal or weighted by exp(similarity / temperature).

    A class's score is its share of the votes. Rows of length zero are similar to nothing.

    >>> import torch
    >>> x, y = torch.eye(6), torch.arange(6) % 2
    >>> sl.evals.KNNProbe(1).fit(x, y).score(x + 0.1, y)
    1.0
    """

    def __init__(
        self, neighbors: int = 20, *, weights: Literal["distance", "uniform"] = "distance", temperature: float = 0.07
    ):
        if neighbors < 1:
            raise ValueError(f"neighbors must be at least 1; got {neighbors}.")
        if weights not in ("distance", "uniform"):
            raise ValueError(f"weights is 'distance' or 'uniform'; got {weights!r}.")
        if temperature <= 0:
            raise ValueError(f"temperature must be positive; got {temperature}.")
        self.neighbors, self.weights, self.temperature = neighbors, weights, temperature

    def fit(self, features: Data, labels: ArrayLike | Tensor | None = None) -> "KNNProbe":
        train = as_table(features, labels)
        check_train(train)
        if len(train) < self.neighbors:
            raise ValueError(f"{self.neighbors} neighbors need at least as many training rows; got {len(train)}.")
        self.train = train
        return self

    def scores(self, features: Data) -> Tensor:
        train = self.training_table()
        x = as_vectors(features, vectors(train).shape[1])
        several = train.labels.ndim == 2
        labels = torch.from_numpy(train.labels)
        votes = labels.double() if several else torch.nn.functional.one_hot(labels, len(train.classes)).double()
        said = [torch.empty(0, len(train.classes), dtype=torch.float64)]
        for start in range(0, len(x), TEST_ROWS):
            similarity, index = nearest(x[start : start + TEST_ROWS], train.features, self.neighbors)
            weight = torch.ones_like(similarity)
            if self.weights == "distance":
                weight = ((similarity - similarity[:, :1]) / self.temperature).exp()
            share = (weight[..., None] * votes[index]).sum(1) / weight.sum(1, keepdim=True)
            said.append(share - 0.5 if several else share)  # a label is predicted if it has more than half of the votes
        return torch.cat(said)


def nearest(x: Tensor, among: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Cosine similarities and row numbers of the nearest rows, nearest first; computed in blocks."""
    unit = torch.nn.functional.normalize(x.double(), dim=1)
    best, where = torch.empty(len(x), 0, dtype=torch.float64), torch.empty(len(x), 0, dtype=torch.int64)
    for start in range(0, len(among), TRAIN_ROWS):
        block = torch.nn.functional.normalize(among[start : start + TRAIN_ROWS].double(), dim=1)
        best = torch.cat([best, unit @ block.mT], dim=1)
        where = torch.cat([where, torch.arange(start, start + len(block)).expand(len(x), -1)], dim=1)
        best, order = best.topk(min(count, best.shape[1]), dim=1)
        where = where.gather(1, order)
    return best, where


def fit_hits(probe: Any, train: FeatureTable, test: FeatureTable) -> NDArray[np.float64]:
    """1 for each test row that a fresh fit predicts; only its score, one number, for several labels per row and for a
    probe that has no `predict`. The same probe may be used again and again."""
    train, test = align_classes(train, test)
    same_width(train.features, test.features)
    fitted = probe.fit(train)
    if train.labels.ndim == 2 or not hasattr(fitted, "predict"):
        return np.array([fitted.score(test)])
    if len(test) == 0:
        raise ValueError("There are no rows to score.")
    return np.asarray(fitted.predict(test) == test.labels, dtype=np.float64)


def make_probe(name: str, **settings: Any) -> Any:
    """A probe by name: ridge, logistic or knn."""
    match name:
        case "ridge" | "logistic":
            return LinearProbe(name, **settings)
        case "knn":
            return KNNProbe(**settings)
    raise ValueError(f"probe must be ridge, logistic or knn; got {name!r}.")
