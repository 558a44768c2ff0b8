"""What is added to what in the residual units of a CNN of another library: found by trying, not by name.

Two tensors are a unit's skip and branch if their sum is the unit's output. The branch is the one computed by more
operations; the skip is the identity, or the few operations of a projection.
"""

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

    `seen` holds what each module inside put out, and under None what entered the unit. Either of the two may have
    layers: the branch is the longer way, whatever the modules are called and in whichever order they ran.
    """
    fit = [m for m, value in reversed(seen.items()) if value.shape == out.shape]
    for i, one in enumerate(fit):
        for other in fit[i + 1 :]:
            if not _inside(one, other) and not _inside(other, one) and same_sum(seen[one], seen[other], out):
                skip, branch = sorted((other, one), key=lambda m: operations(seen[m], seen[None]))
                assert branch is not None  # what entered is no operation away
                return Shortcut(unit, skip, branch)
    return None


def operations(value: Tensor, start: Tensor) -> int:
    """How many operations lie between `start` and what was made of it, by the record that autograd keeps.

    Operations on weights alone do not count: a frozen layer would be shorter than one that learns.
    """
    leads: dict[Any, bool] = {}

    def from_input(node: Any) -> bool:
        if node not in leads:
            before = [from_input(n) for n, _ in node.next_functions if n is not None]
            leads[node] = any(before) or getattr(node, "variable", None) is start
        return leads[node]

    if value.grad_fn is not None:
        from_input(value.grad_fn)
    return sum(leads.values())


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

    def enter(unit: nn.Module, args: tuple) -> tuple | None:
        if not args or not isinstance(args[0], Tensor):  # a unit of a DenseNet takes a list, and adds nothing
            return None
        start = args[0].detach().clone().requires_grad_()  # the record is of one unit, so that it stays small
        seen[unit] = {None: start}
        return start.clone(), *args[1:]  # the unit may write into what it gets

    def leave(unit: nn.Module, out: Tensor) -> None:
        with torch.no_grad():  # what is tried here is no part of the record
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
        with torch.enable_grad(), ExitStack() as stack, temporary_hooks(hooks):
            for unit in units:
                stack.callback(unit.register_forward_pre_hook(enter).remove)
            model(image)
    finally:
        for p in zero:
            p.data.zero_()
    return found
