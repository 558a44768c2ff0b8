"""Which parameters learn, how fast and with which decay; single steps against arithmetic by hand."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import sightline as sl
from sightline.training.optimization import optimizer
from sightline.training.optimization.average import PolyakAverage
from tests.training.tiny import data, model, recipe


class Wrapped(nn.Module):
    """A task around any module, as the optimizer sees it."""

    def __init__(self, inner):
        super().__init__()
        self.model = inner


def steps(settings, *, start, gradients, rates=None):
    """A weight matrix and a bias of one value each after a few steps with these gradients."""
    inner = nn.Module()
    inner.weight = nn.Parameter(torch.full((1, 1), start))
    inner.bias = nn.Parameter(torch.full((1,), start))
    made = optimizer.build_optimizer(Wrapped(inner), settings, fused=False)
    for gradient, rate in zip(gradients, rates or [settings.lr] * len(gradients)):
        for p in inner.parameters():
            p.grad = torch.full_like(p, gradient)
        optimizer.set_learning_rate(made, rate)
        made.step()
    return inner.weight.item(), inner.bias.item()


def by_name(settings, m=None):
    return {n: g for g in optimizer.parameter_groups(Wrapped(m or model()), settings) for n in g.names}


def test_only_kernels_decay():
    found = by_name(recipe(weight_decay=0.1))
    decayed = {n for n, g in found.items() if g.weight_decay}
    assert {"embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.1.mlp.fc2.weight", "head.weight"} <= decayed
    assert not decayed & {n for n in found if n.endswith("bias") or "norm" in n or "positions" in n or n == "prefix"}
    assert {n for n, g in by_name(recipe(weight_decay=0.1, decayed=("all",))).items() if not g.weight_decay} == set()
    only = by_name(recipe(weight_decay=0.1, decayed=("head.*",)))
    assert {n for n, g in only.items() if g.weight_decay} == {"head.weight", "head.bias"}
    bit = sl.build("bit-nano", classes=10)
    shapes = {n: p.ndim for n, p in bit.named_parameters()}
    decays = {n: g.weight_decay for n, g in by_name(recipe(weight_decay=0.1), bit).items()}
    assert decays == {n: 0.1 if ndim > 1 else 0.0 for n, ndim in shapes.items()}


@given(st.floats(-2, 2), st.floats(0.001, 0.5), st.floats(0, 0.5))
def test_adamw_decay_follows_the_rate(start, lr, wd):  # torch, the ViT paper: p -= lr * wd * p, then Adam's step
    settings = recipe(lr=lr, weight_decay=wd)
    weight, bias = steps(settings, start=start, gradients=[3.0])
    assert bias == pytest.approx(start - lr, abs=1e-5)  # Adam's first step is the sign of the gradient
    assert weight == pytest.approx(start * (1 - lr * wd) - lr, abs=1e-5)


@given(st.floats(-2, 2), st.floats(0.001, 0.5), st.floats(0, 0.5), st.floats(0.1, 1))
def test_adamw_decay_follows_the_schedule(start, lr, wd, now):  # big_vision: p -= (lr / peak lr) * wd * p
    settings = recipe(lr=lr, weight_decay=wd, decay_rule="schedule")
    weight, _ = steps(settings, start=start, gradients=[3.0], rates=[now * lr])
    assert weight == pytest.approx(start * (1 - now * wd) - now * lr, abs=1e-5)


def test_the_two_conventions_are_one_at_the_stated_numbers():  # 1e-4 of big_vision at 1e-3 is torch's 0.1
    a = steps(recipe(lr=1e-3, weight_decay=0.1), start=2.0, gradients=[1.0, -0.5], rates=[1e-3, 4e-4])
    b = steps(
        recipe(lr=1e-3, weight_decay=1e-4, decay_rule="schedule"), start=2.0, gradients=[1.0, -0.5], rates=[1e-3, 4e-4]
    )
    assert a == pytest.approx(b, abs=2e-6)  # float32: 2e-7 a rounding


def test_sgd_puts_decay_into_the_gradient_and_remembers():  # v = 0.9 v + (g + wd p); p -= lr v
    p, v = 2.0, 0.0
    for g in (1.0, -0.5, 0.25):
        v = 0.9 * v + g + 0.1 * p
        p -= 0.05 * v
    weight, bias = steps(recipe(optimizer="sgd", lr=0.05, weight_decay=0.1), start=2.0, gradients=[1.0, -0.5, 0.25])
    assert weight == pytest.approx(p, abs=5e-6)  # float32: 2e-7 a rounding, three steps
    q, v = 2.0, 0.0
    for g in (1.0, -0.5, 0.25):
        v = 0.9 * v + g
        q -= 0.05 * v
    assert bias == pytest.approx(q, abs=5e-6)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_state_is_there_from_the_start_and_is_what_torch_makes(kind):
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    settings = recipe(optimizer=kind, lr=0.1, weight_decay=0.05, decayed=("all",), betas=(0.8, 0.99))
    made = optimizer.build_optimizer(Wrapped(ours), settings)
    moments = {"adamw": {"exp_avg", "exp_avg_sq", "step"}, "sgd": {"momentum_buffer"}}[kind]
    assert all(set(made.state[p]) == moments for p in ours.parameters())
    if kind == "adamw":
        other = torch.optim.AdamW(theirs.parameters(), lr=0.1, weight_decay=0.05, betas=(0.8, 0.99))
    else:
        other = torch.optim.SGD(theirs.parameters(), lr=0.1, weight_decay=0.05, momentum=0.9)
    for seed in range(3):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        for module, each in ((ours, made), (theirs, other)):
            each.zero_grad()
            module(x).square().mean().backward()
            each.step()
    for a, b in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b)


def test_rates_by_glob_and_by_depth():
    found = by_name(recipe(lr_scale=(("head.*", 10.0), ("*.bias", 2.0))))
    assert found["head.bias"].scale == 10  # the first that matches counts
    assert found["blocks.0.mlp.fc1.bias"].scale == 2
    assert found["blocks.0.mlp.fc1.weight"].scale == 1
    both = by_name(recipe(layer_decay=0.5, lr_scale=(("embed.*", 4.0),)))
    assert both["head.weight"].scale == 1
    assert both["blocks.1.mlp.fc1.weight"].scale == 0.5
    assert both["blocks.0.mlp.fc1.weight"].scale == 0.25
    assert both["embed.proj.weight"].scale == 4 * 0.125


def test_scales_multiply_the_rate_of_each_step():
    made = optimizer.build_optimizer(Wrapped(model()), recipe(lr_scale=(("head.*", 10.0),)))
    optimizer.set_learning_rate(made, 0.5)
    assert {g["scale"]: g["lr"] for g in made.param_groups} == {1.0: 0.5, 10.0: 5.0}


def test_frozen_by_glob():
    found = by_name(recipe(frozen=("blocks.0.*", "embed.*")))
    assert not [n for n in found if n.startswith(("blocks.0.", "embed."))]
    assert "blocks.1.norm1.weight" in found
    assert set(by_name(recipe(trained=("head.*",)))) == {"head.weight", "head.bias"}
    assert set(by_name(recipe(trained=("head.*",), frozen=("*.bias",)))) == {"head.weight"}


@pytest.mark.parametrize(
    "changes",
    [{"frozen": ("block.*",)}, {"trained": ("haed.*",)}, {"lr_scale": (("x", 2.0),)}, {"decayed": ("kernel",)}],
)
def test_globs_that_match_nothing(changes):
    with pytest.raises(ValueError, match=r"matches no parameter of the model; they are called prefix"):
        by_name(recipe(**changes))


def test_nothing_left_to_train(tmp_path):
    with pytest.raises(ValueError, match="nothing to train"):
        sl.fit(model(), data()[0], recipe(frozen=("*",)), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", [("small", "similar"), ("large", "similar"), ("small", "different")])
def test_strategies_move_what_learns_at_a_tenth_and_nothing_else(kind, tmp_path):
    train, _ = data()
    settings = sl.training.transfer(*kind, recipe=recipe(steps=2, weight_decay=0.1, ema=0.5), model=model())
    before, m = model(), model()
    run = sl.fit(m, train, settings, out=tmp_path / "run")
    learning = [n for n, _ in m.named_parameters() if optimizer.is_trained(n, settings)]
    moved = [n for (n, a), b in zip(before.named_parameters(), m.parameters()) if not torch.equal(a, b)]
    assert 0 < len(learning) < len(list(m.parameters()))
    assert set(moved) <= set(learning)
    assert "head.weight" in moved
    assert [row["lr"] for row in run.rows()] == [pytest.approx(1e-4), pytest.approx(5e-5)]  # cosine of 1e-3 / 10
    assert all(p.requires_grad for p in m.parameters())  # as it came


def test_parameters_that_the_caller_froze_stay(tmp_path):
    m = model()
    m.embed.proj.weight.requires_grad_(False)
    before = m.embed.proj.weight.clone()
    sl.fit(m, data()[0], recipe(steps=2, weight_decay=0.1), out=tmp_path / "run")
    assert torch.equal(m.embed.proj.weight, before)
    assert not m.embed.proj.weight.requires_grad
    assert m.head.weight.requires_grad


@given(st.floats(0, 0.999), st.lists(st.floats(-5, 5), min_size=1, max_size=6))
def test_average_is_the_weighted_sum_of_all_that_was(keep, values):
    inner = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        inner.weight.fill_(1.0)
    average, expected = PolyakAverage(inner, keep), 1.0
    for value in values:
        with torch.no_grad():
            inner.weight.fill_(value)
        average.update(optimizer.parameters_by_name(inner))
        expected = keep * expected + (1 - keep) * value
    assert average.values["weight"].item() == pytest.approx(expected, abs=1e-5)
    with average.swap_into(optimizer.parameters_by_name(inner)):
        assert inner.weight.item() == pytest.approx(expected, abs=1e-5)
    assert inner.weight.item() == pytest.approx(values[-1], abs=1e-6)


def test_average_comes_back_out_after_an_error():
    inner = nn.Linear(1, 1)
    average, held = PolyakAverage(inner, 0.5), inner.weight.clone()
    average.values["weight"].fill_(7)

    def fails():
        with average.swap_into(optimizer.parameters_by_name(inner)):
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="middle"):
        fails()
    assert torch.equal(inner.weight, held)


def test_norm_is_that_of_all_values_together():
    tensors = [torch.randn(3, 4), torch.randn(5)]
    together = torch.cat([t.flatten() for t in tensors]).norm().item()
    assert optimizer.total_norm(tensors).item() == pytest.approx(together, rel=1e-5)
    assert optimizer.total_norm([]).item() == 0


def test_clipping_bounds_the_gradient(tmp_path):
    train = data()[0]
    settings = recipe(optimizer="sgd", lr=1.0, steps=1, decay="constant", momentum=0.0)
    loose = sl.fit(model(), train, settings, out=tmp_path / "loose").rows()[0]
    bound = loose["norm/gradient"] / 4
    tight = sl.fit(model(), train, replace(settings, clip=bound), out=tmp_path / "tight").rows()[0]
    assert loose["norm/update"] == pytest.approx(loose["norm/gradient"], rel=1e-4)
    assert tight["norm/gradient"] == loose["norm/gradient"]  # what is logged is what there was
    assert tight["norm/update"] == pytest.approx(bound, rel=1e-4)
