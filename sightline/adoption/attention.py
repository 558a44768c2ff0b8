"""Observe the attention of a live model by intercepting its calls of torch's attention and softmax, in one thread.

A TorchFunctionMode sees only the calls of the thread that entered it; nothing is replaced. While it is active,
`nn.MultiheadAttention` does not take its native fast path, because torch knows that calls are intercepted.
"""

import math
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

SOFTMAX = (F.softmax, torch.softmax, torch.Tensor.softmax)
PRODUCT = (torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.bmm, torch.Tensor.__matmul__)

# torch's own Python implementation without its check for interception, so that sdpa inside it is intercepted
_MHA = types.FunctionType(
    F.multi_head_attention_forward.__code__,
    {**F.multi_head_attention_forward.__globals__, "has_torch_function": lambda tensors: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)


def explicit_attention(
    q: Tensor, k: Tensor, mask: Tensor | None = None, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """softmax(q k' scale + mask) as in torch's scaled_dot_product_attention, with grouped key heads repeated."""
    k = repeat_heads(k, q)
    logits = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.mT
    if causal:
        logits = logits.masked_fill(~torch.ones_like(logits, dtype=torch.bool).tril(), -math.inf)
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask
    return logits.softmax(-1)


def repeat_heads(k: Tensor, q: Tensor) -> Tensor:
    """Keys or values of grouped-query attention, repeated to one per query head."""
    return k if k.shape[-3] == q.shape[-3] else k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)


class Interception(TorchFunctionMode):
    """Passes torch's attention calls of one thread to handlers `fused(call, *args)` etc., which return the result."""

    def __init__(
        self,
        fused: Callable[..., Tensor],
        softmax: Callable[..., Tensor] | None = None,
        product: Callable[..., Tensor] | None = None,
    ):
        super().__init__()
        self.fused, self.softmax, self.product = fused, softmax, product

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self.fused(func, *args, **kwargs)
        if func is F.multi_head_attention_forward:
            with self:  # the mode is inactive inside a handler
                return _MHA(*args, **kwargs)
        if self.softmax is not None and func in SOFTMAX:
            return self.softmax(func, *args, **kwargs)
        if self.product is not None and func in PRODUCT:
            return self.product(func, *args, **kwargs)
        return func(*args, **kwargs)


class AttentionFeed:
    """Passes the attention tensors of each block to the block's taps.

    `feed(block, name, tensor)` is called for q, k, v, probs and per_head; probabilities are computed only where
    `wants_probs(block)`. If the model computes its softmax explicitly, q and k cannot be separated from scale and bias:
    then only v, probs and per_head are passed.
    """

    def __init__(self, feed: Callable[[int, str, Tensor], Any], wants_probs: Callable[[int], bool]):
        self.feed, self.wants_probs = feed, wants_probs
        self.block: int | None = None
        self.batch = 0
        self.probs: Tensor | None = None  # of an explicit softmax, until they are multiplied by the values
        self.seen: set[int] = set()
        self.error = 0.0  # largest |probs @ v - result| relative to the largest value, from one image per call
        self.eager = 0  # explicit softmaxes seen: for these there is no fused result to compare with

    def enter(self, block: int, tokens: Tensor) -> None:
        """Called when this block starts to run."""
        self.block, self.batch, self.probs = block, len(tokens), None

    def leave(self) -> None:
        self.block = self.probs = None

    def mode(self) -> Interception:
        """The interception to activate while the model runs."""
        return Interception(self.fused, self.softmax, self.product)

    def fused(self, call: Any, query: Tensor, key: Tensor, value: Tensor, *more: Any, **named: Any) -> Tensor:
        """Replaces scaled_dot_product_attention: the fused result, with the probabilities computed separately.

        If gradients are needed, the model continues with probabilities x values, so that gradients reach them.
        """
        if self.block is None:
            return call(query, key, value, *more, **named)
        mask = named.get("attn_mask", more[0] if more else None)
        causal = named.get("is_causal", more[2] if len(more) > 2 else False)
        scale = named.get("scale", more[3] if len(more) > 3 else None)
        wide = repeat_heads(value, query)
        found = {"q": query, "k": repeat_heads(key, query), "v": wide}
        if self.wants_probs(self.block):
            found["probs"] = probs = explicit_attention(query, key, mask, causal=causal, scale=scale)
            out = probs @ wide if probs.requires_grad else call(query, key, value, *more, **named)
            self.compare(probs[:1], wide[:1], out[:1])
        else:
            out = call(query, key, value, *more, **named)
        self.emit(**found, per_head=out)
        return out

    def compare(self, probs: Tensor, value: Tensor, out: Tensor) -> None:
        """Update `error`: how far the probabilities are from those that the model used."""
        off = (probs @ value - out).abs().max() / out.abs().max().clamp(min=1e-30)
        self.error = max(self.error, off.item())

    def softmax(self, call: Any, x: Tensor, *args: Any, **named: Any) -> Tensor:
        """A softmax over a square matrix is attention that the model computes explicitly."""
        out = call(x, *args, **named)
        if self.block is not None and out.ndim >= 3 and out.shape[-1] == out.shape[-2]:
            self.eager += 1
            self.probs = out
            self.emit(probs=self.by_head(out))
        return out

    def product(self, call: Any, a: Tensor, b: Tensor, *args: Any, **named: Any) -> Tensor:
        """The product that follows an explicit softmax: probabilities x values."""
        out = call(a, b, *args, **named)
        if self.block is not None and self.probs is not None and a.shape == self.probs.shape:
            self.probs = None
            for name, value in (("v", b), ("per_head", out)):
                self.feed(self.block, name, self.by_head(value))
        return out

    def by_head(self, x: Tensor) -> Tensor:
        """(b, h, ...), also if batch and heads are merged into one dimension."""
        return x if x.ndim == 4 else x.unflatten(0, (self.batch, -1))

    def emit(self, **tensors: Tensor) -> None:
        assert self.block is not None
        if self.block in self.seen:
            raise ValueError(
                f"Block {self.block} computes attention more than once per pass: it is unclear which one to record."
            )
        self.seen.add(self.block)
        for name, tensor in tensors.items():
            self.feed(self.block, name, tensor)
