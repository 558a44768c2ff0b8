"""BiT: what sets it apart from other ResNets."""

import copy

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
        torch.testing.assert_close(model(x), with_gradients, rtol=1e-4, atol=1e-5)  # observed: 2e-6
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


def both_ways(model, x):
    """Logits as training computes them, and as evaluation without gradients does."""
    with torch.inference_mode():
        fast = model(x).clone()
    return model(x).detach(), fast


@pytest.mark.parametrize("name", ["bit-nano", "bit-basic", "r8-vit-nano4", "r6-vit-nano4", "conv-vit-nano4"])
@pytest.mark.parametrize("batch", [1, 3])
def test_inference_takes_other_kernels_and_gives_the_same_logits(name, batch):
    stem = {"stem": "7x7/2+pool"} if name == "bit-nano" else {}
    model = fill(sl.build(name, classes=10, **stem)).eval()
    x = torch.randn(batch, 3, 32, 32)
    for pixels in (x, x.to(memory_format=torch.channels_last)):
        slow, fast = both_ways(model, pixels)
        torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5 * float(slow.abs().max()))  # observed: 1e-6
    slow, fast = both_ways(model.double(), x.double())
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12 * float(slow.abs().max()))


@pytest.mark.parametrize("how", ["optimizer", "load", "data", "copy"])
def test_kernels_that_change_are_standardized_and_packed_again(how):
    model, x = fill(sl.build("bit-nano", classes=10)).eval(), torch.randn(1, 3, 32, 32)
    old = both_ways(model, x)[1]
    if how == "optimizer":
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        model(x).square().sum().backward()
        optimizer.step()
    elif how == "load":
        model.load_state_dict(fill(sl.build("bit-nano", classes=10), seed=5).state_dict())
    elif how == "data":
        conv = model.stages[0].units[0].conv2
        conv.weight.data.copy_(torch.randn_like(conv.weight))
    else:
        model = copy.deepcopy(model)
        with torch.no_grad():
            model.root.conv.weight.copy_(torch.randn_like(model.root.conv.weight))
    slow, fast = both_ways(model, x)
    assert not torch.allclose(fast, old, rtol=1e-3)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5 * float(slow.abs().max()))


def test_what_is_recorded_is_not_overwritten():
    for name, paths in (("bit-nano", ("branch", "conv3")), ("r8-vit-nano4", ("branch", "norm3.norm"))):
        model, x = fill(sl.build(name, classes=10)).double().eval(), torch.randn(2, 3, 32, 32).double()
        unit = next(n for n, m in model.named_modules() if type(m).__name__ == "Unit")
        for path in paths:
            with sl.record(model, f"{unit}.{path}") as tape:
                model(x)
            expected = tape[f"{unit}.{path}"]
            with torch.no_grad(), sl.record(model, f"{unit}.{path}") as tape:
                model(x)
            torch.testing.assert_close(tape[f"{unit}.{path}"], expected)


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
