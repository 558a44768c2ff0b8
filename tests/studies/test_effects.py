"""Effects: intervals over seeds and over images, equivalence, and many claims at once."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from sightline.evals.interval import T95, balanced_signs, t95
from sightline.studies.effects import against_nulls, over_images, over_seeds, t_tail
from sightline.studies.verdict import mean_of
from tests.views.makers import without_groups

numbers = st.floats(-10, 10)
OPPOSITE = {"holds": "does not hold", "does not hold": "holds", "undecided": "undecided"}


@given(low=numbers, high=numbers, bound=numbers, side=st.sampled_from(["above", "below"]))
def test_a_state_is_where_the_interval_lies(low, high, bound, side):
    low, high = sorted((low, high))
    effect = sl.studies.Effect(what="x", value=(low + high) / 2, low=low, high=high, bound=bound, side=side)
    mirrored = replace(effect, side="below" if side == "above" else "above")
    assert mirrored.state == OPPOSITE[effect.state]
    assert (effect.state == "undecided") == (low <= bound <= high)


@pytest.mark.parametrize(
    ("low", "high", "state"),
    [(-0.02, 0.02, "holds"), (-0.04, 0.02, "undecided"), (0.04, 0.05, "does not hold"), (-0.1, 0.1, "undecided")],
)
def test_equal_means_within_the_margin(low, high, state):
    assert sl.studies.Effect(what="x", value=0, low=low, high=high, side="within", margin=0.03).state == state


@given(values=st.lists(numbers, min_size=2, max_size=20), shift=numbers)
def test_means_move_with_their_values(values, shift):
    one, two = mean_of("x", values, "draws"), mean_of("x", [v + shift for v in values], "draws")
    assert two.value - one.value == pytest.approx(shift, abs=1e-6)
    if math.isfinite(one.low) and math.isfinite(two.low):
        assert two.high - two.low == pytest.approx(one.high - one.low, abs=1e-6)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.1], [1.0, 1.0, 1.0], [1.0, 1.1, math.nan]])
def test_too_few_seeds_and_no_spread_decide_nothing(values):
    effect = over_seeds("x", values)
    assert effect.state == "undecided"
    assert math.isnan(effect.low)


def test_the_same_value_for_every_seed_has_the_error_of_its_resolution():
    effect = over_seeds("share of rates that train", [0.25, 0.25, 0.25], step=0.25)
    assert effect.low < 0.25 < effect.high
    assert over_seeds("accuracy", [0.5, 0.5, 0.5], step=0.001).state == "holds"


def test_seeds_are_paired():
    first = {0: 0.5, 1: 0.9, 2: 0.1, 3: 0.7}
    second = {seed: value - 0.02 - 0.001 * seed for seed, value in first.items()}
    assert over_seeds("x", sl.studies.paired(first, second)).state == "holds"
    assert len(sl.studies.paired(first, {0: 0.1, 7: 0.2})) == 1


def test_p_agrees_with_the_interval():
    """p is 0.05 where the interval ends at the bound, for the table's quantiles."""
    assert [t_tail(t, i + 1) for i, t in enumerate(T95)] == pytest.approx([0.05] * len(T95), abs=1e-4)
    values = np.array([0.1, 0.3, 0.2, 0.4])
    edge = over_seeds("x", values).low
    assert over_seeds("x", values, bound=edge).p == pytest.approx(0.05, abs=1e-4)
    assert over_seeds("x", values, side="within", bound=0.25, margin=0.25 - edge).p == pytest.approx(0.05, abs=1e-4)


@pytest.mark.parametrize("groups", [4, 7, 20, 64])
def test_the_error_of_a_mean_is_its_standard_error(groups):
    x = np.random.default_rng(0).normal(size=groups)
    left = (x.sum() - x) / (groups - 1)
    effect = over_images("x", float, (x.mean(), left))
    half = t95(groups - 1) * x.std(ddof=1) / groups**0.5
    assert (effect.low, effect.high) == pytest.approx((x.mean() - half, x.mean() + half))


