"""`sightline export`: a model as a file for another runtime."""

from __future__ import annotations

from typing import Any, cast

import click

import sightline as sl
from sightline.cli.shell import show, verb


@verb
@click.argument("model")
@click.option("--to", type=click.Choice(["onnx", "openvino", "torch"]), default="onnx", show_default=True)
@click.option("--out", required=True, type=click.Path(dir_okay=False), help="File: .onnx, .xml (OpenVINO) or .pt2.")
@click.option("--pixels", is_flag=True, help="Take bytes (b, h, w, 3) and give probabilities, not logits.")
def export(model: str, to: str, out: str, pixels: bool, as_json: bool) -> None:
    """Export MODEL for ONNX Runtime, OpenVINO or plain PyTorch, checked in that runtime.

    Example: sightline export runs/pets --to onnx --pixels --out pets.onnx
    """
    done = sl.weights.export(sl.observe.open_model(model, untrained=False), out, to=cast(Any, to), pixels=pixels)
    facts = {
        "file": done.path,
        "input": done.meta["input"],
        "output": done.meta["output"],
        "largest difference": done.difference,
        "speed at batch 1, times PyTorch": done.speed,
    }
    show(vars(done) if as_json else facts, as_json, title=f"{model} for {to}")
