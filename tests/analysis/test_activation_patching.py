"""Activation patching: nothing restores 0 and everything 1; single patches against a run by hand; what it refuses."""

import numpy as np
import pytest
import torch

import sightline as sl
from tests import peers
from tests.weights.makers import PEERS


@pytest.fixture(scope="module")
def model():
    return peers.fill(sl.build("vit-nano4", patch=8, classes=7, depth=3, heads=2), std=0.3).double()


@pytest.fixture(scope="module")
def images():
    return torch.randn(6, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 2


@pytest.fixture(scope="module")
def found(model, images):
    return sl.analysis.activation_patching(model, images, cells=2, batch=3)


@pytest.fixture(scope="module")
def pair(model, images, found):
    """The images that were paired, known by their logits."""
    with torch.no_grad():
        said = model(images).argmax(1).tolist()
    other = next(i for i in range(len(said)) if said[i] != said[0])
    assert tuple(found.classes[0]) == (said[0], said[other])
    return images[:1], images[other : other + 1]


def by_hand(model, pair, patch):
    """The share that is restored where `patch(block, what, own, source)` decides what goes on, all written out."""
    with torch.no_grad():
        source, whole = run(model, pair[0], lambda *a: a[2])
        seen = dict(source)
        other = run(model, pair[1], lambda *a: a[2])[1]
        mixed = run(model, pair[1], lambda block, what, own: patch(block, what, own, seen.get((block, what))))[1]
    a, b = whole.argmax().item(), other.argmax().item()
    m, n, k = (float(x[0, a] - x[0, b]) for x in (mixed, other, whole))
    return (m - n) / (k - n)


def run(model, image, change):
    """A ViT block by block; `change` sees every tensor that can be patched."""
    seen = {}

    def at(block, what, value):
        value = change(block, what, value)
        seen[block, what] = value
        return value

    x = at(-1, "stream", model.sequence(model.stem(image)))
    for i, block in enumerate(model.blocks):
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in block.attn.qkv(block.norm1(x)).chunk(3, -1))
        heads = at(i, "heads", (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v)
        x = x + at(i, "attention", block.attn.out(heads.transpose(1, 2).flatten(2)))
        x = x + at(i, "mlp", block.mlp(block.norm2(x)))
        x = at(i, "stream", x)
    return seen, model.head(model.norm(x)[:, 0])


def test_nothing_restores_nothing_and_everything_all(found):
    np.testing.assert_allclose(found.controls[0, 0], 0, atol=1e-12)
    np.testing.assert_allclose(found.controls[0, 1], 1, rtol=1e-10)
    assert found.prefix[0, -1, 0] == pytest.approx(1)  # at the end the head reads the class token alone
    np.testing.assert_allclose(found.regions[0, -1], 0, atol=1e-12)


@pytest.mark.parametrize("block", [-1, 1])
def test_regions_and_the_class_token(model, pair, found, block):
    def corner(at, what, own, source):  # the upper right quarter of 4 x 4 patches
        cells = [1 + 4 * y + x for y in (0, 1) for x in (2, 3)]
        return own if (at, what) != (block, "stream") else own.index_copy(1, torch.tensor(cells), source[:, cells])

    def first(at, what, own, source):
        return own if (at, what) != (block, "stream") else torch.cat([source[:, :1], own[:, 1:]], 1)

    assert found.regions[0, block + 1, 0, 1] == pytest.approx(by_hand(model, pair, corner), abs=1e-10)
    assert found.prefix[0, block + 1, 0] == pytest.approx(by_hand(model, pair, first), abs=1e-10)


@pytest.mark.parametrize("block", [0, 2])
def test_branches_and_heads(model, pair, found, block):
    for i, kind in enumerate(("attention", "mlp")):
        want = by_hand(model, pair, lambda at, what, own, s, kind=kind: s if (at, what) == (block, kind) else own)
        assert found.branches[0, block, i] == pytest.approx(want, abs=1e-10)

    def second(at, what, own, source):
        return own if (at, what) != (block, "heads") else torch.stack([own[:, 0], source[:, 1]], 1)

    assert found.heads[0, block, 1] == pytest.approx(by_hand(model, pair, second), abs=1e-10)


def test_images_of_one_class_are_compared_by_the_logits_they_move_apart(model, images):
    with torch.no_grad():
        model_ = sl.build("vit-nano4", patch=8, classes=7, depth=3, heads=2).double()
        model_.load_state_dict(model.state_dict())
        model_.head.bias[3] = 1e4  # the same class for all
        apart = torch.diff(model(images[:2]), dim=0)[0]
    found = sl.analysis.activation_patching(model_, images[:2], cells=2)
    assert tuple(found.classes[0]) == (apart.argmin(), apart.argmax())
    np.testing.assert_allclose(found.controls[0, 1], 1, rtol=1e-6)


def test_the_runs_are_counted(found):
    assert found.passes == 4 * (2 + 1 + 4) + 3 * (2 + 2)
    assert f"{found.passes} patched runs" in found.caption


@pytest.mark.parametrize("name", ["timm", "torchvision", "hf", "timm-registers", "deit-distilled"])
def test_an_adopted_model_is_the_loaded_one(name):
    theirs = peers.fill(PEERS[name].make(), std=0.3).double().eval()
    adopted, ours = sl.adopt(theirs, sl.ImageSpec(size=(32, 32))), sl.load(theirs.state_dict(), **PEERS[name].hints)
    x = torch.randn(12, 3, 32, 32, dtype=torch.float64) * 3
    a, b = (sl.analysis.activation_patching(m, x, cells=2) for m in (adopted, ours))
    for field in ("regions", "prefix", "branches", "heads", "controls", "difference", "classes"):
        np.testing.assert_allclose(getattr(a, field), getattr(b, field), atol=1e-6)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in theirs.modules())