@pytest.mark.parametrize("groups", [1, 2, 3, 20, 64])
def test_signs_are_balanced(groups):
    signs = balanced_signs(groups)
    np.testing.assert_array_equal(signs.T @ signs, len(signs) * np.eye(groups))
    np.testing.assert_array_equal(signs.sum(0), 0)


def test_intervals_of_64_groups_decide_at_two_standard_errors_in_most_draws():
    """As often as Student's t allows: 0.50. Of 20 groups it is 0.48."""
    draws = np.random.default_rng(0).normal(2, 8, (3000, 64))  # means of 64 values: standard error 1, two from 0
    found = [over_images("x", float, (x.mean(), (x.sum() - x) / 63)) for x in draws]
    assert np.mean([e.state == "holds" for e in found]) == pytest.approx(0.504, abs=0.02)
    assert np.mean([e.low < 2 < e.high for e in found]) == pytest.approx(0.95, abs=0.01)


def test_what_two_models_have_in_common_cancels():
    left = without_groups(np.array([1.0]), 0.7)
    far = over_images("x", lambda a: a[0], (np.array([1.0]), left))
    both = [(np.array([1.0]), left), (np.array([0.9]), left - 0.1 + without_groups(np.array([0.0]), 0.01, seed=1))]
    assert far.state == "undecided"
    assert over_images("x", lambda a, b: a[0] - b[0], *both).state == "holds"


def test_a_statistic_that_never_moves_has_the_error_of_one_step():
    part = (np.array([1.0]), np.ones((20, 1)))
    assert over_images("x", lambda a: a[0], part).state == "undecided"
    assert over_images("x", lambda a: a[0], part, step=0.1).state == "holds"


def test_groups_that_do_not_fit_give_no_interval():
    one, other = ((np.array([1.0]), without_groups(np.array([1.0]), 0.1, groups=g)) for g in (20, 19))
    assert math.isnan(over_images("x", lambda a, b: a[0] + b[0], one, other).low)


def test_a_random_table_seldom_passes_for_a_learned_one():
    draws = np.random.default_rng(0).normal(size=(400, 21))
    states = [against_nulls("x", row[0], row[1:], "tables").state for row in draws]
    assert 0.01 < 1 - states.count("undecided") / 400 < 0.09


def test_holm():
    assert sl.studies.holm([0.01, 0.01, 0.01, 0.04]) == [True, True, True, True]
    assert sl.studies.holm([0.02, 0.02, 0.02]) == [False, False, False]
    assert sl.studies.holm([]) == []


def verdict(*gains, **place):
    effects = tuple(
        sl.studies.Effect(what=f"gain {i}", value=g, low=g - 1, high=g + 1, **place) for i, g in enumerate(gains)
    )
    return sl.studies.Verdict(claim="V0", source="", statement="It gains.", models=("a",), effects=effects)


def test_verdicts_on_seeds_become_one_on_training():
    pooled = sl.studies.over_training({s: verdict(0.3 + 0.01 * s, -0.2 + 0.01 * s) for s in range(5)})
    assert (pooled.about, pooled.seeds, pooled.state) == ("models trained so", 5, "does not hold")
    assert [e.state for e in pooled.effects] == ["holds", "does not hold"]
    alone = verdict(0.3)
    assert (alone.about, alone.seeds, alone.state) == ("these models", 1, "undecided")
    equal = sl.studies.over_training({s: verdict(0.01 * s, side="within", margin=0.1) for s in range(3)})
    assert equal.state == "holds"
    with pytest.raises(ValueError, match="one for each training seed"):
        sl.studies.over_training({})


def test_many_verdicts_and_what_survives():
    def of(spread):
        return sl.studies.over_training({s: verdict(0.3 + spread * (s - 2)) for s in range(5)})

    sharp, near = of(0.001), of(0.14)
    assert near.state == "holds"
    assert sl.studies.surviving([sharp, near, verdict(0.3)]) == [True, True, False]
    assert sl.studies.surviving([sharp, near, near, near]) == [True, False, False, False]
