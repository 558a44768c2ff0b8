"""Keys of Hugging Face transformers for ViT, DeiT and DINOv2, version 4 (the files on the hub) and version 5."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sightline.models import checks
from sightline.models.hybrid import HybridConfig
from sightline.models.variants import Config
from sightline.models.vit import ViTConfig
from sightline.spec import ImageSpec
from sightline.weights.formats.format import UNSEEN, Format, Hints, plain_trunk
from sightline.weights.formats.guess import Guess, count, guess_grid, guess_heads, need, table_rows
from sightline.weights.formats.key_table import LEADING, SAME, KeyRule, Shapes, joined, pairs
from sightline.weights.report import WeightsError

PATCHES = "embeddings.patch_embeddings.projection."
FAMILIES = ("vit", "deit", "dinov2", "dinov2_with_registers")
POOLER = "pooler.dense."


@dataclass(frozen=True)
class Dialect:
    """How one file spells it: version 4 or 5, DINOv2's names or ViT's, with or without the model's name in front."""

    at: str  # "vit.", "deit.", "" ...
    blocks: str  # "encoder.layer." or "layers."
    fused_names: bool  # version 5: q_proj ... o_proj
    dino: bool  # norm1, mlp.fc1 and layer_scale1 instead of layernorm_before, intermediate.dense
    head: str  # "classifier." or "cls_classifier."
    end: str  # in front of the last norm and the pooler: as `at`, or nothing in early conversions


def knows(shapes: Shapes) -> bool:
    return any(k.endswith(PATCHES + "weight") and "backbone" not in k for k in shapes)


def _listen(shapes: Shapes) -> Dialect:
    """The dialect of a file."""
    at = next(k for k in shapes if k.endswith(PATCHES + "weight")).removesuffix(PATCHES + "weight")
    blocks = "encoder.layer." if any(k.startswith(at + "encoder.layer.") for k in shapes) else "layers."
    first = f"{at}{blocks}0."
    head = "cls_classifier." if "cls_classifier.weight" in shapes else "classifier."
    end = at if at + "layernorm.weight" in shapes else ""
    return Dialect(at, blocks, f"{first}attention.q_proj.weight" in shapes, f"{first}norm1.weight" in shapes, head, end)


def _choose(c: ViTConfig, version: int) -> Dialect:
    """The dialect that we write: the family of transformers that has what the model has."""
    name = family(c)
    dino = name.startswith("dinov2")
    at = "" if not c.classes else name + "."
    blocks = "encoder.layer." if dino or version == 4 else "layers."
    return Dialect(at, blocks, version == 5, dino, "cls_classifier." if c.distill_token else "classifier.", at)


def family(c: ViTConfig) -> str:
    """Which of transformers' model families holds this ViT."""
    if c.layer_scale is not None:
        return "dinov2_with_registers" if c.registers else "dinov2"
    return "deit" if c.distill_token else "vit"


def guess(shapes: Shapes, hints: Hints) -> Guess:
    d = _listen(shapes)
    emb = d.at + "embeddings."
    width, channels, p, q = need(shapes, d.at + PATCHES + "weight", 4)
    depth = count(shapes, re.escape(d.at + d.blocks) + r"(\d+)\.")
    first = f"{d.at}{d.blocks}0."
    distill = emb + "distillation_token" in shapes
    _refuse_unlike(shapes, d, 2 * width, distill=distill)
    mlp_width = need(shapes, _mlp(d, first)[0] + "weight", 2)[0]
    heads, warnings = guess_heads(width, depth, mlp_width, hints.get("heads"))
    rows, grid = guess_grid(table_rows(shapes, emb + "position_embeddings"), (1 + distill,), hints.get("size"), (p, q))
    classes = need(shapes, d.head + "weight", 2)[0] if d.head + "weight" in shapes else 0
    config = ViTConfig(
        width=width,
        depth=depth,
        heads=heads,
        mlp_width=mlp_width,
        patch=(p, q),
        size=(grid[0] * p, grid[1] * q),
        channels=channels,
        classes=classes,
        distill_token=distill,
        registers=need(shapes, emb + "register_tokens", 3)[1] if emb + "register_tokens" in shapes else 0,
        position_rows=rows,
        head="mlp" if d.end + POOLER + "weight" in shapes and not distill else "linear",
        gelu=hints.get("gelu", "erf"),
        norm_eps=hints.get("norm_eps", 1e-6 if d.dino else 1e-12),
        qkv_bias=_attention(d, first)[0] + "bias" in shapes,
        layer_scale=1.0 if f"{first}layer_scale1.lambda1" in shapes else None,
    )
    size = checks.pair(config.size)
    image = ImageSpec.imagenet(size, channels=channels) if distill or d.dino else config.image
    return Guess(config=config, image=image, warnings=tuple(warnings))


def _refuse_unlike(shapes: Shapes, d: Dialect, double: int, *, distill: bool) -> None:
    """Models of transformers that share the names and not the computation."""
    head = shapes.get(d.head + "weight", ())
    for unlike, what in (
        (d.dino and f"{d.at}{d.blocks}0.mlp.fc1.weight" not in shapes, "gated MLPs (SwiGLU, as DINOv2 giant)"),
        (len(head) == 2 and head[1] == double, "a head on class token and patch mean side by side (DINOv2's)"),
        (
            bool(head) and distill and "distillation_classifier.weight" not in shapes,
            "a distillation token that its one head does not see (DeiTForImageClassification)",
        ),
    ):
        if unlike:
            raise WeightsError(
                f"The file has {what}, which Sightline's ViT has not: wrap the live model with sl.adopt."
            )


