"""Maps of evidence where the evidence is known, and the checks that maps must pass."""

import numpy as np
import pytest
import torch
from torch import nn

import sightline as sl
from sightline.analysis.saliency.cam import cam_layer, grad_cam
from sightline.analysis.saliency.faithfulness import curves, randomized_copy
from sightline.observe.model import evaluation_mode, observe
from tests import peers


class Bright(nn.Module):
    """Class 1 is the contrast in the image's upper left quarter: a model whose reasons are known."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 4, stride=4, bias=False)
        self.conv.weight.data[:] = torch.tensor([1.0, -1, 1, -1]) * torch.tensor([1.0, -1, 1, -1])[:, None]
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(4, 2, bias=False)
        nn.init.zeros_(self.head.weight)
        self.head.weight.data[1] = 0.3

    def forward(self, x):
        x = self.conv(x).abs()
        mask = torch.zeros_like(x)
        mask[:, :, :4, :4] = 1
        return self.head(self.pool(x * mask).flatten(1))


@pytest.fixture
def bright():
    return sl.adopt(Bright(), image=sl.ImageSpec(size=(32, 32)))


def test_the_formula_of_grad_cam():
    a, g = torch.rand(2, 6, 3) - 0.5, torch.rand(2, 6, 3) - 0.5
    weights = g.mean(1)
    want = torch.stack([(a[i] @ weights[i]).clamp(min=0) for i in range(2)])
    torch.testing.assert_close(sl.analysis.cam(a, g), want)


def test_deletion_and_insertion_know_a_good_map(bright):
    s, images = observe(bright), torch.rand(4, 3, 32, 32) + 0.5 * torch.randn(4, 3, 32, 32)
    good = torch.zeros(4, 8, 8)
    good[:, :4, :4] = 1
    classes = torch.ones(4, dtype=torch.long)
    with evaluation_mode(s):
        deletion, insertion = curves(s, images, classes, good)
        worse_deletion, worse_insertion = curves(s, images, classes, 1 - good)
    assert (deletion < worse_deletion).all()
    assert (insertion > worse_insertion).all()


def test_the_layer_is_one_that_the_head_depends_on():
    for change in ({"pool": "cls"}, {"pool": "gap"}, {"pool": "map"}, {"registers": 2}):
        model = peers.fill(sl.build("vit-nano4", classes=5, **change), std=0.1)
        s = observe(model)
        with evaluation_mode(s, gradients=True):
            maps = grad_cam(s, torch.rand(2, 3, 32, 32), torch.tensor([0, 1]))
        assert maps.shape == (2, 8, 8)
        assert maps.any(), (change, cam_layer(s))


@pytest.mark.parametrize("method", ["grad_cam", "rollout", "rollout+identity", "gradient_rollout"])
@pytest.mark.parametrize("name", ["vit-nano4", "r8-vit-nano4"])
def test_methods_on_attention(method, name):
    model = peers.fill(sl.build(name, classes=5), std=0.1)
    found = sl.attribution(model, sl.dataset("scenes/objects", num=3, size=32), method=method, steps=3, batch=2)
    assert found.maps.shape == (3, 8, 8)
    assert found.maps.min() >= 0
    for scores in (found.deletion, found.insertion, found.deletion_random):
        assert ((scores >= 0) & (scores <= 1)).all()
    assert not any(p.grad is not None for p in model.parameters())


def test_cnn_and_other_libraries():
    data = sl.dataset("scenes/objects", num=3, size=32)
    assert sl.attribution(sl.build("bit-nano", classes=5), data, steps=2).maps.shape == (3, 4, 4)
    resnet = sl.adopt(peers.torchvision.models.resnet18(num_classes=5), image=sl.ImageSpec(size=(64, 64)))
    assert sl.attribution(resnet, data, steps=2).maps.shape == (3, 2, 2)
    timm = peers.timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=5)
    assert sl.attribution(timm, data, steps=2).maps.shape == (3, 4, 4)


def test_scrambled_weights_keep_their_values_and_nothing_else():
    model = peers.fill(sl.build("vit-nano4", classes=5), std=0.1)
    twin = randomized_copy(model)
    for (name, p), q in zip(model.named_parameters(), twin.parameters()):
        torch.testing.assert_close(p.flatten().sort().values, q.flatten().sort().values)
        assert p.numel() < 3 or not torch.equal(p, q), name


def test_mass_on_the_object():
    scene = sl.dataset("scenes/shape", split="test", num=8, size=32).scene(3)
    mask = scene.masks[scene.target][None]
    even = sl.analysis.object_mass(np.ones((1, 8, 8)), mask)
    assert even.mass == pytest.approx(even.area)
    exact = sl.analysis.object_mass(mask.astype(float), mask)
    assert exact.mass == pytest.approx(1)
    with pytest.raises(ValueError, match="without any mass"):
        sl.analysis.object_mass(np.zeros((1, 8, 8)), mask)


def test_errors():
    data = torch.rand(2, 3, 32, 32)
    with pytest.raises(ValueError, match="method is one of"):
        sl.attribution(sl.build("vit-nano4"), data, method="magic")
    with pytest.raises(ValueError, match="no attention to roll out"):
        sl.attribution(sl.build("bit-nano"), data, method="rollout")
    with pytest.raises(ValueError, match="no classes"):
        sl.attribution(sl.build("vit-nano4", classes=0), data)
    with pytest.raises(ValueError, match="steps"):
        sl.attribution(sl.build("vit-nano4"), data, steps=0)
