"""The logit lens: norm and head of every family at every token, against float64 by hand; what it refuses."""

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.observe.model import observe
from sightline.observe.readout import readout
from tests import peers
from tests.weights.makers import PEERS


def by_hand(model, x, tokens):
    """softmax(head(norm(token))) of a class-token model of ours, in NumPy."""
    norm, head = model.norm, model.head
    y = tokens.detach().numpy()
    y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + norm.eps)
    y = y * norm.weight.detach().numpy() + norm.bias.detach().numpy()
    logits = y @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    return odds / odds.sum(-1, keepdims=True)


def test_every_token_at_every_place_is_norm_and_head():
    model = peers.fill(sl.build("vit-nano4", patch=8, classes=7, depth=2), std=0.2).double()
    x = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    found = sl.analysis.logit_lens(model, x, n=None, batch=2)
    paths = ["encoder_input", "blocks.0.mlp_sum", "blocks.1.mlp_sum"]
    with torch.no_grad(), sl.record(model, *paths) as tape:
        logits = model(x)
    said = logits.argmax(1).numpy()
    np.testing.assert_array_equal(found.targets, said)
    for i, path in enumerate(paths):
        want = by_hand(model, x, tape[path])
        own = want[np.arange(3), :, said]
        np.testing.assert_allclose(found.probability[:, i], own, rtol=1e-6)
        np.testing.assert_array_equal(found.top[:, i], want.argmax(-1))
        np.testing.assert_allclose(found.top_probability[:, i], want.max(-1), rtol=1e-6)
        np.testing.assert_array_equal(found.rank[:, i], (want > own[..., None]).sum(-1))
    np.testing.assert_allclose(found.answer[:, -1], logits.softmax(1).max(1).values, rtol=1e-6)
    assert (found.agrees[:, -1] == 1).all()
    assert found.places == ("input", "block 0", "block 1")
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_the_class_that_is_followed_can_be_given():
    model = peers.fill(sl.build("vit-nano4", patch=8, classes=7, depth=2), std=0.2)
    x = torch.randn(2, 3, 32, 32)
    found = sl.analysis.logit_lens(model, x, targets=[6, 0])
    with torch.no_grad():
        want = model(x).softmax(1)
    np.testing.assert_allclose(found.answer[:, -1], [want[0, 6], want[1, 0]], rtol=1e-5)
    for wrong, why in (([6], "One target per image"), ([6, 7], "classes 0 to 6"), ([1, 2, 3], "One target per image")):
        with pytest.raises(ValueError, match=why):
            sl.analysis.logit_lens(model, x, targets=wrong)


OURS = {
    "gap": {"pool": "gap"},
    "map": {"pool": "map"},
    "gap, late norm": {"pool": "gap", "final_norm": "pooled"},
    "pre-logits": {"head": "mlp"},
    "post-norm": {"norm_at": "post"},
    "distilled": {"distill_token": True},
    "registers": {"registers": 2},
}


@pytest.mark.parametrize("name", OURS)
def test_the_end_of_our_own_models_gives_their_answer(name):
    model = peers.fill(sl.build("vit-nano4", patch=8, classes=7, depth=2, **OURS[name]), std=0.2)
    found = sl.analysis.logit_lens(model, x := torch.randn(2, 3, 32, 32))
    with torch.no_grad():
        np.testing.assert_allclose(found.answer[:, -1], model(x).softmax(1).max(1).values, rtol=1e-4)


@pytest.mark.parametrize(
    "name", ["timm", "timm-gap", "timm-registers", "deit-distilled", "torchvision-pre-logits", "hf"]
)
def test_an_adopted_model_says_what_the_loaded_one_says(name):
    theirs = PEERS[name].ready()
    adopted = sl.adopt(theirs, sl.ImageSpec(size=(32, 32)))
    ours = sl.load(theirs.state_dict(), **PEERS[name].hints)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    a, b = (sl.analysis.logit_lens(m, x) for m in (adopted, ours))
    assert a.places == b.places
    for field in ("probability", "rank", "top", "answer"):
        np.testing.assert_allclose(getattr(a, field), getattr(b, field), rtol=1e-5)


def test_a_cnn_is_read_where_its_head_fits():
    """Units of the last stage; the mean of a linear head's logits over locations is the answer."""
    model = peers.fill(sl.build("bit-nano", classes=7), std=0.1).double()
    s = observe(model)
    reads = readout(s)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    found = sl.analysis.logit_lens(s, x)
    last = [p.path for p in s.block_outputs if p.stage == s.block_outputs[-1].stage]
    assert list(found.places) == last
    assert found.probability.shape[2] == s.grid[0] * s.grid[1]
    with torch.no_grad(), sl.record(model, last[-1]) as tape:
        logits = model(x)
        torch.testing.assert_close(reads.scores(reads.tokens(tape[last[-1]])).mean(1), logits)
    resnet = sl.adopt(peers.torchvision.models.resnet18(num_classes=5).eval(), image=sl.ImageSpec(size=(64, 64)))
    assert sl.analysis.logit_lens(resnet, torch.randn(1, 3, 64, 64)).probability.shape == (1, 2, 4)


def test_what_cannot_be_read_is_told():
    with pytest.raises(ValueError, match="has no classes"):
        sl.analysis.logit_lens(sl.build("vit-nano4", classes=0), torch.randn(1, 3, 32, 32))
    theirs = sl.adopt(PEERS["timm-map"].ready(), sl.ImageSpec(size=(32, 32)))
    with pytest.raises(ValueError, match="does not read single tokens"):
        sl.analysis.logit_lens(theirs, torch.randn(1, 3, 32, 32, dtype=torch.float64))


def test_when_the_class_is_settled():
    p = np.full((2, 4, 1), 0.5, np.float32)
    agrees = np.array([[1.0, 0, 1, 1], [1, 1, 1, 0]])
    r = sl.analysis.LogitLens(
        title="", caption="", places=("a", "b", "c", "d"), targets=np.array([1, 2]), probability=p,
        rank=np.zeros_like(p, np.int32), top=np.zeros_like(p, np.int32), top_probability=p, answer=p[..., 0],
        agrees=agrees, images=np.zeros((2, 4, 4, 3), np.uint8), grid=(1, 1), prefix=0, classes=3, names={},
    )  # fmt: skip
    assert r.decided().tolist() == [2, -1]
