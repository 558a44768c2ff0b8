"""Ridge regression in closed form, for every l2 at the price of one eigendecomposition.

With X (n, d) and targets Y, and whichever of the two Gram matrices is smaller (big_vision, fewshot_lsr.py):

    n >= d, primal:  W = (X'X + l2 I)^-1 X'Y = Q (E + l2)^-1 Q' X'Y
    n <  d, dual:    W = X'(XX' + l2 I)^-1 Y = X' Q (E + l2)^-1 Q' Y
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

EPSILON = 1e-5  # added to the standard deviation
CONSTANT = 100.0  # the constant feature: a bias that is almost not regularised
L2 = 2.0**10
SWEEP = tuple(2.0**i for i in range(-4, 21, 2))
PARTS = 5  # in which rows are held out to choose l2
ROWS = 4096  # of features that are held in float64 at a time
SMALL = 2048  # up to here one thread is the fastest for eigh, and by far when others use the machine


@dataclass(frozen=True, eq=False)
class Scaling:
    """Mean and standard deviation (+ 1e-5) of the training rows; a constant feature becomes 0 and weighs nothing."""

    mean: Float[Tensor, " d"]
    std: Float[Tensor, " d"]

    @classmethod
    def of(cls, x: Float[Tensor, "n d"]) -> "Scaling":
        std, mean = torch.std_mean(x, dim=0, correction=0)
        return cls(mean, std + EPSILON)

    def __call__(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n e"]:
        """Standardised in float64, with the constant feature behind."""
        out = torch.full((len(x), x.shape[1] + 1), CONSTANT, dtype=torch.float64)
        torch.sub(x.double(), self.mean, out=out[:, :-1])
        out[:, :-1] /= self.std
        return out


def sign_targets(labels: Int[Tensor, " n"] | Bool[Tensor, "n k"], classes: int) -> Float[Tensor, "n k"]:
    """+1 for the class of a row (or each of its classes), -1 elsewhere."""
    if labels.ndim == 2:
        return 2.0 * labels.double() - 1.0
    targets = torch.full((len(labels), classes), -1.0, dtype=torch.float64)
    return targets.scatter_(1, labels[:, None], 1.0)


@dataclass(frozen=True, eq=False)
class Ridge:
    """A decomposed problem: `solve(l2)` costs two products of small matrices, whatever l2 is."""

    scaling: Scaling
    x: Float[Tensor, "n e"]
    right: Float[Tensor, "m k"]  # Q'X'Y, or Q'Y in the dual
    basis: Float[Tensor, "m m"]  # Q
    values: Float[Tensor, " m"]  # eigenvalues, not negative
    dual: bool

    @classmethod
    def of(cls, features: Float[Tensor, "n d"], targets: Float[Tensor, "n k"], *, dual: bool | None = None) -> "Ridge":
        """Standardise and decompose. `dual` is chosen by shape unless said."""
        features = features.double()
        scaling = Scaling.of(features)
        x = scaling(features)
        dual = x.shape[0] < x.shape[1] if dual is None else dual
        values, basis = eigh(x @ x.mT if dual else x.mT @ x)
        right = basis.mT @ (targets if dual else x.mT @ targets)
        return cls(scaling, x, right, basis, values.clamp(min=0), dual)

    def solve(self, l2: float) -> Float[Tensor, "e k"]:
        """The weights, constant feature last."""
        check_l2(l2)
        inner = self.basis @ (self.right / (self.values + l2)[:, None])
        return self.x.mT @ inner if self.dual else inner


def eigh(gram: Float[Tensor, "m m"]) -> tuple[Float[Tensor, " m"], Float[Tensor, "m m"]]:
    """Eigenvalues and eigenvectors of a symmetric matrix."""
    with threads(1 if len(gram) <= SMALL else torch.get_num_threads()):
        values, vectors = torch.linalg.eigh(gram)
    return values, vectors


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with so many threads for a while: those of eigh wait for each other by spinning, seconds at a time."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def apply(features: Tensor, weights: Float[Tensor, "e k"], scaling: Scaling) -> Iterator[Float[Tensor, "r k"]]:
    """Scores of many rows, a few thousand at a time, so that memory does not grow with them."""
    for start in range(0, len(features), ROWS):
        yield scaling(features[start : start + ROWS]) @ weights


def best_l2(
    features: Float[Tensor, "n d"], targets: Float[Tensor, "n k"], sweep: tuple[float, ...], *, ranks: Int[Tensor, " n"]
) -> float:
    """The l2 that does best on held-out rows: row i is held out in part ranks[i] mod 5 (or fewer parts).

    Where `ranks` count the rows of each class, every part holds as many of each. One decomposition per part serves all
    values. Best is most often right, for rows of several classes the smallest error; among equals the nearest to 2**10.
    With one rank only nothing can be held out: then it is the nearest to 2**10, too.
    """
    for l2 in sweep:
        check_l2(l2)
    usual = sorted(sweep, key=lambda l2: abs(math.log(l2 / L2)))
    parts = min(PARTS, int(ranks.max()) + 1)
    if len(sweep) == 1 or parts == 1:
        return usual[0]
    single = bool(((targets > 0).sum(1) == 1).all())
    good = dict.fromkeys(usual, 0.0)
    for part in range(parts):
        out = ranks % parts == part
        ridge = Ridge.of(features[~out], targets[~out])
        for l2 in usual:
            good[l2] += _goodness(features[out], targets[out], ridge, l2, single=single)
    return max(usual, key=lambda l2: good[l2])


def _goodness(
    features: Float[Tensor, "n d"], targets: Float[Tensor, "n k"], ridge: Ridge, l2: float, *, single: bool
) -> float:
    """Rows that are classified rightly, or minus the squared error."""
    total, at = 0.0, 0
    for scores in apply(features, ridge.solve(l2), ridge.scaling):
        here = targets[at : at + len(scores)]
        at += len(scores)
        if single:
            total += float((here.gather(1, scores.argmax(1, keepdim=True)) > 0).sum())
        else:
            total -= (scores - here).square().sum().item()
    return total


def check_l2(l2: float) -> None:
    if not l2 > 0 or l2 == float("inf"):
        raise ValueError(f"l2 is a positive number; got {l2}.")
