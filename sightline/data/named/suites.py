"""Suites of small tasks: the nineteen of VTAB-1k for those who have the data, and scenes-vtab, which runs anywhere.

Both with one protocol: 800 images to train, 200 to choose settings on, all 1,000 for the final training, a test set.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sightline.data.datasets import Dataset, Subset
from sightline.data.errors import shown
from sightline.data.named.store import data_folder
from sightline.data.scenes.tasks import TASKS
from sightline.data.source import dataset

TRAIN, VAL = 800, 200


@dataclass(frozen=True, kw_only=True)
class SuiteTask:
    """One task of a suite. `rule` says how its label comes about, `flip` and `crop` whether training may do so
    (BiT, appendix F: a mirror image of a pose has another label).

    >>> sl.data.suite("vtab")[12].name, sl.data.suite("vtab")[12].group, sl.data.suite("vtab")[12].crop
    ('clevr-distance', 'structured', False)
    """

    suite: str
    name: str
    group: str  # natural, specialized, structured
    classes: int
    rule: str
    source: str  # what sl.dataset opens; for VTAB, a folder of the user's
    flip: bool = True
    crop: bool = True
    test: int | None = None  # images in the test set, where we make it

    def splits(self, *, root: str | Path | None = None, **settings: Any) -> dict[str, Dataset]:
        """train800, val200, train1000 (both of them) and test.

        >>> parts = sl.data.suite("scenes-vtab")[0].splits()
        >>> {name: len(part) for name, part in parts.items()}
        {'train800': 800, 'val200': 200, 'train1000': 1000, 'test': 2000}
        """
        if self.suite == "scenes-vtab":
            train = dataset(self.source, split="train", num=TRAIN + VAL, **settings)
            return _protocol(train, None, dataset(self.source, split="test", num=self.test, **settings))
        folder = data_folder(root) / "vtab" / self.source
        if not folder.is_dir():
            raise ValueError(
                f"vtab/{self.name} is not in {shown(folder)}. Put train/, val/ and test/ there, one folder per class, "
                f"with labels as VTAB makes them ({self.rule})."
            )
        parts = {s: dataset(folder, split=s, **settings) for s in ("train", "val", "test") if (folder / s).is_dir()}
        missing = {"train", "test"} - set(parts)
        if missing:
            raise ValueError(f"{shown(folder)} lacks {' and '.join(sorted(missing))}.")
        if len(parts["train"].classes) != self.classes:
            raise ValueError(
                f"{shown(folder)} has {len(parts['train'].classes)} classes; {self.name} has {self.classes}."
            )
        return _protocol(parts["train"], parts.get("val"), parts["test"])


def _protocol(train: Dataset, val: Dataset | None, test: Dataset) -> dict[str, Dataset]:
    """The first 800 of the training split in a fixed shuffled order, and 200 of the validation split or of the rest."""
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
    return {"train800": first, "val200": second, "train1000": Joined(first, second), "test": test}


class Joined(Dataset):
    """Two datasets with the same classes, one after the other."""

    def __init__(self, first: Dataset, second: Dataset):
        if first.classes != second.classes:
            raise ValueError(f"{first.name} and {second.name} have different classes.")
        self.first, self.second, self.name, self.classes = first, second, first.name, first.classes
        self.labels = np.concatenate([first.labels, second.labels])

    def _part(self, index: int) -> tuple[Dataset, int]:
        return (self.first, index) if index < len(self.first) else (self.second, index - len(self.first))

    def image(self, index: int):  # type: ignore[no-untyped-def]
        part, row = self._part(index)
        return part.image(row)

    def where(self, index: int) -> str:
        part, row = self._part(index)
        return part.where(row)


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
SUITES = ("vtab", "scenes-vtab")


def suite(name: str) -> tuple[SuiteTask, ...]:
    """The tasks of a suite.

    >>> len(sl.data.suite("vtab")), [t.name for t in sl.data.suite("scenes-vtab")][:3]
    (19, ['objects', 'shape', 'texture'])
    """
    if name == "vtab":
        return tuple(_task("vtab", *row, source=row[0]) for row in _VTAB)
    if name == "scenes-vtab":
        rows = [(n, t.group, len(t.classes), t.about) for n, t in TASKS.items() if t.group]
        return tuple(_task(name, *row, source=f"scenes/{row[0]}", test=2_000) for row in rows)
    raise ValueError(f"There is no suite {shown(name)}; there is {' and '.join(SUITES)}.")


def _task(
    suite: str, name: str, group: str, classes: int, rule: str, *, source: str, test: int | None = None
) -> SuiteTask:
    flip, crop = name not in NO_FLIP, name not in NO_CROP
    return SuiteTask(
        suite=suite, name=name, group=group, classes=classes, rule=rule, source=source, flip=flip, crop=crop, test=test
    )
