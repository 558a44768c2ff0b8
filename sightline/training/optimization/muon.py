"""Muon (Jordan et al. 2024): momentum whose matrices are orthogonalized before each step; AdamW for everything else."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from sightline.training.parallel import full_tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic polynomial that one iteration applies to the singular values
ITERATIONS = 5
WIDE = 4  # columns for each row from which it pays to iterate on the Gram matrix
ADAMW_RMS = 0.2  # root mean square of the update in units of the rate, as AdamW's typically is (Liu et al. 2025)


class Muon(torch.optim.Optimizer):
    """Parameter groups with `orthogonal=True` take Muon's step, the others AdamW's.

    Muon's step is the Nesterov momentum of the gradient with all singular values moved close to 1, times
    0.2 sqrt(max(rows, columns)): so both kinds of groups have updates of one size, and share learning rate, schedule
    and the decoupled weight decay. A filter is a matrix with one row per output channel; query, key and value are
    matrices of their own.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        fused: bool = True,
    ):
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0})
        others = [group for group in self.param_groups if not group["orthogonal"]]
        self.adamw = torch.optim.AdamW(others, lr=lr, betas=betas, eps=1e-8, fused=fused) if others else None
        if self.adamw is not None:
            self.adamw.state = self.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.adamw is not None:
            self.adamw.step()
        for group in self.param_groups:
            if group["orthogonal"]:
                self._orthogonal_step(group)

    def _orthogonal_step(self, group: dict[str, Any]) -> None:
        """Matrices of one shape go through the iteration together."""
        keep, lr = float(group["momentum"]), float(group["lr"])
        stacks: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
        for name, p in zip(group["names"], group["params"]):
            if p.grad is not None:
                momentum = self.state[p]["momentum_buffer"].lerp_(p.grad, 1 - keep)
                matrices = as_matrices(name, full_tensor(p.grad.lerp(momentum, keep)))
                stacks.setdefault(matrices.shape[1:], []).append((p, matrices))
        for shape, stack in stacks.items():
            updates = orthogonalize(torch.cat([matrices for _, matrices in stack]))
            size = lr * ADAMW_RMS * math.sqrt(max(shape))
            for (p, _), update in zip(stack, updates.split([len(matrices) for _, matrices in stack])):
                p.mul_(1 - lr * group["weight_decay"])
                p.add_(_distribute_like(p, update.reshape(p.shape)), alpha=-size)


def as_matrices(name: str, kernel: Tensor) -> Float[Tensor, "k rows columns"]:
    """The matrices in a kernel: one row per output channel; query, key and value apart."""
    return kernel.flatten(1).unflatten(0, (3 if name.endswith("qkv.weight") else 1, -1))


def orthogonalize(matrices: Float[Tensor, "k rows columns"]) -> Float[Tensor, "k rows columns"]:
    """U V' of each matrix U S V', roughly: five Newton-Schulz iterations leave singular values between 0.7 and 1.2."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    if x.shape[2] >= WIDE * x.shape[1]:
        return _iterate_squares(x).mT if tall else _iterate_squares(x)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def _iterate_squares(x: Float[Tensor, "k rows columns"]) -> Float[Tensor, "k rows columns"]:
    """The same iterations of wide matrices, such as filters, in less than half the time.

    All factors q = a + b G + c G^2 of x are polynomials of G = x x', so they commute, and the next G is q G q: only the
    first and the last product have the matrix's columns. In float32 that is good to 3e-3 of the largest value, even
    where singular values span eight decades.
    """
    a, b, c = COEFFICIENTS
    gram = x @ x.mT
    product: Tensor | None = None
    for i in range(ITERATIONS):
        q = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        q.diagonal(dim1=1, dim2=2).add_(a)
        product = q if product is None else q @ product
        if i + 1 < ITERATIONS:
            gram = q @ (gram @ q)
    assert product is not None
    return product @ x


def _distribute_like(parameter: Tensor, update: Tensor) -> Tensor:
    """The part of an update that belongs to this process, if the parameter is sharded; all processes have the whole."""
    if not isinstance(parameter, DTensor):
        return update
    return distribute_tensor(update, parameter.device_mesh, parameter.placements, src_data_rank=None)
