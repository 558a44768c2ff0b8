"""Parts of a model switched off for a while, "block 3", "skip 3", "head 3.1", "token 17", or a register added to it."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sightline.adoption.transformer import ATTENTION_BRANCH, MLP_BRANCH, NORM2, find_child
from sightline.models.taps import first_tensor
from sightline.models.vit import Block
from sightline.observe.branches import rewriting_heads
from sightline.observe.model import ObservedModel
from sightline.observe.registers import adding_register, check_register
from sightline.observe.stream import like_output

FORM = re.compile(r"(block|skip|token) (\d+)|(head) (\d+)\.(\d+)|(register) (\d+\.\d+(?:\+\d+\.\d+)*)")


@dataclass(frozen=True)
class Switch:
    """What is switched off: a block, both skips of a block, one head, or one patch token; or a test-time register."""

    kind: str
    number: int
    head: int = 0
    neurons: tuple[tuple[int, int], ...] = ()  # block and number of each, for a register

    @classmethod
    def parse(cls, text: str, s: ObservedModel) -> "Switch":
        """Parse a description, and check it against the model."""
        found = FORM.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ValueError(
                'What is switched is "block 3", "skip 3", "head 3.1" or "token 17", or "register 5.12+5.80" with the '
                f"blocks and numbers of neurons; got {text!r}."
            )
        if found[6]:
            pairs = [tuple(map(int, pair.split("."))) for pair in found[7].split("+")]
            made = cls("register", max(b for b, _ in pairs), neurons=tuple(dict.fromkeys(pairs)))  # type: ignore[arg-type]
        else:
            made = cls("head", int(found[4]), int(found[5])) if found[3] else cls(found[1], int(found[2]))
        made.check(s, text)
        return made

    def check(self, s: ObservedModel, text: str) -> None:
        blocks = len(s.attention_blocks)
        if not blocks:
            raise ValueError(f"{s.name} is not a Transformer: {text!r} cannot be switched off.")
        most = s.grid[0] * s.grid[1] if self.kind == "token" else blocks
        if self.number >= most:
            what = "token" if self.kind == "token" else "block"
            raise ValueError(f"{s.name} has {what}s 0 to {most - 1}; got {text!r}.")
        c: Any = getattr(s.model, "encoder_config", getattr(s.model, "config", None))
        if self.kind == "head" and self.head >= c.heads:
            raise ValueError(f"{s.name} has heads 0 to {c.heads - 1} in each block; got {text!r}.")
        if self.kind in ("token", "register") and getattr(c, "position", None) == "relative":
            what = "taken out" if self.kind == "token" else "added"
            raise ValueError(f"{s.name} attends by relative positions: a token cannot be {what}.")
        if self.kind == "register":
            check_register(s, self.neurons, text)


@contextmanager
def switch_off(s: ObservedModel, switch: Switch) -> Iterator[None]:
    """Run the model without this part while the context is open; it is always restored."""
    block = s.attention_blocks[switch.number if switch.kind != "token" else 0]
    with ExitStack() as stack:
        match switch.kind:
            case "block":
                stack.callback(block.register_forward_hook(_as_it_came, with_kwargs=True).remove)
            case "token":
                hook = _remove_token(s.prefix + switch.number)
                stack.callback(block.register_forward_pre_hook(hook, with_kwargs=True).remove)
            case "head":
                stack.enter_context(rewriting_heads(s, block, lambda out: _silent(out, switch.head)))
            case "skip":
                _no_skips(stack, block)
            case "register":
                stack.enter_context(adding_register(s, switch.neurons))
        yield


def _as_it_came(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
    return like_output(output, first_tensor("the block", (*args, *kwargs.values())))


def _remove_token(token: int) -> Callable:
    def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        def cut(x: Any) -> Any:
            whole = isinstance(x, Tensor) and x.ndim == 3
            return torch.cat([x[:, :token], x[:, token + 1 :]], dim=1) if whole else x

        return tuple(map(cut, args)), {k: cut(v) for k, v in kwargs.items()}

    return hook


def _silent(out: Tensor, head: int) -> Tensor:
    out = out.clone()
    out[:, head] = 0
    return out


def _no_skips(stack: ExitStack, block: nn.Module) -> None:
    if isinstance(block, Block):
        stack.callback(setattr, block, "skips", block.skips)
        block.skips = False
        return
    # another library's pre-norm block: the skip's tensor is kept out of the second norm and of the output
    seen: dict[str, Tensor] = {}
    attention, norm, mlp = find_child(block, ATTENTION_BRANCH), find_child(block, NORM2), find_child(block, MLP_BRANCH)
    assert attention is not None
    assert norm is not None
    assert mlp is not None
    stack.callback(attention.register_forward_hook(lambda m, a, out: seen.update(a=first_tensor("", out))).remove)
    stack.callback(norm.register_forward_pre_hook(lambda m, a: (seen["a"],)).remove)
    stack.callback(mlp.register_forward_hook(lambda m, a, out: seen.update(m=first_tensor("", out))).remove)
    stack.callback(block.register_forward_hook(lambda m, a, out: like_output(out, seen["m"])).remove)
