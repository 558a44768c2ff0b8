"""Four ways to look at the same Gram matrices: as printed, calibrated by permutation, within class, without outliers.

All are functions of stacks of Gram matrices (layers, m, m) of one batch, so none needs another forward pass.
"""

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from sightline.analysis.similarity.measures import u_center
from sightline.data.draws import hash_key, permute

OUTLIERS = 0.01  # of the images of a batch, and of the channels of a layer, at least one: studied without them
ENOUGH = 32  # images to choose channels by: all of a batch would cost as much as a fifth of the Gram matrices
PERMUTATIONS = 99  # p is at least 1 / 100
CANCELED = 1e-3  # of the variance: what is left by subtraction below it has lost its digits


def within_class(k: Float[Tensor, "l m m"], labels: Int[Tensor, " m"]) -> Float[Tensor, "l m m"]:
    """Gram matrices of features centered per class, such that their inner product is unbiased, as HSIC_1 is.

    With S_c the sum of (x - mean)(y - mean)' over class c, the inner product estimates |sum of the S_c|^2. Images of
    two classes: the entries of the Gram matrix of residuals, whose mean is exact because classes do not share images.
    Images of one class: residuals of one class share its mean and are correlated by that alone, so its block is
    U-centered by itself and scaled from m(m-3) to (m-1)^2. A class of fewer than four has no unbiased block of its own.
    """
    names, member = labels.to(k.device).unique(return_inverse=True)
    one_hot = torch.nn.functional.one_hot(member, len(names)).to(k)
    mean = one_hot / one_hot.sum(0)
    left = k - one_hot @ (mean.mT @ k)
    out = left - (left @ mean) @ one_hot.mT
    for c in range(len(names)):
        rows = (member == c).nonzero().flatten()
        block, m = (slice(None), rows[:, None], rows), len(rows)
        out[block] = u_center(k[block]) * ((m - 1) / math.sqrt(m * (m - 3))) if m > 3 else 0.0
    return out


def deletion_weights(labels: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
    """What the sums of a class lose by one image less, in units of its own term: m / (m - 1), all for one of two."""
    _, member, counts = labels.unique(return_inverse=True, return_counts=True)
    m = counts[member].double()
    return m / (m - 1).clamp(min=1)


def top_channels(x: Float[Tensor, "m n d"]) -> Int[Tensor, " k"]:
    """The 1 % of channels (at least one) with the most variance over images; the first 32 tell which these are."""
    spread = x[:ENOUGH].var(0, correction=0).sum(0)
    return spread.topk(max(1, round(OUTLIERS * x.shape[2]))).indices


def ordinary_images(*stacks: Float[Tensor, "_ m m"]) -> Int[Tensor, " k"]:
    """The images of a batch without the 1 % (at least one) that carry the largest share of any layer's variance."""
    shares = []
    for k in stacks:
        size = k.diagonal(dim1=1, dim2=2)
        shares.append((size / size.sum(1, keepdim=True)).nan_to_num(nan=0.0).amax(0))
    largest = torch.stack(shares).amax(0)
    left = len(largest) - max(1, round(OUTLIERS * len(largest)))
    return largest.topk(left, largest=False).indices.sort().values


def permuted(
    x: Float[Tensor, "a m m"], y: Float[Tensor, "b m m"], *, seed: int, batch: int
) -> Float[Tensor, "permutations a b"]:
    """<K^, L^> of every pair under 99 permutations of the images of y.

    The permutations are cyclic shifts of a random order. Along diagonal d of both matrices, a shift by s moves L[i, i +
    d] to L[i + s, i + s + d]: its inner products with K for all s are one cross-correlation, so all shifts together
    cost little more than one product of all pairs. A batch of fewer than 100 images takes several random orders.
    """
    m = x.shape[-1]
    rounds = math.ceil(PERMUTATIONS / (m - 1))
    found = []
    for r in range(rounds):
        order = permute(m, hash_key(seed, "shifts", batch, r), np.arange(m))
        shifts = 1 + permute(m - 1, hash_key(seed, "shift", batch, r), np.arange(m - 1))
        found.append(_correlations(x, y, torch.from_numpy(order).to(x.device))[torch.from_numpy(shifts)])
    return torch.cat(found)[:PERMUTATIONS]


def _correlations(x: Tensor, y: Tensor, order: Tensor) -> Float[Tensor, "m a b"]:
    """Of all cyclic shifts; a symmetric matrix has every diagonal twice, the middle one of an even number once."""
    m = len(order)
    i, d = torch.arange(m, device=order.device), torch.arange(1, m // 2 + 1, device=order.device)
    cells = (order * m + order[(i + d[:, None]) % m]).flatten()
    twice = torch.where(2 * d == m, 1.0, 2.0).to(x.device)
    one = _diagonals(x, cells, m)
    other = one if x is y else _diagonals(y, cells, m)
    weighted = (one * twice[:, None]).conj().permute(2, 0, 1)
    product = weighted @ other.permute(2, 1, 0)
    return torch.fft.irfft(product, n=m, dim=0)


def _diagonals(x: Tensor, cells: Tensor, m: int) -> Tensor:
    """Fourier transforms along the diagonals: (layers, diagonals, frequencies); float32 is enough for a null."""
    return torch.fft.rfft(x.flatten(1)[:, cells].float().unflatten(1, (-1, m)), dim=-1)
