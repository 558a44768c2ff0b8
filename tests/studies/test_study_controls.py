"""Every claim of every study holds in a world where it is true, and not in one where nothing makes a difference."""

import pytest

import sightline as sl
from tests.studies import worlds
from tests.studies.worlds import DRAWS, TABLE, WORLDS, cases

STUDIES = {s.name: s for s in sl.studies.list_studies()}


@pytest.fixture(scope="module")
def judged():
    return list(cases())


def test_every_claim_of_every_study_has_both(judged):
    every = {f"{s.name}/{d.claim}" for s in STUDIES.values() for d in s.decides}
    for kind in ("positive", "null"):
        assert {claim for claim, k, *_ in judged if k == kind} == every


def test_it_holds_where_it_is_true_and_not_where_nothing_differs(judged):
    wrong = []
    for claim, kind, _, states in judged:
        held = states.count("holds") / len(states)
        if held < 0.9 if kind == "positive" else held > 0.2:
            wrong.append((claim, kind, states))
    assert not wrong


@pytest.mark.parametrize("name", WORLDS)
def test_measured_controls(name):
    """The null and the positive control that are measured beside each claim."""
    study = STUDIES[name]
    drawn = list(worlds.worlds(study, 1))
    for d in study.decides:
        assert d.null is not None
        assert d.control is not None
        nulls = [d.null.effect(seeds).state for seeds in drawn]
        assert nulls.count("holds") <= 0.2 * DRAWS, (d.claim, nulls)
        assert [d.control.effect(seeds).state for seeds in drawn].count("holds") >= 0.9 * DRAWS, d.claim


def test_the_atlas_shows_this_table(judged):
    assert sl.spec.from_json(TABLE.read_text()) == worlds.table(judged)
