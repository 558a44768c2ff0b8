"""Which symmetries a function has: equivariance (the output moves along) is not invariance (the output stays)."""

from collections.abc import Callable

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from sightline.models import checks

Shift = tuple[int, int]  # rows down, columns right


def shift_image(x: Float[Tensor, "b c y x"], by: Shift) -> Float[Tensor, "b c y x"]:
    """Content moved down and right; what leaves at one border comes in at the other."""
    return x.roll(by, dims=(2, 3))


@torch.no_grad()
def equivariance_error(
    f: Callable[[Tensor], Tensor], x: Float[Tensor, "b c y x"], *, shift: Shift = (1, 1), border: int = 0
) -> float:
    """How far f(shifted x) is from shifted f(x), relative to the size of f(x): 0 for an equivariant map.

    `f` maps images to feature maps. Its stride is the ratio of the sizes, and must divide the shift. `border` cells
    of the map on each side are left out: there padding and the image's edge show. That border must at least cover
    the shift of the map, where content wraps around; it does by default.

    >>> import torch
    >>> conv = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> sl.analysis.equivariance_error(conv, torch.rand(1, 3, 16, 16), shift=(2, 3), border=1) < 1e-6
    True
    """
    return _relative(*shifted_maps(f, x, shift=shift, border=border))


@torch.no_grad()
def shifted_maps(
    f: Callable[[Tensor], Tensor], x: Float[Tensor, "b c y x"], *, shift: Shift, border: int = 0
) -> tuple[Tensor, Tensor]:
    """The map of the shifted images and the shifted map of the images, both without the border."""
    before, after = f(x), f(shift_image(x, shift))
    if before.ndim != 4:
        raise ValueError(f"equivariance_error takes a function to maps (b, c, y, x); it gave {tuple(before.shape)}.")
    stride = [a // b for a, b in zip(x.shape[2:], before.shape[2:])]
    if any(s % t for s, t in zip(shift, stride)):
        raise ValueError(f"The map has stride {stride[0]} x {stride[1]}; shift by multiples of it, not by {shift}.")
    on_map = (shift[0] // stride[0], shift[1] // stride[1])
    y, x_ = (border + abs(s) for s in on_map)
    inside = (..., slice(y, before.shape[2] - y), slice(x_, before.shape[3] - x_))
    expected = shift_image(before, on_map)[inside]
    if expected.numel() == 0:
        raise ValueError(f"Nothing is left of a {tuple(before.shape[2:])} map inside a border of {(y, x_)}.")
    return after[inside], expected


@torch.no_grad()
def invariance_error(f: Callable[[Tensor], Tensor], x: Float[Tensor, "b c y x"], *, shift: Shift = (1, 1)) -> float:
    """How far f(shifted x) is from f(x) itself, relative to its size: 0 for an invariant function.

    >>> import torch
    >>> sl.analysis.invariance_error(lambda x: x.mean((2, 3)), torch.rand(1, 3, 8, 8), shift=(1, 2)) < 1e-6
    True
    """
    return _relative(f(shift_image(x, shift)), f(x))


@torch.no_grad()
def unchanged_fraction(
    f: Callable[[Tensor], Tensor], x: Float[Tensor, "b c y x"], *, shift: Shift = (0, 1), tolerance: float = 1e-6
) -> float:
    """Share of outputs that a small shift leaves as they are: the partial invariance of pooling.

    >>> import torch
    >>> sl.analysis.unchanged_fraction(torch.nn.MaxPool2d(4), torch.rand(1, 3, 32, 32)) > 0.5
    True
    """
    before, after = f(x), f(shift_image(x, shift))
    return ((after - before).abs() <= tolerance).double().mean().item()


@torch.no_grad()
def permutation_error(f: Callable[[Tensor], Tensor], tokens: Float[Tensor, "b n d"], *, seed: int = 0) -> float:
    """How far f(permuted tokens) is from permuted f(tokens), relative to its size: 0 where order does not matter.

    >>> import torch
    >>> sl.analysis.permutation_error(lambda x: x.softmax(-1), torch.rand(2, 5, 8)) < 1e-6
    True
    """
    order = torch.randperm(tokens.shape[1], generator=torch.Generator().manual_seed(seed)).to(tokens.device)
    return _relative(f(tokens[:, order]), f(tokens)[:, order])


def permute_patches(
    x: Float[Tensor, "b c y x"], patch: checks.Pair, *, seed: int = 0
) -> tuple[Float[Tensor, "b c y x"], Int[Tensor, " n"]]:
    """An image with its patches in random order, and that order: new patch i is old patch order[i].

    >>> import torch
    >>> image, order = sl.analysis.permute_patches(torch.rand(1, 3, 32, 32), 8)
    >>> sorted(order.tolist()) == list(range(16))
    True
    """
    p, q = checks.pair(patch)
    rows = x.shape[2] // p
    patches = rearrange(x, "b c (y p) (x q) -> b (y x) c p q", p=p, q=q)
    order = torch.randperm(patches.shape[1], generator=torch.Generator().manual_seed(seed)).to(x.device)
    return rearrange(patches[:, order], "b (y x) c p q -> b c (y p) (x q)", y=rows), order


def token_jacobian(f: Callable[[Tensor], Tensor], tokens: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Size of the Jacobian block of output token i with respect to input token j (Frobenius norm).

    Diagonal for a map that treats each token alone (MLP), full for attention.

    >>> import torch
    >>> sl.analysis.token_jacobian(lambda x: x**2, torch.ones(1, 3, 2)[0]).diagonal().tolist()
    [2.828427..., 2.828427..., 2.828427...]
    """
    jacobian = torch.autograd.functional.jacobian(lambda t: f(t[None])[0], tokens, vectorize=False)
    return jacobian.square().sum((1, 3)).sqrt()  # (n, d, n, d) -> (n, n)


def jacobian_locality(f: Callable[[Tensor], Tensor], tokens: Float[Tensor, "n d"]) -> float:
    """Share of the squared Jacobian that lies between a token and itself: 1 for a map of single tokens.

    >>> import torch
    >>> sl.analysis.jacobian_locality(torch.nn.Linear(4, 4), torch.rand(3, 4))
    1.0
    """
    squared = token_jacobian(f, tokens).double().square()
    own = squared.diagonal().sum()
    others = squared.fill_diagonal_(0).sum()
    return (own / (own + others)).item()  # two sums of the same numbers may differ by a rounding: 1 would not be 1


def _relative(got: Tensor, expected: Tensor) -> float:
    scale = expected.double().norm().item()
    error = (got.double() - expected.double()).norm().item()
    return error / scale if scale > 0 else error
