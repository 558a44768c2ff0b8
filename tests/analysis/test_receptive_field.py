"""Effective receptive fields of models whose field is known."""

import numpy as np
import pytest
import torch
from torch import nn

import sightline as sl
from tests import peers


@pytest.fixture(scope="module")
def images():
    return torch.rand(4, 3, 32, 32)


def convolutions(*layers):
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    return sl.adopt(net, image=sl.ImageSpec(size=(32, 32)))


def reached(field):
    """Where there is more than rounding: some CPUs convolve 3 x 3 by Winograd's way, whose zeros are not exact."""
    return field > 1e-6 * field.max()


@pytest.mark.parametrize("probes", [1, 4, None])
def test_one_convolution_sees_three_by_three(images, probes):
    model = convolutions(nn.Conv2d(3, 8, 3, padding=1), nn.Tanh())
    found = sl.receptive_field(model, images, layers="inner.0", probes=probes)
    ys, xs = np.nonzero(reached(found.maps[0]))
    assert (ys.min(), ys.max(), xs.min(), xs.max()) == (15, 17, 15, 17)
    assert found.maps[0].sum() == pytest.approx(1)
    assert found.radii[0, 1] <= 2**0.5 + 0.5
    two = convolutions(nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 8, 3, padding=1))
    assert reached(sl.receptive_field(two, images, layers="inner.2").maps[0]).sum() == 25


def test_a_vit_without_attention_sees_its_own_patch(images):
    model = sl.build("vit-nano4", classes=5)
    for block in model.blocks:
        nn.init.zeros_(block.attn.out.weight)
    found = sl.receptive_field(model, images, n=2)
    want = np.zeros((32, 32), bool)
    want[16:20, 16:20] = True
    assert ((found.maps > 0) == want).all()
    np.testing.assert_allclose(found.own, 1)
    moved = sl.receptive_field(model, images, n=2, at=(0, 7), layers="blocks.3.mlp_sum")
    assert (np.argwhere(moved.maps[0] > 0).min(0) == (0, 28)).all()


def test_attention_sees_everything_and_the_branch_more_than_the_sum(images):
    model = sl.build("vit-nano4", classes=5)
    after = sl.receptive_field(model, images, layers="blocks.*.attn_sum", n=2)
    before = sl.receptive_field(model, images, layers="blocks.*.attn_sum", side="before", n=2)
    assert (after.maps > 0).all()
    assert before.names[0] == "blocks.0.attn_branch"
    assert before.own[0] < after.own[0]
    assert not any(p.grad is not None for p in model.parameters())


def test_every_channel_is_what_signs_estimate(images):
    model = peers.fill(sl.build("bit-nano", classes=5), std=0.1)
    exact = sl.receptive_field(model, images, layers="root", probes=None, n=2)
    signs = sl.receptive_field(model, images, layers="root", probes=64, n=2)
    assert np.abs(exact.maps - signs.maps).sum() < 0.3
    np.testing.assert_allclose(exact.radii, signs.radii, atol=0.8)


def test_radii():
    field = torch.zeros(11, 11)
    field[5, 5], field[5, 8] = 0.6, 0.4
    # five sixths of the first pixel, from -0.5 to 0.5; all of it, and three quarters of the other, from 2.5 to 3.5
    assert sl.analysis.mass_radii(field, (5.5, 5.5)) == pytest.approx([5 / 6 - 0.5, 3.25])
    disc = torch.ones(201, 201)
    y, x = torch.meshgrid(torch.arange(201) - 100, torch.arange(201) - 100, indexing="ij")
    disc[y.square() + x.square() > 100**2] = 0
    assert sl.analysis.mass_radii(disc, (100.5, 100.5)) == pytest.approx([100 * 0.5**0.5, 100 * 0.9**0.5], abs=0.5)
    assert np.isnan(sl.analysis.mass_radii(torch.zeros(3, 3), (1, 1))).all()


