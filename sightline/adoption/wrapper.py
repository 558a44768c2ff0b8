"""A live model of another library, used unchanged: wrapped so that features, probes and analyses accept it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from sightline.models.parts import Part
from sightline.models.taps import Tap, first_tensor
from sightline.spec import Displayable, Features, ImageSpec

Hook = tuple[nn.Module, Literal["in", "out"], Callable[[Tensor], Any]]


class AdoptionError(ValueError):
    """A module that cannot be adopted, in one sentence: what was found, what was expected, what to do.

    >>> issubclass(sl.adoption.AdoptionError, ValueError)
    True
    """


@dataclass(frozen=True, kw_only=True)
class AdoptedConfig:
    """The configuration of an adopted model, under the names of our own configurations."""

    library: str
    kind: Literal["vit", "mixer", "cnn"]
    size: tuple[int, int]
    width: int  # channels of the tokens or of the last map
    depth: int  # blocks, or residual units
    classes: int  # 0: features only
    channels: int = 3
    grid: tuple[int, int] = (1, 1)  # at `size`
    prefix: int = 0
    heads: int | None = None
    patch: tuple[int, int] | None = None
    pool: str = "gap"
    class_token: bool = False  # the first of the prefix tokens


class AdoptedModel(nn.Module, Displayable):
    """The wrapper. `inner` is the model itself, `config` what was found out, `image` how its images are prepared.

    `model(pixels)` gives logits, `model.features(pixels)` tokens, grid and pooled vector; `sl.record` takes the paths
    of `model.anatomy()`, which are named as in Sightline's own models.
    """

    def __init__(self, inner: nn.Module, *, config: AdoptedConfig, image: ImageSpec, parts: tuple[Part, ...]):
        super().__init__()
        self.inner, self.config, self.image, self._parts = inner, config, image, parts
        self.pooled, self.head = Tap(), Tap()

    def anatomy(self) -> tuple[Part, ...]:
        """The recordable tensors in the order of computation."""
        return self._parts

    def forward(self, x: Tensor) -> Tensor:
        seen: dict[str, Tensor] = {}
        with temporary_hooks([*self.tap_hooks(), *self.head_hooks(seen)]), self.interception():
            out = first_logits(self.inner(x))
        self.pooled(seen.get("pooled", out).flatten(1))
        return self.head(out.flatten(1))

    def features(self, x: Tensor) -> Features:
        """Tokens in raster order, prefix tokens, and the input of the head."""
        seen: dict[str, Tensor] = {}
        watch: list[Hook] = [(*self.last_layer(), lambda t: seen.update(tokens=t))]
        with temporary_hooks([*self.tap_hooks(), *watch, *self.head_hooks(seen)]), self.interception():
            out = first_logits(self.inner(x))
        pooled = self.pooled(seen.get("pooled", out).flatten(1))
        return self.to_features(seen["tokens"], pooled, (x.shape[2], x.shape[3]))

    def tap_hooks(self) -> list[Hook]:
        """Hooks that feed the taps that are being recorded."""
        return []

    def interception(self) -> AbstractContextManager[None]:
        """A context that is active while the model runs."""
        return nullcontext()

    def last_layer(self) -> tuple[nn.Module, Literal["in", "out"]]:
        """The module, and its side, that has the last tokens or the last map."""
        raise NotImplementedError

    def head_hooks(self, seen: dict[str, Tensor]) -> list[Hook]:
        """Hooks that store the input of the head; without a head, that is the model's output."""
        head = self.classifier_layer()
        return [] if head is None else [(head, "in", lambda t: seen.update(pooled=t))]

    def classifier_layer(self) -> nn.Module | None:
        """The layer that outputs the logits."""
        raise NotImplementedError

    def to_features(self, last: Tensor, pooled: Tensor, size: tuple[int, int]) -> Features:
        """Features from the last tokens or the last map."""
        raise NotImplementedError


@contextmanager
def temporary_hooks(hooks: list[Hook]) -> Iterator[None]:
    """Hook modules while the context is open; all hooks are removed afterwards."""
    with ExitStack() as stack:
        for module, side, call in hooks:
            handle = _input_hook(module, call) if side == "in" else _output_hook(module, call)
            stack.callback(handle.remove)
        yield


def _input_hook(module: nn.Module, call: Callable[[Tensor], Any]) -> Any:
    def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
        call(first_tensor("", (*args, *kwargs.values())))

    return module.register_forward_pre_hook(hook, with_kwargs=True)


def _output_hook(module: nn.Module, call: Callable[[Tensor], Any]) -> Any:
    def hook(module: nn.Module, args: tuple, output: Any) -> None:  # returns None: a value would replace the output
        call(first_tensor("", output))

    return module.register_forward_hook(hook)


def first_logits(output: Any) -> Tensor:
    """Logits, or the pooled vector of a model without a head, from any library's output type."""
    for name in ("logits", "pooler_output"):
        value = getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    if isinstance(output, tuple) and len(output) == 2 and all(isinstance(t, Tensor) for t in output):
        return (output[0] + output[1]) / 2  # two heads in training mode
    return first_tensor("the model", output)
