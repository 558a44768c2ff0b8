"""Attention: the oracles of distance, the tap on three libraries, rollout (E13, E17)."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from sightline.adoption.attention import explicit_attention
from sightline.analysis.attention.distance import HeadSums, _result
from sightline.observe.attention import attention_probs
from sightline.observe.model import evaluation_mode, observe
from sightline.spec import About
from tests import peers


@pytest.mark.parametrize(
    ("grid", "patch", "want"), [(14, 16, 116.492), (7, 32, 115.503), (16, 14, 116.565), (24, 16, 200.048)]
)
def test_uniform_attention(grid, patch, want):
    n = grid * grid
    uniform = torch.full((n, n), 1 / n, dtype=torch.float64)
    assert sl.analysis.mean_distance(uniform, (grid, grid), patch=patch).item() == pytest.approx(want, abs=5e-4)


def test_identity_attention_and_the_class_token():
    assert sl.analysis.mean_distance(torch.eye(196), (14, 14), patch=16) == 0
    uniform = torch.full((197, 197), 1 / 197, dtype=torch.float64)
    assert sl.analysis.mean_distance(uniform, (14, 14), patch=16, renormalize=False).item() == pytest.approx(
        115.901, abs=5e-4
    )
    assert sl.analysis.mean_distance(uniform, (14, 14), patch=16).item() == pytest.approx(116.492, abs=5e-4)
    assert sl.analysis.prefix_mass(uniform, (14, 14)).item() == pytest.approx(1 / 197)


@given(share=st.floats(0, 0.99), prefix=st.integers(1, 5), rows=st.integers(1, 6), columns=st.integers(1, 6))
def test_mass_on_prefix_tokens_does_not_change_the_distance(share, prefix, rows, columns):
    n = rows * columns
    inner = torch.rand(n, n, dtype=torch.float64).softmax(-1)
    probs = torch.full((n + prefix, n + prefix), share / prefix, dtype=torch.float64)
    probs[prefix:, prefix:] = (1 - share) * inner
    want = sl.analysis.mean_distance(inner, (rows, columns), patch=(4, 2))
    assert sl.analysis.mean_distance(probs, (rows, columns), patch=(4, 2)).item() == pytest.approx(want.item())
    raw = sl.analysis.mean_distance(probs, (rows, columns), patch=(4, 2), renormalize=False)
    assert raw.item() == pytest.approx((1 - share) * want.item())
    assert sl.analysis.prefix_mass(probs, (rows, columns)).item() == pytest.approx(share)


def test_grids_need_not_be_square():
    n = 2 * 5
    to_the_right = torch.zeros(n, n)
    for i in range(n):
        to_the_right[i, i + 1 if i % 5 < 4 else i] = 1
    assert sl.analysis.mean_distance(to_the_right, (2, 5), patch=(16, 8)).item() == pytest.approx(8 * 8 / 10)
    with pytest.raises(ValueError, match="at least 10 x 10"):
        sl.analysis.mean_distance(torch.eye(9), (2, 5), patch=1)


def test_entropy():
    assert sl.analysis.attention_entropy(torch.eye(7)) == 0
    assert sl.analysis.attention_entropy(torch.full((3, 8, 8), 1 / 8)).tolist() == pytest.approx(
        [np.log(8)] * 3, abs=5e-6
    )


@pytest.mark.parametrize("name", ["vit-nano4", "r8-vit-nano4"])
@pytest.mark.parametrize(
    "change", [{}, {"pool": "gap"}, {"registers": 3}, {"position": "relative"}, {"norm_at": "post"}]
)
def test_our_models(name, change):
    model = sl.build(name, classes=10, size=(32, 48), **change)
    images = torch.rand(6, 3, 32, 48)
    found = sl.attention_distance(model, images, batch=4)
    with torch.no_grad(), sl.record(model, "blocks.*.attn.probs") as tape:
        model(images)
    for i, probs in enumerate(tape.values()):
        want = sl.analysis.mean_distance(probs.double(), model.encoder_config.grid, patch=observe(model).patch).mean(0)
        np.testing.assert_allclose(found.pixels[i], want, atol=1e-4)
        p = model.encoder_config.prefix
        np.testing.assert_allclose(
            found.entropy[i], sl.analysis.attention_entropy(probs[..., p:, :]).mean(0), atol=1e-4
        )
        np.testing.assert_allclose(
            found.prefix_mass[i], sl.analysis.prefix_mass(probs, model.encoder_config.grid).mean(0), atol=1e-5
        )
    assert "6 taps expected, 6 got" in found.how["proof"]
    assert found.fraction.max() < 1
    assert [block for block, _ in found.sorted_heads()] == [0, 1, 4, 5]


def timm_model():
    return peers.timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=3, num_classes=5)


def hf_model(kind="sdpa"):
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    config = peers.transformers.ViTConfig(**sizes, image_size=32, patch_size=8)
    return peers.transformers.ViTForImageClassification._from_config(config, attn_implementation=kind)


def torchvision_model():
    return peers.torchvision.models.VisionTransformer(32, 8, 3, 4, 32, 64, num_classes=5)


def eager_probs(model, images):
    """Attention as each library gives it when it is asked to write it out."""
    if model.__class__.__module__.startswith("timm"):
        found = []
        for block in model.blocks:
            block.attn.fused_attn = False
            block.attn.attn_drop.register_forward_hook(lambda m, a, out: found.append(out))
        model(images)
        return found
    if model.__class__.__module__.startswith("transformers"):
        model.set_attn_implementation("eager")
        return model(images, output_attentions=True).attentions
    found = []
    for layer in model.encoder.layers:
        mha = layer.self_attention
        inner = mha.forward

        def written(q, k, v, need_weights, inner=inner):
            out = inner(q, k, v, need_weights=True, average_attn_weights=False)
            found.append(out[1])
            return out

        mha.forward = written
    model(images)
    return found


@pytest.mark.parametrize("make", [timm_model, hf_model, torchvision_model])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_tap_equals_eager_attention(make, dtype):
    model = peers.fill(make(), std=0.1).eval().to(dtype)
    images = torch.rand(3, 3, 32, 32, dtype=dtype)
    with torch.no_grad():
        plain = model(images)
    s = observe(sl.adopt(model, image=sl.ImageSpec(size=(32, 32))))
    seen = {}
    with evaluation_mode(s), attention_probs(s, seen.__setitem__) as taps:
        logits = s.model(images)
    assert taps.got == taps.expected == 3
    assert taps.error < 1e-5
    same = {"rtol": 0, "atol": 0} if make is not torchvision_model else {}  # whose shortcut rounds in another way
    torch.testing.assert_close(logits, getattr(plain, "logits", plain), **same)  # the model's own result
    with torch.no_grad():
        for i, want in enumerate(eager_probs(model, images)):
            assert (seen[i] - want).abs().max() < 1e-5  # in float32 some CPUs differ by 6e-7


def test_models_that_write_their_softmax_out():
    images = torch.rand(3, 3, 32, 32)
    model = peers.fill(hf_model("eager"), std=0.3).eval()
    fused = peers.fill(hf_model("sdpa"), std=0.3).eval()
    one, two = (sl.attention_distance(sl.adopt(m), images) for m in (model, fused))
    np.testing.assert_allclose(one.pixels, two.pixels, atol=1e-4)
    assert "own softmax" in one.how["proof"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["none", "bool", "float"])
def test_masks_scale_and_grouped_queries(causal, kind):
    q, k, v = torch.rand(2, 4, 5, 8), torch.rand(2, 2, 5, 8), torch.rand(2, 2, 5, 8)
    mask = None if kind == "none" or causal else torch.rand(2, 1, 5, 5)
    mask = mask > 0.3 if kind == "bool" and mask is not None else mask
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=0.7, enable_gqa=True)
    probs = explicit_attention(q, k, mask, causal=causal, scale=0.7)
    torch.testing.assert_close(probs @ v.repeat_interleave(2, dim=1), want, equal_nan=True)


def test_everything_is_put_back_after_an_exception():
    before = (F.scaled_dot_product_attention, F.softmax, torch.softmax, torch.Tensor.softmax)
    fast = torch.backends.mha.get_fastpath_enabled()
    model = sl.build("vit-nano4", classes=0)
    s = observe(model)

    def keep(block, probs):
        raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"), evaluation_mode(s), attention_probs(s, keep):
        model(torch.rand(1, 3, 32, 32))
    assert before == (F.scaled_dot_product_attention, F.softmax, torch.softmax, torch.Tensor.softmax)
    assert "softmax" not in vars(torch.Tensor)
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_missing_taps_are_an_error():
    model = sl.build("vit-nano4", classes=0)
    s = observe(model)
    model.blocks[2].forward = lambda x, rows=None: x
    with pytest.raises(ValueError, match="Expected 6 attention taps, got 5: none in block 2"):
        sl.attention_distance(s, torch.rand(2, 3, 32, 32))
    with pytest.raises(ValueError, match="has no attention"):
        sl.attention_distance(sl.build("bit-nano"), torch.rand(2, 3, 32, 32))


def test_a_kernel_of_its_own_is_named(monkeypatch):
    """As xformers does it: neither torch's fused kernel nor a softmax is called, so that nothing can be seen."""
    model = timm_model()

    def alone(self, x, *args, **kwargs):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        weights = ((q * self.scale) @ k.mT).exp()
        y = (weights / weights.sum(-1, keepdim=True)) @ v
        return self.proj(y.transpose(1, 2).reshape(b, n, c))

    monkeypatch.setattr(type(model.blocks[0].attn), "forward", alone)
    with pytest.raises(ValueError, match=r"Expected 3 attention taps, got 0.*xformers"):
        sl.attention_distance(sl.adopt(model, image=sl.ImageSpec(size=(32, 32))), torch.rand(2, 3, 32, 32))


