"""Verdicts come from the numbers: every claim is decided both ways, and left open where it should be."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from sightline.spec import to_json
from sightline.studies.claims import CLAIMS, without_verdict
from sightline.studies.verdict import mean_of, share_difference, share_of
from tests.views import makers
from tests.views.makers import CNN, VIT

GAP = sl.ModelId(name="GAP ViT", kind="vit", pool="gap")
HYBRID = sl.ModelId(name="hybrid", kind="hybrid", pool="cls")


def of(number, *results):
    """The states of one claim."""
    return [v.state for v in sl.verdicts(results) if v.claim == number]


def even(level, *, model, stages=(), spread=0.3, repeats=4):
    """A heat map of 8 layers whose halves have a CKA of `level` with each other; stages fall apart by `spread`."""
    s = np.full((8, 8), level)
    part = np.arange(8) // 4
    s[part[:, None] == part] = level + spread
    np.fill_diagonal(s, 1)
    r = makers.cka(8, 8, models=(model,), repeats=repeats)
    return replace(r, similarity=s, row_stages=stages or (), column_stages=stages or ())


def cross(best, *, top=0.9, repeats=4):
    """ViT rows, CNN columns: the best ViT layer of each CNN layer, and how alike the top third is to anything."""
    s = np.full((12, 8), 0.1)
    s[np.asarray(best), np.arange(8)] = 0.9
    s[8:, 0] = top
    r = makers.cka(12, 8, models=(VIT, CNN), repeats=repeats)
    return replace(r, similarity=np.maximum(s, 0.1))


def lowest(pixels, model):
    """Twelve heads, all as far as this in the lowest block."""
    return makers.distance(low=(pixels,) * 12, high=(99.0,) * 12, model=model)


STAGES = (0, 0, 1, 1, 2, 2, 3, 3)


def staged(level):
    s = np.full((8, 8), 0.4)
    of_ = np.array(STAGES)
    s[of_[:, None] == of_] = 0.4 + level
    np.fill_diagonal(s, 1)
    return replace(makers.cka(8, 8, models=(CNN,)), similarity=s, row_stages=STAGES, column_stages=STAGES)


PAIRS = {  # claim: results for which it holds, results for which it does not
    "V7": ([makers.positions()], [makers.positions(decay=0.1)]),
    "V8": ([makers.distance()], [makers.distance(low=(90.0, 95.0, 100.0))]),
    "V9": ([lowest(5.0, VIT), lowest(90.0, HYBRID)], [lowest(90.0, VIT), lowest(5.0, HYBRID)]),
    "V10": ([makers.filters()], [makers.filters(low=0.1)]),
    "V14": ([makers.mass(), makers.focus()], [makers.mass(mass_=0.1), makers.focus(-0.1)]),
    "B4": ([makers.fewshot()], [makers.fewshot(first=0.8, last=0.4)]),
    "B6": ([makers.episodes()], [makers.episodes(few=0.6, many=0.9)]),
    "C1": (
        [even(0.7, model=VIT, spread=0.1), even(0.2, model=CNN, spread=0.6)],
        [even(0.2, model=VIT, spread=0.6), even(0.7, model=CNN, spread=0.1)],
    ),
    "C2": ([even(0.5, model=VIT, spread=0.0), staged(0.5)], [even(0.2, model=VIT, spread=0.7), staged(0.0)]),
    "C3": ([cross([0, 0, 1, 1, 6, 7, 7, 8])], [cross([6, 7, 7, 8, 9, 9, 10, 11])]),
    "C4": ([cross([0, 1, 2, 3, 4, 5, 6, 7], top=0.15)], [replace(cross([8, 9, 10, 11, 8, 9, 10, 11]))]),
    "C5": ([makers.distance()], [makers.distance(low=(90.0, 95.0, 100.0))]),
    "C7": ([makers.heads()], [makers.heads(0.2, 0.7)]),
    "C8": (
        [makers.receptive(12.0), makers.receptive(5.0, model=CNN)],
        [makers.receptive(5.0), makers.receptive(12.0, model=CNN)],
    ),
    "C9": (
        [makers.receptive(own=0.6), makers.receptive(own=0.1, side="before")],
        [makers.receptive(own=0.1), makers.receptive(own=0.6, side="before")],
    ),
    "C10": ([makers.residual()], [makers.residual(lower=-1.0, upper=1.0)]),
    "C11": (
        [makers.residual(ratio=4.0), makers.residual(ratio=1.0, model=CNN)],
        [makers.residual(ratio=1.0), makers.residual(ratio=4.0, model=CNN)],
    ),
    "C12": ([makers.residual()], [makers.residual(lower=-1.0, upper=1.0)]),
    "C14": ([makers.localization(1.0)], [makers.localization(0.0)]),
    "C15": (
        [makers.localization(1.0), makers.localization(0.1, model=CNN)],
        [makers.localization(0.1), makers.localization(1.0, model=CNN)],
    ),
    "C16": (
        [makers.localization(1.0), makers.localization(0.1, model=GAP)],
        [makers.localization(0.1), makers.localization(1.0, model=GAP)],
    ),
    "C17": (
        [makers.probes(), makers.probes(0.3, model=GAP)],
        [makers.probes(0.3), makers.probes(model=GAP)],
    ),
    "C18": ([makers.layer_probes()], [makers.layer_probes(cls_end=0.3)]),
    "C19": ([makers.layer_probes(gap_end=0.57, half=0.001)], [makers.layer_probes(gap_end=0.5)]),
    "C20": ([makers.scale(varied="data", seeds=3)], None),
    "C22": ([makers.layer_probes()], [makers.layer_probes(cnn_end=1.0)]),
}  # fmt: skip


def test_every_claim_of_the_table_is_tried_here():
    assert {c.number for c in CLAIMS} == set(PAIRS)


@pytest.mark.parametrize("number", PAIRS)
def test_claims_hold_and_fail_by_the_numbers(number):
    right, wrong = PAIRS[number]
    assert "holds" in of(number, *right)
    assert "does not hold" not in of(number, *right)
    if wrong is not None:
        assert "does not hold" in of(number, *wrong)
        assert "holds" not in of(number, *wrong)


@pytest.mark.parametrize("number", ["C1", "C2", "C4"])
def test_one_repeat_decides_nothing(number):
    results = [replace(r, band=np.full_like(r.band, np.nan), how={**r.how, "repeats": 1}) for r in PAIRS[number][0]]
    assert of(number, *results) == ["undecided"]


def test_wide_intervals_decide_nothing():
    assert of("C5", makers.distance(error=60.0)) == ["undecided"]
    assert of("C8", makers.receptive(12.0, error=9.0), makers.receptive(5.0, model=CNN)) == ["undecided"]
    assert of("B4", makers.fewshot(first=0.5, last=0.52, spread=0.3)) == ["undecided"]


def test_few_heads_and_few_images_decide_nothing():
    assert of("C7", makers.heads(count=3)) == ["undecided"]
    assert of("C14", makers.localization(0.0, n=100)) == ["undecided"]
    assert of("C14", makers.localization(1.0, n=100)) == ["holds"]
    assert of("C15", makers.localization(0.9, n=100), makers.localization(0.1, model=CNN, n=100)) == ["undecided"]


def test_what_no_model_is_named_for_gives_no_verdict_on_models():
    nameless = replace(makers.receptive(), about=sl.About())
    assert sl.verdicts([nameless]) == []


def test_a_comparison_by_block_is_no_study_of_data():
    assert of("C20", makers.scale()) == []


def test_a_ratio_that_is_none_refutes_nothing():
    """A CNN whose branches add nothing has no ratio: that is not a ratio larger than the ViT's."""
    bare = makers.residual(model=CNN)
    (v,) = of("C11", makers.residual(), replace(bare, ratio=np.full_like(bare.ratio, np.nan)))
    assert v == "undecided"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.number)
