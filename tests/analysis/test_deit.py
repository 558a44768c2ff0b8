"""What the papers say, on a real DeiT-Tiny, where its weights are at hand."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest

import sightline as sl

SHARED = Path(os.environ.get("SIGHTLINE_SHARED", Path(__file__).parents[3] / "shared")) / "data"
WEIGHTS = SHARED / "deit_tiny_patch16_224_in1k.npz"
pytestmark = pytest.mark.skipif(not WEIGHTS.exists(), reason=f"no {WEIGHTS.name} in SIGHTLINE_SHARED")


@pytest.fixture(scope="module")
def deit():
    return sl.load(WEIGHTS)


@pytest.fixture(scope="module")
def photographs():
    with open(SHARED / "imagenet-samples/labels.csv") as file:
        rows = list(csv.DictReader(file))
    return [(SHARED / "imagenet-samples" / row["file"], int(row["class_index"])) for row in rows][:16]


def test_positions(deit):
    found = sl.position_similarity(deit)  # V7
    assert found.decay < -0.4
    assert found.row_column > 0.1
    assert found.sinusoid > 3 * found.sinusoid_of_noise
    assert sl.patch_filters(deit).summary()["energy at low frequencies"] > 0.35  # V10


def test_heads_look_further_with_depth(deit, photographs):
    numbers = sl.attention_distance(deit, photographs).summary()  # V8, C5
    assert numbers["upper half, mean"] > numbers["lower half, mean"] + 20
    assert numbers["two highest blocks, most local head"] > 3 * numbers["two lowest blocks, most local head"]


def test_the_class_token_changes_late(deit, photographs):
    sign = sl.residual_ratios(deit, photographs).class_minus_patches()  # C10
    assert (sign[:12] > 0).all()
    assert np.mean(sign[-6:]) < 0


def test_the_own_patch_stands_out_behind_the_addition(deit, photographs):
    layers = ["blocks.0.attn_sum", "blocks.2.attn_sum", "blocks.5.attn_sum"]  # C9; higher up 16 images decide nothing
    after, before = (
        sl.receptive_field(deit, photographs, layers=layers, side=side, n=16) for side in ("after", "before")
    )
    assert (after.own - before.own > 2 * np.hypot(after.own_error, before.own_error)).all()
    assert (after.own > 20 / 14**2).all()  # a patch is 1/196 of the image


def test_maps_that_follow_a_class_lie_on_the_object(deit):
    scenes = sl.dataset("scenes/shape", split="test", num=64, size=224)  # V14: by gradient, not by rollout alone
    found = sl.analysis.object_focus(deit, scenes, n=24, methods=["gradient_rollout", "rollout"])
    mean, half = found.gain("gradient_rollout")
    assert mean > half
    assert mean > found.gain("rollout")[0]
