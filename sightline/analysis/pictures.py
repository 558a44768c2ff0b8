"""Pictures for looking at models: any source, each model's own preprocessing, batch by batch, with progress."""

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from sightline.analysis.subject import Subject
from sightline.data.dataset import Dataset
from sightline.data.draws import shuffled, word
from sightline.data.images import accept, decode, fit, normalise, read_bytes, to_tensor
from sightline.data.progress import progress
from sightline.spec import ImageSpec

Data = Any  # a Dataset, a batch of pictures, or an iterable of pictures, files, pairs (picture, label) or batches


@dataclass(frozen=True)
class Batch:
    """The same pictures as each model wants them, and their labels where they have any."""

    images: tuple[Tensor, ...]  # one batch per subject
    labels: Tensor | None

    def __len__(self) -> int:
        return len(self.images[0])


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """A source of pictures that can be gone through once for all models, and again if it is no one-way iterator.

    `n` takes a random sample, another one in each repeat; `shuffle` mixes the order, so that batches differ.
    """

    data: Data
    batch: int
    n: int | None = None
    seed: int = 0
    shuffle: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1:
            raise ValueError(f"batch is a whole number from 1 up; got {self.batch!r}.")
        if self.n is not None and (isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 1):
            raise ValueError(f"n is a whole number from 1 up, or None for all pictures; got {self.n!r}.")
        if not isinstance(self.data, Iterable) or isinstance(self.data, str | bytes | dict):
            what = f"a {type(self.data).__name__}"
            raise ValueError(
                f"Pictures come as a Dataset, a batch (b, 3, y, x) or an iterable of pictures; got {what}."
            )
        if isinstance(self.data, Tensor | np.ndarray) and self.data.ndim != 4:
            raise ValueError(f"A batch of pictures has four dimensions; got shape {tuple(self.data.shape)}.")

    @property
    def one_way(self) -> bool:
        """Whether it can be gone through only once."""
        return not isinstance(self.data, Dataset | Tensor | np.ndarray | Sequence) and iter(self.data) is self.data

    @property
    def total(self) -> int | None:
        """How many pictures will come, where that is known before."""
        if not hasattr(self.data, "__len__"):
            return self.n
        have = len(self.data)
        return have if self.n is None else min(self.n, have)

    def batches(self, subjects: Sequence[Subject], *, repeat: int = 0, what: str = "looking") -> Iterator[Batch]:
        """Batches of one pass, with a bar for what takes longer than two seconds."""
        source = self._dataset(subjects, repeat) if isinstance(self.data, Dataset) else self._loose(subjects, repeat)
        steps = math.ceil(self.total / self.batch) if self.total else 0
        empty = True
        batch: Batch
        for batch in progress(cast(Sequence[Batch], Steps(source, steps)), what):
            empty = False
            yield batch
        if empty:
            raise ValueError("There are no pictures to look at.")

    def _dataset(self, subjects: Sequence[Subject], repeat: int) -> Iterator[Batch]:
        d: Dataset = self.data
        if len(d) == 0:
            raise ValueError(f"{d.name} is empty: there are no pictures to look at.")
        if self.shuffle or (self.n is not None and self.n < len(d)):
            d = d.sample(min(self.n or len(d), len(d)), seed=word(self.seed, "look", repeat) >> 1)
        specs = [s.image for s in subjects]
        each = {spec: d.batches(spec, batch=self.batch, device=None) for spec in specs}
        for made in zip(*each.values()):
            bytes_ = {spec: images for spec, (images, _) in zip(each, made)}
            yield Batch(tuple(_placed(normalise(bytes_[s.image], s.image), s) for s in subjects), made[0][1])

    def _loose(self, subjects: Sequence[Subject], repeat: int) -> Iterator[Batch]:
        rows = self._rows(repeat)
        while chunk := list(itertools.islice(rows, self.batch)):
            pictures, labels = zip(*chunk)
            images = tuple(_placed(_fitted(pictures, s.image), s) for s in subjects)
            yield Batch(images, None if any(l is None for l in labels) else torch.as_tensor(labels))

    def _rows(self, repeat: int) -> Iterator[tuple[Any, Any]]:
        """Single pictures with labels or None, in the order of this pass."""
        data, key = self.data, word(self.seed, "look", repeat)
        if isinstance(data, Tensor | np.ndarray) or (isinstance(data, Sequence) and _single(data)):
            total = len(data)
            mixed = self.shuffle or (self.n is not None and self.n < total)
            order = shuffled(total, key, np.arange(total)) if mixed else np.arange(total)
            return (_pair(data[int(i)]) for i in order[: self.n])
        if repeat and self.one_way:
            raise ValueError("This iterator can be gone through only once: give a list or a Dataset for repeats.")
        return itertools.islice(itertools.chain.from_iterable(map(_unbatched, data)), self.n)


