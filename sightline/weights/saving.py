"""`save` and `convert`: write weights in any format that can represent them, with probe outputs inside."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sightline.files import atomic
from sightline.models import checks
from sightline.models.bit import BiTConfig
from sightline.models.construct import Model, build
from sightline.models.vit import ViTConfig
from sightline.spec import ImageSpec
from sightline.weights.card import Judged, model_card
from sightline.weights.containers.files import SEVERAL_LABELS
from sightline.weights.containers.header import HALF, Header, to_text
from sightline.weights.containers.npz import write_npz
from sightline.weights.containers.pth import write_pth
from sightline.weights.containers.safetensors import write_safetensors
from sightline.weights.conversion import TARGETS, switch_warnings, to_format
from sightline.weights.formats.huggingface import family
from sightline.weights.loading import load
from sightline.weights.probe import make_probes
from sightline.weights.report import Report, WeightsError

TORCH = (".pth", ".pt", ".bin")


def save(
    model: Model,
    path: str | Path,
    *,
    to: str = "sightline",
    classes: Sequence[str] | None = None,
    probes: bool = True,
    verdicts: Sequence[Judged] = (),
) -> Path:
    """Write a model's weights atomically, with configuration, preprocessing, class names and probe outputs inside.

    `to` is sightline, npz, timm, hf, hf-v5, torchvision or bit-pytorch; if the format cannot represent the model, the
    error says why. hf with a path without suffix writes a folder that transformers' `from_pretrained` reads, with a
    model card (README.md): data, recipe and accuracy if the model was loaded from a run folder, and `verdicts`.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> file = sl.save(sl.build("vit-nano4", classes=2), folder / "model.safetensors", classes=["cat", "dog"])
    >>> sl.load(file).class_names
    ('cat', 'dog')
    """
    path = Path(path)
    if not isinstance(model, Model):
        raise WeightsError(
            f"Only models of Sightline can be saved, not a {type(model).__name__}: save it in its library."
        )
    if to not in TARGETS:
        raise WeightsError(f"Weights are written as one of {', '.join(TARGETS)}; got {to!r}.")
    names = tuple(classes) if classes is not None else getattr(model, "class_names", None)
    if names is not None and len(names) != model.config.classes:
        raise WeightsError(f"{len(names)} class names for a head of {model.config.classes} classes.")
    state = {k: v.detach() for k, v in model.state_dict().items()}
    _refuse_broken(state)
    tensors = state if to == "sightline" else to_format(state, model.config, to)
    outputs = make_probes(model) if probes else None
    layout: Any = "sightline" if to == "sightline" else "other"
    probability: Any = getattr(model, "probability", "softmax")
    head = Header(
        config=model.config, image=model.image, classes=names, probes=outputs, layout=layout, probability=probability
    )
    _write(path, tensors, head, to)
    if _is_folder(path, to):
        _write_text(path / "README.md", model_card(model, name=path.name, classes=names or (), verdicts=verdicts))
    return path


def pack(model: Model, path: str | Path, *, about: Mapping[str, str]) -> Path:
    """Write a model in half precision with facts about it, such as its license, for a file that is shipped.

    Loaded again it computes in float32, with the rounded values.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "vit-nano4.test.safetensors"
    >>> again = sl.load(sl.weights.pack(sl.build("vit-nano4", classes=2), file, about={"license": "Apache-2.0"}))
    >>> again.head.weight.dtype
    torch.float32
    """
    state = {k: v.detach().cpu() for k, v in model.state_dict().items()}
    _refuse_broken(state)
    small = {k: v.half() if v.is_floating_point() else v for k, v in state.items()}
    rounded = build(model.config, device="cpu")
    rounded.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in small.items()})
    rounded.image = model.image
    head = Header(
        config=model.config,
        image=model.image,
        classes=getattr(model, "class_names", None),
        probes=make_probes(rounded.eval()),
        probability=getattr(model, "probability", None) or "softmax",
        about={**about, "stored": HALF},
    )
    write_safetensors(Path(path), small, {"sightline": to_text(head)})
    return Path(path)


def _refuse_broken(state: dict[str, Tensor]) -> None:
    for key, value in state.items():
        if value.is_meta:
            raise WeightsError("The model is on the meta device and has no values to save.")
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise WeightsError(f"{key} has NaN or infinite values: the model is broken and was not saved.")


def _write(path: Path, tensors: dict[str, Tensor], head: Header, to: str) -> None:
    suffix = path.suffix.lower()
    if to == "npz" and suffix != ".npz":
        raise WeightsError(f"Google's format is written to an .npz file; got {path.name!r}.")
    if _is_folder(path, to):
        _write_folder(path, tensors, head)
    elif suffix == ".npz" and to != "sightline":
        write_npz(path, tensors, _zip_comment(head))
    elif suffix == ".safetensors":
        write_safetensors(path, tensors, {"sightline": to_text(head)})
    elif suffix in TORCH and to != "sightline":
        write_pth(path, tensors)
    else:
        choices = ".safetensors" if to == "sightline" else ".safetensors, .pth, .pt, .bin or .npz"
        raise WeightsError(f"{to} weights are written to a {choices} file; got {path.name!r}.")


def _is_folder(path: Path, to: str) -> bool:
    return to in ("hf", "hf-v5") and path.suffix == ""


def _write_text(path: Path, text: str) -> None:
    with atomic(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _zip_comment(head: Header) -> str:
    """A zip comment is limited to 64 KiB: if that is too little, probe outputs and then class names are left out."""
    for small in (head, replace(head, probes=None), replace(head, probes=None, classes=None)):
        if len(text := to_text(small)) < 2**16:
            return text
    return ""


def _write_folder(path: Path, tensors: dict[str, Tensor], head: Header) -> None:
    """Write weights, configuration and preprocessing in the folder layout of transformers."""
    write_safetensors(path / "model.safetensors", tensors, {"sightline": to_text(head)})
    for name, held in {"config.json": _hf_config(head), "preprocessor_config.json": _hf_images(head.image)}.items():
        _write_text(path / name, json.dumps(held, indent=1))


def _hf_config(head: Header) -> dict[str, Any]:
    c = head.config
    names = head.classes or tuple(f"LABEL_{i}" for i in range(c.classes))
    labels: dict[str, Any] = {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}}
    if head.probability == "sigmoid":
        labels["problem_type"] = SEVERAL_LABELS
    if isinstance(c, BiTConfig):
        root = int(64 * c.width_factor)
        sizes = [4 * root * 2**s for s in range(len(c.units))]
        kind = "BitForImageClassification" if c.classes else "BitModel"
        about: dict[str, Any] = {"model_type": "bit", "architectures": [kind], "depths": c.units, "hidden_sizes": sizes}
        return {**about, "embedding_size": root, "num_channels": c.channels, **labels}
    assert isinstance(c, ViTConfig)
    name = family(c)
    kinds = {
        "vit": ("ViTModel", "ViTForImageClassification"),
        "deit": ("DeiTModel", "DeiTForImageClassificationWithTeacher"),
        "dinov2": ("Dinov2Model", ""),
        "dinov2_with_registers": ("Dinov2WithRegistersModel", ""),
    }
    about = {
        "model_type": name,
        "architectures": [kinds[name][bool(c.classes)]],
        "hidden_size": c.width,
        "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads,
        "intermediate_size": c.mlp_width,
        "hidden_act": "gelu" if c.gelu == "erf" else "gelu_pytorch_tanh",
        "layer_norm_eps": c.norm_eps,
        "image_size": _side_or_pair(c.size),
        "patch_size": _side_or_pair(c.patch),
        "num_channels": c.channels,
        "qkv_bias": c.qkv_bias,
        **labels,
    }
    if name.startswith("dinov2"):
        about |= {"mlp_ratio": c.mlp_width // c.width, "num_register_tokens": c.registers}
    return about


def _side_or_pair(pair: checks.Pair) -> int | list[int]:
    y, x = checks.pair(pair)
    return y if y == x else [y, x]


def _hf_images(image: ImageSpec) -> dict[str, Any]:
    y, x = image.size
    held: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "rescale_factor": 1 / 255,
        "image_mean": image.mean,
        "image_std": image.std,
        "resample": {"nearest": 0, "bilinear": 2, "bicubic": 3}[image.interpolation],
        "size": {"height": y, "width": x},
    }
    if image.fit == "crop":
        held |= {"size": {"shortest_edge": round(min(y, x) / image.crop)}, "do_center_crop": True}
        held["crop_size"] = {"height": y, "width": x}
    return held


def convert(
    source: str | Path,
    out: str | Path,
    *,
    to: str = "sightline",
    verify: bool = True,
    verdicts: Sequence[Judged] = (),
    **options: Any,
) -> Report:
    """Read weights in any format, write them in another, and report what happened to every key.

    `verdicts` go into the model card of a Hugging Face folder. Other keyword arguments go
    to `sl.load`: `heads=`, `size=`, `classes=` ...

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> ours = sl.save(sl.build("vit-nano4", classes=10), folder / "model.safetensors")
    >>> sl.weights.convert(ours, folder / "model.npz", to="npz").count("taken")
    80
    """
    model: nn.Module = load(source, verify=verify, **options)
    save(model, out, to=to, probes=verify, verdicts=verdicts)  # type: ignore[arg-type]
    report: Report = model.loaded  # type: ignore[assignment]
    if to == "sightline" or (to.startswith("hf") and not Path(out).suffix):  # config.json states these settings
        return report
    return replace(report, warnings=(*report.warnings, *switch_warnings(model.config, to)))  # type: ignore[arg-type]
