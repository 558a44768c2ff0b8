"""One batch in the making: pictures opened, drawn for, transformed, and bad ones replaced by the rule."""

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from sightline.data.augment import Augment, Plan, plan, transform, transform_stack
from sightline.data.dataset import Dataset
from sightline.data.draws import Draws, Ints
from sightline.data.errors import BadImage, TooManyBad
from sightline.data.images import (
    Box,
    Encoded,
    Picture,
    Pixels,
    begin,
    finish,
    fit,
    scale_for,
    to_tensor,
    turbo,
    upright_size,
)
from sightline.spec import ImageSpec

SEARCH = 100  # pictures of the same class that are tried in place of a bad one


@dataclass(frozen=True)
class Opened:
    """A picture whose header was read; a JPEG is not decoded yet, so that its crop can choose the scale."""

    picture: Picture
    image: Image.Image | None  # None: the picture is pixels already
    size: tuple[int, int]  # width, height, upright

    def whole(self) -> Image.Image:
        """All of it, decoded."""
        if isinstance(self.picture, np.ndarray):
            return Image.fromarray(self.picture)
        assert self.image is not None
        return finish(self.image, self.picture.name, box=None, size=None)

    def region(self, box: Box, size: tuple[int, int]) -> Pixels:
        """The pixels of a box, at the scale at which it was decoded."""
        if isinstance(self.picture, np.ndarray):
            return _cut(self.picture, box)
        assert self.image is not None
        fast = turbo(self.picture, self.image) if scale_for(box, size) == 1 and self.size == self.image.size else None
        if fast is not None:
            return _cut(fast, box)
        image = finish(self.image, self.picture.name, box=box, size=size)
        x, y = image.width / self.size[0], image.height / self.size[1]
        left, upper = int(box[0] * x), int(box[1] * y)
        right, lower = max(left + 1, round(box[2] * x)), max(upper + 1, round(box[3] * y))
        return np.array(image.crop((left, upper, min(right, image.width), min(lower, image.height))))


def _cut(pixels: Pixels, box: Box) -> Pixels:
    left, upper, right, lower = (int(v) for v in box)
    cut = np.ascontiguousarray(pixels[upper:lower, left:right])
    return cut if cut.flags.writeable else cut.copy()


def opened(picture: Picture | BadImage) -> Opened | BadImage:
    """Read the header, or say why not."""
    match picture:
        case BadImage():
            return picture
        case Encoded():
            try:
                image = begin(picture)
            except BadImage as error:
                return error
            return Opened(picture, image, upright_size(image))
        case _:
            return Opened(picture, None, (picture.shape[1], picture.shape[0]))


@dataclass(frozen=True, kw_only=True)
class Making:
    """The pictures at `indices`, through evaluation or training preprocessing."""

    dataset: Dataset
    spec: ImageSpec
    train: Augment | None
    indices: Ints
    draws: Draws
    bad: dict[str, str] = field(default_factory=dict)

    def images(self) -> UInt8[Tensor, "b 3 y x"]:
        """The batch; what was bad is in `bad` afterwards."""
        pictures = self.dataset.pictures(self.indices)
        if isinstance(pictures, np.ndarray) and self._already_fits(pictures.shape[1:3]):
            return to_tensor(pictures)
        if isinstance(pictures, np.ndarray) and self.train is not None:
            steps = self._plan([(pictures.shape[2], pictures.shape[1])] * len(pictures), self.draws)
            assert steps is not None
            stacked = transform_stack(pictures, steps, augment=self.train, spec=self.spec)
            if stacked is not None:
                return stacked
        headers = [opened(picture) for picture in pictures]
        steps = self._plan([(1, 1) if isinstance(h, BadImage) else h.size for h in headers], self.draws)
        images = torch.empty(len(headers), 3, *self.spec.size, dtype=torch.uint8)
        for row, (header, plane) in enumerate(zip(headers, images.numpy())):
            plane[...] = self._pixels(row, header, steps).transpose(2, 0, 1)
        return images

    def _already_fits(self, size: tuple[int, ...]) -> bool:
        return self.train is None and size == self.spec.size and (self.spec.crop == 1 or self.spec.fit == "squash")

    def _plan(self, sizes: list[tuple[int, int]], draws: Draws) -> Plan | None:
        if self.train is None:
            return None
        return plan(np.array(sizes), self.train, draws, size=self.spec.size)

    def _pixels(self, row: int, header: Opened | BadImage, steps: Plan | None) -> Pixels:
        try:
            if isinstance(header, BadImage):
                raise header
            return self._transformed(header, row, steps)
        except BadImage as error:
            self.bad[self.dataset.where(int(self.indices[row]))] = str(error)
            return self._replacement(row)

    def _transformed(self, header: Opened, row: int, steps: Plan | None) -> Pixels:
        if steps is None or self.train is None:
            return fit(header.whole(), self.spec)
        left, upper, right, lower = (float(v) for v in steps.boxes[row])
        pixels = header.region((left, upper, right, lower), self.spec.size)
        return transform(pixels, row, steps, augment=self.train, spec=self.spec)

    def _replacement(self, row: int) -> Pixels:
        """The rule: the next readable picture of the same class (or label set) in the dataset's order, round the end,
        with the draws of the picture that it replaces."""
        index = int(self.indices[row])
        same = self.dataset.labels == self.dataset.labels[index]
        others = np.flatnonzero(same if same.ndim == 1 else same.all(axis=1))
        start = int(np.searchsorted(others, index)) + 1
        for other in np.roll(others, -start)[: min(SEARCH, len(others) - 1)]:
            picture = opened(self.dataset._picture_or_error(int(other)))
            try:
                if isinstance(picture, BadImage):
                    raise picture
                draws = Draws(self.draws.key, self.draws.items[row : row + 1])
                return self._transformed(picture, 0, self._plan([picture.size], draws))
            except BadImage as error:
                self.bad[self.dataset.where(int(other))] = str(error)
        raise TooManyBad(self.bad, len(self.dataset))
