"""The rate at its knots (E18), and the laws that hold between them."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl

DECAYS = ("cosine", "linear", "staircase", "constant")


def made(decay="cosine", **changes):
    return sl.Recipe(**{"lr": 0.1, "batch": 8, "steps": 100, "decay": decay, **changes})


def test_cosine_at_its_knots():
    at = [sl.training.learning_rate(made(), s, steps=1100, warmup=100) for s in (0, 50, 100, 350, 600, 850, 1100)]
    eighth = (1 + math.cos(math.pi / 4)) / 2
    assert at == pytest.approx([0, 0.05, 0.1, 0.1 * eighth, 0.05, 0.1 * (1 - eighth), 0], abs=1e-12)


def test_linear_ends_at_its_end_and_not_at_zero():
    r = made("linear", lr=8e-4, end_lr=1e-5)  # the papers' code ends at 1e-5
    at = [sl.training.learning_rate(r, s, steps=518_000, warmup=10_000) for s in (0, 5_000, 10_000, 264_000, 518_000)]
    assert at == pytest.approx([0, 4e-4, 8e-4, (8e-4 + 1e-5) / 2, 1e-5])


@pytest.mark.parametrize(("step", "falls"), [(0, 0), (29, 0), (30, 0), (31, 1), (60, 1), (61, 2), (99, 2)])
def test_a_staircase_falls_behind_its_milestones(step, falls):
    r = made("staircase", milestones=(30, 60))
    assert sl.training.learning_rate(r, step, steps=100) == pytest.approx(0.1 * 0.1**falls)


def test_milestones_below_one_are_shares_of_training():
    shares, steps = made("staircase", milestones=(0.3, 0.6, 0.9)), made("staircase", milestones=(300, 600, 900))
    assert [sl.training.learning_rate(shares, s, steps=1000) for s in range(1000)] == [
        sl.training.learning_rate(steps, s, steps=1000) for s in range(1000)
    ]


def test_without_warmup_the_first_step_has_the_full_rate():
    assert all(sl.training.learning_rate(made(decay), 0, steps=100) == 0.1 for decay in DECAYS)


trainings = st.integers(1, 500).flatmap(lambda steps: st.tuples(st.just(steps), st.integers(0, steps)))


@given(st.sampled_from(DECAYS), trainings, st.floats(0, 1), st.floats(0, 1))
def test_a_rate_is_never_negative_nor_above_the_larger_end(decay, training, lr, end):
    steps, warmup = training
    r = made(decay, lr=lr, end_lr=end, milestones=(0.5, 0.8))
    for step in range(steps + 2):
        assert 0 <= sl.training.learning_rate(r, step, steps=steps, warmup=warmup) <= max(lr, end) * (1 + 1e-12)


@given(st.sampled_from(DECAYS), trainings)
def test_it_rises_in_warmup_and_falls_behind_it(decay, training):
    steps, warmup = training
    r = made(decay, milestones=(0.9,) if warmup < 0.9 * steps else ())
    at = [sl.training.learning_rate(r, s, steps=steps, warmup=warmup) for s in range(steps + 1)]
    up, down = at[: warmup + 1], at[warmup:]
    assert all(a < b for a, b in itertools.pairwise(up))
    assert all(a >= b - 1e-15 for a, b in itertools.pairwise(down))


@given(st.sampled_from(["cosine", "linear"]), st.integers(20, 2000))
def test_it_jumps_nowhere(decay, steps):
    warmup = steps // 10
    recipe = made(decay)
    at = [sl.training.learning_rate(recipe, s, steps=steps, warmup=warmup) for s in range(steps + 1)]
    most = max(0.1 / warmup, 0.1 * math.pi / 2 / (steps - warmup))  # the steepest slope of either part
    assert max(abs(a - b) for a, b in itertools.pairwise(at)) <= most * (1 + 1e-9)
