"""Evaluate a dense model: mean intersection over union, or average precision, at the images' own sizes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sightline.data.datasets import Dataset
from sightline.data.images import normalize, resize_and_crop, to_tensor
from sightline.data.targets.target import Target
from sightline.data.targets.view import TargetView, with_targets
from sightline.dense.coco_metric import MEASURES, average_precision, match_image
from sightline.dense.model import DenseModel, load_dense
from sightline.dense.scores import intersection_over_union, mean_iou, pixel_counts
from sightline.evals.extraction import describe
from sightline.observe.identity import identify
from sightline.observe.images import fingerprint
from sightline.progress import progress
from sightline.spec import About, Result

Batch = tuple[Tensor, list[tuple[int, int]], list[Target]]


@dataclass(frozen=True, kw_only=True)
class Segmentation(Result):
    """Mean intersection over union of a segmentation, background included, and by class.

    >>> import numpy as np
    >>> sl.dense.Segmentation(title="", caption="", miou=0.5, interval=(0.4, 0.6), classes=("background", "cat"),
    ...                       per_class=np.array([0.7, 0.3]), images=9).summary()["mIoU"]
    0.5
    """

    miou: float
    interval: tuple[float, float]  # 95 %, bootstrap over images
    classes: tuple[str, ...]
    per_class: NDArray[np.float64]  # NaN for a class that neither occurs nor is predicted
    images: int

    def summary(self) -> dict[str, float]:
        low, high = self.interval
        return {"mIoU": self.miou, "95 % from": low, "95 % to": high, "images": float(self.images)}

    def intervals(self) -> dict[str, tuple[float, float]]:
        return {"mIoU": self.interval}


@dataclass(frozen=True, kw_only=True)
class Detection(Result):
    """Average precision by COCO's definition, of masks and of the boxes around them.

    >>> import numpy as np
    >>> sl.dense.Detection(title="", caption="", masks=np.full(6, 0.5), boxes=np.full(6, 0.6), classes=("cat",),
    ...                    mask_interval=np.full((3, 2), 0.5), box_interval=np.full((3, 2), 0.6),
    ...                    per_class=np.array([0.5]), images=9).summary()["AP"]
    0.5
    """

    masks: NDArray[np.float64]  # (6,): AP, AP50, AP75, and AP of small, medium and large objects
    boxes: NDArray[np.float64]  # (6,)
    mask_interval: NDArray[np.float64]  # (3, 2) of the first three, 95 %, bootstrap over images
    box_interval: NDArray[np.float64]
    classes: tuple[str, ...]
    per_class: NDArray[np.float64]  # AP of masks; NaN for a class without objects
    images: int

    def summary(self) -> dict[str, float]:
        low, high = (float(v) for v in self.mask_interval[0])
        named = dict(zip(MEASURES, map(float, self.masks)))
        ends = {"AP": named.pop("AP"), "95 % from": low, "95 % to": high}
        named = {
            name: value for name, value in named.items() if math.isfinite(value)
        }  # a size without objects has none
        return {**ends, **named, "box AP": float(self.boxes[0]), "images": float(self.images)}

    def intervals(self) -> dict[str, tuple[float, float]]:
        of_masks = {name: (float(low), float(high)) for name, (low, high) in zip(MEASURES, self.mask_interval)}
        low, high = self.box_interval[0]
        return {**of_masks, "box AP": (float(low), float(high))}


def evaluate_dense(
    model: DenseModel | str | PathLike[str], data: Dataset, *, batch: int = 32, seed: int = 0
) -> Segmentation | Detection:
    """mIoU of a model that segments, AP of one that detects, on data with masks; each image at its own size.

    `model` is a run folder or a `DenseModel`. Intervals are bootstraps over the images, drawn from `seed`. An image or
    a mask that cannot be read is an error: a metric that leaves out images is another metric.

    >>> model = sl.build("vit-nano4", classes=0)
    >>> config = sl.dense.DenseConfig(task="segment", kind="linear", classes=sl.dataset("scenes/count").object_classes)
    >>> dense = sl.dense.DenseModel(model, sl.dense.build_head(model, config), config)
    >>> result = sl.dense.evaluate_dense(dense, sl.dataset("scenes/count", num=4))
    >>> result.classes[0], result.images
    ('background', 4)
    """
    dense = model if isinstance(model, DenseModel) else load_dense(model)
    view = with_targets(data)
    if view.object_classes != dense.config.classes:
        raise ValueError(
            f"The model knows {len(dense.config.classes)} classes of objects ({_shown(dense.config.classes)}), "
            f"{view.name} has {len(view.object_classes)} ({_shown(view.object_classes)}): they must be the same."
        )
    about = About(models=(identify(dense.model),), images=fingerprint(view), analysis=dense.config.task)
    known: dict[str, Any] = {"about": about, "how": {"n": len(view), "seed": seed}, "images": len(view)}
    caption = f"{len(view):,} images of {view.name}, {describe(dense.model)}."
    dense.eval()
    if dense.config.task == "segment":
        return _segmentation(dense, view, batch=batch, seed=seed, caption=caption, **known)
    return _detection(dense, view, batch=batch, seed=seed, caption=caption, **known)


def _segmentation(dense: DenseModel, view: TargetView, *, batch: int, seed: int, **known: Any) -> Segmentation:
    names = dense.config.names
    rows = []
    for images, sizes, targets in each_batch(view, dense, batch):
        guesses = dense.segment(images, sizes)
        rows += [pixel_counts(g, t.label_map()[0], len(names)) for g, t in zip(guesses, targets)]
    counts = np.stack(rows)
    value, interval = mean_iou(counts, seed=seed)
    per_class = intersection_over_union(counts.sum(0))
    ends = (float(interval[0]), float(interval[1]))
    return Segmentation(title="Segmentation", miou=value, interval=ends, classes=names, per_class=per_class, **known)


def _detection(dense: DenseModel, view: TargetView, *, batch: int, seed: int, **known: Any) -> Detection:
    masks, boxes = [], []
    if not view.instances:
        raise ValueError(f"{view.name} has classes of pixels but tells no objects apart: it has no AP.")
    for images, sizes, targets in each_batch(view, dense, batch):
        for found, target in zip(dense.detect(images, sizes), targets):
            masks.append(match_image(found, target, "masks"))
            boxes.append(match_image(found, target, "boxes"))
    of_masks, of_boxes = (average_precision(m, len(view.object_classes), seed=seed) for m in (masks, boxes))
    return Detection(
        title="Detection",
        masks=of_masks.values,
        boxes=of_boxes.values,
        mask_interval=of_masks.interval,
        box_interval=of_boxes.interval,
        classes=view.object_classes,
        per_class=of_masks.per_class,
        **known,
    )


def each_batch(view: TargetView, dense: DenseModel, batch: int) -> Iterator[Batch]:
    """Images squashed to the model's size, with their own sizes and exact targets."""
    device = next(dense.parameters()).device
    for start in progress(range(0, len(view), batch), "evaluating"):
        pairs = [view.image_and_target(i) for i in range(start, min(start + batch, len(view)))]
        sizes = [(pixels.shape[0], pixels.shape[1]) for pixels, _ in pairs]
        yield prepare([p for p, _ in pairs], dense).to(device), sizes, [t for _, t in pairs]


def prepare(images: list[NDArray[np.uint8]], dense: DenseModel) -> Tensor:
    """Images (h, w, 3) of any size as one normalized batch for the model."""
    spec = dense.image
    return normalize(to_tensor([resize_and_crop(Image.fromarray(p), spec) for p in images]), spec).to(torch.float32)


def _shown(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
