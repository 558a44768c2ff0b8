"""`sightline models` lists models and published weights; `sightline show` describes one model."""

from __future__ import annotations

from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click

import sightline as sl
from sightline.cli.options import Size
from sightline.cli.shell import memory, verb
from sightline.cli.shell import show as print_table


@verb
@click.argument("glob", default="*")
@click.option("--weights", is_flag=True, help="List published weights instead.")
def models(glob: str, weights: bool, as_json: bool) -> None:
    """List the models, or published weights, whose names match GLOB.

    Example: sightline models "vit-*" --weights
    """
    if weights:
        print_weights(glob, as_json)
        return
    rows = [asdict(row) for row in sl.models.list_models(glob)]
    if not rows:
        raise ValueError(f"No model matches {glob!r}. Type `sightline models` to list all of them.")
    print_table(rows, as_json, title="Other patch sizes (vit-b8) and widths (bit-r50x2) can be built too.")
    trained = [w for w in sl.weights.zoo() if w.name in sl.weights.shipped() and fnmatchcase(w.name, f"{glob}*")]
    if trained and not as_json:
        facts = [
            {
                "trained, in the package": w.name,
                "size": w.spec.size,
                "about": w.about.removeprefix("ships with the package: "),
            }
            for w in trained
        ]
        print_table(facts, False, title="Trained models that ship with the package; others: sightline models --weights")


def print_weights(glob: str, as_json: bool) -> None:
    """List published weights; the name of a model lists all of its weights."""
    entries = sl.weights.zoo(glob) or sl.weights.zoo(f"{glob}.*")
    if not entries:
        raise ValueError(f"No weights match {glob!r}. Type `sightline models --weights` to list all of them.")
    rows = [
        {
            "weights": w.name,
            "size": w.spec.size,
            "classes": w.classes,
            "about": w.about,
            "license": w.license,
        }
        | ({"sha256": w.sha256, "source": w.source} if as_json or len(entries) == 1 else {})
        for w in entries
    ]
    title = "sl.load(NAME) downloads them once; a local file works too. NAME --weights shows the source."
    print_table(rows, as_json, title=title)


@verb
@click.argument("model")
@click.option("--size", type=Size(), help="Image size: 384, or 384x256 (height x width).")
@click.option("--classes", type=int, help="Number of classes of a variant; 0 for features only.")
@click.option("--parts", is_flag=True, help="List every recordable tensor with its module path.")
@click.option("--growth", is_flag=True, help="Show how attention grows as patches shrink to pixels.")
@click.option(
    "--published", is_flag=True, help="List what the papers report for this model, with conditions and table."
)
def show(model: str, size: Any, classes: int | None, parts: bool, growth: bool, published: bool, as_json: bool) -> None:
    """Describe MODEL: its configuration, what it costs to run, and the published cost of pre-training it.

    Example: sightline show vit-b16 --size 384
    """
    changes = {k: v for k, v in {"size": size, "classes": classes}.items() if v is not None}
    what = trained_model(model, changes)
    config: Any = sl.models.config(model, **changes) if what is None else what.config
    if parts:
        rows = [vars(p) for p in sl.anatomy(sl.build(config, device="meta") if what is None else what)]
        print_table(rows, as_json, title=model)
    elif published:
        print_published(model, sl.references.published_name(config), as_json)
    elif growth:
        print_table(sl.models.attention_growth(config), as_json, title=f"{model}: cost of attention by patch size")
    else:
        description = sl.models.describe_model(model, **changes) if what is None else sl.models.describe_model(what)
        spent = pretraining_cost(sl.references.published_name(config))
        shipped = sl.weights.shipped()
        known = shipped[model].facts if model in shipped else {}
        print_table(facts(description) | spent | known | {"model": model}, as_json, title=model)


def trained_model(name: str, changes: dict[str, Any]) -> Any:
    """The model behind a file, a run, a published name or a live one; None for a variant, which need not be built."""
    if not Path(name).exists() and not any(mark in name for mark in ":."):
        return None
    if "classes" in changes:
        raise ValueError(f"--classes is for variants; {name} has its own head. Leave it out.")
    return sl.observe.open_model(name, untrained=False, **changes)


def print_published(model: str, name: str, as_json: bool) -> None:
    """Every published number of an architecture."""
    if not name:
        raise ValueError(f"No table of the papers reports {model}; sightline show vit-l16 --published is an example.")
    print_table(sl.references.as_rows(sl.references.find(model=name)), as_json, title=f"{model}: published")


def pretraining_cost(name: str) -> dict[str, str]:
    """The published compute of pre-training: in core-days, and in days on eight cores."""
    rows = sl.references.find("vit-2", metric="TPUv3-core-days")
    return {
        f"published pre-training ({r.pretraining})": f"{r.value:,.0f} TPUv3-core-days: "
        f"{sl.references.days_on(8, r.value):,g} days on 8 cores ({r.source.rsplit(', ', 1)[-1]})"
        for r in rows
        if r.model == name
    }


def facts(description: sl.models.ModelDescription) -> dict[str, Any]:
    """A description as a table of names and values."""
    config: Any = description.config
    cost = description.cost
    share = (
        {"share of attention products": f"{100 * cost.attention_macs / cost.macs:.1f} %"} if cost.attention_macs else {}
    )
    return {
        "model": description.name,
        "family": description.family,
        "parameters": cost.parameters,
        "parameter memory": memory(cost.parameter_bytes),
        "GMAC per image": round(cost.gmacs, 3),
        **share,
        "training activations per image": memory(cost.activation_bytes),
        **description.settings,
        **({"grid": config.grid, "tokens": cost.tokens} if cost.attention_macs else {}),
        **({"stride": config.stride} if hasattr(config, "stride") else {}),
        "pixel mean": description.image.mean,
        "pixel std": description.image.std,
    }
