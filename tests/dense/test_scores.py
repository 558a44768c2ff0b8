"""AP against pycocotools, mIoU against its definition, matching against all permutations."""

import contextlib
import io
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as rle
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import sightline as sl
from sightline.dense.scores import intersection_over_union, pixel_counts, resample_weights

SIZE, KINDS = (140, 150), 3
KIND = {"masks": "segm", "boxes": "bbox"}


def square(chance, half):
    mask = np.zeros(SIZE, bool)
    y, x = (int(chance.integers(0, n)) for n in SIZE)
    mask[max(0, y - half) : y + half, max(0, x - half) : x + half] = True
    return mask


def random_image(chance):
    """Objects of all sizes, some of them crowds, and detections that are shifted copies, doubles and inventions."""
    count = int(chance.integers(0, 6))
    masks = np.array([square(chance, int(chance.integers(4, 60))) for _ in range(count)]).reshape(count, *SIZE)
    kinds, crowd = chance.integers(1, KINDS + 1, count), chance.random(count) < 0.2
    copies = [i for i in range(count) for _ in range(int(chance.integers(0, 3)))]
    found = [np.roll(masks[i], int(chance.integers(-6, 7)), axis=int(chance.integers(0, 2))) for i in copies]
    names = [int(kinds[i]) if chance.random() < 0.8 else 1 for i in copies]
    for _ in range(int(chance.integers(0, 4))):
        found.append(square(chance, int(chance.integers(2, 40))))
        names.append(int(chance.integers(1, KINDS + 1)))
    target = sl.data.Target(classes=kinds, masks=masks, crowd=crowd)
    scores = chance.random(len(found)).round(1)  # with ties
    shown = np.array(found, bool).reshape(-1, *SIZE)
    return sl.dense.Detections(classes=np.array(names, np.int64), scores=scores, masks=shown), target


def rows(image, classes, masks, boxes, **more):
    """The entries of COCO's lists."""
    runs = [rle.encode(np.asfortranarray(m.astype(np.uint8))) for m in masks]
    for i, (kind, run, (x, y, right, lower)) in enumerate(zip(classes.tolist(), runs, boxes.tolist())):
        extra = {name: values[i] for name, values in more.items()}
        yield {"image_id": image, "category_id": kind, "segmentation": run,
               "bbox": [x, y, right - x, lower - y], **extra}  # fmt: skip


def coco_scores(pairs, what):
    """The first six numbers of COCO's own summary; NaN where it says -1."""
    truth, found = [], []
    for i, (d, t) in enumerate(pairs, 1):
        areas = t.masks.sum((1, 2)).astype(float).tolist()
        truth += rows(i, t.classes, t.masks, t.boxes, iscrowd=t.is_crowd.astype(int).tolist(), area=areas)
        found += rows(i, d.classes, d.masks, d.boxes, score=d.scores.tolist())
    drop = "bbox" if what == "masks" else "segmentation"
    with contextlib.redirect_stdout(io.StringIO()):
        data = COCO()
        data.dataset = {
            "images": [{"id": i + 1, "height": SIZE[0], "width": SIZE[1]} for i in range(len(pairs))],
            "annotations": [{**one, "id": i} for i, one in enumerate(truth, 1)],
            "categories": [{"id": k + 1, "name": str(k)} for k in range(KINDS)],
        }
        data.createIndex()
        judge = COCOeval(data, data.loadRes([{k: v for k, v in d.items() if k != drop} for d in found]), KIND[what])
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return np.where(judge.stats[:6] < 0, np.nan, judge.stats[:6])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pycocotools with NumPy 2
@pytest.mark.parametrize("what", KIND)
@pytest.mark.parametrize("seed", range(3))
def test_ap_is_that_of_pycocotools(seed, what):
    chance = np.random.default_rng(seed)
    pairs = [random_image(chance) for _ in range(8)]
    matches = [sl.dense.match_image(*pair, what) for pair in pairs]
    ours = sl.dense.average_precision(matches, KINDS, resamples=2).values
    np.testing.assert_allclose(ours, coco_scores(pairs, what), atol=1e-12)
    assert (ours[np.isfinite(ours)] < 1).all()
    assert ours[0] > 0


def test_perfect_detections_have_ap_one_and_none_have_zero():
    chance = np.random.default_rng(0)
    targets = [random_image(chance)[1] for _ in range(6)]
    targets = [sl.data.Target(classes=t.classes, masks=t.masks) for t in targets]
    empty = sl.dense.Detections(classes=np.zeros(0, int), scores=np.zeros(0), masks=np.zeros((0, *SIZE), bool))
    whole = [sl.dense.Detections(classes=t.classes, scores=np.ones(len(t.classes)), masks=t.masks) for t in targets]
    for found, expected in ((whole, 1.0), ([empty] * 6, 0.0)):
        matches = [sl.dense.match_image(d, t) for d, t in zip(found, targets)]
        score = sl.dense.average_precision(matches, KINDS, resamples=5)
        assert score.values[0] == expected
        assert score.interval[0].tolist() == [expected, expected]
    nothing = sl.data.Target(classes=np.zeros(0, int), masks=np.zeros((0, *SIZE), bool))
    alone = sl.dense.average_precision([sl.dense.match_image(whole[0], nothing)], KINDS, resamples=2)
    assert np.isnan(alone.values).all()  # without objects there is no AP, rather than one of zero


def test_intervals_cover_the_value_and_shrink_with_images():
    chance = np.random.default_rng(1)
    matches = [sl.dense.match_image(*random_image(chance)) for _ in range(24)]
    few, many = (sl.dense.average_precision(m, KINDS, resamples=60) for m in (matches[:6], matches * 4))
    for score in (few, many):
        assert score.interval[0, 0] <= score.values[0] <= score.interval[0, 1]
    assert np.ptp(many.interval[0]) < np.ptp(few.interval[0])
    assert (resample_weights(7, resamples=4).sum(1) == 7).all()


def test_mean_iou_is_its_definition():
    chance = np.random.default_rng(2)
    guess, truth = chance.integers(0, 4, (5, 9, 7)), chance.integers(-1, 4, (5, 9, 7))
    counts = np.stack([pixel_counts(g, t, 5) for g, t in zip(guess, truth)])
    inside = truth >= 0
    expected = [((guess == k) & (truth == k)).sum() / (((guess == k) | (truth == k)) & inside).sum() for k in range(4)]
    per_class = intersection_over_union(counts.sum(0))
    np.testing.assert_allclose(per_class[:4], expected)
    assert np.isnan(per_class[4])  # neither there nor predicted
    value, (low, high) = sl.dense.mean_iou(counts)
    assert value == pytest.approx(np.mean(expected))
    assert low < value < high
    with pytest.raises(ValueError, match="no images"):
        sl.dense.mean_iou(counts[:0])


@settings(max_examples=40)
@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 2**32 - 1), st.integers(0, 2))
def test_the_matching_is_the_cheapest_of_all(rows, more, seed, digits):
    cost = np.random.default_rng(seed).normal(size=(rows, rows + more)).round(digits)
    chosen = sl.dense.assign(cost)
    best = min(sum(cost[i, p[i]] for i in range(rows)) for p in itertools.permutations(range(rows + more), rows))
    assert len(set(chosen.tolist())) == rows
    assert cost[np.arange(rows), chosen].sum() == pytest.approx(best)


def test_a_matching_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="3 rows"):
        sl.dense.assign(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="finite"):
        sl.dense.assign(np.array([[np.nan]]))
