"""Who a result is about: the fingerprint of a model's weights and configuration, its kind and its display name."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from torch import nn

from sightline import fingerprints
from sightline.adoption.wrapper import AdoptedModel
from sightline.models.parts import Part, anatomy
from sightline.models.vit import ViT
from sightline.spec import ModelId


def fingerprint(model: Any) -> str:
    """32 hexadecimal digits of weights, configuration and preprocessing; empty for what is no module."""
    if not isinstance(model, nn.Module):
        return ""
    inner = model.inner if isinstance(model, AdoptedModel) else model
    # of another library's module no configuration is known but its structure
    structure = "" if inner is model and hasattr(model, "config") else repr(inner)
    about = (type(inner).__name__, structure, getattr(model, "config", None), getattr(model, "image", None))
    return fingerprints.of_tensors(inner.state_dict(), repr(about))


def identify(model: Any, known: Sequence[Part] | None = None, *, name: str = "") -> ModelId:
    """The identity of a model; no image is sent through it."""
    return ModelId(
        name=name or type_and_size(model),
        fingerprint=fingerprint(model),
        kind=kind(model, parts(model) if known is None else known),
        pool=pool(model),
    )


def parts(model: Any) -> tuple[Part, ...]:
    """What is where in a model; nothing for one that does not say."""
    try:
        return anatomy(model)
    except ValueError:
        return ()


def type_and_size(model: Any) -> str:
    """What to call a model that has no name: its class, depth and width."""
    plan = plan_of(model)
    size = "x".join(str(getattr(plan, key)) for key in ("depth", "width") if getattr(plan, key, None))
    return f"{type(getattr(model, 'inner', model)).__name__} {size}".strip()


def plan_of(model: Any) -> Any:
    """The configuration of the encoder, or of the whole model."""
    return getattr(model, "encoder_config", getattr(model, "config", None))


def attention_blocks(model: Any) -> list[nn.Module]:
    """The modules within which each encoder block's attention happens; empty for a CNN."""
    if isinstance(model, ViT):
        return list(model.blocks)
    found = getattr(model, "found", None)
    return list(found.blocks) if found is not None else []


def kind(model: Any, known: Sequence[Part]) -> str:
    """vit, hybrid or cnn; empty where nothing is known of the model."""
    if not attention_blocks(model):
        return "cnn" if known else ""
    return "hybrid" if any(p.stage is not None for p in known) else "vit"


def pool(model: Any) -> str:
    """What the head reads: cls, gap, or the map of a CNN."""
    return str(getattr(plan_of(model), "pool", "")) if attention_blocks(model) else "map"


def distinct_names(names: Sequence[str], sources: Sequence[str]) -> tuple[str, ...]:
    """Names that differ: equal ones are told apart by the folders or files they come from, else by (a), (b) ..."""
    if len(set(names)) == len(names):
        return tuple(names)
    places = distinct_places(sources)
    if places:
        return tuple(f"{name} ({place})" for name, place in zip(names, places))
    return tuple(f"{name} ({chr(ord('a') + i)})" for i, name in enumerate(names))


def distinct_places(sources: Sequence[str]) -> tuple[str, ...]:
    """The last part of each path by which all of them differ, such as the run folder; nothing where none does."""
    for level in zip(*(PurePath(source).parts[::-1] for source in sources)):
        if len(set(level)) == len(sources):
            return level
    return ()


def source(model: Any) -> str:
    """The file or folder that a model was loaded from, where it is known."""
    found = str(getattr(getattr(model, "loaded", None), "source", "") or "")
    return "" if found == "a state dict" else found
