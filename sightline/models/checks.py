"""Checks of configurations and inputs, with messages that say what to do instead."""

import operator
import typing
from typing import Any

import torch
from torch import Tensor, nn

Pair = int | tuple[int, int]


def pair(value: Pair) -> tuple[int, int]:
    """Height and width from one number or two."""
    sides = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(sides) != 2 or not all(_is_integer(side) for side in sides):
        raise ValueError(f"A size is one whole number or (height, width); got {value!r}.")
    return operator.index(sides[0]), operator.index(sides[1])


def _is_integer(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def choices(config: Any) -> None:
    """Each field annotated as Literal must have one of its values."""
    for name, hint in typing.get_type_hints(type(config)).items():
        options = typing.get_args(hint)
        value = getattr(config, name)
        if typing.get_origin(hint) is typing.Literal and value not in options:
            listed = ", ".join(map(repr, options))
            raise ValueError(f"{type(config).__name__}.{name} is one of {listed}; got {value!r}.")


def counts(config: Any, *names: str, least: int = 1) -> None:
    """Each named field must be a whole number, or several, each at least `least`."""
    for name in names:
        value = getattr(config, name)
        for number in value if isinstance(value, tuple) else (value,):
            if not _is_integer(number) or number < least:
                owner = type(config).__name__
                raise ValueError(f"{owner}.{name} must be a whole number of at least {least}; got {value!r}.")


def fraction(config: Any, *names: str) -> None:
    """Each named field must lie in [0, 1)."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int | float) or not 0 <= value < 1:
            raise ValueError(f"{type(config).__name__}.{name} is a probability in [0, 1); got {value!r}.")


def divides(size: tuple[int, int], patch: tuple[int, int]) -> None:
    """Images must divide into whole patches."""
    (y, x), (p, q) = size, patch
    if y % p or x % q:
        best = (max(1, round(y / p)) * p, max(1, round(x / q)) * q)
        raise ValueError(f"An image of {y} x {x} does not divide into patches of {p} x {q}. Try {best[0]} x {best[1]}.")


def pixels(x: Tensor, *, channels: int, model: nn.Module) -> None:
    """A batch of images with the right channels and finite values."""
    if not isinstance(x, Tensor):
        raise ValueError(f"The model takes a tensor; got {type(x).__name__}. Convert it: torch.as_tensor(x).")
    if x.ndim != 4 or x.shape[1] != channels:
        hint = " Add a batch axis with x[None]." if x.ndim == 3 and x.shape[0] == channels else ""
        if x.ndim == 4 and x.shape[-1] == channels:
            hint = " The channels come second: x.permute(0, 3, 1, 2)."
        raise ValueError(f"The model takes (batch, {channels}, height, width); got {tuple(x.shape)}.{hint}")
    if not x.is_floating_point():
        raise ValueError(
            f"The model takes floating-point pixels; got {x.dtype}. Normalize first: (x / 255 - mean) / std."
        )
    if _has_values(x, model) and not torch.isfinite(x.detach().sum()):
        if torch.isfinite(x.detach()).all():  # finite pixels whose sum overflowed
            return
        bad = (~torch.isfinite(x.detach())).flatten(1).any(1).nonzero().flatten().tolist()
        raise ValueError(f"Images {bad[:8]} of the batch have NaN or infinite pixels: fix or drop them first.")


def _has_values(x: Tensor, model: nn.Module) -> bool:
    """Whether the values may be read: not while tracing, compiling or on fake tensors, nor where it stalls training."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or type(x) not in (Tensor, nn.Parameter):
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(x):  # torch.func transforms: torch has no public test for them
        return False
    if x.device.type == "cpu":
        return x.numel() > 0
    return x.device.type != "meta" and not model.training  # reading from an accelerator waits for its queue