def native(config: Config) -> Mapping[str, Any]:
    """What transformers assumes where no config.json says otherwise."""
    dino = isinstance(config, ViTConfig) and family(config).startswith("dinov2")
    return {"gelu": "erf", "norm_eps": 1e-6 if dino else 1e-12}


def refuses(config: Config) -> str | None:
    if not isinstance(config, ViTConfig):
        return "transformers 5 has no hybrid" if isinstance(config, HybridConfig) else "this layout is for ViT"
    c = config
    if reason := plain_trunk(c, "transformers' ViT"):
        return reason
    for bad, what in (
        (c.pool != "cls", "a class token for every ViT, so no other pooling"),
        (c.registers and c.layer_scale is None, "registers with LayerScale only (DINOv2)"),
        (c.position_rows != 1 + c.distill_token, "a position row for class and distillation token, none for others"),
        (c.head == "mlp" and c.classes, "a pooler (pre_logits) in models without a head only"),
        (c.layer_scale is not None and c.classes, "a DINOv2 head on class token and patch mean only"),
        (c.layer_scale is not None and c.head == "mlp", "no pooler in DINOv2"),
        (c.layer_scale is not None and c.distill_token, "LayerScale without distillation token only"),
        (c.final_norm == "pooled", "its last norm in front of the pooling"),
    ):
        if bad:
            return f"transformers has {what}"
    return None


def rows(config: Config, shapes: Shapes = UNSEEN, version: int = 4) -> list[KeyRule]:
    assert isinstance(config, ViTConfig)
    c, d = config, _listen(shapes) if shapes else _choose(config, version)
    emb = d.at + "embeddings."
    tokens = [("cls_token", 1), ("distillation_token", int(c.distill_token)), ("register_tokens", c.registers)]
    present = [(emb + key, n) for key, n in tokens if n]
    out = [
        *pairs("embed.proj", d.at + PATCHES),
        KeyRule("prefix", tuple(k for k, _ in present), joined(*(n for _, n in present), each=LEADING)),
        KeyRule("positions.0.table", (emb + "position_embeddings",), LEADING),
        *(row for i in range(c.depth) for row in _block(f"blocks.{i}.", f"{d.at}{d.blocks}{i}.", d, c)),
        *pairs("norm", d.end + "layernorm."),
    ]
    if c.head == "mlp":
        out += pairs("pre_logits", d.end + POOLER)
    if c.classes:
        out += pairs("head", d.head)
        if c.distill_token:
            out += pairs("head_distill", "distillation_classifier.")
    return out


def _attention(d: Dialect, at: str) -> tuple[str, str, str, str]:
    if d.fused_names:
        q, k, v, o = (f"{at}attention.{letter}_proj." for letter in "qkvo")
        return q, k, v, o
    q, k, v = (f"{at}attention.attention.{name}." for name in ("query", "key", "value"))
    return q, k, v, f"{at}attention.output.dense."


def _mlp(d: Dialect, at: str) -> tuple[str, str]:
    if d.fused_names or d.dino:
        return f"{at}mlp.fc1.", f"{at}mlp.fc2."
    return f"{at}intermediate.dense.", f"{at}output.dense."


def _block(ours: str, at: str, d: Dialect, c: ViTConfig) -> Iterator[KeyRule]:
    first, second = ("norm1.", "norm2.") if d.dino else ("layernorm_before.", "layernorm_after.")
    *three, out = _attention(d, at)
    split = joined(c.width, c.width, c.width)
    yield from pairs(ours + "norm1", at + first)
    yield KeyRule(ours + "attn.qkv.weight", tuple(k + "weight" for k in three), split)
    if c.qkv_bias:
        yield KeyRule(ours + "attn.qkv.bias", tuple(k + "bias" for k in three), split)
    yield from pairs(ours + "attn.out", out)
    yield from pairs(ours + "norm2", at + second)
    fc1, fc2 = _mlp(d, at)
    yield from pairs(ours + "mlp.fc1", fc1)
    yield from pairs(ours + "mlp.fc2", fc2)
    if c.layer_scale is not None:
        yield KeyRule(ours + "attn_scale.gamma", (at + "layer_scale1.lambda1",), SAME)
        yield KeyRule(ours + "mlp_scale.gamma", (at + "layer_scale2.lambda1",), SAME)


SPARE = (
    (r"(.*\.)?embeddings\.mask_token", "stands in for hidden patches in pre-training; no use afterwards"),
    (r"(.*\.)?pooler\.dense\..*", "the pooler of DeiT is not part of its classifier"),
)
HF = Format(name="hf", target="hf", knows=knows, guess=guess, rows=rows, refuses=refuses, native=native, spare=SPARE)
HF_V5 = Format(
    name="hf-v5",
    target="hf-v5",
    knows=lambda shapes: False,  # one reader for both: it listens to the keys
    guess=guess,
    rows=lambda config, shapes: rows(config, shapes, version=5),
    refuses=refuses,
    native=native,
    spare=SPARE,
)
