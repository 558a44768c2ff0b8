"""MLP-Mixer's keys: Google's .npz and timm."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sightline.models import checks
from sightline.models.mixer import MixerConfig
from sightline.models.variants import Config
from sightline.spec import ImageSpec
from sightline.weights.formats.format import Format, Hints
from sightline.weights.formats.key_table import CONV, DENSE, SAME, KeyRule, Shapes, TensorMap, layer_rules
from sightline.weights.formats.shapes import Guess, count_layers, guess_grid, required_shape
from sightline.weights.report import WeightsError


@dataclass(frozen=True)
class MixerNames:
    """What a library calls the layers of a Mixer, and how it stores them."""

    name: str
    target: str
    stem: str
    block: str  # with {i}
    pattern: str  # matches the number of a block
    layers: tuple[str, str, str, str, str, str]  # norm, token mixing 1 and 2, norm, channel mixing 1 and 2
    last_norm: str
    head: str
    gelu: Literal["tanh", "erf"]
    kernel: tuple[str, str] = ("weight", "bias")
    scale: tuple[str, str] = ("weight", "bias")
    conv: TensorMap = SAME
    dense: TensorMap = SAME
    jax: bool = False  # kernels are stored (in, out), the stem's (rows, columns, in, out)


GOOGLE = MixerNames(
    name="google-mixer",
    target="npz",
    stem="stem/",
    block="MixerBlock_{i}/",
    pattern=r"MixerBlock_(\d+)/",
    layers=(
        "LayerNorm_0/",
        "token_mixing/Dense_0/",
        "token_mixing/Dense_1/",
        "LayerNorm_1/",
        "channel_mixing/Dense_0/",
        "channel_mixing/Dense_1/",
    ),
    last_norm="pre_head_layer_norm/",
    head="head/",
    gelu="tanh",
    kernel=("kernel", "bias"),
    scale=("scale", "bias"),
    conv=CONV,
    dense=DENSE,
    jax=True,
)
TIMM = MixerNames(
    name="timm-mixer",
    target="timm",
    stem="stem.proj.",
    block="blocks.{i}.",
    pattern=r"blocks\.(\d+)\.",
    layers=("norm1.", "mlp_tokens.fc1.", "mlp_tokens.fc2.", "norm2.", "mlp_channels.fc1.", "mlp_channels.fc2."),
    last_norm="norm.",
    head="head.",
    gelu="erf",
)
OURS = ("norm1", "mix.fc1", "mix.fc2", "norm2", "mlp.fc1", "mlp.fc2")


def _dense(names: MixerNames, shapes: Shapes, layer: str) -> tuple[int, int]:
    """Inputs and outputs of a dense layer."""
    a, b = required_shape(shapes, layer + names.kernel[0], 2)
    return (a, b) if names.jax else (b, a)


def _guess(names: MixerNames, shapes: Shapes, hints: Hints) -> Guess:
    stem = required_shape(shapes, names.stem + names.kernel[0], 4)
    p, q, channels, width = stem if names.jax else (stem[2], stem[3], stem[1], stem[0])
    first = names.block.format(i=0)
    tokens, token_width = _dense(names, shapes, first + names.layers[1])
    _, mlp_width = _dense(names, shapes, first + names.layers[4])
    if _dense(names, shapes, first + names.layers[2]) != (token_width, tokens):
        raise WeightsError(
            "The file has gated MLPs (as timm's gMixer), which Sightline's Mixer does not have: build the model in its "
            "own library and wrap it with sl.adopt(model)."
        )
    _, grid = guess_grid(tokens, (0,), hints.get("size"), (p, q))
    head = names.head + names.kernel[0] in shapes
    config = MixerConfig(
        width=width,
        depth=count_layers(shapes, names.pattern),
        token_width=token_width,
        mlp_width=mlp_width,
        patch=(p, q),
        size=(grid[0] * p, grid[1] * q),
        channels=channels,
        classes=_dense(names, shapes, names.head)[1] if head else 0,
        gelu=names.gelu,
    )
    if names.jax:
        return Guess(config=config, image=config.image)
    half = (0.5,) * channels
    image = ImageSpec(size=checks.pair(config.size), mean=half, std=half, crop=0.875)
    doubt = (
        "The file does not say how to prepare images: the way of timm's copies of Google's files (mean and std 0.5, "
        "bicubic, crop 0.875) is assumed. Others may need another: in Python, load(..., image=ImageSpec(...))."
    )
    return Guess(config=config, image=image, warnings=(doubt,))


def _rules(names: MixerNames, config: Config) -> Iterator[KeyRule]:
    assert isinstance(config, MixerConfig)
    yield from layer_rules("embed.proj", names.stem, names.conv, names=names.kernel)
    for i in range(config.depth):
        at = names.block.format(i=i)
        for ours, theirs in zip(OURS, names.layers):
            if ours.startswith("norm"):
                yield from layer_rules(f"blocks.{i}.{ours}", at + theirs, names=names.scale)
            else:
                yield from layer_rules(f"blocks.{i}.{ours}", at + theirs, names.dense, names=names.kernel)
    yield from layer_rules("norm", names.last_norm, names=names.scale)
    if config.classes:
        yield from layer_rules("head", names.head, names.dense, names=names.kernel)


def _format(names: MixerNames) -> Format:
    def recognizes(shapes: Shapes) -> bool:
        token_mixing = names.block.format(i=0) + names.layers[1]
        return names.stem + names.kernel[0] in shapes and token_mixing + names.kernel[0] in shapes

    def defaults(config: Config) -> Mapping[str, Any]:
        return {"gelu": names.gelu, "norm_eps": 1e-6}

    return Format(
        name=names.name,
        target=names.target,
        recognizes=recognizes,
        guess_config=lambda shapes, hints: _guess(names, shapes, hints),
        key_rules=lambda config, shapes: list(_rules(names, config)),
        unsupported=lambda c: None if isinstance(c, MixerConfig) else "this layout is for Mixer",
        defaults=defaults,
    )


MIXER_FORMATS = tuple(_format(names) for names in (GOOGLE, TIMM))
