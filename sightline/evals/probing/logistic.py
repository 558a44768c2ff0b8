"""Multinomial logistic regression (independent if rows have several labels) by full-batch L-BFGS in float64."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from sightline.evals.probing.ridge import Scaling, candidates, check_l2

STEPS = 300
SWEEP = tuple(10.0**i for i in range(-6, 2))  # of the penalty l2 / 2 |w|^2 added to the mean loss
USUAL = 1e-2


def loss(scores: Float[Tensor, "n k"], labels: Tensor) -> Float[Tensor, ""]:
    """Mean cross-entropy; for labels (n, k), the binary cross-entropy averaged over classes."""
    if labels.ndim == 2:
        return F.binary_cross_entropy_with_logits(scores, labels.double())
    return F.cross_entropy(scores, labels)


def solve(x: Float[Tensor, "n e"], labels: Tensor, *, classes: int, l2: float) -> Float[Tensor, "e k"]:
    """Weights for standardized features whose last column is constant; the weight of that column is not penalized.

    The problem is convex: L-BFGS with a strong Wolfe line search reaches the same solution from any start.
    """
    check_l2(l2)
    scale = torch.ones(x.shape[1], 1, dtype=torch.float64)
    scale[-1] = 1 / x[0, -1]  # the constant feature enters as 1, so that the problem is well conditioned
    weights = torch.zeros(x.shape[1], classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=STEPS, tolerance_grad=1e-7, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(x @ (scale * weights), labels) + 0.5 * l2 * weights[:-1].square().sum()
        value.backward()
        return value

    with torch.enable_grad(), torch.inference_mode(False):
        optimizer.step(closure)
    return (scale * weights).detach()


def best_l2(
    features: Float[Tensor, "n d"], labels: Tensor, sweep: tuple[float, ...], *, classes: int, ranks: Int[Tensor, " n"]
) -> float:
    """The l2 with the smallest loss on a held-out fifth of each class; the first value if nothing can be held out."""
    usual, parts = candidates(sweep, ranks, prefer=USUAL)
    if len(usual) == 1:
        return usual[0]
    out = ranks % parts == parts - 1
    scaling = Scaling.of(features[~out])
    x, held = scaling(features[~out]), scaling(features[out])
    return min(usual, key=lambda l2: loss(held @ solve(x, labels[~out], classes=classes, l2=l2), labels[out]).item())
