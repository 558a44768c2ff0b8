"""The header of a saved model: configuration, preprocessing, class names and probe outputs, as JSON."""

import base64
import binascii
import json
import types
import typing
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import xxhash

from sightline.models.bit import BiTConfig
from sightline.models.hybrid import HybridConfig
from sightline.models.mixer import MixerConfig
from sightline.models.variants import Config
from sightline.models.vit import ViTConfig
from sightline.spec import ImageSpec
from sightline.weights.report import WeightsError

FAMILIES: dict[str, type] = {"vit": ViTConfig, "bit": BiTConfig, "hybrid": HybridConfig, "mixer": MixerConfig}
LARGEST = 16_384  # pixels per side; a header that asks for more is damaged
VERSION = 1
HALF = "float16"  # how a packed model is stored; it computes in float32
ZEROS = "0" * 16  # in place of the checksum while it is computed
FORMER = {"version", "layout", "family", "config", "image", "classes", "probes", "probability"}  # of 0.2.0
T = TypeVar("T")
Probability = Literal["softmax", "sigmoid"]  # over all classes, or for each class independently


@dataclass(frozen=True, kw_only=True)
class Probes:
    """The outputs of the model for the probe images when it was saved."""

    outputs: dict[str, np.ndarray]  # "pooled" and "logits", each (images, values)
    tolerance: float  # largest allowed difference, relative to the largest output


@dataclass(frozen=True, kw_only=True)
class Header:
    """The header of a saved model."""

    config: Config
    image: ImageSpec
    classes: tuple[str, ...] | None = None
    probes: Probes | None = None
    layout: Literal["sightline", "other"] = "sightline"  # the format whose names the tensors have
    probability: Probability = "softmax"  # how logits become probabilities
    about: dict[str, str] = field(
        default_factory=dict
    )  # of packed models: license, command, accuracy, how it is stored


def to_text(header: Header) -> str:
    """One line of JSON."""
    family = next(name for name, kind in FAMILIES.items() if type(header.config) is kind)
    probes = None
    if header.probes is not None:
        outputs = {k: {"shape": v.shape, "data": _encode(v)} for k, v in header.probes.outputs.items()}
        probes = {"outputs": outputs, "tolerance": header.probes.tolerance}
    about: dict[str, Any] = {
        "version": VERSION,
        "layout": header.layout,
        "family": family,
        "config": asdict(header.config),
    }
    about |= {"image": asdict(header.image), "classes": header.classes, "probes": probes}
    about |= {"about": header.about} if header.about else {}
    about |= {"probability": header.probability, "checksum": ZEROS}
    text = json.dumps(about, separators=(",", ":"))
    return _with_checksum(text, ZEROS, xxhash.xxh3_64_hexdigest(text.encode()))


def _with_checksum(text: str, old: str, new: str) -> str:
    return text.replace(f'"checksum":"{old}"', f'"checksum":"{new}"')


def from_text(text: str, *, verify: bool = True) -> Header:
    """Read what `to_text` wrote. Every field is checked: the file may be anyone's."""
    try:
        held = json.loads(text)
        if verify:
            _check_text(text, held)
        if held["version"] != VERSION:
            raise WeightsError(f"The file was written by a newer Sightline (header version {held['version']!r}).")
        config: Any = from_json(FAMILIES[held["family"]], held["config"])
        image = from_json(ImageSpec, held["image"])
        classes = held["classes"]
        if classes is not None and not (isinstance(classes, list) and all(isinstance(c, str) for c in classes)):
            raise WeightsError("The header's class names are not a list of strings.")
        if held["layout"] not in ("sightline", "other"):
            raise WeightsError(f"The header names an unknown layout {held['layout']!r}.")
        probes = None if held["probes"] is None else _decode_probes(held["probes"])
        probability = _checked(held.get("probability", "softmax"), Probability, "probability")
        about = held.get("about", {})
        if not (isinstance(about, dict) and all(isinstance(v, str) for v in about.values())):
            raise WeightsError("What the header says about the model is not a table of texts.")
    except WeightsError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise WeightsError(f"The Sightline header of the file is damaged: {error}.") from error
    _check_plausible(config, image, classes)
    names = None if classes is None else tuple(classes)
    return Header(
        config=config,
        image=image,
        classes=names,
        probes=probes,
        layout=held["layout"],
        probability=probability,
        about=about,
    )


