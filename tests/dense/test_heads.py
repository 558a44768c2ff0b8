"""Dense heads on every family: shapes, gradients, losses, and what they cannot do."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sightline as sl
from sightline.data.draws import Draws
from sightline.dense.heads import Segments
from sightline.dense.losses import dice, mask_bce, match, pixel_loss, segment_loss, true_segments
from sightline.dense.maps import first_tokens, layer_parts, run_block
from sightline.dense.model import detections, semantic_scores

CLASSES = ("a", "b", "c")
MODELS = {"vit": ("vit-nano4", {"depth": 2}), "bit": ("bit-nano", {}), "hybrid": ("conv-vit-nano4", {"depth": 2})}
MODELS["mixer"] = ("mixer-nano4", {"depth": 2})
HEADS = [("segment", "linear"), ("segment", "layers"), ("segment", "queries"), ("detect", "queries")]
DRAWS = Draws(0, np.arange(2))


def config(task="detect", kind="queries", **changes):
    return sl.dense.DenseConfig(
        **{"task": task, "kind": kind, "classes": CLASSES, "queries": 6, "width": 32, "blocks": 1, "mask_stride": 2,
           **changes}
    )  # fmt: skip


def label_maps():
    maps = torch.zeros(2, 2, 16, 16, dtype=torch.int16)
    maps[:, 0, 2:7, 3:9], maps[:, 1, 2:7, 3:9] = 1, 1
    maps[:, 0, 9:15, 1:7], maps[:, 1, 9:15, 1:7] = 3, 2
    maps[0, 0, :, 15] = -1
    return maps


def build(family):
    name, changes = MODELS[family]
    return sl.build(name, classes=0, size=16, **changes)


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize(("task", "kind"), HEADS)
def test_every_head_trains_every_family(family, task, kind):
    objective = sl.training.DenseObjective(build(family), config(task, kind))
    images = torch.randn(2, 3, 16, 16)
    objective(images, label_maps(), DRAWS).backward()
    silent = [n for n, p in objective.named_parameters() if p.grad is None]
    # the classes' and masks' own path starts at zero in a linear head, so only its parameters get a gradient there
    assert not silent or all(n.startswith("model.") for n in silent)
    optimizer = torch.optim.Adam(objective.parameters(), lr=1e-3)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = objective(images, label_maps(), DRAWS)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("family", MODELS)
def test_masks_have_the_stride_that_was_asked_for(family):
    model = build(family)
    stages = sl.dense.build_head(model, config())(model, torch.zeros(1, 3, 16, 16))
    assert stages[-1].masks.shape == (1, 6, 8, 8)
    assert stages[-1].classes.shape == (1, 6, len(CLASSES) + 1)


def test_a_head_is_the_same_for_the_same_seed():
    model = build("vit")
    one, two, other = (sl.dense.build_head(model, config(), seed=s).state_dict() for s in (0, 0, 1))
    assert all(torch.equal(one[n], two[n]) for n in one)
    assert not torch.equal(one["queries"], other["queries"])


def test_a_frozen_model_gives_the_head_its_features_and_gets_no_gradient():
    model = build("vit").requires_grad_(False)
    objective = sl.training.DenseObjective(model, config("segment", "layers"))
    objective(torch.randn(2, 3, 16, 16), label_maps(), DRAWS).backward()
    assert objective.dense.out.weight.grad.any()
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("where", ["stem", "every", "shared"])
def test_without_queries_the_blocks_compute_what_the_model_does(where):
    model = sl.build("vit-nano4", classes=0, size=16, depth=3, position_at=where).double().eval()
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    x = first_tokens(model, images, 2)
    for i in (1, 2):
        x = run_block(model, x, i, tokens=x.shape[1])
    torch.testing.assert_close(model.norm(x), model.encode(images), rtol=0, atol=1e-12)


def test_several_layers_are_spread_over_the_depth():
    deep = sl.build("vit-nano4", classes=0, depth=12, device="meta")
    assert [p.block for p in layer_parts(deep)] == [2, 5, 8, 11]
    assert [p.stage for p in layer_parts(sl.build("bit-r50x1", classes=0, device="meta"))] == [0, 1, 2, 3]


def test_the_pixel_loss_ignores_what_has_no_class():
    logits, maps = torch.randn(2, 4, 4, 4), label_maps()
    full = F.interpolate(logits, size=(16, 16), mode="bilinear")
    chosen = maps[:, 0] >= 0
    expected = F.cross_entropy(full.movedim(1, -1)[chosen], maps[:, 0][chosen].long())
    torch.testing.assert_close(pixel_loss(logits, maps), expected)
    nothing = torch.full_like(maps, -1)
    assert pixel_loss(logits, nothing) == 0


def test_true_segments_are_exact_shares_of_cells():
    maps = label_maps()[0]
    truth = true_segments(maps, (8, 8), config())
    masks = torch.stack([(maps[1] == i).float() for i in (1, 2)])
    inside = F.avg_pool2d((maps[0] >= 0).float()[None], 2)
    expected = F.avg_pool2d(masks, 2) / inside.clamp(min=0.25)
    torch.testing.assert_close(truth.masks.unflatten(1, (8, 8)), expected)
    torch.testing.assert_close(truth.weights, inside.flatten())
    assert truth.classes.tolist() == [0, 2]
    segments = true_segments(maps, (8, 8), config("segment"))
    assert segments.classes.tolist() == [0, 1, 3]  # the background is a segment, too
    torch.testing.assert_close(segments.masks.sum(0), (segments.weights > 0).float())


def test_the_loss_of_segments_is_the_least_for_the_truth_whatever_the_order():
    maps, c = label_maps(), config()
    truth = [true_segments(m, (16, 16), c) for m in maps]
    classes, masks = torch.full((2, 6, 4), -9.0), torch.full((2, 6, 256), -9.0)
    classes[..., 3] = 9
    for i, t in enumerate(truth):
        for query, segment in ((4, 0), (1, 1)):
            classes[i, query, 3], classes[i, query, t.classes[segment]] = -9, 9
            masks[i, query] = 18 * t.masks[segment] - 9
    perfect = Segments(classes, masks.unflatten(2, (16, 16)))
    assert segment_loss([perfect], maps, c) < 0.2
    for queries, segments in match(classes, masks, truth):
        assert dict(zip(segments.tolist(), queries.tolist())) == {0: 4, 1: 1}
    turned = Segments(classes.flip(1), masks.flip(1).unflatten(2, (16, 16)))
    torch.testing.assert_close(segment_loss([turned], maps, c), segment_loss([perfect], maps, c))
    assert segment_loss([Segments(-classes, perfect.masks)], maps, c) > 10


def test_an_image_without_objects_and_one_with_more_than_queries_have_a_loss():
    model = build("vit")
    objective = sl.training.DenseObjective(model, config(queries=1))
    none = torch.zeros(2, 2, 16, 16, dtype=torch.int16)
    for maps in (none, label_maps()):
        loss = objective(torch.randn(2, 3, 16, 16), maps, DRAWS)
        loss.backward()
        assert torch.isfinite(loss)


def test_mask_losses_are_zero_for_the_truth():
    target = torch.tensor([[1.0, 0, 1, 0]])
    logits, weights = 40 * target - 20, torch.ones(1, 4)
    assert mask_bce(logits, target, weights) < 1e-6
    assert dice(logits, target, weights) < 1e-6
    assert dice(-logits, target, weights) == pytest.approx(0.8)


def test_detections_are_sorted_and_have_pixels():
    found = Segments(torch.randn(5, 4), torch.randn(5, 4, 4))
    found.masks[2] = -5
    d = detections(found, (8, 12))
    assert (np.diff(d.scores) <= 0).all()
    assert d.masks.any((1, 2)).all()
    assert d.masks.shape[1:] == (8, 12)
    assert set(d.classes.tolist()) <= {1, 2, 3}
    assert len(d.scores) == 12


def test_semantic_scores_add_up_the_queries():
    found = Segments(torch.randn(1, 5, 4), torch.randn(1, 5, 3, 3))
    expected = sum(found.classes[0, q].softmax(0)[:3, None, None] * found.masks[0, q].sigmoid() for q in range(5))
    torch.testing.assert_close(semantic_scores(found)[0], expected)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "linear"}, "head=queries"),
        ({"classes": ()}, "at least one class"),
        ({"queries": 0}, "queries=0"),
        ({"queries": 10**9}, "1 to 10,000"),
        ({"width": 40}, "multiple of 32"),
    ],
)
def test_impossible_heads_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        config(**changes)


def test_models_that_queries_cannot_enter_are_refused():
    relative = sl.build("vit-nano4", classes=0, size=16, position="relative")
    with pytest.raises(ValueError, match="Relative positions"):
        sl.dense.build_head(relative, config())
    axial = sl.build("vit-nano4", classes=0, size=16, attention="axial")
    with pytest.raises(ValueError, match="rows and columns of patches, where queries have no place: --set head=linear"):
        sl.dense.build_head(axial, config())
    for kind in ("linear", "layers"):
        head = sl.dense.build_head(axial, config(task="segment", kind=kind))
        assert head(axial, torch.zeros(1, 3, 16, 16)).shape[2:] == (4, 4)
    with pytest.raises(ValueError, match="last 9 blocks; this model has 2"):
        sl.dense.build_head(build("vit"), config(blocks=9))
