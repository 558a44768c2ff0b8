"""Scenes: deterministic, the same at every size, with exact ground truth, and not easy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl

TASKS = ["objects", "shape", "texture", "layout", "count", "location", "orientation", "distance", "identity"]
TASKS += ["cells", "grade", "aerial"]


@pytest.mark.parametrize("task", TASKS)
def test_a_scene_depends_on_its_number_alone(task):
    d = sl.dataset(f"scenes/{task}", split="train", num=300, size=32)
    block = d.images(np.arange(300))
    for i in (0, 131, 299):
        assert np.array_equal(d[i][0], block[i])
    longer = sl.dataset(f"scenes/{task}", split="train", num=1000, size=32)
    assert np.array_equal(longer.images(np.array([299, 5])), block[[299, 5]])
    assert np.array_equal(longer.labels[:300], d.labels)


@pytest.mark.parametrize("task", TASKS)
def test_classes_are_balanced_and_splits_differ(task):
    d, other = (sl.dataset(f"scenes/{task}", split=s, num=960) for s in ("train", "test"))
    counts = d.counts()
    assert max(counts) - min(counts) <= 1
    first, second = d.images(np.arange(50)), other.images(np.arange(50))
    assert not any(np.array_equal(a, b) for a in first for b in second)


@pytest.mark.parametrize("size", [16, 33, 512])
def test_any_size_shows_the_same_scene(size):
    small = sl.data.Scenes("objects", num=3, size=size)
    large = sl.data.Scenes("objects", num=3, size=256)
    for i in range(3):
        a, b = small.scene(i), large.scene(i)
        assert a.pixels.shape == (size, size, 3)
        assert np.array_equal(a.factors["shape"], b.factors["shape"])
        assert a.masks.mean() == pytest.approx(b.masks.mean(), abs=0.04)


@given(st.sampled_from(TASKS), st.integers(0, 5000))
def test_masks_boxes_and_factors_agree(task, index):
    d = sl.data.Scenes(task, num=5001, size=64)
    scene = d.scene(index)
    assert scene.masks.sum(0).max() <= 1, "a pixel shows one object"
    for mask, (left, upper, right, lower), visible in zip(scene.masks, scene.boxes, scene.visible):
        assert 0 <= visible <= 1
        assert mask[upper:lower, left:right].sum() == mask.sum()
    assert all(len(v) == len(scene.masks) for v in scene.factors.values())
    assert np.array_equal(scene.pixels, d[index][0])


def test_labels_say_what_the_factors_say():
    for i in range(60):
        s = sl.data.Scenes("objects", num=60).scene(i)
        name = f"{s.factors['texture'][s.target]} {s.factors['shape'][s.target]}"
        assert name == sl.data.Scenes("objects", num=60).classes[s.label]
        assert s.factors["radius"].argmax() == s.target
        assert len(sl.data.Scenes("count", num=60).scene(i).masks) == i % 8 + 1
        s = sl.data.Scenes("location", num=60).scene(i)
        assert int((s.factors["x"][s.target] - 0.1) / 0.8 * 16) == s.label
        s = sl.data.Scenes("orientation", num=60).scene(i)
        assert int(s.factors["angle"][s.target] / (2 * np.pi) * 16) == s.label
        s = sl.data.Scenes("grade", num=60).scene(i)
        assert (s.factors["shape"] == "star").sum() == s.label


def test_layout_is_what_is_seen():
    for i in range(120):
        s = sl.data.Scenes("layout", num=120, size=64).scene(i)
        relation = sl.data.Scenes("layout", num=120).classes[s.label]
        large = s.target
        small = 1 - large
        dx, dy = (s.factors[a][small] - s.factors[a][large] for a in "xy")
        want = {"left of": -dx > abs(dy), "right of": dx > abs(dy), "above": -dy > abs(dx), "below": dy > abs(dx)}
        assert want.get(relation, (small > large) == (relation == "in front of"))


def test_an_individual_looks_the_same_in_every_pose():
    d = sl.data.Scenes("identity", num=40)
    assert d.labels.tolist() == [i // 10 for i in range(40)]
    for person in range(4):
        views = [d.scene(person * 10 + i) for i in range(10)]
        looks = {
            (v.factors["shape"][v.target], v.factors["texture"][v.target], *v.factors["first"][v.target]) for v in views
        }
        assert len(looks) == 1
        assert {int(v.factors["identity"][v.target]) for v in views} == {person}
        assert len({float(v.factors["x"][v.target]) for v in views}) == 10


def test_objects_need_both_shape_and_texture():
    pairs = [c.split() for c in sl.data.Scenes("objects").classes]
    assert len(pairs) == 20
    for part in (0, 1):
        assert all(sum(p[part] == q[part] for q in pairs) == 2 for p in pairs), "either alone leaves two classes"


@pytest.mark.slow
def test_a_linear_classifier_on_pixels_stays_far_below_40_percent():
    train, test = (sl.dataset("scenes/objects", split=s, num=n) for s, n in (("train", 7_000), ("test", 1_000)))
    x, z = (d.images(np.arange(len(d))).reshape(len(d), -1) / np.float32(127.5) - 1 for d in (train, test))
    x, z = (np.concatenate([a, np.ones_like(a[:, :1])], axis=1) for a in (x, z))
    targets = 2 * np.eye(20, dtype=np.float32)[train.labels] - 1
    gram, mixed = x.T @ x, x.T @ targets
    scores = [
        ((z @ np.linalg.solve(gram + l2 * np.eye(len(gram), dtype=np.float32), mixed)).argmax(1) == test.labels).mean()
        for l2 in (1e3, 1e5)
    ]
    assert max(scores) < 0.4


@pytest.mark.parametrize("bad", [{"split": "dev"}, {"size": 15}, {"size": 513}, {"num": 0}])
def test_scenes_that_cannot_be_are_refused(bad):
    with pytest.raises(ValueError, match=r"."):
        sl.data.Scenes("objects", **bad)
    with pytest.raises(ValueError, match="scenes/objects"):
        sl.dataset("scenes/cats")
