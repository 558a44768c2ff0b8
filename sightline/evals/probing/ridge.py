"""Ridge regression in closed form, for every l2 at the cost of one eigendecomposition.

With X (n, d) and targets Y, and whichever of the two Gram matrices is smaller (big_vision, fewshot_lsr.py):

    n >= d, primal:  W = (X'X + l2 I)^-1 X'Y = Q (E + l2)^-1 Q' X'Y
    n <  d, dual:    W = X'(XX' + l2 I)^-1 Y = X' Q (E + l2)^-1 Q' Y
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

EPSILON = 1e-5  # added to the standard deviation
CONSTANT = 100.0  # the constant feature: a bias that is hardly regularized
L2 = 2.0**10
SWEEP = tuple(2.0**i for i in range(-4, 21, 2))
PARTS = 5  # folds for choosing l2
ROWS = 4096  # rows of features converted to float64 at a time
SMALL = 2048  # up to this size eigh is fastest with one thread, by far on a busy machine


@dataclass(frozen=True, eq=False)
class Scaling:
    """Mean and standard deviation (+ 1e-5) of the training rows; a constant feature becomes 0."""

    mean: Float[Tensor, " d"]
    std: Float[Tensor, " d"]

    @classmethod
    def of(cls, x: Float[Tensor, "n d"]) -> "Scaling":
        """Computed in float64 in two passes, a few thousand rows at a time."""
        mean = sum((rows.sum(0) for rows in _pieces(x)), torch.zeros(x.shape[1], dtype=torch.float64)) / len(x)
        square = sum(((rows - mean).square().sum(0) for rows in _pieces(x)), torch.zeros_like(mean))
        return cls(mean, (square / len(x)).sqrt() + EPSILON)

    def __call__(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n e"]:
        """Standardized in float64, followed by the constant feature."""
        out = torch.full((len(x), x.shape[1] + 1), CONSTANT, dtype=torch.float64)
        torch.sub(x.double(), self.mean, out=out[:, :-1])
        out[:, :-1] /= self.std
        return out


def _pieces(x: Tensor) -> Iterator[Tensor]:
    return (x[start : start + ROWS].double() for start in range(0, len(x), ROWS))


def sign_targets(labels: Int[Tensor, " n"] | Bool[Tensor, "n k"], classes: int) -> Float[Tensor, "n k"]:
    """+1 for the class of a row (or each of its classes), -1 elsewhere."""
    if labels.ndim == 2:
        return 2.0 * labels.double() - 1.0
    targets = torch.full((len(labels), classes), -1.0, dtype=torch.float64)
    return targets.scatter_(1, labels[:, None], 1.0)


@dataclass(frozen=True, eq=False)
class Ridge:
    """A decomposed problem: `solve(l2)` costs two products of small matrices for any l2."""

    scaling: Scaling
    x: Float[Tensor, "n e"] | None  # standardized rows: only the dual needs them again
    right: Float[Tensor, "m k"]  # Q'X'Y, or Q'Y in the dual
    basis: Float[Tensor, "m m"]  # Q
    values: Float[Tensor, " m"]  # eigenvalues, not negative

    @classmethod
    def of(cls, features: Float[Tensor, "n d"], targets: Float[Tensor, "n k"], *, dual: bool | None = None) -> "Ridge":
        """Standardize and decompose. `dual` is chosen by shape unless given."""
        scaling = Scaling.of(features)
        n, wide = len(features), features.shape[1] + 1
        if n < wide if dual is None else dual:
            x = scaling(features)
            values, basis = eigh(x @ x.mT)
            return cls(scaling, x, basis.mT @ targets, basis, values.clamp(min=0))
        right = torch.zeros(wide, targets.shape[1], dtype=torch.float64)

        def note(start: int, rows: Tensor) -> None:
            right.addmm_(rows.mT, targets[start : start + ROWS])

        values, basis = eigh(_gram(features, scaling, note))
        return cls(scaling, None, basis.mT @ right, basis, values.clamp(min=0))

    @classmethod
    def of_labels(cls, features: Float[Tensor, "n d"], labels: Tensor, classes: int) -> "Ridge":
        """The same for targets that are +1 at the class (or classes) of a row and -1 elsewhere, without storing them:
        X'Y is twice the sum of each class's rows minus the sum of all rows."""
        if len(features) < features.shape[1] + 1:
            return cls.of(features, sign_targets(labels, classes))
        scaling = Scaling.of(features)
        sums = torch.zeros(classes, features.shape[1] + 1, dtype=torch.float64)
        whole = torch.zeros(features.shape[1] + 1, dtype=torch.float64)

        def note(start: int, rows: Tensor) -> None:
            here = labels[start : start + ROWS]
            whole.add_(rows.sum(0))
            sums.index_add_(0, here, rows) if here.ndim == 1 else sums.addmm_(here.double().mT, rows)

        values, basis = eigh(_gram(features, scaling, note))
        return cls(scaling, None, basis.mT @ (2 * sums - whole).mT, basis, values.clamp(min=0))

    def solve(self, l2: float) -> Float[Tensor, "e k"]:
        """The weights, constant feature last."""
        check_l2(l2)
        inner = self.basis @ (self.right / (self.values + l2)[:, None])
        return inner if self.x is None else self.x.mT @ inner


def _gram(features: Tensor, scaling: Scaling, note: Callable[[int, Tensor], None]) -> Float[Tensor, "e e"]:
    """X'X, a few thousand rows at a time; `note` is called with each of these chunks."""
    gram = torch.zeros(features.shape[1] + 1, features.shape[1] + 1, dtype=torch.float64)
    for start in range(0, len(features), ROWS):
        rows = scaling(features[start : start + ROWS])
        gram.addmm_(rows.mT, rows)
        note(start, rows)
    return gram