@given(seed=st.integers(0, 100), layers=st.integers(1, 4), heads=st.integers(1, 3), n=st.integers(1, 6))
def test_rollout_rows_sum_to_one(seed, layers, heads, n):
    torch.manual_seed(seed)
    probs = torch.randn(layers, 2, heads, n, n, dtype=torch.float64).softmax(-1)
    gradients = torch.randn_like(probs)
    for joint in (
        sl.analysis.rollout(probs),
        sl.analysis.rollout(probs, identity=True),
        sl.analysis.gradient_rollout(probs, gradients),
    ):
        torch.testing.assert_close(joint.sum(-1), torch.ones(2, n, dtype=torch.float64))
    eye = torch.eye(n, dtype=torch.float64).expand(layers, 2, heads, n, n)
    for joint in (sl.analysis.rollout(eye), sl.analysis.rollout(eye, identity=True)):
        assert torch.equal(joint, eye[0, :, 0])
    want = torch.eye(n, dtype=torch.float64)
    for a in probs.mean(2)[:, 0]:
        want = a @ want
    torch.testing.assert_close(sl.analysis.rollout(probs)[0], want)


def test_gradients_are_paired_with_their_own_layer():
    """Only block 1 has a gradient that matters: the rollout must follow the attention of block 1."""
    probs = torch.rand(3, 1, 1, 4, 4, dtype=torch.float64).softmax(-1)
    gradients = torch.zeros_like(probs)
    gradients[1] = 1
    joint = sl.analysis.gradient_rollout(probs, gradients)
    want = probs[1, :, 0] + torch.eye(4)
    torch.testing.assert_close(joint, want / want.sum(-1, keepdim=True))


