"""`sightline predict`: classify images with a trained model."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

import sightline as sl
from sightline.cli.options import batch_option
from sightline.cli.shell import show, verb
from sightline.untrusted import escape_controls, printable

NOTE = "note: the model has no names for its 1,000 classes; those of ImageNet-1k are assumed."


@verb
@click.argument("model")
@click.argument("images", nargs=-1, required=True, metavar="IMAGE|FOLDER|PATTERN|- ...")
@click.option("--top", default=5, show_default=True, help="Number of classes to print for each image.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values, one line per class.")
@click.option("--draw", type=click.Path(file_okay=False), metavar="FOLDER",
              help="For a run that segments or detects: write images with masks and boxes to FOLDER.")  # fmt: skip
@click.option("--score", type=float, default=0.5, show_default=True, help="Lowest score of a detection that is shown.")
@batch_option
def predict(
    model: str,
    images: tuple[str, ...],
    top: int,
    as_csv: bool,
    draw: str | None,
    score: float,
    batch: int,
    as_json: bool,
) -> None:
    """Classify each IMAGE with MODEL's own classifier, and print the most probable classes.

    A FOLDER includes its subfolders, a PATTERN such as "photos/*.jpg" may be quoted, and - reads one path per line
    from standard input. An image that cannot be read is reported on standard error, and the others are classified.
    A run that was trained to segment or to detect prints classes of pixels or objects, and --draw draws them.

    Example: sightline predict runs/pets photos/
    """
    if as_csv and as_json:
        raise ValueError("--csv and --json exclude each other: give only one.")
    if os.path.isfile(os.path.join(model, "dense.safetensors")):
        predict_masks(model, list(paths(images)), draw, score=score, batch=batch, as_csv=as_csv, as_json=as_json)
        return
    if draw is not None:
        raise ValueError(f"--draw is for runs that segment or detect; {printable(model)} is none.")
    predictions = sl.predict(model, list(paths(images)), top=top, batch=batch)
    if as_json:
        show(facts(predictions), True)
    elif as_csv:
        click.echo(csv_text(predictions), nl=False)
    else:
        folder = common_folder(predictions.images)
        show(rows(predictions, folder), False, title=title(predictions, folder))
    from sightline.weights.names import ASSUMED  # here: `--help` does without

    if predictions.named_by == ASSUMED:
        click.echo(NOTE, err=True)
    if predictions.bad:
        click.echo(
            f"{len(predictions.bad)} of {len(predictions) + len(predictions.bad)} images could not be read.", err=True
        )


def predict_masks(
    model: str, images: list[str], draw: str | None, *, score: float, batch: int, as_csv: bool, as_json: bool
) -> None:
    """Print what a dense model sees: shares of pixels by class, or objects with boxes; draw it if asked."""
    if as_csv:
        raise ValueError("--csv is for classifiers; masks are printed as a table, by --json, or drawn by --draw.")
    bad: dict[str, str] = {}
    predictions = sl.dense.predict_dense(model, images, score=score, batch=batch, bad=bad)
    lines: list[dict[str, Any]] = []
    for one in predictions:
        if one.objects is None:
            lines += [
                {"image": one.image, "class": name, "share of pixels": share} for name, share in one.shares().items()
            ]
            continue
        found = zip(one.objects.classes.tolist(), one.objects.scores.tolist(), one.objects.boxes.tolist())
        lines += [{"image": one.image, "class": one.names[c - 1], "score": s, "box": b} for c, s, b in found]
    if lines or as_json:
        show(lines, as_json, title=masks_title(predictions, score))
    else:
        click.echo(f"{masks_title(predictions, score)}. A lower --score shows more.")
    if bad:
        click.echo(f"{len(bad)} of {len(predictions) + len(bad)} images could not be read.", err=True)
    if draw is not None:
        files = sl.dense.write_drawings(predictions, draw)
        click.echo(
            f"drawn: {printable(files[0])}" + (f" and {len(files) - 1:,} more" if len(files) > 1 else ""), err=True
        )


def masks_title(predictions: list[sl.dense.DensePrediction], score: float) -> str:
    """How many images, and how many of them without an object."""
    count = f"{len(predictions):,} image{'' if len(predictions) == 1 else 's'}"
    empty = sum(one.objects is not None and not len(one.objects.scores) for one in predictions)
    return count + (f", {empty:,} without an object of score {score:g} or more" if empty else "")


def paths(images: tuple[str, ...]) -> Iterator[str]:
    """The arguments, with - replaced by the lines of standard input."""
    for name in images:
        if name != "-":
            yield name
            continue
        text = sys.stdin.buffer.read()
        if b"\0" in text:  # an image itself, or the output of find -print0
            raise ValueError("- reads paths from standard input, one per line; this is no text. Give images as files.")
        lines = text.splitlines()
        yield from (os.fsdecode(line) for line in lines if line.strip())


def facts(predictions: sl.evals.Predictions) -> dict[str, Any]:
    """All predictions as plain values, for --json."""
    return {
        "by": predictions.by,
        "named by": predictions.named_by,
        "temperature": predictions.temperature,
        "images": [
            {
                "image": one.image,
                "predictions": [
                    {"index": i, "name": name, "probability": p}
                    for i, name, p in zip(one.indices, one.names, one.probabilities)
                ],
            }
            for one in predictions
        ],
        "bad": [{"image": name, "reason": reason} for name, reason in predictions.bad.items()],
    }


def csv_text(predictions: sl.evals.Predictions) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("image", "rank", "index", "name", "probability"))
    for one in predictions:
        best = zip(one.indices, one.names, one.probabilities)
        writer.writerows(
            (printable(one.image), rank, i, escape_controls(name), f"{p:.6g}")
            for rank, (i, name, p) in enumerate(best, 1)
        )
    return text.getvalue()


def rows(predictions: sl.evals.Predictions, folder: str) -> list[dict[str, str]]:
    """One row per class; the image is named in the first of its rows."""
    return [
        {
            "image": printable(os.path.relpath(one.image, folder) if folder else one.image) if rank == 0 else "",
            "class": name,
            "probability": f"{100 * p:9.1f} %",
        }
        for one in predictions
        for rank, (name, p) in enumerate(zip(one.names, one.probabilities))
    ]


def common_folder(images: tuple[str, ...]) -> str:
    """The common folder of all images, for the title; empty if there is none."""
    folders = {os.path.dirname(image) for image in images}
    if "" in folders or len({os.path.isabs(f) for f in folders}) > 1:
        return ""
    return os.path.commonpath(folders)


def title(predictions: sl.evals.Predictions, folder: str) -> str:
    count = f"{len(predictions):,} image{'' if len(predictions) == 1 else 's'}"
    calibrated = ", calibrated on validation data" if predictions.temperature != 1 else ""
    return (f"{count} in {printable(folder)}" if folder else count) + calibrated
