"""The preprocessing of a live model, as far as its library knows it."""

from typing import Any

from torch import nn

from sightline.spec import ImageSpec

SIDE = 224


def library(module: nn.Module) -> str:
    """The package a module's class comes from."""
    return type(module).__module__.split(".")[0]


def size_of(module: nn.Module) -> tuple[int, int]:
    """Height and width of the images that the model expects."""
    config = getattr(module, "config", None)
    embed = getattr(module, "patch_embed", None) or getattr(module, "stem", None)  # timm's Mixer calls it stem
    known = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None) or {}
    for value in (
        getattr(embed, "img_size", None),
        getattr(config, "image_size", None),
        getattr(module, "image_size", None),
        known.get("input_size", (None, None))[1:] if isinstance(known, dict) else None,
    ):
        if isinstance(value, int):
            return value, value
        if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(v, int) for v in value):
            return value[0], value[1]
    return SIDE, SIDE


def spec_of(module: nn.Module, size: tuple[int, int], channels: int) -> ImageSpec:
    """timm's models state their preprocessing; transformers' Google models take 0.5, others ImageNet's mean and std."""
    known: Any = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)
    if isinstance(known, dict) and known.get("mean"):
        how = known.get("interpolation", "bicubic")
        return ImageSpec(
            size=size,
            mean=tuple(known["mean"]),
            std=tuple(known["std"]),
            crop=float(known.get("crop_pct") or 1.0),
            interpolation=how if how in ("bicubic", "bilinear", "nearest") else "bicubic",
        )
    kind = getattr(getattr(module, "config", None), "model_type", "")
    if kind in ("vit", "bit") or channels != 3:
        half = (0.5,) * channels
        return ImageSpec(size=size, mean=half, std=half, fit="squash", interpolation="bilinear")
    return ImageSpec.imagenet(size, interpolation="bilinear" if library(module) == "torchvision" else "bicubic")
