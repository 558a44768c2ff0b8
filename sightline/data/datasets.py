"""Dataset: labeled images with items, seeded and nested subsets, and batches."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sightline import fingerprints
from sightline.data.batches import Batches
from sightline.data.draws import Draws, Ints, Number, hash_key, permute
from sightline.data.errors import BadImage
from sightline.data.images import EncodedImage, Pixels, RawImage, decode
from sightline.data.labeled import LabeledImages
from sightline.fingerprints import FileStamp
from sightline.spec import Displayable, ImageSpec

FINGERPRINT_IMAGES = 64  # images whose content enters a fingerprint where there are too many to read


class Dataset(LabeledImages, Displayable):
    """Labeled images: `len(d)`, `d[i] -> (pixels, label)`, `d.classes`, `d.labels`, subsets, and batches for a model.

    A subclass implements `image` and `where`. Subsets are seeded and nested: a larger one contains every smaller one of
    the same seed (1-shot within 5-shot within 10-shot, 1 % within 10 %).

    >>> import numpy as np
    >>> d = sl.data.Arrays(np.zeros((100, 32, 32, 3), np.uint8), np.arange(100) % 10)
    >>> pixels, label = d[3]
    >>> pixels.shape, d.classes[label], len(d.few_shot(2, seed=0)), [len(part) for part in d.split(0.9, seed=0)]
    ((32, 32, 3), '3', 20, [90, 10])
    """

    in_memory: bool = False  # whether the content of all images is at hand

    def __getitem__(self, index: int) -> tuple[Pixels, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name} has {len(self)} images; index {index} is out of range.")
        index = int(index) % len(self)
        label = self.labels[index]
        return np.asarray(decode(self.image(index))), int(label) if label.ndim == 0 else label

    def __iter__(self) -> Iterator[tuple[Pixels, Any]]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self):,} images, {len(self.classes):,} classes>"

    def batches(self, spec: ImageSpec, **settings: Any) -> Batches:
        """Batches of this dataset, preprocessed for a model; see `Batches` for the settings.

        >>> import numpy as np
        >>> d = sl.data.Arrays(np.zeros((10, 32, 32, 3), np.uint8), np.arange(10))
        >>> [images.shape[0] for images, labels in d.batches(sl.ImageSpec(size=(32, 32)), batch=4)]
        [4, 4, 2]
        """
        return Batches(dataset=self, spec=spec, **settings)

    def subset(
        self,
        fraction: Number | None = None,
        *,
        per_class: int | None = None,
        indices: ArrayLike | None = None,
        seed: int = 0,
    ) -> "Subset":
        """A stratified fraction, `per_class` images of each class, or the images at `indices`."""
        if sum(given is not None for given in (fraction, per_class, indices)) != 1:
            raise ValueError("Give exactly one of fraction, per_class and indices.")
        if indices is not None:
            return Subset(self, self._validate_indices(indices))
        if per_class is not None:
            return self.few_shot(per_class, seed=seed)
        if fraction is None or not 0 < fraction <= 1:
            raise ValueError(f"fraction={fraction}: expected 0 < fraction <= 1.")
        return Subset(self, np.sort(self._stratified_order(seed)[: max(1, round(fraction * len(self)))]))

    def split(self, fraction: Number = 0.9, *, seed: int = 0) -> tuple["Subset", "Subset"]:
        """Two disjoint subsets: a stratified fraction, and the rest."""
        if not 0 < fraction < 1:
            raise ValueError(f"fraction={fraction}: expected 0 < fraction < 1.")
        order = self._stratified_order(seed)
        cut = min(max(1, round(fraction * len(self))), len(self) - 1)
        return Subset(self, np.sort(order[:cut])), Subset(self, np.sort(order[cut:]))

    def few_shot(self, shots: int, *, seed: int = 0) -> "Subset":
        """`shots` images of every class. A class that has fewer is an error."""
        counts = np.bincount(self._single_labels(), minlength=len(self.classes))
        short = [f"{c} ({n})" for c, n in zip(self.classes, counts) if n < shots]
        if shots < 1 or short:
            lacking = f"; too few in {', '.join(short[:5])}{' ...' if len(short) > 5 else ''}" if short else ""
            raise ValueError(f"{self.name} does not have {shots} images of each class{lacking}.")
        return Subset(self, np.flatnonzero(self.ranks_within_class(seed) < shots))

    def sample(self, num: int, *, seed: int = 0) -> "Subset":
        """`num` images at random without replacement, in random order."""
        if not 0 < num <= len(self):
            raise ValueError(f"{self.name} has {len(self)} images; cannot sample {num}.")
        return Subset(self, permute(len(self), hash_key(seed, "sample"), np.arange(num)))

    def imbalanced(self, ratio: Number, *, seed: int = 0) -> "Subset":
        """A long-tailed subset: class sizes fall geometrically from the first class to 1 / ratio of it in the last.

        >>> import numpy as np
        >>> d = sl.data.Arrays(np.zeros((1000, 1, 1), np.uint8), np.arange(1000) % 10).imbalanced(10, seed=0)
        >>> d.counts()[:3], d.counts()[-1]
        ([100, 77, 60], 10)
        """
        if ratio < 1:
            raise ValueError(
                f"ratio={ratio}: expected at least 1, the size of the largest class relative to the smallest."
            )
        labels = self._single_labels()
        most = int(np.bincount(labels).max())
        keep = np.rint(most * ratio ** (-np.arange(len(self.classes)) / max(1, len(self.classes) - 1)))
        return Subset(self, np.flatnonzero(self.ranks_within_class(seed) < np.maximum(keep, 1)[labels]))

    def counts(self) -> list[int]:
        """Number of images of each class."""
        if self.labels.ndim == 2:
            return [int(n) for n in self.labels.sum(0)]
        return np.bincount(self.labels, minlength=len(self.classes)).tolist()

    def fingerprint(self) -> str:
        """32 hexadecimal digits that differ if a class, a label or an image does; a dataset may be moved and copied.

        Up to 256 MiB of files are read in full. Beyond that, the names, sizes and times of change of all of them count,
        and the content of a sample; of images that are drawn or fetched one by one, a sample.
        """
        everything = np.arange(len(self))
        stamps = self.stamps(everything)
        classes = repr((len(self), self.classes)).encode("utf-8", "surrogateescape")
        return fingerprints.of_images(
            classes + np.ascontiguousarray(self.labels).tobytes(),
            stamps,
            self._contents,
            count=len(self),
            sample=np.unique(permute(len(self), 0, np.arange(min(FINGERPRINT_IMAGES, len(self))))),
            quick=self.in_memory if stamps is None else sum(s.size for s in stamps) <= fingerprints.QUICK,
        )

    def stamps(self, indices: Ints) -> list[FileStamp] | None:
        """The files of these images; None where they are not in files of their own."""
        return None

    def _contents(self, indices: Ints) -> Iterator[bytes]:
        for image in self.images(indices):
            match image:
                case EncodedImage():
                    yield image.data
                case np.ndarray():
                    yield np.ascontiguousarray(image).tobytes()
                case _:
                    yield b"bad"

    def origins(self) -> tuple["Dataset", Ints]:
        """The dataset that was split or sampled, and the indices of these images in it."""
        return self, np.arange(len(self))

    def _validate_indices(self, indices: ArrayLike) -> Ints:
        chosen = np.atleast_1d(np.asarray(indices))
        if chosen.dtype == bool:
            chosen = np.flatnonzero(chosen)
        chosen = chosen.astype(np.int64)
        if chosen.size == 0 or chosen.min() < 0 or chosen.max() >= len(self):
            raise ValueError(f"indices: expected at least one, within 0..{len(self) - 1} for {self.name}.")
        return chosen

    def _single_labels(self) -> NDArray[np.int64]:
        if self.labels.ndim != 1:
            raise ValueError(f"{self.name} has several labels per image; expected one.")
        return self.labels.astype(np.int64, copy=False)

    def ranks_within_class(self, seed: int) -> Ints:
        """The rank of each image in a random order of its class."""
        labels = self._single_labels()
        chance = Draws(hash_key(seed, "class order"), np.arange(len(self))).uniform("rank")
        order = np.lexsort((chance, labels))
        starts = np.searchsorted(labels[order], np.arange(len(self.classes)))
        ranks = np.empty(len(self), dtype=np.int64)
        ranks[order] = np.arange(len(self)) - starts[labels[order]]
        return ranks

    def _stratified_order(self, seed: int) -> Ints:
        """All images in a random order, every prefix of which has the class frequencies of the whole."""
        if self.labels.ndim != 1:
            return permute(len(self), hash_key(seed, "spread"), np.arange(len(self)))
        labels = self._single_labels()
        counts = np.bincount(labels, minlength=len(self.classes))
        shift = Draws(hash_key(seed, "class shift"), np.arange(len(self.classes))).uniform("shift")
        return np.argsort((self.ranks_within_class(seed) + shift[labels]) / counts[labels], kind="stable")


class Subset(Dataset):
    """Images of another dataset by index; a subset of a subset refers to the original dataset."""

    def __init__(self, parent: Dataset, indices: Ints):
        source, origins = parent.origins()
        self.parent: Dataset = source
        self.indices: Ints = origins[indices]
        self.name, self.classes = parent.name, parent.classes
        self.labels = parent.labels[indices]
        self.in_memory = source.in_memory

    def image(self, index: int) -> RawImage:
        return self.parent.image(int(self.indices[index]))

    def images(self, indices: Ints) -> Sequence[RawImage | BadImage] | Pixels:
        return self.parent.images(self.indices[indices])

    def where(self, index: int) -> str:
        return self.parent.where(int(self.indices[index]))

    def origins(self) -> tuple[Dataset, Ints]:
        return self.parent, self.indices

    def stamps(self, indices: Ints) -> list[FileStamp] | None:
        return self.parent.stamps(self.indices[indices])
