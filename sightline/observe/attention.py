"""Attention probabilities of any model, unchanged: they are spelled out beside the fused kernel that never forms them.

While `attention_probs` is open, torch's scaled_dot_product_attention computes softmax(q k' scale + mask) as well as its
own result, and torchvision's shortcut past it is closed. A model that writes its softmax out is watched there. Which
block a call belongs to is known from the block that is running, not from the order of calls.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.observe.model import ObservedModel

Keep = Callable[[int, Tensor], Any]  # (block, probabilities (b, h, n, n)) -> what stays of them


@dataclass
class Taps:
    """The proof: how many attentions there should be, how many were seen, and how well they explain the results."""

    expected: int
    got: int = 0  # in the latest forward pass
    error: float = (
        0.0  # largest |probabilities x values - what the model computed| of its largest value, one image per call
    )
    eager: int = 0  # seen as a written-out softmax, where there is nothing to compare with

    @property
    def proof(self) -> str:
        """One line for the result."""
        if self.eager:
            return f"{self.expected} taps expected, {self.got} got, read off the model's own softmax"
        return f"{self.expected} taps expected, {self.got} got, error against the fused result {self.error:.1e}"


def spelled_out(
    q: Tensor, k: Tensor, mask: Tensor | None = None, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """softmax(q k' scale + mask) as torch defines it for scaled_dot_product_attention; fewer key heads are repeated."""
    if k.shape[-3] != q.shape[-3]:  # grouped queries
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    logits = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.mT
    if causal:
        logits = logits.masked_fill(~torch.ones_like(logits, dtype=torch.bool).tril(), -math.inf)
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask
    return logits.softmax(-1)


class AttentionTap:
    """The state of one open tap."""

    def __init__(self, taps: Taps, keep: Keep, *, through: bool, piece: int | None):
        self.taps, self.keep, self.through, self.piece = taps, keep, through, piece
        self.block: int | None = None
        self.seen: set[int] = set()
        self.batch = 0
        self.busy = False

    def tell(self, probs: Tensor) -> None:
        assert self.block is not None
        if self.block in self.seen:
            raise ValueError(f"Block {self.block} attends more than once: which of the two is meant is not known.")
        self.seen.add(self.block)
        self.taps.got = len(self.seen)
        self.keep(self.block, probs)

    def in_pieces(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, causal: bool, scale: float | None) -> Tensor:
        """A few images at a time, so that their probabilities stay in the cache; returns the model's own result."""
        assert self.block is not None
        step = max(1, (self.piece or 1) // (q.shape[1] * q.shape[2] * k.shape[2]))
        if self.block in self.seen:
            raise ValueError(f"Block {self.block} attends more than once: which of the two is meant is not known.")
        for start in range(0, len(q), step):
            probs = spelled_out(q[start : start + step], k[start : start + step], causal=causal, scale=scale)
            if start == 0:
                self.compare(probs[:1], v[:1], out[:1])
            self.keep(self.block, probs)
        self.seen.add(self.block)
        self.taps.got = len(self.seen)
        return out

    def compare(self, probs: Tensor, value: Tensor, out: Tensor) -> None:
        """Whether these are the probabilities that the model used."""
        if value.shape[-3] != probs.shape[-3]:
            value = value.repeat_interleave(probs.shape[-3] // value.shape[-3], dim=-3)
        off = (probs @ value - out).abs().max() / out.abs().max().clamp(min=1e-30)
        self.taps.error = max(self.taps.error, off.item())

    def fused(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """What stands in for scaled_dot_product_attention."""

        def stand_in(
            query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *more: Any, **named: Any
        ) -> Tensor:
            if self.block is None or self.busy:
                return original(query, key, value, attn_mask, *more, **named)
            causal = named.get("is_causal", more[1] if len(more) > 1 else False)
            scale = named.get("scale", more[2] if len(more) > 2 else None)
            self.busy = True
            try:
                if self.piece is not None and not self.through and attn_mask is None and query.ndim == 4:
                    whole = original(query, key, value, attn_mask, *more, **named)
                    return self.in_pieces(query, key, value, whole, causal, scale)
                probs = spelled_out(query, key, attn_mask, causal=causal, scale=scale)
                wide = value
                if value.shape[-3] != probs.shape[-3]:
                    wide = value.repeat_interleave(probs.shape[-3] // value.shape[-3], dim=-3)
                out = probs @ wide if self.through else original(query, key, value, attn_mask, *more, **named)
                self.compare(probs[:1], wide[:1], out[:1])
                self.tell(probs)
            finally:
                self.busy = False
            return out

        return stand_in

    def written(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """What stands in for softmax, where it is not called by a stand-in."""

        def stand_in(x: Tensor, *args: Any, **named: Any) -> Tensor:
            if self.block is None or self.busy:  # busy: one spelling of softmax calls another
                return original(x, *args, **named)
            self.busy = True
            try:
                out = original(x, *args, **named)
                if out.ndim >= 3 and out.shape[-1] == out.shape[-2]:
                    self.taps.eager += 1
                    self.tell(out if out.ndim == 4 else out.unflatten(0, (self.batch, -1)))
                return out
            finally:
                self.busy = False

        return stand_in


@contextmanager
def attention_probs(s: ObservedModel, keep: Keep, *, through: bool = False, piece: int | None = None) -> Iterator[Taps]:
    """Call `keep(block, probabilities)` for every encoder block that runs while this is open; nothing stays behind.

    `through=True` lets the model go on with probabilities x values, so that gradients reach the probabilities.
    `piece` calls `keep` several times per block, with about so many probabilities of consecutive images: for sums.
    A forward pass in which a block did not attend raises.
    """
    modules = s.attention_blocks
    if not modules:
        raise ValueError(f"{s.name} has no attention.")
    taps = Taps(expected=len(modules))
    tap = AttentionTap(taps, keep, through=through, piece=piece)
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        _replace(stack, F, "scaled_dot_product_attention", tap.fused)
        for owner in (F, torch, torch.Tensor):
            _replace(stack, owner, "softmax", tap.written)
        _mark(stack, s.model, modules, tap)
        yield taps


def _replace(stack: ExitStack, owner: Any, name: str, wrapped: Callable) -> None:
    own, before = name in vars(owner), getattr(owner, name)
    setattr(owner, name, wrapped(before))
    # a method that Tensor inherits is put back by removing ours
    stack.callback(setattr, owner, name, before) if own else stack.callback(delattr, owner, name)


def _mark(stack: ExitStack, model: nn.Module, modules: list[nn.Module], tap: AttentionTap) -> None:
    """Hooks that say which block runs, and that count after each pass."""

    def enter(number: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            first = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
            tap.block, tap.batch = number, len(first)

        return hook

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        tap.block = None

    def begin(module: nn.Module, args: Any) -> None:
        tap.seen = set()

    def end(module: nn.Module, args: Any, output: Any) -> None:
        if len(tap.seen) != len(modules):
            missing = [i for i in range(len(modules)) if i not in tap.seen]
            raise ValueError(
                f"Expected {len(modules)} attention taps, got {len(tap.seen)}: none in block {missing[0]}. "
                "The model computes its attention in a way that cannot be watched: compiled, or by a kernel of its own "
                "(xformers, flash-attn). Turn that off (timm: TIMM_FUSED_ATTN=0; transformers: "
                'attn_implementation="sdpa"; DINOv2: XFORMERS_DISABLED=1), or load its weights with sl.load.'
            )

    for number, module in enumerate(modules):
        stack.callback(module.register_forward_pre_hook(enter(number), with_kwargs=True).remove)
        stack.callback(module.register_forward_hook(leave).remove)
    stack.callback(model.register_forward_pre_hook(begin).remove)
    stack.callback(model.register_forward_hook(end).remove)
