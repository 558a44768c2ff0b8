"""BiT's keys: Google's .npz, timm, transformers, and the authors' PyTorch port. One structure, four sets of names."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sightline.models import checks
from sightline.models.bit import BiTConfig
from sightline.models.variants import Config
from sightline.weights.formats.format import Format, Hints
from sightline.weights.formats.key_table import (
    CONV,
    CONV_DENSE,
    ONE_BY_ONE,
    SAME,
    KeyRule,
    Shapes,
    TensorMap,
    layer_rules,
)
from sightline.weights.formats.resnet import ResNetNames, guess_resnet, unit_rules
from sightline.weights.formats.shapes import GOOGLE_21K, Guess, required_shape


@dataclass(frozen=True, kw_only=True)
class BiTNames:
    """The names of one port."""

    name: str
    target: str
    resnet: ResNetNames
    last_norm: str
    head: str
    head_names: tuple[str, str] = ("weight", "bias")
    head_map: TensorMap = SAME
    head_classes: int = 0  # class axis of the head's weight
    eps: float = 1e-8  # of the standardization, on the variance


GOOGLE = BiTNames(
    name="google-bit",
    target="npz",
    resnet=ResNetNames(
        root="resnet/root_block/standardized_conv2d/kernel",
        unit="resnet/block{s}/unit{u:02d}/",
        pattern=r"resnet/block(\d+)/unit(\d+)/",
        conv=("a/standardized_conv2d/kernel", "b/standardized_conv2d/kernel", "c/standardized_conv2d/kernel"),
        norm=("a/group_norm/", "b/group_norm/", "c/group_norm/"),
        shortcut="a/proj/standardized_conv2d/kernel",
        norm_names=("gamma", "beta"),
        first=1,
        kernel=CONV,
    ),
    last_norm="resnet/group_norm/",
    head="resnet/head/conv2d/",
    head_names=("kernel", "bias"),
    head_map=CONV_DENSE,
    head_classes=3,
    eps=1e-10,
)
TIMM = BiTNames(
    name="timm-bit",
    target="timm",
    resnet=ResNetNames(
        root="stem.conv.weight", unit="stages.{s}.blocks.{u}.", pattern=r"stages\.(\d+)\.blocks\.(\d+)\."
    ),
    last_norm="norm.",
    head="head.fc.",
    head_map=ONE_BY_ONE,
)
HF_HEADLESS = BiTNames(
    name="hf-bit-headless",
    target="hf",
    resnet=ResNetNames(
        root="embedder.convolution.weight",
        unit="encoder.stages.{s}.layers.{u}.",
        pattern=r"encoder\.stages\.(\d+)\.layers\.(\d+)\.",
    ),
    last_norm="norm.",
    head="classifier.1.",
)
HF = replace(
    HF_HEADLESS,
    name="hf-bit",
    resnet=ResNetNames(
        root="bit." + HF_HEADLESS.resnet.root,
        unit="bit." + HF_HEADLESS.resnet.unit,
        pattern=r"bit\." + HF_HEADLESS.resnet.pattern,
    ),
    last_norm="bit.norm.",
)
PYTORCH = BiTNames(
    name="bit-pytorch",
    target="bit-pytorch",
    resnet=ResNetNames(
        root="root.conv.weight",
        unit="body.block{s}.unit{u:02d}.",
        pattern=r"body\.block(\d+)\.unit(\d+)\.",
        norm=("gn1.", "gn2.", "gn3."),
        shortcut="downsample.weight",
        first=1,
    ),
    last_norm="head.gn.",
    head="head.conv.",
    head_map=ONE_BY_ONE,
    eps=1e-10,
)


def _format(names: BiTNames) -> Format:
    def recognizes(shapes: Shapes) -> bool:
        return names.resnet.root in shapes and names.last_norm + names.resnet.norm_names[0] in shapes

    def guess_config(shapes: Shapes, hints: Hints) -> Guess:
        found = guess_resnet(shapes, names.resnet)
        weight = names.head + names.head_names[0]
        config = BiTConfig(
            units=found.units,
            width_factor=found.width_factor,
            channels=found.channels,
            size=hints.get("size") or 224,
            classes=required_shape(shapes, weight)[names.head_classes] if weight in shapes else 0,
            stem="7x7/2+pool" if found.kernel == 7 else "3x3/2",
            standardize_eps=names.eps,
        )
        return Guess(config=config, image=config.image, warnings=_warnings(config, hints))

    def defaults(config: Config) -> Mapping[str, Any]:
        return {"norm_eps": 1e-5, "standardize_eps": names.eps}

    def key_rules(config: Config, shapes: Shapes) -> list[KeyRule]:
        assert isinstance(config, BiTConfig)
        return list(_rules(names, config))

    return Format(
        name=names.name,
        target=names.target,
        recognizes=recognizes,
        guess_config=guess_config,
        key_rules=key_rules,
        unsupported=lambda config: _unsupported(names, config),
        defaults=defaults,
    )


def _warnings(config: BiTConfig, hints: Hints) -> tuple[str, ...]:
    if hints.get("size"):
        return ()
    trained = "" if config.classes == GOOGLE_21K else "; the fine-tuned BiT files of ILSVRC2012 were trained at 480"
    return (f"A BiT file does not say its image size: {checks.pair(config.size)[0]} is assumed{trained}.",)


def _unsupported(names: BiTNames, config: Config) -> str | None:
    if not isinstance(config, BiTConfig):
        return "this layout is for BiT"
    if config.norm == "batch" or not config.standardize:
        return "BiT's formats have GroupNorm and standardized kernels only"
    if config.stem != "7x7/2+pool":
        return f"BiT's formats have the 7x7 stem with pooling, not {config.stem}"
    if config.unit != "bottleneck":
        return "BiT's formats have bottleneck units only"
    if names.target == "hf" and bool(config.classes) == (names is HF_HEADLESS):
        return "this layout is for BiT with a head, or for BiT without"
    return None


def _rules(names: BiTNames, c: BiTConfig) -> Iterator[KeyRule]:
    yield KeyRule("root.conv.weight", (names.resnet.root,), names.resnet.kernel)
    yield from unit_rules(names.resnet, c.units)
    yield from layer_rules("norm.norm", names.last_norm, names=names.resnet.norm_names)
    if c.classes:
        yield from layer_rules("head", names.head, names.head_map, names=names.head_names)


BIT_FORMATS = tuple(_format(names) for names in (GOOGLE, TIMM, HF, HF_HEADLESS, PYTORCH))
