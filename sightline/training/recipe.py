"""A training run as one frozen record of settings."""

import math
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from sightline.data.augment.augment import Augment
from sightline.data.draws import Number
from sightline.training.settings import apply_settings


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything about a training run that is neither the model nor the data. Durations are in optimizer steps.

    Give `steps` or `epochs`. A step always sees `batch` images over all devices together; `micro` limits how many
    of them one device processes at a time (gradient accumulation), which changes memory but not the result.

    >>> r = sl.Recipe(lr=1e-3, batch=256, epochs=10, warmup=0.1)
    >>> r.total_steps(50_000), r.warmup_steps(50_000)
    (1950, 195)
    >>> sl.Recipe(lr=1e-3, batch=256, steps=100, decay="cosin")
    Traceback (most recent call last):
        ...
    ValueError: Recipe(decay='cosin'): expected one of cosine, linear, staircase, constant.
    """

    EXCLUSIVE: ClassVar[dict[str, str]] = {"steps": "epochs", "epochs": "steps"}  # setting one clears the other

    name: str = "custom"
    task: Literal["classify", "masked", "mae", "lejepa", "segment", "detect"] = "classify"
    seed: int = 0

    # duration and learning rate
    lr: Number
    batch: int
    steps: int | None = None
    epochs: Number | None = None  # of the training data, whole batches only
    warmup: Number = 0  # steps; below 1, a share of training
    decay: Literal["cosine", "linear", "staircase", "constant"] = "cosine"
    milestones: tuple[Number, ...] = ()  # staircase: the rate drops by `factor` after these steps; below 1, shares
    factor: Number = 0.1
    end_lr: Number = 0.0  # final rate of cosine and linear

    # the optimizer
    optimizer: Literal["adamw", "sgd", "muon"] = "adamw"  # muon: for the matrices of the blocks; AdamW for the rest
    betas: tuple[Number, Number] = (0.9, 0.999)
    momentum: Number = 0.9  # of SGD and Muon, which is published with 0.95
    weight_decay: Number = 0.0
    # lr: p -= lr * wd * p (torch, ViT); schedule: p -= (lr / peak) * wd * p (big_vision)
    decay_rule: Literal["lr", "schedule"] = "lr"
    decayed: tuple[str, ...] = ("kernels",)  # globs of parameters; "kernels": matrices and filters; "all"
    clip: Number | None = None  # global norm of the gradient
    lookahead: int | None = None  # after every so many steps the weights go back half of the way (Zhang et al. 2019)
    ema: Number | None = None  # Polyak averaging: decay of the average per step
    micro: int | None = None  # images of one forward pass on one device

    # trained parameters and their rates
    frozen: tuple[str, ...] = ()  # globs of parameters that are not trained
    trained: tuple[str, ...] = ()  # if given, all others are frozen
    lr_scale: tuple[tuple[str, Number], ...] = ()  # (glob, factor) pairs; the first that matches counts
    layer_decay: Number | None = None  # factor per block, counted from the head down

    # the loss
    loss: Literal["softmax", "sigmoid"] = "softmax"
    smoothing: Number = 0.0
    head_bias: Number | None = None  # initial bias of a new head; about -ln(classes) for a sigmoid loss

    # images
    augment: Augment = field(default_factory=Augment)
    size: int | None = None  # None: the model's own
    sizes: tuple[tuple[Number, int], ...] = ()  # progressive resolution: (share of training at which it begins, size)
    dropout: Number | None = None  # None: the model's own
    drop_path: Number | None = None

    # masked tasks
    corrupt: Number = 0.5  # share of the patches (ViT B.1.2); MAE takes 0.75
    target: Literal["color", "color-4x4", "pixels"] = "color"
    decoder: tuple[int, int] = (128, 2)  # MAE: width and depth; dense tasks: of the blocks that queries run through

    # dense tasks
    head: Literal["linear", "layers", "queries"] | None = None  # None: linear to segment, queries to detect
    queries: int = 50  # segments that can be found in an image
    mask_stride: int = 4  # pixels per cell of the masks that queries predict

    # LeJEPA, whose views are `augment.repeats`
    sigreg: Number = 0.05  # share of SIGReg in the loss: the paper's lambda
    projector: tuple[int, int] = (256, 32)  # hidden width, and dimensions of the embedding

    # execution
    precision: Literal["float32", "bfloat16"] = "float32"
    checkpointing: bool = False
    compile: bool = False  # torch.compile; the command line chooses it where it pays (sl.training.select_execution)
    layout: Literal["plain", "channels-last"] = "plain"  # of images and feature maps in memory
    patience: int | None = None  # evaluations without improvement before training stops
    repeat: bool = False  # allow a batch larger than the training data: it then contains images several times
    tensorboard: bool = False  # the same as track="tensorboard", and possible beside another tracker
    track: Literal["tensorboard", "wandb", "mlflow", "trackio"] | None = None  # also send the log to a tracker
    log_every: int = 50
    eval_every: int | None = None  # None: ten times per run
    save_every: int | None = None  # None: ten times per run, and every ten minutes
    keep_every: int | None = None  # also keep the weights of every so many steps, for `sightline open`; None: none

    def __post_init__(self) -> None:
        for name, hint in typing.get_type_hints(Recipe).items():
            if getattr(self, name) not in (choices := _choices(hint) or (getattr(self, name),)):
                _refuse(f"{name}={getattr(self, name)!r}", f"expected one of {', '.join(map(str, choices))}")
        if (self.steps is None) == (self.epochs is None):
            _refuse(f"steps={self.steps}, epochs={self.epochs}", "give exactly one of them")
        for name in ("batch", "steps", "epochs", "micro", "size", "log_every", "eval_every", "save_every", "keep_every",
                     "patience", "queries", "mask_stride"):  # fmt: skip
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
        if self.lookahead is not None and self.lookahead < 2:
            _refuse(
                f"lookahead={self.lookahead}", "expected 2 or more steps between two looks back, such as 5, or none"
            )
        if self.decay == "staircase" and list(self.milestones) != sorted(set(self.milestones)):
            _refuse(f"milestones={self.milestones}", "expected rising steps")
        if self.sizes and (self.sizes[0][0] != 0 or [s for s, _ in self.sizes] != sorted({s for s, _ in self.sizes})):
            _refuse(
                f"sizes={self.sizes}",
                "expected (share, size) pairs with rising shares from 0, such as ((0, 16), (0.5, 32))",
            )
        if self.sizes and (self.sizes[-1][0] >= 1 or self.size not in (None, self.sizes[-1][1])):
            _refuse(
                f"sizes={self.sizes}, size={self.size}",
                "the last size must be the size of the run, and start before its end",
            )

    @property
    def views(self) -> int:
        """How many images of a batch are views of one image, and must stay together."""
        return self.augment.repeats if self.task == "lejepa" else 1

    @property
    def dense(self) -> bool:
        """Whether the labels are masks."""
        return self.task in ("segment", "detect")

    @property
    def trackers(self) -> tuple[str, ...]:
        """The names of the trackers that get the log."""
        return tuple(dict.fromkeys(filter(None, ("tensorboard" if self.tensorboard else None, self.track))))

    def total_steps(self, images: int) -> int:
        """Optimizer steps of a run on this many training images."""
        if self.steps is not None:
            return self.steps
        return round(self.epochs * self.epoch_steps(images))  # type: ignore[operator]

    def epoch_steps(self, images: int) -> int:
        """Optimizer steps in one epoch."""
        return max(1, images // self.batch)

    def warmup_steps(self, images: int) -> int:
        return round(self.warmup * self.total_steps(images)) if 0 < self.warmup < 1 else int(self.warmup)

    def limit_batch(self, images: int, *, processes: int = 1) -> "Recipe":
        """A copy whose batch has at most this many images, split evenly over the processes.

        A larger batch would contain the same images several times; `repeat=True` allows that on purpose.

        >>> sl.Recipe(lr=1e-3, batch=512, steps=10).limit_batch(160).batch
        160
        """
        unit = 2 * processes if processes > 1 and self.augment.mixes else processes  # mixed pairs share a process
        unit *= self.views
        batch = images * self.views // unit * unit
        return replace(self, batch=batch) if 0 < batch < self.batch else self

    def change(self, settings: Iterable[str]) -> "Recipe":
        """A copy with `name=value` settings, as `--set` takes them; `augment.mixup=0.2` sets a nested field.

        The schedule follows the length: with other `steps` or `epochs`, warm-up and milestones keep their shares of
        training unless they are set, too.

        >>> sl.Recipe(lr=1e-3, batch=64, steps=10).change(["lr=0.01", "augment.mixup=0.2", "clip=none"]).augment.mixup
        0.2
        >>> sl.Recipe(lr=1e-3, batch=64, steps=500, warmup=100).change(["steps=40"]).warmup_steps(1000)
        8
        """
        settings = list(settings)
        named = {setting.partition("=")[0].strip() for setting in settings}
        changed = apply_settings(self._in_shares(named) if "steps" in named else self, settings)
        return changed._stretched(self.epochs, named) if "epochs" in named else changed

    def _in_shares(self, named: set[str]) -> "Recipe":
        """A copy in which the parts of the schedule that are not `named` are shares of training, not steps."""
        # of epochs only the images tell how many steps they are: a warm-up is taken for a tenth of them
        length = self.steps or 10 * self.warmup
        shares: dict[str, Any] = {}
        if "warmup" not in named and 1 <= self.warmup < length:
            shares["warmup"] = self.warmup / length
        if "milestones" not in named and self.milestones and 1 <= max(self.milestones) < length:
            shares["milestones"] = tuple(m / length if m >= 1 else m for m in self.milestones)
        return replace(self, **shares)

    def _stretched(self, before: Number | None, named: set[str]) -> "Recipe":
        """A copy whose warm-up and milestones in steps follow the number of epochs."""
        if not before or not self.epochs:
            return self
        ratio = self.epochs / before
        stretched: dict[str, Any] = {}
        if "warmup" not in named and self.warmup >= 1:
            stretched["warmup"] = max(1, round(self.warmup * ratio))
        if "milestones" not in named and self.milestones and max(self.milestones) >= 1:
            stretched["milestones"] = tuple(round(m * ratio) if m >= 1 else m for m in self.milestones)
        return replace(self, **stretched)


def _choices(hint: typing.Any) -> tuple[typing.Any, ...]:
    """The values that a literal type allows, and None where it is optional; empty for other types."""
    literals = [t for t in (hint, *typing.get_args(hint)) if typing.get_origin(t) is Literal]
    optional = (None,) if type(None) in typing.get_args(hint) else ()
    return (*(v for t in literals for v in typing.get_args(t)), *optional) if literals else ()


def _refuse(given: str, expected: str) -> typing.NoReturn:
    raise ValueError(f"Recipe({given}): {expected}.")
