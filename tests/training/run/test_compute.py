"""Accuracy against compute: MACs counted from the record of runs, the Pareto front, one dataset at a time."""

import json
import shutil

import numpy as np
import pytest

import sightline as sl
from sightline.views.table import view_of
from tests.command import run
from tests.training.tiny import data, model, recipe


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of different length; one of them without validation."""
    root, (train, val) = tmp_path_factory.mktemp("runs"), data()
    sl.fit(model(), train, recipe(), val=val, out=root / "short")
    sl.fit(model(), train, recipe(), out=root / "blind")
    shutil.copytree(root / "short", root / "long")
    change(root / "long", lambda d: d["plan"].update(stages=[[2, 32]]))
    return root


def change(folder, edit):
    about = json.loads((folder / "run.json").read_text())
    edit(about)
    (folder / "run.json").write_text(json.dumps(about))


def test_macs_are_those_of_a_forward_pass_times_the_images(runs):
    one = sl.Run(runs / "short")
    plan, macs = one.about["plan"], sl.cost(model().config).macs
    assert sl.training.training_macs(one) == plan["steps"] * plan["batch"] * macs
    assert sl.training.training_macs(one, 2) == 2 * plan["batch"] * macs
    grown = sl.training.training_macs(sl.Run(runs / "long"))
    assert grown == plan["batch"] * (2 * macs + (plan["steps"] - 2) * sl.cost(model().config, 32).macs)


def test_runs_with_validation_have_a_point_and_the_others_are_named(runs):
    r = sl.training.accuracy_by_compute(runs)
    assert r.runs == ("long", "short")
    assert "no validation accuracy" in r.how["left out"][str(runs / "blind")]
    assert r.accuracy[1] == sl.Run(runs / "short").summary()["val/accuracy"]
    assert ((r.low <= r.accuracy) & (r.accuracy <= r.high)).all()
    assert view_of(r).sentence_of(r).startswith("On the Pareto front of 2 runs: ")


def test_the_front_is_what_no_other_run_beats():
    rng = np.random.default_rng(0)
    macs, accuracy = rng.integers(1, 9, 60).astype(float), rng.integers(1, 9, 60) / 10
    every = {"title": "", "caption": "", "runs": ("r",) * 60, "families": ("ViT",) * 60}
    r = sl.training.AccuracyByCompute(**every, macs=macs, accuracy=accuracy, low=accuracy, high=accuracy)
    for i in range(60):
        beaten = any(
            macs[j] <= macs[i] and accuracy[j] >= accuracy[i] and (macs[j], accuracy[j]) != (macs[i], accuracy[i])
            for j in range(60)
        )
        assert r.front[i] == (not beaten)


def test_the_command_writes_figure_and_numbers_and_asks_for_one_dataset(runs, tmp_path, capsys):
    code, out, _ = run(capsys, "runs", str(runs), "--plot", str(tmp_path / "c.png"), "--json")
    assert code == 0
    rows = json.loads(out)
    assert {row["run"] for row in rows} == {"short", "long"}
    assert rows[0]["MACs"] < rows[1]["MACs"]
    assert {p.suffix for p in tmp_path.iterdir()} == {".png", ".svg", ".npz"}
    shutil.copytree(runs, tmp_path / "two")
    change(tmp_path / "two/long", lambda d: d["data"].update(name="pets"))
    code, _, error = run(capsys, "runs", str(tmp_path / "two"), "--plot", str(tmp_path / "d.png"))
    assert code == 2
    assert "The runs are on pets, scenes/shape: choose one dataset" in error
    assert run(capsys, "runs", str(tmp_path / "two"), "--plot", str(tmp_path / "d.png"), "--data", "pets")[0] == 0
