"""Re-identification: CMC and mAP, whole images and foreground patches."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from sightline.evals import reid as room
from tests.evals.makers import random_model, scenes


@given(seed=st.integers(0, 100), n=st.integers(4, 20))
def test_cmc_and_map_are_those_of_the_definitions(seed, n):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((n, 4)), np.arange(n) % 2
    r = sl.evals.retrieval((x, y), ranks=3)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    first, precision = [], []
    for i in range(n):
        order = [j for j in np.argsort(-(unit @ unit[i]), kind="stable") if j != i]
        hits = np.array([y[j] == y[i] for j in order])
        first.append(hits.argmax())
        precision.append(np.mean([hits[: k + 1].mean() for k in np.flatnonzero(hits)]))
    np.testing.assert_allclose(r.precision, precision, atol=1e-12)
    np.testing.assert_allclose(r.cmc, [np.mean(np.array(first) < k) for k in range(1, len(r.cmc) + 1)])
    assert (np.diff(r.cmc) >= 0).all()


def patches(images, each=9, width=6, *, seed=0):
    """Individuals whose own vector stands in two inner patches; all else is a background of the image's own."""
    rng = np.random.default_rng(seed)
    y = np.arange(images) // 4
    own = rng.standard_normal((y.max() + 1, width))
    x = np.repeat(3 * rng.standard_normal((images, 1, width)), each, 1) + 0.1 * rng.standard_normal(
        (images, each, width)
    )
    truth = np.zeros((images, each), dtype=bool)
    truth[:, 4] = True
    x[truth] = own[y] + 0.1 * rng.standard_normal((images, width))
    e = sl.evals.FeatureTable(
        layers={"features": torch.from_numpy(x)},
        labels=y,
        classes=tuple(map(str, range(y.max() + 1))),
        grids={"features": (3, 3)},
        prefix={"features": 0},
    )
    return e, truth


def test_foreground_patches_find_what_whole_images_do_not():
    e, truth = patches(40)
    by_patch = sl.evals.retrieval(e, matching="patches", share=1 / 9, truth=truth)
    assert by_patch.overlap == 1
    assert by_patch.overlap_by_chance == pytest.approx((1 / 9) / (2 - 1 / 9))
    assert by_patch.cmc[0] > 0.95
    assert sl.evals.retrieval(e.reduce("gap")).cmc[0] < 0.6
    given_truth = sl.evals.retrieval(e, matching="patches", select=truth)
    assert np.array_equal(given_truth.precision, by_patch.precision)
    assert given_truth.selected.sum() == 40


def test_matching_is_the_best_of_all_pairs_both_ways_whatever_the_blocks(monkeypatch):
    e, truth = patches(12)
    chosen = truth.copy()
    chosen[::2, :3] = True  # unequal numbers of patches
    monkeypatch.setattr(room, "BLOCK", 200)
    found = room.patch_similarity(e.features, e.features, chosen, chosen).numpy()
    x = e.features.numpy() / np.linalg.norm(e.features.numpy(), axis=2, keepdims=True)
    for i in range(12):
        for j in range(12):
            s = x[i][chosen[i]] @ x[j][chosen[j]].T
            assert found[i, j] == pytest.approx((s.max(1).mean() + s.max(0).mean()) / 2, abs=1e-6)


def test_a_gallery_of_its_own():
    rng = np.random.default_rng(0)
    own = rng.standard_normal((6, 5))
    query = sl.evals.FeatureTable.of(own[:3] + 0.01, [0, 1, 2], classes=("a", "b", "c"))
    gallery = sl.evals.FeatureTable.of(np.repeat(own, 2, 0), np.repeat(np.arange(6), 2), classes=tuple("abcdef"))
    r = sl.evals.retrieval(query, gallery)
    assert r.summary() == {"rank-1": 1.0, "rank-5": 1.0, "rank-10": 1.0, "mAP": pytest.approx(1)}


def test_scenes_of_individuals_with_masks_that_tell(tmp_path):
    model, data = random_model(), scenes("identity", num=60)
    e = sl.extract(model, data, tokens="all")
    truth = sl.evals.foreground(data, model.image, e.grids["features"])
    assert truth.shape == (60, 64)
    assert 0.03 < truth.mean() < 0.5
    for select in ("border", "pooled", "norm", "all"):
        r = sl.evals.retrieval(e, matching="patches", select=select, share=float(truth.mean()), truth=truth)
        assert 0 <= r.overlap <= 1
    assert sl.Result.load(r.save(tmp_path / "r.npz")).summary() == r.summary()
    exact = sl.evals.retrieval(
        e, matching="patches", select=np.where(truth.any(1, keepdims=True), truth, True), truth=truth
    )
    assert exact.overlap > 0.95


def test_what_retrieval_refuses():
    e, _ = patches(8)
    with pytest.raises(ValueError, match="tokens='all'"):
        sl.evals.retrieval(e.reduce("gap"), matching="patches")
    with pytest.raises(ValueError, match="have all tokens"):
        sl.evals.retrieval(e)
    with pytest.raises(ValueError, match="no selected patch"):
        sl.evals.retrieval(e, matching="patches", select=np.zeros((8, 9), dtype=bool))
    with pytest.raises(ValueError, match="select is"):
        sl.evals.retrieval(e, matching="patches", select="best")
    with pytest.raises(ValueError, match="No query"):
        sl.evals.retrieval((np.eye(3), [0, 1, 2]))
    with pytest.raises(ValueError, match="matching is"):
        sl.evals.retrieval(e, matching="half")
