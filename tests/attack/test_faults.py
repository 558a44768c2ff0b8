"""A disk that fails at some write, rename or sync: the same command afterwards ends with the same bytes."""

import random
import shutil

import numpy as np
import pytest

import sightline as sl
from tests.attack import small_study
from tests.attack.faults import KINDS, Faults, content
from tests.training.tiny import data, model, recipe

POINTS = {
    "train": 4,
    "look": 3,
    "report": 3,
    "extract": 3,
    "study": 5,
}  # of each command, besides its very first and last


def train(out):
    sl.fit(model(depth=1), data(32)[0], recipe(steps=2, save_every=1), out=out)


def look(out):
    sl.look(model(depth=1), data(32)[0], out, only=["patch-filters", "feature-pca"], n=8)


def report(out):
    mass = sl.analysis.ObjectMass(title="Mass", caption="", mass=np.array([0.6, 0.5]), area=np.array([0.2, 0.1]))
    sl.write_report([mass], out)


def extract(out):
    sl.extract(model(depth=1), data(32)[0], out=out / "features.safetensors", batch=8)


def study(out):
    small_study.run_here(out)


def chosen(calls, count, seed):
    """Some of all places where a command may fail, of each kind at least one."""
    every = [(kind, n) for kind in KINDS for n in range(1, calls[kind] + 1)]
    order = random.Random(seed).sample(every, len(every))
    first = [next(place for place in order if place[0] == kind) for kind in KINDS]
    return list(dict.fromkeys([*first, every[0], *order]))[: count + 1]


@pytest.mark.parametrize("command", [train, look, report, extract, study], ids=lambda c: c.__name__)
def test_after_a_fault_the_same_command_gives_the_same_bytes(command, tmp_path):
    with Faults() as clean:
        command(tmp_path / "whole")
    expected = content(tmp_path / "whole")
    assert expected
    assert min(clean.calls[kind] for kind in KINDS) > 0
    for place in chosen(clean.calls, POINTS[command.__name__], command.__name__):
        out = tmp_path / "again"
        with pytest.raises((OSError, ValueError)), Faults(place):
            command(out)
        assert not list(out.rglob("*.partial")), place
        command(out)
        assert content(out) == expected, place
        shutil.rmtree(out)
