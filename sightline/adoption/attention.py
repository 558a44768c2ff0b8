"""Attention of a live model as it is computed: calls of torch's attention and softmax, intercepted in one thread.

A TorchFunctionMode sees the calls of the thread that entered it, and no others; nothing is replaced. While it is open,
`nn.MultiheadAttention` does not take its native fast path, because torch knows that someone is watching.
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

# torch's own function in Python, without its question whether someone intercepts it: within, sdpa is intercepted
_MHA = types.FunctionType(
    F.multi_head_attention_forward.__code__,
    {**F.multi_head_attention_forward.__globals__, "has_torch_function": lambda tensors: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)


def spelled_out(
    q: Tensor, k: Tensor, mask: Tensor | None = None, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """softmax(q k' scale + mask) as torch defines it for scaled_dot_product_attention; fewer key heads are repeated."""
    k = repeat_heads(k, q)
    logits = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.mT
    if causal:
        logits = logits.masked_fill(~torch.ones_like(logits, dtype=torch.bool).tril(), -math.inf)
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask
    return logits.softmax(-1)


def repeat_heads(k: Tensor, q: Tensor) -> Tensor:
    """Keys or values of grouped queries, one per head."""
    return k if k.shape[-3] == q.shape[-3] else k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)


class Interception(TorchFunctionMode):
    """Gives calls of one thread to handlers: `fused(call, *args)` and `eager(call, *args)` answer in torch's place."""

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
            with self:  # the mode is off within a handler
                return _MHA(*args, **kwargs)
        if self.softmax is not None and func in SOFTMAX:
            return self.softmax(func, *args, **kwargs)
        if self.product is not None and func in PRODUCT:
            return self.product(func, *args, **kwargs)
        return func(*args, **kwargs)


class AttentionFeed:
    """The attention of one block at a time, handed to whoever watches the block's taps.

    `feed(block, name, tensor)` gets q, k, v, probs and per_head; probabilities are formed only for blocks that want
    them. Of an attention that the model writes out, q and k are not known apart from scale and bias: it gives the rest.
    """

    def __init__(self, feed: Callable[[int, str, Tensor], Any], wants_probs: Callable[[int], bool]):
        self.feed, self.wants_probs = feed, wants_probs
        self.block: int | None = None
        self.batch = 0
        self.probs: Tensor | None = None  # of the written-out softmax, until it is multiplied with the values
        self.seen: set[int] = set()
        self.error = 0.0  # largest |probs @ v - result| of the largest value, one image per call
        self.eager = 0  # attentions that the model wrote out itself: there is nothing to compare with

    def enter(self, block: int, tokens: Tensor) -> None:
        """This block begins to run."""
        self.block, self.batch, self.probs = block, len(tokens), None

    def leave(self) -> None:
        self.block = self.probs = None

    def mode(self) -> Interception:
        """To be open while the model runs."""
        return Interception(self.fused, self.softmax, self.product)

    def fused(self, call: Any, query: Tensor, key: Tensor, value: Tensor, *more: Any, **named: Any) -> Tensor:
        """What stands in for scaled_dot_product_attention: the fused result, and the probabilities beside it.

        Where gradients are wanted the model continues with probabilities x values, so that they reach these.
        """
        if self.block is None:
            return call(query, key, value, *more, **named)
        mask = named.get("attn_mask", more[0] if more else None)
        causal = named.get("is_causal", more[2] if len(more) > 2 else False)
        scale = named.get("scale", more[3] if len(more) > 3 else None)
        wide = repeat_heads(value, query)
        found = {"q": query, "k": repeat_heads(key, query), "v": wide}
        if self.wants_probs(self.block):
            found["probs"] = probs = spelled_out(query, key, mask, causal=causal, scale=scale)
            out = probs @ wide if probs.requires_grad else call(query, key, value, *more, **named)
            self.compare(probs[:1], wide[:1], out[:1])
        else:
            out = call(query, key, value, *more, **named)
        self.tell(**found, per_head=out)
        return out

    def compare(self, probs: Tensor, value: Tensor, out: Tensor) -> None:
        """Whether these are the probabilities that the model used."""
        off = (probs @ value - out).abs().max() / out.abs().max().clamp(min=1e-30)
        self.error = max(self.error, off.item())

    def softmax(self, call: Any, x: Tensor, *args: Any, **named: Any) -> Tensor:
        """A softmax over a square is attention that the model writes out."""
        out = call(x, *args, **named)
        if self.block is not None and out.ndim >= 3 and out.shape[-1] == out.shape[-2]:
            self.eager += 1
            self.probs = out
            self.tell(probs=self.by_head(out))
        return out

    def product(self, call: Any, a: Tensor, b: Tensor, *args: Any, **named: Any) -> Tensor:
        """The product that follows a written-out softmax: probabilities x values."""
        out = call(a, b, *args, **named)
        if self.block is not None and self.probs is not None and a.shape == self.probs.shape:
            self.probs = None
            for name, value in (("v", b), ("per_head", out)):
                self.feed(self.block, name, self.by_head(value))
        return out

    def by_head(self, x: Tensor) -> Tensor:
        """(b, h, ...), where heads and batch may be one dimension."""
        return x if x.ndim == 4 else x.unflatten(0, (self.batch, -1))

    def tell(self, **tensors: Tensor) -> None:
        assert self.block is not None
        if self.block in self.seen:
            raise ValueError(f"Block {self.block} attends more than once: which of the two is meant is not known.")
        self.seen.add(self.block)
        for name, tensor in tensors.items():
            self.feed(self.block, name, tensor)
