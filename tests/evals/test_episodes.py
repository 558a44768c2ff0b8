"""Episodes: disjoint classes, exact sizes, trends with ways and shots, and similarity within classes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from tests.evals.makers import clusters, random_model, scenes


@given(
    ways=st.integers(2, 8),
    shots=st.integers(1, 5),
    queries=st.integers(1, 5),
    seed=st.integers(0, 9),
    number=st.integers(0, 99),
)
def test_e24_an_episode_has_k_times_n_support_images_of_k_classes(ways, shots, queries, seed, number):
    labels = np.random.default_rng(seed).permutation(np.arange(100) % 10)
    e = sl.evals.sample_episode(labels, ways=ways, shots=shots, queries=queries, seed=seed, number=number)
    assert e.support.size == ways * shots
    assert e.query.size == ways * queries
    rows = [*e.support.ravel(), *e.query.ravel()]
    assert len(set(rows)) == len(rows)
    for i, c in enumerate(e.classes):
        assert (labels[e.support[i]] == c).all()
        assert (labels[e.query[i]] == c).all()
    assert len(set(e.classes)) == ways


def test_e24_support_and_training_classes_are_disjoint():
    data = scenes("objects", num=200)
    base, novel = sl.evals.split_classes(data, 0.6, seed=3)
    assert set(base.classes) | set(novel.classes) == set(data.classes)
    assert not set(base.classes) & set(novel.classes)
    for part in (base, novel):
        for i in range(0, len(part), 7):
            pixels, label = part[i]
            source = part.origins()[1][i]
            assert data.classes[data.labels[source]] == part.classes[label]
            assert np.array_equal(pixels, data[source][0])
        assert len(part.few_shot(2, seed=0).classes) == len(part.classes)
    e = sl.extract(random_model(), novel)
    sl.evals.episodes(e, 3, 1, queries=2, episodes=5, trained_on=base.classes)
    with pytest.raises(ValueError, match="was not trained on"):
        sl.evals.episodes(e, 3, 1, queries=2, episodes=5, trained_on=[*base.classes, novel.classes[0]])
    with pytest.raises(ValueError, match="without classes"):
        sl.evals.split_classes(data, 0.01)


@pytest.mark.parametrize("classifier", ["prototype", "ridge"])
def test_b6_accuracy_falls_with_ways_and_rises_with_shots(classifier):
    x, y = clusters(600, classes=20, noise=2.0)
    r = sl.evals.episodes((x, y), (2, 5, 10, 20), (1, 5, 10), queries=10, episodes=100, classifier=classifier)
    assert (np.diff(r.mean, axis=0) < -0.02).all()
    assert (np.diff(r.mean, axis=1) > 0.02).all()
    assert (r.half_width < 0.05).all()


def test_one_setting_is_the_same_alone_and_in_a_sweep():
    x, y = clusters(300, classes=10, noise=2.0)
    sweep = sl.evals.episodes((x, y), (3, 10), (1, 5), queries=8, episodes=30, seed=4)
    alone = sl.evals.episodes((x, y), 10, 5, queries=8, episodes=30, seed=4)
    assert np.array_equal(sweep.accuracy[1, 1], alone.accuracy[0, 0])


def test_600_episodes_of_prototypes_by_hand(tmp_path):
    x, y = clusters(200, classes=5, noise=2.0)
    r = sl.evals.episodes((x, y), 5, 2, queries=5)
    assert r.accuracy.shape == (1, 1, 600)
    e = sl.evals.sample_episode(y, ways=5, shots=2, queries=5, seed=0, number=17)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    centers = unit[e.support].mean(1)
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    guess = (unit[e.query] @ centers.T).argmax(2)
    assert r.accuracy[0, 0, 17] == (guess == np.arange(5)[:, None]).mean()
    assert sl.Result.load(r.save(tmp_path / "e.npz")).summary() == r.summary()


@given(seed=st.integers(0, 50), n=st.integers(4, 30))
def test_cosine_similarity_is_the_mean_over_pairs(seed, n):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((n, 3)), np.arange(n) % 3
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    s, same, other = unit @ unit.T, [], []
    for i in range(n):
        for j in range(i):
            (same if y[i] == y[j] else other).append(s[i, j])
    within, between = sl.evals.cosine_similarity(torch.from_numpy(x), y)
    assert within == pytest.approx(np.mean(same), abs=1e-9)
    assert between == pytest.approx(np.mean(other), abs=1e-9)


def test_a_high_score_goes_with_similarity_within_classes():
    tight, loose = (clusters(200, classes=10, noise=n) for n in (0.3, 3.0))
    a, b = (sl.evals.episodes(d, 5, 1, queries=5, episodes=50) for d in (tight, loose))
    assert a.mean > b.mean
    assert a.within - a.between > b.within - b.between


def test_what_episodes_refuse():
    x, y = clusters(50)
    with pytest.raises(ValueError, match="6 ways need"):
        sl.evals.episodes((x, y), 6, 1, queries=1)
    with pytest.raises(ValueError, match="need 16 images"):
        sl.evals.episodes((x, y), 5, 1)
    with pytest.raises(ValueError, match="at least two ways"):
        sl.evals.episodes((x, y), 1, 1, queries=1)
    with pytest.raises(ValueError, match="whole numbers"):
        sl.evals.episodes((x, y), 2, 0, queries=1)
    with pytest.raises(ValueError, match="NaN"):
        sl.evals.episodes((x * np.nan, y), 2, 1, queries=1)
