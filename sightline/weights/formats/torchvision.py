"""torchvision's keys for ViT."""

from collections.abc import Mapping
from typing import Any

from sightline.models import checks
from sightline.models.variants import Config
from sightline.models.vit import ViTConfig
from sightline.spec import ImageSpec
from sightline.weights.formats.format import Format, Hints, not_plain
from sightline.weights.formats.key_table import LEADING, BlockNames, KeyRule, Shapes, block_rules, layer_rules
from sightline.weights.formats.shapes import Guess, SizeKeys, count_classes, guess_sizes

BLOCK = "encoder.layers.encoder_layer_{}."


def recognizes(shapes: Shapes) -> bool:
    return "conv_proj.weight" in shapes and any(k.startswith("encoder.layers.encoder_layer_") for k in shapes)


def guess_config(shapes: Shapes, hints: Hints) -> Guess:
    blocks, fc1 = r"encoder\.layers\.encoder_layer_(\d+)\.", BLOCK.format(0) + _block_names(shapes).fc1 + "weight"
    keys = SizeKeys("conv_proj.weight", blocks, fc1, "encoder.pos_embedding")
    fields, warnings = guess_sizes(shapes, keys, hints, owners=(1,))
    config = ViTConfig(
        **fields,
        classes=count_classes(shapes, "heads.head.weight"),
        head="mlp" if "heads.pre_logits.weight" in shapes else "linear",
        gelu="erf",
    )
    # V1 weights: resize 256, crop 224, bilinear; the SWAG weights (384 and more) resize and crop to the same size
    large = min(checks.pair(config.size)) > 224
    image = ImageSpec.imagenet(
        checks.pair(config.size),
        channels=config.channels,
        crop=1.0 if large else 0.875,
        interpolation="bicubic" if large else "bilinear",
    )
    return Guess(config=config, image=image, warnings=tuple(warnings))


def defaults(config: Config) -> Mapping[str, Any]:
    return {"gelu": "erf", "norm_eps": 1e-6}


def unsupported(config: Config) -> str | None:
    if not isinstance(config, ViTConfig):
        return f"torchvision has no {type(config).__name__.removesuffix('Config')}"
    if reason := not_plain(config, "torchvision's ViT"):
        return reason
    plain = config.pool == "cls" and config.position_rows == 1 and config.prefix == 1
    if not plain or config.layer_scale is not None or not config.qkv_bias or config.final_norm != "tokens":
        return "torchvision's ViT has one class token with a position row and biases everywhere, nothing else"
    if len(set(checks.pair(config.size))) > 1 or len(set(checks.pair(config.patch))) > 1:
        return "torchvision's ViT takes square images and patches only"
    return None


def _block_names(shapes: Shapes) -> BlockNames:
    """Files from before torchvision 0.13 name the layers of the MLP linear_1 and linear_2."""
    old = BLOCK.format(0) + "mlp.linear_1.weight" in shapes
    return BlockNames(
        norm1="ln_1.",
        qkv=("self_attention.in_proj_",),
        out="self_attention.out_proj.",
        norm2="ln_2.",
        fc1="mlp.linear_1." if old else "mlp.0.",
        fc2="mlp.linear_2." if old else "mlp.3.",
    )


def key_rules(config: Config, shapes: Shapes) -> list[KeyRule]:
    assert isinstance(config, ViTConfig)
    names = _block_names(shapes)
    out = [
        KeyRule("prefix", ("class_token",), LEADING),
        *layer_rules("embed.proj", "conv_proj."),
        KeyRule("positions.0.table", ("encoder.pos_embedding",), LEADING),
        *(rule for i in range(config.depth) for rule in block_rules(f"blocks.{i}.", BLOCK.format(i), names, config)),
        *layer_rules("norm", "encoder.ln."),
    ]
    if config.head == "mlp":
        out += layer_rules("pre_logits", "heads.pre_logits.")
    if config.classes:
        out += layer_rules("head", "heads.head.")
    return out


TORCHVISION = Format(
    name="torchvision",
    target="torchvision",
    recognizes=recognizes,
    guess_config=guess_config,
    key_rules=key_rules,
    unsupported=unsupported,
    defaults=defaults,
)
