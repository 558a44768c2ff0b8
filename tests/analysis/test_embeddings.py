"""What the stem has learned, on stems whose answer is known."""

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.analysis.embeddings import one_wave, position_embedding, spearman
from sightline.observe.model import observe
from tests import peers


def test_components_are_those_of_the_filters():
    model = peers.fill(sl.build("vit-ti16"), std=0.1)
    found = sl.patch_filters(model)
    assert found.components.shape == (28, 16, 16, 3)
    flat = found.components.reshape(28, -1)
    np.testing.assert_allclose(flat @ flat.T, np.eye(28), atol=1e-9)
    assert (np.diff(found.explained) <= 0).all()
    assert 0 < found.explained.sum() < 1


def test_smooth_filters_show():
    model = sl.build("vit-ti16")
    noise = sl.patch_filters(model)
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    waves = torch.stack([torch.cos((i * y + j * x) * torch.pi / 16) for i in range(3) for j in range(3)])
    with torch.no_grad():
        model.embed.proj.weight.copy_((torch.randn(192 * 3, 9) @ waves.flatten(1)).view(192, 3, 16, 16))
    smooth = sl.patch_filters(model)
    assert smooth.summary()["energy at low frequencies"] > 0.9
    assert noise.summary()["energy at low frequencies"] < 0.4
    assert smooth.explained.sum() == pytest.approx(1)


@pytest.mark.parametrize("position", ["1d", "2d", "sincos"])
@pytest.mark.parametrize("at", ["stem", "every", "shared"])
def test_the_table_is_found_whatever_its_kind(position, at):
    if position == "sincos" and at != "stem":
        return
    model = sl.build("vit-nano4", classes=0, position=position, position_at=at, registers=2, pool="cls", size=(32, 24))
    table = position_embedding(observe(model))
    found = model.positions[0](torch.zeros(1, model.encoder_config.prefix + 48, 64))[0, model.encoder_config.prefix :]
    torch.testing.assert_close(table.flatten(0, 1).float(), found.detach(), atol=1e-5, rtol=0)


def test_waves_and_noise_are_told_apart():
    waves = sl.position_similarity(sl.build("vit-nano4", position="sincos"))
    noise = sl.position_similarity(sl.build("vit-nano4"))
    assert waves.sinusoid > 0.9 > 0.4 > noise.sinusoid
    assert abs(noise.sinusoid - noise.sinusoid_of_noise) < 0.05
    assert waves.decay < -0.5 < -0.1 < noise.decay
    assert waves.row_column > 0.01
    np.testing.assert_allclose(waves.tiles.reshape(64, 64).diagonal(), 1)


def test_other_libraries():
    model = peers.fill(
        peers.timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, num_classes=0), std=0.1
    )
    adopted = sl.adopt(model)
    table = position_embedding(observe(adopted))
    torch.testing.assert_close(table.flatten(0, 1).float(), model.pos_embed[0, 1:].detach(), atol=1e-5, rtol=0)
    assert sl.patch_filters(adopted).components.shape[1:] == (8, 8, 3)
    assert sl.patch_filters(sl.build("bit-nano")).components.shape[1:] == (3, 3, 3)


@pytest.mark.parametrize("name", ["none", "relative"])
def test_no_table_is_an_error(name):
    with pytest.raises(ValueError, match="no position embedding"):
        sl.position_similarity(sl.build("vit-nano4", position=name))
    with pytest.raises(ValueError, match="no position embedding"):
        sl.position_similarity(sl.build("bit-nano"))


def test_rank_correlation():
    x = torch.tensor([1.0, 2, 3, 4])
    assert spearman(x, x.exp()) == pytest.approx(1)
    assert spearman(x, -x) == pytest.approx(-1)
    assert spearman(torch.tensor([1.0, 1, 2, 2]), x) == pytest.approx(0.8944, abs=1e-4)
    table = torch.cos(torch.arange(8.0)[:, None, None] * torch.tensor([0.7, 1.5])).expand(8, 8, 2)
    assert one_wave(table.double()) > 0.9


def test_neighboring_patches():
    model = sl.build("vit-nano4", classes=0)
    scenes = sl.analysis.neighbor_similarity(model, sl.dataset("scenes/objects", num=32, size=32), batch=8)
    noise = sl.analysis.neighbor_similarity(model, torch.randn(32, 3, 32, 32), batch=8)
    assert scenes.summary()["neighbors"] > scenes.summary()["farthest"] + 0.1
    assert abs(noise.summary()["neighbors"]) < 0.02
