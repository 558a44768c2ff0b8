"""Hybrids: backbone, tokens, and the paths they share with ViT."""

import pytest
import torch

import sightline as sl
from tests.peers import fill


def test_post_activation_units_start_as_their_shortcut():
    model = sl.build("r8-vit-nano4")
    unit, x = model.backbone.stages[0].units[1], torch.randn(1, 128, 4, 4)
    assert torch.equal(unit(x), torch.relu(x))
    fill(model)
    inner = unit.norm3(unit.conv3(unit.norm2(unit.conv2(unit.norm1(unit.conv1(x))))))
    torch.testing.assert_close(unit(x), torch.relu(x + inner))
    assert unit.norm1(x[:, :32]).min() >= 0
    assert unit.norm3(x).min() < 0


def test_backbones_differ_from_bit_where_the_papers_do():
    hybrid, bit = sl.build("r8-vit-nano4").backbone, sl.build("bit-nano")
    assert (hybrid.root.eps, hybrid.root.eps_on, hybrid.root_norm.norm.eps) == (1e-5, "deviation", 1e-6)
    assert (bit.root.conv.eps, bit.root.conv.eps_on, bit.norm.norm.eps) == (1e-10, "variance", 1e-5)


def test_stem_alone_with_patches_of_eight():
    model = sl.build("r-vit-ti16", classes=5)
    assert (model.config.units, model.config.grid, model.encoder_config.patch) == ((), (7, 7), (8, 8))
    assert model(torch.zeros(1, 3, 224, 224)).shape == (1, 5)


def test_two_small_convolutions_as_a_stem(tmp_path):
    model = fill(sl.build("conv-vit-nano4", classes=5, size=16)).double()
    x, b = torch.randn(2, 3, 16, 16).double(), model.backbone
    y = b.second_norm(b.second(b.root_norm(b.root(x))))
    torch.testing.assert_close(b(x), y)
    assert (model.config.grid, y.shape, b.root.kernel_size, b.second.stride) == ((4, 4), (2, 64, 4, 4), (3, 3), (2, 2))
    paths = [part.path for part in sl.anatomy(model)]
    with sl.record(model, *paths) as seen:
        model(x)
    assert set(seen) == set(paths)
    torch.testing.assert_close(seen["backbone.second_norm"], y)
    with pytest.raises(ValueError, match="7x7 stem"):
        sl.save(model.float(), tmp_path / "model.npz", to="npz")


def test_basic_units_after_a_stem_that_halves_the_resolution(tmp_path):
    model = sl.build("r6-vit-nano4", classes=5, size=16)
    unit, x = model.backbone.stages[0].units[0], torch.randn(1, 64, 8, 8)
    assert torch.equal(unit(x), torch.relu(x))  # starts as its shortcut
    fill(model.double())
    first, second = (stage.units[0] for stage in model.backbone.stages)
    x = torch.randn(2, 3, 16, 16).double()
    y = model.backbone.root_norm(model.backbone.root(x))
    y = torch.relu(y + first.norm2(first.conv2(first.norm1(first.conv1(y)))))
    y = torch.relu(second.shortcut_norm(second.shortcut(y)) + second.norm2(second.conv2(second.norm1(second.conv1(y)))))
    torch.testing.assert_close(model.backbone(x), y)
    assert (y.shape, model.config.grid, model.config.backbone_stride) == ((2, 128, 4, 4), (4, 4), 4)
    assert (first.shortcut, second.conv1.stride, second.conv2.stride) == (None, (2, 2), (1, 1))
    paths = [part.path for part in sl.anatomy(model)]
    with sl.record(model, *paths) as seen:
        model(x)
    assert set(seen) == set(paths)


@pytest.mark.parametrize("to", ["npz", "timm"])
def test_no_other_format_takes_basic_units(tmp_path, to):
    whole = sl.build("r26-vit-s32", unit="basic", units=(1, 1), size=32, classes=4, depth=1, patch=8)
    sl.save(whole, tmp_path / "own.safetensors")
    assert sl.load(tmp_path / "own.safetensors").config == whole.config
    with pytest.raises(ValueError, match="bottleneck units"):
        sl.save(whole, tmp_path / "model.npz", to=to)


def test_config_speaks_of_pixels_and_plan_of_the_map():
    model = sl.build("r14-vit-micro8", classes=7, size=(64, 32), channels=4)
    assert (model.config.size, model.config.channels, model.config.classes) == ((64, 32), 4, 7)
    assert (model.encoder_config.size, model.encoder_config.channels, model.encoder_config.patch) == (
        (8, 4),
        256,
        (1, 1),
    )
    assert model.image.size == (64, 32)
    assert len(model.image.mean) == 4


def test_options_of_the_encoder_reach_it():
    model = sl.build("r8-vit-nano4", pool="gap", no_skip=(2,), position="2d")
    assert model.encoder_config.prefix == 0
    assert not model.blocks[2].skips
    assert model.positions[0].kind == "2d"
    changed = sl.build(model.config, classes=3, device="meta")
    assert (changed.config.classes, changed.encoder_config.pool) == (3, "gap")


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"size": 50}, "Try 48 x 48"), ({"patch": 6, "size": 36}, "multiple of"), ({"units": (2, 0)}, "at least 1")],
)
def test_impossible_options_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        sl.build("r8-vit-nano4", **changes)
