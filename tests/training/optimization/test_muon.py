"""Muon: its step against the published formula, which parameters take it, and runs that stop and resume."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import sightline as sl
from sightline.training.optimization import optimizer
from sightline.training.optimization.muon import Muon, orthogonalize
from tests.training.tiny import data, model, recipe


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.model = inner


def published_direction(gradient):
    """Newton-Schulz with the published coefficients, one matrix at a time, in float64."""
    x = gradient / max(np.linalg.norm(gradient), 1e-7)
    x = x.T if gradient.shape[0] > gradient.shape[1] else x
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if gradient.shape[0] > gradient.shape[1] else x


def published_steps(start, gradients, *, lr, decay, keep=0.95):
    """A matrix after steps of Muon with Nesterov momentum, scaled to the size of AdamW's updates."""
    p, buffer = start.copy(), np.zeros_like(start)
    for g in gradients:
        buffer = keep * buffer + (1 - keep) * g
        direction = published_direction((1 - keep) * g + keep * buffer)
        p = p * (1 - lr * decay) - lr * 0.2 * math.sqrt(max(p.shape)) * direction
    return p


@pytest.mark.parametrize("shape", [(16, 144), (144, 16), (16, 64), (16, 63)])
@pytest.mark.parametrize("decades", [0, 4, 8])
def test_wide_and_tall_matrices_agree_with_the_published_iteration(shape, decades):
    source = np.random.default_rng(0)
    u, _, v = np.linalg.svd(source.normal(size=shape), full_matrices=False)
    x = (u * np.logspace(0, -decades, 16)) @ v
    made = orthogonalize(torch.tensor(x, dtype=torch.float32)[None])[0]
    np.testing.assert_allclose(made.numpy(), published_direction(x), atol=3e-3 * np.abs(published_direction(x)).max())


@pytest.mark.parametrize(
    ("name", "shape"), [("fc1.weight", (6, 4)), ("conv1.weight", (3, 2, 3, 3)), ("qkv.weight", (12, 4))]
)
def test_the_step_is_the_published_one(name, shape):
    source = np.random.default_rng(0)
    start, *gradients = (source.normal(size=shape) for _ in range(4))
    p = nn.Parameter(torch.tensor(start, dtype=torch.float32))
    group = {"params": [p], "names": [name], "orthogonal": True, "weight_decay": 0.1}
    made = Muon([group], lr=0.02, momentum=0.95)
    made.state[p]["momentum_buffer"] = torch.zeros_like(p)
    for g in gradients:
        p.grad = torch.tensor(g, dtype=torch.float32)
        made.step()
    parts = 3 if name.startswith("qkv") else 1  # query, key and value are three matrices
    pieces = [np.split(x.reshape(shape[0], -1), parts) for x in (start, *gradients)]
    expected = [published_steps(s, g, lr=0.02, decay=0.1) for s, *g in zip(*pieces)]
    np.testing.assert_allclose(p.detach().flatten(1).numpy(), np.concatenate(expected), atol=2e-5)


def test_singular_values_come_close_to_one():
    x = torch.randn(2, 24, 40, generator=torch.Generator().manual_seed(0)) * torch.tensor([1e-3, 10.0]).view(2, 1, 1)
    values = torch.linalg.svdvals(orthogonalize(x))
    assert 0.6 < values.min() < values.max() < 1.3
    assert torch.equal(orthogonalize(torch.zeros(1, 3, 2)), torch.zeros(1, 3, 2))


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("vit-nano4", {"blocks.0.attn.qkv.weight", "blocks.5.mlp.fc2.weight"}, {"embed.proj.weight", "head.weight"}),
        ("bit-nano", {"stages.0.units.0.conv2.weight"}, {"root.conv.weight", "head.weight"}),
        ("r8-vit-nano4", {"backbone.stages.0.units.1.conv1.weight"}, {"backbone.root.weight", "embed.proj.weight"}),
    ],
)
def test_kernels_inside_blocks_are_orthogonalized(name, inside, outside):
    whole = sl.build(name, classes=10)
    settings = recipe(optimizer="muon", weight_decay=0.1)
    groups = optimizer.parameter_groups(Wrapped(whole), settings)
    chosen = {n for g in groups for n in g.names if g.orthogonal}
    assert inside <= chosen
    assert not chosen & outside
    assert all(whole.get_parameter(n).ndim >= 2 for n in chosen)
    made = optimizer.build_optimizer(Wrapped(whole), settings)
    kinds = {n: set(made.state[whole.get_parameter(n)]) for g in groups for n in g.names}
    assert all(
        k == ({"momentum_buffer"} if n in chosen else {"exp_avg", "exp_avg_sq", "step"}) for n, k in kinds.items()
    )
    optimizer.set_learning_rate(made, 0.25)  # one rate for both kinds
    assert {g["lr"] for g in (*made.param_groups, *made.adamw.param_groups)} == {0.25}


def test_nothing_to_orthogonalize_is_refused_before_the_first_step(tmp_path):
    with pytest.raises(ValueError, match=r"Muon orthogonalizes the matrices of the blocks.*optimizer=adamw"):
        sl.fit(model(), data()[0], recipe(optimizer="muon", trained=("head.*",)), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_resumes_bit_identically_also_across_sizes():
    train, val = data()
    settings = recipe(optimizer="muon", momentum=0.95, steps=6, weight_decay=0.1, ema=0.5, sizes=((0, 8), (0.3, 16)))
    assert sl.training.prove_resume(model(), train, settings, val=val).holds
