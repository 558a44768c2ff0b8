"""Ground truth of scenes in a model's coordinates: masks and boxes on its input pixels and on its grid."""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image

from sightline.data.datasets import Dataset
from sightline.data.images import resize_and_crop
from sightline.data.scenes.scenes import Scene, Scenes
from sightline.data.scenes.shapes import SHAPES
from sightline.spec import ImageSpec

What = Literal["subject", "shapes"]


def scene_masks(dataset: Dataset, image: ImageSpec, what: What = "subject") -> NDArray[np.int64]:
    """Class masks of scenes after the model's preprocessing (n, y, x).

    "subject": 1 on the visible part of the object that the label describes, 0 elsewhere. "shapes": 0 for background,
    1 + shape number for each object.

    >>> masks = sl.evals.scene_masks(sl.dataset("scenes/identity", num=3), sl.ImageSpec(size=(32, 32)))
    >>> masks.shape, int(masks.max())
    ((3, 32, 32), 1)
    """
    exact = replace(image, interpolation="nearest")
    table = [_paint(scene, what) for scene in scenes_of(dataset)]
    return np.stack([resize_and_crop(Image.fromarray(m), exact)[..., 0] for m in table]).astype(np.int64)


def scenes_of(dataset: Dataset) -> list[Scene]:
    """The scenes of a dataset or of a subset."""
    source, numbers = dataset.origins()
    if not isinstance(source, Scenes):
        raise ValueError(f"{dataset.name} has no masks and boxes; scenes have: sl.dataset('scenes/identity').")
    return [source.scene(int(i)) for i in numbers]


def _paint(scene: Scene, what: What) -> NDArray[np.uint8]:
    """Class numbers as an image of three equal channels, so that it can be preprocessed like an image."""
    out = np.zeros(scene.pixels.shape[:2], dtype=np.uint8)
    if what == "subject":
        if scene.target < 0:
            raise ValueError(
                "The labels of these scenes do not describe one object; use scenes/identity, objects, shape or texture."
            )
        out[scene.masks[scene.target]] = 1
    elif what == "shapes":
        for mask, shape in zip(scene.masks, scene.factors["shape"]):
            out[mask] = 1 + SHAPES.index(str(shape))
    else:
        raise ValueError(f"Masks are 'subject' or 'shapes'; got {what!r}.")
    return np.repeat(out[..., None], 3, axis=2)


def scene_boxes(dataset: Dataset, image: ImageSpec) -> NDArray[np.float64]:
    """Boxes of the visible part of each scene's subject after preprocessing: left, upper, right, lower in 0..1.

    >>> sl.evals.scene_boxes(sl.dataset("scenes/shape", num=2), sl.ImageSpec(size=(32, 32))).shape
    (2, 4)
    """
    return np.array([_box(mask > 0) for mask in scene_masks(dataset, image)])


def _box(mask: NDArray[np.bool_]) -> tuple[float, float, float, float]:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if len(rows) == 0:  # occluded, or cropped away
        return (0.0, 0.0, 0.0, 0.0)
    y, x = mask.shape
    return (columns[0] / x, rows[0] / y, (columns[-1] + 1) / x, (rows[-1] + 1) / y)


def patch_shares(masks: NDArray[np.int64], grid: tuple[int, int], classes: int) -> NDArray[np.float32]:
    """The share of each class in each patch: (n, rows * columns, classes), summing to 1."""
    made = [_shares(m, grid, classes) for m in masks]  # one image at a time: classes x pixels can be large
    return np.stack(made)


def _shares(mask: NDArray[np.int64], grid: tuple[int, int], classes: int) -> NDArray[np.float32]:
    one_hot = F.one_hot(torch.from_numpy(mask), classes).permute(2, 0, 1).float()
    return F.adaptive_avg_pool2d(one_hot, grid).flatten(1).mT.numpy()


def foreground(dataset: Dataset, image: ImageSpec, grid: tuple[int, int], share: float = 0.5) -> NDArray[np.bool_]:
    """Which patches show the subject: those of which it covers at least `share` (n, rows * columns).

    >>> sl.evals.foreground(sl.dataset("scenes/identity", num=2), sl.ImageSpec(size=(32, 32)), (8, 8)).shape
    (2, 64)
    """
    held: Any = patch_shares(scene_masks(dataset, image), grid, 2)[..., 1] >= share
    return held