class Steps:
    """Batches with their number, for the bar."""

    def __init__(self, batches: Iterator[Batch], count: int):
        self.iterator, self.count = batches, count

    def __iter__(self) -> Iterator[Batch]:
        return self.iterator

    def __len__(self) -> int:
        return self.count


def _pair(item: Any) -> tuple[Any, Any]:
    return (item[0], item[1]) if isinstance(item, tuple) and len(item) == 2 else (item, None)


def _single(data: Sequence) -> bool:
    """Whether a list holds pictures, and not batches of them."""
    return len(data) > 0 and getattr(_pair(data[0])[0], "ndim", 3) == 3


def _unbatched(item: Any) -> Iterator[tuple[Any, Any]]:
    picture, label = _pair(item)
    if isinstance(picture, Tensor | np.ndarray) and picture.ndim == 4:
        return zip(picture, itertools.repeat(None) if label is None else label)
    return iter([(picture, label)])


def _fitted(pictures: Sequence[Any], spec: ImageSpec) -> Tensor:
    """One batch for a model. Numbers that are no bytes count as prepared already."""
    first = pictures[0]
    if isinstance(first, Tensor) and first.is_floating_point():
        shapes = {tuple(p.shape) for p in pictures}
        if shapes != {(len(spec.mean), *spec.size)}:
            raise ValueError(
                f"Prepared pictures for this model are {(len(spec.mean), *spec.size)}; got {sorted(shapes)}. "
                "Give bytes, files or a Dataset, and each model prepares them itself."
            )
        batch = torch.stack(list(pictures))
        if not torch.isfinite(batch).all():
            raise ValueError("The pictures hold NaN or infinite values.")
        return batch
    return normalise(to_tensor([fit(_opened(p), spec) for p in pictures]), spec)


def _opened(picture: Any) -> Image.Image:
    match picture:
        case Image.Image():
            return accept(picture, "An image")
        case str() | os.PathLike():
            return decode(read_bytes(Path(picture)))
        case Tensor() if picture.dtype == torch.uint8 and picture.ndim == 3 and picture.shape[0] == 3:
            return _opened(picture.permute(1, 2, 0).numpy())
        case np.ndarray() if picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3:
            return accept(Image.fromarray(np.ascontiguousarray(picture)), "An image")
    what = f"{type(picture).__name__} {tuple(getattr(picture, 'shape', ()))} {getattr(picture, 'dtype', '')}"
    raise ValueError(
        "A picture is a file, a PIL image, bytes (h, w, 3) of NumPy or (3, h, w) of torch, or a prepared float tensor "
        f"(3, h, w); got {what.strip()}."
    )


def _placed(images: Tensor, s: Subject) -> Tensor:
    device, dtype = s.place
    return images.to(device=device, dtype=dtype)


def thumbnails(images: Tensor, spec: ImageSpec, side: int = 128) -> np.ndarray:
    """Prepared pictures as bytes (b, height, width, 3) to be shown, the longer side at most so long."""
    mean, std = (torch.tensor(v, dtype=torch.float32)[:, None, None] for v in (spec.mean, spec.std))
    shown = images.detach().float().cpu() * std + mean
    shrink = side / max(shown.shape[2:])
    if shrink < 1:
        size = [max(1, round(s * shrink)) for s in shown.shape[2:]]
        shown = F.interpolate(shown, size=size, mode="bilinear", antialias=True)
    shown = shown if shown.shape[1] == 3 else shown[:, :1].expand(-1, 3, -1, -1)
    return (shown.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
