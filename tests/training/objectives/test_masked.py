"""Masked patch prediction to the letter of the paper (E15), and masked autoencoders."""

import fnmatch
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from sightline.data.draws import Draws
from sightline.training.objectives.masked_patches import color_classes, draw_corruption
from sightline.training.objectives.patches import patch_pixels, shuffle_patches

TARGETS = ("color", "color-4x4", "pixels")
VARIANTS = {
    "plain": {},
    "gap": {"pool": "gap"},
    "registers": {"registers": 3},
    "distilled": {"distill_token": True},
    "2d at every layer": {"position": "2d", "position_at": "every"},
    "shared": {"position_at": "shared"},
    "waves": {"position": "sincos", "pool": "gap"},
    "no positions": {"position": "none"},
    "post-norm": {"norm_at": "post"},
    "norm behind the pool": {"pool": "gap", "final_norm": "pooled"},
    "map": {"pool": "map", "head": "mlp"},
}


def draws(count, start=0, key=7):
    return Draws(key, np.arange(start, start + count))


def make_images(count=4, size=16, seed=0):
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def vit(**changes):
    return sl.build("vit-nano4", **{"size": 16, "depth": 2, "classes": 5, **changes})


def shaken(objective, seed=1):
    """Random values in what starts at zero, or nothing would show."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in objective.parameters():
            p += 0.05 * torch.randn(p.shape, generator=random)
    return objective


@given(st.integers(4, 300), st.floats(0.05, 0.95), st.integers(0, 2**40))
def test_half_of_the_patches_80_10_10(patches, share, key):
    count = round(share * patches)
    c = draw_corruption(patches, share, Draws(key, np.arange(5)))
    assert c.patches.shape == (5, count)
    assert all(len(set(row)) == count for row in c.patches.tolist()), "no patch twice"
    assert (c.masked.shape[1], c.replaced.shape[1]) == (round(0.8 * count), round(0.1 * count))
    assert (c.by != c.replaced).all()
    assert ((c.by >= 0) & (c.by < patches)).all()


def test_the_papers_case():
    c = draw_corruption(196, 0.5, draws(3))
    assert [a.shape[1] for a in (c.masked, c.replaced, c.unchanged)] == [78, 10, 10]


def test_every_patch_is_as_likely_as_any_other():
    c = draw_corruption(16, 0.5, draws(4000))
    for chosen, share in ((c.masked, 6 / 16), (c.replaced, 1 / 16), (c.by, 1 / 16)):
        counts = np.bincount(chosen.ravel(), minlength=16) / 4000
        assert np.abs(counts - share).max() < 4.5 * math.sqrt(share * (1 - share) / 4000)


def test_a_image_is_corrupted_by_its_number_alone():
    whole, part = draw_corruption(64, 0.5, draws(6)), draw_corruption(64, 0.5, draws(2, start=3))
    for name in ("masked", "replaced", "by", "unchanged"):
        assert np.array_equal(getattr(whole, name)[3:5], getattr(part, name))


def test_colors_are_three_bits_a_channel_red_first():
    color = torch.tensor([[0.0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0.124, 0.126, 0.5]])
    flat = color[:, :, None, None].expand(-1, -1, 4, 4)
    assert color_classes(flat)[:, 0].tolist() == [0, 511, 448, 56, 7, 0 * 64 + 1 * 8 + 4]
    assert (color_classes(flat, 4) == color_classes(flat)).all()


@pytest.mark.parametrize("size", [4, 8, 14, 16])
def test_sixteen_pieces_of_a_patch_in_raster_order(size):
    patch = torch.zeros(1, 3, size, size)
    patch[:, :, : -(-size // 4), -(-size // 4) :] = 1.0
    patch[:, :, : size // 4, 3 * size // 4 :] = 1.0
    got = color_classes(patch, 4)
    assert got.shape == (1, 16)
    assert got[0, 3] == 511
    assert got[0, 12] == 0


@given(st.integers(0, 1000))
def test_colors_lie_in_0_to_511(seed):
    wild = torch.randn(3, 2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    for parts, labels in ((1, 1), (4, 16)):
        classes = color_classes(wild, parts)
        assert classes.shape == (3, 2, labels)
        assert 0 <= classes.min() <= classes.max() <= 511


def test_targets_undo_the_models_own_normalization():
    model = vit()
    model.image = sl.ImageSpec(size=(16, 16), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    colors = torch.tensor([0.9, 0.3, 0.55])[None, :, None, None].expand(1, 3, 16, 16)
    mean, std = (torch.tensor(v)[:, None, None] for v in (model.image.mean, model.image.std))
    got = sl.training.MaskedPatches(model).targets((colors - mean) / std)
    assert set(got.ravel().tolist()) == {7 * 64 + 2 * 8 + 4}


@pytest.mark.parametrize(("target", "outputs"), [("color", 512), ("color-4x4", 16 * 512), ("pixels", 256 * 3)])
def test_outputs_of_the_three_targets(target, outputs):
    objective = sl.training.MaskedPatches(sl.build("vit-ti16", device="meta"), target=target)
    assert objective.predictor.out_features == outputs


@pytest.mark.parametrize("target", ["color", "color-4x4"])
def test_the_first_loss_is_ln_512(target):
    loss = sl.training.MaskedPatches(vit(), target=target)(make_images(), None, draws(4))
    assert loss.item() == pytest.approx(math.log(512), abs=2e-5)  # 1.5e-6 in float32 on some CPUs


def test_the_first_pixel_loss_is_the_mean_square_of_the_corrupted_patches():
    images = make_images()
    at = draw_corruption(16, 0.5, draws(4)).patches
    patches = patch_pixels(images, (4, 4))[np.arange(4)[:, None], at]
    loss = sl.training.MaskedPatches(vit(), target="pixels")(images, None, draws(4))
    assert loss.item() == pytest.approx(patches.square().mean().item(), rel=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_the_loss_comes_from_corrupted_patches_alone(target):
    objective = shaken(sl.training.MaskedPatches(vit(), target=target))
    tokens = objective.encode(objective.model.stem(make_images())).detach().requires_grad_()
    objective.encode = lambda patches: tokens
    (slope,) = torch.autograd.grad(objective(make_images(), None, draws(4)), tokens)
    touched = [set(row.nonzero()[:, 0].tolist()) for row in slope.abs().sum(-1)]
    assert touched == [set(row) for row in draw_corruption(16, 0.5, draws(4)).patches.tolist()]


def test_each_corruption_does_what_it_says():
    objective = shaken(sl.training.MaskedPatches(vit()))
    patches, c = torch.randn(3, 16, 64), draw_corruption(16, 0.5, draws(3))
    out = objective.corrupt_patches(patches, c)
    for b in range(3):
        assert torch.equal(out[b, c.masked[b]], objective.mask_token.expand(len(c.masked[b]), -1))
        assert torch.equal(out[b, c.replaced[b]], patches[b, c.by[b]])
        rest = sorted(set(range(16)) - set(c.masked[b]) - set(c.replaced[b]))
        assert torch.equal(out[b, rest], patches[b, rest])


def objectives(model):
    yield from (sl.training.MaskedPatches(model, target=target) for target in TARGETS)
    yield sl.training.MAE(model, decoder=(16, 1))


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_every_kind_of_vit_and_no_dependence_on_micro_batches(changes):
    images = make_images()
    for objective in objectives(vit(**changes)):
        shaken(objective)
        whole = objective(images, None, draws(4))
        halves = [objective(images[i : i + 2], None, draws(2, start=i)) for i in (0, 2)]
        assert whole.item() == pytest.approx(sum(h.item() for h in halves) / 2, rel=1e-5)
        whole.backward()
        without = {n for n, p in objective.named_parameters() if p.grad is None}
        assert without == {f"model.{n}" for n, _ in objective.model.named_parameters() if _matches(n, objective.unused)}
        assert all(
            fnmatch.filter([n for n, _ in objective.model.named_parameters()], glob) for glob in objective.unused
        )


def _matches(name, globs):
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def test_relative_positions_go_with_masks_and_not_with_mae():
    model = vit(position="relative")
    assert shaken(sl.training.MaskedPatches(model))(make_images(), None, draws(4)).isfinite()
    with pytest.raises(ValueError, match="relative positions"):
        sl.training.MAE(model)


@pytest.mark.parametrize("target", TARGETS)
def test_a_hybrid_predicts_the_pixels_of_its_cells(target):
    objective = shaken(sl.training.MaskedPatches(sl.build("r8-vit-nano4", size=16, depth=1, classes=5), target=target))
    images = make_images()
    expected = objective.targets(images)
    assert expected.shape[:2] == (4, 16)
    if target == "pixels":
        assert torch.equal(expected[:, 5], images[:, :, 4:8, 4:8].flatten(1))
    assert objective(images, None, draws(4)).isfinite()


def test_the_same_draws_give_the_same_loss_and_others_do_not():
    for objective in objectives(vit()):
        shaken(objective)
        before = torch.get_rng_state()
        losses = [objective(make_images(), None, draws(4, key=key)).item() for key in (1, 1, 2)]
        assert losses[0] == losses[1] != losses[2]
        assert torch.equal(before, torch.get_rng_state()), "torch's random stream is left alone"


def test_seeds_decide_what_is_added():
    for made in (sl.training.MaskedPatches, sl.training.MAE):
        one, same, other = (made(vit(), seed=s).state_dict() for s in (0, 0, 1))
        assert all(torch.equal(one[k], same[k]) for k in one)
        assert any(not torch.equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize("number", range(4))
def test_a_few_steps_reduce_the_loss(number):
    objective = list(objectives(vit()))[number]
    images = torch.nn.functional.interpolate(make_images(32, size=2), size=16, mode="bilinear")
    optimizer = torch.optim.AdamW(objective.parameters(), 3e-3)
    losses = []
    for step in range(25):
        loss = objective(images, None, draws(32, key=step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-3:]) < 0.93 * losses[0]


def test_the_model_inside_is_the_model_itself():
    for made in (sl.training.MaskedPatches, sl.training.MAE):
        model = vit()
        before = {k: v.clone() for k, v in model.state_dict().items()}
        objective = made(model)
        assert objective.model is model
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
        names = [n.removeprefix("model.") for n, _ in objective.named_parameters()]
        assert len(names) == len(set(names)), "names stay apart when the wrapping is taken off"


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_the_encoder_of_mae_never_sees_what_is_hidden(changes):
    objective = shaken(sl.training.MAE(vit(**changes), decoder=(16, 1)))
    images, seen = make_images(), torch.from_numpy(objective.visible(draws(4)))
    assert seen.shape == (4, 4)
    other = patch_pixels(make_images(seed=5), (4, 4))
    mixed = patch_pixels(images, (4, 4)).clone()
    for b in range(4):
        hidden = sorted(set(range(16)) - set(seen[b].tolist()))
        mixed[b, hidden] = other[b, hidden]
    changed = mixed.unflatten(1, (4, 4)).permute(0, 3, 1, 4, 2, 5).reshape(4, 3, 16, 16)
    assert not torch.equal(changed, images)
    assert torch.equal(objective.encode(images, seen), objective.encode(changed, seen))


def test_mae_with_everything_in_view_is_the_encoder_itself():
    for changes in VARIANTS.values():
        if changes.get("final_norm") == "pooled":
            continue
        model = shaken(vit(**changes))
        everything = torch.arange(16).expand(4, -1)
        torch.testing.assert_close(
            sl.training.MAE(model).encode(make_images(), everything), model.encode(make_images())
        )


def test_the_model_inside_may_change_its_size():
    for objective in objectives(vit()):
        shaken(objective)
        objective.model = sl.models.resize(objective.model, 24)
        assert objective(make_images(size=24), None, draws(4)).isfinite()


def test_a_model_in_another_precision_stays_in_it():
    for objective in objectives(vit().double()):
        assert {p.dtype for p in objective.parameters()} == {torch.float64}
        assert objective(make_images().double(), None, draws(4)).isfinite()


def test_mae_counts_hidden_patches_alone():
    objective = shaken(sl.training.MAE(vit(), decoder=(16, 1)))
    images = make_images()
    order = shuffle_patches(16, draws(4))
    seen, hidden = torch.from_numpy(order[:, :4]), torch.from_numpy(order[:, 4:])
    wanted = patch_pixels(images, (4, 4)).flatten(2)
    wanted = (wanted - wanted.mean(-1, keepdim=True)) / wanted.std(-1, keepdim=True)
    got = objective.decoder(objective.encode(images, seen), seen, grid=(4, 4))
    each = (got - wanted).square().mean(-1).gather(1, hidden)
    assert objective(images, None, draws(4)).item() == pytest.approx(each.mean().item(), rel=1e-4)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda: sl.training.MaskedPatches(sl.build("bit-nano")), "a ViT or a hybrid; got a BiT"),
        (lambda: sl.training.MAE(sl.build("bit-nano")), "a plain ViT; got a BiT, whose convolutions see"),
        (lambda: sl.training.MAE(sl.build("r8-vit-nano4")), "a plain ViT; got a Hybrid, whose convolutions see"),
        (lambda: sl.training.MAE(sl.build("mixer-nano4")), "got a Mixer, whose token mixing needs every patch"),
        (lambda: sl.training.MaskedPatches(vit(), target="edges"), "one of color, color-4x4, pixels"),
        (lambda: sl.training.MaskedPatches(vit(), corrupt=0.01), "at least one"),
        (lambda: sl.training.MAE(vit(), corrupt=0.99), "at least one left"),
        (lambda: sl.training.MAE(vit(), decoder=(6, 1)), "multiple of 4"),
        (lambda: sl.training.MaskedPatches(vit(channels=1)), "three colors"),
    ],
)
def test_what_cannot_work_is_refused(act, said):
    with pytest.raises(ValueError, match=said):
        act()
