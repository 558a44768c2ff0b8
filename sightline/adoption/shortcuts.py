"""What is added to what in the residual units of a CNN of another library: found by trying, not by name."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sightline.adoption.wrapper import Hook, temporary_hooks
from sightline.models.taps import Tap

CLOSE = 1e-3  # of the largest value, between skip + branch and the output of the unit


@dataclass(frozen=True)
class Shortcut:
    """The two tensors that a unit adds: what enters it, or the output of a module inside."""

    unit: nn.Module
    skip: nn.Module | None  # None: the unit's input
    branch: nn.Module


class Shortcuts(nn.Module):
    """Taps for the skip and the branch of one unit, fed with copies: many units add in place."""

    def __init__(self, found: Shortcut):
        super().__init__()
        object.__setattr__(self, "found", found)  # looked at, not owned
        self.skip, self.branch = Tap(), Tap()

    def tap_hooks(self) -> Iterator[Hook]:
        found: Any = self.found
        if self.skip.watched:
            side = "in" if found.skip is None else "out"
            yield found.skip or found.unit, side, lambda t: self.skip(t.clone())  # type: ignore[misc]
        if self.branch.watched:
            yield found.branch, "out", lambda t: self.branch(t.clone())


def shortcut(unit: nn.Module, seen: dict[nn.Module | None, Tensor], out: Tensor) -> Shortcut | None:
    """The pair whose sum, as it is or after a ReLU, is the output of the unit; the last modules are tried first.

    `seen` holds what each module inside put out, and under None what entered the unit.
    """
    fit = [m for m, value in seen.items() if value.shape == out.shape]
    for branch in (m for m in reversed(fit) if m is not None):
        for skip in (m for m in fit if m is not branch and not _inside(branch, m) and not _inside(m, branch)):
            if same_sum(seen[skip], seen[branch], out):
                return Shortcut(unit, skip, branch)
    return None


def _inside(module: nn.Module | None, other: nn.Module | None) -> bool:
    """Whether one is part of the other."""
    return module is not None and other is not None and any(m is module for m in other.modules())


def same_sum(skip: Tensor, branch: Tensor, out: Tensor) -> bool:
    """Whether `out` is skip + branch, or the positive part of it."""
    total, limit = skip + branch, CLOSE * out.abs().max()
    return bool((total - out).abs().max() <= limit or (total.clamp(min=0) - out).abs().max() <= limit)


def find(model: nn.Module, units: list[nn.Module], image: Tensor) -> dict[nn.Module, Shortcut]:
    """Of each unit that adds; one pass, tensors held for as long as their unit runs.

    Parameters that are zero (the last norm of a unit often starts so) tell nothing: they are 1 during the pass.
    """
    found: dict[nn.Module, Shortcut] = {}
    seen: dict[nn.Module, dict[nn.Module | None, Tensor]] = {}
    hooks: list[Hook] = []

    def enter(unit: nn.Module, args: tuple) -> None:
        entered = args and isinstance(args[0], Tensor)  # a unit of a DenseNet takes a list, and adds nothing
        seen[unit] = {None: args[0].clone()} if entered else {}

    def leave(unit: nn.Module, out: Tensor) -> None:
        made = shortcut(unit, seen.pop(unit, {}), out)
        if made is not None:
            found[unit] = made

    def note(unit: nn.Module, inside: nn.Module, value: Tensor) -> None:
        if unit in seen:  # a module may be shared, and run elsewhere
            seen[unit][inside] = value.clone()

    for unit in units:
        hooks += [(m, "out", partial(note, unit, m)) for m in unit.modules() if m is not unit]
        hooks.append((unit, "out", partial(leave, unit)))
    zero = [p for unit in units for p in unit.parameters() if p.ndim == 1 and not p.any()]
    try:
        for p in zero:
            p.data.fill_(1)
        with torch.no_grad(), ExitStack() as stack, temporary_hooks(hooks):
            for unit in units:
                stack.callback(unit.register_forward_pre_hook(enter).remove)
            model(image)
    finally:
        for p in zero:
            p.data.zero_()
    return found
