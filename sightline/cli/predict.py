"""`sightline predict`: images, named by a trained model."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

import sightline as sl
from sightline.cli.evals import batch_option
from sightline.cli.model import open_model
from sightline.cli.shell import show, verb
from sightline.data.errors import shown

ASSUMED = "note: the model does not name its 1,000 classes; these are the names of ImageNet-1k, which is an assumption."


@verb
@click.argument("model")
@click.argument("images", nargs=-1, required=True, metavar="IMAGE|FOLDER|PATTERN|- ...")
@click.option("--top", default=5, show_default=True, help="Classes to name for each image.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values, one line for each named class.")
@batch_option
def predict(model: str, images: tuple[str, ...], top: int, as_csv: bool, batch: int, as_json: bool) -> None:
    """Name what is on each IMAGE by MODEL's own classifier, with probabilities.

    A FOLDER is read with its subfolders, a PATTERN such as "photos/*.jpg" may be quoted, and - reads one path a line
    from standard input. An image that cannot be read is named on standard error, and the others are predicted.
    """
    if as_csv and as_json:
        raise ValueError("--csv and --json exclude each other: give one of them.")
    said = sl.predict(open_model(model), list(listed(images)), top=top, batch=batch)
    if as_json:
        show(facts(said), True)
    elif as_csv:
        click.echo(table_of_values(said), nl=False)
    else:
        folder = common_folder(said.images)
        show(rows(said, folder), False, title=title(said, folder))
    if said.named_by == "imagenet-1k (assumed)":
        click.echo(ASSUMED, err=True)
    if said.bad:
        click.echo(f"{len(said.bad)} of {len(said) + len(said.bad)} images could not be read.", err=True)


def listed(images: tuple[str, ...]) -> Iterator[str]:
    """The arguments, with the lines of standard input in the place of -."""
    for name in images:
        if name != "-":
            yield name
            continue
        lines = sys.stdin.buffer.read().splitlines()
        yield from (os.fsdecode(line) for line in lines if line.strip())


def facts(said: sl.evals.Predictions) -> dict[str, Any]:
    """Everything, for machines."""
    return {
        "by": said.by,
        "named by": said.named_by,
        "images": [
            {
                "image": one.image,
                "predictions": [
                    {"index": i, "name": name, "probability": p}
                    for i, name, p in zip(one.indices, one.names, one.probabilities)
                ],
            }
            for one in said
        ],
        "bad": [{"image": name, "reason": reason} for name, reason in said.bad.items()],
    }


def table_of_values(said: sl.evals.Predictions) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("image", "rank", "index", "name", "probability"))
    for one in said:
        best = zip(one.indices, one.names, one.probabilities)
        writer.writerows((shown(one.image), rank, i, name, f"{p:.6g}") for rank, (i, name, p) in enumerate(best, 1))
    return text.getvalue()


def rows(said: sl.evals.Predictions, folder: str) -> list[dict[str, str]]:
    """A line for each named class; the image stands on the first of its lines."""
    return [
        {
            "image": shown(os.path.relpath(one.image, folder) if folder else one.image) if rank == 0 else "",
            "class": name,
            "probability": f"{100 * p:9.1f} %",
        }
        for one in said
        for rank, (name, p) in enumerate(zip(one.names, one.probabilities))
    ]


def common_folder(images: tuple[str, ...]) -> str:
    """The folder in which all images are, to be said once; empty where there is none."""
    folders = {os.path.dirname(image) for image in images}
    if "" in folders or len({os.path.isabs(f) for f in folders}) > 1:
        return ""
    return os.path.commonpath(folders)


def title(said: sl.evals.Predictions, folder: str) -> str:
    count = f"{len(said):,} image{'' if len(said) == 1 else 's'}"
    return f"{count} in {shown(folder)}" if folder else count
