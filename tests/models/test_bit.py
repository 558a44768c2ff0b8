"""BiT: what sets it apart from other ResNets."""

import pytest
import torch
from torch.nn import functional as F

import sightline as sl
from sightline.models.convolutions import StdConv, pad_same
from tests.peers import fill


def test_kernels_are_standardized_with_epsilon_where_each_family_has_it():
    conv = StdConv(6, 5, 3, eps=1e-2, eps_on="variance").double()
    w = conv.weight
    mean, var = w.mean((1, 2, 3), keepdim=True), w.var((1, 2, 3), correction=0, keepdim=True)
    torch.testing.assert_close(conv.standardized(), (w - mean) / (var + 1e-2).sqrt())
    conv.eps_on = "deviation"
    torch.testing.assert_close(conv.standardized(), (w - mean) / (var.sqrt() + 1e-2))
    conv.eps = None
    assert conv.standardized() is w


def test_scale_and_shift_of_a_kernel_do_not_matter():
    model, x = fill(sl.build("bit-nano", classes=10)).double().eval(), torch.randn(2, 3, 32, 32).double()
    before = model(x)
    with torch.no_grad():
        model.stages[1].units[0].conv2.weight.mul_(3).add_(0.7)
    torch.testing.assert_close(model(x), before)


def test_the_pool_is_padded_with_zeros():
    model = sl.build("bit-r50x1", classes=2)
    x = torch.randn(1, 3, 32, 32)
    y = model.root.conv(x)
    zero = F.max_pool2d(F.pad(y, (1, 1, 1, 1)), 3, 2)
    assert torch.equal(model.root(x), zero)
    assert not torch.equal(zero, F.max_pool2d(y, 3, 2, padding=1))


def test_pre_activation_and_the_shortcut_behind_the_first_norm():
    unit, x = fill(sl.build("bit-micro")).double().stages[1].units[0], torch.randn(1, 128, 8, 8).double()
    y = unit.norm1(x)
    inner = unit.conv3(unit.norm3(unit.conv2(unit.norm2(unit.conv1(y)))))
    torch.testing.assert_close(unit(x), unit.shortcut(y) + inner)
    assert (unit.conv1.stride, unit.conv2.stride, unit.conv3.stride) == ((1, 1), (2, 2), (1, 1))
    plain = fill(sl.build("bit-micro")).stages[1].units[1]
    assert plain.shortcut is None


def test_any_size_and_any_channels():
    model = sl.build("bit-nano", classes=4, channels=1, size=(40, 28))
    assert model.features(torch.zeros(1, 1, 33, 57)).grid == (5, 8)
    with pytest.raises(ValueError, match="at least 8 x 8"):
        model(torch.zeros(1, 1, 6, 20))


def test_ablations_of_norm_and_standardization():
    x = torch.randn(2, 3, 32, 32)
    for norm in ("group", "batch"):
        for standardize in (True, False):
            model = fill(sl.build("bit-nano", classes=3, norm=norm, standardize=standardize)).train()
            model(x).sum().backward()
            kinds = {type(m).__name__ for m in model.modules()}
            assert ("GroupNorm" in kinds) == (norm == "group")
            assert model.root.conv.eps == (1e-10 if standardize else None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"width_factor": 0.3}, "multiple of 0.5"),
        ({"units": ()}, "at least one stage"),
        ({"units": (1, 0)}, "at least 1"),
        ({"size": 4}, "smaller than the stride"),
        ({"classes": -2}, "at least 0"),
        ({"stem": "5x5"}, "7x7"),
    ],
)
def test_impossible_options_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        sl.build("bit-nano", **changes)


@pytest.mark.parametrize(
    ("size", "kernel", "stride"), [(224, 7, 2), (225, 7, 2), (7, 3, 2), (8, 3, 2), (9, 1, 2), (5, 3, 1)]
)
def test_same_padding_is_tensorflows(size, kernel, stride):
    out = -(-size // stride)
    total = max((out - 1) * stride + kernel - size, 0)
    padded = pad_same(torch.ones(1, 1, size, size), kernel, stride)
    assert padded.shape[2] == size + total
    assert padded[0, 0, :, size // 2].tolist() == [0.0] * (total // 2) + [1.0] * size + [0.0] * (total - total // 2)


def test_kernels_are_standardized_once_in_evaluation_and_again_when_they_change():
    model, x = fill(sl.build("bit-nano", classes=10)).eval(), torch.randn(2, 3, 32, 32)
    conv = model.stages[1].units[0].conv2
    with_gradients = model(x).detach()
    with torch.inference_mode():
        assert torch.equal(model(x), with_gradients)
        assert conv.kernel() is conv.kernel()
    assert conv.kernel() is not conv.kernel()  # a gradient may be wanted
    other = {"weight": torch.randn_like(conv.weight)}
    with torch.no_grad():
        before = conv.kernel()
        found = torch.func.functional_call(conv, other, (torch.ones(1, 64, 3, 3),))
        assert not torch.equal(found, F.conv2d(torch.ones(1, 64, 3, 3), before, stride=conv.stride, padding=1))
        conv.weight[0].mul_(torch.rand(64, 3, 3))
        assert not torch.equal(conv.kernel(), before)
        assert torch.equal(conv.kernel(), conv.standardized())
        assert conv.double().kernel().dtype == torch.float64
    assert set(model.state_dict()) == set(sl.build("bit-nano", classes=10).state_dict())


def test_basic_units_are_two_convolutions_behind_their_norms():
    model = fill(sl.build("bit-nano", unit="basic", units=(1, 2), classes=10)).double()
    unit, x = model.stages[1].units[0], torch.randn(1, 32, 8, 8).double()
    y = unit.norm1(x)
    torch.testing.assert_close(unit(x), unit.shortcut(y) + unit.conv2(unit.norm2(unit.conv1(y))))
    assert (unit.conv1.stride, unit.conv2.stride, unit.conv1.kernel_size) == ((2, 2), (1, 1), (3, 3))
    assert model.stages[1].units[1].shortcut is None
    assert (model.config.width, model.config.stride, model(torch.zeros(2, 3, 32, 32).double()).shape) == (
        64,
        4,
        (2, 10),
    )


def test_every_part_of_basic_units_can_be_recorded_and_no_other_format_takes_them(tmp_path):
    model = sl.build("bit-nano", unit="basic", classes=10)
    paths = [part.path for part in sl.anatomy(model)]
    with sl.record(model, *paths) as seen:
        model(torch.zeros(1, 3, 32, 32))
    assert set(seen) == set(paths)
    sl.save(model, tmp_path / "model.safetensors")
    assert sl.load(tmp_path / "model.safetensors").config == model.config
    whole = sl.build("bit-r50x1", unit="basic", units=(1, 1), size=32, classes=4)
    with pytest.raises(ValueError, match="bottleneck units only"):
        sl.save(whole, tmp_path / "model.npz", to="npz")
