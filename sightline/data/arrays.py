"""Images in arrays: in memory, or in an `.npz` file."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sightline.archives import array_names, read_arrays
from sightline.data.datasets import Dataset
from sightline.data.draws import Ints
from sightline.data.errors import printable
from sightline.data.images import Pixels, check_size
from sightline.data.labeled import Labels, class_numbers
from sightline.untrusted import listed

IMAGE_KEYS = ("images", "image", "x", "imgs", "data", "arr_0")
ROOM = 2**32  # bytes that an archive of images may unfold to, beside 8 times its own
LABEL_KEYS = ("labels", "label", "y", "targets", "arr_1")


class Arrays(Dataset):
    """Images of one size, uint8 (n, h, w, 3), (n, h, w, 1) or (n, h, w), with class indices (n,) or booleans (n, k).

    >>> import numpy as np
    >>> d = sl.data.Arrays(np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 0, 1]), classes=("cat", "dog"))
    >>> d[3][0].shape, d.classes[d[3][1]]
    ((8, 8, 3), 'dog')
    """

    in_memory = True

    def __init__(
        self,
        images: NDArray,
        labels: ArrayLike,
        *,
        classes: Sequence[str] | None = None,
        name: str = "arrays",
    ):
        if (
            images.dtype != np.uint8
            or images.ndim not in (3, 4)
            or (images.ndim == 4 and images.shape[3] not in (1, 3))
        ):
            raise ValueError(
                f"{name}: expected uint8 images (n, h, w) or (n, h, w, 3), got {images.dtype} {images.shape}."
            )
        check_size((images.shape[2], images.shape[1]), name)
        labels = np.asarray(labels)
        if len(images) != len(labels) or labels.ndim not in (1, 2):
            raise ValueError(f"{name}: {len(images)} images and labels of shape {labels.shape} do not match.")
        self.name, self.stack = name, images
        self.labels: Labels = labels.astype(np.bool_) if labels.ndim == 2 else labels.astype(np.int64)
        count = labels.shape[1] if labels.ndim == 2 else int(labels.max(initial=-1)) + 1
        self.classes = tuple(classes) if classes is not None else class_numbers(count, name)
        if len(self.classes) < count or (labels.ndim == 1 and labels.min(initial=0) < 0):
            raise ValueError(f"{name}: labels are outside 0..{len(self.classes) - 1}.")

    def image(self, index: int) -> Pixels:
        return self.images(np.array([index]))[0]

    def images(self, indices: Ints) -> Pixels:
        chosen = np.asarray(self.stack[indices])
        chosen = chosen if chosen.ndim == 4 else chosen[..., None]
        return np.repeat(chosen, 3, axis=3) if chosen.shape[3] == 1 else chosen

    def where(self, index: int) -> str:
        return f"{self.name}[{index}]"


def read_npz(path: str | Path, split: str | None = None) -> Arrays:
    """An `.npz` with images and labels (or x and y; or x_train, y_train, x_test, y_test), optionally with classes."""
    with _naming(path):
        names = array_names(path)
    images, labels = (_find(path, names, keys, split) for keys in (IMAGE_KEYS, LABEL_KEYS))
    with _naming(path):
        arrays = read_arrays(path, {images, labels, "classes"}, room=ROOM)
    classes = tuple(str(c) for c in arrays["classes"].reshape(-1)) if "classes" in arrays else None
    return Arrays(arrays[images], _flat(arrays[labels]), classes=classes, name=printable(path))


@contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{printable(path)} is not a readable .npz file of arrays ({error}).") from error


def _flat(labels: NDArray) -> NDArray:
    """Keras stores class indices as a column."""
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _find(path: str | Path, available: list[str], keys: tuple[str, ...], split: str | None) -> str:
    names = [f"{key}_{split}" for key in keys] + [f"{split}_{key}" for key in keys] if split else list(keys)
    found = next((key for key in names if key in available), None)
    if found is None:
        hint = "; give split='train' or 'test'" if not split and any("train" in key for key in available) else ""
        raise ValueError(f"{printable(path)} has no array {' or '.join(names[:3])}; it has {listed(available)}{hint}.")
    return found
