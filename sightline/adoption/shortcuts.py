"""The skip and the branch of each residual unit in a CNN of another library: found numerically, not by name.

Two tensors are a unit's skip and branch if their sum is the unit's output. The branch is the one computed by more
operations; the skip is the identity, or the few operations of a projection.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.adoption.wrapper import Hook, temporary_hooks
from sightline.models.taps import Tap

CLOSE = 1e-3  # relative difference allowed between skip + branch and the output of the unit
AFTER = (torch.positive, F.relu, F.silu, F.gelu, F.hardswish)  # what units do to their sums


@dataclass(frozen=True)
class Shortcut:
    """The two tensors that a unit adds: each is the unit's input or the output of a module inside it."""

    unit: nn.Module
    skip: nn.Module | None  # None: the unit's input
    branch: nn.Module


class Shortcuts(nn.Module):
    """Taps for the skip and the branch of one unit. They get copies, because many units add in place."""

    def __init__(self, found: Shortcut):
        super().__init__()
        object.__setattr__(self, "found", found)  # a reference, not a submodule
        self.skip, self.branch = Tap(), Tap()

    def tap_hooks(self) -> Iterator[Hook]:
        found: Any = self.found
        if self.skip.watched:
            # an empty nn.Sequential, as many have for an identity, is a module and yet false
            where, side = (found.unit, "in") if found.skip is None else (found.skip, "out")
            yield where, side, lambda t: self.skip(t.clone())  # type: ignore[misc]
        if self.branch.watched:
            yield found.branch, "out", lambda t: self.branch(t.clone())


def shortcut(unit: nn.Module, seen: dict[nn.Module | None, Tensor], out: Tensor) -> Shortcut | None:
    """The pair whose sum, possibly after an activation, is the output of the unit; the last modules are tried first.

    `seen` holds the output of each module inside, and under None the unit's input. Either of the two may have layers:
    the branch is the longer path, whatever the modules are called and in whatever order they ran. A module that puts
    out what the unit does (the activation after the sum) is no summand, however small what is left may be.
    """
    fit = [m for m, value in reversed(seen.items()) if value.shape == out.shape and not torch.equal(value, out)]
    for i, one in enumerate(fit):
        for other in fit[i + 1 :]:
            if not _inside(one, other) and not _inside(other, one) and same_sum(seen[one], seen[other], out):
                skip, branch = sorted((other, one), key=lambda m: operations(seen[m], seen[None]))
                assert branch is not None  # the input itself is zero operations away
                return Shortcut(unit, skip, branch)
    return None


def operations(value: Tensor, start: Tensor) -> int:
    """Number of operations between `start` and `value`, by the autograd graph.

    Operations on weights alone do not count, or a frozen layer would seem shorter than a trainable one.
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
    """Whether `module` is part of `other`."""
    return module is not None and other is not None and any(m is module for m in other.modules())


def same_sum(skip: Tensor, branch: Tensor, out: Tensor) -> bool:
    """Whether `out` is skip + branch, or an activation of it."""
    total, limit = skip + branch, CLOSE * out.abs().max()
    return any(bool((f(total) - out).abs().max() <= limit) for f in AFTER)


def find(model: nn.Module, units: list[nn.Module], image: Tensor) -> dict[nn.Module, Shortcut]:
    """The shortcut of each unit that has one, from one pass; tensors are kept only while their unit runs.

    Parameters that are all zero (often the last norm of a unit) would hide the branch: they are 1 during the pass.
    """
    found: dict[nn.Module, Shortcut] = {}
    seen: dict[nn.Module, dict[nn.Module | None, Tensor]] = {}
    hooks: list[Hook] = []

    def enter(unit: nn.Module, args: tuple) -> tuple | None:
        if not args or not isinstance(args[0], Tensor):  # a unit of a DenseNet takes a list and has no sum
            return None
        start = args[0].detach().clone().requires_grad_()  # one graph per unit, so that it stays small
        seen[unit] = {None: start}
        return start.clone(), *args[1:]  # the unit may modify its input in place

    def leave(unit: nn.Module, out: Tensor) -> None:
        with torch.no_grad():  # the trials must not become part of the graph
            made = shortcut(unit, seen.pop(unit, {}), out)
        if made is not None:
            found[unit] = made

    def note(unit: nn.Module, inside: nn.Module, value: Tensor) -> None:
        if unit in seen:  # a shared module may also run outside the unit
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
