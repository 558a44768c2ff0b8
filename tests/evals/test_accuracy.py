"""Predictions against labels: top-k, calibration, several labels, ReaL, second test sets."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from sightline.evals.multilabel import average_precision
from tests.evals.makers import SHARED, needs_shared, random_model, scenes

REAL = {0: 3163, 1: 39394, 2: 5408, 3: 1319, 4: 411, 5: 161, 6: 88, 7: 41, 8: 13, 9: 2}  # paper-facts 5.2


def real_lists():
    """As many lists of each length as the published file has, in random order."""
    rng = np.random.default_rng(0)
    sizes = rng.permutation(np.repeat(list(REAL), list(REAL.values())))
    return [rng.choice(1000, n, replace=False).tolist() for n in sizes]


def test_e19_real(tmp_path):
    lists = real_lists()
    assert (len(lists), sum(map(len, lists))) == (50_000, 57_553)
    perfect = [row[-1] if row else 0 for row in lists]
    found = sl.evals.score_real(perfect, lists)
    assert (found.accuracy, found.scored, found.skipped) == (1.0, 46_837, 3_163)
    wrong = [next(c for c in range(1000) if c not in row) for row in lists]
    assert sl.evals.score_real(wrong, lists).accuracy == 0
    (tmp_path / "real.json").write_text(json.dumps(lists))
    half = [p if i % 2 else w for i, (p, w) in enumerate(zip(perfect, wrong))]
    assert sl.evals.score_real(half, tmp_path / "real.json").accuracy == pytest.approx(
        np.mean([i % 2 for i, row in enumerate(lists) if row])
    )
    with pytest.raises(ValueError, match="3 predictions for 50000"):
        sl.evals.score_real([1, 2, 3], lists)
    with pytest.raises(ValueError, match="nothing to score"):
        sl.evals.score_real([1], [[]])
    (tmp_path / "bad.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match="list of lists"):
        sl.evals.score_real([1], tmp_path / "bad.json")


@given(seed=st.integers(0, 200), n=st.integers(1, 40), k=st.integers(1, 12))
def test_scores_are_those_of_the_definitions(seed, n, k):
    rng = np.random.default_rng(seed)
    logits = rng.integers(-3, 4, (n, k)).astype(float)  # many ties
    labels = rng.integers(0, k, n)
    r = sl.evals.score(logits, labels)
    ranked = np.argsort(-logits, axis=1, kind="stable")
    assert r.top1 == (ranked[:, 0] == labels).mean()
    assert r.top5 == (ranked[:, :5] == labels[:, None]).any(1).mean()
    assert r.confusion().sum() == n
    assert r.confusion().trace() == pytest.approx(r.top1 * n)
    assert r.counts.tolist() == np.bincount(labels, minlength=k).tolist()
    expected = torch.nn.functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels)).item()
    assert r.loss == pytest.approx(expected, abs=1e-12)
    assert r.interval[0] <= r.top1 <= r.interval[1]
    assert 0 <= r.calibration_error <= 1
    assert r.bins[:, 2].sum() == pytest.approx(1)


def test_calibration_of_a_known_case():
    # 80 % sure and right four times of five; then as sure and never right
    logits = np.log(np.tile([0.8, 0.2], (5, 1)))
    assert sl.evals.score(logits, [0, 0, 0, 0, 1]).calibration_error == pytest.approx(0, abs=1e-12)
    assert sl.evals.score(logits, [1] * 5).calibration_error == pytest.approx(0.8)


def test_average_precision():
    scores = np.array([[0.9], [0.8], [0.7], [0.6]])
    labels = np.array([[True], [False], [True], [False]])
    assert average_precision(scores, labels)[0] == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision(np.zeros((4, 1)), labels)[0] == 0.5  # ties: whatever the order of rows
    assert np.isnan(average_precision(scores, labels & False)[0])
    r = sl.evals.score_labels(np.eye(3), np.array([[1, 1, 0], [0, 0, 1], [0, 0, 0]]))
    assert (r.top1, r.scored, r.skipped) == (0.5, 2, 1)


def test_what_scores_refuse():
    for logits, labels in ((np.zeros((2, 3)), [0]), (np.zeros((0, 3)), []), (np.zeros(3), [0])):
        with pytest.raises(ValueError, match="Logits must be"):
            sl.evals.score(logits, np.array(labels, dtype=int))
    with pytest.raises(ValueError, match=r"0\.\.2"):
        sl.evals.score(np.zeros((1, 3)), [3])
    with pytest.raises(ValueError, match="NaN"):
        sl.evals.score(np.full((1, 3), np.nan), [0])
    with pytest.raises(ValueError, match="No image has a label"):
        sl.evals.score_labels(np.zeros((2, 2)), np.zeros((2, 2)))


def make_images(labels, classes):
    rng = np.random.default_rng(0)
    return sl.data.Arrays(
        rng.integers(0, 255, (len(labels), 32, 32, 3), dtype=np.uint8), np.array(labels), classes=classes
    )


def test_a_model_on_a_dataset_and_classes_matched_by_name_or_number(tmp_path):
    model = random_model(classes=12)
    labels = [0, 1, 2, 1]
    logits = sl.evals.logits(model, make_images(labels, ("a", "b", "c")), batch=3)
    truth = sl.evals.score(logits, [10, 2, 3, 2])
    by_number = sl.evaluate(model, make_images(labels, ("10", "2", "3")))  # as folders sort
    assert by_number.top1 == truth.top1
    assert by_number.loss == pytest.approx(truth.loss, rel=1e-5)
    model.class_names = tuple("abcdefghijkl")
    by_name = sl.evaluate(model, make_images(labels, ("k", "c", "d")))
    assert by_name.loss == pytest.approx(truth.loss, rel=1e-5)
    assert by_name.classes == model.class_names
    with pytest.raises(ValueError, match="cannot be matched"):
        sl.evaluate(model, make_images(labels, ("x", "y", "z")))
    assert sl.Result.load(by_name.save(tmp_path / "r.npz")).summary() == by_name.summary()
    with pytest.raises(ValueError, match="no classifier"):
        sl.evaluate(random_model(classes=0), make_images(labels, ("0", "1", "2")))


def test_several_labels_and_second_test_sets(tmp_path):
    model = random_model(classes=3)
    table = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]], dtype=bool)
    r = sl.evaluate(model, make_images(table, ("0", "1", "2")))
    assert (r.scored, r.skipped) == (2, 1)
    model = random_model(classes=10)
    sets = sl.evals.evaluate_sets(model, {"val": scenes(num=30, split="val"), "v2": scenes(num=20, split="test")})
    one = sl.evaluate(model, scenes(num=20, split="test"))
    assert sets.top1[1] == one.top1
    assert sets.summary()["v2 - val"] == pytest.approx(sets.top1[1] - sets.top1[0])
    with pytest.raises(ValueError, match="at least two"):
        sl.evals.evaluate_sets(model, {"val": scenes(num=30)})


@needs_shared
@pytest.mark.slow
def test_deit_tiny_on_imagenet_photographs():
    spec = sl.ImageSpec(size=(224, 224), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop=0.875)
    model = sl.load(SHARED / "deit_tiny_patch16_224_in1k.npz", image=spec)
    rows = (SHARED / "imagenet-samples" / "labels.csv").read_text().split()[1:]
    data = sl.dataset(SHARED / "imagenet-samples" / "labels.csv") if "class" in rows[0] else photographs(rows)
    r = sl.evaluate(model, data, batch=25)
    assert 0.7 <= r.top1 <= 0.95
    assert r.top5 > r.top1


def photographs(rows):
    names, numbers = zip(*(row.split(",") for row in rows))
    classes = sorted(set(numbers), key=int)
    from sightline.data.folder import Files

    paths = [str(SHARED / "imagenet-samples" / n) for n in names]
    return Files("imagenet-samples", paths, labels=[classes.index(n) for n in numbers], classes=classes)


def test_the_most_confident_mistakes():
    data = sl.dataset("scenes/shape", num=6, size=32)
    wrong = np.eye(10)[(data.labels + 1) % 10] * np.array([[1.0], [5], [3], [0], [9], [2]])
    right = np.arange(6) == 4
    said = np.where(right[:, None], np.eye(10)[data.labels] * 9, wrong)
    result = sl.evals.score(said, data.labels, classes=data.classes)
    found = sl.evals.mistakes(result, data)
    assert [m.index for m in found][:4] == [1, 2, 5, 0]
    assert 4 not in [m.index for m in found]
    assert found[0].label == data.classes[data.labels[1]]
    assert 0.9 < found[0].probability < 1
    assert sl.evals.mistake_sheet(result, data).width > 500
