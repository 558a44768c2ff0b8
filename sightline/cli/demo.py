"""`sightline demo`: the main job on built-in data. It grows with the house."""

import math

import click
import torch

import sightline as sl
from sightline.cli.shell import show, verb

FAMILIES = ("vit-nano4", "bit-nano", "r8-vit-nano4")


@verb
@click.option("--seed", default=0, help="Seed of models and pictures.")
def demo(seed: int, as_json: bool) -> None:
    """Build the three families, classify pictures with them, and print what they are made of."""
    pictures = stripes(seed)
    rows = [portrait(name, pictures, seed) for name in FAMILIES]
    show(rows, as_json, title="Three families, untrained, on striped pictures of 32 x 32")


def stripes(seed: int, count: int = 64) -> torch.Tensor:
    """Pictures of sine waves in random directions and colours: enough to run a model on."""
    random = torch.Generator().manual_seed(seed)
    angle, phase = 2 * math.pi * torch.rand(2, count, 1, 1, generator=random)
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    wave = torch.sin(0.6 * (x * angle.cos() + y * angle.sin()) + phase)
    return wave[:, None] * torch.rand(count, 3, 1, 1, generator=random)


@torch.no_grad()
def portrait(name: str, pictures: torch.Tensor, seed: int) -> dict[str, object]:
    """One row: what the model is, what it says at the start, and how it answers to a picture that moves."""
    model = sl.build(name, classes=10, seed=seed).eval()
    features, spent = model.features(pictures), sl.cost(model)
    loss = torch.nn.functional.cross_entropy(model(pictures), torch.arange(len(pictures)) % 10).item()
    return {
        "model": name,
        "parameters": spent.parameters,
        "MMAC": round(spent.macs / 1e6, 1),
        "grid": features.grid,
        "width": features.tokens.shape[-1],
        "parts": len(sl.anatomy(model)),
        "loss (ln 10 = 2.3026)": round(loss, 4),
        "shift invariance error": round(
            sl.invariance_error(lambda x: model.features(x).pooled, pictures, shift=(8, 8)), 4
        ),
    }
