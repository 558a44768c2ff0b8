"""The cost of a model: parameters, multiply-accumulates, and the memory of its activations."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from sightline.models import checks
from sightline.models.construct import build, change
from sightline.models.variants import Config, config
from sightline.models.vit import ViT, ViTConfig

# torch counts every fused attention kernel except the CPU's
FUSED_ON_CPU = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)
}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of one image through a model; bytes are for float32 unless the model has another dtype.

    >>> sl.cost("vit-b16").parameters
    86567656
    """

    size: tuple[int, int]
    tokens: int | None  # sequence length, if there is one
    parameters: int
    macs: int  # multiply-accumulates of a forward pass, attention products included
    attention_macs: int  # of these, the products of queries with keys and of weights with values
    activation_bytes: int  # kept for the backward pass
    parameter_bytes: int

    @property
    def gmacs(self) -> float:
        """Multiply-accumulates in units of 10^9."""
        return self.macs / 1e9


def cost(model: str | Config | nn.Module, size: checks.Pair | None = None) -> Cost:
    """Parameters, multiply-accumulates and activation memory for one image, without running or allocating anything.

    Takes a name, a configuration or any module that takes (b, c, y, x). Multiply-accumulates come from torch's own
    counter; activations are the tensors that autograd would save. The model itself is not changed.

    >>> round(sl.cost("vit-b16", size=384).gmacs, 2)
    55.48
    """
    model = _meta_copy(model, size)
    settings: Any = getattr(model, "config", None)
    y, x = checks.pair(size if size is not None else _native_size(model))
    channels = getattr(settings, "channels", 3)
    parameters = list(model.parameters())
    dtype = next((p.dtype for p in parameters), torch.float32)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
        weights = {
            name: torch.empty_strided(w.shape, w.stride(), dtype=w.dtype).requires_grad_(w.requires_grad)
            for name, w in [*model.named_parameters(), *model.named_buffers()]
        }
        saved = SavedForBackward(weights.values())
        image = torch.empty(1, channels, y, x, dtype=dtype)
        with (
            FlopCounterMode(display=False, custom_mapping=FUSED_ON_CPU) as counter,
            saved_tensors_hooks(saved.pack, saved.unpack),
        ):
            functional_call(_AllTokens(model), {f"model.{k}": v for k, v in weights.items()}, (image,))
    encoder: ViTConfig | None = getattr(model, "encoder_config", None)
    return Cost(
        size=(y, x),
        tokens=getattr(encoder or settings, "tokens", None),
        parameters=sum(p.numel() for p in parameters),
        macs=counter.get_total_flops() // 2,
        attention_macs=_attention_macs(encoder) if encoder is not None else 0,
        activation_bytes=saved.bytes,
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
    )


def attention_growth(what: str | Config, patches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)) -> list[dict[str, Any]]:
    """How the cost of attention grows as patches shrink to single pixels: with the square of the number of tokens.

    `matrix_bytes` is the size of one block's attention weights for one image, if they are stored (float32).

    >>> pixels, patches = sl.models.attention_growth("vit-b16", patches=(1, 16))
    >>> pixels["patches"], patches["patches"], round(pixels["attention_macs"] / patches["attention_macs"])
    (50176, 196, 64875)
    """
    rows = []
    for patch in patches:
        c = config(what) if isinstance(what, str) else what
        if not isinstance(c, ViTConfig):
            raise ValueError(f"attention_growth takes a plain ViT; got a {type(c).__name__}.")
        c = replace(c, patch=patch)
        rows.append(
            {
                "patch": patch,
                "patches": c.grid[0] * c.grid[1],
                "tokens": c.tokens,
                "attention_macs": _attention_macs(c),
                "macs": _attention_macs(c) + c.layers * c.tokens * c.width * (4 * c.width + 2 * c.mlp_width),
                "matrix_bytes": 4 * c.heads * c.tokens**2,
            }
        )
    return rows


def _attention_macs(c: ViTConfig) -> int:
    """Multiply-accumulates of queries with keys and of attention weights with values."""
    pairs = sum(c.tokens**2 if lines is None else lines.products() for lines in c.lines)
    return 2 * c.depth * pairs * c.width


class _AllTokens(nn.Module):
    """Computes every token in every block, as the published tables count; the forward pass may skip some."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(self.model, ViT):
            return self.model(x)
        return self.model.head(self.model.represent(self.model.encode(x)))


class SavedForBackward:
    """Counts the bytes that autograd saves, each storage once and without the weights, and the largest storage."""

    def __init__(self, weights: Any):
        self.seen = {w.untyped_storage()._cdata for w in weights}
        self.bytes = self.largest = 0

    def pack(self, tensor: Tensor) -> torch.UntypedStorage:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.seen:
            self.seen.add(storage._cdata)
            self.bytes += storage.nbytes()
            self.largest = max(self.largest, storage.nbytes())
        return storage  # held, so that no address recurs; a node that held its own output would never be freed

    def unpack(self, storage: torch.UntypedStorage) -> Tensor:
        raise AssertionError("Only forward passes are counted.")


def _meta_copy(model: str | Config | nn.Module, size: checks.Pair | None) -> nn.Module:
    """The model on the meta device; one of our own is rebuilt if its size differs."""
    changes: dict[str, Any] = {} if size is None else {"size": size}
    if not isinstance(model, nn.Module):
        return build(model, device="meta", **changes)
    settings = getattr(model, "config", None)
    if size is None or not hasattr(model, "initialize") or settings is None:
        return model
    return build(change(settings, **changes), device="meta").to(next(model.parameters()).dtype)


def _native_size(model: nn.Module) -> checks.Pair:
    image = getattr(model, "image", None)
    if image is None:
        raise ValueError(f"A {type(model).__name__} does not say its image size: give one, cost(model, size=224).")
    return image.size