def _check_text(text: str, held: dict[str, Any]) -> None:
    """Compare the checksum; headers of version 0.2.0 have none, and none of what was added since."""
    own = held.get("checksum")
    if own is None and held.keys() <= FORMER:
        return
    blank = _with_checksum(text, str(own), ZEROS)
    if xxhash.xxh3_64_hexdigest(blank.encode("utf-8", "surrogatepass")) != own:
        raise WeightsError("The Sightline header of the file is damaged: its checksum differs.")


def _check_plausible(config: Any, image: ImageSpec, classes: list[str] | None) -> None:
    if max(*config.size, *image.size) > LARGEST or min(image.size) < 1:
        raise WeightsError(f"The header gives an image size of {config.size} pixels: damaged.")
    if (
        tuple(config.size) != tuple(image.size)
        or len(image.mean) != config.channels
        or len(image.std) != config.channels
    ):
        raise WeightsError("The header's preprocessing does not fit its configuration: damaged.")
    if classes is not None and len(classes) != config.classes:
        raise WeightsError(f"The header names {len(classes)} classes, its configuration {config.classes}: damaged.")


def _encode(array: np.ndarray) -> str:
    return base64.b64encode(array.astype("<f8" if array.dtype == np.float64 else "<f4").tobytes()).decode()


def _decode_probes(held: dict[str, Any]) -> Probes:
    outputs = {}
    for name in ("pooled", "logits"):
        if name not in held["outputs"]:
            continue
        shape, data = tuple(held["outputs"][name]["shape"]), held["outputs"][name]["data"]
        try:
            raw = base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise WeightsError(f"The probe outputs of the file are damaged: {error}.") from error
        n = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(raw, dtype="<f8" if len(raw) == 8 * n else "<f4")
        if not np.isfinite(array).all():
            raise WeightsError(f"The probe outputs of the file ({name}) are not numbers: damaged.")
        outputs[name] = array.reshape(shape)
    tolerance = float(held["tolerance"])
    if not 0 < tolerance < 1:
        raise WeightsError(f"The probe tolerance {tolerance} of the file is impossible.")
    return Probes(outputs=outputs, tolerance=tolerance)


def from_json(kind: type[T], values: dict[str, Any]) -> T:
    """A dataclass from JSON values, each field checked against its annotation."""
    hints = typing.get_type_hints(kind)
    ready = {}
    for name, value in values.items():
        if name not in hints:
            raise WeightsError(f"{kind.__name__} has no field {name!r}: the file is newer than this Sightline.")
        ready[name] = _checked(value, hints[name], f"{kind.__name__}.{name}")
    return kind(**ready)


def _checked(value: Any, hint: Any, name: str) -> Any:
    """The value converted to its annotated type, or WeightsError."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for one in args:
            try:
                return _checked(value, one, name)
            except WeightsError:
                continue
    elif origin is typing.Literal:
        if value in args and isinstance(value, str):
            return value
    elif origin is tuple:
        if isinstance(value, list | tuple) and ((len(args) == 2 and args[1] is ...) or len(args) == len(value)):
            return tuple(_checked(v, args[0] if args[-1] is ... else args[i], name) for i, v in enumerate(value))
    elif origin is dict and isinstance(value, dict):
        return value
    elif isinstance(value, dict):
        return from_json(hint, value) if hasattr(hint, "__dataclass_fields__") else _refuse(value, name)
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif type(value) is hint:
        return value
    return _refuse(value, name)


def _refuse(value: Any, name: str) -> Any:
    raise WeightsError(f"{name} cannot be {value!r}: the header of the file is damaged.")
