"""Open a file, a run folder or a hub folder, with the configuration files next to the weights."""

from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from sightline.models.variants import Config
from sightline.spec import ImageSpec
from sightline.untrusted import open_regular, read_json
from sightline.weights.containers.header import Probability
from sightline.weights.containers.npz import NpzSource
from sightline.weights.containers.pth import open_pth
from sightline.weights.containers.safetensors import HEADER_LIMIT, SafetensorsSource
from sightline.weights.containers.source import Source
from sightline.weights.report import WeightsError

FILES = ("model.safetensors", "pytorch_model.bin", "model.npz", "model.pth")  # in a folder, the first that exists
SEVERAL_LABELS = "multi_label_classification"  # transformers' value of problem_type in config.json


@dataclass(frozen=True)
class Checkpoint:
    """Weights, and what is known about them beyond their shapes."""

    source: Source
    label: str
    hints: dict[str, Any] = field(default_factory=dict)
    image: dict[str, Any] = field(default_factory=dict)  # fields of ImageSpec
    classes: tuple[str, ...] | None = None
    probability: Probability = "softmax"
    expected: Config | None = None  # according to the zoo


def open_path(path: str | Path, *, verify: bool = True) -> Checkpoint:
    """A file, or a folder with one of the usual files in it. `verify` compares checksums as tensors are read."""
    path = Path(path)
    if not path.is_dir():
        return Checkpoint(open_file(path, verify=verify), str(path))
    if (path / "model.safetensors.index.json").exists():
        raise WeightsError(f"{path} has its weights in several shards: save them as one file first.")
    file = next((path / name for name in FILES if (path / name).exists()), None)
    if file is None:
        raise WeightsError(f"{path} is a folder without {', '.join(FILES)}: give the file itself.")
    hints, image, classes = read_configs(path)
    several = _json(path / "config.json").get("problem_type") == SEVERAL_LABELS
    return Checkpoint(
        open_file(file, verify=verify), str(path), hints, image, classes, "sigmoid" if several else "softmax"
    )


def open_file(path: Path, *, verify: bool = True) -> Source:
    """Open a checkpoint by its first bytes; its name does not matter."""
    try:
        with open_regular(path) as file:
            start = file.read(16)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}.") from error
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= HEADER_LIMIT:  # a length may begin with any byte
        return SafetensorsSource(path, verify=verify)
    if start[:2] == b"PK":
        return NpzSource(path, verify=verify) if NpzSource.fits(path) else open_pth(path, verify=verify)
    if start[:1] == b"\x80":  # pickle, as torch wrote it before 1.6
        return open_pth(path)
    if start[8:9] == b"{":
        return SafetensorsSource(path, verify=verify)  # a length beyond all bounds: let it say so
    if path.suffix == ".py":
        raise WeightsError(f"{path} is Python: name the function in it that returns the model, as {path}:FUNCTION.")
    raise WeightsError(f"{path} is not an .npz, .safetensors or .pth file, or its beginning is damaged.")


def read_configs(folder: Path) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...] | None]:
    """Hints, preprocessing and class names from the JSON files of a hub folder (transformers' or timm's)."""
    try:
        return _read_configs(folder)
    except (KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise WeightsError(
            f"config.json or preprocessor_config.json in {folder} is damaged ({type(error).__name__}: {error})."
        ) from error


def _read_configs(folder: Path) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...] | None]:
    config, processor = _json(folder / "config.json"), _json(folder / "preprocessor_config.json")
    hints: dict[str, Any] = {}
    if isinstance(config.get("num_attention_heads"), int):
        hints["heads"] = config["num_attention_heads"]
    if isinstance(config.get("layer_norm_eps"), float):
        hints["norm_eps"] = config["layer_norm_eps"]
    act = config.get("hidden_act")
    if isinstance(act, str) and act != "relu":
        forms = {"gelu": "erf", "gelu_pytorch_tanh": "tanh", "gelu_new": "tanh"}
        if act not in forms:
            raise WeightsError(f"{folder} asks for the activation {act!r:.80}; Sightline's ViT has {', '.join(forms)}.")
        hints["gelu"] = forms[act]
    if config.get("global_padding") or config.get("layer_type", "preactivation") != "preactivation":
        raise WeightsError(
            f"{folder} has a BiT whose padding or layers differ from the paper's: wrap it with sl.adopt."
        )
    labels = config.get("id2label")
    classes = None
    if isinstance(labels, dict) and labels and all(str(i) in labels for i in range(len(labels))):
        classes = tuple(str(labels[str(i)]) for i in range(len(labels)))
    return hints, _from_processor(processor) or _from_timm(config.get("pretrained_cfg")), classes


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        held = read_json(path)
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path} is not readable JSON ({error}).") from error
    return held if isinstance(held, dict) else {}


def _from_processor(held: dict[str, Any]) -> dict[str, Any]:
    """Preprocessing of transformers' image processor: resize to `size`, then optionally a center crop."""
    if "image_mean" not in held:
        return {}
    cut = held.get("crop_size") if held.get("do_center_crop") else None
    side = _side(held.get("size"))
    crop = _side(cut) / side if cut and side else 1.0
    return {
        "mean": _numbers(held["image_mean"]),
        "std": _numbers(held["image_std"]),
        "crop": min(crop, 1.0),
        "fit": "crop" if cut else "squash",
        "interpolation": {0: "nearest", 2: "bilinear", 3: "bicubic"}.get(held.get("resample", 2), "bilinear"),
    }


def _numbers(value: Any) -> tuple[float, ...]:
    """One number per channel."""
    if not isinstance(value, list) or not value or not all(type(v) in (int, float) and isfinite(v) for v in value):
        raise WeightsError(f"A mean or std of the preprocessing is {value!r:.80}; expected a list of numbers.")
    return tuple(value)


def _side(value: Any) -> int:
    if isinstance(value, dict):
        value = value.get("shortest_edge", value.get("height", 0))
    return value if isinstance(value, int) else 0


def _from_timm(held: Any) -> dict[str, Any]:
    if not isinstance(held, dict) or "mean" not in held:
        return {}
    how = held.get("interpolation", "bicubic")
    return {
        "mean": _numbers(held["mean"]),
        "std": _numbers(held["std"]),
        "crop": float(held.get("crop_pct", 1.0)),
        "interpolation": how if how in ("bicubic", "bilinear", "nearest") else "bicubic",
    }


def with_image(image: ImageSpec, fields: dict[str, Any]) -> ImageSpec:
    """An ImageSpec with some fields replaced, but not its size."""
    return ImageSpec(**{**vars(image), **fields})
