"""Outlier tokens: planted ones are all found and nothing else; the numbers against NumPy; the test-time register."""

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.evals.interval import half_width
from sightline.observe.model import evaluation_mode, observe
from sightline.observe.switches import switch_off
from tests import peers
from tests.evals.makers import SHARED, needs_shared
from tests.weights.makers import PEERS

SIZE, PATCH, CELLS = 32, 8, 16
PLANTED = [(0, 5), (0, 11), (1, 2), (2, 15), (2, 0), (2, 7)]  # image and patch
BLOCK, NEURON, CHANNEL = 1, 77, 9


def planted_model(**more):
    """Bright red patches have a large channel 3; one neuron of block 1 answers to it and writes a huge channel 9."""
    model = peers.fill(sl.build("vit-nano4", patch=PATCH, classes=5, depth=3, **more), std=0.1).double()
    with torch.no_grad():
        model.embed.proj.weight[3] = 0
        model.embed.proj.weight[3, 0] = 4 / PATCH**2  # the mean of red, which is 0 elsewhere
        mlp = model.blocks[BLOCK].mlp
        mlp.fc1.weight[NEURON] = 0
        mlp.fc1.weight[NEURON, 3], mlp.fc1.bias[NEURON] = 10.0, -20.0
        mlp.fc2.weight[:, NEURON] = 0
        mlp.fc2.weight[CHANNEL, NEURON] = 5.0
    return model


