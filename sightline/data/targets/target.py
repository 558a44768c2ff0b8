"""What one image shows, pixel by pixel: objects as masks with classes, and pixels that nobody labeled."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sightline.data.datasets import Dataset
from sightline.data.draws import Ints
from sightline.data.errors import BadImage
from sightline.data.images import Pixels, decode

Mask = NDArray[np.bool_]  # (h, w)
LabelMap = NDArray[np.int16]  # (2, h, w): class of each pixel, number of its object
BACKGROUND, IGNORE = "background", -1  # class 0 of every label map; pixels that count for nothing
MAX_CLASSES = 2**15 - 1  # of a label map, and objects of one image
MAX_MASK_PIXELS = 2**31  # of all masks of one image together


@dataclass(frozen=True, kw_only=True)
class Target:
    """The objects of one image: class, mask, and whether it is a crowd that nobody counted.

    >>> import numpy as np
    >>> masks = np.zeros((1, 4, 6), bool); masks[0, 1:3, 2:5] = True
    >>> target = sl.data.Target(classes=np.array([7]), masks=masks)
    >>> target.boxes.tolist(), target.label_map()[0].tolist()[1]
    ([[2, 1, 5, 3]], [0, 0, 7, 7, 7, 0])
    """

    classes: Ints  # (k,), from 1 on: 0 is the background
    masks: NDArray[np.bool_]  # (k, h, w)
    crowd: NDArray[np.bool_] | None = None  # (k,), None: no object is a crowd
    void: Mask | None = None  # pixels of no known class
    areas: NDArray[np.float64] | None = None  # (k,), as the annotation states them; None: pixels of the masks

    @property
    def boxes(self) -> Ints:
        """Left, upper, right, lower of each mask, (k, 4); zeros for an empty one."""
        return mask_boxes(self.masks)

    @property
    def is_crowd(self) -> NDArray[np.bool_]:
        return np.zeros(len(self.classes), np.bool_) if self.crowd is None else self.crowd

    def label_map(self) -> LabelMap:
        """Class and object number of every pixel. Where masks overlap the smaller one is on top; crowds are ignored."""
        maps = np.zeros((2, *self.masks.shape[1:]), np.int16)
        crowd, sizes = self.is_crowd, self.masks.sum((1, 2))
        for i in np.lexsort((-sizes, ~crowd)).tolist():  # crowds first: an object in front of one keeps its pixels
            maps[0][self.masks[i]] = IGNORE if crowd[i] else self.classes[i]
            maps[1][self.masks[i]] = 0 if crowd[i] else i + 1
        if self.void is not None:
            maps[:, self.void] = np.array([[IGNORE], [0]])
        return maps


def mask_boxes(masks: NDArray[np.bool_]) -> Ints:
    """The smallest box around each mask, (k, 4): left, upper, right, lower, the ends exclusive; zeros if empty."""
    boxes = np.zeros((len(masks), 4), np.int64)
    for box, mask in zip(boxes, masks):
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        if len(rows):
            box[:] = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
    return boxes


def check_masks(count: int, size: tuple[int, int], where: str) -> None:
    """Refuse more masks than memory should be spent on, before any of it is."""
    if count > MAX_CLASSES:
        raise BadImage(f"{where} has {count:,} objects; at most {MAX_CLASSES:,} are read.")
    if count * size[0] * size[1] > MAX_MASK_PIXELS:
        raise BadImage(
            f"{where} has {count:,} objects of {size[1]} x {size[0]} pixels; at most {MAX_MASK_PIXELS:,} pixels of "
            "masks are read."
        )


class TargetSource(Dataset):
    """A dataset that knows what its images show: `target(index)` beside `image(index)`."""

    object_classes: tuple[str, ...]  # names of the classes 1, 2, ... of targets; class 0 is the background
    instances: bool = True  # whether objects of one class are told apart

    @abstractmethod
    def target(self, index: int) -> Target:
        """The objects of one image, at its own size. Raises BadImage if it cannot be read."""

    def image_and_target(self, index: int) -> tuple[Pixels, Target]:
        """Both at once, of the same size. Raises BadImage if one cannot be read, or they differ in size."""
        pixels, target = np.asarray(decode(self.image(index))), self.target(index)
        if pixels.shape[:2] != target.masks.shape[1:]:
            (h, w), (y, x) = pixels.shape[:2], target.masks.shape[1:]
            raise BadImage(f"{self.where(index)} has {w} x {h} pixels, its masks have {x} x {y}.")
        return pixels, target

    def images_and_targets(self, indices: Ints) -> list[tuple[Pixels, Target] | BadImage]:
        """Many at once; what cannot be read is replaced by its error. Sources that draw many override this."""
        return [self._pair_or_error(int(i)) for i in indices]

    def _pair_or_error(self, index: int) -> tuple[Pixels, Target] | BadImage:
        try:
            return self.image_and_target(index)
        except BadImage as error:
            return error

    def target_key(self) -> str:
        """A text that differs if any target does and the images do not, for fingerprints."""
        return ""


def check_object_classes(names: Sequence[str], name: str) -> tuple[str, ...]:
    """The names, if there are any, not too many, and none of them twice."""
    if not 0 < len(names) <= MAX_CLASSES:
        raise ValueError(f"{name} has {len(names):,} classes of objects; expected 1 to {MAX_CLASSES:,}.")
    if twice := [known for known, count in Counter(names).items() if count > 1]:
        raise ValueError(f"{name} has two classes of objects named {twice[0]!r}: give each a name of its own.")
    return tuple(names)
