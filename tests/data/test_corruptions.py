"""Corrupted images: keyed, graded by severity, at any size."""

import numpy as np
import pytest

import sightline as sl


def photo(size, index=0):
    """A scene: objects, textures and a background."""
    return np.asarray(sl.dataset("scenes/shape", num=4, size=size)[index][0])


@pytest.mark.parametrize("kind", sl.data.corruption_kinds())
def test_every_severity_changes_more_than_the_last_at_any_size(kind):
    for size in (24, 96):
        images = [photo(size, i) for i in range(4)]
        each = [
            [sl.data.corrupt(x, kind, s, index=i) - x.astype(float) for i, x in enumerate(images)] for s in (1, 3, 5)
        ]
        change = [np.abs(some).mean() for some in each]
        assert 0.5 < change[0] < change[1] < change[2] < 90, (size, change)


def test_the_draws_are_keyed():
    image = photo(24)
    pairs = {k: [sl.data.corrupt(image, k, 3, index=i) for i in (0, 1)] for k in sl.data.corruption_kinds()}
    random = [k for k, pair in pairs.items() if not np.array_equal(*pair)]
    assert set(random) == {
        "gaussian-noise", "shot-noise", "impulse-noise", "glass-blur", "motion-blur", "snow", "frost", "fog", "elastic",
    }  # fmt: skip
    for kind in sl.data.corruption_kinds():
        again = [sl.data.corrupt(image, kind, 3, seed=1, index=7) for _ in range(2)]
        assert np.array_equal(*again)
    narrow = sl.data.corrupt(photo(40)[:24], "motion-blur", 2)
    assert narrow.shape == (24, 40, 3)


def test_a_corrupted_dataset_does_not_depend_on_the_order_of_access():
    data = sl.data.Corrupted(sl.dataset("scenes/shape", num=4, size=48), "glass-blur", 4, size=24)
    backwards = [data[i][0] for i in (3, 2, 1, 0)][::-1]
    assert all(np.array_equal(data[i][0], backwards[i]) for i in range(4))
    assert data[0][0].shape == (24, 24, 3)
    assert data.fingerprint() != sl.data.Corrupted(data.parent, "glass-blur", 5, size=24).fingerprint()
    assert len(data) == 4


def test_mistakes_are_refused():
    image = photo(16)
    with pytest.raises(ValueError, match="no corruption 'rain'; there are gaussian-noise"):
        sl.data.corrupt(image, "rain", 1)
    with pytest.raises(ValueError, match="severity=6: expected a whole number from 1 to 5"):
        sl.data.Corrupted(sl.dataset("scenes/shape", num=2), "fog", 6)
    with pytest.raises(ValueError, match=r"severity=3.0: expected a whole number"):
        sl.data.corrupt(image, "fog", 3.0)
    with pytest.raises(ValueError, match=r"uint8 \(h, w, 3\); got float64"):
        sl.data.corrupt(image / 255, "fog", 1)
    with pytest.raises(ValueError, match=r"uint8 \(h, w, 3\); got uint8 \(0, 16, 3\)"):
        sl.data.corrupt(image[:0], "fog", 1)


@pytest.mark.parametrize("kind", sl.data.corruption_kinds())
def test_an_image_may_have_any_shape_and_layout(kind):
    for height, width in ((1, 1), (1, 9), (7, 2), (4, 120)):
        image = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
        worst = sl.data.corrupt(image, kind, 5)
        assert (worst.shape, worst.dtype) == (image.shape, np.uint8)
        assert np.array_equal(worst, sl.data.corrupt(np.asfortranarray(image), kind, 5))