def test_a_claim_names_what_it_reads(claim):
    """All results that decide it are of types that it names, and the page puts it beside them."""
    deciding = PAIRS[claim.number][0]
    assert all(isinstance(r, claim.reads) for r in deciding)
    assert all(claim.about(r) for r in deciding)
    assert of(claim.number, *(r for r in makers.every().values() if not isinstance(r, claim.reads))) == []


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
    found = sl.verdicts([r for pair in PAIRS.values() for r in pair[0]])
    for v in found:
        json.loads(to_json(v.plain()), parse_constant=pytest.fail)
        assert all(e.text() for e in v.effects)


numbers = st.floats(-10, 10)


@given(low=numbers, high=numbers, bound=numbers, side=st.sampled_from(["above", "below"]))
def test_a_state_is_where_the_interval_lies(low, high, bound, side):
    low, high = sorted((low, high))
    effect = sl.studies.Effect(what="x", value=(low + high) / 2, low=low, high=high, bound=bound, side=side)
    mirrored = replace(effect, side="below" if side == "above" else "above")
    opposite = {"holds": "does not hold", "does not hold": "holds", "undecided": "undecided"}
    assert mirrored.state == opposite[effect.state]
    assert (effect.state == "undecided") == (low <= bound <= high)


@given(values=st.lists(numbers, min_size=2, max_size=20), shift=numbers)
def test_means_move_with_their_values(values, shift):
    one, two = mean_of("x", values, "draws"), mean_of("x", [v + shift for v in values], "draws")
    assert two.value - one.value == pytest.approx(shift, abs=1e-6)
    assert two.high - two.low == pytest.approx(one.high - one.low, abs=1e-6)


@given(a=st.lists(st.booleans(), min_size=1, max_size=30), b=st.lists(st.booleans(), min_size=1, max_size=30))
def test_differences_of_shares_stay_within_bounds(a, b):
    e = share_difference("x", share_of("", np.array(a), "tokens"), share_of("", np.array(b), "tokens"))
    assert -1.0001 <= e.low <= e.value <= e.high <= 1.0001


def test_an_empty_mean_is_undecided():
    assert mean_of("x", [], "draws").state == "undecided"
