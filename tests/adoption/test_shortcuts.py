"""Skip and branch of residual units, module by module, against what each library calls its shortcut."""

import pytest
import torch
from torch import nn

import sightline as sl
from tests.peers import timm, torchvision, transformers

TV, HF = torchvision.models, transformers
SMALL = {"depths": [1, 2], "hidden_sizes": [32, 64], "embedding_size": 16, "num_labels": 5}

# name: (model, class of its units, attribute of the shortcut, attribute of the branch's last layer)
KNOWN = {
    "torchvision resnet18": (lambda: TV.resnet18(), "BasicBlock", "downsample", "bn2"),
    "torchvision resnet50": (lambda: TV.resnet50(), "Bottleneck", "downsample", "bn3"),
    "torchvision resnet50, starting at zero": (
        lambda: TV.resnet50(zero_init_residual=True),
        "Bottleneck",
        "downsample",
        "bn3",
    ),
    "torchvision resnext50": (lambda: TV.resnext50_32x4d(), "Bottleneck", "downsample", "bn3"),
    "torchvision wide_resnet50": (lambda: TV.wide_resnet50_2(), "Bottleneck", "downsample", "bn3"),
    "torchvision regnet": (lambda: TV.regnet_y_400mf(), "ResBottleneckBlock", "proj", "f"),
    "timm resnet18": (lambda: timm.create_model("resnet18"), "BasicBlock", "downsample", "bn2"),
    "timm resnet50": (lambda: timm.create_model("resnet50"), "Bottleneck", "downsample", "bn3"),
    "timm resnet50d": (lambda: timm.create_model("resnet50d"), "Bottleneck", "downsample", "bn3"),
    "timm seresnet50": (lambda: timm.create_model("seresnet50"), "Bottleneck", "downsample", "se"),
    "timm resnext50": (lambda: timm.create_model("resnext50_32x4d"), "Bottleneck", "downsample", "bn3"),
    "timm regnety": (lambda: timm.create_model("regnety_002"), "Bottleneck", "downsample", "conv3"),
    "timm ghostnet": (lambda: timm.create_model("ghostnet_100"), "GhostBottleneck", "shortcut", "ghost2"),
    "timm resnext26ts": (lambda: timm.create_model("resnext26ts"), "BottleneckBlock", "shortcut", "conv3_1x1"),
    "timm bit": (lambda: timm.create_model("resnetv2_50x1_bit"), "PreActBottleneck", "downsample", "conv3"),
    "transformers resnet": (
        lambda: HF.ResNetForImageClassification(HF.ResNetConfig(**SMALL)),
        "ResNetBottleNeckLayer",
        "shortcut",
        "layer",
    ),
    "transformers resnet, basic": (
        lambda: HF.ResNetForImageClassification(HF.ResNetConfig(layer_type="basic", **SMALL)),
        "ResNetBasicLayer",
        "shortcut",
        "layer",
    ),
    "transformers regnet": (
        lambda: HF.RegNetForImageClassification(HF.RegNetConfig(groups_width=16, **SMALL)),
        "RegNetYLayer",
        "shortcut",
        "layer",
    ),
    "transformers bit": (
        lambda: HF.BitForImageClassification(HF.BitConfig(num_groups=8, **SMALL)),
        "BitPreActivationBottleneckLayer",
        "downsample",
        "conv3",
    ),
    "our bit": (lambda: sl.build("bit-nano", classes=5), "Unit", "shortcut", "conv3"),
}


def watched(units, shortcut, last):
    """What each unit of a library's model really gets from its shortcut and its last layer, by hooks of our own."""
    skips, branches, inputs, hooks = {}, {}, {}, []
    for unit in units:
        end, side = getattr(unit, last), getattr(unit, shortcut, None)
        hooks.append(unit.register_forward_pre_hook(lambda m, a: inputs.update({m: a[0].clone()})))
        hooks.append(end.register_forward_hook(lambda m, a, out, u=unit: branches.update({u: out.clone()})))
        if side is not None:
            hooks.append(side.register_forward_hook(lambda m, a, out, u=unit: skips.update({u: out.clone()})))
    return skips, branches, inputs, hooks


