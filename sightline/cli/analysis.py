"""`sightline look` and `sightline compare`: every analysis that applies, one file each, one table."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

import click

import sightline as sl
from sightline.cli.options import FOLDER, Words, combine_options, size_option, source_split_option
from sightline.cli.shell import show, text, verb

SHOWN = 3  # numbers per result in the table; the saved file has all of them
options = combine_options(
    click.option("--out", required=True, type=FOLDER, help="Folder for the results; existing ones are reused."),
    click.option("--report", is_flag=True, help="Also write the page, into the folder report of --out."),
    click.option(
        "--names", "titles", type=Words(), default="", help="Display names of the models, separated by commas."
    ),
    click.option("--only", default="", help="Run only these analyses, such as cka,rollout."),
    click.option("--quick", is_flag=True, help="Only the analyses that take a second or two each."),
    size_option,
    source_split_option,
    click.option("--num", default=256, show_default=True, help="Number of images; analyses that store maps use fewer."),
    click.option("--seed", default=0, show_default=True, help="Random seed."),
)


@verb
@click.argument("model")
@click.argument("data")
@options
def look(model: str, data: str, **settings: Any) -> None:
    """Run every analysis that applies to MODEL on images of DATA, and save each result.

    Example: sightline look vit-b16.augreg-i21k pets --out looks/vit --report
    """
    analyze([model], data, **settings)


@verb
@click.argument("a", metavar="MODEL")
@click.argument("b", metavar="MODEL")
@click.argument("data")
@options
def compare(a: str, b: str, data: str, **settings: Any) -> None:
    """Compare two models on images of DATA: CKA between all layers, and every other analysis side by side.

    Example: sightline compare runs/vit runs/bit scenes/count --out vit-bit
    """
    analyze([a, b], data, **settings)


def analyze(
    sources: list[str],
    data: str,
    *,
    out: str,
    titles: tuple[str, ...],
    report: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Open models and data, run the analyses, write the page if requested, and print the table."""
    names = titles or sl.observe.model_names(sources)
    if len(names) != len(sources):
        raise ValueError(f"--names has {len(names)} names for {len(sources)} models: give one per model.")
    models = [sl.observe.open_model(source, size=settings["size"], classes=10) for source in sources]
    images = sl.dataset(data, split=settings["split"] or sl.data.held_out_split(data))
    only = re.findall(r"[^,\s]+", settings["only"]) + ["quick"] * settings["quick"]
    how = {"only": only, "n": settings["num"], "seed": settings["seed"]}
    if len(models) == 1:
        outcomes = sl.look(models[0], images, out, name=names[0], **how)
    else:
        outcomes = sl.compare(models[0], models[1], images, out, names=names, **how)
    page = ""
    if report and any(outcome.path for outcome in outcomes):
        title = f"{names[0]} and {names[1]}" if len(names) > 1 else f"What {names[0]} sees"
        page = f"Page: {sl.write_report(out, Path(out) / 'report', title)}"
    elif not as_json and any(outcome.path for outcome in outcomes):
        page = f"To write a page: sightline report {out}"
    print_outcomes(outcomes, as_json, f"{' and '.join(names)} on {data}, results in {out}", page)


def print_outcomes(outcomes: list[sl.analysis.Outcome], as_json: bool, title: str, page: str) -> None:
    """One row per analysis, and below them where the page is; exit code 1 if one of them failed."""
    rows = [
        {"analysis": o.name, "state": o.state, "s": o.seconds or None, "numbers": o.why or first_numbers(o.numbers)}
        for o in outcomes
    ]
    show(outcomes if as_json else rows, as_json, title=title)
    if page:
        click.echo(page, err=True)
    if not all(outcome.ok for outcome in outcomes):
        sys.exit(1)


def first_numbers(numbers: dict[str, float] | None) -> str:
    """The first few numbers of a summary that are defined for these images."""
    few = [(name, value) for name, value in (numbers or {}).items() if not math.isnan(value)][:SHOWN]
    if numbers and not few:
        return "none is defined for this model and these images: the page says why"
    return "; ".join(f"{name} {text(value)}" for name, value in few)
