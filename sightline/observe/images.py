"""Images for analyses: from any source, with each model's own preprocessing, batch by batch, with progress."""

import hashlib
import itertools
import logging
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.datasets import Dataset
from sightline.data.draws import hash_key, permute
from sightline.data.errors import BadImage
from sightline.data.images import normalize, read_bytes, resize_and_crop
from sightline.data.opening import model_batch, open_image
from sightline.data.scenes.scenes import Scenes
from sightline.memory import freed_memory_kept
from sightline.observe.model import ObservedModel
from sightline.progress import progress
from sightline.sharing import digest
from sightline.spec import About, ImageSpec

Data = Any  # a Dataset, a batch of images, or an iterable of images, files, pairs (image, label) or batches
log = logging.getLogger("sightline.observe")


@dataclass(frozen=True)
class Batch:
    """The same images preprocessed for each model, and their labels if they have any."""

    images: tuple[Tensor, ...]  # one batch per model
    labels: Tensor | None
    index: NDArray[np.int64]  # which images of the data these are: the same image has the same number in every pass

    def __len__(self) -> int:
        return len(self.images[0])

    def rows(self, keep: list[int]) -> "Batch":
        """Some of the images."""
        labels = None if self.labels is None else self.labels[keep]
        return Batch(tuple(images[keep] for images in self.images), labels, self.index[keep])

    def joined(self, other: "Batch") -> "Batch":
        """These images, then those of another batch."""
        known = self.labels is not None and other.labels is not None
        labels = torch.cat([self.labels, other.labels]) if known else None  # type: ignore[list-item]
        images = tuple(torch.cat(both) for both in zip(self.images, other.images))
        return Batch(images, labels, np.concatenate([self.index, other.index]))


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """A source of images that is iterated once for all models, and again for repeats unless it is an iterator.

    `n` takes a random sample, another one in each repeat; `shuffle` mixes the order, so that batches differ.
    `distinct` leaves out images that look to the first model exactly like an earlier one of the same pass, says so, and
    counts them in `duplicates`: pairs of one image with itself make unrelated features alike.
    """

    data: Data
    batch: int
    n: int | None = None
    seed: int = 0
    shuffle: bool = False
    distinct: bool = False
    duplicates: list[int] = field(default_factory=list, compare=False)  # how many each pass left out

    def __post_init__(self) -> None:
        if isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1:
            raise ValueError(f"batch must be a positive whole number; got {self.batch!r}.")
        if self.n is not None and (isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 1):
            raise ValueError(f"n must be a positive whole number, or None for all images; got {self.n!r}.")
        if not isinstance(self.data, Iterable) or isinstance(self.data, str | bytes | dict):
            what = f"a {type(self.data).__name__}"
            raise ValueError(f"Images must be a Dataset, a batch (b, 3, y, x) or an iterable of images; got {what}.")
        if isinstance(self.data, Tensor | np.ndarray) and self.data.ndim != 4:
            raise ValueError(f"A batch of images has four dimensions; got shape {tuple(self.data.shape)}.")

    @property
    def one_way(self) -> bool:
        """Whether it can be iterated only once."""
        return not isinstance(self.data, Dataset | Tensor | np.ndarray | Sequence) and iter(self.data) is self.data

    @property
    def total(self) -> int | None:
        """Number of images, if it is known in advance."""
        if not hasattr(self.data, "__len__"):
            return self.n
        have = len(self.data)
        return have if self.n is None else min(self.n, have)

    def fingerprint(self, repeats: int = 1) -> str:
        """Fingerprint of the images that will be used: the same for the same images, and empty for an iterator."""
        whole = fingerprint(self.data)
        have = len(self.data) if hasattr(self.data, "__len__") else None
        if not whole or self.n is None or (have is not None and self.n >= have):
            return whole
        return f"{whole}-n{self.n}-seed{self.seed}" + (f"-repeats{repeats}" if repeats > 1 else "")

    def about(self, *observed: ObservedModel, repeats: int = 1) -> About:
        """What a result on these images and models is about."""
        return About(models=tuple(s.id for s in observed), images=self.fingerprint(repeats))

    def batches(self, observed: Sequence[ObservedModel], *, repeat: int = 0, what: str = "looking") -> Iterator[Batch]:
        """Batches of one pass, with a progress bar if it takes longer than two seconds."""
        source = self._dataset(observed, repeat) if isinstance(self.data, Dataset) else self._iterate(observed, repeat)
        steps = math.ceil(self.total / self.batch) if self.total else 0
        empty = True
        batch: Batch
        shown = progress(cast(Sequence[Batch], Steps(source, steps)), what)
        with freed_memory_kept():
            for batch in self._distinct(shown) if self.distinct else shown:
                empty = False
                yield batch
        if empty:
            raise ValueError("There are no images to analyze.")

    def shown(self, batch: Batch, s: ObservedModel, side: int = 128) -> NDArray[np.uint8]:
        """The images of a batch for display, (b, height, width, 3), the longer side at most `side` pixels.

        Of a model that takes smaller images, what people see is larger than what the model sees: scenes are drawn again
        at that size, others opened again with the same crop.
        """
        high, wide = s.image.size
        if max(high, wide) < side and isinstance(self.data, Dataset):
            grow = side / max(high, wide)
            spec = replace(s.image, size=(round(high * grow), round(wide * grow)))
            try:
                raws = _enlarged(self.data.origins()[0], side).images(batch.index)
                return np.stack([np.asarray(resize_and_crop(open_image(raw), spec)) for raw in raws])
            except (BadImage, ValueError):  # an image that was replaced by another one of its class
                pass
        return thumbnails(batch.images[0], s.image, side)

    def _distinct(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Each image once, by its content; the next images fill the places of those that are left out."""
        seen: set[bytes] = set()
        left, rest = 0, None
        for batch in batches:
            keep = [i for i, image in enumerate(batch.images[0]) if _is_new(image, seen)]
            left += len(batch) - len(keep)
            new = batch if len(keep) == len(batch) else batch.rows(keep)
            rest = new if rest is None else rest.joined(new)
            if len(rest) >= self.batch:
                full = len(rest) == self.batch
                yield rest if full else rest.rows(list(range(self.batch)))
                rest = None if full else rest.rows(list(range(self.batch, len(rest))))
        if rest is not None and len(rest):
            yield rest
        self.duplicates.append(left)
        if left:
            what = "1 image is the same as another" if left == 1 else f"{left} images are the same as others"
            log.warning("Left out of the sample: %s.", what)

    def _dataset(self, observed: Sequence[ObservedModel], repeat: int) -> Iterator[Batch]:
        d: Dataset = self.data
        if len(d) == 0:
            raise ValueError(f"{d.name} is empty: there are no images to analyze.")
        if self.shuffle or (self.n is not None and self.n < len(d)):
            d = d.sample(min(self.n or len(d), len(d)), seed=hash_key(self.seed, "look", repeat) >> 1)
        specs = [s.image for s in observed]
        each = {spec: d.batches(spec, batch=self.batch, device=None) for spec in specs}
        numbers, start = d.origins()[1], 0
        for made in zip(*each.values()):
            bytes_ = {spec: images for spec, (images, _) in zip(each, made)}
            index = numbers[start : (start := start + len(made[0][1]))]
            yield Batch(tuple(_place(normalize(bytes_[s.image], s.image), s) for s in observed), made[0][1], index)

    def _iterate(self, observed: Sequence[ObservedModel], repeat: int) -> Iterator[Batch]:
        rows = self._rows(repeat)
        while chunk := list(itertools.islice(rows, self.batch)):
            numbers, pairs = zip(*chunk)
            raws, labels = zip(*pairs)
            images = tuple(_place(model_batch(raws, s.image), s) for s in observed)
            known = None if any(l is None for l in labels) else torch.as_tensor(labels)
            yield Batch(images, known, np.array(numbers))

    def _rows(self, repeat: int) -> Iterator[tuple[int, tuple[Any, Any]]]:
        """Single images, each with its number in the data, and its label or None, in the order of this pass."""
        data, key = self.data, hash_key(self.seed, "look", repeat)
        if isinstance(data, Tensor | np.ndarray) or (isinstance(data, Sequence) and _single(data)):
            total = len(data)
            mixed = self.shuffle or (self.n is not None and self.n < total)
            order = permute(total, key, np.arange(total)) if mixed else np.arange(total)
            return ((int(i), _pair(data[int(i)])) for i in order[: self.n])
        if repeat and self.one_way:
            raise ValueError("This iterator can be gone through only once: give a list or a Dataset for repeats.")
        return enumerate(itertools.islice(itertools.chain.from_iterable(map(_unbatched, data)), self.n))


# fingerprints of the datasets in use, so that a series of analyses reads the images for it only once
_known: ContextVar[dict[int, str]] = ContextVar("known fingerprints", default={})  # noqa: B039 (never changed in place)


@contextmanager
def known_fingerprint(data: Dataset) -> Iterator[str]:
    """Compute the fingerprint of a dataset now, and reuse it while this is open, in this thread."""
    found = data.fingerprint()
    token = _known.set({**_known.get(), id(data): found})
    try:
        yield found
    finally:
        _known.reset(token)


def fingerprint(data: Data) -> str:
    """Fingerprint of images as given; empty for an iterator, which reading would use up."""
    if isinstance(data, Dataset):
        return _known.get().get(id(data)) or data.fingerprint()
    if not isinstance(data, Tensor | np.ndarray | Sequence):
        return ""
    digest = hashlib.blake2b(digest_size=8)
    for item in (data,) if isinstance(data, Tensor | np.ndarray) else data:
        image = _pair(item)[0]
        if isinstance(image, str | os.PathLike):
            image = np.frombuffer(read_bytes(os.fspath(image)).data, np.uint8)
        if isinstance(image, Tensor):
            digest.update(str(image.dtype).encode())
            image = image.detach().cpu().contiguous().view(torch.uint8) if image.ndim else image
        array = np.asarray(image)
        if array.dtype == object:
            return ""
        digest.update(repr((array.dtype.str, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


class Steps:
    """Batches and how many there are, for the progress bar."""

    def __init__(self, batches: Iterator[Batch], count: int):
        self.iterator, self.count = batches, count

    def __iter__(self) -> Iterator[Batch]:
        return self.iterator

    def __len__(self) -> int:
        return self.count


def _pair(item: Any) -> tuple[Any, Any]:
    return (item[0], item[1]) if isinstance(item, tuple) and len(item) == 2 else (item, None)


def _is_new(image: Tensor, seen: set[bytes]) -> bool:
    """Whether no image of this content was seen before; it counts as seen from now on."""
    name = digest(image)
    known = name in seen
    seen.add(name)
    return not known


def _enlarged(data: Dataset, side: int) -> Dataset:
    """Scenes drawn at another size; other data as it is."""
    if not isinstance(data, Scenes):
        return data
    return Scenes(data.task, split=data.split_name, num=len(data), size=max(side, data.size), seed=data.seed)


def _single(data: Sequence) -> bool:
    """Whether a list holds single images, not batches."""
    return len(data) > 0 and getattr(_pair(data[0])[0], "ndim", 3) == 3


def _unbatched(item: Any) -> Iterator[tuple[Any, Any]]:
    image, label = _pair(item)
    if isinstance(image, Tensor | np.ndarray) and image.ndim == 4:
        return zip(image, itertools.repeat(None) if label is None else label)
    return iter([(image, label)])


def _place(images: Tensor, s: ObservedModel) -> Tensor:
    device, dtype = s.place
    return images.to(device=device, dtype=dtype)


def thumbnails(images: Tensor, spec: ImageSpec, side: int = 128) -> np.ndarray:
    """Preprocessed images as uint8 (b, height, width, 3) for display, the longer side at most `side` pixels."""
    mean, std = (torch.tensor(v, dtype=torch.float32)[:, None, None] for v in (spec.mean, spec.std))
    shown = images.detach().float().cpu() * std + mean
    shrink = side / max(shown.shape[2:])
    if shrink < 1:
        size = [max(1, round(s * shrink)) for s in shown.shape[2:]]
        shown = F.interpolate(shown, size=size, mode="bilinear", antialias=True)
    shown = shown if shown.shape[1] == 3 else shown[:, :1].expand(-1, 3, -1, -1)
    return (shown.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