def planted_images(count=4):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, SIZE, SIZE, generator=random, dtype=torch.float64)
    x[:, 0] = 0
    for image, cell in PLANTED:
        y, c = divmod(cell, SIZE // PATCH)
        x[image, 0, y * PATCH : (y + 1) * PATCH, c * PATCH : (c + 1) * PATCH] = 3.0
    return x


@pytest.fixture(scope="module")
def model():
    return planted_model()


@pytest.fixture(scope="module")
def images():
    return planted_images()


@pytest.fixture(scope="module")
def found(model, images):
    return sl.analysis.outlier_tokens(model, images, batch=3)


@pytest.mark.parametrize("place", [2, 3])
def test_planted_outliers_are_all_found_and_nothing_else(found, place):
    assert {tuple(map(int, at)) for at in np.argwhere(found.outlier[:, place])} == set(PLANTED)
    assert not found.outlier[:, :2].any()  # before the block that makes them there are none
    assert found.share.tolist() == pytest.approx([0, 0, *[len(PLANTED) / (4 * CELLS)] * 2])


def test_the_channel_and_the_neuron_that_make_them(found, model, images):
    channel, share = found.top_channels(1, place=2)[0]
    assert channel == CHANNEL
    assert share > 0.9
    assert found.channels[2, 1, CHANNEL] < 0.1  # not of the other patches
    assert sl.analysis.register_switch(model, images, count=1) == f"register {BLOCK}.{NEURON}"


def reference(model, images):
    """The same in NumPy, from recorded tensors."""
    paths = ["encoder_input", *(f"blocks.{i}.mlp_sum" for i in range(3)), *(f"blocks.{i}.attn.probs" for i in range(3))]
    with torch.no_grad(), sl.record(model, *paths) as tape:
        model(images)
    stream, probs = np.stack([tape[p].numpy() for p in paths[:4]]), np.stack([tape[p].numpy() for p in paths[4:]])
    return stream, probs


def test_norms_and_attention_are_those_of_numpy(found, model, images):
    stream, probs = reference(model, images)
    norms = np.sqrt((stream**2).sum(-1))
    median = np.sort(norms[:, :, 1:], -1)[:, :, (CELLS - 1) // 2]  # torch takes the lower of the two middle values
    np.testing.assert_allclose(found.typical, median.mean(1), rtol=1e-10)
    np.testing.assert_allclose(found.largest, norms[:, :, 1:].max(-1).mean(1), rtol=1e-10)
    np.testing.assert_allclose(found.prefix_norm[:, 0], norms[:, :, 0].mean(1), rtol=1e-10)
    mask = np.zeros((4, CELLS), bool)
    mask[tuple(np.transpose(PLANTED))] = True
    got = probs.mean((2, 3))  # (blocks, images, keys)
    odd = (got[2, :, 1:] * mask).sum(-1).mean()
    np.testing.assert_allclose(found.mass[2], [got[2, :, 0].mean(), odd, 1 - got[2, :, 0].mean() - odd], rtol=1e-10)
    np.testing.assert_allclose(found.received[:, 2], got[2, :, 1:] * (CELLS + 1), rtol=1e-6)
    np.testing.assert_allclose(found.mass.sum(1), 1, rtol=1e-10)
    part = stream[2][:, 1:] ** 2 / (stream[2][:, 1:] ** 2).sum(-1, keepdims=True)
    np.testing.assert_allclose(found.channels[2, 0], part[mask].mean(0), rtol=1e-10)
    np.testing.assert_allclose(found.channels[2, 1], part[~mask].mean(0), rtol=1e-10)


def test_a_register_takes_the_outliers_over(model, images):
    switch = f"register {BLOCK}.{NEURON}"
    after = sl.analysis.outlier_tokens(model, images, register=switch)
    assert not after.outlier.any()
    assert after.groups[-1] == "register"
    np.testing.assert_allclose(after.mass.sum(1), 1, rtol=1e-10)
    effect = sl.what_if(model, images, switch)
    with torch.no_grad():
        same = with_register(model, images).argmax(1) == model(images).argmax(1)
    assert effect.agreement[0] == same.double().mean()
    assert effect.similarity.shape == (1, 3)


def with_register(model, images):
    """By hand: a token of zeros more, its neuron set to the largest activation of all tokens, the patches' to 0."""
    x = model.sequence(model.stem(images))
    x = torch.cat([x, torch.zeros_like(x[:, :1])], 1)
    for i, block in enumerate(model.blocks):
        x = x + block.attn(block.norm1(x))
        hidden = block.mlp.hidden(block.mlp.fc1(block.norm2(x)))
        if i == BLOCK:
            most = hidden[..., NEURON].max(1).values
            hidden[:, 1:-1, NEURON] = 0
            hidden[:, -1, NEURON] = most
        x = x + block.mlp.fc2(hidden)
    return model.head(model.norm(x)[:, 0])


def switched(s, images, text):
    with evaluation_mode(s), switch_off(s, text):
        return s.model(images)


def test_the_register_is_computed_as_defined(model, images):
    s = observe(model)
    with torch.no_grad():
        want, before = with_register(model, images), model(images)
    torch.testing.assert_close(switched(s, images, f"register {BLOCK}.{NEURON}"), want, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(want, before)
    with torch.no_grad():
        assert torch.equal(model(images), before)  # nothing stays behind


@pytest.mark.parametrize("name", ["timm", "torchvision", "hf", "timm-registers"])
def test_models_of_other_libraries(name):
    theirs = PEERS[name].ready()
    adopted = sl.adopt(theirs, sl.ImageSpec(size=(SIZE, SIZE)))
    ours = sl.load(theirs.state_dict(), **PEERS[name].hints)
    x = torch.rand(2, 3, SIZE, SIZE, dtype=torch.float64)
    a, b = (sl.analysis.outlier_tokens(m, x, register="register 0.3+1.7") for m in (adopted, ours))
    for field in ("typical", "largest", "prefix_norm", "mass", "channels"):
        np.testing.assert_allclose(getattr(a, field), getattr(b, field), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(*(switched(observe(m), x, "register 0.3+1.7") for m in (adopted, ours)))


def test_uneven_norms_alone_are_no_outliers():
    spread = torch.exp(torch.linspace(-2, 2, 49, dtype=torch.float64))[None]  # 55 times from first to last
    assert not sl.analysis.outliers(spread).any()
    even = torch.ones(1, 49)
    even[0, [3, 40]] = torch.tensor([2.9, 3.1])
    assert sl.analysis.outliers(even).nonzero()[:, 1].tolist() == [40]


def test_what_cannot_be_done_is_told(model, images):
    with pytest.raises(ValueError, match="no attention"):
        sl.analysis.outlier_tokens(sl.build("bit-nano", classes=5), images)
    with pytest.raises(ValueError, match="times is how many"):
        sl.analysis.outlier_tokens(model, images, times=1)
    with pytest.raises(ValueError, match="register is a switch"):
        sl.analysis.outlier_tokens(model, images, register="block 1")
    with pytest.raises(ValueError, match="has blocks 0 to 2"):
        sl.analysis.outlier_tokens(model, images, register="register 3.1")
    with pytest.raises(ValueError, match="neurons 0 to 127"):
        sl.analysis.outlier_tokens(model, images, register="register 1.256")
    with pytest.raises(ValueError, match="count is a number"):
        sl.analysis.register_switch(model, images, count=0)
    for change in ({"position": "relative"}, {"position_at": "every"}):
        with pytest.raises(ValueError, match="cannot be added"):
            sl.what_if(sl.build("vit-nano4", classes=5, depth=2, **change), images.float(), "register 0.1")


def test_a_bias_between_all_tokens_has_no_row_for_another_one():
    """BEiT learns one for each pair of positions: a reason is given, not the shapes that do not fit."""
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 5}
    model = sl.adopt(peers.timm.models.beit.Beit(**small, use_rel_pos_bias=True).eval())
    with pytest.raises(ValueError, match="does not take one more token"):
        sl.analysis.outlier_tokens(model, torch.rand(2, 3, 32, 32), register="register 0.1")
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_intervals_are_those_of_a_mean_over_images():
    model = sl.build("vit-nano4", patch=8, classes=5, depth=2)
    images = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    whole = sl.analysis.outlier_tokens(model, images, batch=4)
    each = [sl.analysis.outlier_tokens(model, images[i : i + 1]) for i in range(6)]
    for band, name in ((whole.norm_band[:, 1], "largest"), (whole.mass_band, "mass"), (whole.sinks_band, "sinks")):
        one = np.stack([getattr(r, name) for r in each])
        np.testing.assert_allclose(band, half_width(one, 0), atol=1e-6)
    assert np.isnan(each[0].norm_band).all()


@needs_shared
def test_a_register_found_in_a_real_network_works_on_other_images():
    """DeiT-Tiny has no outlier at three times the median norm, some at twice: neurons that are found on 12 photographs
    take them over on 12 others, as many neurons of the same blocks at random take fewer."""
    model = sl.load(SHARED / "deit_tiny_patch16_224_in1k.npz")
    data = sl.dataset(SHARED / "pets", split="test").sample(24, seed=0)
    first, others = data.subset(indices=range(12)), data.subset(indices=range(12, 24))
    found = sl.analysis.register_switch(model, first, times=2.0)
    blocks = [neuron.split(".")[0] for neuron in found.removeprefix("register ").split("+")]
    numbers = np.random.default_rng(0).integers(768, size=len(blocks))
    random = "register " + "+".join(f"{block}.{i}" for block, i in zip(blocks, numbers))
    plain, moved, control = (
        sl.analysis.outlier_tokens(model, others, times=2.0, register=r) for r in ("", found, random)
    )
    assert plain.share.max() > 0
    assert moved.share.sum() < 0.3 * plain.share.sum()
    assert moved.share.sum() < 0.5 * control.share.sum()
    assert moved.sinks[-1] + moved.sinks_band[-1] < control.sinks[-1] - control.sinks_band[-1]
