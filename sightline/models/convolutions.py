"""What BiT and the hybrid's backbone share: standardized convolutions, GroupNorm with ReLU, stages."""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sightline.models.layers import lecun_normal_

# oneDNN's convolution with a kernel in its own layout, as torch.compile calls it; not part of torch's public interface
PACKS = all(hasattr(torch.ops.mkldnn, name) for name in ("_convolution_pointwise", "_reorder_convolution_weight"))


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
        # a kernel, its version, some of its values, its standardized form
        self._kept: tuple[Tensor, int, Tensor, Tensor] | None = None
        self._packed: tuple[Tensor, tuple[int, ...], Tensor] | None = None  # that form, a size, its layout for it

    def kernel(self) -> Float[Tensor, "o i p q"]:
        """The standardized kernel; in evaluation without gradients computed once, until the kernel changes.

        A change is a new version, or other values at 64 places: torch's fused optimizers, and writes through
        `weight.data`, do not count as versions.
        """
        if torch.compiler.is_compiling() or self.training or torch.is_grad_enabled() or self.eps is None:
            return self.standardized()
        w = self.weight
        if w.is_meta or w.is_inference() or type(w.data) is not Tensor:
            return self.standardized()
        some = w.detach().flatten()[:: max(1, w.numel() // 64)]
        kept = self._kept
        if kept is None or kept[0] is not w or kept[1] != w._version or not torch.equal(kept[2], some):
            kept, self._packed = (w, w._version, some.clone(), self.standardized()), None
            self._kept = kept
        return kept[3]

    def train(self, mode: bool = True) -> "StdConv":
        self._kept = self._packed = None  # sharded training gathers new values into the same tensor
        return super().train(mode)

    def _apply(self, *args: Any, **how: Any) -> "StdConv":
        self._kept = self._packed = None  # another device or type
        return super()._apply(*args, **how)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None, "_packed": None}  # a copy keeps its own

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
        w = self.kernel()
        if self.training or not only_infers(x):
            return F.conv2d(x, w, None, self.stride, self.padding)
        if self.kernel_size == (1, 1):  # a matrix product without the copies that torch's convolution makes
            x = x[:, :, :: self.stride[0], :: self.stride[1]]
            return torch.bmm(w.flatten(1).expand(len(x), -1, -1), x.flatten(2)).unflatten(2, x.shape[2:])
        if len(x) == 1 and PACKS and w.dtype == x.dtype == torch.float32 and self._kept is not None:
            how = (list(self.padding), list(self.stride), [1, 1], 1)
            packed = self._pack(x, w, how)
            return torch.ops.mkldnn._convolution_pointwise(x, packed, None, *how, "none", [], "")
        return F.conv2d(x, w, None, self.stride, self.padding)

    def _pack(self, x: Tensor, w: Tensor, how: tuple[Any, ...]) -> Tensor:
        """The kernel as oneDNN wants it for images of this size, which takes longer than a small convolution."""
        if self._packed is None or self._packed[0] is not w or self._packed[1] != x.shape:
            layout = torch.ops.mkldnn._reorder_convolution_weight(w, *how, list(x.shape))
            self._packed = (w, tuple(x.shape), layout)
        return self._packed[2]


def only_infers(x: Tensor) -> bool:
    """Whether this is a plain forward pass on a CPU: no gradients, no tracing, no reduced precision."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch.is_grad_enabled():
        return False
    return type(x) is Tensor and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def pool_max(x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c i j"]:
    """Maxima of windows of 3 x 3, every second row and column."""
    if not only_infers(x):
        return F.max_pool2d(x, 3, stride=2)
    rows = (x.shape[2] - 1) // 2 * 2  # the same maxima, rows first: torch's kernel looks at one window at a time
    columns = (x.shape[3] - 1) // 2 * 2
    y = torch.maximum(torch.maximum(x[:, :, :rows:2], x[:, :, 1 : rows + 1 : 2]), x[:, :, 2 : rows + 1 : 2])
    return torch.maximum(torch.maximum(y[..., :columns:2], y[..., 1 : columns + 1 : 2]), y[..., 2 : columns + 1 : 2])


def add_branch(skip: Tensor, branch: Tensor, *watched: nn.Module) -> Tensor:
    """Their sum, in the memory of the branch where nobody needs that: not autograd, and no hook on these modules."""
    if not only_infers(branch) or skip.shape != branch.shape or any(m._forward_hooks for m in watched):
        return skip + branch
    return branch.add_(skip)


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