def test_attention_that_is_written_out_has_no_heads_to_replace():
    theirs = peers.fill(PEERS["timm"].make(), std=0.3).eval()
    for block in theirs.blocks:
        block.attn.fused_attn = False
    adopted = sl.adopt(theirs, sl.ImageSpec(size=(32, 32)))
    found = sl.analysis.activation_patching(adopted, torch.randn(12, 3, 32, 32) * 3, cells=2)
    assert found.heads.shape == (1, 2, 0)
    assert "writes its attention out" in found.how["heads"]
    np.testing.assert_allclose(found.controls[0, 1], 1, rtol=1e-4)


@pytest.mark.parametrize("name", ["ours", "torchvision"])
def test_cnns(name):
    model = peers.fill(sl.build("bit-nano", classes=7), std=0.1)
    if name == "torchvision":
        net = peers.torchvision.models.resnet18(num_classes=7)
        model = sl.adopt(net.eval(), image=sl.ImageSpec(size=(64, 64)))
    x = torch.randn(16, 3, *model.image.size)
    found = sl.analysis.activation_patching(model, x, cells=2)
    assert found.kinds == ("convolution",)
    assert found.heads.shape[2] == 0
    np.testing.assert_allclose(found.controls[0], [[0] * len(found.places), [1] * len(found.places)], atol=1e-3)
    assert np.isfinite(found.branches).all()
    assert found.regions.shape == (1, len(found.places), 2, 2)
    assert found.regions[0, -1].sum() == pytest.approx(1, abs=1e-3) or name == "ours"  # mean and linear head


def test_what_cannot_be_patched_is_told(model, images):
    same = images[:1].expand(4, -1, -1, -1)
    with pytest.raises(ValueError, match="4 images make 0 of 1 pairs"):
        sl.analysis.activation_patching(model, same)
    with pytest.raises(ValueError, match="5 images make 1 of 3 pairs"):
        sl.analysis.activation_patching(model, torch.cat([same, images[2:3]]), pairs=3)
    with pytest.raises(ValueError, match="cells is a whole number"):
        sl.analysis.activation_patching(model, images, cells=0)
    with pytest.raises(ValueError, match="has no classes"):
        sl.analysis.activation_patching(sl.build("vit-nano4", classes=0), images)
