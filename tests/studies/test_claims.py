"""Verdicts are a pure function of results: what is judged, beside what, and what is left open."""

import json
from dataclasses import replace

import numpy as np
import pytest

import sightline as sl
from sightline.spec import About, to_json
from sightline.studies.claims import CLAIMS, without_verdict
from tests.views import makers
from tests.views.makers import CNN, VIT


def of(number, *results):
    """The verdicts on one claim."""
    return [v for v in sl.verdicts(results) if v.claim == number]


def test_what_no_model_is_named_for_gives_no_verdict_on_models():
    nameless = replace(makers.receptive(), about=About())
    assert sl.verdicts([nameless]) == []


def test_a_comparison_by_block_is_no_study_of_data():
    assert of("C20", makers.scale()) == []


def test_a_ratio_that_is_none_refutes_nothing():
    """A CNN whose branches add nothing has no ratio: that is not a ratio larger than the ViT's."""
    bare = makers.residual(model=CNN)
    (v,) = of("C11", makers.residual(), replace(bare, ratio=np.full_like(bare.ratio, np.nan)))
    assert v.state == "undecided"


def test_heads_without_a_distance_are_left_out_and_counted():
    r = makers.distance()
    pixels, left = r.pixels.copy(), r.replicates.copy()
    pixels[-1, 0] = left[:, -1, 0] = np.nan
    (v,) = of("C5", replace(r, pixels=pixels, replicates=left))
    assert v.state == "holds"
    assert "1 heads attend to prefix tokens only" in v.note


def test_a_part_that_nothing_was_measured_for_keeps_a_claim_open():
    (v,) = of("C9", makers.receptive(own=0.6), makers.receptive(own=0.1, side="before"))
    assert v.state == "undecided"
    assert "there is no interval: mass on the own cell in the CNN" in v.why()


def test_the_depth_of_the_crossing_is_told_with_its_interval():
    (v,) = of("C10", makers.residual())
    assert v.note.startswith("the sign changes at 0.49 [")


def test_a_claim_about_similarity_names_the_ways_it_survives():
    def two(level, model):
        """Even as printed, uneven within classes."""
        r = makers.cka(8, 8, models=(model,))
        s = np.where(np.eye(8), 1.0, level)
        s[0, 1:] = s[1:, 0] = level - 0.2
        other = np.where(np.eye(8), 1.0, 0.9 - level)
        left = np.stack([makers.without_groups(x, 0.01, seed=len(model.name)) for x in (s, other)])
        return replace(r, similarity=s, ways=("within class",), values=other[None], replicates=left)

    found = [replace(two(0.7, VIT), about=About(models=(VIT,))), two(0.4, CNN)]
    even = [replace(r, similarity=np.where(np.eye(8), 1.0, r.similarity)) for r in found]
    (v,) = of("C2", *(replace(r, row_stages=(0,) * 4 + (1,) * 4) for r in even))
    assert set(v.ways) == {"as printed", "within class"}
    assert "as printed" in v.survives()
    (printed,) = of("C1", *found)
    assert printed.ways["within class"] == "does not hold"
    assert json.loads(to_json(printed.plain()))["ways"]["within class"] == "does not hold"


def test_a_claim_is_not_beside_what_answers_another_question():
    claims = {c.number: c for c in CLAIMS}
    within, between = makers.cka(), makers.cka(4, 5, models=(VIT, CNN))
    pooled = replace(between, about=makers.about(VIT, CNN, analysis="cka-pooled"))
    beside = [[n for n in ("C1", "C2", "C3", "C4") if claims[n].about(r)] for r in (within, between, pooled)]
    assert beside == [["C1", "C2"], ["C3", "C4"], []]
    assert not claims["C8"].about(makers.receptive(side="before"))
    assert not claims["C20"].about(makers.scale())
    assert claims["C18"].about(makers.pooling())


def test_the_rest_is_listed():
    found = sl.verdicts([makers.fewshot()])
    assert set(without_verdict(found)) == {c.number for c in CLAIMS} - {"B4"}


def test_verdicts_are_strict_json():
    found = sl.verdicts(makers.every().values())
    assert len(found) > 10
    for v in found:
        json.loads(to_json(v.plain()), parse_constant=pytest.fail)
        assert all(e.text() for e in v.effects)
