"""The runs of a folder, from Python."""

import json

import pytest

import sightline as sl
from tests.training.tiny import data, interrupt, losses, model, recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run, one that was stopped half-way, and one that is not ours."""
    root, (train, val) = tmp_path_factory.mktemp("runs"), data()
    sl.fit(model(), train, recipe(), val=val, out=root / "a/done")
    with pytest.raises(sl.training.Stopped):
        sl.fit(model(), train, recipe(name="half"), out=root / "half", evals=[(2, interrupt)])
    (root / "other").mkdir()
    (root / "other/run.json").write_text("{}")
    return root


def test_runs_are_summarized_by_name(folder):
    done, half, other = sl.training.list_runs(folder)
    assert [s.folder for s in (done, half, other)] == [str(folder / n) for n in ("a/done", "half", "other")]
    assert (done.finished, done.steps, done.total_steps, done.progress) == (True, 4, 4, "finished")
    assert (half.finished, half.steps, half.progress, half.recipe) == (False, 2, "50%", "half")
    assert done.train_loss == tuple(losses(sl.Run(folder / "a/done")))
    assert (done.loss, done.data) == (done.train_loss[-1], "scenes/shape")
    assert done.accuracy == sl.Run(folder / "a/done").summary()["val/accuracy"]
    assert half.accuracy is None


def test_damaged_runs_say_why(folder, tmp_path):
    assert "not written by Sightline" in sl.training.list_runs(folder)[2].problem
    record = json.loads((folder / "half/run.json").read_text())
    del record["name"]
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert "lacks what every run records" in sl.training.list_runs(tmp_path)[0].problem


def test_no_runs(tmp_path):
    assert sl.training.list_runs(tmp_path) == sl.training.list_runs(tmp_path / "nothing") == []
