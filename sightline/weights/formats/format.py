"""What a format is: how to recognize it, guess its configuration, and map its keys in both directions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sightline.models.hybrid import HybridConfig
from sightline.models.variants import Config
from sightline.models.vit import ViTConfig
from sightline.weights.formats.key_table import KeyRule, Shapes
from sightline.weights.formats.shapes import Guess

Hints = Mapping[str, Any]  # from the user or from files next to the weights, for what shapes cannot tell: heads, size
NO_FILE: Shapes = {}  # key_rules(config, NO_FILE) are the keys that we write


@dataclass(frozen=True, kw_only=True)
class Format:
    """One naming scheme of one family of models. `target` is the argument of `--to`."""

    name: str
    target: str
    recognizes: Callable[[Shapes], bool]
    guess_config: Callable[[Shapes, Hints], Guess]
    key_rules: Callable[[Config, Shapes], list[KeyRule]]
    unsupported: Callable[[Config], str | None]  # why the format cannot represent a model; None if it can
    defaults: Callable[[Config], Mapping[str, Any]]  # numeric settings of the library that reads this format
    ignored: tuple[tuple[str, str], ...] = ()  # patterns of keys that the model does not need, each with the reason


def vit_config(config: Config) -> ViTConfig | None:
    """The transformer in a configuration, if there is one."""
    match config:
        case HybridConfig():
            return config.vit
        case ViTConfig():
            return config
    return None


def no_published_vit(config: Config) -> str | None:
    """Why this is neither a ViT nor a hybrid as they were published; None if it is one."""
    if vit_config(config) is None:
        return "this layout is for ViT and hybrid"
    if isinstance(config, HybridConfig) and config.stem != "7x7/2+pool":
        return f"the published hybrids have the 7x7 stem with pooling, not {config.stem}"
    if isinstance(config, HybridConfig) and config.unit != "bottleneck":
        return "the published hybrids have bottleneck units, not basic ones"
    return None


def not_plain(c: ViTConfig, who: str) -> str | None:
    """Why the encoder is not a plain pre-norm ViT with learned position embeddings at the stem; None if it is."""
    if c.position_at != "stem" or c.position != "1d":
        where = "" if c.position_at == "stem" else f" at {c.position_at} block"
        return f"{who} has one learned position table at the stem, not position={c.position!r}{where}"
    if c.attention == "axial":
        return f"{who} attends to all tokens, not along rows and columns"
    if c.norm_at == "post" or c.norm == "batch":
        return f"{who} only has LayerNorm before each sublayer"
    if c.no_skip:
        return f"{who} has skip connections in every block"
    if c.qk_norm:
        return f"{who} does not normalize queries and keys"
    return None


def value_of(config: Config, path: str) -> Any:
    """A field by its path: `gelu`, or `vit.gelu` inside a hybrid."""
    found: Any = config
    for name in path.split("."):
        found = getattr(found, name)
    return found


def differences(config: Config, defaults: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Numeric settings that differ from a library's defaults: path -> (ours, theirs)."""
    return {k: (value_of(config, k), v) for k, v in defaults.items() if value_of(config, k) != v}
