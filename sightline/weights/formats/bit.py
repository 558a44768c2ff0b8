"""BiT's keys: Google's .npz, timm, transformers, and the authors' PyTorch port. One shape, four spellings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sightline.models import checks
from sightline.models.bit import BiTConfig
from sightline.models.variants import Config
from sightline.weights.formats.format import Format, Hints
from sightline.weights.formats.guess import GOOGLE_21K, Guess, need
from sightline.weights.formats.key_table import CONV, CONV_DENSE, ONE_BY_ONE, SAME, KeyRule, Shapes, TensorMap, pairs
from sightline.weights.formats.units import guess_units, unit_rows


@dataclass(frozen=True)
class Spelling:
    """The names of one port; `{s}` counts stages and `{u}` units."""

    name: str
    target: str
    root: str
    unit: str
    pattern: str  # finds stage and unit in a key
    conv: tuple[str, str, str]
    norm: tuple[str, str, str]
    shortcut: str
    last_norm: str
    head: str
    norm_names: tuple[str, str] = ("weight", "bias")
    head_names: tuple[str, str] = ("weight", "bias")
    first: int = 0  # number of the first stage and unit
    kernel: TensorMap = SAME
    head_way: TensorMap = SAME
    eps: float = 1e-8  # of the standardization, on the variance
    head_classes: int = 0  # axis of the head's weight that counts classes


SPELLINGS = (
    Spelling(
        name="google-bit",
        target="npz",
        root="resnet/root_block/standardized_conv2d/kernel",
        unit="resnet/block{s}/unit{u:02d}/",
        pattern=r"resnet/block(\d+)/unit(\d+)/",
        conv=tuple(f"{x}/standardized_conv2d/kernel" for x in "abc"),  # type: ignore[arg-type]
        norm=tuple(f"{x}/group_norm/" for x in "abc"),  # type: ignore[arg-type]
        shortcut="a/proj/standardized_conv2d/kernel",
        last_norm="resnet/group_norm/",
        head="resnet/head/conv2d/",
        norm_names=("gamma", "beta"),
        head_names=("kernel", "bias"),
        first=1,
        kernel=CONV,
        head_way=CONV_DENSE,
        eps=1e-10,
        head_classes=3,
    ),
    Spelling(
        name="timm-bit",
        target="timm",
        root="stem.conv.weight",
        unit="stages.{s}.blocks.{u}.",
        pattern=r"stages\.(\d+)\.blocks\.(\d+)\.",
        conv=("conv1.weight", "conv2.weight", "conv3.weight"),
        norm=("norm1.", "norm2.", "norm3."),
        shortcut="downsample.conv.weight",
        last_norm="norm.",
        head="head.fc.",
        head_way=ONE_BY_ONE,
    ),
    Spelling(
        name="hf-bit",
        target="hf",
        root="bit.embedder.convolution.weight",
        unit="bit.encoder.stages.{s}.layers.{u}.",
        pattern=r"bit\.encoder\.stages\.(\d+)\.layers\.(\d+)\.",
        conv=("conv1.weight", "conv2.weight", "conv3.weight"),
        norm=("norm1.", "norm2.", "norm3."),
        shortcut="downsample.conv.weight",
        last_norm="bit.norm.",
        head="classifier.1.",
    ),
    Spelling(
        name="hf-bit-headless",
        target="hf",
        root="embedder.convolution.weight",
        unit="encoder.stages.{s}.layers.{u}.",
        pattern=r"encoder\.stages\.(\d+)\.layers\.(\d+)\.",
        conv=("conv1.weight", "conv2.weight", "conv3.weight"),
        norm=("norm1.", "norm2.", "norm3."),
        shortcut="downsample.conv.weight",
        last_norm="norm.",
        head="classifier.1.",
    ),
    Spelling(
        name="bit-pytorch",
        target="bit-pytorch",
        root="root.conv.weight",
        unit="body.block{s}.unit{u:02d}.",
        pattern=r"body\.block(\d+)\.unit(\d+)\.",
        conv=("conv1.weight", "conv2.weight", "conv3.weight"),
        norm=("gn1.", "gn2.", "gn3."),
        shortcut="downsample.weight",
        last_norm="head.gn.",
        head="head.conv.",
        first=1,
        head_way=ONE_BY_ONE,
        eps=1e-10,
    ),
)


def _format(s: Spelling) -> Format:
    def knows(shapes: Shapes) -> bool:
        return s.root in shapes and s.last_norm + s.norm_names[0] in shapes

    def guess(shapes: Shapes, hints: Hints) -> Guess:
        found = guess_units(shapes, s.root, s.pattern, jax=s.kernel is CONV)
        weight = s.head + s.head_names[0]
        config = BiTConfig(
            units=found.units,
            width_factor=found.width_factor,
            channels=found.channels,
            size=hints.get("size") or 224,
            classes=need(shapes, weight)[s.head_classes] if weight in shapes else 0,
            stem="7x7/2+pool" if found.kernel == 7 else "3x3/2",
            standardize_eps=s.eps,
        )
        return Guess(config=config, image=config.image, warnings=_doubts(config, hints))

    def native(config: Config) -> Mapping[str, Any]:
        return {"norm_eps": 1e-5, "standardize_eps": s.eps}

    def rows(config: Config, shapes: Shapes) -> list[KeyRule]:
        assert isinstance(config, BiTConfig)
        return list(_rows(s, config))

    return Format(name=s.name, target=s.target, knows=knows, guess=guess, rows=rows, refuses=_refuses(s), native=native)


def _doubts(config: BiTConfig, hints: Hints) -> tuple[str, ...]:
    if hints.get("size"):
        return ()
    trained = "" if config.classes == GOOGLE_21K else "; the fine-tuned BiT files of ILSVRC2012 are meant for 480"
    return (f"A BiT file does not say its image size: {checks.pair(config.size)[0]} is assumed{trained}.",)


def _refuses(s: Spelling) -> Any:
    def refuses(config: Config) -> str | None:
        if not isinstance(config, BiTConfig):
            return "this layout is for BiT"
        if config.norm == "batch" or not config.standardize:
            return "BiT's formats have GroupNorm and standardized kernels only"
        if config.stem != "7x7/2+pool":
            return f"BiT's formats have the 7x7 stem with pooling, not {config.stem}"
        if s.target == "hf" and bool(config.classes) == s.name.endswith("headless"):
            return "this layout is for BiT with a head, or for BiT without"
        return None

    return refuses


def _rows(s: Spelling, c: BiTConfig) -> Iterator[KeyRule]:
    yield KeyRule("root.conv.weight", (s.root,), s.kernel)
    for ours, stage, unit, first in unit_rows(c.units):
        at = s.unit.format(s=stage + s.first, u=unit + s.first)
        for n in range(3):
            yield from pairs(f"{ours}norm{n + 1}.norm", at + s.norm[n], names=s.norm_names)
            yield KeyRule(f"{ours}conv{n + 1}.weight", (at + s.conv[n],), s.kernel)
        if first:
            yield KeyRule(f"{ours}shortcut.weight", (at + s.shortcut,), s.kernel)
    yield from pairs("norm.norm", s.last_norm, names=s.norm_names)
    if c.classes:
        yield from pairs("head", s.head, s.head_way, names=s.head_names)


GOOGLE_BIT, TIMM_BIT, HF_BIT, HF_BIT_HEADLESS, BIT_PYTORCH = (_format(s) for s in SPELLINGS)
