"""Google's .npz keys for ViT and hybrid, every generation: released, linen, big_vision.

Prefixes (`params/`, `opt/target/`) and scan-stacked blocks have already been removed by
sightline.weights.formats.normalize.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from sightline.models.hybrid import HybridConfig
from sightline.models.variants import Config
from sightline.models.vit import ViTConfig
from sightline.weights.formats.format import Format, Hints, not_plain, vit_config
from sightline.weights.formats.key_table import (
    CONV,
    DENSE,
    LEADING,
    SAME,
    KeyRule,
    Shapes,
    concatenation,
    into_heads,
    layer_rules,
    out_of_heads,
    per_head,
)
from sightline.weights.formats.resnet import ResNetNames, backbone_rules, guess_backbone
from sightline.weights.formats.shapes import (
    Guess,
    count_layers,
    guess_grid,
    position_table_rows,
    required_shape,
)

BLOCK = "Transformer/encoderblock_{}/"
POSITIONS = ("Transformer/posembed_input/pos_embedding", "pos_embedding")
KERNEL, SCALE = ("/kernel", "/bias"), ("/scale", "/bias")
BACKBONE = ResNetNames(
    root="conv_root/kernel",
    unit="block{s}/unit{u}/",
    pattern=r"block(\d+)/unit(\d+)/",
    conv=("conv1/kernel", "conv2/kernel", "conv3/kernel"),
    norm=("gn1", "gn2", "gn3"),
    shortcut="conv_proj/kernel",
    norm_names=SCALE,
    first=1,
    kernel=CONV,
)


def recognizes(shapes: Shapes) -> bool:
    return "embedding/kernel" in shapes and any(k.startswith("Transformer/") for k in shapes)


def guess_config(shapes: Shapes, hints: Hints) -> Guess:
    p, q, channels, width = required_shape(shapes, "embedding/kernel", 4)
    encoder = [k for k in shapes if k.startswith("Transformer/")]
    query = next((k for k in encoder if k.endswith("/query/kernel")), "query/kernel")
    mlp = next((k for k in encoder if k.endswith("/Dense_0/kernel")), "Dense_0/kernel")
    token = "cls" in shapes
    hybrid = guess_backbone(shapes, BACKBONE, channels)
    stride = hybrid.stride if hybrid else 1
    cell = (p * stride, q * stride)
    fields, warnings = _positions(shapes, hints, cell=cell, token=token)
    vit = ViTConfig(
        width=width,
        depth=count_layers(shapes, r"Transformer/encoderblock_(\d+)/"),
        heads=required_shape(shapes, query, 3)[1],
        mlp_width=required_shape(shapes, mlp, 2)[1],
        patch=cell,
        channels=hybrid.channels if hybrid else channels,
        classes=required_shape(shapes, "head/kernel", 2)[1] if "head/kernel" in shapes else 0,
        pool="map" if "MAPHead_0/probe" in shapes else "cls" if token else "gap",
        class_token=token,
        head="mlp" if "pre_logits/kernel" in shapes else "linear",
        **fields,
    )
    config: Config = vit
    if hybrid:
        config = HybridConfig(vit=vit, units=hybrid.units, width_factor=hybrid.width_factor)
    return Guess(config=config, image=config.image, warnings=tuple(warnings))


def _positions(shapes: Shapes, hints: Hints, *, cell: tuple[int, int], token: bool) -> tuple[dict[str, Any], list[str]]:
    """A file without a position table was trained with fixed sine waves (big_vision's sincos2d), which fit any size."""
    key = next((k for k in POSITIONS if k in shapes), None)
    size = hints.get("size")
    if key is None:
        size = size or tuple(max(1, round(224 / p)) * p for p in cell)
        note = f"The file has no position table: sine waves (sincos2d) for {size} are assumed; give size= to change."
        return {"position": "sincos", "size": size}, [note]
    rows, grid = guess_grid(position_table_rows(shapes, key), (1, 0) if token else (0,), size, cell)
    return {"position_rows": rows, "size": (grid[0] * cell[0], grid[1] * cell[1])}, []


def defaults(config: Config) -> Mapping[str, Any]:
    """The defaults of the papers' JAX code, which are also ours."""
    if isinstance(config, HybridConfig):
        own = {"norm_eps": 1e-6, "standardize_eps": 1e-5, "standardize_eps_on": "deviation"}
        return {"vit.gelu": "tanh", "vit.norm_eps": 1e-6, **own}
    return {"gelu": "tanh", "norm_eps": 1e-6}


def unsupported(config: Config) -> str | None:
    c = vit_config(config)
    if c is None:
        return "this layout is for ViT and hybrid"
    if isinstance(config, HybridConfig) and config.stem != "7x7/2+pool":
        return f"the published hybrids have the 7x7 stem with pooling, not {config.stem}"
    if isinstance(config, HybridConfig) and config.unit != "bottleneck":
        return "the published hybrids have bottleneck units, not basic ones"
    if c.position == "sincos" and c.position_at == "stem" and not isinstance(config, HybridConfig):
        c = ViTConfig(**{**vars(c), "position": "1d", "position_rows": 0})
    if reason := not_plain(c, "the JAX ViT"):
        return reason
    for bad, what in (
        (c.distill_token, "distillation token"),
        (c.registers, "registers"),
        (c.layer_scale is not None, "LayerScale"),
        (not c.qkv_bias, "attention without biases"),
        (c.final_norm == "pooled", "norm after the pooling"),
        (c.pool != "cls" and c.class_token, "a class token with another pooling"),
        (isinstance(config, HybridConfig) and _needs_big_vision(c), "hybrid in big_vision's layout"),
    ):
        if bad:
            return f"Google's .npz does not support {what}"
    return None


def _needs_big_vision(c: ViTConfig) -> bool:
    """Whether only big_vision's layout can represent it: no position row for the class token, map pooling, waves."""
    return c.pool == "map" or c.position == "sincos" or (bool(c.class_token) and c.position_rows == 0)


def key_rules(config: Config, shapes: Shapes) -> list[KeyRule]:
    c = vit_config(config)
    assert c is not None
    at = "params/" if not shapes and _needs_big_vision(c) else ""
    linen = any("MultiHeadDotProductAttention_0" in k for k in shapes) if shapes else _needs_big_vision(c)
    table = next((k for k in POSITIONS if k in shapes), POSITIONS[linen])
    out: list[KeyRule] = list(layer_rules("embed.proj", "embedding", CONV, names=KERNEL))
    if c.class_token:
        out.append(KeyRule("prefix", ("cls",), LEADING))
    if c.position == "1d":
        out.append(KeyRule("positions.0.table", (table,), LEADING))
    for i in range(c.depth):
        out += _block(f"blocks.{i}.", BLOCK.format(i), c, linen=linen)
    out += layer_rules("norm", "Transformer/encoder_norm", names=SCALE)
    if c.pool == "map":
        out += _map_pool("MAPHead_0/", c)
    if c.head == "mlp":
        out += layer_rules("pre_logits", "pre_logits", DENSE, names=KERNEL)
    if c.classes:
        out += layer_rules("head", "head", DENSE, names=KERNEL)
    if isinstance(config, HybridConfig):
        out += backbone_rules(BACKBONE, config.units, root_norm="gn_root", shortcut_norm="gn_proj")
    return [KeyRule(r.ours, tuple(at + k for k in r.theirs), r.tensor_map) for r in out]


def _block(ours: str, at: str, c: ViTConfig, *, linen: bool) -> Iterator[KeyRule]:
    attention, mlp, second = (0, 0, 1) if linen else (1, 3, 2)
    yield from layer_rules(ours + "norm1", f"{at}LayerNorm_0", names=SCALE)
    yield from _attention(ours + "attn.", f"{at}MultiHeadDotProductAttention_{attention}/", c)
    yield from layer_rules(ours + "norm2", f"{at}LayerNorm_{second}", names=SCALE)
    for n, name in enumerate(("fc1", "fc2")):
        yield from layer_rules(ours + f"mlp.{name}", f"{at}MlpBlock_{mlp}/Dense_{n}", DENSE, names=KERNEL)


def _attention(ours: str, at: str, c: ViTConfig) -> Iterator[KeyRule]:
    three = ("query", "key", "value")
    w, h = c.width, c.heads
    yield KeyRule(
        ours + "qkv.weight", tuple(f"{at}{n}/kernel" for n in three), concatenation(w, w, w, each=into_heads(w, h))
    )
    yield KeyRule(ours + "qkv.bias", tuple(f"{at}{n}/bias" for n in three), concatenation(w, w, w, each=per_head(w, h)))
    yield from layer_rules(ours + "out", f"{at}out", out_of_heads(w, h), names=KERNEL)


def _map_pool(at: str, c: ViTConfig) -> Iterator[KeyRule]:
    w, h, inner = c.width, c.heads, f"{at}MultiHeadDotProductAttention_0/"
    yield KeyRule("pool.probe", (f"{at}probe",), SAME)
    yield KeyRule("pool.query.weight", (f"{inner}query/kernel",), into_heads(w, h))
    yield KeyRule("pool.query.bias", (f"{inner}query/bias",), per_head(w, h))
    two = ("key", "value")
    yield KeyRule(
        "pool.key_value.weight", tuple(f"{inner}{n}/kernel" for n in two), concatenation(w, w, each=into_heads(w, h))
    )
    yield KeyRule(
        "pool.key_value.bias", tuple(f"{inner}{n}/bias" for n in two), concatenation(w, w, each=per_head(w, h))
    )
    yield from layer_rules("pool.out", f"{inner}out", out_of_heads(w, h), names=KERNEL)
    yield from layer_rules("pool.norm", f"{at}LayerNorm_0", names=SCALE)
    for n, name in enumerate(("fc1", "fc2")):
        yield from layer_rules(f"pool.mlp.{name}", f"{at}MlpBlock_0/Dense_{n}", DENSE, names=KERNEL)


GOOGLE = Format(
    name="google",
    target="npz",
    recognizes=recognizes,
    guess_config=guess_config,
    key_rules=key_rules,
    unsupported=unsupported,
    defaults=defaults,
)