def check(model, units, shortcut, last):
    sums = [p for p in sl.anatomy(model) if p.kind == "sum"]
    assert len(sums) == len(units) > 2
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(3))
    skips, branches, inputs, hooks = watched(units, shortcut, last)
    with torch.no_grad(), sl.record(model, *(q for p in sums for q in (p.skip, p.branch))) as tape:
        model(images)
    for hook in hooks:
        hook.remove()
    assert skips  # some unit of each of them has a layer there
    for part, unit in zip(sums, units):
        torch.testing.assert_close(tape[part.skip], skips.get(unit, inputs[unit]), rtol=0, atol=0, msg=part.path)
        torch.testing.assert_close(tape[part.branch], branches[unit], rtol=0, atol=0, msg=part.path)


@pytest.mark.parametrize("name", KNOWN)
def test_skip_and_branch_are_what_the_library_calls_so(name):
    make, kind, shortcut, last = KNOWN[name]
    net = make().eval()
    model = net if name == "our bit" else sl.adopt(net, image=sl.ImageSpec(size=(64, 64)))
    check(model, [m for m in net.modules() if type(m).__name__ == kind], shortcut, last)


def test_what_learns_is_no_longer_way():
    """A frozen network whose shortcuts alone are trained."""
    net = TV.resnet18().eval().requires_grad_(False)
    for path, module in net.named_modules():
        if path.endswith("downsample"):
            module.requires_grad_(True)
    learning = [p.requires_grad for p in net.parameters()]
    model = sl.adopt(net, image=sl.ImageSpec(size=(64, 64)))
    check(model, [m for m in net.modules() if type(m).__name__ == "BasicBlock"], "downsample", "bn2")
    assert [p.requires_grad for p in net.parameters()] == learning


class Swapped(nn.Module):
    """A unit with misleading names that runs its branch first, or last, and writes into what it gets."""

    def __init__(self, first):
        super().__init__()
        self.downsample = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.branch, self.first = nn.Conv2d(8, 8, 1), first
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.relu(x)
        if self.first:
            return self.downsample(x).add_(self.branch(x))
        return self.branch(x).add_(self.downsample(x))


@pytest.mark.parametrize("first", [True, False])
def test_names_and_order_do_not_matter(first):
    row = [Swapped(first) for _ in range(3)]
    net = nn.Sequential(nn.Conv2d(3, 8, 3), *row, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()
    check(sl.adopt(net, image=sl.ImageSpec(size=(64, 64))), row, "branch", "downsample")


class Plain(nn.Module):
    """A unit as in many small ResNets: where the shortcut is the identity, it is a sequence of nothing."""

    def __init__(self, wide, activation):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(8, wide, 3, padding=1), nn.ReLU(), nn.Conv2d(wide, wide, 3, padding=1))
        self.shortcut = nn.Sequential() if wide == 8 else nn.Sequential(nn.Conv2d(8, wide, 1))
        self.activation = activation

    def forward(self, x):
        out = self.body(x)
        out += self.shortcut(x)
        return self.activation(out)


def plain(activation):
    row = [Plain(8, activation) for _ in range(3)] + [Plain(16, activation)]
    net = nn.Sequential(nn.Conv2d(3, 8, 3), *row, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)).eval()
    return net, row


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.SiLU(), nn.GELU(), nn.Hardswish(), nn.Identity()])
def test_the_identity_is_a_skip_and_the_sum_may_be_followed_by_an_activation(activation):
    net, row = plain(activation)
    check(sl.adopt(net, image=sl.ImageSpec(size=(64, 64))), row, "shortcut", "body")


def test_what_comes_after_the_sum_is_no_branch():
    """Beside a branch of a thousand times its size, the shortcut and the unit's own output make up its output, too."""
    net, row = plain(nn.ReLU())
    with torch.no_grad():
        for unit in row:
            unit.body[2].weight *= 1e4
    check(sl.adopt(net, image=sl.ImageSpec(size=(64, 64))), row, "shortcut", "body")


def test_adopting_keeps_no_record_and_no_gradient():
    net = TV.resnet18().eval()
    with torch.no_grad():
        model = sl.adopt(net, image=sl.ImageSpec(size=(64, 64)))
        assert not torch.is_grad_enabled()
    assert all(p.grad is None for p in net.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
