"""`sightline serve`: a model behind a local web address."""

from __future__ import annotations

import importlib.util

import click

import sightline as sl
from sightline.cli.shell import verb


@verb
@click.argument("model")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address; 0.0.0.0 is open to the network.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535))
@click.option("--top", default=5, show_default=True, help="Classes in an answer.")
@click.option("--megabytes", default=20.0, show_default=True, help="Largest upload.")
@click.option("--rate", default=100.0, show_default=True, help="Requests per second of one client.")
@click.option("--batch", default=16, show_default=True, help="Images in one forward pass.")
def serve(model: str, host: str, port: int, top: int, megabytes: float, rate: float, batch: int, as_json: bool) -> None:
    """Classify images by HTTP with MODEL: POST an image to /predict, get JSON.

    Example: sightline serve runs/pets --port 8000
    """
    for library in ("starlette", "uvicorn"):
        if importlib.util.find_spec(library) is None:
            raise ValueError(f"sightline serve needs {library}: pip install 'sightline[app]'.")
    trained = sl.observe.open_model(model, untrained=False)
    limits = sl.app.Limits(megabytes=megabytes, rate=rate, batch=batch)
    address = f"http://{host}:{port}"
    click.echo(f"Serving {model} at {address}. Try: curl --data-binary @image.jpg {address}/predict", err=True)
    (name,) = sl.observe.model_names([model])  # not the path, which is nobody's business
    sl.app.serve(trained, host=host, port=port, name=name, top=top, limits=limits)
