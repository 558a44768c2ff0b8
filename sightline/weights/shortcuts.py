"""What is added to what in the residual units of a CNN of another library: found by trying, not by name."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sightline.models.taps import Tap
from sightline.weights.adopted import Hook, wired

CLOSE = 1e-3  # of the largest value, between skip + branch and what the unit puts out


@dataclass(frozen=True)
class Shortcut:
    """The two tensors that a unit adds: what enters it, or what a module inside puts out."""

    unit: nn.Module
    skip: nn.Module | None  # None: the unit's input
    branch: nn.Module


class Shortcuts(nn.Module):
    """Taps for the skip and the branch of one unit, fed with copies: many units add in place."""

    def __init__(self, found: Shortcut):
        super().__init__()
        object.__setattr__(self, "found", found)  # looked at, not owned
        self.skip, self.branch = Tap(), Tap()

    def wires(self) -> Iterator[Hook]:
        found: Any = self.found
        if self.skip.watched:
            side = "in" if found.skip is None else "out"
            yield found.skip or found.unit, side, lambda t: self.skip(t.clone())  # type: ignore[misc]
        if self.branch.watched:
            yield found.branch, "out", lambda t: self.branch(t.clone())


def shortcut(unit: nn.Module, seen: dict[nn.Module | None, Tensor], out: Tensor) -> Shortcut | None:
    """The pair whose sum, as it is or behind a ReLU, is what the unit puts out; the last modules are tried first.

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


def find(model: nn.Module, units: list[nn.Module], picture: Tensor) -> dict[nn.Module, Shortcut]:
    """Of each unit that adds; one pass, tensors held for as long as their unit runs.

    Parameters that are zero (the last norm of a unit often starts so) tell nothing: they are 1 during the pass.
    """
    found: dict[nn.Module, Shortcut] = {}
    seen: dict[nn.Module, dict[nn.Module | None, Tensor]] = {}
    hooks: list[Hook] = []
    for unit in units:
        hooks.append((unit, "in", lambda t, u=unit: seen.update({u: {None: t.clone()}})))  # type: ignore[misc]
        for inside in unit.modules():
            if inside is not unit:
                hooks.append((inside, "out", lambda t, u=unit, m=inside: seen[u].update({m: t.clone()})))  # type: ignore[misc]

        def leave(out: Tensor, unit: nn.Module = unit) -> None:
            made = shortcut(unit, seen.pop(unit), out)
            if made is not None:
                found[unit] = made

        hooks.append((unit, "out", leave))
    zero = [p for unit in units for p in unit.parameters() if p.ndim == 1 and not p.any()]
    try:
        for p in zero:
            p.data.fill_(1)
        with torch.no_grad(), wired(hooks):
            model(picture)
    finally:
        for p in zero:
            p.data.zero_()
    return found
