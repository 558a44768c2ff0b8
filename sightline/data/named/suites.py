"""Suites of small tasks: VTAB-1k, if you have its data, and scenes-vtab, which needs no data.

Both follow one protocol: 800 training images, 200 validation images, all 1,000 for the final training, and a test set.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sightline.data.datasets import Dataset, Subset
from sightline.data.draws import Ints
from sightline.data.errors import printable
from sightline.data.images import RawImage
from sightline.data.named.store import data_folder
from sightline.data.scenes.tasks import TASKS
from sightline.data.source import available_splits, dataset
from sightline.fingerprints import FileStamp

TRAIN, VAL = 800, 200


@dataclass(frozen=True, kw_only=True)
class SuiteTask:
    """One task of a suite. `rule` defines its labels; `flip` and `crop` say whether training may flip and crop its
    images (BiT, appendix F: the mirror image of a pose has another label).

    >>> sl.data.suite("vtab")[12].name, sl.data.suite("vtab")[12].group, sl.data.suite("vtab")[12].crop
    ('clevr-distance', 'structured', False)
    """

    suite: str
    name: str
    group: str  # natural, specialized, structured
    classes: int
    rule: str
    source: str  # the argument of `dataset`; for VTAB, a folder of the user
    flip: bool = True
    crop: bool = True
    test: int | None = None  # images in a test set that is drawn on demand

    def splits(self, *, root: str | Path | None = None, **options: Any) -> dict[str, Dataset]:
        """The datasets train800, val200, train1000 (both together) and test.

        >>> parts = sl.data.suite("scenes-vtab")[0].splits()
        >>> {name: len(part) for name, part in parts.items()}
        {'train800': 800, 'val200': 200, 'train1000': 1000, 'test': 2000}
        """
        train, val, test = _SUITES[self.suite].open(self, root, **options)
        return _protocol(train, val, test)


Parts = tuple[Dataset, Dataset | None, Dataset]  # train, val if it exists, test


def _open_scenes(task: SuiteTask, root: str | Path | None, **options: Any) -> Parts:
    train = dataset(task.source, split="train", num=TRAIN + VAL, **options)
    return train, None, dataset(task.source, split="test", num=task.test, **options)


def _open_folders(task: SuiteTask, root: str | Path | None, **options: Any) -> Parts:
    """A user's own copy: train/, val/ and test/, one folder per class."""
    folder = data_folder(root) / task.suite / task.source
    if not folder.is_dir():
        raise ValueError(
            f"{task.suite}/{task.name} is not in {printable(folder)}. Put train/, val/ and test/ there, one folder per "
            f"class, with the labels of VTAB ({task.rule})."
        )
    parts = {s: dataset(folder, split=s, **options) for s in available_splits(folder)}
    if missing := {"train", "test"} - set(parts):
        raise ValueError(f"{printable(folder)} has no {' and no '.join(sorted(missing))}.")
    if len(parts["train"].classes) != task.classes:
        raise ValueError(
            f"{printable(folder)} has {len(parts['train'].classes)} classes; {task.name} has {task.classes}."
        )
    return parts["train"], parts.get("val"), parts["test"]


def _protocol(train: Dataset, val: Dataset | None, test: Dataset) -> dict[str, Dataset]:
    """The first 800 training images in a fixed shuffled order, and 200 of the validation split or of the rest."""
    if len(train) < TRAIN + (0 if val else VAL) or (val is not None and len(val) < VAL):
        raise ValueError(f"{train.name} is too small for the 800/200 protocol.")
    order = train.sample(len(train), seed=0).origins()[1]
    source, _ = train.origins()
    first = Subset(source, order[:TRAIN])
    if val is None:
        return {
            "train800": first,
            "val200": Subset(source, order[TRAIN : TRAIN + VAL]),
            "train1000": Subset(source, order[: TRAIN + VAL]),
            "test": test,
        }
    second = val.sample(VAL, seed=0)
    return {"train800": first, "val200": second, "train1000": ConcatDataset(first, second), "test": test}


