"""Selection of layers and of their tokens: one vocabulary for measurements and analyses."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from sightline.models.parts import Part
from sightline.models.taps import paths
from sightline.observe.model import ObservedModel

Layers = str | int | Sequence[str | int] | None
Tokens = Literal["pooled", "cls", "gap", "mean", "first", "patches", "all"] | int
TOKENS = ("pooled", "cls", "gap", "mean", "first", "patches", "all")
Maps = Literal["own", "last"]
END = "features"  # the name of the model's own output


class MissingTokenError(ValueError):
    """A layer has no such token: reported for that layer only, the other layers continue."""


def select_layers(s: ObservedModel, layers: Layers = "all") -> list[str]:
    """Module paths for `layers`: "all" is every layer in the sense of Raghu et al., "blocks" the outputs of blocks; or
    block numbers, paths and globs. None is the model's own output.

    "all": the encoder's input, then per block both norms, the output of attention or token mixing, both sums and the
    MLP's hidden layer, then the last norm (74 for 12 blocks); for a residual unit its norms, convolutions and sum. A
    tensor that has a second name (a unit's branch) is listed once.
    """
    if layers is None:
        return [END]
    names = dict.fromkeys(
        name for layer in ((layers,) if isinstance(layers, str | int) else layers) for name in _paths(s, layer)
    )
    if not names:
        raise ValueError('layers is empty; give "all", "blocks", block numbers or module paths.')
    return list(names)


def _paths(s: ObservedModel, layer: str | int) -> Iterator[str]:
    if layer == END:
        yield END
    elif layer == "all":
        yield from (p.path for p in s.parts if _counts(p))
    elif layer == "blocks" or isinstance(layer, int):
        yield from _block_outputs(s, layer)
    elif found := paths(s.model, layer):
        yield from found
    else:
        raise ValueError(
            f'No layer of {s.name} matches {layer!r}. Try layers="all" or layers="blocks", or see '
            "`sightline show MODEL --parts`."
        )


def _block_outputs(s: ObservedModel, layer: str | int) -> list[str]:
    outputs = [p.path for p in s.block_outputs]
    if not outputs:
        raise ValueError(f"{s.name} has no blocks; give module paths instead.")
    if not isinstance(layer, int):
        return outputs
    if not -len(outputs) <= layer < len(outputs):
        raise ValueError(f"{s.name} has blocks 0 to {len(outputs) - 1}; there is no block {layer}.")
    return [outputs[layer]]


def _counts(p: Part) -> bool:
    if p.layout not in ("tokens", "map"):
        return False
    if p.kind == "branch":
        return p.sublayer in ("attention", "mixing")
    return not (p.kind == "embed" and p.layout == "tokens")  # part of the encoder's input


def check_tokens(tokens: Tokens) -> None:
    number = isinstance(tokens, int) and not isinstance(tokens, bool)
    if tokens not in TOKENS and not number:
        raise ValueError(f"tokens is one of {', '.join(map(repr, TOKENS))}, or the number of a patch; got {tokens!r}.")


def check_maps(maps: Maps) -> None:
    if maps not in ("own", "last"):
        raise ValueError(f"maps is 'own' (as they are) or 'last' (as large as the last one); got {maps!r}.")


@dataclass(frozen=True)
class TokenLayer:
    """A layer's output as tokens (b, n, d): `prefix` tokens, then the grid."""

    tokens: Tensor
    prefix: int
    grid: tuple[int, int] | None  # None: one vector per image


def as_tokens(value: Tensor, s: ObservedModel, path: str, *, maps: Maps = "own") -> TokenLayer:
    """Any layer's output as tokens; a vector is one token without a grid. For `maps="last"` see `like_last`."""
    part = s.part.get(path)
    if part is not None and part.layout == "probs":
        raise ValueError(f"{path} has attention probabilities, not features: use sl.attention_distance or sl.record.")
    if part is not None and part.layout == "heads":
        value = value.transpose(1, 2).flatten(2)
    if value.ndim == 4:
        if maps == "last":
            value = like_last(value, channels=s.width, grid=s.grid)
        return TokenLayer(value.flatten(2).mT, 0, (value.shape[2], value.shape[3]))
    if value.ndim == 3:
        if part is not None:
            value = value[:, : s.prefix + s.grid[0] * s.grid[1]]  # a register that was added at test time is no patch
        return TokenLayer(value, _prefix(value.shape[1], s, part), s.grid)
    if value.ndim != 2:
        raise ValueError(f"The output of a layer is (b, d), (b, n, d) or (b, c, y, x); got {tuple(value.shape)}.")
    return TokenLayer(value[:, None], 0, None)


def _prefix(count: int, s: ObservedModel, part: Part | None) -> int:
    """Number of tokens before the grid."""
    if part is not None:  # only the patch embedding has none; counting would be wrong if a patch was removed
        return 0 if part.kind == "embed" else s.prefix
    extra = count - s.grid[0] * s.grid[1]
    return extra if 0 <= extra <= s.prefix else 0


def pool_tokens(x: Tensor, tokens: Tokens, *, prefix: int, own: str, class_token: bool) -> Tensor:
    """The chosen tokens: (b, d), or (b, n, d) for "all" and "patches". `own` is how the model itself pools.

    `class_token`: whether the first of the prefix tokens is one; a register is not.
    """
    if tokens == "pooled":
        tokens = "cls" if own == "cls" and prefix else "gap"
    match tokens:
        case "all":
            return x
        case "patches":
            return x[:, prefix:]
        case "cls":
            if prefix == 0 or not class_token:
                raise MissingTokenError("has no class token")
            return x[:, 0]
        case "first":
            return x[:, 0]
        case "gap":
            return x[:, prefix:].mean(1)
        case "mean":
            return x.mean(1)
    check_tokens(tokens)
    assert isinstance(tokens, int)
    if not 0 <= tokens < x.shape[1] - prefix:
        raise MissingTokenError(f"has patches 0 to {x.shape[1] - prefix - 1}")
    return x[:, prefix + tokens]


def select_tokens(value: Tensor, tokens: Tokens, s: ObservedModel, path: str) -> Tensor:
    """One row of features per image, (b, p), from the selected tokens."""
    if tokens == "all" or value.ndim == 2:
        return value.flatten(1)  # flattened in any layout: CKA does not depend on the order of features
    layer = as_tokens(value, s, path)
    rows = pool_tokens(layer.tokens, tokens, prefix=layer.prefix, own=s.own_pool, class_token=s.class_token)
    return rows.flatten(1)


def like_last(x: Tensor, *, channels: int, grid: tuple[int, int]) -> Tensor:
    """Bring a map to the size of the last one (Raghu et al., appendix A): patches are flattened into channels until
    their number is closest to the last map's (by ratio, the smaller of two), then averaged down to the last grid.
    """
    height, width = x.shape[2], x.shape[3]
    ways = [p for p in range(1, height + 1) if height % p == 0 and width % p == 0]
    ways = [p for p in ways if height // p >= grid[0] and width // p >= grid[1]] or [1]

    def off(p: int) -> float:
        wide = x.shape[1] * p * p
        return max(wide / channels, channels / wide)

    best = min(ways, key=lambda p: (off(p), p))
    return F.adaptive_avg_pool2d(F.pixel_unshuffle(x, best) if best > 1 else x, grid)
