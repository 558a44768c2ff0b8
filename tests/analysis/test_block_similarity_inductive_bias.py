"""CKA by block across models, and priors of models that have or lack them."""

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.analysis.biases import RELATIONAL_BIASES
from tests import peers


@pytest.fixture(scope="module")
def make_images():
    return sl.dataset("scenes/objects", num=48, size=32)


def test_scale_is_the_diagonal_of_cka(make_images):
    a, b, shallow = (sl.build("vit-nano4", classes=0, seed=i, depth=d) for i, d in ((0, 4), (1, 4), (2, 2)))
    found = sl.analysis.block_similarity({"b": b, "itself": a, "shallow": shallow}, a, make_images, batch=48)
    whole = sl.cka(b, a, make_images, layers="blocks", batch=48).similarity
    np.testing.assert_allclose(found.similarity[0], whole.diagonal())
    np.testing.assert_allclose(found.similarity[1], 1)
    small = sl.cka(shallow, a, make_images, layers="blocks", batch=48).similarity
    np.testing.assert_allclose(found.similarity[2, :2], [small[0, 0], small[1, 3]])
    assert np.isnan(found.similarity[2, 2:]).all()
    with pytest.raises(ValueError, match="no model"):
        sl.analysis.block_similarity({}, a, make_images)


def test_priors_of_a_cnn_and_of_vits(make_images):
    cnn = sl.analysis.inductive_bias(peers.fill(sl.build("bit-nano", classes=0, size=64), std=0.1), make_images, n=4)
    model = peers.fill(sl.build("vit-nano4", classes=0), std=0.1)
    with torch.no_grad():
        model.positions[0].table.mul_(20)  # a ViT to which places matter
    vit = sl.analysis.inductive_bias(model, make_images, n=4)
    assert cnn.relational == RELATIONAL_BIASES  # the table goes with the report, and comes back
    assert cnn.locality_first > 0.5  # GroupNorm looks at the whole map
    assert cnn.locality_first > cnn.locality_last
    assert cnn.equivariance < vit.equivariance
    blind = sl.analysis.inductive_bias(sl.build("vit-nano4", classes=0, position="none", pool="gap"), make_images, n=4)
    assert blind.permutation < 1e-5  # without positions a ViT does not see order (E7)
    assert blind.permutation_pooled < 1e-5
    assert blind.equivariance < 1e-5
    assert vit.permutation > 1e-3
    assert vit.permutation_pooled > 1e-4


def test_priors_of_other_libraries(make_images):
    resnet = sl.adopt(peers.torchvision.models.resnet18(num_classes=5), image=sl.ImageSpec(size=(64, 64)))
    assert np.isfinite(sl.analysis.inductive_bias(resnet, make_images, n=2).locality_first)
    timm = peers.timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1, num_classes=5)
    assert sl.analysis.inductive_bias(timm, torch.rand(2, 3, 32, 32)).invariance > 0


def test_the_table_of_relational_biases():
    assert RELATIONAL_BIASES["fully connected"][3] == "-"
    assert RELATIONAL_BIASES["convolutional"][2:] == ("locality", "spatial translation")
