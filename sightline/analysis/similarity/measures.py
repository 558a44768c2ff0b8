"""How alike two sets of features are: HSIC, CKA, mutual neighbors. Pure functions of tensors.

    K = X X',  K^ = U-centered K,  HSIC_1(K, L) = <K^, L^> / (m (m - 3))      (Song et al. 2012; Székely & Rizzo 2014)
    CKA = HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L))                           (Kornblith et al. 2019; Nguyen et al. 2020)

Features that share a large mean (norms with a bias, ReLU, registers) are centered first. HSIC does not change by that,
but float32 does: they lose all their digits in the Gram matrix otherwise.
"""

import os
from collections.abc import Iterable
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

Metric = Literal["cosine", "euclidean"]

SLICE = 1 << 14  # features that are multiplied at a time: sums of float32 products stay short
SHARED = 0.05  # of the squares: where rows differ by less, products of float32 say little of their cosines
BLOCK = 1 << 12  # features that are centered and multiplied at a time: their copy stays in the cache


def raw_gram(x: Float[Tensor, "m p"]) -> Float[Tensor, "m m"]:
    """X X' in float64, from products in the type of x, half precision apart."""
    return product(x.float() if x.dtype in (torch.float16, torch.bfloat16) else x)


def gram(x: Float[Tensor, "m p"], raw: Float[Tensor, "m m"] | None = None) -> Float[Tensor, "m m"]:
    """The Gram matrix of centered features in float64, from products in the type of x; `raw` if it is known already.

    To center the features costs a third of the product, to center the Gram matrix nothing. It is as exact, as long as
    the mean that is taken off is no larger than what stays; otherwise the features are centered after all.
    """
    raw = raw_gram(x) if raw is None else raw
    rows = raw.mean(0)
    k = raw - rows - rows[:, None] + rows.mean()
    half = x.dtype in (torch.float16, torch.bfloat16)
    return k if k.trace() >= raw.trace() / 2 else centered_product(x.float() if half else x)


def product(x: Float[Tensor, "m p"]) -> Float[Tensor, "m m"]:
    """X X' in float64. It is symmetric, so not all of it is computed.

    NumPy sees that both factors are one matrix and computes half of it, which torch does not know how to do. With
    several threads it is torch: NumPy's threads would wait, and spin, while the model runs.
    """
    half = len(x) // 2
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and has_one_thread():
        rows = x.detach().numpy()
        return torch.from_numpy(np.dot(rows, rows.T)).double()
    if half < 32:
        return sum_of(part @ part.mT for part in x.split(SLICE, dim=1))
    top = sum_of(part[:half] @ part.mT for part in x.split(SLICE, dim=1))
    rest = sum_of(part @ part.mT for part in x[half:].split(SLICE, dim=1))
    return torch.cat([top, torch.cat([top[:, half:].mT, rest], dim=1)])


def has_one_thread() -> bool:
    """Whether torch and NumPy compute with one thread each. What torch is told later, NumPy never hears of: it takes
    all cores, unless the environment says otherwise when it is imported."""
    told = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")
    return torch.get_num_threads() == 1 and told == "1"


def centered_product(x: Float[Tensor, "m p"]) -> Float[Tensor, "m m"]:
    """The same of centered features, whatever their mean is; all blocks share one scratch for the centered copy."""
    scratch = x.new_empty(len(x) * min(BLOCK, x.shape[1]))

    def block(part: Tensor) -> Tensor:
        centered = torch.sub(part, part.mean(0), out=scratch[: part.numel()].view(part.shape))
        return centered @ centered.mT

    return sum_of(block(part) for part in x.split(BLOCK, dim=1))


def sum_of(parts: Iterable[Tensor]) -> Tensor:
    """In float64."""
    total: Any = 0
    for part in parts:
        total = total + part.double()
    return total


def u_center(gram: Float[Tensor, "*l m m"]) -> Float[Tensor, "*l m m"]:
    """U-centered Gram matrices: <u_center(K), u_center(L)> / m(m-3) is the unbiased HSIC_1.

    >>> import torch
    >>> x = torch.rand(5, 2)
    >>> k = sl.analysis.u_center(x @ x.mT)
    >>> k.sum(0).abs().max().item() < 1e-5, k.diagonal().any().item()
    (True, False)
    """
    m = gram.shape[-1]
    if m < 4:
        raise ValueError(f"The unbiased HSIC needs at least 4 rows; got {m}.")
    off = 1 - torch.eye(m, dtype=gram.dtype, device=gram.device)
    k = gram * off
    rows = k.sum(-1, keepdim=True) / (m - 2)
    whole = k.sum((-1, -2), keepdim=True) / ((m - 1) * (m - 2))
    return (k - rows - rows.mT + whole) * off


