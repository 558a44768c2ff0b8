"""Verbs that write weights: convert (to another format) and export (for another runtime)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import click

import sightline as sl
from sightline.cli.predict import NOTE
from sightline.cli.shell import show, tell, verb


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
@click.option("--report", "full", is_flag=True, help="Show what happened to every key.")
@click.option("--no-verify", is_flag=True, help="Compare no checksums, and neither replay nor write probe images.")
@click.option("--heads", type=int, help="Number of attention heads, where the file does not say.")
@click.option("--size", type=int, help="Resample position embeddings to this image size.")
@click.option(
    "--method", default="paper", show_default=True, help="Resampling method: paper, timm, timm-npz, hf or torchvision."
)
@click.option("--classes", type=int, help="Replace the head by a new zero-initialized one with this many classes.")
@click.option("--lenient", is_flag=True, help="Ignore unknown keys instead of refusing the file.")
@click.option("--results", multiple=True, help="hf: folder of results whose verdicts go into the model card.")
@click.option("--push", metavar="USER/NAME", help="hf: also upload the folder to the Hugging Face Hub.")
@click.option("--public", is_flag=True, help="With --push: a new repository is visible to everybody.")
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
    results: tuple[str, ...],
    push: str | None,
    public: bool,
    as_json: bool,
) -> None:
    """Convert weights SOURCE (a file, a folder or a published name) to another format, and write them to OUT.

    \b
    Example: sightline convert vit-b16.augreg-i21k vit.safetensors --to timm
             sightline convert runs/pets pets-hf --to hf --results looks/pets

    hf with an OUT without suffix writes a folder for transformers with a model card; --push uploads it.
    """
    if (results or push) and (not to.startswith("hf") or Path(out).suffix):
        raise ValueError("--results and --push are for a Hugging Face folder: --to hf, and OUT without a suffix.")
    options: dict[str, Any] = {"method": method, "strict": not lenient}
    if results:
        from sightline.report.collect import collect  # slow to import, and seldom needed

        options["verdicts"] = sl.verdicts(e.result for e in collect(results).entries)
    options |= {k: v for k, v in {"heads": heads, "size": size, "classes": classes}.items() if v is not None}
    with silence("sightline.weights"):  # the report below repeats them
        report = sl.weights.convert(source, out, to=to, verify=not no_verify, **options)
    about: dict[str, Any] = {"source": report.source, "format": report.format, "written": out, "as": to}
    about |= {fate: report.count(fate) for fate in ("taken", "resized", "new", "left")}
    about["verified"] = report.verified
    if push:
        about["uploaded"] = sl.weights.push(out, push, private=not public)
    if as_json:
        keys = {"keys": report.rows()} if full else {}
        show({**about, "warnings": list(report.warnings), **keys}, True)
        return
    if report.verified is None:
        about["verified"] = "not checked, as asked" if no_verify else "not checked: the file has no probe outputs"
    show({NAMES.get(name, name): value for name, value in about.items()}, False)
    for warning in report.warnings:
        tell(f"note: {warning}", err=False)
    if full:
        show([format_key(e) for e in report.entries], False, title="keys")


# what the counts of the table mean; --json has the short names
NAMES = {
    "taken": "tensors taken",
    "resized": "tensors resized",
    "new": "tensors new",
    "left": "tensors left out",
    "verified": "probe images differ by",
}


@contextmanager
def silence(name: str) -> Iterator[None]:
    """Silence one logger."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def format_key(entry: Any) -> dict[str, str]:
    """Format one key as one line."""
    shapes = [" x ".join(map(str, s)) for s in (entry.found, entry.wanted) if s is not None]
    why = f"{entry.why} ({entry.method})" if entry.method else entry.why
    return {
        "key": entry.key or "",
        "ours": entry.ours or "",
        "fate": entry.fate,
        "shape": " -> ".join(dict.fromkeys(shapes)),
        "why": why,
    }


@verb
@click.argument("model")
@click.option("--to", type=click.Choice(["onnx", "openvino", "torch"]), default="onnx", show_default=True,
              help="Runtime; torch writes a torch.export program.")  # fmt: skip
@click.option("--out", required=True, type=click.Path(dir_okay=False), help="File: .onnx, .xml (OpenVINO) or .pt2.")
@click.option(
    "--pixels",
    is_flag=True,
    help="Take uint8 images (b, h, w, 3) of the model's size and give probabilities, not normalized images and logits.",
)
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
    from sightline.weights.names import ASSUMED  # here: `--help` does without

    if done.meta["named_by"] == ASSUMED:
        tell(NOTE)
