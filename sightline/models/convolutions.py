"""What BiT and the hybrid's backbone share: standardized convolutions, GroupNorm with ReLU, stages."""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sightline.models.layers import lecun_normal_


class StdConv(nn.Conv2d):
    """Convolution without bias whose kernel has mean 0 and variance 1 per output channel (weight standardization).

    BiT adds epsilon to the variance, the hybrid's backbone adds it to the standard deviation.
    `same=True` pads like TensorFlow: asymmetrically for stride 2, one more row at the bottom and column on the right.
    """

    def __init__(
        self,
        channels: int,
        out: int,
        kernel: int,
        *,
        stride: int = 1,
        eps: float | None,  # None: plain kernel, for the ablation
        eps_on: Literal["variance", "deviation"] = "variance",
        same: bool = False,
    ):
        super().__init__(channels, out, kernel, stride=stride, padding=0 if same else kernel // 2, bias=False)
        self.eps, self.eps_on, self.same = eps, eps_on, same
        self._cached: tuple[Tensor, int, Tensor] | None = None  # a kernel, its version, its standardized form

    def kernel(self) -> Float[Tensor, "o i p q"]:
        """The standardized kernel; in evaluation without gradients computed once, until the kernel changes."""
        if torch.compiler.is_compiling() or self.training or torch.is_grad_enabled() or self.eps is None:
            return self.standardized()
        w = self.weight
        if w.is_meta or w.is_inference() or type(w.data) is not Tensor:
            return self.standardized()
        if self._cached is None or self._cached[0] is not w or self._cached[1] != w._version:
            self._cached = (w, w._version, self.standardized())
        return self._cached[2]

    def train(self, mode: bool = True) -> "StdConv":
        self._cached = None  # sharded training gathers new values into the same tensor
        return super().train(mode)

    def _apply(self, *args: Any, **how: Any) -> "StdConv":
        self._cached = None  # another device or type
        return super()._apply(*args, **how)

    def standardized(self) -> Float[Tensor, "o i p q"]:
        w = self.weight
        if self.eps is None:
            return w
        if self.eps_on == "deviation":
            var, mean = torch.var_mean(w, dim=(1, 2, 3), keepdim=True, correction=0)
            return (w - mean) / (var.sqrt() + self.eps)
        # batch_norm over one "batch" of output channels is the same formula in one fused pass
        return F.batch_norm(w.reshape(1, len(w), -1), None, None, training=True, eps=self.eps).view_as(w)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b o i j"]:
        if self.same:
            x = pad_same(x, self.kernel_size[0], self.stride[0])
        return F.conv2d(x, self.kernel(), None, self.stride, self.padding)


def pad_same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """TensorFlow's SAME padding: the output has ceil(size / stride) rows and columns."""
    y, x_ = (max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in x.shape[2:])
    if y == x_ == 0:
        return x
    return F.pad(x, (x_ // 2, x_ - x_ // 2, y // 2, y - y // 2), value=value)


class NormReLU(nn.Module):
    """Normalization and ReLU in one module, so that the recorded tensor is what the next layer gets."""

    def __init__(self, channels: int, *, eps: float, kind: Literal["group", "batch"] = "group", relu: bool = True):
        super().__init__()
        self.norm = nn.GroupNorm(32, channels, eps=eps) if kind == "group" else nn.BatchNorm2d(channels, eps=eps)
        self.relu = relu

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        x = self.norm(x)
        return F.relu(x, inplace=True) if self.relu else x


class Stage(nn.Module):
    """Residual units at one resolution. `recompute` trades time for memory in the backward pass."""

    def __init__(self, units: list[nn.Module]):
        super().__init__()
        self.units = nn.ModuleList(units)

    def forward(self, x: Tensor, recompute: bool = False) -> Tensor:
        for unit in self.units:
            x = checkpoint(unit, x, use_reentrant=False) if recompute else unit(x)
        return x


def stages(
    counts: tuple[int, ...], root: int, unit: Callable[[int, int, int], nn.Module], *, expansion: int = 4
) -> nn.ModuleList:
    """Stages of `unit(channels, mid, stride)`: widths double from stage to stage, the first unit of each but the first
    halves the resolution, and the output of a unit is `expansion` times as wide as its middle."""
    out, channels = nn.ModuleList(), root
    for s, count in enumerate(counts):
        mid = root * 2**s
        inputs = [channels] + [expansion * mid] * (count - 1)
        out.append(Stage([unit(c, mid, 2 if s and i == 0 else 1) for i, c in enumerate(inputs)]))
        channels = expansion * mid
    return out


def initialize(model: nn.Module, generator: torch.Generator) -> None:
    """Kernels LeCun normal (if standardized, their scale matters only to weight decay); norms: scale 1, bias 0."""
    for module in model.modules():
        match module:
            case StdConv():
                lecun_normal_(module.weight, generator)
            case nn.GroupNorm() | nn.BatchNorm2d():
                module.reset_parameters()