@pytest.mark.parametrize("pool", ["cls", "gap"])
def test_gradient_rollout_of_a_model(pool):
    model = sl.build("vit-nano4", classes=10, pool=pool)
    peers.fill(model, std=0.2)
    images = torch.rand(4, 3, 32, 32)
    targets = torch.tensor([1, 2, 3, 4])
    found = sl.attention_rollout(model, images, gradient=True, targets=targets, batch=3)
    x = images.clone().requires_grad_()
    with sl.record(model, "blocks.*.attn.probs") as tape:
        score = model(x).gather(1, targets[:, None]).sum()
    names = sorted(tape, key=lambda name: int(name.split(".")[1]))
    gradients = torch.autograd.grad(score, [tape[n] for n in names])
    joint = sl.analysis.gradient_rollout([tape[n] for n in names], gradients)
    p = model.encoder_config.prefix
    rows = joint[:, 0, 1:] if pool == "cls" else joint[:, p:].mean(1)[:, p:]
    np.testing.assert_allclose(found.maps.reshape(4, -1), rows.detach(), atol=1e-5)
    assert not any(p.grad is not None for p in model.parameters())
    assert all(p.requires_grad for p in model.parameters())


def test_maps_of_heads():
    model = peers.fill(timm_model(), std=0.3)
    images = torch.rand(3, 3, 32, 32)
    adopted = sl.adopt(model, image=sl.ImageSpec(size=(32, 32)))
    found = sl.analysis.attention_maps(adopted, images, block=1, query=6)
    assert found.maps.shape == (3, 3, 4, 4)
    with torch.no_grad(), sl.record(adopted, "blocks.1.attn.probs") as tape:
        adopted(images)
    np.testing.assert_allclose(found.maps.reshape(3, 3, -1), tape["blocks.1.attn.probs"][:, :, 7, 1:], atol=1e-5)
    with pytest.raises(ValueError, match="no block 3"):
        sl.analysis.attention_maps(adopted, images, block=3)
    with pytest.raises(ValueError, match="no patch 16"):
        sl.analysis.attention_maps(adopted, images, query=16)


