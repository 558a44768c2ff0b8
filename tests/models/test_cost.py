"""Cost against the published table (paper-facts 2.11, 3.1) and against what really happens."""

import gc
import itertools

import pytest
import torch

import sightline as sl

GMACS = [
    ("vit-ti16", 224, 1.254), ("vit-s32", 224, 1.143), ("vit-s16", 224, 4.599), ("vit-b32", 224, 4.409),
    ("vit-b32", 384, 13.044), ("vit-b16", 224, 17.564), ("vit-b16", 384, 55.484), ("vit-b8", 224, 78.148),
    ("vit-l32", 224, 15.378), ("vit-l32", 384, 45.276), ("vit-l16", 224, 61.555), ("vit-l16", 384, 191.066),
    ("vit-l16", 512, 361.986), ("vit-h14", 224, 167.295), ("vit-h14", 518, 1016.717),
    ("r-vit-ti16", 224, 0.434), ("r26-vit-s32", 224, 3.464), ("r26-vit-b32", 224, 6.711),
    ("r50-vit-b16", 224, 21.535), ("r50-vit-b16", 384, 67.156), ("r50-vit-l32", 224, 19.413),
    ("bit-r50x1", 224, 4.089), ("bit-r50x3", 224, 36.082), ("bit-r101x1", 224, 7.801), ("bit-r101x3", 224, 69.492),
    ("bit-r152x2", 224, 45.814), ("bit-r152x4", 224, 182.777), ("bit-r152x4", 480, 839.254),
]  # fmt: skip


@pytest.mark.parametrize(("name", "size", "gmacs"), GMACS)
def test_multiply_accumulates_are_the_published_ones(name, size, gmacs):
    assert sl.cost(name, size).gmacs == pytest.approx(gmacs, rel=0.005)


@pytest.mark.parametrize("name", ["vit-nano4", "vit-ti16", "bit-nano", "r8-vit-nano4"])
def test_activations_are_what_autograd_really_keeps(name):
    model = sl.build(name, classes=10).train()
    x = torch.randn(1, 3, *model.image.size)
    known = {p.untyped_storage().data_ptr() for p in [*model.parameters(), *model.buffers()]}
    kept = {}

    def pack(t):
        if t.untyped_storage().data_ptr() not in known:
            kept[t.untyped_storage().data_ptr()] = (t.untyped_storage().nbytes(), t)  # held, so that no address recurs
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = model.head(model.features(x).pooled)  # every token to the end
    assert sl.cost(model).activation_bytes == pytest.approx(sum(n for n, _ in kept.values()), rel=0.01)
    assert y.shape == (1, 10)


def test_cost_takes_names_configurations_and_any_module():
    by_name = sl.cost("vit-ti16", size=(224, 160))
    assert by_name == sl.cost(sl.models.config("vit-ti16", size=(224, 160)))
    assert by_name == sl.cost(sl.build("vit-ti16"), size=(224, 160))
    assert (by_name.size, by_name.tokens) == ((224, 160), 141)
    conv = torch.nn.Conv2d(3, 8, 3, padding=1)
    assert sl.cost(conv, size=10).macs == 10 * 10 * 8 * 27
    with pytest.raises(ValueError, match="size=224"):
        sl.cost(conv)


def test_costing_leaves_the_model_alone():
    model = sl.build("vit-nano4")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    sl.cost(model, size=64)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert model.config.size == (32, 32)


def test_attention_grows_with_the_square_of_the_tokens():
    rows = sl.models.attention_growth("vit-b16", patches=(1, 4, 16))
    assert [r["patches"] for r in rows] == [224**2, 56**2, 14**2]
    for a, b in itertools.pairwise(rows):
        assert a["attention_macs"] / b["attention_macs"] == (a["tokens"] / b["tokens"]) ** 2
        assert a["matrix_bytes"] / b["matrix_bytes"] == (a["tokens"] / b["tokens"]) ** 2
    assert sl.cost("vit-b16").attention_macs == rows[-1]["attention_macs"]
    with pytest.raises(ValueError, match="plain ViT"):
        sl.models.attention_growth("r50-vit-b16", patches=(16,))


def test_counting_keeps_no_tensor_alive():
    """A graph whose saved tensors are its own outputs would never be freed: megabytes for every training."""

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    sl.cost("vit-nano4", size=16)
    before = tensors()
    sl.cost("vit-nano4", size=16)
    assert tensors() == before
