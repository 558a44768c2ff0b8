"""Which model a result is about: the fingerprint of weights and configuration, the kind and the display name."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from torch import nn

from sightline import fingerprints
from sightline.adoption.wrapper import AdoptedModel
from sightline.models.hybrid import Hybrid
from sightline.models.mixer import Mixer
from sightline.models.parts import Part, anatomy
from sightline.models.vit import ViT
from sightline.spec import ModelId


def fingerprint(model: Any) -> str:
    """A hash of weights, configuration and preprocessing, 32 hexadecimal digits; empty if not a module."""
    if not isinstance(model, nn.Module):
        return ""
    inner = model.inner if isinstance(model, AdoptedModel) else model
    # the structure of another library's module is all that is known of its configuration
    structure = "" if inner is model and hasattr(model, "config") else repr(inner)
    about = (type(inner).__name__, structure, getattr(model, "config", None), getattr(model, "image", None))
    return fingerprints.of_tensors(inner.state_dict(), repr(about))


def identify(model: Any, known: Sequence[Part] | None = None, *, name: str = "") -> ModelId:
    """The identity of a model, without running it."""
    return ModelId(
        name=name or type_and_size(model),
        fingerprint=fingerprint(model),
        kind=kind(model, parts(model) if known is None else known),
        pool=pool(model),
    )


def parts(model: Any) -> tuple[Part, ...]:
    """The anatomy of a model; empty if it is unknown."""
    try:
        return anatomy(model)
    except ValueError:
        return ()


def type_and_size(model: Any) -> str:
    """A display name for a model without one: its class, depth and width."""
    plan = plan_of(model)
    size = "x".join(str(getattr(plan, key)) for key in ("depth", "width") if getattr(plan, key, None))
    return f"{type(getattr(model, 'inner', model)).__name__} {size}".strip()


def plan_of(model: Any) -> Any:
    """The configuration of the encoder, else of the whole model."""
    return getattr(model, "encoder_config", getattr(model, "config", None))


def encoder_blocks(model: Any) -> list[nn.Module]:
    """The blocks that take and return all tokens, of a ViT or a Mixer; empty for a CNN."""
    if isinstance(model, ViT | Mixer):
        return list(model.blocks)
    found = getattr(model, "found", None)
    return list(found.blocks) if found is not None else []


def attention_blocks(model: Any) -> list[nn.Module]:
    """The module in which each encoder block computes its attention; empty for a CNN and for a Mixer."""
    mixes = isinstance(model, Mixer) or getattr(getattr(model, "config", None), "kind", "") == "mixer"
    return [] if mixes else encoder_blocks(model)


def kind(model: Any, known: Sequence[Part]) -> str:
    """vit, hybrid, mixer or cnn; empty if unknown."""
    if not attention_blocks(model):
        return "mixer" if encoder_blocks(model) else "cnn" if known else ""
    return "hybrid" if isinstance(model, Hybrid) or any(p.stage is not None for p in known) else "vit"


def pool(model: Any) -> str:
    """What the head reads: cls, gap, or the map of a CNN."""
    if not attention_blocks(model):
        return "gap" if encoder_blocks(model) else "map"
    return str(getattr(plan_of(model), "pool", ""))


def distinct_names(names: Sequence[str], sources: Sequence[str]) -> tuple[str, ...]:
    """Distinct names: equal ones get the folder or file that they come from appended, else (a), (b) ..."""
    if len(set(names)) == len(names):
        return tuple(names)
    places = distinct_places(sources)
    if places:
        return tuple(f"{name} ({place})" for name, place in zip(names, places))
    return tuple(f"{name} ({chr(ord('a') + i)})" for i, name in enumerate(names))


def distinct_places(sources: Sequence[str]) -> tuple[str, ...]:
    """The last component in which all paths differ, such as the run folder; empty if there is none."""
    for level in zip(*(PurePath(source).parts[::-1] for source in sources)):
        if len(set(level)) == len(sources):
            return level
    return ()


def source(model: Any) -> str:
    """The file or folder that a model was loaded from, if known."""
    found = str(getattr(getattr(model, "loaded", None), "source", "") or "")
    return "" if found == "a state dict" else found
