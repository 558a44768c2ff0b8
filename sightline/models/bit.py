"""BiT (Kolesnikov et al. 2019): pre-activation ResNet with GroupNorm and weight standardization."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from sightline.models import checks, convolutions
from sightline.models.convolutions import NormReLU, StdConv, add_branch, pool_max, stages
from sightline.models.taps import Tap
from sightline.spec import Displayable, Features, ImageSpec

Stem = Literal["7x7/2+pool", "3x3/2", "3x3/1"]


@dataclass(frozen=True, kw_only=True)
class BiTConfig:
    """Everything that makes one BiT differ from another; the defaults are R50x1 of the paper.

    >>> BiTConfig(units=(3, 4, 6, 3)).stride
    32
    """

    units: tuple[int, ...] = (3, 4, 6, 3)  # residual units per stage
    unit: Literal["bottleneck", "basic"] = "bottleneck"  # "basic": two 3x3 convolutions, which suit small images
    width_factor: float = 1.0
    size: checks.Pair = 224
    channels: int = 3
    classes: int = 1000  # 0: features only
    stem: Stem = "7x7/2+pool"  # the 3x3 stems are for small images
    norm: Literal["group", "batch"] = "group"
    norm_eps: float = 1e-5
    standardize: bool = True
    standardize_eps: float = 1e-10  # on the variance; timm uses 1e-8
    head_bias: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checks.pair(self.size))
        object.__setattr__(self, "units", tuple(self.units))
        checks.choices(self)
        checks.counts(self, "units", "size", "channels")
        checks.counts(self, "classes", least=0)
        if not self.units:
            raise ValueError("BiTConfig.units needs at least one stage, such as (3, 4, 6, 3).")
        if 64 * self.width_factor % 32 or self.width_factor <= 0:
            raise ValueError(
                f"width_factor must be a multiple of 0.5 (32 groups of channels); got {self.width_factor}."
            )
        if min(checks.pair(self.size)) < self.stride:
            raise ValueError(f"Images of {self.size} are smaller than the stride {self.stride} of this model.")

    @property
    def stride(self) -> int:
        """Pixels per cell of the last feature map."""
        return {"7x7/2+pool": 4, "3x3/2": 2, "3x3/1": 1}[self.stem] * 2 ** (len(self.units) - 1)

    @property
    def width(self) -> int:
        """Channels of the last feature map."""
        return int(64 * self.width_factor) * self.expansion * 2 ** (len(self.units) - 1)

    @property
    def expansion(self) -> int:
        """Channels of a unit's output for each in its middle."""
        return 4 if self.unit == "bottleneck" else 1

    @property
    def image(self) -> ImageSpec:
        """The paper's preprocessing: both sides resized to size, values in [-1, 1]."""
        half = (0.5,) * self.channels
        return ImageSpec(size=checks.pair(self.size), mean=half, std=half, fit="squash", interpolation="bilinear")


class Unit(nn.Module):
    """Pre-activation bottleneck; the shortcut of a first unit starts after the first norm, the stride is in conv2.

    `skip` is the output of the shortcut, `branch` that of the convolutions, and `sum` their sum.
    """

    def __init__(self, c: BiTConfig, channels: int, mid: int, *, stride: int):
        super().__init__()
        eps = c.standardize_eps if c.standardize else None
        out = 4 * mid
        self.norm1 = NormReLU(channels, eps=c.norm_eps, kind=c.norm)
        self.conv1 = StdConv(channels, mid, 1, eps=eps)
        self.norm2 = NormReLU(mid, eps=c.norm_eps, kind=c.norm)
        self.conv2 = StdConv(mid, mid, 3, stride=stride, eps=eps)
        self.norm3 = NormReLU(mid, eps=c.norm_eps, kind=c.norm)
        self.conv3 = StdConv(mid, out, 1, eps=eps)
        self.shortcut = StdConv(channels, out, 1, stride=stride, eps=eps) if stride > 1 or channels != out else None
        self.skip, self.branch, self.sum = Tap(), Tap(), Tap()

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b o i j"]:
        y = self.norm1(x)
        skip = self.skip(x if self.shortcut is None else self.shortcut(y))
        y = self.conv3(self.norm3(self.conv2(self.norm2(self.conv1(y)))))
        return self.sum(add_branch(skip, self.branch(y), self.branch, self.conv3))


