"""Labeled images: the interface that every source implements and that batches use."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sightline.data.draws import Ints, hash_key, permute
from sightline.data.errors import BadImage
from sightline.data.images import Pixels, RawImage

Labels = NDArray[np.int64] | NDArray[np.bool_]  # (n,) one class per image, or (n, k) any number of classes

MAX_CLASSES = 1_000_000  # that have no names: one wrong label must not cost gigabytes


def class_numbers(count: int, name: str) -> tuple[str, ...]:
    """The names of classes that have none: their numbers, as many as the largest label asks for."""
    if count > MAX_CLASSES:
        raise ValueError(
            f"{name}: there is a label {count - 1}; without class names, labels go up to {MAX_CLASSES - 1}. "
            "Number the classes from 0, or give their names."
        )
    return tuple(map(str, range(count)))


class LabeledImages(ABC):
    """Images by index, with their labels and class names. A source implements `image` and `where`."""

    name: str
    classes: tuple[str, ...]
    labels: Labels

    @abstractmethod
    def image(self, index: int) -> RawImage:
        """One image, decoded or not. Raises BadImage if it cannot be read."""

    @abstractmethod
    def where(self, index: int) -> str:
        """The name of one image, for messages: a file, an entry of a shard, a row."""

    def images(self, indices: Ints) -> Sequence[RawImage | BadImage] | Pixels:
        """Many images; one that cannot be read is replaced by its error. Sources that read or draw many images at once
        override this."""
        return [self.image_or_error(int(i)) for i in indices]

    def image_or_error(self, index: int) -> RawImage | BadImage:
        """One image, or the reason why it cannot be read."""
        try:
            return self.image(index)
        except BadImage as error:
            return error

    def order(self, seed: int, epoch: int, positions: Ints) -> Ints:
        """The indices of the images at these positions of a shuffled epoch. Sources that read sequentially override
        this."""
        return permute(len(self), hash_key(seed, epoch, "order"), positions)

    def __len__(self) -> int:
        return len(self.labels)
