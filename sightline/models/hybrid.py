"""The hybrid (ViT, section 3.1): a ViT whose patches come from the feature map of a ResNet."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from sightline.models import checks, convolutions
from sightline.models.convolutions import NormReLU, StdConv, add_branch, pad_same, pool_max, stages
from sightline.models.taps import Tap
from sightline.models.vit import ViT, ViTConfig
from sightline.spec import ImageSpec


@dataclass(frozen=True, kw_only=True)
class HybridConfig:
    """A backbone and the encoder on top. `vit` is in units of input pixels: its patch is the total stride.

    Option (i) of the paper keeps stage 4 (`units=(3, 4, 6, 3)`, stride 32); option (ii) moves its units into stage 3
    (`units=(3, 4, 9)`, stride 16), which gives four times the tokens.

    >>> vit = ViTConfig(width=768, depth=12, heads=12, mlp_width=3072, patch=16)
    >>> HybridConfig(units=(3, 4, 9), vit=vit).grid
    (14, 14)
    """

    vit: ViTConfig
    units: tuple[int, ...] = (3, 4, 6, 3)  # () is the stem alone
    unit: Literal["bottleneck", "basic"] = "bottleneck"  # "basic": two 3x3 convolutions, which suit small images
    # the others are for small images: two convolutions (Xiao et al. 2021), or one that leaves more to the units
    stem: Literal["7x7/2+pool", "3x3/2+3x3/2", "3x3/2"] = "7x7/2+pool"
    width_factor: float = 1.0
    norm_eps: float = 1e-6
    standardize_eps: float = 1e-5
    standardize_eps_on: Literal["variance", "deviation"] = "deviation"  # timm: 1e-8 on the variance

    def __post_init__(self) -> None:
        object.__setattr__(self, "units", tuple(self.units))
        checks.choices(self)
        checks.counts(self, "units")
        if 64 * self.width_factor % 32 or self.width_factor <= 0:
            raise ValueError(
                f"width_factor must be a multiple of 0.5 (32 groups of channels); got {self.width_factor}."
            )
        if any(p % self.backbone_stride for p in checks.pair(self.vit.patch)):
            raise ValueError(
                f"The backbone reduces by {self.backbone_stride}, so the hybrid's patch is a multiple of that; "
                f"got {self.vit.patch}."
            )

    @property
    def backbone_stride(self) -> int:
        """Pixels per cell of the backbone's map: the stem reduces by 4 or 2, each stage after the first by 2."""
        return (2 if self.stem == "3x3/2" else 4) * 2 ** max(len(self.units) - 1, 0)

    @property
    def backbone_width(self) -> int:
        """Channels of the backbone's map."""
        root = int(64 * self.width_factor)
        return root * self.expansion * 2 ** (len(self.units) - 1) if self.units else root

    @property
    def expansion(self) -> int:
        """Channels of a unit's output for each in its middle."""
        return 4 if self.unit == "bottleneck" else 1

    @property
    def encoder(self) -> ViTConfig:
        """The encoder's configuration, with sizes in cells of the backbone's map instead of pixels."""
        s = self.backbone_stride
        (y, x), (p, q) = checks.pair(self.vit.size), checks.pair(self.vit.patch)
        return replace(self.vit, size=(y // s, x // s), patch=(p // s, q // s), channels=self.backbone_width)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tokens."""
        return self.vit.grid

    @property
    def prefix(self) -> int:
        """Number of tokens before the patches."""
        return self.vit.prefix

    @property
    def size(self) -> checks.Pair:
        """Height and width of the images."""
        return self.vit.size

    @property
    def channels(self) -> int:
        """Channels of the images."""
        return self.vit.channels

    @property
    def classes(self) -> int:
        """Number of classes; 0 means features only."""
        return self.vit.classes

    @property
    def image(self) -> ImageSpec:
        """The preprocessing of the paper's code."""
        return self.vit.image


class Unit(nn.Module):
    """Post-activation bottleneck: a norm after every convolution, ReLU after the sum."""

    def __init__(self, c: HybridConfig, channels: int, mid: int, *, stride: int):
        super().__init__()
        out = 4 * mid
        self.conv1, self.norm1 = conv(c, channels, mid, 1), NormReLU(mid, eps=c.norm_eps)
        self.conv2, self.norm2 = conv(c, mid, mid, 3, stride), NormReLU(mid, eps=c.norm_eps)
        self.conv3, self.norm3 = conv(c, mid, out, 1), NormReLU(out, eps=c.norm_eps, relu=False)
        self.shortcut, self.shortcut_norm = None, None
        if stride > 1 or channels != out:
            self.shortcut, self.shortcut_norm = (
                conv(c, channels, out, 1, stride),
                NormReLU(out, eps=c.norm_eps, relu=False),
            )
        self.skip, self.branch, self.sum = Tap(), Tap(), Tap()

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b o i j"]:
        skip = self.skip(x if self.shortcut is None else self.shortcut_norm(self.shortcut(x)))  # type: ignore[misc]
        y = self.norm2(self.conv2(self.norm1(self.conv1(x))))
        y = self.branch(self.norm3(self.conv3(y)))
        return F.relu(self.sum(add_branch(skip, y, self.branch, self.norm3, self.norm3.norm)))


class BasicBlock(nn.Module):
    """Post-activation unit of two 3x3 convolutions, the stride in the first; taps as in `Unit`."""

    def __init__(self, c: HybridConfig, channels: int, out: int, *, stride: int):
        super().__init__()
        self.conv1, self.norm1 = conv(c, channels, out, 3, stride), NormReLU(out, eps=c.norm_eps)
        self.conv2, self.norm2 = conv(c, out, out, 3), NormReLU(out, eps=c.norm_eps, relu=False)
        self.shortcut, self.shortcut_norm = None, None
        if stride > 1 or channels != out:
            self.shortcut = conv(c, channels, out, 1, stride)
            self.shortcut_norm = NormReLU(out, eps=c.norm_eps, relu=False)
        self.skip, self.branch, self.sum = Tap(), Tap(), Tap()

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b o i j"]:
        skip = self.skip(x if self.shortcut is None else self.shortcut_norm(self.shortcut(x)))  # type: ignore[misc]
        y = self.branch(self.norm2(self.conv2(self.norm1(self.conv1(x)))))
        return F.relu(self.sum(add_branch(skip, y, self.branch, self.norm2, self.norm2.norm)))


def conv(c: HybridConfig, channels: int, out: int, kernel: int, stride: int = 1) -> StdConv:
    return StdConv(channels, out, kernel, stride=stride, eps=c.standardize_eps, eps_on=c.standardize_eps_on, same=True)


class Backbone(nn.Module):
    """ResNet v1 with GroupNorm and standardized kernels; convolutions and pool padded as TensorFlow's SAME."""

    def __init__(self, c: HybridConfig):
        super().__init__()
        channels = int(64 * c.width_factor)
        self.stem = c.stem
        self.root = conv(c, c.channels, channels, 7 if self.stem == "7x7/2+pool" else 3, 2)
        self.root_norm = NormReLU(channels, eps=c.norm_eps)
        if self.stem == "3x3/2+3x3/2":
            self.second, self.second_norm = conv(c, channels, channels, 3, 2), NormReLU(channels, eps=c.norm_eps)
        kind = Unit if c.unit == "bottleneck" else BasicBlock
        self.stages = stages(
            c.units, channels, lambda i, mid, stride: kind(c, i, mid, stride=stride), expansion=c.expansion
        )

    def forward(self, x: Float[Tensor, "b c y x"], recompute: bool = False) -> Float[Tensor, "b d i j"]:
        x = self.root_norm(self.root(x))
        if self.stem == "7x7/2+pool":
            x = pool_max(pad_same(x, 3, 2, value=float("-inf")))
        elif self.stem == "3x3/2+3x3/2":
            x = self.second_norm(self.second(x))
        for stage in self.stages:
            x = stage(x, recompute)
        return x


class Hybrid(ViT):
    """ViT on the feature map of a ResNet: the same paths as ViT, with `backbone` in front.

    Initialized like ViT; backbone kernels are LeCun normal, and the last norm of each unit has scale zero, so that
    every unit starts out as its shortcut.

    >>> import torch
    >>> sl.build("r8-vit-nano4", classes=10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    config: HybridConfig  # type: ignore[assignment]

    def __init__(self, config: HybridConfig):
        super().__init__(config.encoder)
        self.config = config
        self.image = config.image
        self.backbone = Backbone(config)

    def stem(self, x: Tensor) -> Float[Tensor, "b n d"]:
        self.check(x, self.config.channels, checks.pair(self.config.size))
        return self.embed(self.backbone(x, self.checkpointing and self.training))

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        super().initialize(generator)
        convolutions.initialize(self.backbone, generator)
        for module in self.backbone.modules():
            if isinstance(module, Unit | BasicBlock):
                last = module.norm3 if isinstance(module, Unit) else module.norm2
                nn.init.zeros_(last.norm.weight)
