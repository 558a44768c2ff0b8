"""The number of threads: what is free when a run begins, and then the same."""

import json

import pytest
import torch

import sightline as sl
from sightline.training.preflight import threads


@pytest.mark.parametrize(
    ("busy", "count", "says"), [(0.0, 4, "4 threads, as other"), (1.4, 3, "keep 1.4 of"), (9.0, 1, "1 thread, as")]
)
def test_as_many_as_cores_are_free(busy, count, says, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "busy_cores", lambda: busy)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        with sl.training.run_threads(tmp_path) as why:
            assert torch.get_num_threads() == count
            assert says in why
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


RUN = {
    "name": "x",
    "seed": 0,
    "data": {"name": "y"},
    "plan": {"steps": 1, "batch": 1},
    "identity": {"recipe": {}, "model": {}, "data": {}},
    "machine": {"threads": 3},
}


def test_a_run_keeps_its_number_whatever_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "busy_cores", lambda: 99.0)
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    with sl.training.run_threads(tmp_path) as why:
        assert (torch.get_num_threads(), why) == (3, "3 threads, as the run began")
    with sl.training.run_threads(tmp_path, 2) as why:
        assert (torch.get_num_threads(), why) == (3, "3 threads, as the run began, not 2: its last bits depend on it")
    with sl.training.run_threads(tmp_path / "new", 2) as why:
        assert (torch.get_num_threads(), why) == (2, "2 threads, as asked for")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with sl.training.run_threads(tmp_path / "new") as why:
        assert why.endswith("as OMP_NUM_THREADS says")
    with pytest.raises(ValueError, match="expected at least 1"), sl.training.run_threads(tmp_path, 0):
        pass


def test_busy_is_a_number_of_threads():
    assert 0 <= threads.busy_cores() < 10_000
    assert threads.usable_cores() >= 1
