"""Models in bfloat16: every statistic is computed from what they put out in float32 at least."""

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.observe.attention import attention_probs
from sightline.observe.images import ImageSource
from sightline.observe.model import evaluation_mode, observe
from tests import peers


def ours():
    return peers.fill(sl.build("vit-nano4", classes=5, depth=2, patch=8), std=0.15).bfloat16()


def timms():
    """Of another library: a mean of patches, with registers."""
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 5}
    net = peers.timm.models.VisionTransformer(**small, class_token=False, global_pool="avg", reg_tokens=2)
    return sl.adopt(peers.fill(net, std=0.15).eval().bfloat16())


@pytest.fixture(scope="module", params=[ours, timms], ids=["ours", "timm"])
def model(request):
    return request.param()


@pytest.fixture(scope="module")
def images():
    return torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def probs(model, images):
    """Attention (blocks, images, heads, tokens, tokens) and logits, as the model has them, in float64."""
    s, seen = observe(model), {}
    (batch,) = ImageSource(data=images, batch=8).batches([s])
    with evaluation_mode(s), attention_probs(s, seen.__setitem__):
        s.model(batch.images[0])
    return torch.stack([seen[b] for b in sorted(seen)]).double()


def test_attention_distance(model, images, probs):
    found = sl.attention_distance(model, images, batch=8)
    want = sl.analysis.mean_distance(probs, (4, 4), patch=8).mean(1)
    np.testing.assert_allclose(found.pixels, want, rtol=1e-5)


def test_attention_on_outliers(model, images, probs):
    found = sl.analysis.outlier_tokens(model, images, batch=8)
    prefix = observe(model).prefix
    np.testing.assert_allclose(found.mass[:, :prefix], probs[..., :prefix].mean((1, 2, 3)), rtol=1e-5)


def test_position_and_content(model, images, probs):
    found = sl.analysis.position_content(model, images, batch=8)
    prefix = observe(model).prefix
    logs = sl.analysis.centered_logits(probs[..., prefix:, prefix:])
    np.testing.assert_allclose(found.total, logs.square().mean((1, 3, 4)), rtol=1e-5)


def test_logit_lens(model, images):
    """The last place is the model's own answer; probabilities of all classes sum to one, to more digits than two."""
    found = [sl.analysis.logit_lens(model, images, n=None, batch=8, targets=[c] * 8) for c in range(5)]
    np.testing.assert_allclose(sum(f.probability for f in found), 1, rtol=1e-5)


def test_localization(model, images):
    s = observe(model)
    found = sl.localization(model, images, batch=8)
    (batch,) = ImageSource(data=images, batch=8).batches([s])
    with torch.no_grad(), sl.record(s.model, found.layer) as tape:
        s.model(batch.images[0])
    token = tape[found.layer][:, s.prefix + 5]
    patch = batch.images[0][:, :, 8:16, 8:16].flatten(1)
    assert found.maps[5, 1, 1] == pytest.approx(sl.analysis.linear_cka(token, patch), abs=1e-5)
