"""Test-time augmentation: the mean of a model's logits over several views of each image."""

from collections.abc import Callable
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

TestTime = Literal["mirror", "shift"]


def average_views(model: Any, tta: TestTime | None) -> Callable[[Tensor], Tensor]:
    """A function of images that gives the model's logits, averaged over views.

    `mirror`: the image and its mirror image. `shift`: also both moved by a 32nd of the side to the lower right and to
    the upper left, with reflected borders, which count a quarter each (Jordan 2024). None: the image alone.
    """
    match tta:
        case None:
            return model
        case "mirror":
            return lambda images: _mirrored(model, images)
        case "shift":
            return lambda images: _shifted(model, images)
    raise ValueError(f"tta={tta!r}: expected mirror, shift or none.")


def _mirrored(model: Any, images: Tensor) -> Tensor:
    return (model(images) + model(images.flip(-1))) / 2


def _shifted(model: Any, images: Tensor) -> Tensor:
    height, width = images.shape[-2:]
    y, x = max(1, height // 32), max(1, width // 32)
    wide = F.pad(images, (x, x, y, y), mode="reflect")
    corners = (wide[..., :height, :width], wide[..., 2 * y :, 2 * x :])
    return _mirrored(model, images) / 2 + sum(_mirrored(model, corner) for corner in corners) / 4
