"""From keys and shapes to a configuration: what the formats have in common."""

import math
import re
from dataclasses import dataclass
from typing import Any

from sightline.models.variants import VIT, Config
from sightline.spec import ImageSpec
from sightline.weights.formats.key_table import Shapes
from sightline.weights.report import WeightsError

GOOGLE_21K = 21_843  # classes of the ImageNet-21k heads of ViT, AugReg and BiT
TIMM_21K = 21_841

# Heads are not written in any shape once q, k and v are flat: what the published models of a width use.
HEADS = {width: heads for name, (width, _, heads, _) in VIT.items() if name not in ("nano", "micro", "mini")}
HEADS |= {1152: 16, 1536: 24}  # SoViT-400m; DINOv2 giant


@dataclass(frozen=True, kw_only=True)
class Guess:
    """What the keys and shapes of a file say about its model, and how sure that is."""

    config: Config
    image: ImageSpec
    warnings: tuple[str, ...] = ()


def need(shapes: Shapes, key: str, axes: int | None = None) -> tuple[int, ...]:
    """The shape of a key that must be there."""
    if key not in shapes:
        raise WeightsError(f"The file has no {key}: it is incomplete, or of a kind that Sightline does not know.")
    shape = tuple(shapes[key])
    if axes is not None and len(shape) != axes:
        raise WeightsError(f"{key} has shape {shape}; expected {axes} axes.")
    return shape


def count(shapes: Shapes, pattern: str, start: int = 0) -> int:
    """How many numbered parts match; they must be numbered without a gap."""
    numbers = {int(found[1]) for key in shapes if (found := re.match(pattern, key))}
    expected = set(range(start, start + len(numbers)))
    if numbers != expected:
        missing = sorted(expected - numbers)[:4]
        raise WeightsError(f"The numbering of {pattern} has gaps: {missing} missing of {len(numbers)}.")
    return len(numbers)


def table_rows(shapes: Shapes, key: str) -> int:
    """How many rows a position table has, with or without a batch axis in front."""
    shape = need(shapes, key)
    if len(shape) not in (2, 3):
        raise WeightsError(f"{key} has shape {shape}; expected a table (1, rows, width).")
    return shape[-2]


def guess_heads(width: int, depth: int, mlp_width: int, given: Any) -> tuple[int, list[str]]:
    """Heads, by what was given, by the variant, by the width, or 64 channels each; only the first two are sure."""
    if given is not None:
        return int(given), []
    for w, d, heads, m in VIT.values():
        if (w, d, m) == (width, depth, mlp_width):
            return heads, []
    if width in HEADS:
        return HEADS[width], []
    if width % 64 == 0 and width:
        heads = width // 64
        return heads, [
            f"The file does not say how many heads its width of {width} is divided into: {heads} (64 channels each) is "
            "a guess; give heads=... to be sure."
        ]
    raise WeightsError(f"The file does not say how many heads its width of {width} is divided into: give heads=...")


def guess_grid(rows: int, owners: tuple[int, ...], size: Any, cell: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    """Prefix rows and grid of a position table. `owners` lists how many prefix tokens may own a row, likeliest first.

    A table does not say whether its grid is square; it is taken as square where it can be, and by `size` otherwise.
    """
    likeliest, given = owners[0], None
    if size is not None:
        y, x = (size, size) if isinstance(size, int) else size
        given = (y // cell[0], x // cell[1])
    for owned in owners:
        side = math.isqrt(max(rows - owned, 0))
        if side and side * side == rows - owned:
            return owned, (side, side)
        if given and owned == likeliest and given[0] * given[1] == rows - owned:
            return owned, given
    for owned in owners:
        if given and given[0] * given[1] == rows - owned:
            return owned, given
    raise WeightsError(
        f"The position table has {rows} rows, which is no square grid with {' or '.join(map(str, owners))} "
        "prefix rows: give the size that it was made for, size=(height, width)."
    )