def _checked(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    if x.ndim < 2 or y.ndim < 2 or len(x) != len(y):
        raise ValueError(f"Two sets of features of the same rows are needed; got {tuple(x.shape)}, {tuple(y.shape)}.")
    if not (torch.isfinite(x).all() and torch.isfinite(y).all()):
        raise ValueError("The features hold NaN or infinite values.")
    return x.flatten(1).double(), y.flatten(1).double()


def hsic(x: Tensor, y: Tensor, *, biased: bool = False) -> float:
    """HSIC of the linear kernels of two sets of features, rows first: unbiased HSIC_1, or the biased HSIC_0.

    >>> import torch
    >>> x = torch.tensor([[1., 0], [0, 1], [1, 1], [2, 0], [0, 2], [2, 1]])
    >>> y = torch.tensor([[1.], [2], [3], [4], [5], [7]])
    >>> round(sl.analysis.hsic(x, y), 7), round(sl.analysis.hsic(x, y, biased=True), 7)
    (0.1111111, 1.1777778)
    """
    x, y = _checked(x, y)
    k, l = gram(x), gram(y)
    m = len(k)
    if biased:  # centered features have centered Gram matrices
        if m < 2:
            raise ValueError(f"The biased HSIC needs at least 2 rows; got {m}.")
        return ((k * l).sum() / (m - 1) ** 2).item()
    return ((u_center(k) * u_center(l)).sum() / (m * (m - 3))).item()


def linear_cka(x: Tensor, y: Tensor, *, biased: bool = False) -> float:
    """CKA of two sets of features, rows first. Unbiased: about 0 for unrelated features, and it may be below 0.

    >>> import torch
    >>> x = torch.randn(50, 20, generator=torch.Generator().manual_seed(0))
    >>> round(sl.analysis.linear_cka(x, 3 * x + 1000), 4), abs(sl.analysis.linear_cka(x, x.flip(0))) < 0.2
    (1.0, True)
    """
    scale = hsic(x, x, biased=biased) * hsic(y, y, biased=biased)
    return hsic(x, y, biased=biased) / scale**0.5 if scale > 0 else float("nan")


def uncentered(x: Float[Tensor, "m p"], centered: Float[Tensor, "m m"]) -> Float[Tensor, "m m"]:
    """X X' from the Gram matrix of centered features, for features whose mean is far larger than what they differ by.

    Of (x + mean)(y + mean)' the products of float32 keep the digits of mean mean' and lose those of xy', by which alone
    the cosines of two rows differ.
    """
    size, along = 0.0, torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for part in x.split(BLOCK, dim=1):
        mean = part.float().mean(0) if part.dtype != torch.float64 else part.mean(0)
        square = mean.double().square().sum()
        along += (part.to(mean.dtype) @ mean).double() - square
        size = size + square
    return centered + along + along[:, None] + size


def nearest(raw: Float[Tensor, "m m"], centered: Float[Tensor, "m m"], k: int, metric: Metric) -> Int[Tensor, "m k"]:
    """The k nearest rows of each row, from Gram matrices alone: by cosine of the raw features, or by distance."""
    if metric == "cosine":
        size = raw.diagonal().clamp(min=0).sqrt()
        near = raw / (size[:, None] * size).clamp(min=torch.finfo(raw.dtype).tiny)
    else:
        square = centered.diagonal()
        near = 2 * centered - square[:, None] - square
    near.fill_diagonal_(-torch.inf)
    return near.topk(k).indices


def neighbor_mask(indices: Int[Tensor, "m k"]) -> Float[Tensor, "m m"]:
    """1 where column j is one of the nearest rows of row i; 0 elsewhere."""
    m = len(indices)
    return torch.zeros(m, m, device=indices.device).scatter_(-1, indices, 1.0)


def check_metric(metric: Any) -> None:
    if metric not in get_args(Metric):
        raise ValueError(f"Neighbors are found by 'cosine' or 'euclidean'; got {metric!r}.")


def mutual_knn(x: Tensor, y: Tensor, *, k: int = 10, metric: Metric = "cosine") -> float:
    """Share of the k nearest neighbors that a row has in both sets of features (Huh et al. 2024); chance: k / (m - 1).

    They take neighbors by the cosine of the features; `metric="euclidean"` takes them by distance.

    >>> import torch
    >>> x = torch.randn(50, 20, generator=torch.Generator().manual_seed(0))
    >>> sl.analysis.mutual_knn(x, 3 * x), sl.analysis.mutual_knn(x, x.flip(0)) < 0.4
    (1.0, True)
    >>> sl.analysis.mutual_knn(x, x + 5, metric="euclidean"), sl.analysis.mutual_knn(x, x + 5) < 1
    (1.0, True)
    """
    x, y = _checked(x, y)
    check_metric(metric)
    if not 0 < k < len(x):
        raise ValueError(f"k lies between 1 and {len(x) - 1}, the other rows there are; got {k}.")
    masks = [neighbor_mask(nearest(raw_gram(z), gram(z), k, metric)) for z in (x, y)]
    return (masks[0] * masks[1]).sum().item() / (k * len(x))
