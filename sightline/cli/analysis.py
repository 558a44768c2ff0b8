"""`sightline look` and `sightline compare`: every analysis that applies, one file each, one table."""

import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import sightline as sl
from sightline.cli.model import display_name, open_model
from sightline.cli.shell import show, text, verb

FOLDER = click.Path(file_okay=False)


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What both verbs ask."""
    for option in (
        click.option("--seed", default=0, show_default=True, help="Of samples and random draws."),
        click.option("--num", default=256, show_default=True, help="Images; analyses that keep maps take fewer."),
        click.option("--split", default=None, help="Which split of DATA, where there are several."),
        click.option("--size", default=None, type=int, help="Side of the images, for a model built by name."),
        click.option("--only", default=None, help="Names of analyses, with commas between."),
        click.option("--names", "given", default="", help="What to call the models, with a comma between."),
        click.option("--report", is_flag=True, help="Write the page as well, into --out/report."),
        click.option("--out", required=True, type=FOLDER, help="Folder for the results; finished ones are kept."),
    ):
        function = option(function)
    return function


@verb
@click.argument("model")
@click.argument("data")
@options
def look(model: str, data: str, **how: Any) -> None:
    """Look at MODEL on DATA: every analysis that applies, one file each in --out.

    MODEL is a file of weights, a run folder, a name from the zoo, FILE.py:FUNCTION (a function of your own that returns
    a timm, transformers or torchvision module), or the name of a variant, which is untrained.
    """
    (name,) = titles(how.pop("given"), model)
    run(lambda one, d, out, **more: sl.look(one, d, out, name=name, **more), f"What {name} sees", data, model, **how)


@verb
@click.argument("a")
@click.argument("b")
@click.argument("data")
@options
def compare(a: str, b: str, data: str, **how: Any) -> None:
    """Compare the models A and B on DATA: CKA of all layers, and what is worth having side by side."""
    two = titles(how.pop("given"), a, b)
    run(lambda *given, **more: sl.compare(*given, names=two, **more), f"{two[0]} and {two[1]}", data, a, b, **how)


def run(function: Callable[..., list[sl.analysis.Outcome]], title: str, data: str, *models: str, **how: Any) -> None:
    """Open everything, look, write the page if it was asked for, and say what came out."""
    out, as_json = how["out"], how["as_json"]
    ready = [open_model(name, how["size"], classes=10) for name in models]
    given = make_images(data, how["split"])
    rows = function(*ready, given, out, only=names(how["only"]), n=how["num"], seed=how["seed"])
    page(rows, out, report=how["report"], quiet=as_json, title=title)
    tell(rows, as_json, f"{' and '.join(models)} on {data}, results in {out}")


def titles(given: str, *models: str) -> tuple[str, ...]:
    """What a report calls each model: as the user says, or by its file or function; two of one name are told apart."""
    words = tuple(word.strip() for word in given.split(",") if word.strip()) or tuple(map(display_name, models))
    if len(words) != len(models):
        raise ValueError(f"--names {given!r} gives {len(words)} names for {len(models)} models.")
    return words if len({*words}) == len(words) else tuple(f"{w} ({c})" for w, c in zip(words, "ab"))


def page(rows: list[sl.analysis.Outcome], out: str, *, report: bool, quiet: bool, title: str) -> None:
    """The page, if it was asked for; otherwise how to get it."""
    if not any(row.path for row in rows):
        return
    if report:
        written = sl.write_report(out, Path(out) / "report", title)
        click.echo(f"The page: {written}", err=True)
    elif not quiet:
        click.echo(f"For the page: sightline report {out}", err=True)


def make_images(where: str, split: str | None) -> sl.Dataset:
    """The dataset; of what has a test split, that one."""
    if split is None and where.startswith("scenes/"):
        split = "test"
    return sl.dataset(where, split=split)


def names(only: str | None) -> list[str]:
    return [name for name in re.split(r"[,\s]+", only or "") if name]


def tell(rows: list[sl.analysis.Outcome], as_json: bool, title: str) -> None:
    """One row per analysis; exit 0 only if all that was asked for is there."""
    if as_json:
        show([asdict(row) for row in rows], True)
    else:
        table = [
            {
                "analysis": row.name,
                "state": row.state,
                "s": row.seconds or None,
                "numbers": row.why or told(row.numbers),
            }
            for row in rows
        ]
        show(table, False, title=title)
    if not all(row.ok for row in rows):
        sys.exit(1)


def told(numbers: dict[str, float] | None) -> str:
    """The first few numbers of a summary; the file has them all."""
    few = list((numbers or {}).items())[:3]
    return "; ".join(f"{name} {text(value)}" for name, value in few)
