"""The BiT-HyperRule in both forms, at every boundary (E14)."""

import pytest

import sightline as sl

KINDS = [(19_999, 500), (20_000, 10_000), (499_999, 10_000), (500_000, 20_000)]
SUPPORTS = {
    500: [100, 200, 300, 400, 500],
    10_000: [500, 3_000, 6_000, 9_000, 10_000],
    20_000: [500, 6_000, 12_000, 18_000, 20_000],
}


def released_lr(step, supports, lr=0.003):
    """The released function, told again in our words."""
    if step < supports[0]:
        return lr * step / supports[0]
    if step >= supports[-1]:
        return None
    return lr / 10 ** len([s for s in supports[1:] if s < step])


@pytest.mark.parametrize(("images", "steps"), KINDS)
def test_the_size_of_the_task_decides_steps_and_mixup(images, steps):
    for form in ("paper", "released"):
        r = sl.training.bit_hyperrule(images, 32 * 32, form=form)
        assert (r.steps, r.augment.mixup) == (steps, 0.0 if steps == 500 else 0.1)
        assert (r.optimizer, r.momentum, r.lr, r.batch, r.weight_decay) == ("sgd", 0.9, 0.003, 512, 0)


@pytest.mark.parametrize(("images", "steps"), KINDS)
def test_the_released_rate_at_every_step(images, steps):
    supports = SUPPORTS[steps]
    near = {s + d for s in supports for d in (-1, 0, 1)} | {0, 1, supports[0] // 2}
    for step in sorted(near):
        expected = released_lr(step, supports)
        got = sl.training.bit_hyperrule_lr(step, images)
        assert got is None if expected is None else got == pytest.approx(expected), step


@pytest.mark.parametrize(("images", "steps"), KINDS)
def test_the_paper_falls_at_30_60_and_90_percent(images, steps):
    r = sl.training.bit_hyperrule(images, 32 * 32, form="paper")
    assert [m / r.steps for m in r.milestones] == [0.3, 0.6, 0.9]


def test_the_two_forms_differ_in_small_tasks_and_large_images_alone():
    for images, _ in KINDS:
        for area in (95 * 96, 96 * 96):
            paper, released = (sl.training.bit_hyperrule(images, area, form=f) for f in ("paper", "released"))
            assert (paper.milestones == released.milestones) == (images >= 20_000)
            assert (paper.size == released.size) == (area < 96 * 96)


@pytest.mark.parametrize(
    ("area", "form", "largest", "sizes"),
    [
        (95 * 96, "paper", False, (160, 128)),
        (95 * 96, "released", True, (160, 128)),
        (96 * 96, "paper", False, (448, 384)),
        (96 * 96, "paper", True, (512, 480)),
        (96 * 96, "released", False, (512, 480)),
    ],
)
def test_images_below_96_by_96_stay_small(area, form, largest, sizes):
    assert sl.training.bit_hyperrule_sizes(area, form=form, largest=largest) == sizes
    r = sl.training.bit_hyperrule(1000, area, form=form, largest=largest)
    assert (r.size, r.augment.crop_side) == (sizes[1], sizes[1] / sizes[0])


def test_flips_and_crops_can_be_left_out():
    r = sl.training.bit_hyperrule(1000, 1024, flip=False, crop=False)
    assert (r.augment.flip, r.augment.crop_side, r.augment.crop_area) == (False, None, None)


@pytest.mark.parametrize("bad", [(0, 100), (100, 0)])
def test_nothing_to_go_by_is_refused(bad):
    with pytest.raises(ValueError, match="number of training images"):
        sl.training.bit_hyperrule(*bad)
