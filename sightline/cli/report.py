"""`sightline report`: write a page from saved results."""

from __future__ import annotations

from pathlib import Path

import click

import sightline as sl
from sightline.cli.options import FOLDER
from sightline.cli.shell import show, verb


@verb
@click.argument("results", nargs=-1, required=True)
@click.option("--out", default="report", show_default=True, type=FOLDER, help="Folder for the page.")
@click.option("--title", default="What these models see", show_default=True, help="Heading of the page.")
@click.option("--megabytes", default=9.5, show_default=True, help="Maximum size of the page.")
@click.option("--note", default="", help="A line below the heading, such as image credits.")
def report(results: tuple[str, ...], out: str, title: str, megabytes: float, note: str, as_json: bool) -> None:
    """Write one self-contained page about RESULTS: result files, run folders, or output folders of look and compare.

    Example: sightline report looks/vit --out page
    """
    page = sl.write_report([Path(r) for r in results], out, title, megabytes=megabytes, note=note)
    size = page.stat().st_size
    if as_json:
        show({"page": str(page), "bytes": size}, True)
    else:
        click.echo(f"{page} ({size / 1e6:.1f} MB), with figures, data, results.json and report.md next to it.")
