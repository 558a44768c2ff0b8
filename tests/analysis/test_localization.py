"""Which patch a token knows, in models where that is known."""

import numpy as np
import pytest
import torch
from torch import nn

import sightline as sl
from sightline.analysis.similarity.localization import PatchSums, own_minus_other
from tests import peers


@pytest.fixture(scope="module")
def make_images():
    return sl.dataset("scenes/objects", num=96, size=32)


def test_values_are_those_of_linear_cka(make_images):
    model = sl.build("vit-nano4", classes=0, depth=2)
    found = sl.localization(model, make_images, batch=96)
    images = next(iter(make_images.batches(model.image, batch=96)))[0]
    with torch.no_grad(), sl.record(model, "blocks.1.mlp_sum") as tape:
        model(images)
    tokens = tape["blocks.1.mlp_sum"]
    patch = images[:, :, 4:8, 12:16]
    assert found.maps[30, 1, 3] == pytest.approx(sl.analysis.linear_cka(tokens[:, 31], patch), abs=1e-4)
    assert found.class_token[0, 1, 3] == pytest.approx(sl.analysis.linear_cka(tokens[:, 0], patch), abs=1e-4)


def test_a_short_last_batch_changes_little():
    """68 images in batches of 64: four more images cannot move what sixty-four say."""
    model = sl.build("vit-nano4", classes=0, depth=1)
    images = torch.rand(68, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    whole, parted = (sl.localization(model, images, batch=b).maps for b in (68, 64))
    np.testing.assert_allclose(parted, whole, atol=0.05)


def test_without_attention_every_token_knows_its_own_patch(make_images):
    model = sl.build("vit-nano4", classes=0, pool="gap")
    for block in model.blocks:
        nn.init.zeros_(block.attn.out.weight)
    found = sl.localization(model, make_images, batch=48)
    assert found.summary()["tokens most like their own patch"] > 0.9
    shuffled = sl.localization(model, make_images, batch=48, layer="blocks.0.attn_sum").maps[::-1]
    assert (
        sl.analysis.Localization(
            title="", caption="", maps=shuffled, class_token=found.class_token, layer="", grid=(8, 8)
        ).summary()["tokens most like their own patch"]
        < 0.1
    )


def test_the_patch_embedding_knows_its_own_patch_under_any_order(make_images):
    """A ViT's embedding is a linear map of each patch: its token resembles its own patch most."""
    model = peers.fill(sl.build("vit-nano4", classes=0), std=0.1)
    found = sl.localization(model, make_images, layer="embed", batch=96)
    assert found.grid == (8, 8)
    assert found.class_token.shape == (0, 8, 8)
    assert found.summary()["tokens most like their own patch"] > 0.9


def test_cka_sees_through_a_rotation_and_finds_a_permutation():
    patches = torch.rand(9, 40, 48, dtype=torch.float64)
    turned = patches @ torch.linalg.qr(torch.randn(48, 48, dtype=torch.float64))[0]
    order = torch.randperm(9)
    sums = PatchSums()
    sums.add(turned[order], patches, 0, (3, 3))
    cka = torch.from_numpy(sums.maps()).flatten(1)
    assert cka.argmax(1).tolist() == order.tolist()
    torch.testing.assert_close(cka.amax(1), torch.ones(9, dtype=torch.float64), atol=1e-6, rtol=0)


def test_replicates(make_images, monkeypatch):
    model = sl.build("vit-nano4", patch=16, classes=0, depth=1)
    found = sl.localization(model, make_images, batch=48)
    assert found.replicates.shape == (20, 4, 2, 2)
    np.testing.assert_allclose(found.replicates.mean(0), found.maps, atol=0.02)
    monkeypatch.setattr("sightline.analysis.similarity.localization.MOST", 100)  # what a fine grid would take
    without = sl.localization(model, make_images, batch=48)
    assert len(without.replicates) == without.how["groups"] == 0
    np.testing.assert_array_equal(without.maps, found.maps)


def test_cnn_hybrid_and_other_libraries(make_images):
    cnn = sl.localization(sl.build("bit-nano", classes=0), make_images, batch=48)
    assert cnn.grid == (4, 4)
    assert cnn.class_token.shape == (0, 4, 4)
    assert sl.localization(sl.build("bit-nano", classes=0), make_images, layer="root", n=20, batch=20).grid == (16, 16)
    timm = peers.timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1, num_classes=5)
    assert sl.localization(timm, make_images, batch=48).maps.shape == (16, 4, 4)
    resnet = sl.adopt(peers.torchvision.models.resnet18(num_classes=5), image=sl.ImageSpec(size=(40, 40)))
    assert np.isfinite(sl.localization(resnet, make_images, batch=48).maps).all()  # 2 x 2 cells on 40 pixels


