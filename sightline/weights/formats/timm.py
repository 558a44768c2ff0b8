"""timm's keys for ViT and hybrid, which the original DeiT, MAE and DINOv2 code share."""

from collections.abc import Iterator, Mapping
from typing import Any

from sightline.models import checks
from sightline.models.hybrid import HybridConfig
from sightline.models.variants import Config
from sightline.models.vit import ViTConfig
from sightline.spec import ImageSpec
from sightline.weights.formats.format import Format, Hints, encoder, plain_trunk
from sightline.weights.formats.guess import (
    GOOGLE_21K,
    TIMM_21K,
    Guess,
    count,
    guess_grid,
    guess_heads,
    need,
    table_rows,
)
from sightline.weights.formats.key_table import LEADING, SAME, KeyRule, Shapes, joined, pairs
from sightline.weights.formats.units import guess_hybrid, unit_rows
from sightline.weights.report import WeightsError

BACKBONE = "patch_embed.backbone."
REGISTERS = ("reg_token", "register_tokens")  # timm; DINOv2
PRE_LOGITS = ("pre_logits.fc.", "pre_logits.")


def knows(shapes: Shapes) -> bool:
    return "patch_embed.proj.weight" in shapes and any(k.startswith("blocks.") for k in shapes)


def guess(shapes: Shapes, hints: Hints) -> Guess:
    if any(k.startswith("blocks.0.mlp.w12") for k in shapes):
        raise WeightsError(
            "The file has gated MLPs (SwiGLU, as DINOv2 giant), which Sightline's ViT has not: "
            "build the model in its own library and wrap it with sl.adopt(model)."
        )
    width, channels, p, q = need(shapes, "patch_embed.proj.weight", 4)
    bare = BACKBONE + "conv.weight" in shapes
    root = BACKBONE + ("conv.weight" if bare else "stem.conv.weight")
    pattern = r"patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\."
    hybrid = guess_hybrid(shapes, root, pattern, channels, jax=False)
    stride = hybrid.stride if hybrid else 1
    fields, warnings = _trunk(shapes, hints, width=width, cell=(p * stride, q * stride))
    vit = ViTConfig(
        width=width,
        patch=(p * stride, q * stride),
        channels=hybrid.channels if hybrid else channels,
        gelu="erf",
        **fields,
    )
    config: Config = vit
    if hybrid:
        own: dict[str, Any] = {"units": hybrid.units, "width_factor": hybrid.width_factor}
        config = HybridConfig(vit=vit, **own, norm_eps=1e-5, standardize_eps=1e-8, standardize_eps_on="variance")
    image, doubt = _image(config)
    return Guess(config=config, image=image, warnings=(*warnings, *doubt))


def _trunk(shapes: Shapes, hints: Hints, *, width: int, cell: tuple[int, int]) -> tuple[dict[str, Any], list[str]]:
    depth = count(shapes, r"blocks\.(\d+)\.")
    mlp_width = need(shapes, "blocks.0.mlp.fc1.weight", 2)[0]
    heads, warnings = guess_heads(width, depth, mlp_width, hints.get("heads"))
    token, distill = "cls_token" in shapes, "dist_token" in shapes
    registers = next((need(shapes, k, 3)[1] for k in REGISTERS if k in shapes), 0)
    owners = tuple(dict.fromkeys((token + distill, 0, token + distill + registers)))
    rows, grid = guess_grid(table_rows(shapes, "pos_embed"), owners, hints.get("size"), cell)
    pool = "map" if "attn_pool.latent" in shapes else "gap" if "fc_norm.weight" in shapes or not token else "cls"
    fields = {
        "depth": depth,
        "heads": heads,
        "mlp_width": mlp_width,
        "size": (grid[0] * cell[0], grid[1] * cell[1]),
        "classes": need(shapes, "head.weight", 2)[0] if "head.weight" in shapes else 0,
        "pool": pool,
        "class_token": token,
        "distill_token": distill,
        "registers": registers,
        "position_rows": rows,
        "head": "mlp" if any(k + "weight" in shapes for k in PRE_LOGITS) else "linear",
        "final_norm": "pooled" if "fc_norm.weight" in shapes else "tokens",
        "qkv_bias": "blocks.0.attn.qkv.bias" in shapes,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in shapes else None,
    }
    return fields, warnings


def _image(config: Config) -> tuple[ImageSpec, list[str]]:
    """Keys do not say how images were prepared; some facts give the family away, and otherwise a warning is due."""
    c = encoder(config)
    assert c is not None
    size = checks.pair(c.size)
    half = (0.5,) * c.channels
    google = ImageSpec(size=size, mean=half, std=half, crop=1.0 if min(size) >= 384 else 0.9)
    if isinstance(config, HybridConfig) or c.classes in (GOOGLE_21K, TIMM_21K):
        return google, []  # only the AugReg weights are like this
    deit = ImageSpec.imagenet(size, channels=c.channels)
    if c.distill_token or c.layer_scale is not None:
        return deit, []  # DeiT, DeiT III, DINOv2
    doubt = (
        "The preprocessing is unknown: ImageNet mean and std, bicubic, crop 0.875 (DeiT) are assumed; weights that "
        "came from Google's files want mean and std 0.5. Give image=ImageSpec(...) to be sure."
    )
    return deit, [doubt]


