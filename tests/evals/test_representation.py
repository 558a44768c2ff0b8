"""Features without labels: their rank, and their neighbors."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl


def sample(n, d, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((n, d)))


@given(st.integers(1, 8), st.floats(0.01, 100), st.integers(0, 99))
def test_rank_counts_directions_whatever_their_scale_and_rotation(kept, scale, seed):
    x = sample(200, 8, seed)
    x = torch.linalg.qr(x - x.mean(0))[0][:, :kept]  # equal variances, no covariance
    x = scale * x @ torch.linalg.qr(sample(8, 8, seed))[0][:kept]
    assert sl.evals.effective_rank(x) == pytest.approx(kept)


def test_rank_falls_as_one_direction_takes_over():
    x = sample(500, 16)
    ranks = [sl.evals.effective_rank(x * torch.tensor([s] + [1.0] * 15)) for s in (1, 3, 10, 100)]
    assert ranks == sorted(ranks, reverse=True)
    assert ranks[-1] == pytest.approx(1, abs=0.05)
    assert sl.evals.effective_rank(x * 0.01 + 1) == 0, "what hardly varies has collapsed, in however many directions"


def test_neighbors_know_clusters_and_not_noise():
    labels = np.arange(300) % 3
    x = sample(300, 8)
    assert sl.evals.neighbor_accuracy(x + 6 * torch.eye(8)[labels], labels) == 1
    assert sl.evals.neighbor_accuracy(x, labels) == pytest.approx(1 / 3, abs=0.12)
    with pytest.raises(ValueError, match="a label for each; got 300 rows, 299 labels"):
        sl.evals.neighbor_accuracy(x, labels[1:])


def test_no_image_is_its_own_neighbor():
    x = torch.eye(10).repeat_interleave(2, 0)
    labels = np.arange(20)  # twins have other labels
    assert sl.evals.neighbor_accuracy(x, labels, neighbors=1) == 0
