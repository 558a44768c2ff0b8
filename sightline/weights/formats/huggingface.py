"""Keys of Hugging Face transformers for ViT, DeiT and DINOv2, version 4 (the files on the hub) and version 5."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sightline.models.bit import BiTConfig
from sightline.models.hybrid import HybridConfig
from sightline.models.variants import Config
from sightline.models.vit import ViTConfig
from sightline.spec import ImageSpec
from sightline.weights.formats.format import NO_FILE, Format, Hints, not_plain
from sightline.weights.formats.key_table import (
    LEADING,
    BlockNames,
    KeyRule,
    Shapes,
    block_rules,
    layer_rules,
    prefix_rule,
)
from sightline.weights.formats.shapes import Guess, SizeKeys, count_classes, guess_sizes, required_shape
from sightline.weights.report import WeightsError

PATCHES = "embeddings.patch_embeddings.projection."
FAMILIES = ("vit", "deit", "dinov2", "dinov2_with_registers")
POOLER = "pooler.dense."


@dataclass(frozen=True)
class Dialect:
    """The names in one file: version 4 or 5, DINOv2's or ViT's, with or without the model's name as a prefix."""

    at: str  # "vit.", "deit.", "" ...
    blocks: str  # "encoder.layer." or "layers."
    block: BlockNames
    dino: bool
    head: str  # "classifier." or "cls_classifier."
    end: str  # prefix of the last norm and the pooler: as `at`, or none in early conversions


def _block_names(*, version: int, dino: bool) -> BlockNames:
    three = ("query", "key", "value")
    old, plain = version == 4, not dino
    return BlockNames(
        norm1="layernorm_before." if plain else "norm1.",
        qkv=tuple(f"attention.attention.{n}." if old else f"attention.{n[0]}_proj." for n in three),
        out="attention.output.dense." if old else "attention.o_proj.",
        norm2="layernorm_after." if plain else "norm2.",
        fc1="intermediate.dense." if old and plain else "mlp.fc1.",
        fc2="output.dense." if old and plain else "mlp.fc2.",
        scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    )


def recognizes(shapes: Shapes) -> bool:
    return any(k.endswith(PATCHES + "weight") and "backbone" not in k for k in shapes)


def _dialect_of(shapes: Shapes) -> Dialect:
    """The dialect of a file."""
    at = next(k for k in shapes if k.endswith(PATCHES + "weight")).removesuffix(PATCHES + "weight")
    blocks = "encoder.layer." if any(k.startswith(at + "encoder.layer.") for k in shapes) else "layers."
    first = f"{at}{blocks}0."
    version, dino = 5 if f"{first}attention.q_proj.weight" in shapes else 4, f"{first}norm1.weight" in shapes
    head = "cls_classifier." if "cls_classifier.weight" in shapes else "classifier."
    end = at if at + "layernorm.weight" in shapes else ""
    return Dialect(at, blocks, _block_names(version=version, dino=dino), dino, head, end)


def _dialect_for(c: ViTConfig, version: int) -> Dialect:
    """The dialect to write: that of the model family in transformers that can represent the model."""
    name = family(c)
    dino = name.startswith("dinov2")
    at = "" if not c.classes else name + "."
    blocks = "encoder.layer." if dino or version == 4 else "layers."
    head = "cls_classifier." if c.distill_token else "classifier."
    return Dialect(at, blocks, _block_names(version=version, dino=dino), dino, head, at)


def family(c: ViTConfig) -> str:
    """Which of transformers' model families can represent this ViT."""
    if c.layer_scale is not None:
        return "dinov2_with_registers" if c.registers else "dinov2"
    return "deit" if c.distill_token else "vit"


def guess_config(shapes: Shapes, hints: Hints) -> Guess:
    d = _dialect_of(shapes)
    embeddings, first = d.at + "embeddings.", f"{d.at}{d.blocks}0."
    distill, registers = embeddings + "distillation_token" in shapes, embeddings + "register_tokens"
    _refuse_incompatible(shapes, d, distill=distill)
    blocks = re.escape(d.at + d.blocks) + r"(\d+)\."
    keys = SizeKeys(
        d.at + PATCHES + "weight", blocks, first + d.block.fc1 + "weight", embeddings + "position_embeddings"
    )
    fields, warnings = guess_sizes(shapes, keys, hints, owners=(1 + distill,))
    config = ViTConfig(
        **fields,
        classes=count_classes(shapes, d.head + "weight"),
        distill_token=distill,
        registers=required_shape(shapes, registers, 3)[1] if registers in shapes else 0,
        head="mlp" if d.end + POOLER + "weight" in shapes and not distill else "linear",
        gelu=hints.get("gelu", "erf"),
        norm_eps=hints.get("norm_eps", 1e-6 if d.dino else 1e-12),
        qkv_bias=first + d.block.qkv[0] + "bias" in shapes,
        layer_scale=1.0 if first + d.block.scales[0] in shapes else None,
    )
    image = config.image
    if distill or d.dino:
        image = ImageSpec.imagenet(image.size, channels=config.channels)
    return Guess(config=config, image=image, warnings=tuple(warnings))


