"""Verbs that put a model behind a local web address: open (look inside it) and serve (classify by HTTP)."""

from __future__ import annotations

import importlib.util

import click

import sightline as sl
from sightline.cli.shell import verb


@verb
@click.argument("model")
@click.argument("second", required=False)
@click.option("--images", default="", help="Folder of images to pick from.")
@click.option("--results", default="", help="Output folder of sightline compare, to show the most similar layers.")
@click.option("--names", default="", help="What to call the models: A or A,B.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Port to listen on; by default a free one.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def open_(
    model: str,
    second: str | None,
    images: str,
    results: str,
    names: str,
    port: int,
    no_browser: bool,
    as_json: bool,
) -> None:
    """Look inside MODEL, or MODEL and SECOND side by side: drop an image, point at patches, switch parts off.

    The page is served to this machine only, at an address that contains a secret. Nothing is written or uploaded.

    Example: sightline open vit.safetensors bit.safetensors --images photos
    """
    models = [model] if second is None else [model, second]
    called = [name.strip() for name in names.split(",")] if names else []
    sl.open_app(*models, images=images, results=results, names=called, port=port, browser=not no_browser)


@verb
@click.argument("model")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is open to the network."
)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535), help="Port to listen on.")
@click.option("--top", default=5, show_default=True, help="Classes in an answer.")
@click.option("--megabytes", default=20.0, show_default=True, help="Largest upload, in MB.")
@click.option("--rate", default=100.0, show_default=True, help="Requests per second that one client may send.")
@click.option("--batch", default=16, show_default=True, help="Concurrent requests that share a forward pass.")
def serve(model: str, host: str, port: int, top: int, megabytes: float, rate: float, batch: int, as_json: bool) -> None:
    """Serve MODEL over HTTP: POST an image to /predict and get names and probabilities as JSON.

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
