"""The model card of a Hugging Face folder: what the model is, its data and recipe, its accuracy, and verdicts."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from sightline import fingerprints
from sightline.models.construct import Model
from sightline.models.description import describe_model
from sightline.spec import Result, number
from sightline.untrusted import escape_controls
from sightline.weights import published
from sightline.weights.loading import load
from sightline.weights.runs import find_run, read_record

FRONT = """---
library_name: transformers
pipeline_tag: {task}{license}
tags:
- vision
- sightline
---
"""
USE = """```python
from transformers import pipeline

classify = pipeline("image-classification", model="this folder or repository")
classify("photo.jpg")
```
"""
UNKNOWN = "Not recorded: these weights are not those of a run folder."
MANY = 20  # class names that are listed
DENSE = ("segment", "detect")
# fields of a recipe that matter only where another one has one of some values
NEEDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "betas": ("optimizer", ("adamw", "muon")),
    "momentum": ("optimizer", ("sgd", "muon")),
    "milestones": ("decay", ("staircase",)),
    "factor": ("decay", ("staircase",)),
    "corrupt": ("task", ("masked", "mae")),
    "target": ("task", ("masked", "mae")),
    "decoder": ("task", ("mae", *DENSE)),
    "head": ("task", DENSE),
    "queries": ("task", DENSE),
    "mask_stride": ("task", DENSE),
    "sigreg": ("task", ("lejepa",)),
    "projector": ("task", ("lejepa",)),
}
DECAYED = ("decay_rule", "decayed")  # matter where weights decay
EXECUTION = (
    "augment",  # has a row of its own
    *("micro", "checkpointing", "compile", "layout", "repeat", "tensorboard", "track"),
    *("log_every", "eval_every", "save_every", "keep_every"),
)


class Judged(Protocol):
    """A verdict on a claim, as `sl.verdicts` gives them."""

    claim: str
    source: str
    statement: str
    models: tuple[str, ...]

    @property
    def state(self) -> str: ...


def model_card(model: Model, *, name: str, classes: Sequence[str] = (), verdicts: Iterable[Judged] = ()) -> str:
    """The card as Markdown. Data, recipe and accuracy come from the run folder whose result these weights are, or from
    the header of the shipped model that they are.

    >>> from sightline.weights.card import model_card
    >>> model_card(sl.build("vit-nano4", classes=2), name="mine").splitlines()[7]
    '# mine'
    """
    run = find_run(model)
    about, facts = read_record(run), shipped_facts(model)
    task = "image-classification" if model.config.classes else "image-feature-extraction"
    parts = [
        FRONT.format(task=task, license=_license(facts)) + f"# {escape_controls(name)}\n",
        _table(_model(model, classes)),
        *(["## Use\n", USE] if model.config.classes else []),
        "## Training data\n",
        _table_or(_data(about) or _some(facts, "data"), UNKNOWN),
        "## Recipe\n",
        _table_or(_recipe(about) if about else _some(facts, "command", "note", "training"), UNKNOWN),
        "## Accuracy\n",
        _table_or(_accuracy(run, about) if run else _some(facts, "accuracy", "seeds"), "Not measured."),
        "## Verdicts\n",
        _verdicts(list(verdicts)),
    ]
    return "\n".join(parts)


def shipped_facts(model: Model) -> Mapping[str, str]:
    """What the header of a shipped model says, if these are still its weights."""
    loaded: Any = getattr(model, "loaded", None)
    entry = published.shipped().get(loaded.source) if loaded is not None else None
    if entry is None:
        return {}
    own = fingerprints.of_tensors(load(entry.name).state_dict())
    return entry.facts if own == fingerprints.of_tensors(model.state_dict()) else {}


def _license(facts: Mapping[str, str]) -> str:
    return f"\nlicense: {facts['license'].lower()}" if "license" in facts else ""


def _some(facts: Mapping[str, str], *keys: str) -> dict[str, str]:
    return {key: facts[key] for key in keys if key in facts}


def _model(model: Model, names: Sequence[str]) -> dict[str, str]:
    description, image = describe_model(model), model.image
    rest = f" and {len(names) - MANY:,} more" if len(names) > MANY else ""
    listed = f": {', '.join(names[:MANY])}{rest}" if names else ""
    return {
        "architecture": description.family,
        "parameters": f"{description.cost.parameters:,}",
        "compute per image": f"{number(description.cost.gmacs, 3)} GMAC",
        "image": f"{image.size[0]} x {image.size[1]} pixels, {image.fit}, {image.interpolation}",
        "mean, std": f"{image.mean}, {image.std}",
        "classes": f"{model.config.classes:,}{listed}",
    }


def _data(about: Mapping[str, Any]) -> dict[str, Any]:
    data = about.get("data")
    return {k: v for k, v in data.items() if v is not None} if isinstance(data, Mapping) else {}


def _recipe(about: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the run that are not empty and had a say."""
    identity = about.get("identity")
    recipe = identity.get("recipe", {}) if isinstance(identity, Mapping) else {}
    plan = about.get("plan")
    steps = {"steps": plan.get("steps")} if isinstance(plan, Mapping) else {}
    told = {k: v for k, v in recipe.items() if v not in (None, "", [], False) and _has_a_say(k, recipe)}
    augment = {k: v for k, v in recipe.get("augment", {}).items() if v not in (None, "", [], False, 0)}
    augment = {k: v for k, v in augment.items() if (k, v) != ("repeats", 1)}
    said = "; ".join(k if v is True else f"{k} {_plain(v)}" for k, v in augment.items())
    return {k: _plain(v) for k, v in {**told, **steps}.items()} | {"augmentation": said or "none"}


