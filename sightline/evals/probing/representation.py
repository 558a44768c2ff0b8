"""How good features are that were learned without labels: their rank, and whether neighbors have the same label."""

import math

import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

TEMPERATURE = 0.07  # of the neighbors' votes
SAME = 1e-3  # share of the mean square that is variance; 0.05 or more in every network that was measured


def effective_rank(features: Float[Tensor, "n d"]) -> float:
    """The number of dimensions that features fill: the exponential of the entropy of their variances' shares.

    Between 1, all on one line, and the smaller of d and n - 1, all directions alike; 0 if all features are the same: if
    they vary by less than a thousandth of their mean square.

    >>> import torch
    >>> x = torch.randn(1000, 8, generator=torch.Generator().manual_seed(0))
    >>> 7.8 < sl.evals.effective_rank(x) < 8, sl.evals.effective_rank(x[:, :1] * torch.ones(8))
    (True, 1.0)
    >>> sl.evals.effective_rank(torch.ones(10, 8))
    0.0
    """
    x = features.double()
    spread = torch.linalg.svdvals(x - x.mean(0)).square()
    if not spread.sum() > SAME * x.square().sum():
        return 0.0
    shares = spread / spread.sum()
    return math.exp(-torch.special.xlogy(shares, shares).sum().item())


def neighbor_accuracy(features: Float[Tensor, "n d"], labels: ArrayLike | Tensor, *, neighbors: int = 20) -> float:
    """Share of rows whose label the nearest other rows predict, by cosine, weighted by exp(similarity / 0.07).

    Every row is left out once, so no second set of images is needed.

    >>> import torch
    >>> x = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    >>> sl.evals.neighbor_accuracy(torch.cat([x + 3, x - 3]), [0] * 50 + [1] * 50)
    1.0
    """
    unit = torch.nn.functional.normalize(features.double(), dim=1)
    labels = torch.as_tensor(labels, dtype=torch.int64)
    if len(labels) != len(unit) or len(unit) < 2:
        raise ValueError(f"Expected two or more rows and a label for each; got {len(unit)} rows, {len(labels)} labels.")
    similarity = (unit @ unit.mT).fill_diagonal_(-torch.inf)
    best, at = similarity.topk(min(neighbors, len(unit) - 1), dim=1)
    votes = torch.zeros(len(unit), int(labels.max()) + 1, dtype=torch.float64)
    votes.scatter_add_(1, labels[at], ((best - best[:, :1]) / TEMPERATURE).exp())
    return (votes.argmax(1) == labels).double().mean().item()