def eigh(gram: Float[Tensor, "m m"]) -> tuple[Float[Tensor, " m"], Float[Tensor, "m m"]]:
    """Eigenvalues and eigenvectors of a symmetric matrix."""
    with threads(1 if len(gram) <= SMALL else torch.get_num_threads()):
        values, vectors = torch.linalg.eigh(gram)
    return values, vectors


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Use `count` threads temporarily: the threads of eigh wait for each other by spinning, for seconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def apply(features: Tensor, weights: Float[Tensor, "e k"], scaling: Scaling) -> Iterator[Float[Tensor, "r k"]]:
    """Scores of the rows, computed a few thousand at a time to bound memory."""
    for start in range(0, len(features), ROWS):
        yield scaling(features[start : start + ROWS]) @ weights


def candidates(sweep: tuple[float, ...], ranks: Int[Tensor, " n"], *, prefer: float) -> tuple[list[float], int]:
    """The values of l2 to compare, nearest to `prefer` first, and the number of folds; one value for one fold."""
    for l2 in sweep:
        check_l2(l2)
    parts = min(PARTS, int(ranks.max()) + 1)
    usual = sorted(sweep, key=lambda l2: abs(math.log(l2 / prefer)))
    return (usual if parts > 1 else usual[:1]), parts


def best_l2(
    features: Float[Tensor, "n d"], labels: Tensor, sweep: tuple[float, ...], *, classes: int, ranks: Int[Tensor, " n"]
) -> float:
    """The l2 that does best on held-out rows: row i is held out in fold ranks[i] mod 5 (or fewer folds).

    If `ranks` number the rows of each class, the folds are stratified. One decomposition per fold serves all values.
    Best means highest accuracy, or smallest squared error for rows of several classes; ties go to the value nearest to
    2**10. If there is only one rank, nothing can be held out, and the value nearest to 2**10 is returned.
    """
    usual, parts = candidates(sweep, ranks, prefer=L2)
    if len(usual) == 1:
        return usual[0]
    if labels.ndim == 2 and all(bool((rows.sum(1) == 1).all()) for rows in labels.split(ROWS)):
        labels = torch.cat([rows.int().argmax(1) for rows in labels.split(ROWS)])
    good = dict.fromkeys(usual, 0.0)
    for part in range(parts):
        out = ranks % parts == part
        ridge = Ridge.of_labels(features[~out], labels[~out], classes)
        for l2 in usual:
            good[l2] += _quality(features[out], labels[out], ridge, l2)
    return max(usual, key=lambda l2: good[l2])


def _quality(features: Float[Tensor, "n d"], labels: Tensor, ridge: Ridge, l2: float) -> float:
    """Number of rows classified correctly, or minus the squared error, computed a few thousand rows at a time."""
    total, at = 0.0, 0
    for scores in apply(features, ridge.solve(l2), ridge.scaling):
        here = labels[at : at + len(scores)]
        at += len(scores)
        if labels.ndim == 1:
            total += float((scores.argmax(1) == here).sum())
        else:
            total -= (scores - sign_targets(here, scores.shape[1])).square().sum().item()
    return total


def check_l2(l2: float) -> None:
    if not l2 > 0 or l2 == float("inf"):
        raise ValueError(f"l2 must be a positive number; got {l2}.")