@pytest.mark.parametrize("kept", [0.0, 1e-9])
def test_a_head_that_looks_at_prefix_tokens_alone_has_no_distance(kept):
    """It is not local: it has no distance, is left out of means, and counted."""
    model = sl.build("vit-nano4", classes=5, depth=2)
    images = torch.rand(3, 3, 32, 32)
    s = observe(model)
    sums = HeadSums(s, 3)
    sums.groups, sums.images = torch.arange(3), 3
    probs = torch.rand(3, 4, 65, 65).softmax(-1)
    gone = probs.clone()
    gone[:, 1, 1:, :] = kept / 64
    gone[:, 1, 1:, 0] = 1 - kept
    sums.keep(0, probs)
    sums.keep(1, gone)
    found = _result(s, sums, {"proof": ""}, About())
    assert np.isnan(found.pixels[1, 1])
    assert np.isfinite(found.pixels).sum() == 7
    assert found.missing[1, 1] == 1
    assert found.missing.sum() == 1
    assert found.summary()["heads without a distance"] == 1
    assert found.summary()["upper half, mean"] == pytest.approx(np.nanmean(found.pixels[1]))
    assert "1 of 8 heads" in found.caption
    assert found.sorted_heads()[-1][1] == sorted(found.pixels[1][[0, 2, 3]].tolist())
    want = sl.analysis.mean_distance(gone, (8, 8), patch=4).mean(0)
    np.testing.assert_allclose(found.pixels[1], want, rtol=1e-5)
    whole = sl.attention_distance(model, images)
    assert (whole.missing == 0).all()
    single = np.array([sl.attention_distance(model, images[[i]]).pixels for i in range(3)])
    want = np.sort((single.sum(0) - single) / 2, axis=0)
    np.testing.assert_allclose(np.sort(whole.replicates, axis=0), want, rtol=1e-5)
