"""A disk that fails at some write, rename or sync: the same command afterwards ends with the same bytes."""

import random

import pytest

from tests.attack.every_fault import COMMANDS, attempt, undisturbed
from tests.attack.faults import KINDS

POINTS = {
    "train": 4,
    "look": 3,
    "report": 3,
    "extract": 3,
    "study": 5,
}  # of each command, besides its very first and last


def chosen(every, count, seed):
    """Some of all places where a command may fail, of each kind at least one."""
    order = random.Random(seed).sample(every, len(every))
    first = [next(place for place in order if place[0] == kind) for kind in KINDS]
    return list(dict.fromkeys([*first, every[0], *order]))[: count + 1]


@pytest.mark.parametrize("name", COMMANDS)
def test_after_a_fault_the_same_command_gives_the_same_bytes(name, tmp_path):
    expected, places = undisturbed(COMMANDS[name], tmp_path / "whole")
    assert expected
    assert {kind for kind, _ in places} == set(KINDS)
    for place in chosen(places, POINTS[name], name):
        assert not attempt(COMMANDS[name], place, tmp_path / "again", expected), place