class BasicUnit(nn.Module):
    """Pre-activation unit of two 3x3 convolutions, the stride in the first; `skip`, `branch` and `sum` as in `Unit`."""

    def __init__(self, c: BiTConfig, channels: int, out: int, *, stride: int):
        super().__init__()
        eps = c.standardize_eps if c.standardize else None
        self.norm1 = NormReLU(channels, eps=c.norm_eps, kind=c.norm)
        self.conv1 = StdConv(channels, out, 3, stride=stride, eps=eps)
        self.norm2 = NormReLU(out, eps=c.norm_eps, kind=c.norm)
        self.conv2 = StdConv(out, out, 3, eps=eps)
        self.shortcut = StdConv(channels, out, 1, stride=stride, eps=eps) if stride > 1 or channels != out else None
        self.skip, self.branch, self.sum = Tap(), Tap(), Tap()

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b o i j"]:
        y = self.norm1(x)
        skip = self.skip(x if self.shortcut is None else self.shortcut(y))
        y = self.conv2(self.norm2(self.conv1(y)))
        return self.sum(add_branch(skip, self.branch(y), self.branch, self.conv2))


class Root(nn.Module):
    """First convolution. The pooling is padded with zeros, not minus infinity, as the released weights expect."""

    def __init__(self, c: BiTConfig):
        super().__init__()
        kernel, stride = (7, 2) if c.stem == "7x7/2+pool" else (3, int(c.stem[-1]))
        eps = c.standardize_eps if c.standardize else None
        self.conv = StdConv(c.channels, int(64 * c.width_factor), kernel, stride=stride, eps=eps)
        self.pooled = c.stem == "7x7/2+pool"
        self.padding = 0.0  # export changes it: see sightline/weights/exporting.py

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b o i j"]:
        x = self.conv(x)
        return pool_max(F.pad(x, (1, 1, 1, 1), value=self.padding)) if self.pooled else x


class BiT(nn.Module, Displayable):
    """BiT ResNet: `model(pixels)` gives logits, `model.features(pixels)` the last feature map as tokens.

    Takes images of any size; `config.size` is the intended one. Kernels are initialized LeCun normal, norms to 1 and
    0, the head to zero with bias `head_bias`.

    >>> import torch
    >>> sl.build("bit-nano", classes=10).features(torch.zeros(2, 3, 32, 32)).grid
    (4, 4)
    """

    def __init__(self, config: BiTConfig):
        super().__init__()
        c = self.config = config
        self.image = c.image
        self.checkpointing = False  # trade time for memory: recompute each unit in the backward pass
        self.root = Root(c)
        kind = Unit if c.unit == "bottleneck" else BasicUnit
        root = int(64 * c.width_factor)
        self.stages = stages(
            c.units, root, lambda i, mid, stride: kind(c, i, mid, stride=stride), expansion=c.expansion
        )
        self.norm = NormReLU(c.width, eps=c.norm_eps, kind=c.norm)
        self.pooled = Tap()
        self.head = nn.Linear(c.width, c.classes) if c.classes else nn.Identity()

    def forward(self, x: Tensor) -> Float[Tensor, "b k"]:
        return self.head(self.pooled(self.encode(x).mean((2, 3))))

    def features(self, x: Tensor) -> Features:
        """The last feature map after norm and ReLU, one token per location, and its mean."""
        y = self.encode(x)
        tokens = y.flatten(2).mT
        return Features(
            tokens=tokens, grid=(y.shape[2], y.shape[3]), prefix=tokens[:, :0], pooled=self.pooled(y.mean((2, 3)))
        )

    def encode(self, x: Tensor) -> Float[Tensor, "b d i j"]:
        """Pixels to the last feature map, normalized."""
        checks.pixels(x, channels=self.config.channels, model=self)
        if min(x.shape[2:]) < self.config.stride:
            raise ValueError(
                f"This model takes images of at least {self.config.stride} x {self.config.stride}; "
                f"got {x.shape[2]} x {x.shape[3]}."
            )
        x = self.root(x)
        for stage in self.stages:
            x = stage(x, self.checkpointing and self.training)
        return self.norm(x)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Initialize every parameter from one random generator."""
        convolutions.initialize(self, generator)
        if isinstance(self.head, nn.Linear):
            nn.init.zeros_(self.head.weight)
            nn.init.constant_(self.head.bias, self.config.head_bias)
