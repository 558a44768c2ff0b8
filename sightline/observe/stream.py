"""The residual stream of any model, read and rewritten: the input of the first block and the output of each block."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from sightline.models.taps import first_tensor
from sightline.observe.model import ObservedModel


@dataclass(frozen=True)
class Place:
    """Where the stream can be seen: the input or the output of a module."""

    name: str  # "input", "block 3", or the path of a residual unit
    module: nn.Module
    side: Literal["in", "out"] = "out"


def residual_stream(s: ObservedModel) -> list[Place]:
    """The encoder's input and the output of every block; of a CNN, the output of every residual unit."""
    blocks = s.encoder_blocks
    if blocks:
        return [Place("input", blocks[0], "in"), *(Place(f"block {i}", b) for i, b in enumerate(blocks))]
    if not s.block_outputs:
        raise ValueError(f"{s.name} does not say what its blocks are.")
    return [Place(p.path, s.model.get_submodule(p.path)) for p in s.block_outputs]


@contextmanager
def watching(places: Sequence[Place], keep: Callable[[int, Tensor], Any]) -> Iterator[None]:
    """Call `keep(number of the place, tensor)` whenever the stream passes a place; nothing stays behind."""

    def look(number: int) -> Callable[[Tensor], None]:
        return lambda value: keep(number, value)

    with ExitStack() as stack:
        for number, place in enumerate(places):
            stack.enter_context(rewriting(place, look(number)))
        yield


@contextmanager
def rewriting(place: Place, change: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """What `change` returns takes the place of the stream; None leaves it as it is."""

    def before(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        value = change(first_tensor("the block", (*args, *kwargs.values())))
        return None if value is None else replace_first(args, kwargs, value)

    def after(module: nn.Module, args: tuple, output: Any) -> Any:
        value = change(first_tensor("the block", output))
        return None if value is None else like_output(output, value)

    if place.side == "in":
        handle = place.module.register_forward_pre_hook(before, with_kwargs=True)
    else:
        handle = place.module.register_forward_hook(after)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def skipping(blocks: Sequence[nn.Module], outputs: Sequence[Any]) -> Iterator[None]:
    """Blocks that put out what they put out before for one image, as often as there are images, without computing."""
    with ExitStack() as stack:
        for block, output in zip(blocks, outputs):
            stack.callback(_restore, block, block.__dict__.get("forward"))
            block.forward = _repeat(output)
        yield


def _repeat(output: Any) -> Callable[..., Any]:
    one = first_tensor("the block", output)

    def forward(*args: Any, **kwargs: Any) -> Any:
        count = len(first_tensor("the block", (*args, *kwargs.values())))
        return like_output(output, one.expand(count, *one.shape[1:]))

    return forward


def _restore(block: nn.Module, own: Any) -> None:
    """Its class's forward again, or one of its own."""
    del block.forward
    if own is not None:
        block.forward = own


def replace_first(args: tuple, kwargs: dict, value: Tensor) -> tuple[tuple, dict]:
    """The arguments of a call with another first tensor."""
    at = next((i for i, a in enumerate(args) if isinstance(a, Tensor)), None)
    if at is not None:
        return (*args[:at], value, *args[at + 1 :]), kwargs
    name = next(k for k, v in kwargs.items() if isinstance(v, Tensor))
    return args, {**kwargs, name: value}


def like_output(output: Any, value: Tensor) -> Any:
    """A value in the form of a module's own output."""
    return value if isinstance(output, Tensor) else (value, *output[1:])
