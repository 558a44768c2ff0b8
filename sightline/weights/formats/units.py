"""Residual units in a file: how many, how wide. BiT and the hybrid's backbone share it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sightline.weights.formats.guess import need
from sightline.weights.formats.key_table import Shapes
from sightline.weights.report import WeightsError


@dataclass(frozen=True)
class Units:
    """A ResNet as its shapes describe it."""

    units: tuple[int, ...]
    width_factor: float
    channels: int
    kernel: int  # of the first convolution

    @property
    def stride(self) -> int:
        """Of a hybrid's backbone: 4 by the stem, 2 by each stage after the first."""
        return 4 * 2 ** max(len(self.units) - 1, 0)

    @property
    def out(self) -> int:
        """Channels of the last map."""
        root = int(64 * self.width_factor)
        return root * 4 * 2 ** (len(self.units) - 1) if self.units else root


def unit_rows(units: tuple[int, ...], at: str = "") -> Iterator[tuple[str, int, int, bool]]:
    """Our path of each unit, its stage, its place there, and whether it has a convolution on the shortcut."""
    for s, n in enumerate(units):
        for u in range(n):
            yield f"{at}stages.{s}.units.{u}.", s, u, u == 0


def count_units(shapes: Shapes, pattern: str) -> tuple[int, ...]:
    """Units per stage; the pattern finds stage and unit, from 0 or from 1, without gaps."""
    found = {(int(m[1]), int(m[2])) for key in shapes if (m := re.match(pattern, key))}
    if not found:
        return ()
    first = min(stage for stage, _ in found)
    zero = min(unit for _, unit in found)
    stages = max(stage for stage, _ in found) - first + 1
    if stages > len(found):
        raise WeightsError("The stages of the ResNet are not numbered in a row.")
    units = tuple(sum(stage == s + first for stage, _ in found) for s in range(stages))
    if found != {(s + first, u + zero) for s, n in enumerate(units) for u in range(n)} or first > 1 or zero > 1:
        raise WeightsError(f"The units of the ResNet are not numbered in a row: found {units} per stage.")
    return units


def guess_units(shapes: Shapes, root: str, pattern: str, *, jax: bool) -> Units:
    """The ResNet behind a root convolution."""
    shape = need(shapes, root, 4)
    kernel, channels, out = (shape[0], shape[2], shape[3]) if jax else (shape[2], shape[1], shape[0])
    if out % 32 or not out:
        raise WeightsError(f"{root} has {out} output channels; a BiT or hybrid has a multiple of 32.")
    return Units(count_units(shapes, pattern), out / 64, channels, kernel)


def guess_hybrid(shapes: Shapes, root: str, pattern: str, seen: int, *, jax: bool = True) -> Units | None:
    """The backbone of a hybrid whose patch embedding takes `seen` channels, or None for a plain ViT."""
    if root not in shapes:
        return None
    units = guess_units(shapes, root, pattern, jax=jax)
    if units.out != seen:
        raise WeightsError(f"The backbone puts out {units.out} channels, but the patch embedding takes {seen}.")
    return units
