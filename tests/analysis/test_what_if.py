"""Switching parts off equals building the model without them, and leaves nothing behind; head subsets."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sightline as sl
from sightline.observe.model import evaluation_mode, observe
from sightline.observe.switches import switch_off
from tests import peers
from tests.analysis.test_attention import hf_model, timm_model, torchvision_model


@pytest.fixture(scope="module")
def vit():
    return peers.fill(sl.build("vit-nano4", classes=10, depth=3), std=0.1)


@pytest.fixture(scope="module")
def images():
    return torch.rand(5, 3, 32, 32)


def without(model, text, images):
    s = observe(model)
    with evaluation_mode(s), switch_off(s, *(text if isinstance(text, list) else [text])):
        return s.model(images)


def test_a_skip_switched_off_is_a_model_built_without_it(vit, images):
    built = sl.build("vit-nano4", classes=10, depth=3, no_skip=(1,))
    built.load_state_dict(vit.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(without(vit, "skip 1", images), built(images))


def test_a_block_switched_off_is_a_model_without_it(vit, images):
    built = sl.build("vit-nano4", classes=10, depth=2)
    state = {k: v for k, v in vit.state_dict().items() if not k.startswith("blocks.1.")}
    built.load_state_dict({k.replace("blocks.2.", "blocks.1."): v for k, v in state.items()})
    with torch.no_grad():
        torch.testing.assert_close(without(vit, "block 1", images), built(images))


def test_a_head_switched_off_is_a_model_whose_weights_are_zero_there(vit, images):
    built = sl.build("vit-nano4", classes=10, depth=3)
    built.load_state_dict(vit.state_dict())
    with torch.no_grad():
        built.blocks[2].attn.out.weight[:, 16:32] = 0  # head 1, 16 wide
        torch.testing.assert_close(without(vit, "head 2.1", images), built(images))


def test_a_token_switched_off_is_never_seen(vit, images):
    other = images.clone()
    other[:, :, 4:8, 8:12] = 7.0  # patch 10
    torch.testing.assert_close(without(vit, "token 10", images), without(vit, "token 10", other))
    assert not torch.allclose(without(vit, "token 11", images), without(vit, "token 11", other))


def test_attention_or_mlp_switched_off_is_a_branch_of_zeros(vit, images):
    for text, layer in (("attention 1", "attn.out"), ("mlp 1", "mlp.fc2")):
        built = sl.build("vit-nano4", classes=10, depth=3)
        built.load_state_dict(vit.state_dict())
        out = built.blocks[1].get_submodule(layer)
        with torch.no_grad():
            out.weight.zero_()
            out.bias.zero_()
            torch.testing.assert_close(without(vit, text, images), built(images))


def test_a_class_token_switched_off_has_learned_nothing(vit, images):
    built = sl.build("vit-nano4", classes=10, depth=3)
    built.load_state_dict(vit.state_dict())
    place, empty = built.blocks[0], without(vit, "prefix 0", images)
    place.register_forward_pre_hook(lambda m, args: (torch.cat([0 * args[0][:, :1], args[0][:, 1:]], 1), *args[1:]))
    with torch.no_grad():
        torch.testing.assert_close(empty, built(images))
    assert not torch.allclose(empty, without(vit, [], images))


def test_several_at_once(vit, images):
    """In any order: taking one token out must not shift which the next one is."""
    both = without(vit, ["token 10", "head 2.1", "token 3"], images)
    torch.testing.assert_close(both, without(vit, ["token 3", "token 10", "head 2.1"], images))
    other = images.clone()
    other[:, :, 4:8, 8:12] = 7.0  # patch 10
    other[:, :, 0:4, 12:16] = 7.0  # patch 3
    torch.testing.assert_close(both, without(vit, ["token 3", "token 10", "head 2.1"], other))


def test_a_residual_unit_switched_off_adds_nothing(images):
    cnn = peers.fill(sl.build("bit-nano", classes=10), std=0.1)
    unit = [p for p in sl.anatomy(cnn) if p.kind == "sum"][1]
    with sl.record(cnn, unit.path, unit.skip) as tape, switch_off(cnn, "block 1"):
        off = cnn(images)
    torch.testing.assert_close(tape[unit.path], tape[unit.skip])
    assert not torch.allclose(off, cnn(images))
    found = sl.what_if(cnn, images, "block 1")
    assert found.off == ("block 1",)


@pytest.mark.parametrize("make", [timm_model, hf_model, torchvision_model])
def test_other_libraries(make, images):
    theirs = peers.fill(make(), std=0.1).eval()
    adopted = sl.adopt(theirs, image=sl.ImageSpec(size=(32, 32)))
    ours = sl.load(theirs.state_dict() | {}, size=32, heads=adopted.config.heads)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), adopted(images), atol=1e-5, rtol=1e-4)
    for text in ("block 1", "skip 2", "head 0.2", "token 3", "attention 1", "mlp 0", "prefix 0"):
        torch.testing.assert_close(without(adopted, text, images), without(ours, text, images), atol=1e-4, rtol=1e-3)


def test_the_study(vit):
    data = sl.dataset("scenes/shape", num=40, size=32)
    off = ["block 1", "skip 2", "head 2.0", "token 9"]
    found = sl.what_if(vit, data, off, batch=18)
    whole = torch.cat([vit(x).argmax(1) for x, _ in data.batches(vit.image, batch=40)])
    assert found.whole == pytest.approx((whole.numpy() == data.labels).mean())
    np.testing.assert_allclose(found.similarity[:3, 0], 1, atol=1e-6)  # nothing happened yet in block 0
    assert np.isnan(found.similarity[0, 1])  # a block that is off has no output of its own
    assert found.similarity[0, 2] < 0.999
    assert found.similarity[1, 2] < 0.999
    assert ((found.agreement >= 0) & (found.agreement <= 1)).all()
    unlabeled = sl.what_if(vit, torch.rand(6, 3, 32, 32), "head 0.0")
    assert np.isnan(unlabeled.whole)
    assert np.isfinite(unlabeled.agreement).all()


def test_nothing_stays_behind(vit, images):
    fused = F.scaled_dot_product_attention
    s = observe(sl.adopt(timm_model(), image=sl.ImageSpec(size=(32, 32))))
    for text in ("block 0", "skip 0", "head 0.0", "token 0"):
        with pytest.raises(RuntimeError, match="stop"), switch_off(s, text):
            raise RuntimeError("stop")
    assert F.scaled_dot_product_attention is fused
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in s.model.modules())
    before = vit(images)
    sl.what_if(vit, images, ["skip 1", "block 0", "head 0.0"])
    assert torch.equal(vit(images), before)


@pytest.mark.parametrize("off", ["block", "block 3", "head 0", "head 0.4", "token 64", "prefix 1", "everything", "", 3])
def test_errors(vit, images, off):
    with pytest.raises(ValueError, match=r"block 3|has |Nothing"):
        sl.what_if(vit, images, [off] if off else [])
    with pytest.raises(ValueError, match="not a Transformer"):
        sl.what_if(sl.build("bit-nano"), images, "head 0.0")


def test_head_subsets():
    vit, cnn = peers.fill(sl.build("vit-nano4", classes=0), std=0.2), sl.build("bit-nano", classes=0)
    data = sl.dataset("scenes/objects", num=48, size=32)
    found = sl.analysis.head_subsets(vit, cnn, data, size=2, block=1, batch=48)
    assert found.subsets[0] == tuple(sorted(np.argsort(sl.attention_distance(vit, data).pixels[1])[:2].tolist()))
    images = next(iter(data.batches(vit.image, batch=48)))[0]
    with torch.no_grad(), sl.record(vit, "blocks.1.attn.per_head") as a, sl.record(cnn, found.columns[0]) as b:
        vit(images), cnn(images)
    heads = a["blocks.1.attn.per_head"][:, list(found.subsets[2])]
    assert found.similarity[2, 0] == pytest.approx(sl.analysis.linear_cka(heads, b[found.columns[0]]), abs=1e-4)
    assert (np.diff(found.distance) >= 0).all()
    assert found.places == tuple((b, h) for b in (0, 1) for h in range(4))  # single heads of the two lowest blocks
    last = a["blocks.1.attn.per_head"][:, 3]
    assert found.heads[7, 0] == pytest.approx(sl.analysis.linear_cka(last, b[found.columns[0]]), abs=1e-4)
    assert found.head_distance[7] == pytest.approx(sl.attention_distance(vit, data).pixels[1, 3])
    assert found.head_replicates.shape == (20, 8, 2)
    whole = sl.analysis.head_subsets(vit, cnn, data, size=4, batch=48, layers="blocks")
    assert whole.similarity.shape == (1, 3)
    with pytest.raises(ValueError, match="1 to 4 heads"):
        sl.analysis.head_subsets(vit, cnn, data, size=5)
    with pytest.raises(ValueError, match="no stages"):
        sl.analysis.head_subsets(vit, vit, data)
    timm = sl.adopt(timm_model(), image=sl.ImageSpec(size=(32, 32)))
    resnet = sl.adopt(peers.torchvision.models.resnet18(num_classes=5), image=sl.ImageSpec(size=(32, 32)))
    assert sl.analysis.head_subsets(timm, resnet, data, batch=48).similarity.shape == (3, 4)


def test_classes_are_matched_by_number_and_not_by_place(vit):
    """A dataset of a few of the model's classes, called by their numbers, counts them 0, 1, 2 ... by itself."""
    data = sl.dataset("scenes/shape", num=60, size=32)
    said = torch.cat([vit(x).argmax(1) for x, _ in data.batches(vit.image, batch=60)])
    images = np.concatenate([x.permute(0, 2, 3, 1).numpy() for x, _ in data.batches(vit.image, batch=60, device=None)])
    names = sorted({str(int(i)) for i in said}, key=int)
    labels = np.array([names.index(str(int(i))) for i in said])
    some = sl.data.Arrays(images, labels, classes=names)
    assert sl.what_if(vit, some, "token 9").whole == 1
    other = sl.data.Arrays(images, labels, classes=[f"no such class {n}" for n in names])
    assert np.isnan(sl.what_if(vit, other, "token 9").whole)


def test_blocks_before_the_part_are_not_computed_again(vit, images):
    calls = []
    handles = [b.attn.register_forward_hook(lambda m, a, out, i=i: calls.append(i)) for i, b in enumerate(vit.blocks)]
    found = sl.what_if(vit, images, ["block 2", "head 1.0"])
    for handle in handles:
        handle.remove()
    assert [calls.count(i) for i in range(3)] == [2, 3, 4]  # one is the blank image that tells the grid
    one = [sl.what_if(vit, images, name) for name in ("block 2", "head 1.0")]
    assert np.array_equal(found.similarity, np.concatenate([o.similarity for o in one]), equal_nan=True)
    assert "forward" not in vars(vit.blocks[0])
