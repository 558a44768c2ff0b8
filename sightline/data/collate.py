"""Collate one batch: open images, decode and transform them, replace unreadable ones."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sightline.data.augment.augment import Augment, AugmentParameters, draw_parameters, transform, transform_stack
from sightline.data.draws import Draws, Ints
from sightline.data.errors import BadImage, TooManyBad
from sightline.data.images import (
    Box,
    EncodedImage,
    Pixels,
    RawImage,
    decode_jpeg,
    decode_pixels,
    exif_orientation,
    jpeg_scale,
    orient_image,
    orient_pixels,
    oriented_size,
    read_header,
    resize_and_crop,
    stored_box,
    to_tensor,
)
from sightline.data.labeled import LabeledImages
from sightline.spec import ImageSpec

MAX_REPLACEMENTS = 100  # images of the same class that are tried in place of an unreadable one


@dataclass(frozen=True)
class LazyImage:
    """An image whose header alone was read: the crop decides at which scale a JPEG is decoded."""

    raw: RawImage
    image: Image.Image | None  # None: `raw` is pixels already
    size: tuple[int, int]  # width, height of the upright image
    orientation: int = 1

    def decode(self) -> Image.Image:
        """The whole image, upright."""
        if isinstance(self.raw, np.ndarray):
            return Image.fromarray(self.raw)
        assert self.image is not None
        return orient_image(decode_pixels(self.image, self.raw.name), self.orientation)

    def crop(self, box: Box, size: tuple[int, int]) -> Pixels:
        """The pixels of a box of the upright image, at the smallest scale that has at least `size` pixels in it. The
        crop is taken before the image is oriented: there are fewer pixels to move."""
        inside = stored_box(box, self.size, self.orientation)
        if isinstance(self.raw, np.ndarray):
            return _writable(_crop(self.raw, inside))
        assert self.image is not None
        scale, stored = jpeg_scale(box, size), self.image.size
        fast = decode_jpeg(self.raw, self.image) if scale == 1 else None
        if fast is not None:
            return _writable(orient_pixels(_crop(fast, inside), self.orientation))
        image = decode_pixels(self.image, self.raw.name, scale=scale)
        scale = 1 if image.size == stored else scale  # only JPEG can be decoded at a smaller scale
        return _writable(orient_pixels(np.asarray(image.crop(_scale_box(inside, scale, image.size))), self.orientation))


def _scale_box(box: Box, scale: int, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """A box in whole pixels, at least one, of an image that was decoded at 1 / scale to this (width, height). Both ends
    are rounded to the nearest pixel, so that a box and its mirror image stay mirror images."""
    left, upper = (min(round(at / scale), side - 1) for at, side in zip(box[:2], size))
    right, lower = (min(round(at / scale), side) for at, side in zip(box[2:], size))
    return left, upper, max(right, left + 1), max(lower, upper + 1)


def _crop(pixels: Pixels, box: Box) -> Pixels:
    left, upper, right, lower = (int(v) for v in box)
    return pixels[upper:lower, left:right]


def _writable(pixels: Pixels) -> Pixels:
    """Contiguous and writable, as torch requires."""
    pixels = np.ascontiguousarray(pixels)
    return pixels if pixels.flags.writeable else pixels.copy()


def open_lazily(raw: RawImage | BadImage) -> LazyImage | BadImage:
    """Read the header; an error is returned, not raised."""
    match raw:
        case BadImage():
            return raw
        case EncodedImage():
            try:
                image = read_header(raw)
            except BadImage as error:
                return error
            orientation = exif_orientation(image)
            return LazyImage(raw, image, oriented_size(image.size, orientation), orientation)
        case _:
            return LazyImage(raw, None, (raw.shape[1], raw.shape[0]))


@dataclass(frozen=True, kw_only=True)
class Collation:
    """The images at `indices` after evaluation or training preprocessing."""

    dataset: LabeledImages
    spec: ImageSpec
    train: Augment | None
    indices: Ints
    draws: Draws
    mirror: NDArray[np.bool_] | None = None  # which images to flip, if that is not random
    bad: dict[str, str] = field(default_factory=dict)

    def images(self) -> UInt8[Tensor, "b 3 y x"]:
        """The batch. Afterwards `bad` lists the images that could not be read."""
        images = self.dataset.images(self.indices)
        if isinstance(images, np.ndarray) and self._needs_no_transform(images.shape[1:3]):
            return to_tensor(images)
        if isinstance(images, np.ndarray) and self.train is not None:
            parameters = self._draw_parameters([(images.shape[2], images.shape[1])] * len(images), self.draws)
            assert parameters is not None
            stacked = transform_stack(images, parameters, augment=self.train, spec=self.spec)
            if stacked is not None:
                return stacked
        headers = deque(open_lazily(image) for image in images)
        parameters = self._draw_parameters([(1, 1) if isinstance(h, BadImage) else h.size for h in headers], self.draws)
        batch = torch.empty(len(headers), 3, *self.spec.size, dtype=torch.uint8)
        for row, plane in enumerate(batch.numpy()):  # a decoded image is freed before the next one
            plane[...] = self._image_or_replacement(row, headers.popleft(), parameters).transpose(2, 0, 1)
        return batch

    def _needs_no_transform(self, size: tuple[int, ...]) -> bool:
        return self.train is None and size == self.spec.size and (self.spec.crop == 1 or self.spec.fit == "squash")

    def _draw_parameters(
        self, sizes: list[tuple[int, int]], draws: Draws, rows: slice = slice(None)
    ) -> AugmentParameters | None:
        if self.train is None:
            return None
        mirror = None if self.mirror is None else self.mirror[rows]
        return draw_parameters(np.array(sizes), self.train, draws, size=self.spec.size, mirror=mirror)

    def _image_or_replacement(
        self, row: int, header: LazyImage | BadImage, parameters: AugmentParameters | None
    ) -> Pixels:
        try:
            if isinstance(header, BadImage):
                raise header
            return self._transform(header, row, parameters)
        except BadImage as error:
            self.bad[self.dataset.where(int(self.indices[row]))] = str(error)
            return self._find_replacement(row)

    def _transform(self, header: LazyImage, row: int, parameters: AugmentParameters | None) -> Pixels:
        if parameters is None or self.train is None:
            return resize_and_crop(header.decode(), self.spec)
        left, upper, right, lower = (float(v) for v in parameters.boxes[row])
        pixels = header.crop((left, upper, right, lower), self.spec.size)
        return transform(pixels, row, parameters, augment=self.train, spec=self.spec)

    def _find_replacement(self, row: int) -> Pixels:
        """The next readable image of the same class (or label set) in the order of the dataset, wrapping around at its
        end, transformed with the draws of the image that it replaces."""
        index = int(self.indices[row])
        same = self.dataset.labels == self.dataset.labels[index]
        others = np.flatnonzero(same if same.ndim == 1 else same.all(axis=1))
        start = int(np.searchsorted(others, index)) + 1
        for other in np.roll(others, -start)[: min(MAX_REPLACEMENTS, len(others) - 1)]:
            raw = open_lazily(self.dataset.image_or_error(int(other)))
            try:
                if isinstance(raw, BadImage):
                    raise raw
                rows = slice(row, row + 1)
                draws = Draws(self.draws.key, self.draws.items[rows])
                return self._transform(raw, 0, self._draw_parameters([raw.size], draws, rows))
            except BadImage as error:
                self.bad[self.dataset.where(int(other))] = str(error)
        raise TooManyBad(self.bad, len(self.dataset))