def native(config: Config) -> Mapping[str, Any]:
    if isinstance(config, HybridConfig):
        own = {"norm_eps": 1e-5, "standardize_eps": 1e-8, "standardize_eps_on": "variance"}
        return {"vit.gelu": "erf", "vit.norm_eps": 1e-6, **own}
    return {"gelu": "erf", "norm_eps": 1e-6}


def refuses(config: Config) -> str | None:
    c = encoder(config)
    if c is None:
        return "this layout is for ViT and hybrid"
    if reason := plain_trunk(c, "timm's ViT"):
        return reason
    if c.head == "mlp":
        return "timm's ViT has no pre_logits layer"
    owned, prefix = c.position_rows or 0, c.prefix
    if owned not in (0, prefix):
        return f"timm gives a position row to all {prefix} prefix tokens or to none; this model to {owned}"
    if c.pool == "gap" and c.final_norm == "tokens" and c.class_token:
        return "timm's keys for mean pooling over normalized tokens beside a class token read as class-token pooling"
    if c.pool == "cls" and c.final_norm == "pooled":
        return "timm's keys for a norm behind the class token read as mean pooling"
    return None


def rows(config: Config, shapes: Shapes) -> list[KeyRule]:
    c = encoder(config)
    assert c is not None
    register = next((k for k in REGISTERS if k in shapes), REGISTERS[0])
    tokens = [("cls_token", int(bool(c.class_token))), ("dist_token", int(c.distill_token)), (register, c.registers)]
    present = [(key, n) for key, n in tokens if n]
    out = list(pairs("embed.proj", "patch_embed.proj."))
    if present:
        way = joined(*(n for _, n in present), each=LEADING)
        out.append(KeyRule("prefix", tuple(key for key, _ in present), way))
    out.append(KeyRule("positions.0.table", ("pos_embed",), LEADING))
    for i in range(c.depth):
        out += _block(f"blocks.{i}.", c)
    out += pairs("norm", "fc_norm." if c.final_norm == "pooled" else "norm.")
    out += _head(c, shapes)
    if isinstance(config, HybridConfig):
        out += _backbone(config)
    return out


def _block(at: str, c: ViTConfig) -> Iterator[KeyRule]:
    yield from pairs(at + "norm1", at + "norm1.")
    yield KeyRule(at + "attn.qkv.weight", (at + "attn.qkv.weight",), SAME)
    if c.qkv_bias:
        yield KeyRule(at + "attn.qkv.bias", (at + "attn.qkv.bias",), SAME)
    yield from pairs(at + "attn.out", at + "attn.proj.")
    yield from pairs(at + "norm2", at + "norm2.")
    yield from pairs(at + "mlp.fc1", at + "mlp.fc1.")
    yield from pairs(at + "mlp.fc2", at + "mlp.fc2.")
    if c.layer_scale is not None:
        yield KeyRule(at + "attn_scale.gamma", (at + "ls1.gamma",), SAME)
        yield KeyRule(at + "mlp_scale.gamma", (at + "ls2.gamma",), SAME)


def _head(c: ViTConfig, shapes: Shapes) -> Iterator[KeyRule]:
    if c.pool == "map":
        yield KeyRule("pool.probe", ("attn_pool.latent",), SAME)
        for ours, theirs in {"query": "q", "key_value": "kv", "out": "proj"}.items():
            yield from pairs(f"pool.{ours}", f"attn_pool.{theirs}.")
        for name in ("norm", "mlp.fc1", "mlp.fc2"):
            yield from pairs(f"pool.{name}", f"attn_pool.{name}.")
    if c.head == "mlp":
        yield from pairs("pre_logits", next((k for k in PRE_LOGITS if k + "weight" in shapes), PRE_LOGITS[0]))
    if c.classes:
        yield from pairs("head", "head.")
        if c.distill_token:
            yield from pairs("head_distill", "head_dist.")


def _backbone(config: HybridConfig) -> Iterator[KeyRule]:
    stem = BACKBONE + ("stem." if config.units else "")
    yield KeyRule("backbone.root.weight", (stem + "conv.weight",), SAME)
    yield from pairs("backbone.root_norm.norm", stem + "norm.")
    for ours, stage, unit, first in unit_rows(config.units, "backbone."):
        at = f"{BACKBONE}stages.{stage}.blocks.{unit}."
        for n in (1, 2, 3):
            yield KeyRule(f"{ours}conv{n}.weight", (f"{at}conv{n}.weight",), SAME)
            yield from pairs(f"{ours}norm{n}.norm", f"{at}norm{n}.")
        if first:
            yield KeyRule(f"{ours}shortcut.weight", (f"{at}downsample.conv.weight",), SAME)
            yield from pairs(f"{ours}shortcut_norm.norm", f"{at}downsample.norm.")


TIMM = Format(
    name="timm",
    target="timm",
    knows=knows,
    guess=guess,
    rows=rows,
    refuses=refuses,
    native=native,
    spare=(
        (r"mask_token", "stands in for hidden patches in pre-training; no use afterwards"),
        (r"decoder_.*", "the decoder of masked pre-training"),
    ),
)
