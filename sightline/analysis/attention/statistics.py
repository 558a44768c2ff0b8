"""How far attention looks. Pure functions of probabilities (b, h, n, n)."""

import torch
from jaxtyping import Float
from torch import Tensor

Grid = tuple[int, int]


def cell_distances(grid: Grid, patch: tuple[float, float]) -> Float[Tensor, "n n"]:
    """Euclidean distance in pixels between the centers of every two cells of a grid."""
    y = torch.arange(grid[0], dtype=torch.float64).repeat_interleave(grid[1]) * patch[0]
    x = torch.arange(grid[1], dtype=torch.float64).repeat(grid[0]) * patch[1]
    return torch.hypot(y[:, None] - y[None, :], x[:, None] - x[None, :])


def mean_distance(
    probs: Float[Tensor, "*b n n"], grid: Grid, *, patch: float | tuple[float, float], renormalize: bool = True
) -> Float[Tensor, "*b"]:
    """Mean distance in pixels from a patch to what it attends to, averaged over the patches of each map.

    Whatever stands before the grid (class token, registers) is left out of queries and keys. `renormalize` divides by
    the attention that stays on patches; without it attention spent on the class token counts as distance 0, and a head
    that looks at the class token passes for a local one. A patch that attends to no patch at all has no distance, and a
    head without any such patch has none (NaN).

    >>> import torch
    >>> uniform = torch.full((196, 196), 1 / 196)
    >>> round(sl.analysis.mean_distance(uniform, (14, 14), patch=16).item(), 3)
    116.492
    """
    n = grid[0] * grid[1]
    prefix = probs.shape[-1] - n
    if prefix < 0 or probs.shape[-1] != probs.shape[-2]:
        raise ValueError(
            f"Attention over a grid of {grid[0]} x {grid[1]} is at least {n} x {n}; got {tuple(probs.shape)}."
        )
    cells = cell_distances(grid, (patch, patch) if isinstance(patch, int | float) else patch).to(probs)
    inner = probs[..., prefix:, prefix:]
    far = (inner * cells).sum(-1)
    if not renormalize:
        return far.mean(-1)
    mass = inner.sum(-1) if prefix else torch.ones_like(far)
    return torch.where(mass > torch.finfo(mass.dtype).eps, far / mass, torch.nan).nanmean(-1)


def prefix_mass(probs: Float[Tensor, "*b n n"], grid: Grid) -> Float[Tensor, "*b"]:
    """Share of the patches' attention that goes to the tokens before the grid.

    >>> import torch
    >>> round(sl.analysis.prefix_mass(torch.full((5, 5), 0.2), (2, 2)).item(), 4)
    0.2
    """
    prefix = probs.shape[-1] - grid[0] * grid[1]
    return probs[..., prefix:, :prefix].sum(-1).mean(-1)


def attention_entropy(probs: Float[Tensor, "*b n m"]) -> Float[Tensor, "*b"]:
    """Entropy of attention in nats, averaged over queries: 0 for one token alone, ln m for all alike.

    >>> import torch
    >>> sl.analysis.attention_entropy(torch.full((4, 4), 0.25)).item()
    1.386...
    """
    return torch.special.entr(probs).sum(-1).mean(-1)
