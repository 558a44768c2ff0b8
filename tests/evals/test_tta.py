"""Test-time augmentation: which views are averaged, and with what weights."""

import pytest
import torch

import sightline as sl
from sightline.evals.accuracy import average_views
from tests.peers import fill


def test_views_are_averaged_with_their_weights():
    x = torch.arange(2 * 3 * 8 * 8.0).view(2, 3, 8, 8)
    first = lambda images: images[:, :, 3, 2]  # noqa: E731 - one pixel says which view it was
    here, mirrored = x[:, :, 3, 2], x[:, :, 3, 5]
    assert torch.equal(average_views(first, None)(x), here)
    torch.testing.assert_close(average_views(first, "mirror")(x), (here + mirrored) / 2)
    shifted = [(x[:, :, 3 + d, 2 + d] + x[:, :, 3 + d, 5 + d]) / 2 for d in (-1, 1)]
    expected = (here + mirrored) / 4 + (shifted[0] + shifted[1]) / 4
    torch.testing.assert_close(average_views(first, "shift")(x), expected)
    with pytest.raises(ValueError, match="expected mirror, shift or none"):
        average_views(first, "five")


def test_evaluate_says_what_it_averaged():
    model, data = fill(sl.build("vit-nano4", classes=10, depth=1)), sl.dataset("scenes/shape", "test", num=8)
    plain, mirror = sl.evals.logits(model, data), sl.evals.logits(model, data, tta="mirror")
    assert abs(plain - mirror).max() > 1e-4
    assert "tta" not in sl.evaluate(model, data).how
    shifted = sl.evaluate(model, data, tta="shift")
    assert shifted.how["tta"] == "shift"
    assert (
        shifted.caption
        == "8 images, 10 classes. Logits averaged over each image, its mirror image and four shifted copies."
    )
