"""From what a layer puts out to what is kept of it: which token, which mean, which map."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from sightline.models.parts import Part, anatomy, block_outputs
from sightline.models.taps import paths

Tokens = Literal["pooled", "cls", "gap", "mean", "first", "all"]
TOKENS = ("pooled", "cls", "gap", "mean", "first", "all")
Maps = Literal["own", "last"]
END = "features"  # the name of the model's own output
Layers = str | int | Sequence[str | int] | None


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is known about a model's output: the last grid, the tokens before it, and how the model itself pools."""

    grid: tuple[int, int]
    prefix: int
    width: int
    own: Literal["cls", "gap"]


def check_choice(tokens: str, maps: str) -> None:
    if tokens not in TOKENS:
        raise ValueError(f"tokens is one of {', '.join(map(repr, TOKENS))}; got {tokens!r}.")
    if maps not in ("own", "last"):
        raise ValueError(f"maps is 'own' (as they are) or 'last' (as large as the last one); got {maps!r}.")


def own_pooling(model: Any, prefix: int) -> Literal["cls", "gap"]:
    """How a model pools its last tokens: by its class token, or by a mean."""
    plan = getattr(model, "encoder_config", getattr(model, "config", None))
    pool = getattr(plan, "pool", "cls" if prefix else "gap")
    return "cls" if pool == "cls" and prefix else "gap"


def resolve(model: nn.Module, layers: Layers) -> list[str]:
    """Module paths behind what a user may call layers: nothing, "blocks", block numbers, paths and globs."""
    if layers is None:
        return [END]
    names: dict[str, None] = {}
    for layer in (layers,) if isinstance(layers, str | int) else layers:
        names.update(dict.fromkeys(_resolve_one(model, layer)))
    if not names:
        raise ValueError('layers is empty; give None, "blocks", block numbers or module paths.')
    return list(names)


def _resolve_one(model: nn.Module, layer: str | int) -> list[str]:
    if layer == END:
        return [END]
    if layer == "blocks" or isinstance(layer, int):
        outputs = [part.path for part in block_outputs(anatomy(model))]
        if not outputs:
            raise ValueError(f"A {type(model).__name__} has no blocks; name module paths instead.")
        if layer == "blocks":
            return outputs
        assert isinstance(layer, int)
        if not -len(outputs) <= layer < len(outputs):
            raise ValueError(f"The model has blocks 0 to {len(outputs) - 1}; there is no block {layer}.")
        return [outputs[layer]]
    found = paths(model, layer)
    if not found:
        raise ValueError(f'No module matches {layer!r}. Try layers="blocks", or see `sightline show MODEL --parts`.')
    return found


def layouts(model: nn.Module) -> dict[str, Part]:
    """What the anatomy knows about each path; nothing for a model without anatomy."""
    try:
        return {part.path: part for part in anatomy(model)}
    except ValueError:
        return {}


def as_tokens(value: Tensor, *, layout: str | None, shape: Shape, maps: Maps) -> tuple[Tensor, tuple[int, int] | None]:
    """Any layer's output as (b, n, d) with its grid, or as (b, d) without."""
    if value.ndim == 2:
        return value, None
    if layout == "probs":
        raise ValueError("Attention probabilities are no features of an image; record them with sl.record instead.")
    if layout == "heads":
        value = value.transpose(1, 2).flatten(2)
    if value.ndim == 4:
        if maps == "last":
            value = like_last(value, channels=shape.width, grid=shape.grid)
        return value.flatten(2).mT, (value.shape[2], value.shape[3])
    if value.ndim != 3:
        raise ValueError(f"A layer puts out (b, d), (b, n, d) or (b, c, y, x); got {tuple(value.shape)}.")
    return value, shape.grid


def like_last(x: Tensor, *, channels: int, grid: tuple[int, int]) -> Tensor:
    """A map as large as the last one (Raghu et al., appendix A): split into patches and flattened until the channels
    are closest to the last map's (by ratio, the smaller of two), then averaged down to its grid.
    """
    height, width = x.shape[2], x.shape[3]
    ways = [p for p in range(1, height + 1) if height % p == 0 and width % p == 0]
    ways = [p for p in ways if height // p >= grid[0] and width // p >= grid[1]] or [1]

    def off(p: int) -> float:
        wide = x.shape[1] * p * p
        return max(wide / channels, channels / wide)

    best = min(ways, key=lambda p: (off(p), p))
    return F.adaptive_avg_pool2d(F.pixel_unshuffle(x, best) if best > 1 else x, grid)


def reduced(value: Tensor, tokens: Tokens, *, prefix: int, own: str) -> Tensor:
    """Tokens (b, n, d) to what is kept: (b, d), or all of them."""
    if tokens == "pooled":
        tokens = "cls" if own == "cls" and prefix else "gap"
    match tokens:
        case "all":
            return value
        case "cls":
            if not prefix:
                raise ValueError("tokens='cls' needs a class token, and this layer has none; use 'gap' or 'first'.")
            return value[:, 0]
        case "first":
            return value[:, 0]
        case "gap":
            return value[:, prefix:].mean(1)
        case "mean":
            return value.mean(1)
    raise ValueError(f"tokens is one of {', '.join(map(repr, TOKENS))}; got {tokens!r}.")


def prefix_of(count: int, grid: tuple[int, int] | None, shape: Shape) -> int:
    """How many of a layer's tokens stand before its grid: the patch embedding has no class token yet."""
    if grid is None:
        return 0
    extra = count - grid[0] * grid[1]
    return extra if 0 <= extra <= shape.prefix else 0
