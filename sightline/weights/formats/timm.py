"""timm's keys for ViT and hybrid, which the original DeiT, MAE and DINOv2 code share."""

from collections.abc import Iterator, Mapping
from typing import Any

from sightline.models import checks
from sightline.models.hybrid import HybridConfig
from sightline.models.variants import Config
from sightline.models.vit import ViTConfig
from sightline.spec import ImageSpec
from sightline.weights.formats.format import Format, Hints, not_plain, vit_config
from sightline.weights.formats.key_table import (
    LEADING,
    SAME,
    BlockNames,
    KeyRule,
    Shapes,
    block_rules,
    layer_rules,
    prefix_rule,
)
from sightline.weights.formats.resnet import ResNetNames, backbone_rules, guess_backbone
from sightline.weights.formats.shapes import (
    GOOGLE_21K,
    TIMM_21K,
    Guess,
    SizeKeys,
    count_classes,
    guess_sizes,
    required_shape,
)
from sightline.weights.report import WeightsError

SIZES = SizeKeys("patch_embed.proj.weight", r"blocks\.(\d+)\.", "blocks.0.mlp.fc1.weight", "pos_embed")
BLOCK = BlockNames(
    norm1="norm1.",
    qkv=("attn.qkv.",),
    out="attn.proj.",
    norm2="norm2.",
    fc1="mlp.fc1.",
    fc2="mlp.fc2.",
    scales=("ls1.gamma", "ls2.gamma"),
)
REGISTERS = ("reg_token", "register_tokens")  # timm; DINOv2
PRE_LOGITS = ("pre_logits.fc.", "pre_logits.")


def recognizes(shapes: Shapes) -> bool:
    return "patch_embed.proj.weight" in shapes and any(k.startswith("blocks.") for k in shapes)


def guess_config(shapes: Shapes, hints: Hints) -> Guess:
    if any(k.startswith("blocks.0.mlp.w12") for k in shapes):
        raise WeightsError(
            "The file has gated MLPs (SwiGLU, as DINOv2 giant), which Sightline's ViT does not have: "
            "build the model in its own library and wrap it with sl.adopt(model)."
        )
    backbone = guess_backbone(
        shapes,
        _backbone_names(bare=_stem(bare=True) + "conv.weight" in shapes),
        required_shape(shapes, SIZES.patches, 4)[1],
    )
    token, distill = "cls_token" in shapes, "dist_token" in shapes
    registers = next((required_shape(shapes, k, 3)[1] for k in REGISTERS if k in shapes), 0)
    owners = tuple(dict.fromkeys((token + distill, 0, token + distill + registers)))
    fields, warnings = guess_sizes(shapes, SIZES, hints, owners=owners, stride=backbone.stride if backbone else 1)
    fields |= {"channels": backbone.channels} if backbone else {}
    vit = ViTConfig(
        **fields,
        classes=count_classes(shapes, "head.weight"),
        pool="map" if "attn_pool.latent" in shapes else "gap" if "fc_norm.weight" in shapes or not token else "cls",
        class_token=token,
        distill_token=distill,
        registers=registers,
        head="mlp" if any(k + "weight" in shapes for k in PRE_LOGITS) else "linear",
        final_norm="pooled" if "fc_norm.weight" in shapes else "tokens",
        gelu="erf",
        qkv_bias="blocks.0.attn.qkv.bias" in shapes,
        layer_scale=1e-5 if "blocks.0.ls1.gamma" in shapes else None,
    )
    config: Config = vit
    if backbone:
        own: dict[str, Any] = {"units": backbone.units, "width_factor": backbone.width_factor}
        config = HybridConfig(vit=vit, **own, norm_eps=1e-5, standardize_eps=1e-8, standardize_eps_on="variance")
    image, doubt = _image(config)
    return Guess(config=config, image=image, warnings=(*warnings, *doubt))


def _stem(*, bare: bool) -> str:
    """Prefix of the backbone's first layers; timm omits `stem` if the backbone is only the stem."""
    return "patch_embed.backbone." if bare else "patch_embed.backbone.stem."


def _backbone_names(*, bare: bool) -> ResNetNames:
    return ResNetNames(
        root=_stem(bare=bare) + "conv.weight",
        unit="patch_embed.backbone.stages.{s}.blocks.{u}.",
        pattern=r"patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\.",
    )


