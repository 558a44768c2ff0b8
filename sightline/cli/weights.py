"""Verbs of the weights room."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

import sightline as sl
from sightline.cli.shell import show, verb
from sightline.weights.report import KeyFate


@verb
@click.argument("source")
@click.argument("out", type=click.Path(path_type=str))
@click.option(
    "--to",
    type=click.Choice(["sightline", "npz", "timm", "hf", "hf-v5", "torchvision", "bit-pytorch"]),
    default="sightline",
    show_default=True,
    help="Format to write.",
)
@click.option("--report", "full", is_flag=True, help="Show the fate of every key.")
@click.option("--no-verify", is_flag=True, help="Do not replay the probe images of the file, and write none.")
@click.option("--heads", type=int, help="Attention heads, where the file cannot say.")
@click.option("--size", type=int, help="Carry position embeddings to this image size.")
@click.option("--method", default="paper", show_default=True, help="How: paper, timm, timm-npz, hf or torchvision.")
@click.option("--classes", type=int, help="A new zero head for this many classes.")
@click.option("--lenient", is_flag=True, help="Leave unexplained keys out instead of refusing the file.")
def convert(
    source: str,
    out: str,
    to: str,
    full: bool,
    no_verify: bool,
    heads: int | None,
    size: int | None,
    method: str,
    classes: int | None,
    lenient: bool,
    as_json: bool,
) -> None:
    """Read weights SOURCE (a file, a folder, a zoo name), write them to OUT in another format."""
    wish: dict[str, Any] = {"method": method, "strict": not lenient}
    wish |= {k: v for k, v in {"heads": heads, "size": size, "classes": classes}.items() if v is not None}
    with quiet("sightline.weights"):  # the report below says the same
        report = sl.convert(source, out, to=to, verify=not no_verify, **wish)
    about: dict[str, Any] = {"source": report.source, "format": report.format, "written": out, "as": to}
    about |= {fate: report.count(fate) for fate in ("taken", "resized", "new", "left")}
    about["verified"] = report.verified
    if as_json:
        keys = {"keys": report.rows()} if full else {}
        show({**about, "warnings": list(report.warnings), **keys}, True)
        return
    show(about, False)
    for warning in report.warnings:
        click.echo(f"note: {warning}")
    if full:
        show([line(e) for e in report.entries], False, title="keys")


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Keep one logger still for a while."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def line(entry: KeyFate) -> dict[str, str]:
    """One key on one line."""
    shapes = [" x ".join(map(str, s)) for s in (entry.found, entry.wanted) if s is not None]
    why = f"{entry.why} ({entry.method})" if entry.method else entry.why
    return {
        "key": entry.key or "",
        "ours": entry.ours or "",
        "fate": entry.fate,
        "shape": " -> ".join(dict.fromkeys(shapes)),
        "why": why,
    }


def zoo_rows(glob: str) -> list[dict[str, Any]]:
    """The zoo as a table; a bare model's name lists all its weights."""
    found = sl.weights.zoo(glob) or sl.weights.zoo(f"{glob}.*")
    if not found:
        raise ValueError(f"No weights match {glob!r}. Type `sightline models --weights` for all of them.")
    return [
        {
            "weights": w.name,
            "size": w.spec.size,
            "classes": w.classes,
            "about": w.about,
            "license": w.license,
            "sha256": w.sha256,
            "source": w.source,
        }
        for w in found
    ]
