"""ResNets in a checkpoint, BiT and the hybrid's backbone: their sizes, and the rules for their keys."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sightline.weights.formats.key_table import SAME, KeyRule, Shapes, TensorMap, layer_rules
from sightline.weights.formats.shapes import required_shape
from sightline.weights.report import WeightsError


@dataclass(frozen=True)
class ResNetSizes:
    """A ResNet as its shapes describe it."""

    units: tuple[int, ...]
    width_factor: float
    channels: int
    kernel: int  # of the first convolution

    @property
    def stride(self) -> int:
        """Stride of a hybrid's backbone: 4 in the stem, 2 in each stage after the first."""
        return 4 * 2 ** max(len(self.units) - 1, 0)

    @property
    def out(self) -> int:
        """Channels of the last map."""
        root = int(64 * self.width_factor)
        return root * 4 * 2 ** (len(self.units) - 1) if self.units else root


@dataclass(frozen=True, kw_only=True)
class ResNetNames:
    """What a library calls the layers of a ResNet; in `unit`, `{s}` counts stages and `{u}` units."""

    root: str
    unit: str
    pattern: str  # matches stage and unit in a key
    conv: tuple[str, str, str] = ("conv1.weight", "conv2.weight", "conv3.weight")
    norm: tuple[str, str, str] = ("norm1.", "norm2.", "norm3.")
    shortcut: str = "downsample.conv.weight"
    norm_names: tuple[str, str] = ("weight", "bias")
    first: int = 0  # number of the first stage and unit
    kernel: TensorMap = SAME


def unit_rules(
    names: ResNetNames, units: tuple[int, ...], *, at: str = "", shortcut_norm: str = ""
) -> Iterator[KeyRule]:
    """The residual units. With `shortcut_norm` they are those of a hybrid: each norm comes after its convolution."""
    for stage, unit in ((s, u) for s, count in enumerate(units) for u in range(count)):
        ours = f"{at}stages.{stage}.units.{unit}."
        theirs = names.unit.format(s=stage + names.first, u=unit + names.first)
        for n, (conv, norm) in enumerate(zip(names.conv, names.norm), start=1):
            convolution = (KeyRule(f"{ours}conv{n}.weight", (theirs + conv,), names.kernel),)
            normalization = tuple(layer_rules(f"{ours}norm{n}.norm", theirs + norm, names=names.norm_names))
            yield from convolution + normalization if shortcut_norm else normalization + convolution
        if unit == 0:  # the first unit of a stage changes the number of channels
            yield KeyRule(f"{ours}shortcut.weight", (theirs + names.shortcut,), names.kernel)
            if shortcut_norm:
                yield from layer_rules(f"{ours}shortcut_norm.norm", theirs + shortcut_norm, names=names.norm_names)


def backbone_rules(
    names: ResNetNames, units: tuple[int, ...], *, root_norm: str, shortcut_norm: str
) -> Iterator[KeyRule]:
    """The ResNet of a hybrid."""
    yield KeyRule("backbone.root.weight", (names.root,), names.kernel)
    yield from layer_rules("backbone.root_norm.norm", root_norm, names=names.norm_names)
    yield from unit_rules(names, units, at="backbone.", shortcut_norm=shortcut_norm)


def count_units(shapes: Shapes, pattern: str) -> tuple[int, ...]:
    """Units per stage; the pattern matches stage and unit, numbered from 0 or 1 without gaps."""
    found = {(int(m[1]), int(m[2])) for key in shapes if (m := re.match(pattern, key))}
    if not found:
        return ()
    first = min(stage for stage, _ in found)
    zero = min(unit for _, unit in found)
    stages = max(stage for stage, _ in found) - first + 1
    if stages > len(found):
        raise WeightsError("The stages of the ResNet are not numbered consecutively.")
    units = tuple(sum(stage == s + first for stage, _ in found) for s in range(stages))
    if found != {(s + first, u + zero) for s, n in enumerate(units) for u in range(n)} or first > 1 or zero > 1:
        raise WeightsError(f"The units of the ResNet are not numbered consecutively: found {units} per stage.")
    return units


def guess_resnet(shapes: Shapes, names: ResNetNames) -> ResNetSizes:
    """The ResNet that starts at the root convolution."""
    shape = required_shape(shapes, names.root, 4)
    kernel, channels, out = (shape[2], shape[1], shape[0])
    if names.kernel is not SAME:  # JAX: height, width, in, out
        kernel, channels, out = shape[0], shape[2], shape[3]
    if out % 32 or not out:
        raise WeightsError(f"{names.root} has {out} output channels; a BiT or hybrid has a multiple of 32.")
    return ResNetSizes(count_units(shapes, names.pattern), out / 64, channels, kernel)


def guess_backbone(shapes: Shapes, names: ResNetNames, patch_channels: int) -> ResNetSizes | None:
    """The backbone of a hybrid whose patch embedding takes `patch_channels` channels, or None for a plain ViT."""
    if names.root not in shapes:
        return None
    found = guess_resnet(shapes, names)
    if found.out != patch_channels:
        raise WeightsError(
            f"The backbone has {found.out} output channels, but the patch embedding takes {patch_channels}."
        )
    return found
