"""From the shapes of a file to a configuration: what the formats have in common."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sightline.models.variants import VIT, Config
from sightline.spec import ImageSpec
from sightline.weights.formats.key_table import Shapes
from sightline.weights.report import WeightsError

GOOGLE_21K = 21_843  # classes of the ImageNet-21k heads of ViT, AugReg and BiT
TIMM_21K = 21_841

# No shape tells the number of heads if q, k and v are flat: these are the heads of published models by width.
HEADS = {width: heads for name, (width, _, heads, _) in VIT.items() if name not in ("nano", "micro", "mini")}
HEADS |= {1152: 16, 1536: 24}  # SoViT-400m; DINOv2 giant


@dataclass(frozen=True, kw_only=True)
class Guess:
    """The model that the keys and shapes of a file describe, and warnings about what they leave open."""

    config: Config
    image: ImageSpec
    warnings: tuple[str, ...] = ()


def required_shape(shapes: Shapes, key: str, axes: int | None = None) -> tuple[int, ...]:
    """The shape of a required key."""
    if key not in shapes:
        raise WeightsError(f"The file has no {key}: it is incomplete, or of a kind that Sightline does not know.")
    shape = tuple(shapes[key])
    if axes is not None and len(shape) != axes:
        raise WeightsError(f"{key} has shape {shape}; expected {axes} axes.")
    return shape


def count_layers(shapes: Shapes, pattern: str, start: int = 0) -> int:
    """How many layers match the pattern; they must be numbered without gaps."""
    numbers = {int(found[1]) for key in shapes if (found := re.match(pattern, key))}
    expected = set(range(start, start + len(numbers)))
    if numbers != expected:
        missing = sorted(expected - numbers)[:4]
        raise WeightsError(f"The numbering of {pattern} has gaps: {missing} missing of {len(numbers)}.")
    return len(numbers)


def position_table_rows(shapes: Shapes, key: str) -> int:
    """Number of rows of a position table, with or without a leading batch axis."""
    shape = required_shape(shapes, key)
    if len(shape) not in (2, 3):
        raise WeightsError(f"{key} has shape {shape}; expected a table (1, rows, width).")
    return shape[-2]


def guess_heads(width: int, depth: int, mlp_width: int, given: Any) -> tuple[int, list[str]]:
    """Heads: as given, else of the variant, of published models of this width, or 64 channels each with a warning."""
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
    """Prefix rows and grid of a position table. `owners` lists how many prefix tokens may have a row, likeliest first.

    A table does not say whether its grid is square; it is assumed to be if possible, otherwise `size` decides.
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
        f"The position table has {rows} rows, which is not a square grid with {' or '.join(map(str, owners))} "
        "prefix rows: give the size that it was trained at, size=(height, width)."
    )


@dataclass(frozen=True)
class SizeKeys:
    """The keys of a PyTorch ViT whose shapes give its sizes."""

    patches: str  # weight of the patch embedding
    blocks: str  # pattern that matches the number of a block
    fc1: str  # weight of the first dense layer of an MLP
    positions: str


def guess_sizes(
    shapes: Shapes, keys: SizeKeys, hints: Mapping[str, Any], *, owners: tuple[int, ...], stride: int = 1
) -> tuple[dict[str, Any], list[str]]:
    """Fields of a ViTConfig, and warnings. `stride` is that of a hybrid's backbone."""
    width, channels, p, q = required_shape(shapes, keys.patches, 4)
    depth = count_layers(shapes, keys.blocks)
    mlp_width = required_shape(shapes, keys.fc1, 2)[0]
    heads, warnings = guess_heads(width, depth, mlp_width, hints.get("heads"))
    cell = (p * stride, q * stride)
    rows, grid = guess_grid(position_table_rows(shapes, keys.positions), owners, hints.get("size"), cell)
    fields: dict[str, Any] = {
        "width": width,
        "depth": depth,
        "heads": heads,
        "mlp_width": mlp_width,
        "channels": channels,
    }
    fields |= {"patch": cell, "size": (grid[0] * cell[0], grid[1] * cell[1]), "position_rows": rows}
    return fields, warnings


def count_classes(shapes: Shapes, key: str) -> int:
    """Classes of a dense head; 0 if the file has none."""
    return required_shape(shapes, key, 2)[0] if key in shapes else 0
