"""What a training run does, as one frozen record; `--set name=value` is checked against it."""

import ast
import difflib
import math
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

from sightline.data.augment.augment import Augment
from sightline.data.draws import Number

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything about a training run that is neither the model nor the data. Times are optimizer steps.

    Give `steps` or `epochs`. A step always sees `batch` images, over all devices together; `micro` bounds how many
    of them one device takes at a time (gradient accumulation), which changes memory and not the result.

    >>> r = sl.Recipe(lr=1e-3, batch=256, epochs=10, warmup=0.1)
    >>> r.total(50_000), r.warmup_steps(50_000)
    (1950, 195)
    >>> sl.Recipe(lr=1e-3, batch=256, steps=100, decay="cosin")
    Traceback (most recent call last):
        ...
    ValueError: Recipe(decay='cosin'): expected one of cosine, linear, staircase, constant.
    """

    name: str = "custom"
    task: Literal["classify", "masked", "mae"] = "classify"
    seed: int = 0

    # how long, and at what rate
    lr: Number
    batch: int
    steps: int | None = None
    epochs: Number | None = None  # of the training data, whole batches only
    warmup: Number = 0  # steps; below 1, a share of training
    decay: Literal["cosine", "linear", "staircase", "constant"] = "cosine"
    milestones: tuple[Number, ...] = ()  # staircase: the rate falls by `factor` behind these steps; below 1, shares
    factor: Number = 0.1
    end_lr: Number = 0.0  # where cosine and linear end

    # the optimizer
    optimizer: Literal["adamw", "sgd"] = "adamw"
    betas: tuple[Number, Number] = (0.9, 0.999)
    momentum: Number = 0.9
    weight_decay: Number = 0.0
    decay_rule: Literal["lr", "schedule"] = (
        "lr"  # p -= lr * wd * p (torch, ViT); or p -= (lr / peak) * wd * p (big_vision)
    )
    decayed: tuple[str, ...] = ("kernels",)  # globs of parameters; "kernels": matrices and filters; "all"
    clip: Number | None = None  # global norm of the gradient
    ema: Number | None = None  # Polyak averaging: the share that the average keeps at each step
    micro: int | None = None  # images of one forward pass on one device

    # which parameters, and how fast
    frozen: tuple[str, ...] = ()  # globs of parameters that stay as they are
    trained: tuple[str, ...] = ()  # if given, all others stay as they are
    lr_scale: tuple[tuple[str, Number], ...] = ()  # (glob, factor) pairs; the first that matches counts
    layer_decay: Number | None = None  # factor per block, counted from the head down

    # the loss
    loss: Literal["softmax", "sigmoid"] = "softmax"
    smoothing: Number = 0.0
    head_bias: Number | None = None  # start of the head's bias; sigmoid losses want about -ln(classes)

    # images
    augment: Augment = field(default_factory=Augment)
    size: int | None = None  # None: the model's own
    sizes: tuple[tuple[Number, int], ...] = ()  # progressive resolution: (share of training at which it begins, size)
    dropout: Number | None = None  # None: the model's own
    drop_path: Number | None = None

    # masked tasks
    corrupt: Number = 0.5  # share of the patches (ViT B.1.2); MAE takes 0.75
    target: Literal["color", "color-4x4", "pixels"] = "color"
    decoder: tuple[int, int] = (128, 2)  # MAE: width and depth

    # how it runs
    precision: Literal["float32", "bfloat16"] = "float32"
    checkpointing: bool = False
    compile: bool = False
    patience: int | None = None  # evaluations without a better one before training stops
    repeat: bool = False  # allow a batch larger than the training data: images then come several times in it
    tensorboard: bool = False  # write event files too; needs the package tensorboard
    log_every: int = 50
    eval_every: int | None = None  # None: ten times in a run
    save_every: int | None = None  # None: ten times in a run, and every ten minutes

    def __post_init__(self) -> None:
        for name, hint in typing.get_type_hints(Recipe).items():
            if typing.get_origin(hint) is Literal and getattr(self, name) not in (choices := typing.get_args(hint)):
                _refuse(f"{name}={getattr(self, name)!r}", f"expected one of {', '.join(map(str, choices))}")
        if (self.steps is None) == (self.epochs is None):
            _refuse(f"steps={self.steps}, epochs={self.epochs}", "give exactly one of them")
        for name in ("batch", "steps", "epochs", "micro", "size", "log_every", "eval_every", "save_every", "patience"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                _refuse(f"{name}={value}", "expected a number above 0")
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                _refuse(f"{name}={value}", "expected a finite number")
        for name in ("decayed", "frozen", "trained"):
            if isinstance(getattr(self, name), str):
                _refuse(
                    f"{name}={getattr(self, name)!r}", f"expected a tuple of globs, such as ({getattr(self, name)!r},)"
                )
        for name in ("lr", "warmup", "end_lr", "weight_decay"):
            if getattr(self, name) < 0:
                _refuse(f"{name}={getattr(self, name)}", "expected a number of at least 0")
        for name in ("ema", "smoothing", "dropout", "drop_path", "corrupt", "momentum"):
            if (value := getattr(self, name)) is not None and not 0 <= value < 1:
                _refuse(f"{name}={value}", "expected a number from 0 to below 1")
        for name in ("clip", "layer_decay"):
            if (value := getattr(self, name)) is not None and value <= 0:
                _refuse(f"{name}={value}", "expected a number above 0, or none")
        if self.decay == "staircase" and list(self.milestones) != sorted(set(self.milestones)):
            _refuse(f"milestones={self.milestones}", "expected rising steps")
        if self.sizes and (self.sizes[0][0] != 0 or [s for s, _ in self.sizes] != sorted({s for s, _ in self.sizes})):
            _refuse(
                f"sizes={self.sizes}",
                "expected (share, size) pairs with rising shares from 0, such as ((0, 16), (0.5, 32))",
            )
        if self.sizes and (self.sizes[-1][0] >= 1 or self.size not in (None, self.sizes[-1][1])):
            _refuse(
                f"sizes={self.sizes}, size={self.size}", "the last size is that of the run, and begins before its end"
            )

    def total(self, images: int) -> int:
        """Optimizer steps on so many training images."""
        if self.steps is not None:
            return self.steps
        return round(self.epochs * self.epoch_steps(images))  # type: ignore[operator]

    def epoch_steps(self, images: int) -> int:
        """Optimizer steps in one epoch."""
        return max(1, images // self.batch)

    def warmup_steps(self, images: int) -> int:
        return round(self.warmup * self.total(images)) if 0 < self.warmup < 1 else int(self.warmup)

    def change(self, settings: Iterable[str]) -> "Recipe":
        """With `name=value` settings, as `--set` takes them; `augment.mixup=0.2` reaches inside.

        >>> sl.Recipe(lr=1e-3, batch=64, steps=10).change(["lr=0.01", "augment.mixup=0.2", "clip=none"]).augment.mixup
        0.2
        """
        return changed(self, settings)


def changed(record: T, settings: Iterable[str]) -> T:
    """Any frozen record with `name=value` settings, each checked against the field's annotation."""
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"Settings are name=value, such as lr=0.01; got {setting!r}.")
        record = _changed(record, name.strip(), text.strip())
    return record


