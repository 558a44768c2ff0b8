"""The attention primitive (E1), its kernels, and the norms (E10)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from sightline.models import layers

QUERY = torch.tensor([[0.2, 0.9, 0.0]], dtype=torch.float64)
KEYS = torch.tensor([[0.1, 0, 0.8], [0.1, 0.9, 0], [0, 0.1, 0.8], [0.2, 0.1, 0.6], [0.9, 0, 0.1]], dtype=torch.float64)


def close(got, expected, atol=5e-5):
    torch.testing.assert_close(got, torch.tensor([expected], dtype=got.dtype), atol=atol, rtol=0)


def test_worked_example_unscaled():
    context, weights = sl.models.attention(QUERY, KEYS, KEYS)
    close(weights, [0.1513, 0.3401, 0.1623, 0.1689, 0.1775])
    close(context, [0.2427, 0.3392, 0.3699])


def test_worked_example_scaled():
    context, weights = sl.models.attention(QUERY, KEYS, KEYS, scale=3**-0.5)
    close(weights, [0.1724, 0.2752, 0.1795, 0.1837, 0.1891])
    close(context, [0.2517, 0.2840, 0.4107])


def test_self_attention_without_parameters_is_the_primitive():
    y, weights = sl.models.basic_self_attention(KEYS)
    torch.testing.assert_close(y, (KEYS @ KEYS.mT).softmax(-1) @ KEYS)
    torch.testing.assert_close(weights.sum(-1), torch.ones(5, dtype=torch.float64))


@given(n=st.integers(1, 40), heads=st.sampled_from([1, 2, 4]), seed=st.integers(0, 99))
def test_every_kernel_gives_the_same(n, heads, seed):
    random = torch.Generator().manual_seed(seed)
    attn = layers.Attention(16, heads).double()
    x = torch.randn(2, n, 16, generator=random).double()
    plain = attn(x)
    with sl.record(torch.nn.ModuleDict({"attn": attn}), "attn.probs") as tape:
        watched = attn(x)
    q, k, v = attn.qkv(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    fused = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(plain, attn.out(fused), atol=1e-12, rtol=0)
    torch.testing.assert_close(plain, watched, atol=1e-12, rtol=0)
    torch.testing.assert_close(tape["attn.probs"].sum(-1), torch.ones(2, heads, n).double())


@pytest.mark.parametrize("tokens", [2, 65, 197])
def test_observed_and_fused_agree(tokens):
    attn = layers.Attention(64, 4)
    x = torch.randn(2, tokens, 64)
    plain = attn(x)
    with sl.record(torch.nn.ModuleDict({"attn": attn}), "attn.probs"):
        watched = attn(x)
    torch.testing.assert_close(plain, watched, atol=2e-6, rtol=0)  # two kernels, 1e-7 apart


def test_layer_norm_is_independent_of_the_batch_and_batch_norm_is_not():
    x = torch.randn(4, 5, 8)
    for kind, independent in (("layer", True), ("batch", False)):
        model = sl.build(
            sl.models.ViTConfig(width=8, depth=1, heads=2, mlp_width=8, patch=4, size=8, norm=kind)
        ).train()
        norm = model.blocks[0].norm1
        alone, among = norm(x[:1]), norm(x)[:1]
        assert torch.allclose(alone, among, atol=1e-6) == independent


def test_drop_path_keeps_the_mean_and_drops_whole_samples():
    drop = layers.DropPath(0.25).train()
    y = drop(torch.ones(4000, 2, 3))
    assert y.unique().tolist() == pytest.approx([0, 4 / 3])
    assert (y.flatten(1).std(1) == 0).all()
    assert y.mean() == pytest.approx(1, abs=0.03)
    assert layers.DropPath(0.25).eval()(torch.ones(5)).eq(1).all()


@pytest.mark.parametrize("form", ["tanh", "erf"])
def test_the_mlp_is_the_same_with_and_without_gradients_and_observers(form):
    mlp, x = layers.Mlp(8, 32, gelu=form), torch.randn(2, 3, 8)
    expected = mlp.fc2(layers.Gelu(form)(mlp.fc1(x)))
    with torch.no_grad():
        torch.testing.assert_close(mlp(x), expected)
        with sl.record(mlp, "fc1", "hidden") as tape:
            torch.testing.assert_close(mlp(x), expected)
        assert torch.equal(tape["fc1"], mlp.fc1(x))
        torch.testing.assert_close(tape["hidden"], layers.Gelu(form)(tape["fc1"]))


def test_gelu_forms_differ_as_published():
    x = torch.linspace(-6, 6, 100_001, dtype=torch.float64)
    gap = (layers.Gelu("tanh")(x) - layers.Gelu("erf")(x)).abs()
    assert gap.max().item() == pytest.approx(4.73e-4, rel=2e-3)
    assert abs(x[gap.argmax()].item()) == pytest.approx(2.70, abs=0.01)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("few", "kernels"), [(5, []), (4, [torch.float32])], ids=["written out", "in float32"])
def test_training_in_bfloat16_avoids_its_slow_kernel(biased, few, kernels, monkeypatch):
    monkeypatch.setattr(layers, "FEW_TOKENS", few)
    source = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 5, 4, generator=source).bfloat16().requires_grad_() for _ in range(3))
    bias = torch.randn(2, 2, 5, 5, generator=source).bfloat16() if biased else None
    seen, kernel = [], layers.F.scaled_dot_product_attention

    def watched(q, k, v, attn_mask):
        seen.append(q.dtype)
        return kernel(q, k, v, attn_mask=attn_mask)

    monkeypatch.setattr(layers.F, "scaled_dot_product_attention", watched)
    with torch.autocast("cpu", torch.bfloat16):
        y = layers.fused_attention(q, k, v, bias)
    with torch.no_grad():
        layers.fused_attention(q, k, v, bias)
    assert (y.dtype, seen) == (torch.bfloat16, [*kernels, torch.bfloat16])
    exact, _ = layers.attention(
        q.double(), k.double(), v.double(), scale=0.5, bias=bias if bias is None else bias.double()
    )
    torch.testing.assert_close(y.double(), exact, atol=0.01, rtol=0.01)
    for made, right in zip(torch.autograd.grad(y.sum(), (q, k, v)), torch.autograd.grad(exact.sum(), (q, k, v))):
        torch.testing.assert_close(made, right, atol=0.02, rtol=0.02)
