"""A class-token model beside a mean-pooled one, and mass on objects."""

import numpy as np
import pytest
import torch

import sightline as sl
from tests import peers


@pytest.fixture(scope="module")
def parts():
    return [sl.dataset("scenes/shape", split, num=num, size=32) for split, num in (("train", 60), ("test", 48))]


def test_twins_are_their_parts(parts):
    cls, gap = (sl.build("vit-nano4", patch=8, depth=3, pool=pool, seed=i) for i, pool in enumerate(("cls", "gap")))
    found = sl.analysis.pooling_comparison(cls, gap, *parts, shots=3, batch=48)
    where = [sl.localization(m, parts[1], batch=48).summary() for m in (cls, gap)]
    np.testing.assert_allclose(found.own, [w["tokens most like their own patch"] for w in where])
    assert found.curves[:3] == ("CLS; class token", "CLS; mean of patches", "CLS; mean of all")
    assert found.curves[3:] == ("GAP; first token", "GAP; mean of patches")
    alike = sl.analysis.block_similarity({"CLS": cls}, gap, parts[1], batch=48)
    np.testing.assert_allclose(found.by_block, alike.similarity[0])
    tokens = sl.analysis.token_probes(gap, *parts, layers=(0, 1, 2), shots=3)
    np.testing.assert_allclose(found.per_token[1], tokens.mean)
    assert found.layers == tokens.layers


def test_the_score_sees_that_tokens_stay(parts):
    """A CLS model whose patches never mix against a GAP one whose patches all become the mean: C16 as planted."""
    cls, gap = (sl.build("vit-nano4", patch=8, depth=2, pool=pool) for pool in ("cls", "gap"))
    with torch.no_grad():
        for block in cls.blocks:
            block.attn.out.weight.mul_(0.01)
        for block in gap.blocks:
            block.attn.qkv.weight[:128] = 0  # even attention to all patches
            block.attn.out.weight.mul_(1000)
    found = sl.analysis.pooling_comparison(cls, gap, *parts, shots=2, batch=48)
    assert found.own[0] > 0.9 > 0.5 > found.own[1]


def test_twins_are_checked(parts):
    cls, gap = (sl.build("vit-nano4", patch=16, depth=1, pool=pool) for pool in ("cls", "gap"))
    with pytest.raises(ValueError, match="reads a class token"):
        sl.analysis.pooling_comparison(gap, cls, *parts)
    with pytest.raises(ValueError, match="averages its patches"):
        sl.analysis.pooling_comparison(cls, sl.build("bit-nano"), *parts)


def test_mass_on_the_object_of_a_scene():
    model = peers.fill(sl.build("vit-nano4", classes=8), std=0.1)
    data = sl.dataset("scenes/shape", split="test", num=12, size=32)
    found = sl.analysis.object_focus(model, data, methods=["rollout", "grad_cam"], n=8, seed=1)
    part = data.sample(8, seed=1)
    maps = sl.attention_rollout(model, part).maps
    want = sl.analysis.object_mass(maps, sl.evals.scene_masks(part, model.image) > 0)
    np.testing.assert_allclose(found.mass[0], want.mass, rtol=1e-4)
    np.testing.assert_allclose(found.area, want.area)
    mean, half = found.gain("rollout")
    assert mean == pytest.approx((want.mass - want.area).mean(), rel=1e-4)
    assert half > 0
    flat = sl.analysis.object_focus(sl.build("bit-nano", classes=8), data, n=4)  # a head of zeros prefers no class
    assert flat.methods == ("grad_cam",)
    assert np.isnan(flat.summary()["grad_cam: mass minus area"])
    with pytest.raises(ValueError, match="scenes"):
        sl.analysis.object_focus(model, torch.rand(2, 3, 32, 32))
    with pytest.raises(ValueError, match="no masks"):
        sl.analysis.object_focus(model, sl.data.Arrays(np.zeros((4, 32, 32, 3), np.uint8), np.zeros(4, np.int64)))
    with pytest.raises(ValueError, match="method is one of"):
        sl.analysis.object_focus(model, data, methods=["magic"])


def test_by_frequency_of_the_class():
    data = sl.dataset("scenes/shape", num=96, size=32)
    a, b = (sl.build("vit-nano4", classes=0, depth=2, seed=seed) for seed in (0, 1))
    counts = data.imbalanced(8).counts()
    found = sl.analysis.frequency_similarity(a, b, data, counts, groups=3, batch=96)
    assert found.models == ("most frequent classes", "classes, group 2 of 3", "rarest classes")
    rare = np.argsort(-np.asarray(counts), kind="stable")[-(len(counts) // 3) :]
    part = data.subset(indices=np.flatnonzero(np.isin(data.labels, rare)))
    np.testing.assert_allclose(
        found.similarity[2], sl.analysis.block_similarity({"": a}, b, part, batch=96).similarity[0]
    )
    with pytest.raises(ValueError, match="One count for each"):
        sl.analysis.frequency_similarity(a, b, data, [1, 2])
    with pytest.raises(ValueError, match="groups"):
        sl.analysis.frequency_similarity(a, b, data, counts, groups=1)
