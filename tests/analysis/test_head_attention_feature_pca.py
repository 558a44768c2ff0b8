"""What the page is looked through with: attention of every token, features of every cell, the images beside them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from sightline.analysis.attention.head_attention import join
from sightline.observe.images import thumbnails


@pytest.fixture(scope="module")
def data():
    return sl.dataset("scenes/objects", num=12, size=32)


@pytest.fixture(scope="module")
def plain(data):
    """The same as a batch of pixels, which are shown as they are; images of a dataset are shown larger."""
    return torch.from_numpy(np.stack([np.asarray(data[i][0]) for i in range(len(data))])).permute(0, 3, 1, 2)


def test_head_attention_is_the_attention(data, plain):
    model = sl.build("vit-nano4", classes=10, seed=0)
    found = sl.head_attention(model, plain, n=2)
    whole = sl.analysis.attention_maps(model, plain, block=3, query=7, n=2)
    assert found.images.shape == (2, 32, 32, 3)
    assert sl.head_attention(model, data, n=2).images.shape == (2, 224, 224, 3)
    for image in range(2):
        for head in range(4):
            row = found.row(image, 3, head, 1 + 7)
            np.testing.assert_allclose(row, whole.maps[image, head].ravel(), atol=found.peaks.max() / 255)


@given(height=st.integers(1, 9), width=st.integers(1, 9), first=st.integers(0, 1))
def test_joined_cells_keep_the_mass(height, width, first):
    """Rows sum to 1 on every grid, and what a cell receives is the sum over the cells it is made of."""
    cells = height * width
    rows = torch.rand(2, 3, first + cells, cells).softmax(-1)
    small, grid = join(rows, (height, width), first)
    assert grid == (-(-height // 2), -(-width // 2))
    assert small.shape == (2, 3, first + grid[0] * grid[1], grid[0] * grid[1])
    torch.testing.assert_close(small.sum(-1), torch.ones(small.shape[:-1]))
    corner = rows[..., :1, :].unflatten(-1, (height, width))[..., :2, :2].sum((-1, -2))
    if first:
        torch.testing.assert_close(small[..., :1, 0], corner)


def test_a_large_model_is_joined_and_says_so(data, monkeypatch):
    monkeypatch.setattr("sightline.analysis.attention.head_attention.LIMIT", 60_000)
    found = sl.head_attention(sl.build("vit-nano4", classes=10), data, n=4)
    assert len(found.images) == 2
    assert found.how["joined"] == 2
    assert "joined" in found.caption


def test_a_cnn_has_no_heads(data):
    with pytest.raises(ValueError, match="no attention"):
        sl.head_attention(sl.build("bit-nano", classes=0), data)


@pytest.mark.parametrize("name", ["vit-nano4", "bit-nano", "r8-vit-nano4"])
def test_films_of_all_families(data, name):
    found = sl.feature_pca(sl.build(name, classes=0), data, n=3)
    assert found.features.shape[:2] == (3, len(found.layers))
    assert found.features.dtype == np.int8
    assert ((found.explained > 0) & (found.explained <= 1 + 1e-9)).all()
    assert found.alike(0, 0, 1)[1] == pytest.approx(1)


def test_all_components_give_the_cosines_of_the_features(plain):
    """With every component kept, the cosine of bytes is that of the centered features, within rounding."""
    model = sl.build("vit-nano4", classes=0, seed=0)
    found = sl.feature_pca(model, plain, n=2, components=128)
    images = torch.from_numpy(found.images).permute(0, 3, 1, 2)
    with sl.record(model.eval(), "blocks.0.mlp_sum") as tape, torch.no_grad():
        model(sl.data.normalize(images, model.image))
    cells = tape["blocks.0.mlp_sum"][:, 1:].double()
    unit = torch.nn.functional.normalize(cells - cells.mean((0, 1)), dim=-1)
    np.testing.assert_allclose(found.alike(1, 0, 5), (unit[1] @ unit[1, 5]).numpy(), atol=0.05)
    assert found.explained[0] == pytest.approx(1)


def test_thumbnails_undo_the_normalization(data):
    model = sl.build("vit-nano4", classes=0)
    given = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    shown = thumbnails(sl.data.normalize(given, model.image), model.image, 64)
    assert (shown == given.permute(0, 2, 3, 1).numpy()).all()


def test_maps_come_with_their_images(plain):
    model = sl.build("vit-nano4", classes=10)
    rolled = sl.attention_rollout(model, plain, n=3)
    assert rolled.images.shape == (3, 32, 32, 3)
    assert sl.attribution(model, plain, n=3, steps=2).images.shape == (3, 32, 32, 3)


def test_receptive_fields_know_their_error(data):
    found = sl.receptive_field(sl.build("bit-nano", classes=0), data, n=8)
    assert found.how["groups"] == 8
    assert np.isfinite(found.own_error).all()
    assert found.radii_error.shape == found.radii.shape
    assert np.isnan(sl.receptive_field(sl.build("bit-nano", classes=0), data, n=1).own_error).all()
