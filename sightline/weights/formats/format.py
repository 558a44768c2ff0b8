"""What a format is: how to know it, read its model off its shapes, and map its keys in both directions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sightline.models.hybrid import HybridConfig
from sightline.models.variants import Config
from sightline.models.vit import ViTConfig
from sightline.weights.formats.guess import Guess
from sightline.weights.formats.key_table import KeyRule, Shapes

Hints = Mapping[str, Any]  # what shapes cannot say and someone else did: heads, size
UNSEEN: Shapes = {}  # rows(config, UNSEEN) are the keys that we write


@dataclass(frozen=True, kw_only=True)
class Format:
    """One naming of one family. `target` is the word after `--to`."""

    name: str
    target: str
    knows: Callable[[Shapes], bool]
    guess: Callable[[Shapes, Hints], Guess]
    rows: Callable[[Config, Shapes], list[KeyRule]]
    refuses: Callable[[Config], str | None]  # why a model does not fit into this format; None: it does
    native: Callable[[Config], Mapping[str, Any]]  # numeric switches of whoever computes with this format
    spare: tuple[tuple[str, str], ...] = ()  # patterns of keys that may be left over, and why


def encoder(config: Config) -> ViTConfig | None:
    """The transformer in a configuration, if there is one."""
    match config:
        case HybridConfig():
            return config.vit
        case ViTConfig():
            return config
    return None


def plain_trunk(c: ViTConfig, who: str) -> str | None:
    """Why the trunk is more than a plain pre-norm ViT with learned positions at the stem; None: it is one."""
    if c.position_at != "stem" or c.position != "1d":
        where = "" if c.position_at == "stem" else f" at {c.position_at} block"
        return f"{who} has one learned position table at the stem, not position={c.position!r}{where}"
    if c.norm_at == "post" or c.norm == "batch":
        return f"{who} has LayerNorm in front of each sublayer only"
    if c.no_skip:
        return f"{who} has skip connections in every block"
    return None


def value_of(config: Config, path: str) -> Any:
    """A field by its path: `gelu`, or `vit.gelu` inside a hybrid."""
    found: Any = config
    for name in path.split("."):
        found = getattr(found, name)
    return found


def differing(config: Config, native: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Numeric switches that whoever reads the format sets otherwise: path -> (ours, theirs)."""
    return {k: (value_of(config, k), v) for k, v in native.items() if value_of(config, k) != v}