def test_radii_move_as_little_as_the_mass():
    """However little moves: nothing jumps from one pixel's distance to the next."""
    field = torch.rand(32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    once, again = (sl.analysis.mass_radii(f, (16.0, 16.0)) for f in (field, field + 1e-6 * field.flip(0)))
    for s in np.linspace(0.05, 0.95, 181):
        more = sl.analysis.mass_radii(field, (16.0, 16.0), [s, s + 1e-6])
        assert 0 <= more[1] - more[0] < 1e-3
    assert np.abs(np.subtract(once, again)).max() < 1e-4


def test_other_libraries_and_errors(images):
    timm = peers.timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=5)
    assert sl.receptive_field(timm, images, n=2).maps.shape == (2, 32, 32)
    resnet = sl.adopt(peers.torchvision.models.resnet18(num_classes=5), image=sl.ImageSpec(size=(64, 64)))
    assert sl.receptive_field(resnet, torch.rand(2, 3, 64, 64)).maps.shape == (8, 64, 64)
    model = sl.build("vit-nano4")
    with pytest.raises(ValueError, match="no cell"):
        sl.receptive_field(model, images, at=(8, 0))
    with pytest.raises(ValueError, match="side is"):
        sl.receptive_field(model, images, side="left")
    with pytest.raises(ValueError, match="no 'before'"):
        sl.receptive_field(model, images, layers="embed", side="before")
    with pytest.raises(ValueError, match="probes is"):
        sl.receptive_field(model, images, probes=0)


class Unit(nn.Module):
    """A residual unit that ends with batch norm, as ResNets do."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1))
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        return x + self.norm(self.body(x))


@pytest.mark.parametrize("side", ["before", "after"])
def test_one_image_at_a_time_is_as_good_as_two(side):
    """A batch of one through batch norm: the gradient of one cell of the branch must not depend on its strides."""
    torch.manual_seed(0)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), Unit(), Unit(), *head).eval()
    for norm in (m for m in net.modules() if isinstance(m, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight, 0.5, 2)
        nn.init.uniform_(norm.running_var, 0.5, 2)
    model = sl.adopt(net, image=sl.ImageSpec(size=(32, 32)))
    images = torch.rand(8, 3, 32, 32)
    found = sl.receptive_field(model, images, n=8, probes=None, side=side)  # in batches of two
    alone = [sl.receptive_field(model, images[i : i + 1], n=1, probes=None, side=side) for i in range(8)]
    sums = np.array([one.how["gradient sums"] for one in alone])
    want = np.stack([one.maps for one in alone]) * sums[:, :, None, None]
    want = want.sum(0) / want.sum((0, 2, 3))[:, None, None]
    np.testing.assert_allclose(found.maps, want, atol=1e-6)


def test_replicates_and_the_largest_cell(images):
    model = sl.build("vit-nano4", classes=5, depth=2)
    found = sl.receptive_field(model, images, n=4)
    assert found.replicates.shape == (4, 2, 3)
    np.testing.assert_allclose(found.replicates[:, :, 2].mean(0), found.own, atol=0.02)
    single = [sl.receptive_field(model, images[[i]], n=1) for i in range(4)]
    cells = np.stack([one.maps.reshape(2, 8, 4, 8, 4).sum((2, 4)).reshape(2, 64).argmax(1) == 36 for one in single])
    assert found.largest.shape == (2,)
    assert set(found.largest.tolist()) <= {0, 0.25, 0.5, 0.75, 1}
    assert np.abs(found.largest - cells.mean(0)).max() <= 0.5  # random probes differ between the two
    assert found.largest_replicates.shape == (4, 2)


class MaybeSkip(torch.nn.Module):
    """A unit of a CNN, with or without a skip."""

    def __init__(self, skip):
        super().__init__()
        self.one, self.two = (torch.nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.skip = skip

    def forward(self, x):
        return self.two(self.one(x)) + (x if self.skip else 0)


def test_before_the_addition_says_which_additions_these_are():
    """A unit without a skip has no field before the addition, and the others are not taken for it."""
    row = [MaybeSkip(skip) for skip in (False, True, False, True)]
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), *row, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    model = sl.adopt(net.eval(), image=sl.ImageSpec(size=(16, 16)))
    after, before = (sl.receptive_field(model, torch.rand(2, 3, 16, 16), n=2, side=s) for s in ("after", "before"))
    assert after.names == ("inner.1", "inner.2", "inner.3", "inner.4")
    assert len(before.names) == 2
    assert before.how["sums"] == ["inner.2", "inner.4"]