def _has_a_say(field: str, recipe: Mapping[str, Any]) -> bool:
    """Whether a field changed what was trained: not one of another task, optimizer or schedule, or of execution."""
    if field in NEEDS:
        other, values = NEEDS[field]
        return recipe.get(other) in values
    return field not in EXECUTION and (field not in DECAYED or bool(recipe.get("weight_decay")))


def _plain(value: Any) -> Any:
    """A setting without the brackets of Python."""
    if isinstance(value, list | tuple):
        return ", ".join(str(_plain(v)) for v in value)
    return number(value) if isinstance(value, float) else value


def _accuracy(run: Path, about: Mapping[str, Any]) -> dict[str, str]:
    """The best validation score of the run, and its test results, where there are any."""
    rows = {}
    best = (about.get("ended") or {}).get("best")
    if isinstance(best, Mapping) and isinstance(best.get("score"), float):
        score = best["score"]
        kind = "validation accuracy" if score >= 0 else "validation loss"
        images = _data(about).get("val")  # without their number, an accuracy of 1 cannot be judged
        of = f" of {images:,} images" if isinstance(images, int) else ""
        rows[f"{kind}{of} (the best, at step {best.get('step')})"] = number(abs(score))
    if (run / "test.npz").is_file():
        rows |= {f"test: {k}": number(float(v)) for k, v in Result.load(run / "test.npz").summary().items()}
    return rows


def _verdicts(verdicts: list[Judged]) -> str:
    if not verdicts:
        return "None: no results were given.\n"
    lines = [f"| {v.claim} | {v.state} | {_cell(v.statement)} | {_cell(', '.join(v.models))} |" for v in verdicts]
    note = "Of claims of the papers, by Sightline's analyses of these models; the bounds are Sightline's.\n"
    return "\n".join([note, "| claim | verdict | statement | models |", "|---|---|---|---|", *lines, ""])


def _table_or(rows: Mapping[str, Any], otherwise: str) -> str:
    return _table(rows) if rows else otherwise + "\n"


def _table(rows: Mapping[str, Any]) -> str:
    lines = [f"| {_cell(k)} | {_cell(v)} |" for k, v in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines, ""])


def _cell(value: Any) -> str:
    """Text as one cell of a table: names come from folders and files of anyone."""
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    text = escape_controls(" ".join(text.split()))
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