def _image(config: Config) -> tuple[ImageSpec, list[str]]:
    """Keys do not tell the preprocessing; some sizes identify the family, otherwise there is a warning."""
    c = vit_config(config)
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
        "The file does not say how to prepare images: DeiT's way (ImageNet mean and std, bicubic, crop 0.875) is "
        "assumed. Weights from Google's files need mean and std 0.5: in Python, load(..., image=ImageSpec(...))."
    )
    return deit, [doubt]


def defaults(config: Config) -> Mapping[str, Any]:
    if isinstance(config, HybridConfig):
        own = {"norm_eps": 1e-5, "standardize_eps": 1e-8, "standardize_eps_on": "variance"}
        return {"vit.gelu": "erf", "vit.norm_eps": 1e-6, **own}
    return {"gelu": "erf", "norm_eps": 1e-6}


def unsupported(config: Config) -> str | None:
    c = vit_config(config)
    if c is None:
        return "this layout is for ViT and hybrid"
    if isinstance(config, HybridConfig) and config.stem != "7x7/2+pool":
        return f"the published hybrids have the 7x7 stem with pooling, not {config.stem}"
    if isinstance(config, HybridConfig) and config.unit != "bottleneck":
        return "the published hybrids have bottleneck units, not basic ones"
    if reason := not_plain(c, "timm's ViT"):
        return reason
    if c.head == "mlp":
        return "timm's ViT has no pre_logits layer"
    owned, prefix = c.position_rows or 0, c.prefix
    if owned not in (0, prefix):
        return f"timm gives a position row to all {prefix} prefix tokens or to none; this model to {owned}"
    if c.pool == "gap" and c.final_norm == "tokens" and c.class_token:
        return "timm's keys cannot tell mean pooling over normalized tokens from pooling by the class token"
    if c.pool == "cls" and c.final_norm == "pooled":
        return "timm's keys cannot tell a norm after class-token pooling from mean pooling"
    return None


def key_rules(config: Config, shapes: Shapes) -> list[KeyRule]:
    c = vit_config(config)
    assert c is not None
    register = next((k for k in REGISTERS if k in shapes), REGISTERS[0])
    tokens = [("cls_token", int(bool(c.class_token))), ("dist_token", int(c.distill_token)), (register, c.registers)]
    out = [
        *layer_rules("embed.proj", "patch_embed.proj."),
        *prefix_rule(tokens),
        KeyRule("positions.0.table", ("pos_embed",), LEADING),
        *(rule for i in range(c.depth) for rule in block_rules(f"blocks.{i}.", f"blocks.{i}.", BLOCK, c)),
        *layer_rules("norm", "fc_norm." if c.final_norm == "pooled" else "norm."),
        *_head(c, shapes),
    ]
    if isinstance(config, HybridConfig):
        bare = not config.units
        names = _backbone_names(bare=bare)
        out += backbone_rules(
            names, config.units, root_norm=_stem(bare=bare) + "norm.", shortcut_norm="downsample.norm."
        )
    return out


def _head(c: ViTConfig, shapes: Shapes) -> Iterator[KeyRule]:
    if c.pool == "map":
        yield KeyRule("pool.probe", ("attn_pool.latent",), SAME)
        for ours, theirs in {"query": "q", "key_value": "kv", "out": "proj"}.items():
            yield from layer_rules(f"pool.{ours}", f"attn_pool.{theirs}.")
        for name in ("norm", "mlp.fc1", "mlp.fc2"):
            yield from layer_rules(f"pool.{name}", f"attn_pool.{name}.")
    if c.head == "mlp":
        yield from layer_rules("pre_logits", next((k for k in PRE_LOGITS if k + "weight" in shapes), PRE_LOGITS[0]))
    if c.classes:
        yield from layer_rules("head", "head.")
        if c.distill_token:
            yield from layer_rules("head_distill", "head_dist.")


TIMM = Format(
    name="timm",
    target="timm",
    recognizes=recognizes,
    guess_config=guess_config,
    key_rules=key_rules,
    unsupported=unsupported,
    defaults=defaults,
    ignored=(
        (r"mask_token", "replaces masked patches in pre-training; not used afterwards"),
        (r"decoder_.*", "the decoder of masked pre-training"),
    ),
)
