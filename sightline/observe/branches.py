"""The branches of every block, and its heads, rewritten: what attention, token mixing, MLP or convolutions are
about to add."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from sightline.adoption.attention import Interception
from sightline.adoption.transformer import ATTENTION_BRANCH, MLP_BRANCH, find_child
from sightline.models.mixer import MixerBlock
from sightline.models.vit import Block, ViT
from sightline.observe.model import ObservedModel
from sightline.observe.stream import Place

Change = Callable[[Tensor], Tensor]


def branches(s: ObservedModel) -> list[dict[str, Place]]:
    """By block: the modules that put out its branches, "attention" (a Mixer's: "mixing") and "mlp", or "convolution" in
    a residual unit."""
    if s.encoder_blocks:
        return [_of_block(b) for b in s.encoder_blocks]
    return [{"convolution": Place(p.path, _module(s, p.branch))} if p.branch else {} for p in s.block_outputs]


def _of_block(block: nn.Module) -> dict[str, Place]:
    found: dict[str, Any] = {"attention": find_child(block, ATTENTION_BRANCH), "mlp": find_child(block, MLP_BRANCH)}
    if isinstance(block, Block):
        found = {"attention": block.attn_branch, "mlp": block.mlp_branch}
    elif isinstance(block, MixerBlock):
        found = {"mixing": block.mix_branch, "mlp": block.mlp_branch}
    elif (tokens := find_child(block, ("mlp_tokens",))) is not None:  # timm's Mixer; (b, d, n), the patches last
        found = {"mixing": tokens, "mlp": find_child(block, ("mlp_channels",))}
    return {kind: Place(kind, module) for kind, module in found.items()}


def _module(s: ObservedModel, path: str) -> nn.Module:
    """The module behind a tap: our own taps pass on what they are given, an adopted model's only watch."""
    unit: Any = s.model.get_submodule(path.rpartition(".")[0])
    return unit.found.branch if hasattr(unit, "found") else s.model.get_submodule(path)


@contextmanager
def rewriting_heads(s: ObservedModel, block: nn.Module, change: Change) -> Iterator[None]:
    """What `change` makes of the outputs of a block's heads (b, h, n, d) takes their place."""
    with ExitStack() as stack:
        if isinstance(s.model, ViT):
            tap: nn.Module = block.attn.per_head  # type: ignore[assignment, union-attr]
            stack.callback(tap.register_forward_hook(lambda module, args, out: change(out)).remove)
        else:
            _rewrite_fused(stack, s, block, change)
        yield


def _rewrite_fused(stack: ExitStack, s: ObservedModel, block: nn.Module, change: Change) -> None:
    """In another library's model the result of the fused attention is what can be changed from outside."""
    running: list[bool] = []
    hits: list[bool] = []

    def fused(call: Any, *args: Any, **kwargs: Any) -> Tensor:
        out = call(*args, **kwargs)
        if not running:
            return out
        hits.append(True)
        return change(out)

    def check(module: nn.Module, args: Any, output: Any) -> None:
        if not hits:
            raise ValueError(f"{s.name} writes its attention out, so that a head cannot be switched off from outside.")

    stack.callback(block.register_forward_pre_hook(lambda *_: running.append(True)).remove)
    stack.callback(block.register_forward_hook(lambda *_: running.clear()).remove)
    stack.enter_context(Interception(fused))
    stack.callback(s.model.register_forward_hook(check).remove)
