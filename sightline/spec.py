"""Value types that every room shares. No logic beyond saving and loading them."""

import importlib
import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor

from sightline.archives import pack_arrays, read_arrays
from sightline.files import atomic

Interpolation = Literal["bicubic", "bilinear", "nearest"]
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """The preprocessing that a model expects; it is saved with the weights.

    `fit="crop"` resizes the short side to size / crop and takes the center; `fit="squash"` resizes both sides to
    size without cropping (as the ViT and BiT papers evaluate).

    >>> ImageSpec(size=(224, 224)).mean
    (0.5, 0.5, 0.5)
    """

    size: tuple[int, int]  # height, width
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    crop: float = 1.0
    fit: Literal["crop", "squash"] = "crop"
    interpolation: Interpolation = "bicubic"

    @classmethod
    def imagenet(
        cls,
        size: tuple[int, int],
        *,
        channels: int = 3,
        crop: float = 0.875,
        interpolation: Interpolation = "bicubic",
    ) -> "ImageSpec":
        """ImageNet mean and standard deviation (0.5 if not RGB), short side resized to size / crop, center crop."""
        half = (0.5,) * channels
        mean, std = (IMAGENET_MEAN, IMAGENET_STD) if channels == 3 else (half, half)
        return cls(size=size, mean=mean, std=std, crop=crop, interpolation=interpolation)


@dataclass(frozen=True, kw_only=True)
class Features:
    """The features of a batch of images, under the same names for every family of models.

    >>> import torch
    >>> f = Features(tokens=torch.zeros(2, 6, 8), grid=(2, 3), prefix=torch.zeros(2, 1, 8), pooled=torch.zeros(2, 8))
    >>> f.map.shape
    torch.Size([2, 8, 2, 3])
    """

    tokens: Float[Tensor, "b n d"]  # one per grid cell, in raster order
    grid: tuple[int, int]  # rows, columns
    prefix: Float[Tensor, "b p d"]  # class, distillation and register tokens; p may be 0
    pooled: Float[Tensor, "b e"]  # the input of the head

    @property
    def map(self) -> Float[Tensor, "b d y x"]:
        """The tokens as a dense feature map."""
        return self.tokens.mT.unflatten(2, self.grid)


class Displayable:
    """Shows itself in a notebook.

    How it looks is decided by `sl.report.to_html`, which knows every kind of object. This file is below it and must
    not import it, so the public package is asked for it when a notebook asks for the HTML.
    """

    def _repr_html_(self) -> str:
        html: str = sys.modules["sightline"].report.to_html(self)
        return html


@dataclass(frozen=True, kw_only=True)
class ModelId:
    """Which model a result is about, identified by its fingerprint; the name is for display only.

    >>> ModelId(name="vit-b16", fingerprint="9f0c").fingerprint
    '9f0c'
    """

    name: str
    fingerprint: str = ""  # of weights and configuration; empty if unknown
    kind: str = ""  # vit, hybrid or cnn
    pool: str = ""  # what the head reads: cls, gap or map


@dataclass(frozen=True, kw_only=True)
class About:
    """What a result is about: the models, the images, and the name of the analysis in the catalog.

    >>> About(models=(ModelId(name="a"), ModelId(name="b"))).names
    ('a', 'b')
    """

    models: tuple[ModelId, ...] = ()
    images: str = ""  # fingerprint of the images; empty if unknown
    analysis: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Display names of the models."""
        return tuple(m.name for m in self.models)


@dataclass(frozen=True, kw_only=True)
class Result(Displayable):
    """Base of everything that a measurement or an analysis returns: data that knows what it is.

    Subclasses add arrays (numpy) and plain values as fields. One `.npz` file holds one result.

    >>> Result(title="nothing", caption="An empty result.").summary()
    {}
    """

    title: str
    caption: str
    how: dict[str, Any] = field(default_factory=dict)  # how it was computed: n, repeats, token choice, seed ...
    about: About = field(default_factory=About)

    def summary(self) -> dict[str, float]:
        """The few numbers to quote."""
        return {}

    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % intervals of the numbers of `summary`, by the same names; none for what is exact or was measured once.

        They are over what was drawn: images, unless the result says otherwise.
        """
        return {}

    def save(self, path: str | Path) -> Path:
        """Write to `path` (an .npz) in one piece: a reader sees the old file or the new one, never half of it."""
        with atomic(path) as partial:
            partial.write_bytes(pack(self))
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> "Result":
        """Read a file written by `save`; the type is looked up by name among the subclasses of this class."""
        try:
            held: dict[str, Any] = {**read_arrays(path)}
            head = from_json(str(held.pop("__head__")))
            head["values"].items(), head["type"].isidentifier()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} is not a saved Sightline result ({error!s:.300}).") from error
        _import_type(head["type"])
        kinds = {kind.__name__: kind for kind in _family(cls)}
        if head["type"] not in kinds:
            expected = f"expected one of {', '.join(sorted(kinds))}"
            raise ValueError(
                f"{path} holds a {head['type']}, a type that this version of Sightline does not have ({expected}): "
                "compute it again, for instance with sl.look."
            )
        kind = kinds[head["type"]]
        try:
            values = {k: _tuples(v) for k, v in head["values"].items()}
            if not isinstance(values.get("how", {}), dict):
                raise TypeError("`how` is no table")
            if "about" not in values:
                values = _upgrade_version_1(values, {f.name for f in fields(kind)})
            return kind(**held, **values | {"about": about_of(values["about"])})
        except (TypeError, AttributeError, ValueError) as error:  # a field too many or too few
            what = f"a {head['type']} of another version of Sightline ({error})"
            raise ValueError(f"{path} holds {what}: compute it again.") from error


