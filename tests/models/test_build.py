"""Building: seeds, devices, recomputation, other sizes."""

import pytest
import torch

import sightline as sl
from tests.peers import fill

FAMILIES = ["vit-nano4", "bit-nano", "r8-vit-nano4"]


def image(batch=2, size=32):
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_seed_gives_the_same_model_and_leaves_the_global_stream_alone(name):
    before = torch.get_rng_state()
    a, b, c = sl.build(name, seed=1), sl.build(name, seed=1), sl.build(name, seed=2)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values()))
    assert not all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), c.state_dict().values()))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_value_is_set(name):
    """Memory that initialize forgets would hold whatever lay there."""
    model = sl.build(name)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(float("nan"))
    model.initialize(torch.Generator().manual_seed(0))
    expected = sl.build(name).state_dict()
    assert all(torch.equal(v, expected[k]) for k, v in model.state_dict().items())


def test_the_largest_models_build_without_memory():
    for name in ("vit-G14", "vit-h14", "bit-r152x4", "r50-vit-l16"):
        model = sl.build(name, device="meta")
        assert all(p.is_meta for p in model.parameters())
    with torch.device("meta"):
        assert sl.build("vit-h14").head.weight.is_meta


@pytest.mark.parametrize("name", FAMILIES)
def test_features_speak_one_language(name):
    out = fill(sl.build(name, classes=10)).eval().features(image())
    b, n, d = out.tokens.shape
    assert n == out.grid[0] * out.grid[1]
    assert (out.pooled.shape, out.prefix.shape[0], out.prefix.shape[2]) == ((b, d), b, d)
    assert sl.build(name).image.size == (32, 32)


@pytest.mark.parametrize("name", FAMILIES)
def test_recomputing_activations_changes_nothing_but_memory(name):
    grads, logits = [], []
    for recompute in (False, True):
        model = fill(sl.build(name, classes=10, checkpointing=recompute)).train()
        y = model(image())
        y.square().sum().backward()
        logits.append(y)
        grads.append([p.grad for p in model.parameters()])
    assert torch.equal(*logits)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*grads))


def test_resize_keeps_what_it_should():
    model = fill(sl.build("vit-nano4", classes=10)).eval()
    model.checkpointing = True
    new = sl.models.resize(model, size=64)
    assert (new.config.size, new.image.size, new.training, new.checkpointing) == ((64, 64), (64, 64), False, True)
    assert torch.equal(new.head.weight, model.head.weight)
    new.head.weight.data.zero_()
    assert model.head.weight.abs().sum() > 0  # a copy, not a view


def test_resizing_there_and_back_keeps_the_corners():
    model = fill(sl.build("vit-nano4", classes=10))
    back = sl.models.resize(sl.models.resize(model, size=120), size=32)
    a, b = (m.positions[0].table[1:].unflatten(0, (8, 8))[::7, ::7] for m in (model, back))
    torch.testing.assert_close(a, b)


def test_a_resized_patch_embeds_a_resized_image_alike():
    """FlexiViT's law: enlarging patch and image alike leaves the embedding as it was."""
    model = fill(sl.build("vit-ti16", classes=2)).double()
    x = torch.rand(1, 3, 224, 224, dtype=torch.float64)
    larger = sl.models.resize(model, size=448, patch=32)
    patches = x.unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
    grown = torch.nn.functional.interpolate(patches, size=(32, 32), mode="bicubic", antialias=True)
    grown = grown.unflatten(0, (1, 14, 14)).permute(0, 3, 1, 4, 2, 5).reshape(1, 3, 448, 448)
    torch.testing.assert_close(larger.embed(grown), model.embed(x), atol=1e-9, rtol=0)
    assert torch.equal(larger.positions[0].table, model.positions[0].table)


def test_bit_and_hybrids_refuse_a_patch_and_take_a_size():
    with pytest.raises(ValueError, match="size"):
        sl.models.resize(sl.build("bit-nano"), patch=8)
    assert sl.models.resize(sl.build("bit-nano"), size=48).image.size == (48, 48)
    hybrid = sl.models.resize(fill(sl.build("r8-vit-nano4")), size=(48, 32))
    assert hybrid.config.grid == (12, 8)
    assert hybrid(torch.zeros(1, 3, 48, 32)).isfinite().all()


def test_derived_fields_follow_a_change():
    settings = sl.build(sl.models.config("vit-nano4"), pool="gap", device="meta").config
    assert (settings.class_token, settings.position_rows) == (False, 0)
    kept = sl.build(sl.models.config("vit-nano4", pool="gap", class_token=True), size=64, device="meta").config
    assert (kept.class_token, kept.position_rows) == (True, 1)
