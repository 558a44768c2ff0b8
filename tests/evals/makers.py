"""Features and datasets that the tests of the measuring room share."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import sightline as sl

SHARED = Path(os.environ.get("SIGHTLINE_SHARED", Path(__file__).parents[3] / "shared")) / "data"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the shared photographs and weights are not beside the checkout"
)


def clusters(rows=200, classes=5, width=16, *, noise=0.5, seed=0, start=0):
    """Rows scattered around one center per class; the centers depend on the seed alone."""
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((classes, width))
    labels = np.arange(rows) % classes
    more = np.random.default_rng((seed, start))
    return centers[labels] + noise * more.standard_normal((rows, width)), labels


def random_model(name="vit-nano4", **changes):
    """Small, with random values everywhere: a class token and a head that start at zero would hide mistakes."""
    model = sl.build(name, **changes)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=random))
    return model.eval()


def scenes(task="shape", num=24, split="train", size=32):
    return sl.dataset(f"scenes/{task}", split=split, num=num, size=size)
