"""Images with their targets: batches of images and label maps that were cropped, resized and flipped alike."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image

from sightline.data.augment.augment import (
    Augment,
    AugmentParameters,
    alternating_flips,
    draw_parameters,
    reflected_indices,
    transform,
)
from sightline.data.batches import Batches, ByteBatch
from sightline.data.datasets import Dataset
from sightline.data.draws import Draws, Ints, hash_key
from sightline.data.errors import BadImage, TooManyBad
from sightline.data.images import Pixels, RawImage, resize_and_crop
from sightline.data.targets.target import LabelMap, Target, TargetSource
from sightline.fingerprints import FileStamp
from sightline.spec import ImageSpec

MAX_REPLACEMENTS = 100  # images that are tried in place of an unreadable one
MOVING = ("randaugment", "trivial", "mixup", "cutmix")  # steps of Augment that a label map cannot follow


class TargetView(TargetSource):
    """A dataset seen as images and targets: its batches are pairs (images, label maps), maps int16 (b, 2, y, x).

    Map 0 is the class of each pixel (0 background, -1 ignored), map 1 the number of its object (0 none). ValueError for
    data that has no masks.

    >>> view = sl.data.with_targets(sl.dataset("scenes/count", num=4, size=32))
    >>> images, maps = next(iter(view.batches(sl.ImageSpec(size=(32, 32)), batch=4)))
    >>> view.object_classes[:2], maps.shape, int(maps[3, 1].max())
    (('disc', 'square'), torch.Size([4, 2, 32, 32]), 4)
    """

    def __init__(self, dataset: Dataset):
        source, self.indices = dataset.origins()
        if not isinstance(source, TargetSource):
            raise ValueError(
                f"{dataset.name} has no masks: give COCO's instances (.json), a folder with images/ and masks/, Pascal "
                "VOC's folder, pets, or scenes/NAME."
            )
        self.source, self.images_of = source, dataset
        self.name, self.classes, self.labels = dataset.name, dataset.classes, dataset.labels
        self.object_classes, self.instances = source.object_classes, source.instances
        self.in_memory = dataset.in_memory

    def image(self, index: int) -> RawImage:
        return self.images_of.image(index)

    def images(self, indices: Ints) -> Any:
        return self.images_of.images(indices)

    def where(self, index: int) -> str:
        return self.images_of.where(index)

    def stamps(self, indices: Ints) -> list[FileStamp] | None:
        return self.images_of.stamps(indices)

    def target(self, index: int) -> Target:
        return self.source.target(int(self.indices[index]))

    def image_and_target(self, index: int) -> tuple[Pixels, Target]:
        return self.source.image_and_target(int(self.indices[index]))

    def images_and_targets(self, indices: Ints) -> list[tuple[Pixels, Target] | BadImage]:
        return self.source.images_and_targets(self.indices[indices])

    def origins(self) -> tuple[Dataset, Ints]:
        return self.source, self.indices

    def fingerprint(self) -> str:
        """Of the images and of what is known about them."""
        text = repr((super().fingerprint(), self.source.target_key(), self.object_classes))
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]

    def batches(self, spec: ImageSpec, **settings: Any) -> "TargetBatches":
        """Batches of images and label maps for a model of this image size; see `Batches` for the settings."""
        return TargetBatches(dataset=self, spec=dense_spec(spec), **settings)


def with_targets(dataset: Dataset) -> TargetView:
    """The images of a dataset with their masks and boxes, for segmentation and detection.

    >>> sl.data.with_targets(sl.dataset("scenes/count", num=4, size=32)).target(1).boxes.shape
    (2, 4)
    """
    return dataset if isinstance(dataset, TargetView) else TargetView(dataset)


def dense_spec(spec: ImageSpec) -> ImageSpec:
    """Preprocessing for dense tasks: the whole image, squashed to the size of the model, so that no pixel is lost."""
    return replace(spec, fit="squash", crop=1.0)


def check_augment(augment: Augment) -> None:
    """Refuse augmentation that moves pixels in ways a label map does not follow."""
    for name in MOVING:
        if getattr(augment, name):
            raise ValueError(
                f"augment.{name}={getattr(augment, name)} changes images in ways that masks do not follow: "
                f"--set augment.{name}={'false' if name == 'trivial' else 'none' if name == 'randaugment' else 0}; "
                "crops, flips, shifts and jitter are possible."
            )


@dataclass(frozen=True, kw_only=True)
class TargetBatches(Batches):
    """Batches whose labels are label maps."""

    dataset: TargetView

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train is not None:
            check_augment(self.train)

    def make_batch(self, step: int) -> ByteBatch:
        indices, repetitions = self.indices(step)
        size = self.spec.size
        images = torch.empty(len(indices), 3, *size, dtype=torch.uint8)
        maps = torch.empty(len(indices), 2, *size, dtype=torch.int16)
        bad: dict[str, str] = {}
        if not len(indices):  # fewer images than ranks in the last batch of an evaluation
            return images, maps, bad
        pairs = [
            self._replacement(int(index), pair, bad) if isinstance(pair, BadImage) else pair
            for index, pair in zip(indices, self.dataset.images_and_targets(indices))
        ]
        parameters = self._parameters([pixels for pixels, _ in pairs], indices, repetitions)
        for row, (pixels, target) in enumerate(pairs):
            moved, labels = apply_parameters(
                pixels, target.label_map(), row, parameters, augment=self.train, spec=self.spec
            )
            images[row] = torch.from_numpy(np.ascontiguousarray(moved.transpose(2, 0, 1)))
            maps[row] = torch.from_numpy(np.ascontiguousarray(labels))
        return images, maps, bad

    def _parameters(self, images: list[Pixels], indices: Ints, repetitions: Ints) -> AugmentParameters | None:
        """The draws of a batch, keyed as those of any other batches."""
        if self.train is None:
            return None
        draws = Draws(hash_key(self.seed, self.epoch, "augment"), indices * 4096 + repetitions)
        mirror = None
        if self.train.flip == "alternating":
            mirror = alternating_flips(Draws(hash_key(self.seed, "flip"), indices), self.epoch + repetitions)
        sizes = np.array([[pixels.shape[1], pixels.shape[0]] for pixels in images])
        return draw_parameters(sizes, self.train, draws, size=self.spec.size, mirror=mirror)

    def _replacement(self, index: int, why: BadImage, bad: dict[str, str]) -> tuple[Pixels, Target]:
        """The next readable image, with its target, in place of one that is not."""
        bad[self.dataset.where(index)] = str(why)
        for other in range(index + 1, index + min(MAX_REPLACEMENTS, len(self.dataset))):
            at = other % len(self.dataset)
            try:
                return self.dataset.image_and_target(at)
            except BadImage as error:
                bad[self.dataset.where(at)] = str(error)
        raise TooManyBad(bad, len(self.dataset))


def apply_parameters(
    pixels: Pixels,
    labels: LabelMap,
    row: int,
    parameters: AugmentParameters | None,
    *,
    augment: Augment | None,
    spec: ImageSpec,
) -> tuple[Pixels, LabelMap]:
    """Image and label map at the model's size, cropped, flipped and shifted alike; without parameters, squashed."""
    height, width = pixels.shape[:2]
    if parameters is None or augment is None:
        return resize_and_crop(Image.fromarray(pixels), spec), resize_map(labels, (0, 0, width, height), spec.size)
    left, upper, right, lower = (int(v) for v in parameters.boxes[row])
    out = transform(pixels[upper:lower, left:right], row, parameters, augment=augment, spec=spec)
    maps = resize_map(labels, (left, upper, right, lower), spec.size)
    maps = maps[..., ::-1] if parameters.mirror[row] else maps
    down, across = (int(v) for v in parameters.shifts[row])
    if down or across:
        maps = maps[:, reflected_indices(maps.shape[1], down)][..., reflected_indices(maps.shape[2], across)]
    return out, maps


def resize_map(labels: LabelMap, box: tuple[int, int, int, int], size: tuple[int, int]) -> LabelMap:
    """A box of a label map at another size: each pixel takes the label at its center."""
    left, upper, right, lower = box
    rows = (upper + (np.arange(size[0]) + 0.5) * (lower - upper) / size[0]).astype(np.int64)
    columns = (left + (np.arange(size[1]) + 0.5) * (right - left) / size[1]).astype(np.int64)
    return labels[:, rows[:, None], columns]
