"""How a model was trained, where the run folder that it was loaded from says so, and what two models differ in."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.observe.identity import plan_of, source
from sightline.observe.model import ObservedModel
from sightline.spec import from_json
from sightline.untrusted import read_text


@dataclass(frozen=True, kw_only=True)
class TrainingFacts:
    """What run.json says of a model's training."""

    data: str
    images: int
    seed: int


def training_of(model: Any) -> TrainingFacts | None:
    """Of the run folder that a model was loaded from; None for weights of another origin."""
    place = Path(source(model))
    for folder in (place, place.parent):
        try:
            about = from_json(read_text(folder / "run.json"))
            data = about["data"]
            return TrainingFacts(data=str(data["name"]), images=int(data["train"]), seed=int(about["seed"]))
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
    return None


def parameter_count(s: ObservedModel) -> int:
    """How many numbers were learned."""
    return sum(p.numel() for p in s.model.parameters())


def what_varies(one: ObservedModel, two: ObservedModel) -> str:
    """In what two models differ: "family", "pooling", "size", "data" (how much of the same), "seed"; else, or where
    their run folders are not known, nothing is said."""
    if one.id.kind != two.id.kind:
        return "family"
    if one.pool != two.pool:
        return "pooling"
    sizes = [tuple(getattr(plan_of(s.model), key, None) for key in ("depth", "width")) for s in (one, two)]
    if sizes[0] != sizes[1]:
        return "size"
    first, second = training_of(one.model), training_of(two.model)
    if first is None or second is None or first.data != second.data:
        return ""
    if first.images != second.images:
        return "data"
    return "seed" if first.seed != second.seed else ""
