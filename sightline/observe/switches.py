"""Parts of a model switched off for a while, "block 3", "attention 3" (of a Mixer "mixing 3"), "mlp 3", "skip 3",
"head 3.1", "token 17", "prefix 0", or a register added to it."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sightline.adoption.transformer import ATTENTION_BRANCH, MLP_BRANCH, NORM2, find_child
from sightline.models.mixer import MixerBlock
from sightline.models.taps import first_tensor
from sightline.models.vit import Block
from sightline.observe.branches import branches, rewriting_heads
from sightline.observe.model import Model, ObservedModel, observe
from sightline.observe.registers import adding_register, check_register
from sightline.observe.stream import Place, like_output, rewriting

FORM = re.compile(
    r"(block|attention|mixing|mlp|skip|token|prefix) (\d+)|(head) (\d+)\.(\d+)|(register) (\d+\.\d+(?:\+\d+\.\d+)*)"
)


MIXER = ("block", "mixing", "mlp", "skip")  # what a Mixer has; its number of patches is fixed


@dataclass(frozen=True)
class Switch:
    """What is switched off: a block, its attention, token mixing or MLP, both of its skips, one head, one patch token,
    or what a prefix token has learned; or a test-time register."""

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
                'What is switched is "block 3", "attention 3", "mixing 3" (of a Mixer), "mlp 3", "skip 3", "head 3.1", '
                '"token 17" (a patch) or "prefix 0" (the class token), or "register 5.12+5.80" with the blocks and '
                f"numbers of neurons; got {text!r}."
            )
        if found[6]:
            pairs = [tuple(map(int, pair.split("."))) for pair in found[7].split("+")]
            made = cls("register", max(b for b, _ in pairs), neurons=tuple(dict.fromkeys(pairs)))  # type: ignore[arg-type]
        else:
            made = cls("head", int(found[4]), int(found[5])) if found[3] else cls(found[1], int(found[2]))
        made.check(s, text)
        return made

    def check(self, s: ObservedModel, text: str) -> None:
        blocks = len(s.encoder_blocks)
        if not blocks:
            return self.check_unit(s, text)
        if s.attention_blocks and self.kind == "mixing":
            raise ValueError(f'{s.name} has attention, no token mixing; got {text!r}, try "attention {self.number}".')
        if not s.attention_blocks and self.kind not in MIXER:
            raise ValueError(f"{s.name} is a Mixer, of which {', '.join(MIXER)} can be switched off; got {text!r}.")
        most = {"token": s.grid[0] * s.grid[1], "prefix": s.prefix}.get(self.kind, blocks)
        if self.number >= most:
            what = {"token": "token", "prefix": "prefix token"}.get(self.kind, "block")
            has = f"{what}s 0 to {most - 1}" if most else f"no {what}s"
            raise ValueError(f"{s.name} has {has}; got {text!r}.")
        c: Any = getattr(s.model, "encoder_config", getattr(s.model, "config", None))
        if self.kind == "head" and self.head >= c.heads:
            raise ValueError(f"{s.name} has heads 0 to {c.heads - 1} in each block; got {text!r}.")
        fixed = {"relative": "by relative positions", "axial": "along rows and columns"}
        ways = [way for key, way in fixed.items() if key in (getattr(c, "position", ""), getattr(c, "attention", ""))]
        if self.kind in ("token", "register") and ways:
            what = "taken out" if self.kind == "token" else "added"
            raise ValueError(f"{s.name} attends {ways[0]}: a token cannot be {what}.")
        if self.kind == "register":
            check_register(s, self.neurons, text)

    def check_unit(self, s: ObservedModel, text: str) -> None:
        """Of a CNN only what a residual unit adds can be switched off."""
        units = branches(s)
        if self.kind != "block" or not any(units):
            raise ValueError(f"{s.name} is not a Transformer: {text!r} cannot be switched off.")
        if self.number >= len(units):
            raise ValueError(f"{s.name} has blocks 0 to {len(units) - 1}; got {text!r}.")
        if not units[self.number]:
            raise ValueError(f"Block {self.number} of {s.name} has no skip: nothing would be left of it.")


@contextmanager
def switch_off(model: Model, *off: str) -> Iterator[None]:
    """Run a model without these parts while the context is open; it is always restored.

    "block 3" becomes the identity, "attention 3", "mixing 3" (of a Mixer) and "mlp 3" add nothing, "skip 3" keeps the
    branches alone, "head 3.1" gives zeros, "token 17" (a patch) is taken out of the sequence, and "prefix 0" enters the
    first block as zeros: the head reads the class token, so it stays, with nothing in it. The residual unit "block 3"
    of a CNN adds nothing.

    >>> import torch
    >>> model = sl.build("vit-nano4", classes=10, depth=2)
    >>> with sl.observe.switch_off(model, "head 1.0", "token 5", "token 6"):
    ...     model(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """
    s = observe(model)
    switches = [Switch.parse(text, s) for text in dict.fromkeys(off)]
    if {"token", "register"} <= {switch.kind for switch in switches}:
        raise ValueError("A register is added to a whole image: put the tokens back first.")
    with ExitStack() as stack:
        # the last token first: taking one out moves those after it
        for switch in sorted(switches, key=lambda switch: -switch.number):
            stack.enter_context(without(s, switch))
        yield


@contextmanager
def without(s: ObservedModel, switch: Switch) -> Iterator[None]:
    """Run the model without one part."""
    if not s.encoder_blocks:
        with rewriting(branches(s)[switch.number]["convolution"], torch.zeros_like):
            yield
        return
    block = s.encoder_blocks[0 if switch.kind in ("token", "prefix") else switch.number]
    with ExitStack() as stack:
        match switch.kind:
            case "block":
                stack.callback(block.register_forward_hook(_as_it_came, with_kwargs=True).remove)
            case "attention" | "mixing" | "mlp":
                stack.enter_context(rewriting(branches(s)[switch.number][switch.kind], torch.zeros_like))
            case "prefix":
                stack.enter_context(rewriting(Place("input", block, "in"), lambda x: _empty(x, switch.number)))
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


def _empty(x: Tensor, token: int) -> Tensor:
    x = x.clone()
    x[:, token] = 0
    return x


def _silent(out: Tensor, head: int) -> Tensor:
    out = out.clone()
    out[:, head] = 0
    return out


def _no_skips(stack: ExitStack, block: nn.Module) -> None:
    if isinstance(block, Block | MixerBlock):
        stack.callback(setattr, block, "skips", block.skips)
        block.skips = False
        return
    # another library's pre-norm block: the skip's tensor is kept out of the second norm and of the output
    seen: dict[str, Tensor] = {}
    mixer = find_child(block, ("mlp_tokens",))  # its output has the patches last
    attention = mixer or find_child(block, ATTENTION_BRANCH)
    norm, mlp = find_child(block, NORM2), find_child(block, ("mlp_channels",) if mixer else MLP_BRANCH)
    assert attention is not None
    assert norm is not None
    assert mlp is not None

    def keep(module: nn.Module, args: Any, out: Any) -> None:
        value = first_tensor("", out)
        seen.update(a=value if mixer is None else value.mT)

    stack.callback(attention.register_forward_hook(keep).remove)
    stack.callback(norm.register_forward_pre_hook(lambda m, a: (seen["a"],)).remove)
    stack.callback(mlp.register_forward_hook(lambda m, a, out: seen.update(m=first_tensor("", out))).remove)
    stack.callback(block.register_forward_hook(lambda m, a, out: like_output(out, seen["m"])).remove)