def _refuse(given: str, expected: str) -> typing.NoReturn:
    raise ValueError(f"Recipe({given}): {expected}.")


def _changed(record: T, name: str, text: str) -> T:
    head, _, rest = name.partition(".")
    known = [f.name for f in fields(record)]  # type: ignore[arg-type]
    if head not in known:
        near = difflib.get_close_matches(head, known, n=3, cutoff=0.5) or known
        raise ValueError(f"{type(record).__name__} has no field {head!r}; did you mean {', '.join(near)}?")
    if rest:
        inner = getattr(record, head)
        if not is_dataclass(inner):
            raise ValueError(f"{head} is a single value; --set {head}=..., not {name}.")
        return replace(record, **{head: _changed(inner, rest, text)})  # type: ignore[type-var]
    value = parsed(text, typing.get_type_hints(type(record))[head], name)
    other = {"steps": "epochs", "epochs": "steps"}.get(head)  # one takes the other's place
    extra: dict[str, Any] = {other: None} if isinstance(record, Recipe) and other and value is not None else {}
    return replace(record, **{head: value}, **extra)  # type: ignore[type-var]


def parsed(text: str, hint: Any, name: str) -> Any:
    """A word of the command line as its annotation wants it."""
    value: Any = None if text.lower() in ("none", "off") else _literal(text)
    if not fits(value, hint):
        listed = (value,) if isinstance(value, str | int | float) else value
        value = listed if fits(listed, hint) else value
    if not fits(value, hint):
        raise ValueError(f"{name} is {described(hint)}; got {text!r}.")
    return value


def _literal(text: str) -> Any:
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the annotated kind."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in args)
    if origin is Literal:
        return isinstance(value, str) and value in args
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if args[-1] is ...:
            return all(fits(v, args[0]) for v in value)
        return len(args) == len(value) and all(fits(v, a) for v, a in zip(value, args))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is hint


def described(hint: Any) -> str:
    """An annotation in plain words."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        words = dict.fromkeys(described(a) for a in args)
        if "a number" in words:
            words.pop("a whole number", None)
        return " or ".join(words)
    if origin is Literal:
        return f"one of {', '.join(args)}"
    if origin is tuple:
        return f"a list such as ({', '.join(described(a) for a in args if a is not ...)}, ...)"
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", type(None): "none"}
    return plain.get(hint, getattr(hint, "__name__", str(hint)))
