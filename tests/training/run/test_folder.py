"""The run folder as its readers see it: log, curves, differences, and damage."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from sightline.training.run.identity import find_difference, fingerprint
from tests.training.tiny import data, interrupt, losses, model, recipe

PLAIN = st.recursive(
    st.integers(-3, 3) | st.sampled_from("abc"),
    lambda inner: st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.dictionaries(st.sampled_from("uvw"), PLAIN, max_size=3)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    train, val = data()
    folder = tmp_path_factory.mktemp("runs") / "one"
    settings = recipe(steps=6, eval_every=3, save_every=2, name="tiny")
    return sl.fit(model(), train, settings, val=val, out=folder)


def copied(run, folder, *lines):
    """The same run elsewhere, with another log."""
    folder.mkdir()
    (folder / "run.json").write_bytes((run.path / "run.json").read_bytes())
    (folder / "log.jsonl").write_text("".join(lines))
    return sl.Run(folder)


def test_curves_are_the_log(run):
    curves = run.curves()
    assert curves.step.tolist() == [1, 2, 3, 4, 5, 6]
    steps, values = curves.of("val/accuracy")
    assert steps.tolist() == [3, 6]
    assert values.tolist() == [row["val/accuracy"] for row in run.rows() if "val/accuracy" in row]
    assert curves.of("train/loss")[1].tolist() == losses(run)
    assert math.isnan(curves.values[0, curves.names.index("val/loss")])
    assert curves.title == "Training on scenes/shape"
    assert curves.caption == "tiny: 6 steps of 16 images."
    assert curves.summary()["train/loss"] == losses(run)[-1]
    assert run.summary()["best"] == run.about["ended"]["best"]["score"]


def test_curves_survive_a_file(run, tmp_path):
    curves = run.curves()
    curves.save(tmp_path / "c.npz")
    again = sl.Result.load(tmp_path / "c.npz")
    assert again.names == curves.names
    np.testing.assert_array_equal(again.values, curves.values)
    assert (again.title, again.how["seed"], again.how["data"]) == (curves.title, 0, run.about["data"])


def test_a_folder_of_a_run_is_opened_by_its_path(run):
    again = sl.Run(str(run.folder))
    assert again.finished
    assert again.rows() == run.rows()
    assert torch.equal(again.model.head.weight, sl.load(run.path / "last.safetensors").head.weight)


def test_last_line_that_was_cut_off_is_left_out(run, tmp_path):
    whole = (run.path / "log.jsonl").read_text()
    cut = copied(run, tmp_path / "cut", whole[:-10])
    assert cut.rows() == run.rows()[:-1]
    assert cut.curves().step.tolist() == [1, 2, 3, 4, 5]


def test_a_run_that_logged_nothing_yet(run, tmp_path):
    empty = copied(run, tmp_path / "empty")
    assert empty.rows() == []
    assert empty.curves().step.shape == (0,)
    assert empty.curves().summary() == {}
    (empty.path / "log.jsonl").unlink()
    assert empty.rows() == []


def test_what_is_not_finite_is_logged_as_what_it_is(run, tmp_path):
    other = copied(run, tmp_path / "odd")
    other.log({"step": 1, "train/loss": math.nan, "own": torch.tensor(2.0), "event": "x", "third": 1 / 3})
    assert json.loads((other.path / "log.jsonl").read_text())["train/loss"] == "NaN"
    (row,) = other.rows()
    assert math.isnan(row.pop("train/loss"))
    assert row == {"step": 1, "own": 2.0, "event": "x", "third": 0.333333333}
    assert other.curves().names == ("train/loss", "own", "third")


def test_log_is_cut_where_the_state_stands(run, tmp_path):
    other = copied(run, tmp_path / "cut", (run.path / "log.jsonl").read_text(), '{"step": 7, "train/')
    other.truncate_log(4)
    assert other.rows() == run.rows()[:4]
    assert (other.path / "log.jsonl").read_text().count("\n") == 4


def test_lines_behind_the_state_are_done_again_not_twice(tmp_path):
    train, _ = data()
    settings = recipe(steps=6, save_every=9)
    whole = sl.fit(model(), train, settings, out=tmp_path / "whole")
    with pytest.raises(sl.training.Stopped):
        sl.fit(model(), train, settings, out=tmp_path / "run", evals=[(3, interrupt)])
    with (tmp_path / "run/log.jsonl").open("a") as file:  # as a process that died later would have left it
        file.write('{"step": 4, "train/loss": 9.0}\n{"step": 5, "tra')
    run = sl.fit(model(), train, settings, out=tmp_path / "run")
    assert [row["step"] for row in run.rows()] == [1, 2, 3, 4, 5, 6]
    assert losses(run) == losses(whole)


def test_damaged_or_foreign_folders(run, tmp_path):
    for name, text, words in (
        ("cut", "{", "is damaged"),
        ("list", "[]", "not written by Sightline"),
        ("other", '{"lr": 1}', "not written by Sightline"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
        with pytest.raises(ValueError, match=words):
            _ = sl.Run(tmp_path / name).about
        with pytest.raises(ValueError, match=words):
            sl.fit(model(), data()[0], recipe(), out=tmp_path / name)
        assert [p.name for p in (tmp_path / name).iterdir()] == ["run.json"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="contains no run"):
        _ = sl.Run(tmp_path / "file").about
    with pytest.raises(ValueError, match="is a file"):
        sl.fit(model(), data()[0], recipe(), out=tmp_path / "file")


def test_state_of_another_shape_is_refused(tmp_path):
    train, _ = data()
    with pytest.raises(sl.training.Stopped):
        sl.fit(model(), train, recipe(), out=tmp_path / "a", evals=[(1, interrupt)])
    with pytest.raises(sl.training.Stopped):
        sl.fit(model(), train, recipe(ema=0.9), out=tmp_path / "b", evals=[(1, interrupt)])
    kept = tmp_path / "a/state/state.safetensors"
    kept.write_bytes((tmp_path / "b/state/state.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"belongs to another run: .* average/"):
        sl.fit(model(), train, recipe(), out=tmp_path / "a")


@given(RECORDS)
def test_nothing_differs_from_itself(record):
    assert find_difference(record, json.loads(json.dumps(record))) == ""


@given(RECORDS, RECORDS)
def test_what_differs_is_found_from_both_sides(a, b):
    assert bool(find_difference(a, b)) == bool(find_difference(b, a)) == (a != b)


def test_difference_in_words():
    there = {"recipe": {"lr": 0.1, "log_every": 5}, "log_every": 1}
    assert (
        find_difference(there, {"recipe": {"lr": 0.2, "log_every": 9}, "log_every": 1})
        == "recipe.lr is 0.1 there, 0.2 here"
    )
    assert find_difference(there, {"recipe": {"lr": 0.1, "log_every": 9}, "log_every": 1}) == ""  # may change
    assert find_difference(there, {"recipe": {"lr": 0.1}, "log_every": 2}) == "log_every is 1 there, 2 here"


def test_fingerprint_follows_every_value():
    a, b = model(), model()
    assert fingerprint(a) == fingerprint(b)
    with torch.no_grad():
        b.head.bias[3] = 1e-9
    assert fingerprint(a) != fingerprint(b)


def test_other_data_is_another_run(tmp_path):
    train, val = data()
    sl.fit(model(), train, recipe(steps=1), out=tmp_path / "run")
    with pytest.raises(ValueError, match=r"another run \(data\.train"):
        sl.fit(model(), data(80)[0], recipe(steps=1), out=tmp_path / "run")
    with pytest.raises(ValueError, match=r"another run \(data\.val is None there"):
        sl.fit(model(), train, recipe(steps=1), val=val, out=tmp_path / "run")


def test_one_process_at_a_time(tmp_path):
    hold = "with files.exclusive(sys.argv[1]): print('held', flush=True), input()"
    holder = f"import sys\nfrom sightline import files\n{hold}"
    other = subprocess.Popen([sys.executable, "-c", holder, str(tmp_path)], stdin=-1, stdout=-1, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match="Another process is writing to"):
            sl.fit(model(), data()[0], recipe(), out=tmp_path)
        assert not (tmp_path / "run.json").exists()
    finally:
        other.kill()
        other.communicate()
    assert sl.fit(model(), data()[0], recipe(), out=tmp_path).finished
