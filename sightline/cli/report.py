"""`sightline report`: saved results to one page."""

from pathlib import Path

import click

import sightline as sl
from sightline.cli.shell import show, verb


@verb
@click.argument("results", nargs=-1, required=True)
@click.option(
    "--out", default="report", show_default=True, type=click.Path(file_okay=False), help="Folder for the page."
)
@click.option("--title", default="What these models see", show_default=True, help="Heading of the page.")
@click.option("--megabytes", default=9.5, show_default=True, help="Size that the page stays below.")
@click.option("--note", default="", help="A line below the heading, such as whose photographs are shown.")
def report(results: tuple[str, ...], out: str, title: str, megabytes: float, note: str, as_json: bool) -> None:
    """One self-contained page about RESULTS: files, or folders that look and compare have filled."""
    page = sl.write_report([Path(r) for r in results], out, title, megabytes=megabytes, note=note)
    if as_json:
        show({"page": str(page), "bytes": page.stat().st_size}, True)
    else:
        click.echo(f"{page} ({page.stat().st_size / 1e6:.1f} MB); figures, data, results.json and report.md beside it.")
