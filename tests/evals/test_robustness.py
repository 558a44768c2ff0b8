"""Accuracy on corrupted images: by kind and severity, with intervals, in Python and on the command line."""

import json

import numpy as np
import pytest

import sightline as sl
from sightline.views.table import view_of
from tests.command import run
from tests.evals.makers import random_model, scenes


def test_accuracy_is_that_of_the_corrupted_dataset(tmp_path):
    model, data = random_model(classes=10), scenes(num=30, split="test")
    r = sl.evals.evaluate_corruptions(model, data, ["jpeg", "gaussian-noise"], severities=(1, 5), seed=3)
    by_hand = sl.evaluate(model, sl.data.Corrupted(data, "gaussian-noise", 5, seed=3))
    assert r.accuracy[1, 1] == by_hand.top1
    assert tuple(r.interval[1, 1]) == pytest.approx(by_hand.interval)
    assert r.clean.mean() == sl.evaluate(model, data).top1
    assert sl.Result.load(r.save(tmp_path / "r.npz")).summary() == pytest.approx(r.summary(), nan_ok=True)
    assert view_of(r).sentence_of(r).endswith(".")
    with pytest.raises(ValueError, match="at least one kind"):
        sl.evals.evaluate_corruptions(model, data, [])


def test_means_and_intervals_are_over_images():
    rng = np.random.default_rng(0)
    hard = rng.random(200) < 0.3  # the same images are hard in every corruption
    right = (rng.random((4, 3, 200)) < 0.9) & ~hard
    r = sl.evals.CorruptionAccuracy(
        title="", caption="", kinds=("fog", "snow", "frost", "jpeg"), severities=(1, 3, 5), right=right,
        clean=~hard, classes=10,
    )  # fmt: skip
    mean, half = r.by_severity()
    assert mean == pytest.approx(right.mean((0, 2)))
    # were all 800 answers independent, the interval would be half as wide: they are those of 200 images
    assert (half > 1.5 * 1.96 * np.sqrt(mean * (1 - mean) / 800)).all()
    assert r.kept == pytest.approx((right.mean() - 0.1) / (r.clean.mean() - 0.1))


def test_the_command(tmp_path, capsys):
    model = tmp_path / "net.safetensors"
    sl.save(random_model(classes=10), model)
    asked = ("eval", str(model), "scenes/shape", "--num", "20", "--json")
    code, out, err = run(capsys, *asked, "--corruptions", "fog,jpeg", "--severities", "5")
    assert code == 0, err
    rows = json.loads(out)["accuracy by kind and severity"]
    assert [row["corruption"] for row in rows] == ["fog", "jpeg"]
    assert rows[0]["5"] == rows[0]["mean"]
    code, _, err = run(capsys, *asked, "--corruptions", "rain")
    assert code == 2
    assert "no corruption 'rain'" in err
