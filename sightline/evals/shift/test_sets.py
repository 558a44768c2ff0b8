"""One model on several test sets: of the same classes, or of those of ImageNet's classes that a second set has."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.data.datasets import Dataset
from sightline.data.named.imagenet import imagenet_classes
from sightline.data.named.second_sets import ClassMap, WithoutBorder, class_maps, find_class_map
from sightline.evals.accuracy import TTA, Classification, check_classifier, logits, match_classes, score
from sightline.evals.extraction import describe
from sightline.evals.inputs import combine
from sightline.evals.interval import NO_ENDS, Ends, known_ends, of_difference, wilson
from sightline.observe.identity import identify
from sightline.observe.images import fingerprint
from sightline.references.matching import published_name
from sightline.spec import About, Result

Groups = tuple[tuple[int, ...], ...]  # the model's class numbers of each class of a test set


@dataclass(frozen=True, kw_only=True)
class TestSets(Result):
    """Accuracy of one model on several test sets, such as ImageNet val and ImageNet-V2.

    `top1` is over the classes that a set and the model share: images of other classes are left out, and other classes
    cannot be predicted. `open_top1` allows every class of the model. `first_top1` is that of the first set on the same
    classes, so that their difference is due to the images.

    >>> import numpy as np
    >>> sl.evals.TestSets(title="", caption="", names=("val", "v2"), top1=np.array([.8, .7]), top5=np.array([.9, .8]),
    ...             low=np.zeros(2), high=np.ones(2), counts=np.array([10, 10])).summary()
    {'val': 0.8, 'v2': 0.7, 'v2 - val': -0.1}
    """

    __test__ = False  # not a test case, despite its name

    names: tuple[str, ...]
    top1: NDArray[np.float64]
    top5: NDArray[np.float64]
    low: NDArray[np.float64]  # ends of the 95 % interval of top-1
    high: NDArray[np.float64]
    counts: NDArray[np.int64]
    classes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # that each set shares
    open_top1: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    first_top1: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # NaN where it has no such images
    first_counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # its such images

    def baseline(self, i: int) -> float:
        """Top-1 of the first set on the classes of set `i`; on all of its own where that is not known."""
        return float(self.first_top1[i] if len(self.first_top1) else self.top1[0])

    def summary(self) -> dict[str, float]:
        out = {name: float(v) for name, v in zip(self.names, self.top1)}
        first, whole = self.names[0], self.classes[0] if len(self.classes) else 0
        for i, name in enumerate(self.names[1:], 1):
            if len(self.classes) and self.classes[i] != whole:
                out[f"{name}, of all classes"] = float(self.open_top1[i])
                out[f"{first}, {self.classes[i]} classes of {name}"] = self.baseline(i)
            out[f"{name} - {first}"] = round(float(self.top1[i]) - self.baseline(i), 12)
        return out

    def baseline_interval(self, i: int) -> Ends:
        """95 % interval of `baseline`."""
        if not len(self.first_top1):
            return float(self.low[0]), float(self.high[0])
        n = int(self.first_counts[i]) if len(self.first_counts) else 0
        return wilson(round(self.baseline(i) * n), n) if np.isfinite(self.baseline(i)) else NO_ENDS

    def intervals(self) -> dict[str, Ends]:
        found = {name: (float(low), float(high)) for name, low, high in zip(self.names, self.low, self.high)}
        first, whole = self.names[0], self.classes[0] if len(self.classes) else 0
        for i, name in enumerate(self.names[1:], 1):
            if len(self.classes) and self.classes[i] != whole:
                n = int(self.counts[i])
                found[f"{name}, of all classes"] = wilson(round(float(self.open_top1[i]) * n), n)
                found[f"{first}, {self.classes[i]} classes of {name}"] = self.baseline_interval(i)
            values = float(self.top1[i]), self.baseline(i)
            found[f"{name} - {first}"] = of_difference(*values, found[name], self.baseline_interval(i))
        return known_ends(found)


def evaluate_sets(
    model: Any,
    sets: Mapping[str, Dataset],
    *,
    batch: int = 64,
    workers: int = 0,
    tta: TTA | None = None,
    maps: Mapping[str, ClassMap] | None = None,
) -> TestSets:
    """The same model on several test sets, the first being the one that the others are compared with.

    A model of ImageNet's 1,000 classes takes folders of ImageNet-V2, -Sketch, -R, -A and ObjectNet as they are
    distributed. They are recognized by their class folders, or by a name that says so ("imagenet-r"); `maps` gives the
    class map of any other set (`sl.data.read_class_map`).

    >>> sets = {split: sl.dataset("scenes/shape", split, num=20) for split in ("val", "test")}
    >>> sl.evals.evaluate_sets(sl.build("vit-nano4", classes=10), sets).names
    ('val', 'test')
    """
    if len(sets) < 2:
        raise ValueError("Give at least two test sets to compare, such as {'val': ..., 'v2': ...}.")
    if unknown := set(maps or {}) - set(sets):
        raise ValueError(f"There is a class map for {', '.join(sorted(unknown))}, which is none of the test sets.")
    check_classifier(model)
    for name, data in sets.items():
        if data.labels.ndim == 2:
            raise ValueError(f"{name} has several labels per image; test sets are compared by top-1 of one label.")
    views = {name: _matched(model, name, data, (maps or {}).get(name)) for name, data in sets.items()}
    settings: dict[str, Any] = {"batch": batch, "workers": workers, "tta": tta}
    said = {name: logits(model, one.data, **settings) for name, one in views.items()}
    first = next(iter(sets))
    scores = {name: one.score(said[name]) for name, one in views.items()}
    same = [views[first].on_classes_of(one, said[first]) for one in views.values()]
    return TestSets(
        title="Accuracy on several test sets",
        caption=f"Top-1 of one model on {', '.join(sets)}; the others are compared with the first on the same classes.",
        how={
            "model": describe(model),
            "variant": published_name(model),
            "kinds": {name: one.kind for name, one in views.items()},
            "sources": {name: one.source for name, one in views.items() if one.source},
        },
        about=combine(*(About(models=(identify(model),), images=fingerprint(one.data)) for one in views.values())),
        names=tuple(sets),
        top1=np.array([one.top1 for one in scores.values()]),
        top5=np.array([one.top5 for one in scores.values()]),
        low=np.array([one.interval[0] for one in scores.values()]),
        high=np.array([one.interval[1] for one in scores.values()]),
        counts=np.array([int(one.counts.sum()) for one in scores.values()]),
        classes=np.array([len(one.groups) for one in views.values()]),
        open_top1=np.array([one.open_top1(said[name]) for name, one in views.items()]),
        first_top1=np.array([top1 for top1, _ in same]),
        first_counts=np.array([count for _, count in same]),
    )


@dataclass(frozen=True)
class MatchedSet:
    """A test set whose images all belong to classes of the model: several of these may be one class of the set."""

    data: Dataset
    labels: NDArray[np.int64]  # class of the set, by number in `groups`
    groups: Groups
    kind: str  # name of the dataset, as the published numbers call it
    source: str = ""  # of the class map

    def score(self, said: NDArray[np.float32]) -> Classification:
        """Accuracy where only the classes of the set can be predicted, each as sure as the surest of its group."""
        return score(_grouped(said, self.groups), self.labels)

    def open_top1(self, said: NDArray[np.float32]) -> float:
        """Accuracy where every class of the model can be predicted."""
        guess = said.argmax(1)
        return float(np.mean([g in self.groups[label] for g, label in zip(guess.tolist(), self.labels)]))

    def on_classes_of(self, other: "MatchedSet", said: NDArray[np.float32]) -> tuple[float, int]:
        """Top-1 on the images whose class belongs to a class of another set, decided among its classes, and how many
        images these are."""
        place = {number: i for i, group in enumerate(other.groups) for number in group}
        if any(len(group) > 1 for group in self.groups):
            return float("nan"), 0
        labels = np.array([place.get(self.groups[label][0], -1) for label in self.labels])
        rows = labels >= 0
        if not rows.any():
            return float("nan"), 0
        return score(_grouped(said[rows], other.groups), labels[rows]).top1, int(rows.sum())


def _grouped(said: NDArray[np.float32], groups: Groups) -> NDArray[np.float32]:
    return np.stack([said[:, list(group)].max(1) for group in groups], axis=1)


def _matched(model: Any, name: str, data: Dataset, given: ClassMap | None) -> MatchedSet:
    own = getattr(model, "class_names", None)
    count = _class_count(model, data)
    kind = name if name in class_maps() else None
    found = given or (find_class_map(data.classes, kind) if count == len(imagenet_classes()) else None)
    if found is None or (given is None and kind is None and own is not None and set(data.classes) <= set(own)):
        place, names = match_classes(own, count, data)
        return MatchedSet(data, place[data.labels], tuple((i,) for i in range(len(names))), data.name)
    numbers = imagenet_numbers(own, count)
    folders = [c for c in found.folders if c in set(data.classes)] if given else list(found.folders)
    index = {folder: i for i, folder in enumerate(folders)}
    labels = np.array([index.get(c, -1) for c in data.classes])[data.labels]
    rows = np.flatnonzero(labels >= 0)
    if not len(rows):
        raise ValueError(f"{name} has no image in a folder of {found.name}, such as {next(iter(found.folders))}.")
    kept = data if len(rows) == len(data) else data.subset(indices=rows)
    groups = tuple(tuple(numbers[i] for i in found.folders[folder]) for folder in folders)
    shown = WithoutBorder(kept) if found.name == "objectnet" else kept
    published = found.name if len(groups) < count or given else data.name
    return MatchedSet(shown, labels[rows], groups, published, found.source)


def _class_count(model: Any, data: Dataset) -> int:
    """How many classes a model predicts; if its configuration does not say, one image tells."""
    known = getattr(getattr(model, "config", None), "classes", None)
    return int(known) if known else logits(model, data.subset(indices=[0])).shape[1]


def imagenet_numbers(names: Any, count: int) -> list[int]:
    """The model's number of each class of ImageNet-1k: by name where it has names, otherwise as published weights."""
    known = imagenet_classes()
    if count != len(known):
        raise ValueError(f"The class map is about ImageNet's 1,000 classes; the model has {count}.")
    for spelled in (list(known.values()), list(known)):
        if names is not None and set(names) == set(spelled):
            place = {name: i for i, name in enumerate(names)}
            return [place[name] for name in spelled]
    if names is None or all(str(n).isdecimal() for n in names):
        return list(range(count))
    raise ValueError(
        f"The model's classes, such as {names[0]}, are neither the names nor the ids of ImageNet-1k, so those of the "
        "test set cannot be found among them."
    )
