"""Anatomy lists what can be recorded, in the order in which it is computed."""

import pytest
import torch

import sightline as sl
from tests.peers import fill

MODELS = {
    "vit": lambda: sl.build("vit-nano4", classes=10),
    "post-norm": lambda: sl.build("vit-nano4", classes=10, norm_at="post"),
    "gap": lambda: sl.build("vit-nano4", classes=0, pool="gap", final_norm="pooled"),
    "registers": lambda: sl.build("vit-nano4", registers=3, distill_token=True),
    "bit": lambda: sl.build("bit-micro", classes=10),
    "hybrid": lambda: sl.build("r14-vit-micro8", classes=10),
    "mixer": lambda: sl.build("mixer-nano4", classes=10),
    "axial": lambda: sl.build("vit-nano4", classes=10, depth=2, attention="axial"),
}


@pytest.mark.parametrize("name", MODELS)
def test_parts_are_recordable_in_order_and_laid_out_as_said(name):
    model, order = fill(MODELS[name]()).eval(), []
    parts = sl.anatomy(model)
    paths = [p.path for p in parts]
    assert len(set(paths)) == len(paths)
    with sl.record(model, *paths, keep=lambda path, t: order.append(path) or t) as tape:
        model(torch.randn(2, 3, 32, 32))
    assert order == paths
    axes = {"tokens": 3, "channels": 3, "map": 4, "heads": 4, "probs": 4, "vector": 2}
    for part in parts:
        assert tape[part.path].ndim == axes[part.layout]
        if part.layout == "probs":
            torch.testing.assert_close(tape[part.path].sum(-1), torch.ones(tape[part.path].shape[:-1]))


@pytest.mark.parametrize("name", MODELS)
def test_sums_name_what_was_added(name):
    model = fill(MODELS[name]()).eval()
    sums = [p for p in sl.anatomy(model) if p.kind == "sum"]
    assert sums
    with sl.record(model, *(q for p in sums for q in (p.path, p.skip, p.branch))) as tape:
        model(torch.randn(2, 3, 32, 32))
    for p in sums:
        torch.testing.assert_close(tape[p.path], tape[p.skip] + tape[p.branch])


def test_blocks_and_stages_are_counted_through():
    blocks = [p.block for p in sl.anatomy(sl.build("r14-vit-micro8")) if p.kind == "sum"]
    assert blocks == [0, 1, 2, 3, *(i for i in range(4, 10) for _ in range(2))]
    stages = [p.stage for p in sl.anatomy(sl.build("bit-r50x1", device="meta")) if p.kind == "sum"]
    assert stages == [0] * 3 + [1] * 4 + [2] * 6 + [3] * 3


def test_about_as_many_layers_as_the_paper_counts():
    """Raghu et al. count just over 70 layers in B/32 and over 120 in R50: ours are close, by a list of our own."""
    kinds = ("norm", "branch", "sum", "hidden", "embed", "input")
    parts = sl.anatomy(sl.build("vit-b32", device="meta"))
    vit = [p for p in parts if p.kind in kinds and (p.kind, p.sublayer) != ("branch", "mlp")]
    assert 70 < len(vit) <= 80
    cnn = [p for p in sl.anatomy(sl.build("bit-r50x1", device="meta")) if p.kind != "logits"]
    assert 110 < len(cnn) <= 135


def test_a_strange_module_is_refused_with_advice():
    with pytest.raises(ValueError, match="adopt"):
        sl.anatomy(torch.nn.Linear(2, 2))
