"""Attention probabilities of any model, recorded at the taps `attn.probs` of its blocks.

Our own models compute the softmax explicitly while it is recorded. An adopted model keeps its own attention: its calls
are intercepted in this thread, and the probabilities are computed in addition to the fused result.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sightline.observe.model import ObservedModel

Keep = Callable[[int, Tensor], Any]  # (block, probabilities (b, h, n, n)) -> what is kept


@dataclass
class Taps:
    """Evidence that all attention was recorded: taps expected, taps recorded, and the error of what they recorded."""

    expected: int
    got: int = 0  # in the latest forward pass
    error: float = 0.0  # of probabilities x values against the fused result, relative to its largest value
    route: str = "the model's own softmax"  # what was recorded; "the fused result" if there is one to compare with

    @property
    def proof(self) -> str:
        """One line for `Result.how`."""
        seen = f"{self.expected} taps expected, {self.got} got"
        if self.route == "the fused result":
            return f"{seen}, error against the fused result {self.error:.1e}"
        return f"{seen}, read off {self.route}"


@contextmanager
def attention_probs(s: ObservedModel, keep: Keep) -> Iterator[Taps]:
    """Call `keep(block, probabilities)` for every encoder block that runs while this is open; hooks are removed.

    Gradients reach the probabilities if enabled. A forward pass in which some block computed no attention raises.
    """
    modules = [s.model.get_submodule(p.path) for p in s.parts if p.kind == "probs"]
    if not modules:
        raise ValueError(f"{s.name} has no attention.")
    taps = Taps(expected=len(modules))
    seen: set[int] = set()

    def tap_hook(block: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, probs: Tensor) -> None:
            if block in seen:
                raise ValueError(
                    f"Block {block} computes attention more than once per pass: it is unclear which one to record."
                )
            seen.add(block)
            keep(block, probs)

        return hook

    with ExitStack() as stack:
        for block, module in enumerate(modules):
            stack.callback(module.register_forward_hook(tap_hook(block)).remove)
        stack.callback(s.model.register_forward_pre_hook(lambda module, args: seen.clear()).remove)
        stack.callback(s.model.register_forward_hook(lambda module, args, out: _check(taps, seen, module)).remove)
        yield taps


def _check(taps: Taps, seen: set[int], model: nn.Module) -> None:
    """After each pass: check that every block computed attention, and update the error."""
    taps.got = len(seen)
    feed: Any = getattr(model, "attention", None)
    if feed is not None and not feed.eager:
        taps.error, taps.route = max(taps.error, feed.error), "the fused result"
    if taps.got != taps.expected:
        missing = next(i for i in range(taps.expected) if i not in seen)
        raise ValueError(
            f"Expected {taps.expected} attention taps, got {taps.got}: none in block {missing}. "
            "The model computes its attention in a way that cannot be recorded: compiled, or by a kernel of its own "
            "(xformers, flash-attn). Turn that off (timm: TIMM_FUSED_ATTN=0; transformers: "
            'attn_implementation="sdpa"; DINOv2: XFORMERS_DISABLED=1), or load its weights with sl.load.'
        )
