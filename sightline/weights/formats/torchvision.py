"""torchvision's keys for ViT."""

from collections.abc import Iterator, Mapping
from typing import Any

from sightline.models import checks
from sightline.models.hybrid import HybridConfig
from sightline.models.variants import Config
from sightline.models.vit import ViTConfig
from sightline.spec import ImageSpec
from sightline.weights.formats.format import Format, Hints, plain_trunk
from sightline.weights.formats.guess import Guess, count, guess_grid, guess_heads, need, table_rows
from sightline.weights.formats.key_table import LEADING, SAME, KeyRule, Shapes, pairs

BLOCK = "encoder.layers.encoder_layer_{}."


def knows(shapes: Shapes) -> bool:
    return "conv_proj.weight" in shapes and any(k.startswith("encoder.layers.encoder_layer_") for k in shapes)


def guess(shapes: Shapes, hints: Hints) -> Guess:
    width, channels, p, q = need(shapes, "conv_proj.weight", 4)
    depth = count(shapes, r"encoder\.layers\.encoder_layer_(\d+)\.")
    mlp_width = need(shapes, _mlp(shapes, BLOCK.format(0))[0] + "weight", 2)[0]
    heads, warnings = guess_heads(width, depth, mlp_width, hints.get("heads"))
    rows, grid = guess_grid(table_rows(shapes, "encoder.pos_embedding"), (1,), hints.get("size"), (p, q))
    config = ViTConfig(
        width=width,
        depth=depth,
        heads=heads,
        mlp_width=mlp_width,
        patch=(p, q),
        size=(grid[0] * p, grid[1] * q),
        channels=channels,
        classes=need(shapes, "heads.head.weight", 2)[0] if "heads.head.weight" in shapes else 0,
        position_rows=rows,
        head="mlp" if "heads.pre_logits.weight" in shapes else "linear",
        gelu="erf",
    )
    # V1 weights: resize 256, crop 224, bilinear; the SWAG weights (384 and more) resize and crop to the same size
    large = min(checks.pair(config.size)) > 224
    image = ImageSpec.imagenet(
        checks.pair(config.size),
        channels=channels,
        crop=1.0 if large else 0.875,
        interpolation="bicubic" if large else "bilinear",
    )
    return Guess(config=config, image=image, warnings=tuple(warnings))


def native(config: Config) -> Mapping[str, Any]:
    return {"gelu": "erf", "norm_eps": 1e-6}


def refuses(config: Config) -> str | None:
    if not isinstance(config, ViTConfig):
        kind = "hybrid" if isinstance(config, HybridConfig) else "BiT"
        return f"torchvision has no {kind}"
    if reason := plain_trunk(config, "torchvision's ViT"):
        return reason
    plain = config.pool == "cls" and config.position_rows == 1 and config.prefix == 1
    if not plain or config.layer_scale is not None or not config.qkv_bias or config.final_norm != "tokens":
        return "torchvision's ViT has one class token with a position row and biases everywhere, nothing else"
    if len(set(checks.pair(config.size))) > 1 or len(set(checks.pair(config.patch))) > 1:
        return "torchvision's ViT takes square images and patches only"
    return None


def _mlp(shapes: Shapes, at: str) -> tuple[str, str]:
    """Names of the two layers; files from before torchvision 0.13 call them linear_1 and linear_2."""
    old = f"{at}mlp.linear_1.weight" in shapes
    return (f"{at}mlp.linear_1.", f"{at}mlp.linear_2.") if old else (f"{at}mlp.0.", f"{at}mlp.3.")


def rows(config: Config, shapes: Shapes) -> list[KeyRule]:
    assert isinstance(config, ViTConfig)
    out = [
        KeyRule("prefix", ("class_token",), LEADING),
        *pairs("embed.proj", "conv_proj."),
        KeyRule("positions.0.table", ("encoder.pos_embedding",), LEADING),
        *(row for i in range(config.depth) for row in _block(f"blocks.{i}.", BLOCK.format(i), shapes)),
        *pairs("norm", "encoder.ln."),
    ]
    if config.head == "mlp":
        out += pairs("pre_logits", "heads.pre_logits.")
    if config.classes:
        out += pairs("head", "heads.head.")
    return out


def _block(ours: str, at: str, shapes: Shapes) -> Iterator[KeyRule]:
    yield from pairs(ours + "norm1", at + "ln_1.")
    yield KeyRule(ours + "attn.qkv.weight", (at + "self_attention.in_proj_weight",), SAME)
    yield KeyRule(ours + "attn.qkv.bias", (at + "self_attention.in_proj_bias",), SAME)
    yield from pairs(ours + "attn.out", at + "self_attention.out_proj.")
    yield from pairs(ours + "norm2", at + "ln_2.")
    fc1, fc2 = _mlp(shapes, at)
    yield from pairs(ours + "mlp.fc1", fc1)
    yield from pairs(ours + "mlp.fc2", fc2)


TORCHVISION = Format(
    name="torchvision", target="torchvision", knows=knows, guess=guess, rows=rows, refuses=refuses, native=native
)