class ConcatDataset(Dataset):
    """Two datasets with the same classes, concatenated."""

    def __init__(self, first: Dataset, second: Dataset):
        if first.classes != second.classes:
            raise ValueError(f"{first.name} and {second.name} have different classes.")
        self.first, self.second, self.name, self.classes = first, second, first.name, first.classes
        self.labels = np.concatenate([first.labels, second.labels])

    def _part(self, index: int) -> tuple[Dataset, int]:
        return (self.first, index) if index < len(self.first) else (self.second, index - len(self.first))

    def image(self, index: int) -> RawImage:
        part, row = self._part(index)
        return part.image(row)

    def where(self, index: int) -> str:
        part, row = self._part(index)
        return part.where(row)

    def stamps(self, indices: Ints) -> list[FileStamp] | None:
        n = len(self.first)
        first, second = self.first.stamps(indices[indices < n]), self.second.stamps(indices[indices >= n] - n)
        return None if first is None or second is None else first + second


# name, group, classes, label rule (task_adaptation's data files), BiT's exceptions
_VTAB = (
    ("caltech101", "natural", 102, "Caltech-101 3.x; val is the last 10 % of train"),
    ("cifar-100", "natural", 100, "fine labels; 90 % train, 10 % val"),
    ("dtd", "natural", 47, "official splits"),
    ("flowers102", "natural", 102, "official splits"),
    ("pets", "natural", 37, "breeds; 80 % train, 20 % val"),
    ("sun397", "natural", 397, "the splits of TensorFlow Datasets"),
    ("svhn", "natural", 10, "cropped digits; 90 % train, 10 % val"),
    ("patch-camelyon", "specialized", 2, "official splits"),
    ("eurosat", "specialized", 10, "60 % train, 20 % val, 20 % test"),
    ("resisc45", "specialized", 45, "60 % train, 20 % val, 20 % test"),
    ("diabetic-retinopathy", "specialized", 5, "grade, images prepared as btgraham-300"),
    ("clevr-count", "structured", 8, "number of objects - 3; test is the official validation split"),
    ("clevr-distance", "structured", 6, "depth of the nearest object, cut at 8, 8.5, 9, 9.5, 10"),
    ("dmlab", "structured", 6, "(close, far, very far) x (positive, negative reward)"),
    ("dsprites-location", "structured", 16, "x position in 16 groups; 80/10/10 %"),
    ("dsprites-orientation", "structured", 16, "orientation in 16 groups; 80/10/10 %"),
    ("kitti-distance", "structured", 4, "nearest car, van or truck, cut at 8 and 20; or none"),
    ("smallnorb-azimuth", "structured", 18, "label_azimuth; val is the first half of test"),
    ("smallnorb-elevation", "structured", 9, "label_elevation; val is the first half of test"),
)
NO_FLIP = ("dsprites-orientation", "smallnorb-azimuth", "dsprites-location", "orientation", "location", "layout")
NO_CROP = (
    "clevr-count",
    "clevr-distance",
    "dmlab",
    "kitti-distance",
    "dsprites-location",
    "count",
    "distance",
    "location",
    "grade",
)


@dataclass(frozen=True)
class _Suite:
    tasks: Callable[[], Iterator[SuiteTask]]
    open: Callable[..., Parts]  # (task, root, **options)


def _vtab_tasks() -> Iterator[SuiteTask]:
    for name, group, classes, rule in _VTAB:
        yield _task("vtab", name, group=group, classes=classes, rule=rule, source=name)


def _scene_tasks() -> Iterator[SuiteTask]:
    for name, t in TASKS.items():
        if t.group:
            source, classes = f"scenes/{name}", len(t.classes)
            yield _task("scenes-vtab", name, group=t.group, classes=classes, rule=t.about, source=source, test=2_000)


def _task(suite: str, name: str, **fields: Any) -> SuiteTask:
    return SuiteTask(suite=suite, name=name, flip=name not in NO_FLIP, crop=name not in NO_CROP, **fields)


_SUITES = {
    "vtab": _Suite(_vtab_tasks, _open_folders),
    "scenes-vtab": _Suite(_scene_tasks, _open_scenes),
}


def suite(name: str) -> tuple[SuiteTask, ...]:
    """The tasks of a suite: "vtab" or "scenes-vtab".

    >>> len(sl.data.suite("vtab")), [t.name for t in sl.data.suite("scenes-vtab")][:3]
    (19, ['objects', 'shape', 'texture'])
    """
    if name not in _SUITES:
        raise ValueError(f"There is no suite {printable(name)}; the suites are {' and '.join(_SUITES)}.")
    return tuple(_SUITES[name].tasks())