def _refuse_incompatible(shapes: Shapes, d: Dialect, *, distill: bool) -> None:
    """Refuse models of transformers that share the names but not the computation."""
    head, double = shapes.get(d.head + "weight", ()), 2 * required_shape(shapes, d.at + PATCHES + "weight", 4)[0]
    for unlike, what in (
        (d.dino and f"{d.at}{d.blocks}0.mlp.fc1.weight" not in shapes, "gated MLPs (SwiGLU, as DINOv2 giant)"),
        (len(head) == 2 and head[1] == double, "a head on class token and patch mean side by side (DINOv2's)"),
        (
            bool(head) and distill and "distillation_classifier.weight" not in shapes,
            "a distillation token that its only head does not read (DeiTForImageClassification)",
        ),
    ):
        if unlike:
            raise WeightsError(
                f"The file has {what}, which Sightline's ViT does not have: wrap the live model with sl.adopt."
            )


def defaults(config: Config) -> Mapping[str, Any]:
    """What transformers assumes if there is no config.json."""
    dino = isinstance(config, ViTConfig) and family(config).startswith("dinov2")
    return {"gelu": "erf", "norm_eps": 1e-6 if dino else 1e-12}


def unsupported(config: Config) -> str | None:
    if not isinstance(config, ViTConfig):
        if isinstance(config, BiTConfig):
            return "this layout is for ViT"
        return f"transformers 5 has no {'hybrid' if isinstance(config, HybridConfig) else 'Mixer'}"
    c = config
    if reason := not_plain(c, "transformers' ViT"):
        return reason
    for bad, what in (
        (c.pool != "cls", "a class token in every ViT, so no other pooling"),
        (c.registers and c.layer_scale is None, "registers only with LayerScale (DINOv2)"),
        (c.position_rows != 1 + c.distill_token, "a position row for class and distillation tokens only"),
        (c.head == "mlp" and c.classes, "a pooler (pre_logits) only in models without a head"),
        (c.layer_scale is not None and c.classes, "only a DINOv2 head on class token and patch mean"),
        (c.layer_scale is not None and c.head == "mlp", "no pooler in DINOv2"),
        (c.layer_scale is not None and c.distill_token, "LayerScale only without a distillation token"),
        (c.final_norm == "pooled", "its last norm before the pooling"),
    ):
        if bad:
            return f"transformers has {what}"
    return None


def key_rules(config: Config, shapes: Shapes = NO_FILE, version: int = 4) -> list[KeyRule]:
    assert isinstance(config, ViTConfig)
    c, d = config, _dialect_of(shapes) if shapes else _dialect_for(config, version)
    at = d.at + "embeddings."
    tokens = [("cls_token", 1), ("distillation_token", int(c.distill_token)), ("register_tokens", c.registers)]
    out = [
        *layer_rules("embed.proj", d.at + PATCHES),
        *prefix_rule([(at + key, n) for key, n in tokens]),
        KeyRule("positions.0.table", (at + "position_embeddings",), LEADING),
        *(r for i in range(c.depth) for r in block_rules(f"blocks.{i}.", f"{d.at}{d.blocks}{i}.", d.block, c)),
        *layer_rules("norm", d.end + "layernorm."),
    ]
    if c.head == "mlp":
        out += layer_rules("pre_logits", d.end + POOLER)
    if c.classes:
        out += layer_rules("head", d.head)
        if c.distill_token:
            out += layer_rules("head_distill", "distillation_classifier.")
    return out


HF = Format(
    name="hf",
    target="hf",
    recognizes=recognizes,
    guess_config=guess_config,
    key_rules=key_rules,
    unsupported=unsupported,
    defaults=defaults,
    ignored=(
        (r"(.*\.)?embeddings\.mask_token", "replaces masked patches in pre-training; not used afterwards"),
        (r"(.*\.)?pooler\.dense\..*", "the pooler of DeiT is not part of its classifier"),
    ),
)
HF_V5 = replace(
    HF,
    name="hf-v5",
    target="hf-v5",
    recognizes=lambda shapes: False,  # HF reads both versions
    key_rules=lambda config, shapes: key_rules(config, shapes, version=5),
)
