"""Dense features: segmentation, boxes, and the truth about scenes."""

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.evals.dense import box_overlap, intersection_over_union
from sightline.evals.ground_truth import patch_shares
from tests.evals.makers import scenes


def test_masks_and_boxes_are_those_of_the_scene_as_the_model_sees_it():
    data = scenes("shape", num=6, size=64)
    spec = sl.ImageSpec(size=(64, 64))
    masks, boxes = sl.evals.scene_masks(data, spec), sl.evals.scene_boxes(data, spec)
    for i in range(6):
        scene = data.scene(i)
        assert np.array_equal(masks[i] > 0, scene.masks[scene.target])
        np.testing.assert_allclose(boxes[i] * 64, scene.boxes[scene.target])
    shapes = sl.evals.scene_masks(data, spec, "shapes")
    assert ((shapes > 0) == np.stack([data.scene(i).masks.any(0) for i in range(6)])).all()
    cropped = sl.evals.scene_masks(data, sl.ImageSpec(size=(48, 48), crop=0.75))
    np.testing.assert_array_equal(cropped, masks[:, 8:56, 8:56])
    part = data.subset(indices=[4, 2])
    np.testing.assert_array_equal(sl.evals.scene_masks(part, spec), masks[[4, 2]])
    with pytest.raises(ValueError, match="no masks"):
        sl.evals.scene_masks(sl.data.Arrays(np.zeros((2, 8, 8, 3), np.uint8), np.arange(2)), spec)
    with pytest.raises(ValueError, match="do not describe one object"):
        sl.evals.scene_masks(scenes("count", num=2), spec)


def test_shares_add_up():
    masks = np.random.default_rng(0).integers(0, 3, (4, 12, 12))
    shares = patch_shares(masks, (3, 4), 3)
    assert shares.shape == (4, 12, 3)
    np.testing.assert_allclose(shares.sum(2), 1, rtol=1e-6)
    assert shares[0, 0, 1] == pytest.approx((masks[0, :4, :3] == 1).mean())


def test_intersection_over_union_and_box_overlap():
    truth, guess = np.array([[[0, 0], [1, 1]]]), np.array([[[0, 1], [1, 1]]])
    assert intersection_over_union(guess, truth, 3).tolist() == pytest.approx([1 / 2, 2 / 3, np.nan], nan_ok=True)
    a = np.array([[0, 0, 0.5, 0.5], [0, 0, 0, 0]])
    b = np.array([[0.25, 0, 0.75, 0.5], [0, 0, 0, 0]])
    assert box_overlap(a, b).tolist() == pytest.approx([1 / 3, 0])


def knowing(data, spec, grid, *, noise=0.1, seed=0):
    """Tokens that know how much of their patch the subject covers, turned and blurred; a class token before them."""
    rng = np.random.default_rng(seed)
    shares = patch_shares(sl.evals.scene_masks(data, spec), grid, 2)[..., 1:]
    turn = np.random.default_rng(1).standard_normal((1, 6))
    tokens = shares @ turn + noise * rng.standard_normal((*shares.shape[:2], 6))
    return sl.evals.FeatureTable(
        layers={"features": torch.from_numpy(np.concatenate([tokens[:, :1] * 0, tokens], 1))},
        labels=data.labels,
        classes=data.classes,
        grids={"features": grid},
        prefix={"features": 1},
    )


def test_a_segmentation_head_reads_masks_off_tokens():
    train, test, spec = scenes("shape", num=40), scenes("shape", num=20, split="test"), sl.ImageSpec(size=(32, 32))
    tokens = [knowing(d, spec, (8, 8), seed=i) for i, d in enumerate((train, test))]
    masks = [sl.evals.scene_masks(d, spec) for d in (train, test)]
    head = sl.evals.SegmentationHead((8, 8), l2=1.0).fit(tokens[0], masks[0])
    assert head.score(tokens[1], masks[1]) > 0.8
    guess = head.predict(tokens[1], (32, 32))
    np.testing.assert_allclose(head.per_class(tokens[1], masks[1]), intersection_over_union(guess, masks[1], 2))
    with pytest.raises(ValueError, match="does not have 64 tokens"):
        sl.evals.SegmentationHead((4, 4)).fit(tokens[0], masks[0])
    with pytest.raises(ValueError, match="only one class"):
        sl.evals.SegmentationHead((8, 8)).fit(tokens[0], 0 * masks[0])
    with pytest.raises(ValueError, match="not been fitted"):
        sl.evals.SegmentationHead((8, 8)).predict(tokens[0], (32, 32))
    with pytest.raises(ValueError, match="class numbers"):
        sl.evals.SegmentationHead((8, 8)).fit(tokens[0], masks[0] * 0.5)


def test_a_box_probe_reads_boxes_off_tokens():
    train, test, spec = scenes("shape", num=150), scenes("shape", num=30, split="test"), sl.ImageSpec(size=(32, 32))
    tokens = [knowing(d, spec, (8, 8), noise=0.01, seed=i) for i, d in enumerate((train, test))]
    boxes = [sl.evals.scene_boxes(d, spec) for d in (train, test)]
    found = sl.evals.BoxProbe(l2=10.0).fit(tokens[0], boxes[0])
    usual = np.repeat(boxes[0].mean(0, keepdims=True), len(boxes[1]), 0)
    assert found.score(tokens[1], boxes[1]) > box_overlap(usual, boxes[1]).mean() + 0.2
    assert found.predict(tokens[1]).shape == (30, 4)
    with pytest.raises(ValueError, match="lower in"):
        sl.evals.BoxProbe().fit(tokens[0], boxes[0] * 32)
    with pytest.raises(ValueError, match="not been fitted"):
        sl.evals.BoxProbe().predict(tokens[0])
