"""Augmentation: every step does what its paper says, and nothing when it is off."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import sightline as sl
from sightline.data.augment.augment import crop_boxes, draw_parameters, erase_boxes, mix, resize
from sightline.data.augment.randaugment import OPERATIONS, apply_operation
from sightline.data.augment.trivialaugment import TRIVIAL_OPERATIONS, apply_trivial
from sightline.data.draws import Draws, permute

SPEC = sl.ImageSpec(size=(16, 16))
OFF = sl.data.Augment(crop_area=None, flip=False)
STRONG = sl.data.Augment(randaugment=(2, 9), jitter=0.4, erase=0.5, shift=0.1)


@given(st.integers(1, 3000), st.integers(0, 2**63 - 1))
def test_the_keyed_shuffle_is_a_permutation(n, key):
    found = permute(n, key, np.arange(n))
    assert sorted(found) == list(range(n))
    at = np.array([n // 2, 0])
    assert np.array_equal(permute(n, key, at), found[at]), "point by point, in any order"


def test_draws_depend_on_key_item_and_name_alone():
    draws = Draws(1, np.arange(10_000))
    u = draws.uniform("a")
    assert np.array_equal(Draws(1, np.array([77, 3])).uniform("a"), u[[77, 3]])
    others = [draws.uniform("b"), Draws(2, np.arange(10_000)).uniform("a"), u[1:]]
    assert all(abs(np.corrcoef(u[: len(o)], o)[0, 1]) < 0.05 for o in others)
    assert abs(u.mean() - 0.5) < 0.01
    assert abs(u.var() - 1 / 12) < 0.002
    assert np.bincount(draws.integers("c", 7), minlength=7).min() > 1300


@pytest.mark.parametrize(
    ("run", "names"),
    [
        (
            lambda: draw_parameters(np.ones((2, 2), int), STRONG, Draws(0, np.arange(2)), size=(8, 8)),
            "flip, crop area, crop ratio, crop left, crop upper, shift, operation, sign, place, colour, "
            "erase area, erase ratio, erase upper, erase left, erase",
        ),
        (
            lambda: sl.data.Scenes("location", num=2).images(np.arange(2)),
            "hue, value, saturation, light, dark, second hue, second saturation, dark2, light2, shape, texture, x, y, "
            "radius, angle, scale, phase, subject radius, subject x, subject y, small, there, around, away, "
            "ground hue, ground base, ground value, ground saturation, wave length, wave angle, pattern, lattice, "
            "wave phase, sharpness, brightness, grain, grain place, within, height",
        ),
    ],
    ids=["augmentation", "scenes"],
)
def test_the_names_of_draws_are_keys_and_stay(run, names, monkeypatch):
    """Renaming a draw, even correcting its spelling, would change every image that depends on it."""
    drawn = set()
    bits = Draws._bits
    monkeypatch.setattr(Draws, "_bits", lambda self, name, count: drawn.add(name) or bits(self, name, count))
    run()
    assert drawn == set(names.split(", "))


@given(st.integers(1, 400), st.integers(1, 400), st.floats(0.01, 1), st.integers(0, 99))
def test_crops_lie_inside_and_have_the_area(width, height, low, seed):
    augment = sl.data.Augment(crop_area=(low, 1.0))
    sizes = np.tile([[width, height]], (50, 1))
    left, upper, right, lower = crop_boxes(sizes, augment, Draws(seed, np.arange(50))).T
    assert (left >= 0).all()
    assert (upper >= 0).all()
    assert (right <= width).all()
    assert (lower <= height).all()
    assert (right - left >= 1).all()
    assert (lower - upper >= 1).all()


def test_crop_areas_are_spread_over_their_range():
    sizes = np.tile([[500, 375]], (4000, 1))
    left, upper, right, lower = crop_boxes(sizes, sl.data.Augment(crop_area=(0.08, 1.0)), Draws(0, np.arange(4000))).T
    area = (right - left) * (lower - upper) / (500 * 375)
    ratio = (right - left) / (lower - upper)
    assert area.min() >= 0.079
    assert 0.4 < area.mean() < 0.56
    assert 0.74 < ratio.min() < ratio.max() < 1.34


@given(st.integers(1, 300), st.integers(1, 300), st.floats(0.05, 1.0), st.integers(0, 99))
def test_windows_keep_the_ratio_and_lie_inside(width, height, side, seed):
    augment = sl.data.Augment(crop_area=None, crop_side=side)
    boxes = crop_boxes(np.array([[width, height]] * 20), augment, Draws(seed, np.arange(20)))
    left, upper, right, lower = boxes.T
    assert ((left >= 0) & (upper >= 0) & (right <= width) & (lower <= height)).all()
    assert (right - left == max(1, round(width * side))).all()
    assert (lower - upper == max(1, round(height * side))).all()


def test_windows_come_from_everywhere():
    augment = sl.data.Augment(crop_area=None, crop_side=0.8)
    left = crop_boxes(np.array([[10, 10]] * 500), augment, Draws(0, np.arange(500)))[:, 0]
    assert set(left) == {0, 1, 2}


def test_everything_off_is_the_image_itself():
    images = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
    d = sl.data.Arrays(images, np.arange(6))
    b = d.batches(SPEC, batch=6, train=OFF, device=None)
    got, labels = next(iter(b))
    assert np.array_equal(got.numpy().transpose(0, 2, 3, 1), images[labels.numpy()])


def test_flip_mirrors_about_half():
    images = np.zeros((200, 16, 16, 3), np.uint8)
    images[:, :, :8] = 255
    got, _ = next(
        iter(
            sl.data.Arrays(images, np.arange(200) % 2).batches(
                SPEC, batch=200, train=sl.data.Augment(crop_area=None), device=None
            )
        )
    )
    assert 70 < (got[:, 0, 0, 0] == 0).sum() < 130


def test_shift_moves_and_mirrors_the_border():
    images = np.tile(np.arange(16, dtype=np.uint8)[:, None, None], (100, 1, 16, 3))  # every row has its own number
    moved = sl.data.Augment(crop_area=None, flip=False, shift=0.25)
    got, _ = next(iter(sl.data.Arrays(images, np.arange(100) % 2).batches(SPEC, batch=100, train=moved, device=None)))
    first = got[:, 0, :, 0].numpy().astype(int)
    assert set(np.abs(np.diff(first, axis=1)).ravel()) == {1}, "neighbors stay neighbors, at the border too"
    assert {int(row[8]) - 8 for row in first} == set(range(-4, 5))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_are_pure_and_keep_the_size(operation):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 20, 3), dtype=np.uint8))
    before = image.tobytes()
    for level in (0, 5, 10):
        out = apply_operation(operation, image, level=level, sign=-1.0, place=np.array([0.9, 0.1]))
        assert (out.size, out.mode) == ((20, 12), "RGB")
        assert (
            out.tobytes()
            == apply_operation(operation, image, level=level, sign=-1.0, place=np.array([0.9, 0.1])).tobytes()
        )
    assert image.tobytes() == before
    assert len(OPERATIONS) == 16


@pytest.mark.parametrize("operation", TRIVIAL_OPERATIONS)
def test_trivial_operations_grow_from_nothing(operation):
    image = Image.fromarray(np.random.default_rng(0).integers(40, 200, (32, 40, 3), dtype=np.uint8))
    before = image.tobytes()
    none, full = (apply_trivial(operation, image, strength=a, sign=-1.0) for a in (0.0, 1.0))
    assert (full.size, full.mode, image.tobytes()) == ((40, 32), "RGB", before)
    assert (full.tobytes() == before) == (operation == "identity")
    assert (none.tobytes() == before) == (operation not in ("autocontrast", "equalize"))
    assert len(TRIVIAL_OPERATIONS) == 14


def test_trivial_augment_draws_one_operation_for_each_image():
    pixels = np.repeat(np.random.default_rng(0).integers(0, 256, (1, 16, 16, 3), dtype=np.uint8), 64, axis=0)
    stack = sl.data.Arrays(pixels, np.arange(64) % 2)
    how = sl.data.Augment(crop_area=None, flip=False, trivial=True)
    one, again, next_epoch = (
        next(iter(stack.batches(SPEC, batch=64, train=how, epoch=e, workers=w, device=None)))[0]
        for e, w in ((0, 0), (0, 1), (1, 0))
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, next_epoch)
    same = (one == torch.from_numpy(pixels).permute(0, 3, 1, 2)).flatten(1).all(1)
    assert 0 < same.sum() < 20  # one operation in fourteen is the identity
    with pytest.raises(ValueError, match=r"^Augment\(randaugment and trivial"):
        sl.data.Augment(randaugment=(1, 5), trivial=True)


def test_alternating_flips_show_both_sides_in_two_epochs():
    pixels = np.random.default_rng(0).integers(0, 256, (64, 16, 16, 3), dtype=np.uint8)
    stack = sl.data.Arrays(pixels, np.arange(64))
    how = sl.data.Augment(crop_area=None, flip="alternating")

    def epoch(number, workers=0):
        batches = stack.batches(SPEC, batch=64, train=how, seed=1, epoch=number, workers=workers, device=None)
        images, labels = next(iter(batches))
        return images[labels.argsort()]

    first, second, third = (epoch(number) for number in range(3))
    plain = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    mirrored = [not torch.equal(a, b) for a, b in zip(first, plain)]
    assert 16 < sum(mirrored) < 48
    assert torch.equal(second, first.flip(-1))
    assert torch.equal(third, first)
    assert torch.equal(epoch(1, workers=2), second)


def test_mixup_is_a_share_of_two_neighbors():
    images = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    shares = torch.eye(5)
    mixed, targets = mix(images, shares, augment=sl.data.Augment(mixup=1.0), key=3)
    lam = targets[0, 0].item()
    assert targets[0, 1].item() == pytest.approx(1 - lam)
    assert torch.allclose(targets.sum(1), torch.ones(5))
    want = lam * images[0].float() + (1 - lam) * images[1].float()
    assert (mixed[0].float() - want).abs().max() <= 0.51
    assert torch.equal(mixed[4], images[4]), "an odd last one stays"
    assert torch.equal(targets[4], shares[4])


def test_cutmix_counts_its_pixels():
    images = torch.zeros(4, 3, 10, 10, dtype=torch.uint8)
    images[1::2] = 255
    for key in range(30):
        mixed, targets = mix(images, torch.eye(4), augment=sl.data.Augment(cutmix=1.0), key=key)
        assert (mixed[0] == 0).float().mean().item() == pytest.approx(targets[0, 0].item(), abs=1e-6)


def test_erasing_takes_2_to_33_percent_of_some():
    boxes = erase_boxes(0.25, Draws(0, np.arange(4000)), (224, 224))
    area = (boxes[:, 1] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 2]) / 224**2
    assert abs((area > 0).mean() - 0.25) < 0.03
    assert 0.015 < area[area > 0].min() < area.max() < 0.34


def test_erased_is_zero_for_the_model():
    d = sl.data.Arrays(np.full((50, 16, 16, 3), 255, np.uint8), np.zeros(50, np.int64))
    got, _ = next(iter(d.batches(SPEC, batch=50, train=sl.data.Augment(crop_area=None, erase=1.0))))
    values = got.unique()
    assert len(values) == 2
    assert values[0].abs() < 0.005


@pytest.mark.parametrize(
    "bad",
    [
        {"crop_area": (0, 1)},
        {"crop_area": (0.5, 0.2)},
        {"crop_ratio": (2, 1)},
        {"crop_side": 0.5},
        {"crop_area": None, "crop_side": 0},
        {"crop_area": None, "crop_side": 1.1},
        {"randaugment": (2, 11)},
        {"erase": -0.1},
        {"shift": 1.0},
        {"mixup": -1},
        {"cutmix": -1},
        {"repeats": 0},
        {"jitter": -0.1},
        {"jitter": (0, 0, 0, 0.6)},
    ],
)
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match=r"^Augment\("):
        sl.data.Augment(**bad)


@given(
    size=st.sampled_from([16, 20, 32]),
    shift=st.sampled_from([0.0, 0.125, 0.5]),
    flip=st.booleans(),
    erase=st.sampled_from([0.0, 0.7]),
    seed=st.integers(0, 10),
)
@settings(max_examples=25)
def test_images_in_a_stack_become_the_same_bytes_as_one_by_one(size, shift, flip, erase, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    together = sl.data.Arrays(pixels, np.arange(12) % 3)

    class OneByOne(sl.data.Arrays):
        def images(self, indices):
            return list(super().images(indices))

    augment = sl.data.Augment(crop_area=None, shift=shift, flip=flip, erase=erase)
    spec = sl.ImageSpec(size=(size, size), interpolation="bilinear")
    a, b = (
        next(iter(d.batches(spec, batch=12, train=augment, seed=seed, device=None)))[0]
        for d in (together, OneByOne(pixels, np.arange(12) % 3))
    )
    assert torch.equal(a, b)


def test_an_image_that_must_not_be_written_to_is_resized_without_a_warning():
    pixels = np.zeros((9, 7, 3), np.uint8)
    pixels.flags.writeable = False
    assert resize(pixels, sl.ImageSpec(size=(4, 4))).shape == (4, 4, 3)
