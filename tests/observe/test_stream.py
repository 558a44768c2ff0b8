"""The residual stream read, rewritten and skipped; nothing stays behind."""

import pytest
import torch

import sightline as sl
from sightline.observe.model import evaluation_mode, observe
from sightline.observe.stream import residual_stream, rewriting, skipping, watching
from tests import peers
from tests.weights.makers import PEERS


def models():
    yield "ours", lambda: peers.fill(sl.build("vit-nano4", patch=8, classes=5, depth=2), std=0.2).double()
    yield "post-norm", lambda: peers.fill(sl.build("vit-nano4", patch=8, classes=5, norm_at="post"), std=0.2).double()
    for name in ("timm", "hf", "torchvision"):
        yield name, lambda name=name: sl.adopt(PEERS[name].ready(), sl.ImageSpec(size=(32, 32)))


@pytest.mark.parametrize("make", [make for _, make in models()], ids=[name for name, _ in models()])
def test_every_place_holds_all_that_comes_after_it(make):
    """What stands at one place in another image's run gives that image's answer, wherever it is put in."""
    s = observe(make())
    a, b = torch.randn(2, 1, 3, 32, 32, dtype=torch.float64)
    seen = {}
    with evaluation_mode(s):
        with watching(residual_stream(s), seen.__setitem__):
            want = s.model(a)
        before = s.model(b)
        for i, place in enumerate(residual_stream(s)):
            with rewriting(place, lambda x, i=i: seen[i]):
                torch.testing.assert_close(s.model(b), want)
        torch.testing.assert_close(s.model(b), before)
    assert not torch.allclose(before, want)


def test_blocks_that_are_skipped_put_out_what_they_did():
    s = observe(sl.adopt(PEERS["timm"].ready(), sl.ImageSpec(size=(32, 32))))
    x, other = torch.randn(2, 1, 3, 32, 32, dtype=torch.float64)
    seen = {}
    own = s.attention_blocks[0].forward
    s.attention_blocks[0].forward = own  # one that has a forward of its own
    with evaluation_mode(s):
        with watching(residual_stream(s)[1:], seen.__setitem__):
            want = s.model(x)
        with skipping(s.attention_blocks, [seen[0], seen[1]]):
            torch.testing.assert_close(s.model(other.expand(3, -1, -1, -1)), want.expand(3, -1))
    assert s.attention_blocks[0].__dict__["forward"] == own
    assert "forward" not in s.attention_blocks[1].__dict__
