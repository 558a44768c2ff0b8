"""Names of a model's classes: its own, or those of ImageNet-1k."""

from typing import Any

from sightline.data.named.imagenet import imagenet_classes
from sightline.weights import published

IMAGENET = 1000  # classes of ImageNet-1k
ASSUMED = "imagenet-1k (assumed)"


def class_names(model: Any, count: int) -> tuple[tuple[str, ...], str]:
    """The names of a model's classes, and their source: model, imagenet-1k, imagenet-1k (assumed), or number if it has
    none."""
    labels = getattr(getattr(getattr(model, "inner", None), "config", None), "id2label", None) or {}
    own = getattr(model, "class_names", None) or tuple(labels[i] for i in sorted(labels))
    placeholders = tuple(f"LABEL_{i}" for i in range(count))  # transformers' placeholder if no names were given
    if len(own) == count and tuple(own) != placeholders:
        return tuple(own), "model"
    if count == IMAGENET:
        return tuple(imagenet_classes().values()), "imagenet-1k" if _is_imagenet(model) else ASSUMED
    return tuple(map(str, range(count))), "number"


def _is_imagenet(model: Any) -> bool:
    """Whether the zoo or timm says that the classes are ImageNet-1k's."""
    entry = published.find(getattr(getattr(model, "loaded", None), "source", ""))
    timm = getattr(getattr(model, "inner", None), "pretrained_cfg", None)
    tag = str(timm.get("tag", "")) if isinstance(timm, dict) else ""
    return (entry is not None and "i1k" in entry.name.split(".")[-1].split("-")) or "in1k" in tag.split("_")
