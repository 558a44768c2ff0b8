"""Intervals cover and decide, on real features: a small version of `python -m benchmarks.verdicts`."""

import numpy as np
import pytest

import sightline as sl
from benchmarks import verdicts as bench
from tests.evals.makers import needs_shared

DRAWS = 30


@pytest.fixture(scope="module")
def rows():
    """72 photographs, DeiT-Tiny and an untrained CNN; samples of 24, with 20 groups."""
    data = bench.photographs(72)
    vit = bench.pooled(bench.deit(), data, bench.VIT)
    cnn = bench.pooled(sl.build("bit-nano", classes=0), data, bench.CNN, layers="all")
    return bench.coverage(bench.of_similarity(vit, cnn), draws=DRAWS, n=24)


@needs_shared
def test_intervals_cover(rows):
    """30 draws tell 0.95 from 0.8; the benchmark, with more of them, tells it from 0.9 and 0.99."""
    assert {row["claim"] for row in rows} == {"C1", "C2", "C3", "C4"}
    assert all(row["with_interval"] == 1 for row in rows)
    covered = {row["effect"]: row["covered"] for row in rows}
    assert min(covered.values()) >= 0.8, covered
    assert 0.9 <= np.mean(list(covered.values())) <= 0.99


@needs_shared
def test_what_is_far_from_its_bound_is_decided(rows):
    """By three standard errors: 24 images decide that in most draws. Two need not, since t's interval is 2.1 wide."""
    far = [row for row in rows if row["errors_from_bound"] >= 3]
    assert far
    assert all(row["decided_rightly"] > 0.5 for row in far)
    assert all(row["decided_wrongly"] <= 0.1 for row in rows)


def test_the_simulation_finds_what_is_known():
    """Differences of means of normal values are covered as Student says."""
    values = np.random.default_rng(0).normal(0.5, 1, (400, 3, 3))

    def make(chosen, groups):
        one = values[chosen]
        return [
            sl.analysis.LayerProbes(
                title="", caption="", curves=("CLS; class token", "CLS; mean of patches", "CNN; mean of the map"),
                accuracy=one.mean(0), half_width=0 * one.mean(0), replicates=bench.without(one, groups),
            )
        ]  # fmt: skip

    (row,) = bench.coverage(bench.Population(("C22",), 400, make), draws=200, n=60)
    assert 0.9 <= row["covered"] <= 0.99
