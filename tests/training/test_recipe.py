"""A recipe refuses what cannot be meant, and `--set` says what it expected."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl

PLAIN = sl.Recipe(lr=0.1, batch=32, steps=100)


def test_the_schedule_follows_the_steps():
    tuned = sl.recipes.vit_finetune("pets").change(["steps=40"])
    assert tuned.warmup_steps(1000) == 8
    assert sl.recipes.vit_finetune("pets").change(["steps=40", "warmup=3"]).warmup == 3
    bit = sl.training.bit_hyperrule(50_000, 32 * 32).change(["steps=100"])
    assert bit.milestones == (0.3, 0.6, 0.9)
    long = sl.Recipe(lr=0.1, batch=32, epochs=90, warmup=900, milestones=(3000,), decay="staircase")
    assert (long.change(["epochs=9"]).warmup, long.change(["epochs=9"]).milestones) == (90, (300,))
    assert long.change(["steps=50"]).warmup_steps(1000) == 5
    assert long.change(["lr=0.2"]).warmup == 900


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epochs": 3}, "exactly one"),
        ({"steps": None}, "exactly one"),
        ({"steps": 0}, "above 0"),
        ({"batch": -1}, "above 0"),
        ({"lr": -0.1}, "at least 0"),
        ({"optimizer": "adam"}, "one of adamw, sgd"),
        ({"decay_rule": "torch"}, "one of lr, schedule"),
        ({"ema": 1.0}, "below 1"),
        ({"smoothing": -0.1}, "below 1"),
        ({"clip": 0}, "above 0, or none"),
        ({"decay": "staircase", "milestones": (60, 30)}, "rising"),
        ({"decay": "staircase", "milestones": (30, 30)}, "rising"),
        ({"sizes": ((0.1, 16), (0.5, 32))}, "rising shares from 0"),
        ({"sizes": ((0, 16), (0.5, 32)), "size": 16}, "last size"),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        replace(PLAIN, **wrong)


@pytest.mark.parametrize(
    ("setting", "field", "value"),
    [
        ("lr=0.01", "lr", 0.01),
        ("lr = 1", "lr", 1),
        ("clip=1", "clip", 1),
        ("clip=off", "clip", None),
        ("optimizer=sgd", "optimizer", "sgd"),
        ("compile=yes", "compile", True),
        ("frozen=blocks.0.*", "frozen", ("blocks.0.*",)),
        ("frozen=('a', 'b')", "frozen", ("a", "b")),
        ("sizes=((0, 16), (0.5, 32))", "sizes", ((0, 16), (0.5, 32))),
        ("lr_scale=(('head.*', 10),)", "lr_scale", (("head.*", 10),)),
    ],
)
def test_settings_arrive_as_their_annotation_wants_them(setting, field, value):
    assert getattr(PLAIN.change([setting]), field) == value


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("lr", "name=value"),
        ("lrr=1", "did you mean lr"),
        ("weight_decey=1", "weight_decay"),
        ("lr=fast", "lr is a number; got 'fast'"),
        ("batch=2.5", "batch is a whole number"),
        ("batch=true", "batch is a whole number"),
        ("optimizer=lion", "one of adamw, sgd"),
        ("augment.mixupp=1", "Augment has no field 'mixupp'; did you mean mixup"),
        ("augment.mixup=-1", "expected alpha >= 0"),
        ("lr.x=1", "single value"),
        ("betas=0.9", r"betas is \(a number, a number\); got '0.9'"),
        ("sizes=0:16", r"sizes is a list such as \(\(a number, a whole number\), \.\.\.\)"),
        ("sizes=16", r"sizes is a list such as \(\(a number, a whole number\), \.\.\.\); got"),
    ],
)
def test_a_wrong_setting_says_what_was_expected(setting, said):
    with pytest.raises(ValueError, match=said):
        PLAIN.change([setting])


def test_steps_and_epochs_take_each_others_place():
    by_epochs = PLAIN.change(["epochs=3"])
    assert (by_epochs.steps, by_epochs.epochs) == (None, 3)
    assert by_epochs.change(["steps=7"]) == replace(PLAIN, steps=7)


def test_settings_reach_inside_and_leave_the_rest():
    changed = PLAIN.change(["augment.mixup=0.2", "augment.flip=no"])
    assert changed == replace(PLAIN, augment=sl.data.Augment(mixup=0.2, flip=False))


@given(st.floats(1e-8, 10), st.integers(1, 10**6), st.floats(0.0, 0.99))
def test_any_number_survives_the_command_line(lr, batch, smoothing):
    settings = [f"lr={lr!r}", f"batch={batch}", f"smoothing={smoothing!r}"]
    assert PLAIN.change(settings) == replace(PLAIN, lr=lr, batch=batch, smoothing=smoothing)


@given(st.sampled_from([f.name for f in fields(sl.Recipe) if f.name not in ("augment", "steps", "epochs")]))
def test_what_a_recipe_prints_it_can_be_told(name):
    value = getattr(PLAIN, name)
    assert getattr(PLAIN.change([f"{name}={value}"]), name) == value


@given(st.integers(1, 10**7), st.integers(1, 4096), st.floats(0.1, 300))
def test_epochs_count_whole_batches(images, batch, epochs):
    r = sl.Recipe(lr=0.1, batch=batch, epochs=epochs)
    assert r.total_steps(images) == round(epochs * max(1, images // batch))


@pytest.mark.parametrize(("warmup", "steps"), [(0, 0), (0.1, 10), (0.999, 100), (1, 1), (5, 5)])
def test_warmup_below_one_is_a_share(warmup, steps):
    assert replace(PLAIN, warmup=warmup).warmup_steps(10**6) == steps


@pytest.mark.parametrize(
    "changes", [{"lr": float("inf")}, {"lr": float("nan")}, {"weight_decay": float("inf")}, {"clip": float("nan")}]
)
def test_numbers_are_finite(changes):
    with pytest.raises(ValueError, match="finite"):
        sl.Recipe(**{"lr": 1e-3, "batch": 8, "steps": 2, **changes})
    with pytest.raises(ValueError, match="finite"):
        sl.Recipe(lr=1e-3, batch=8, epochs=float("inf"))
    with pytest.raises(ValueError, match="finite"):
        sl.Recipe(lr=1e-3, batch=8, steps=2).change(["lr=1e400"])


def test_one_glob_is_still_a_list():
    with pytest.raises(ValueError, match=r"such as \('head.\*',\)"):
        sl.Recipe(lr=1e-3, batch=8, steps=2, frozen="head.*")
    assert sl.Recipe(lr=1e-3, batch=8, steps=2).change(["frozen=head.*"]).frozen == ("head.*",)
