"""Probes: fit, predict, score; by layer and by token."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from sightline.evals.probing import logistic, probes
from sightline.evals.probing.ridge import SWEEP, Scaling
from tests.evals.makers import clusters, random_model, scenes


@pytest.mark.parametrize(
    "probe",
    [sl.evals.LinearProbe(), sl.evals.LinearProbe("logistic"), sl.evals.KNNProbe(5)],
    ids=lambda p: str(vars(p)),
)
def test_every_probe_learns_what_can_be_learnt(probe):
    x, y = clusters(200, classes=4, noise=0.5)
    z, w = clusters(100, classes=4, noise=0.5, start=1)
    assert probe.fit(x, y) is probe
    assert probe.score(z, w) > 0.97
    assert probe.predict(z).shape == (100,)
    assert probe.fit(sl.evals.FeatureTable.of(x, y)).score(sl.evals.FeatureTable.of(z, w)) > 0.97
    shuffled = np.random.default_rng(0).permutation(y)
    assert probe.fit(x, shuffled).score(z, w) < 0.5


def test_ridge_is_the_few_shot_classifier():
    x, y = clusters(100, noise=2.0)
    z, w = clusters(60, noise=2.0, start=1)
    assert sl.evals.LinearProbe(l2=2**10).fit(x, y).score(z, w) == sl.fewshot((x, y), (z, w), shots=("all",)).mean[0]


@given(l2=st.floats(1e-4, 1.0), seed=st.integers(0, 20))
def test_logistic_regression_ends_where_the_gradient_vanishes(l2, seed):
    x, y = clusters(40, classes=3, width=4, noise=1.0, seed=seed)
    x = Scaling.of(torch.from_numpy(x))(torch.from_numpy(x))
    weights = logistic.solve(x, torch.from_numpy(y), classes=3, l2=l2)
    p = (x @ weights).softmax(1) - torch.nn.functional.one_hot(torch.from_numpy(y), 3)
    gradient = x.mT @ p / len(x)
    gradient[:-1] += l2 * weights[:-1]
    assert (gradient / torch.tensor([1.0] * 4 + [100.0])[:, None]).abs().max() < 1e-4  # it stops at up to 1e-5


def test_the_tuned_l2_follows_the_noise():
    clean, noisy = (clusters(60, classes=3, width=100, noise=n) for n in (0.01, 8.0))
    assert sl.evals.LinearProbe().fit(*noisy).l2_ in SWEEP
    assert sl.evals.LinearProbe("logistic").fit(*clean).l2_ < sl.evals.LinearProbe("logistic").fit(*noisy).l2_


def test_neighbors_are_those_of_brute_force_whatever_the_blocks(monkeypatch):
    x, y = clusters(300, classes=7, noise=2.0)
    z, _ = clusters(90, classes=7, noise=2.0, start=1)
    unit = [a / np.linalg.norm(a, axis=1, keepdims=True) for a in (x, z)]
    order = np.argsort(-(unit[1] @ unit[0].T), axis=1)[:, :9]
    votes = np.array([np.bincount(y[o], minlength=7) for o in order])
    found = sl.evals.KNNProbe(9, weights="uniform").fit(x, y)
    np.testing.assert_allclose(found.scores(z).numpy(), votes / 9)
    weighted = sl.evals.KNNProbe(9).fit(x, y).scores(z)
    monkeypatch.setattr(probes, "TRAIN_ROWS", 50)
    monkeypatch.setattr(probes, "TEST_ROWS", 7)
    torch.testing.assert_close(sl.evals.KNNProbe(9).fit(x, y).scores(z), weighted)
    similarity = np.sort(unit[1] @ unit[0].T, axis=1)[:, ::-1][:, :9]
    share = np.exp(similarity / 0.07)
    expected = np.array([np.bincount(y[o], s, minlength=7) for o, s in zip(order, share)]) / share.sum(1, keepdims=True)
    np.testing.assert_allclose(weighted.numpy(), expected, atol=1e-9)


def test_several_labels_per_row():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 6))
    y = x[:, :3] > 0
    for probe in (sl.evals.LinearProbe(), sl.evals.LinearProbe("logistic"), sl.evals.KNNProbe(15)):
        probe.fit(x[:300], y[:300])
        assert probe.predict(x[300:]).dtype == bool
        assert probe.score(x[300:], y[300:]) > 0.85


def test_what_a_probe_refuses():
    x, y = clusters(20)
    with pytest.raises(ValueError, match="not been fitted"):
        sl.evals.LinearProbe().predict(x)
    with pytest.raises(ValueError, match="16 wide; got 3"):
        sl.evals.LinearProbe().fit(x, y).predict(x[:, :3])
    with pytest.raises(ValueError, match="21 neighbors"):
        sl.evals.KNNProbe(21).fit(x, y)
    with pytest.raises(ValueError, match="only one class"):
        sl.evals.LinearProbe().fit(x, 0 * y)
    with pytest.raises(ValueError, match="NaN"):
        sl.evals.KNNProbe(1).fit(x * np.nan, y)
    with pytest.raises(ValueError, match="labels"):
        sl.evals.LinearProbe().fit(x)
    with pytest.raises(ValueError, match="in the test set only"):
        sl.evals.LinearProbe().fit(x, y).score(x, y + 1)
    for wrong in ({"method": "svm"}, {"l2": -1.0}):
        with pytest.raises(ValueError, match=r"method|l2"):
            sl.evals.LinearProbe(**wrong)


def test_curves_by_layer_and_by_token():
    model = random_model()
    both = [sl.extract(model, scenes(num=80, split=s), layers=[0, 5], tokens="all") for s in ("train", "test")]
    found = sl.probe(*both, probe=sl.evals.LinearProbe(l2=1024), shots=3, seeds=2)
    assert found.accuracy.shape == (2, 2)
    assert found.per_token.shape == (2, 65)
    assert found.map("blocks.0.mlp_sum").shape == (8, 8)
    np.testing.assert_allclose(found.per_token[:, 1:].mean(1), found.mean)  # the class token does not count
    np.testing.assert_allclose(found.replicates.mean(0), found.mean)  # 20 groups of 4 of the 80 test images
    assert found.replicates.shape == (20, 2)
    assert found.replicates.std(0).min() > 0
    one = sl.fewshot(
        *(sl.evals.FeatureTable.of(e["blocks.5.mlp_sum"][:, 7], e.labels) for e in both), shots=(3,), seeds=2
    )
    assert found.per_token[1, 7] == pytest.approx(one.mean[0])
    pooled = sl.probe(*(e.reduce("gap") for e in both))
    assert pooled.accuracy.shape == (2, 1)
    assert pooled.per_token is None
    with pytest.raises(ValueError, match="no map"):
        pooled.map("blocks.0.mlp_sum")


def test_a_probe_that_tells_its_score_alone_has_no_replicates():
    class Share:
        def fit(self, train):
            return self

        def score(self, test):
            return 0.25

    x, y = clusters(40)
    found = sl.probe((x, y), (x, y), probe=Share())
    assert found.mean.tolist() == [0.25]
    assert found.replicates.shape == (0, 1)


def test_residual_networks_by_the_papers_protocol(tmp_path):
    model = random_model("bit-nano")
    both = [
        sl.extract(model, scenes(num=60, split=s), layers="blocks", tokens="gap", maps="last")
        for s in ("train", "test")
    ]
    found = sl.probe(*both)
    assert len(found.layers) == len({p.block for p in sl.anatomy(model) if p.block is not None})
    assert sl.Result.load(found.save(tmp_path / "p.npz")).summary() == found.summary()
