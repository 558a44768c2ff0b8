"""`sightline demo`: the main job on built-in data, no download. It grows with the house."""

from pathlib import Path

import click
import torch

import sightline as sl
from sightline.cli.shell import show, verb

FAMILIES = ("vit-nano4", "bit-nano", "r8-vit-nano4")


@verb
@click.option("--out", default="demo", type=click.Path(file_okay=False, path_type=Path), help="Where files go.")
@click.option("--seed", default=0, help="Seed of models and draws.")
def demo(out: Path, seed: int, as_json: bool) -> None:
    """Draw scenes, build the three families, save and load them with proof, and measure them without training."""
    train, test = (sl.dataset("scenes/shape", split, num=500, size=32) for split in ("train", "test"))
    out.mkdir(parents=True, exist_ok=True)
    sheet = out / "scenes.png"
    sl.contact_sheet(sl.dataset("scenes/objects", "test", num=200, size=96), columns=8, rows=8).save(sheet)
    rows = [portrait(name, train, test, out, seed) for name in FAMILIES]
    show(rows, as_json, title=f"Three families, untrained, on scenes/shape ({len(train.classes)} classes, chance 10 %)")
    if not as_json:
        click.echo(f"Pictures of the built-in world: {sheet}")


def portrait(name: str, train: sl.Dataset, test: sl.Dataset, out: Path, seed: int) -> dict[str, object]:
    """One row: what the model costs, whether its file gives the same numbers, and what its features are worth."""
    built = sl.build(name, classes=len(train.classes), seed=seed)
    model = sl.load(sl.save(built, out / f"{name}.safetensors", classes=train.classes))  # replays its probe pictures
    pictures, _ = next(iter(test.batches(model.image, batch=64)))
    spent = sl.cost(model)
    few = sl.fewshot(sl.extract(model, train), sl.extract(model, test), shots=(10,), seeds=3)
    with torch.no_grad():
        shift = sl.invariance_error(lambda x: model.features(x).pooled, pictures, shift=(8, 8))
    return {
        "model": name,
        "parameters": spent.parameters,
        "MMAC": round(spent.macs / 1e6, 1),
        "parts": len(sl.anatomy(model)),
        "10-shot %": round(100 * float(few.summary()["10-shot"]), 1),
        "moved by shift": round(shift, 3),
    }
