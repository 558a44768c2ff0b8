"""How results, runs, datasets, predictions, verdicts and models show themselves in a notebook."""

import base64
import io
from functools import singledispatch
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image
from torch import nn

from sightline.data.datasets import Dataset
from sightline.data.errors import BadImage
from sightline.data.images import decode, read_bytes
from sightline.evals.prediction import Prediction, Predictions
from sightline.models.description import describe_model
from sightline.report.page import STATES, environment
from sightline.spec import Result, number
from sightline.studies.verdict import Verdict
from sightline.training.run.folder import Run
from sightline.views.drawing import draw
from sightline.views.style import to_png
from sightline.views.table import view_of
from sightline.views.view import with_interval

THUMBNAILS, SIDE = 12, 96  # images of a dataset that are shown, and their side in pixels
ROWS = 12  # of a table


@singledispatch
def to_html(thing: Any) -> str:
    """The HTML that a notebook shows for an object.

    >>> "<table" in sl.report.to_html(sl.build("vit-nano4"))
    True
    """
    raise ValueError(f"There is no display for a {type(thing).__name__}.")


@to_html.register
def _(result: Result) -> str:
    ends = result.intervals()
    return render(
        title=result.title,
        figure=png(draw(result, title=False)),
        lead=view_of(result).sentence_of(result),
        rows=[(name, with_interval(float(value), ends.get(name), number)) for name, value in result.summary().items()],
        note=result.caption,
    )


@to_html.register
def _(run: Run) -> str:
    about, curves = run.about, run.curves()
    done = int(curves.step[-1]) if len(curves.step) else 0
    state = f"{done:,} of {about['plan']['steps']:,} steps"
    return render(
        title=f"Run {run.folder}",
        figure=png(draw(curves, title=False)) if len(curves.step) else None,
        lead=f"{about['name']} on {about['data']['name']}: {state}{', finished' if run.finished else ''}.",
        rows=[(name, number(value)) for name, value in run.summary().items()],
        note="" if run.finished else "If it was stopped, sl.fit with the same arguments resumes it.",
    )


@to_html.register
def _(data: Dataset) -> str:
    chosen = np.unique(np.linspace(0, len(data) - 1, min(THUMBNAILS, len(data))).astype(int))
    images = [(thumbnail(raw), label_of(data, i)) for i, raw in zip(chosen, data.images(chosen))]
    counts = data.counts()
    each = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
    return render(
        title=data.name,
        images=images,
        lead=f"{len(data):,} images, {len(data.classes):,} classes, {each} images of each.",
    )


@to_html.register
def _(verdict: Verdict) -> str:
    return render(
        title=f"{verdict.claim} {verdict.state}",
        state=STATES[verdict.state],
        lead=f"{verdict.statement} ({verdict.source}; {', '.join(verdict.models)})",
        rows=[(effect.state, effect.text()) for effect in verdict.effects],
        note=verdict.why(),
    )


@to_html.register
def _(said: Predictions) -> str:
    shown = said[:THUMBNAILS]
    hidden = f" The first {len(shown)} of {len(said):,}." if len(said) > len(shown) else ""
    bad = f" {len(said.bad):,} could not be read: {', '.join(list(said.bad)[:3])}." if said.bad else ""
    return render(
        title=f"Predictions for {len(said):,} image{'s' * (len(said) != 1)}",
        images=[(thumbnail_of(one.image), percentages(one)) for one in shown],
        lead=f"The most probable of {len(said.classes):,} classes.{hidden}{bad}",
    )


@to_html.register
def _(said: Prediction) -> str:
    rows = [(name, f"{p:.1%}") for name, p in zip(said.names, said.probabilities)]
    return render(title=f"Prediction for {said.image}", images=[(thumbnail_of(said.image), "")], rows=rows)


def percentages(said: Prediction) -> str:
    return ", ".join(f"{name} {p:.0%}" for name, p in list(zip(said.names, said.probabilities))[:3])


@to_html.register
def _(model: nn.Module) -> str:
    description = describe_model(model)
    cost, size = description.cost, " x ".join(map(str, description.cost.size))
    return render(
        title=f"Model: {description.family}",
        lead=f"{cost.parameters:,} parameters, {number(cost.gmacs, 3)} GMAC per image of {size}.",
        rows=[(name, str(value)) for name, value in description.settings.items()],
        folded=True,
    )


def render(**content: Any) -> str:
    """Fill in the template; what is not given is left out."""
    return (
        environment()
        .get_template("notebook.html")
        .render(
            {
                "lead": "",
                "figure": None,
                "images": (),
                "rows": (),
                "note": "",
                "state": "",
                "folded": False,
                "many": ROWS,
            }
            | content
        )
    )


def png(figure: Any) -> Markup:
    """A figure as the address of an image."""
    return address(to_png(figure), "png")


def thumbnail(raw: Any) -> Markup | None:
    """A small image; None for one that cannot be read."""
    if isinstance(raw, BadImage):
        return None
    try:
        image = Image.fromarray(raw) if isinstance(raw, np.ndarray) else decode(raw)
    except ValueError:
        return None
    image, buffer = image.convert("RGB"), io.BytesIO()
    if max(image.size) > SIDE:
        image.thumbnail((SIDE, SIDE))
        image.save(buffer, "JPEG", quality=85)
        return address(buffer.getvalue(), "jpeg")
    factor = SIDE // max(image.size)  # whole pixels, so that small images stay sharp
    image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST).save(buffer, "PNG")
    return address(buffer.getvalue(), "png")


def thumbnail_of(path: str) -> Markup | str:
    """A small image of a file; empty where there is none (images in memory have numbers, not paths)."""
    try:
        return thumbnail(read_bytes(path)) or ""
    except BadImage:
        return ""


def address(data: bytes, kind: str) -> Markup:
    return Markup(f"data:image/{kind};base64,{base64.b64encode(data).decode()}")


def label_of(data: Dataset, index: int) -> str:
    """The class names of an image, several where it has several."""
    label = data.labels[index]
    numbers = np.flatnonzero(label) if np.ndim(label) else [int(label)]
    return ", ".join(data.classes[i] for i in numbers if i >= 0)
