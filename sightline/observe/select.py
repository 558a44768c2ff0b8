"""Which layers are looked at, and which of their tokens."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from sightline.models.parts import Part
from sightline.models.taps import paths
from sightline.observe.model import ObservedModel

Layers = str | Sequence[str]
Tokens = Literal["all", "cls", "patches", "gap"] | int
CHOICES = ("all", "cls", "patches", "gap")


class MissingTokenError(ValueError):
    """A layer has no such token: said of the layer, the others go on."""


def select_layers(s: ObservedModel, layers: Layers = "all") -> list[str]:
    """Module paths: "all" is every layer in the sense of Raghu et al., "blocks" the outputs of blocks; or globs.

    All: the encoder's input, then per block both norms, the attention's output, both sums and the MLP's hidden layer,
    then the last norm (74 for 12 blocks); of a residual unit its norms, convolutions and its sum. What is the same
    tensor under a second name (a unit's branch) is left out.
    """
    if layers == "all":
        return [p.path for p in s.parts if _counts(p)]
    if layers == "blocks":
        return [p.path for p in s.block_outputs]
    names: dict[str, None] = {}
    for pattern in (layers,) if isinstance(layers, str) else layers:
        found = paths(s.model, pattern)
        if not found:
            raise ValueError(f'No layer of {s.name} matches {pattern!r}. Try layers="all" or layers="blocks".')
        names.update(dict.fromkeys(found))
    if not names:
        raise ValueError('layers is empty; give "all", "blocks" or module paths.')
    return list(names)


def _counts(p: Part) -> bool:
    if p.layout not in ("tokens", "map"):
        return False
    if p.kind == "branch":
        return p.sublayer == "attention"
    return not (p.kind == "embed" and p.layout == "tokens")  # the encoder's input holds it


def check_tokens(tokens: Tokens) -> None:
    number = isinstance(tokens, int) and not isinstance(tokens, bool)
    if tokens not in CHOICES and not number:
        raise ValueError(f"tokens is 'all', 'cls', 'patches', 'gap' or the number of a patch; got {tokens!r}.")


def as_tokens(value: Tensor, s: ObservedModel, path: str) -> tuple[Tensor, int]:
    """What a layer puts out as (b, n, d), and how many of the n are prefix tokens. A vector is one token, no grid."""
    part = s.part.get(path)
    if part is not None and part.layout == "probs":
        raise ValueError(f"{path} holds attention probabilities, no features: see sl.attention_distance.")
    if part is not None and part.layout == "heads":
        value = value.transpose(1, 2).flatten(2)
    if value.ndim == 4:
        return value.flatten(2).mT, 0
    if value.ndim == 3:
        if (
            part is not None
        ):  # the patch embedding alone has no prefix; a count would mislead where a patch was taken out
            return value, 0 if part.kind == "embed" else s.prefix
        return value, s.prefix if value.shape[1] == s.prefix + s.grid[0] * s.grid[1] else 0
    return value[:, None], 0


def select_tokens(value: Tensor, tokens: Tokens, s: ObservedModel, path: str) -> Tensor:
    """One row of features per image, (b, p), of the chosen tokens."""
    if tokens == "all" or value.ndim == 2:
        return value.flatten(1)  # row by row whatever the layout is: CKA does not ask for the order of features
    x, prefix = as_tokens(value, s, path)
    match tokens:
        case "cls":
            if prefix == 0:
                raise MissingTokenError("has no class token")
            return x[:, 0]
        case "patches":
            return x[:, prefix:].flatten(1)
        case "gap":
            return x[:, prefix:].mean(1)
    assert isinstance(tokens, int)
    if not 0 <= tokens < x.shape[1] - prefix:
        raise MissingTokenError(f"has patches 0 to {x.shape[1] - prefix - 1}")
    return x[:, prefix + tokens]
