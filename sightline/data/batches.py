"""Batches that depend on (seed, epoch) alone: not on workers, ranks, or where a run was resumed.

A batch is a function of its number: the number gives positions in the epoch, a keyed permutation gives the images at
those positions, and random draws are keyed by (seed, epoch, index). Any process can make any batch at any time.
"""

import logging
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from sightline.data.augment.augment import Augment, alternating_flips, mix
from sightline.data.collate import Collation
from sightline.data.draws import Draws, Ints, hash_key
from sightline.data.errors import TooManyBad
from sightline.data.images import normalize
from sightline.data.labeled import LabeledImages
from sightline.spec import ImageSpec

log = logging.getLogger("sightline.data")
ByteBatch = tuple[Tensor, Tensor, dict[str, str]]  # images (uint8), labels, reasons of unreadable images by name


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The pairs (images, labels) of one epoch for one model; it can be iterated any number of times.

    For training (`train=Augment(...)`) the order is shuffled and all batches are full; a dataset smaller than one batch
    is repeated until it fills one. For evaluation (`train=None`) every image comes once, in order.

    `batch` is the global batch size; rank r of `world` gets the r-th contiguous part of each batch. `start` skips
    batches without reading them. With `device=None` images stay uint8 (b, 3, y, x) on the CPU; otherwise they are moved
    to the device and normalized there. Labels are class indices (b,), or weights of classes (b, k) with mixup, cutmix
    or several labels per image.

    An unreadable image is replaced by the next readable one of its class, and named in the log and in `bad`. TooManyBad
    is raised if there are more than one and more than 1 % of the dataset.

    >>> import numpy as np
    >>> d = sl.data.Arrays(np.zeros((100, 32, 32, 3), np.uint8), np.arange(100) % 20)
    >>> b = d.batches(sl.ImageSpec(size=(32, 32)), batch=20, train=sl.data.Augment(mixup=0.2), seed=1, epoch=3)
    >>> images, labels = next(iter(b))
    >>> len(b), images.shape, labels.shape
    (5, torch.Size([20, 3, 32, 32]), torch.Size([20, 20]))
    """

    dataset: LabeledImages
    spec: ImageSpec
    batch: int
    train: Augment | None = None
    shuffle: bool | None = None  # None: only for training
    seed: int = 0
    epoch: int = 0
    start: int = 0
    workers: int = 0
    rank: int = 0
    world: int = 1
    device: str | torch.device | None = "cpu"
    bad: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        _require(self.batch >= 1, f"batch={self.batch}: a batch has at least one image")
        _require(len(self.dataset) >= 1, f"{self.dataset.name} is empty")
        _require(self.workers >= 0, f"workers={self.workers}: expected 0 or more")
        _require(0 <= self.rank < self.world, f"rank={self.rank} of world={self.world}: expected 0 <= rank < world")
        _require(self.start >= 0, f"start={self.start}: expected 0 or more")
        if self.train is not None:
            _require(self.batch % self.world == 0, f"batch={self.batch} is not a multiple of {self.world} ranks")
            share = self.batch // self.world
            paired = self.world == 1 or not self.train.mixes or share % 2 == 0
            _require(
                paired,
                f"batch={self.batch} on {self.world} ranks is {share} each; mixup and cutmix need an even number",
            )

    @property
    def steps(self) -> int:
        """Number of batches in the whole epoch."""
        if self.train is None:
            return math.ceil(len(self.dataset) / self.batch)
        return max(1, len(self.dataset) // self.batch)

    def __len__(self) -> int:
        return max(0, self.steps - self.start)

    def indices(self, step: int) -> tuple[Ints, Ints]:
        """The indices of the images of this rank in batch number `step`, and which repetition each of them is."""
        n = len(self.dataset)
        end = self.batch if self.train else min(self.batch, n - step * self.batch)
        first, last = (end * r // self.world for r in (self.rank, self.rank + 1))
        positions = step * self.batch + np.arange(first, last)
        repeats = self.train.repeats if self.train else 1
        repetitions = positions % repeats
        positions = positions // repeats
        lap, positions = positions // n, positions % n  # more than one lap only if the dataset is smaller than a batch
        shuffle = self.train is not None if self.shuffle is None else self.shuffle
        if not shuffle:
            return positions, lap * repeats + repetitions
        indices = np.empty_like(positions)
        for each in np.unique(lap):
            key = self.seed if each == 0 else hash_key(self.seed, "lap", int(each))
            indices[lap == each] = self.dataset.order(key, self.epoch, positions[lap == each])
        return indices, lap * repeats + repetitions

    def make_batch(self, step: int) -> ByteBatch:
        """Batch number `step`, as uint8 on the CPU."""
        indices, repetitions = self.indices(step)
        labels = _targets(self.dataset.labels[indices], len(self.dataset.classes), self.train)
        if len(indices) == 0:  # fewer images than ranks in the last batch of an evaluation
            return torch.empty(0, 3, *self.spec.size, dtype=torch.uint8), labels, {}
        draws = Draws(hash_key(self.seed, self.epoch, "augment"), indices * 4096 + repetitions)
        mirror = None
        if self.train is not None and self.train.flip == "alternating":
            mirror = alternating_flips(Draws(hash_key(self.seed, "flip"), indices), self.epoch + repetitions)
        collation = Collation(
            dataset=self.dataset, spec=self.spec, train=self.train, indices=indices, draws=draws, mirror=mirror
        )
        images = collation.images()
        if self.train is not None and self.train.mixes:
            images, labels = mix(images, labels, augment=self.train, key=hash_key(self.seed, self.epoch, step))
        return images, labels, collation.bad

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self._stream():
            if isinstance(batch, Exception):
                raise batch
            images, labels, bad = batch
            self._record_bad(bad)
            if self.device is None:
                yield images, labels
            else:
                moved = images.to(self.device, non_blocking=True)
                yield normalize(moved, self.spec), labels.to(self.device, non_blocking=True)

    def _stream(self) -> Iterator[ByteBatch | ValueError]:
        steps = range(self.start, self.steps)
        if self.workers == 0 or not steps:
            return map(self.make_batch, steps)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # torch warns about more workers than cores; the number is the caller's choice
            return iter(DataLoader(_Steps(self), batch_size=None, sampler=steps, num_workers=self.workers))

    def _record_bad(self, bad: dict[str, str]) -> None:
        for name, reason in bad.items():
            if name not in self.bad:
                self.bad[name] = reason
                log.warning("bad image, replaced by another one of its class: %s", reason)
        if len(self.bad) > max(1, 0.01 * len(self.dataset)):
            raise TooManyBad(self.bad, len(self.dataset))


class _Steps(TorchDataset[ByteBatch | ValueError]):
    """Batches by number, for the worker processes of a DataLoader."""

    def __init__(self, batches: Batches):
        self.batches = batches

    def __len__(self) -> int:
        return self.batches.steps

    def __getitem__(self, step: int) -> ByteBatch | ValueError:
        try:
            return self.batches.make_batch(step)
        except ValueError as error:
            return error  # torch would raise a copy made from its text, without its attributes


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(f"{message}.")


def _targets(labels: Any, classes: int, train: Augment | None) -> Tensor:
    """Class indices, or weights of classes if an image can have several."""
    if labels.ndim == 2:
        return torch.from_numpy(labels.astype(np.float32))
    indices = torch.from_numpy(np.ascontiguousarray(labels, dtype=np.int64))
    if train is None or not train.mixes:
        return indices
    return torch.nn.functional.one_hot(indices, classes).float()
