"""Attention by position and content: the parts add up exactly, NumPy agrees, and heads of known kind are told apart."""

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.analysis.attention.position_content import LogitSums
from sightline.observe.model import observe
from tests import peers
from tests.weights.makers import PEERS


@pytest.fixture(scope="module")
def model():
    return peers.fill(sl.build("vit-nano4", patch=8, classes=5, depth=2), std=0.3).double()


@pytest.fixture(scope="module")
def images():
    return torch.randn(5, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def logits_of(model, images):
    """Row-centered logits between patches from queries and keys, not from probabilities."""
    with torch.no_grad(), sl.record(model, "blocks.*.attn.q", "blocks.*.attn.k") as tape:
        model(images)
    blocks = []
    for i in range(2):
        q, k = (tape[f"blocks.{i}.attn.{n}"][:, :, 1:].numpy() for n in "qk")
        logits = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
        blocks.append(logits - logits.mean(-1, keepdims=True))
    return np.stack(blocks)  # (blocks, images, heads, n, n)


def test_energies_are_those_of_numpy(model, images):
    found = sl.analysis.position_content(model, images, batch=2)
    logits = logits_of(model, images)
    fixed = logits.mean(1, keepdims=True)
    rest = logits - fixed
    key = rest.mean(-2, keepdims=True)
    pair = rest - key
    np.testing.assert_allclose(fixed + key + pair, logits, atol=1e-12)  # the parts are the whole
    energy = [(x**2).mean((1, 3, 4)) for x in (fixed, np.broadcast_to(key, logits.shape), pair)]
    n = len(images)
    want = [energy[0] - (energy[1] + energy[2]) / (n - 1), energy[1] * n / (n - 1), energy[2] * n / (n - 1)]
    np.testing.assert_allclose(found.energy, want, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.energy.sum(0), (logits**2).mean((1, 3, 4)), atol=1e-10)
    np.testing.assert_allclose(found.energy.sum(0), found.total, atol=1e-10)
    np.testing.assert_allclose(found.share.sum(0), 1, atol=1e-10)
    alone = np.exp(fixed[1, 0, 2, 3])
    shown = found.maps[1, 1, 2, 3] / 255 * found.peaks[1, 1, 2, 3]
    np.testing.assert_allclose(shown, alone / alone.sum(), atol=found.peaks.max() / 255)


def planted(kind, n=40, count=9, heads=1):
    """Attention that knows only positions, only keys, only pairs, or nothing but noise."""
    random = np.random.default_rng(0)
    noise = {
        "position": (1, heads, count, count),
        "key content": (n, heads, 1, count),
        "pair content": (n, heads, count, count),
    }
    logits = np.broadcast_to(random.standard_normal(noise[kind]), (n, heads, count, count))
    return torch.from_numpy(logits.copy()).softmax(-1)


@pytest.mark.parametrize("part", range(3))
def test_each_part_alone_is_recognized(part):
    s = observe(sl.build("vit-nano4", patch=8, size=24, classes=5, pool="gap", depth=1, heads=1))
    sums = LogitSums(s, 1)
    probs = planted(("position", "key content", "pair content")[part])
    sums.groups = np.zeros(len(probs), dtype=np.int64)
    sums.keep(0, probs)
    sums.images = len(probs)
    energy, total = sums.energies(0)
    share = (energy / total)[:, 0].numpy()
    want = np.zeros(3)
    want[part] = 1
    # a pair's content has a mean over the 9 queries, which is a key's; 40 images leave noise of some percent
    np.testing.assert_allclose(share, [0, 1 / 9, 8 / 9] if part == 2 else want, atol=0.03)


def test_without_position_embeddings_only_the_image_counts(images):
    """Every image beside itself with its patches shifted: no position is special, though a patch may like itself."""
    model = peers.fill(sl.build("vit-nano4", patch=8, classes=5, depth=2, position="none"), std=0.3).double()
    shifted = torch.cat([torch.roll(images, (8 * y, 8 * x), (2, 3)) for y in range(4) for x in range(4)])
    share = sl.analysis.position_content(model, shifted).by_block()[0]
    assert (np.abs(share) < 0.02).all()
    with_positions = peers.fill(sl.build("vit-nano4", patch=8, classes=5, depth=2), std=0.3).double()
    with torch.no_grad():
        with_positions.positions[0].table.mul_(30)
    assert sl.analysis.position_content(with_positions, shifted).by_block()[0, 0] > 0.5


@pytest.mark.parametrize("name", ["timm", "torchvision", "hf", "timm-registers"])
def test_models_of_other_libraries(name, images):
    theirs = PEERS[name].ready()
    adopted = sl.adopt(theirs, sl.ImageSpec(size=(32, 32)))
    ours = sl.load(theirs.state_dict(), **PEERS[name].hints)
    a, b = (sl.analysis.position_content(m, images) for m in (adopted, ours))
    np.testing.assert_allclose(a.energy, b.energy, rtol=1e-6, atol=1e-12)
    assert "taps expected" in a.how["proof"]


def test_large_maps_are_joined_and_it_is_told(model, images, monkeypatch):
    monkeypatch.setattr("sightline.analysis.attention.position_content.LIMIT", 1000)
    found = sl.analysis.position_content(model, images)
    assert found.grid == (2, 2)
    assert found.maps.shape == (3, 2, 4, 4, 4)
    assert "2 x 2 cells are joined" in found.caption


def test_what_cannot_be_split_is_told(model, images):
    with pytest.raises(ValueError, match="no attention"):
        sl.analysis.position_content(sl.build("bit-nano", classes=5), images)
    with pytest.raises(ValueError, match="One image does not tell"):
        sl.analysis.position_content(model, images[:1])


def test_the_interval_is_over_images(model):
    images = torch.rand(20, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = sl.analysis.position_content(model, images, batch=8)
    assert found.replicates.shape == (5, *found.energy.shape)
    order = np.random.default_rng(0).permutation(20)
    less = sl.analysis.position_content(model, images[order[:16]], batch=16)  # as many as without a group
    assert (np.abs(less.by_block() - found.by_block()) < 2 * found.band()).mean() > 0.8
    assert np.isnan(sl.analysis.position_content(model, images[:2]).band()).all()
