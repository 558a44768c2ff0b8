"""What a model's own last norm and head make of any token: everything that follows the last block, token by token.

Of another library's model it is found by watching one image pass the modules after the last block, and it is used only
if it gives the model's own answer.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sightline.adoption.wrapper import AdoptedModel
from sightline.models.taps import first_tensor
from sightline.models.vit import ViT
from sightline.observe.model import ObservedModel, evaluation_mode
from sightline.observe.stream import Place, residual_stream, watching

Pool = Literal["first", "patches", "all"]
KEPT = "_readout"  # where an observed model keeps it
CLOSE = 1e-3  # of the largest logit, between the readout and the model's own answer


@dataclass(frozen=True)
class Readout:
    """The end of a model."""

    norm: Callable[[Tensor], Tensor]  # the stream, tokens (b, n, d) or a map, before anything is pooled
    heads: tuple[Callable[[Tensor], Tensor], ...]  # (rows, d) to logits; several heads vote
    pool: Pool | Callable[[Tensor], Tensor]  # "first": head i reads token i
    prefix: int

    def tokens(self, stream: Tensor) -> Tensor:
        """The stream after the last norm, (b, n, d)."""
        found = self.norm(stream)
        return found.flatten(2).mT if found.ndim == 4 else found

    def scores(self, tokens: Tensor) -> Tensor:
        """Logits (b, n, classes), as if the head saw each token alone."""
        return self.vote([tokens.flatten(0, 1)] * len(self.heads)).unflatten(0, tokens.shape[:2])

    def answer(self, tokens: Tensor) -> Tensor:
        """Logits (b, classes), as the model pools the tokens."""
        if callable(self.pool):
            return self.pool(tokens)
        if self.pool == "first":
            return self.vote([tokens[:, i] for i in range(len(self.heads))])
        pooled = tokens[:, self.prefix if self.pool == "patches" else 0 :].mean(1)
        return self.vote([pooled] * len(self.heads))

    def vote(self, rows: Sequence[Tensor]) -> Tensor:
        """The mean of what each head says of its rows."""
        said = [head(row) for head, row in zip(self.heads, rows)]
        return said[0] if len(said) == 1 else torch.stack(said).mean(0)


def readout(s: ObservedModel) -> Readout:
    """How the model reads its last tokens, checked against its own answer, once for each observation."""
    if KEPT not in s.__dict__:
        s.__dict__[KEPT] = _find(s)
    found: Readout = s.__dict__[KEPT]
    return found


def _find(s: ObservedModel) -> Readout:
    if not s.classes:
        raise ValueError(f"{s.name} has no classes: a head is needed to score tokens with, so load one with its head.")
    device, dtype = s.place
    random = torch.Generator().manual_seed(0)
    image = torch.randn(1, len(s.image.mean), *s.image.size, generator=random).to(device=device, dtype=dtype)
    last = residual_stream(s)[-1]
    seen: dict[str, Tensor] = {}
    with evaluation_mode(s):
        with watching([last], lambda i, t: seen.update(stream=t)), calls_after(s, last) as calls:
            logits = s.model(image)
        stream = seen["stream"]
        for found in _own(s) if isinstance(s.model, ViT) else _watched(s, calls, logits.shape[-1]):
            if _agrees(found, stream, logits):
                return found
    raise ValueError(f"{s.name} has a head that does not read single tokens (it pools in a way of its own).")


def _agrees(found: Readout, stream: Tensor, logits: Tensor) -> bool:
    try:
        said = found.answer(found.tokens(stream))
    except (RuntimeError, ValueError, TypeError, IndexError):  # what was watched does not fit together
        return False
    same = said.shape == logits.shape
    return same and bool((said - logits).abs().max() <= CLOSE * logits.abs().max().clamp(min=1e-6))


def _own(s: ObservedModel) -> Iterator[Readout]:
    """Of our own ViT."""
    model: Any = s.model
    c = model.encoder_config
    late = c.final_norm == "pooled"

    def represent(x: Tensor) -> Tensor:
        """One token alone, as `ViT.represent` treats the pooled one."""
        y = x if model.pool is None else model.pool(x[:, None])
        y = model.norm(y[:, None])[:, 0] if late else y
        return y if model.pre_logits is None else torch.tanh(model.pre_logits(y))

    def answer(tokens: Tensor) -> Tensor:
        logits = model.head(model.represent(tokens))
        return logits if model.head_distill is None else (logits + model.head_distill(tokens[:, 1])) / 2

    def classify(head: nn.Module) -> Callable[[Tensor], Tensor]:
        return lambda x: head(represent(x))

    heads = [h for h in (model.head, model.head_distill) if h is not None]
    yield Readout(
        norm=(lambda x: x) if late else model.norm,
        heads=tuple(map(classify, heads)),
        pool=answer,
        prefix=s.prefix,
    )


@dataclass
class Call:
    """One module as an image passed it after the last block, with what it called itself."""

    module: nn.Module
    taken: tuple[int, ...]
    given: tuple[int, ...] = ()
    inner: list["Call"] = field(default_factory=list)

    @property
    def local(self) -> bool:
        """Whether every token or location stays where it is."""
        spots = (2, 3) if len(self.taken) == 4 else (1,)
        same = len(self.taken) == len(self.given) and all(self.taken[i] == self.given[i] for i in spots)
        return same and len(self.taken) > 2

    @property
    def pooled(self) -> bool:
        """Whether it takes one vector per image."""
        return len(self.taken) == 2 or (len(self.taken) == 4 and self.taken[2:] == (1, 1))


@contextmanager
def calls_after(s: ObservedModel, last: Place) -> Iterator[list[Call]]:
    """Every module that starts after the last block has ended, as a tree."""
    root = s.model.inner if isinstance(s.model, AdoptedModel) else s.model
    calls: list[Call] = []
    open_: list[Call] = []
    ended: list[bool] = []

    def enter(module: nn.Module, args: tuple, kwargs: dict) -> None:
        tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
        if ended and tensors:
            made = Call(module, tuple(tensors[0].shape))
            (open_[-1].inner if open_ else calls).append(made)
            open_.append(made)

    def leave(module: nn.Module, args: tuple, output: Any) -> None:
        if open_ and open_[-1].module is module:
            open_.pop().given = tuple(first_tensor("", output).shape)

    with ExitStack() as stack:
        for module in root.modules():
            stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(leave).remove)
        stack.callback(last.module.register_forward_hook(lambda *_: ended.append(True)).remove)
        yield calls


def steps(calls: Sequence[Call]) -> Iterator[Call]:
    """What is done to each token, in order; what only pools or reshapes is left out."""
    for call in calls:
        if call.local or call.pooled:
            yield call
        else:
            yield from steps(call.inner)


def _watched(s: ObservedModel, calls: list[Call], classes: int) -> Iterator[Readout]:
    """What may be the end of another library's model, for each way of pooling."""
    done = list(steps(calls))
    before = [c.module for c in done if not c.pooled]
    after = [c for c in done if c.pooled]
    ends = [c for c in after if c.given[1] == classes and c.taken[1] == after[-1].taken[1]] if after else []
    between = [c for c in after if c not in ends]
    heads = tuple(_chain([*between, end]) for end in ends)
    ways: tuple[Pool, ...] = ("first", "patches", "all") if s.prefix else ("all",)
    for pool in ways if heads else ():
        yield Readout(norm=nn.Sequential(*before), heads=heads, pool=pool, prefix=s.prefix)


def _chain(calls: list[Call]) -> Callable[[Tensor], Tensor]:
    """Modules one after the other on rows of features, each in the shape that it took."""

    def run(x: Tensor) -> Tensor:
        for call in calls:
            x = call.module(x[:, :, None, None] if len(call.taken) == 4 else x).flatten(1)
        return x

    return run
