"""The runs of `benchmarks.records`, small: made in pieces, each counted once, and drawn."""

import json

import pytest

from benchmarks import records

SMALL = ["--data", "scenes/shape", "--num", "32", "--epochs", "2", "--seeds", "0"]


@pytest.mark.slow
def test_a_record_in_two_pieces_a_try_and_the_figure(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(records, "LOOKS", 2)
    monkeypatch.setitem(records.FAMILIES, "bit", records.Family("bit-nano", records.sl.recipes.laptop_bit))
    recipe = records.make_recipe
    small = ["batch=16", "augment.flip=false"]
    monkeypatch.setattr(records, "make_recipe", lambda n, s, e, changes=(): recipe(n, s, e, [*small, *changes]))
    words = [*SMALL, "--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    until = records.time.monotonic
    records.main(["bit", *words, "--minutes", "1e-9"])  # nothing is begun when the time is over
    assert not (tmp_path / "runs").exists()
    clock = iter([0.0, 0.0, *[1e9] * 50])
    monkeypatch.setattr(records.time, "monotonic", lambda: next(clock))
    records.main(["bit", *words, "--minutes", "1"])
    monkeypatch.setattr(records.time, "monotonic", until)
    assert "stopped at step" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()
    records.main(["bit", *words])
    records.main(["bit", *words])  # it is finished
    (run,) = json.loads((tmp_path / "results/records.json").read_text())["runs"]
    minutes = [m for m, _ in run["curve"]]
    assert minutes == sorted(minutes)
    assert run["core_minutes"] == minutes[-1] > 0
    assert set(run["test"]) == {"plain", "mirror", "shift"}
    assert {"commit", "command", "machine", "versions"} <= set(run)
    records.main(["bit", *words, "--try", "lr=0.01", "--try", "optimizer=sgd"])
    records.main(["bit", *words, "--try", "model.width_factor=1"])
    tried, wider = json.loads((tmp_path / "results/records-tries.json").read_text())["runs"]
    assert tried["settings"] == ["lr=0.01", "optimizer=sgd"]
    assert "test" not in tried
    assert wider["parameters"] > 3 * tried["parameters"] == 3 * run["parameters"]
    records.main([*words, "--figure", str(tmp_path / "records.svg")])
    assert (tmp_path / "records.svg").stat().st_size > 5000
