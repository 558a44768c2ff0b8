"""A register added at test time: an empty token that takes over what a few neurons give to single patches.

After Jiang et al. 2025. A few neurons of the MLPs make the tokens of very large norm that ViTs grow in dull patches. At
test time a token of zeros is appended to the sequence; in these neurons it gets the largest activation of any token,
and the patches get 0. No weight changes, and the token leaves the sequence after the last block.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sightline.adoption.transformer import HIDDEN, find_child, is_gated
from sightline.models.vit import Block
from sightline.observe.model import ObservedModel, evaluation_mode
from sightline.observe.stream import Place, replace_first, rewriting

Neurons = Sequence[tuple[int, int]]  # block and number of each


def hidden_layer(block: nn.Module) -> nn.Module | None:
    """The module whose output is the activation of a block's MLP neurons."""
    if isinstance(block, Block):
        return block.mlp.hidden
    mlp = find_child(block, ("mlp",))
    return None if mlp is None or is_gated(mlp) else find_child(mlp, HIDDEN)


def check_register(s: ObservedModel, neurons: Neurons, text: str) -> None:
    """Refuse a model to which no token can be added, and neurons that it does not have."""
    c: Any = getattr(s.model, "encoder_config", None)
    if c is not None and c.position_at != "stem":
        raise ValueError(f"{s.name} adds positions in every block: a token without position cannot be added.")
    if any(hidden_layer(b) is None for b in s.attention_blocks):
        raise ValueError(f"{s.name} has MLPs whose neurons cannot be seen: a register cannot be added.")
    wide = hidden_width(s)
    if any(neuron >= wide for _, neuron in neurons):
        raise ValueError(f"{s.name} has neurons 0 to {wide - 1} in each block; got {text!r}.")
    try:
        with evaluation_mode(s), adding_register(s, neurons):
            s.model(s.blank())
    except RuntimeError as error:  # a bias for every pair of tokens, which has no row for another one
        raise ValueError(f"{s.name} does not take one more token: a register cannot be added.") from error


def hidden_width(s: ObservedModel) -> int:
    """Neurons of an MLP."""
    mlp: Any = find_child(s.attention_blocks[0], ("mlp",))
    return next(m.out_features for m in mlp.modules() if isinstance(m, nn.Linear))


@contextmanager
def adding_register(s: ObservedModel, neurons: Neurons) -> Iterator[None]:
    """The model with one more token, the last of the sequence, that holds what these neurons do."""
    blocks, tokens = s.attention_blocks, s.prefix + s.grid[0] * s.grid[1]
    by_block: dict[int, list[int]] = {}
    for block, neuron in neurons:
        by_block.setdefault(block, []).append(neuron)
    with ExitStack() as stack:
        stack.callback(blocks[0].register_forward_pre_hook(_append, with_kwargs=True).remove)
        for number, own in by_block.items():
            layer = hidden_layer(blocks[number])
            assert layer is not None
            stack.callback(layer.register_forward_hook(_shift(own, s.prefix)).remove)
        stack.enter_context(rewriting(Place("", blocks[-1]), lambda x: x[:, :tokens]))
        yield


def _append(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """A token of zeros at the end of what enters the first block."""
    tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
    if len(tensors) > 1:  # rotary positions or a mask, which know nothing of another token
        raise ValueError("Its blocks take more than tokens (rotary positions or a mask): a register cannot be added.")
    x = tensors[0]
    return replace_first(args, kwargs, torch.cat([x, x.new_zeros(len(x), 1, x.shape[2])], dim=1))


def _shift(neurons: list[int], prefix: int) -> Callable[..., Tensor]:
    """The largest activation of any token to the register, 0 to the patches; prefix tokens keep theirs."""

    def hook(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        out = out.clone()
        most = out[..., neurons].amax(1)
        out[:, prefix:-1, neurons] = 0
        out[:, -1, neurons] = most
        return out

    return hook