def about_of(values: dict[str, Any]) -> About:
    """An `About` from its JSON form."""
    return About(**{**values, "models": tuple(ModelId(**m) for m in values.get("models", ()))})


def _upgrade_version_1(values: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Version 1 files stored in `how` what now has its own fields; they have no fingerprints."""
    how = dict(values.get("how", {}))
    models = [{k: str(m.get(k, "")) for k in ("name", "kind", "pool")} for m in how.pop("models", ()) or ()]
    about = {"models": tuple(models), "analysis": str(how.pop("analysis", ""))}
    moved: dict[str, Any] = {k: how.pop(k) for k in ("side", "varied") if k in how and k in names}
    return {**values, "how": how, "about": about, **moved}


def _import_type(name: str) -> None:
    """Import the module that defines a type of result. Only the file says which type that is, so the module is looked
    up in the rooms' tables of public names; an unknown name is left to the caller."""
    for room in ("analysis", "evals", "dense", "training"):
        if name in (public := importlib.import_module(f"sightline.{room}")).__all__:
            getattr(public, name)


def _family(cls: type[Result]) -> list[type[Result]]:
    subclasses: list[type[Result]] = cls.__subclasses__()
    return [cls, *(kind for sub in subclasses for kind in _family(sub))]


def pack(result: Result) -> bytes:
    """The bytes of a saved result."""
    held = {f.name: getattr(result, f.name) for f in fields(result)}
    arrays = {k: v for k, v in held.items() if isinstance(v, np.ndarray)}
    rest = {k: v for k, v in held.items() if k not in arrays}
    head = to_json({"type": type(result).__name__, "version": 2, "values": rest})
    return pack_arrays({"__head__": np.array(head), **arrays})


NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
SPELLED = re.compile(r"\\*(NaN|-?Infinity)")  # text with backslashes in front: escaped by one more
WRITTEN = re.compile(r"(?<![\w.])([+-]?)(nan|inf)(?!\.?\w)( %)?")  # non-finite numbers as Python formats them


def _reject(value: Any) -> Any:
    raise TypeError(f"A result holds arrays, numbers, strings, lists and dicts, not {type(value).__name__}.")


def to_json(value: Any, *, indent: int | None = None, other: Callable[[Any], Any] = _reject) -> str:
    """Strict JSON of plain values, dataclasses and NumPy numbers; `other` converts anything else to a plain value.

    JSON has no infinities and no NaN: wherever Sightline writes JSON, the strings "Infinity", "-Infinity" and "NaN"
    stand for them. Text that reads the same gets a backslash in front.

    >>> to_json({"ratio": float("inf")})
    '{"ratio":"Infinity"}'
    """
    return json.dumps(
        _to_plain(value, other), indent=indent, allow_nan=False, separators=None if indent else (",", ":")
    )


def _to_plain(value: Any, other: Callable[[Any], Any]) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case str():
            return "\\" + value if SPELLED.fullmatch(value) else value
        case None | bool() | int() | float():
            return value
        case dict():
            return {k: _to_plain(v, other) for k, v in value.items()}
        case list() | tuple():
            return [_to_plain(v, other) for v in value]
        case np.generic():
            return _to_plain(value.item(), other)
    return _to_plain(asdict(value) if hasattr(value, "__dataclass_fields__") else other(value), other)


def from_json(text: str | bytes) -> Any:
    """Parse what `to_json` wrote; infinities and NaN become numbers again.

    >>> from_json('{"ratio": "-Infinity"}')
    {'ratio': -inf}
    """
    try:
        return _from_plain(json.loads(text))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _from_plain(value: Any) -> Any:
    match value:
        case str() if SPELLED.fullmatch(value):
            return NOT_FINITE[value] if value in NOT_FINITE else value[1:]
        case dict():
            return {k: _from_plain(v) for k, v in value.items()}
        case list():
            return [_from_plain(v) for v in value]
    return value


def legible(text: str) -> str:
    """Formatted numbers for people to read: nan becomes "not a number", inf becomes ∞.

    >>> legible(f"a ratio of {float('inf'):.2f}, a share of {float('nan'):.0f} %")
    'a ratio of ∞, a share of not a number'
    """
    return WRITTEN.sub(lambda m: "not a number" if m[2] == "nan" else f"{m[1]}∞", text)


def number(value: float, digits: int = 4) -> str:
    """A number as people write it: so many significant digits, thousands with commas, an exponent only for the tiny.

    >>> number(10_000.0), number(0.123456), number(1_281_167.2), number(3e-6), number(float("inf"))
    ('10,000', '0.1235', '1,281,167', '3e-06', '∞')
    """
    return legible(f"{value:,.0f}" if 10 ** (digits - 1) <= abs(value) < 1e15 else f"{value:.{digits}g}")


def _tuples(value: Any) -> Any:
    """JSON has only lists, results use tuples: convert lists to tuples."""
    if isinstance(value, list):
        return tuple(_tuples(v) for v in value)
    if isinstance(value, dict):
        return {k: _tuples(v) for k, v in value.items()}
    return value