def test_errors(make_images):
    model = sl.build("vit-nano4", classes=0)
    with pytest.raises(ValueError, match="takes one layer"):
        sl.localization(model, make_images, layer="blocks.*.mlp_sum")
    with pytest.raises(ValueError, match="at least 4"):
        sl.localization(model, make_images.subset(indices=[1, 2]))
    with pytest.raises(ValueError, match="not one for each"):
        sl.localization(model, make_images, layer="pooled")


def test_a_coarser_grid_averages_tokens_and_cuts_larger_patches(make_images):
    model = sl.build("vit-nano4", classes=0, depth=1)
    found = sl.localization(model, make_images, batch=96, grid=(4, 4))
    images = next(iter(make_images.batches(model.image, batch=96)))[0]
    with torch.no_grad(), sl.record(model, "blocks.0.mlp_sum") as tape:
        model(images)
    token = tape["blocks.0.mlp_sum"][:, 1:].unflatten(1, (8, 8))[:, 2:4, 4:6].mean((1, 2))
    patch = images[:, :, 8:16, 16:24]
    assert found.maps.shape == (16, 4, 4)
    assert found.maps[6, 1, 2] == pytest.approx(sl.analysis.linear_cka(token, patch), abs=1e-4)
    with pytest.raises(ValueError, match="at most that of the layer, 8 x 8"):
        sl.localization(model, make_images, grid=(16, 16))


def test_earlier_stages_of_a_cnn_are_looked_at_on_the_last_grid(make_images):
    cnn = sl.build("bit-nano", classes=0)
    found = sl.localization(cnn, make_images, batch=96)
    assert len(found.stages) == len(found.earlier) == 2
    alone = sl.localization(cnn, make_images, batch=96, layer=found.stages[0], grid=found.grid)
    assert alone.stages == ()
    assert found.earlier[0] == pytest.approx(own_minus_other(alone.maps), abs=1e-6)
    assert found.earlier_replicates[3, 0] == pytest.approx(own_minus_other(alone.replicates[3]), abs=1e-4)


def test_hits_are_counted_batch_by_batch(make_images):
    found = sl.localization(sl.build("vit-nano4", classes=0, depth=1), make_images, batch=48)
    assert found.hits[:, 0].tolist() == [48, 96]
    assert found.hits[-1, 1] == pytest.approx(found.summary()["interior tokens most like their own patch"])


def test_a_token_that_knows_the_middle_knows_no_place():
    """Whichever token it is: the difference to its own patch is that of patches, and cancels."""
    one = np.array([[0.1, 0.1, 0.1, 0.1], [0.1, 0.5, 0.4, 0.1], [0.1, 0.3, 0.6, 0.1], [0.1, 0.1, 0.1, 0.1]])
    assert own_minus_other(np.tile(one, (16, 1, 1))) == pytest.approx(0)
    assert own_minus_other(np.eye(16).reshape(16, 4, 4)) == pytest.approx(1)


def test_a_patch_that_never_changes_leaves_the_others_their_numbers():
    """Photographs with a black corner: it has no CKA with anything, and all others have."""
    model = sl.build("vit-nano4", classes=0, depth=1, patch=8)
    images = torch.rand(24, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    whole = sl.localization(model, images)
    images[:, :, :8, :8] = 0
    found = sl.localization(model, images)
    assert np.isnan(found.maps[:, 0, 0]).all()
    assert np.isfinite(found.maps[1:].reshape(15, 16)[:, 1:]).all()
    own, rest = found.own()[1:], found.maps[1:].reshape(15, 16)[:, 1:]
    numbers = found.summary()
    assert numbers["CKA with the own patch, mean"] == pytest.approx(own.mean())
    assert numbers["CKA with other patches, mean"] == pytest.approx((rest.sum() - own.sum()) / (15 * 14))
    assert numbers["tokens most like their own patch"] == (rest.argmax(1) == np.arange(15)).mean()
    assert found.intervals().keys() == whole.intervals().keys()
