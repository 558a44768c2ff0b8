"""Accuracy on corrupted images, by kind and severity (after Hendrycks & Dietterich 2019)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.data.corruptions.corrupted import SEVERITIES, Corrupted, corruption_kinds
from sightline.data.datasets import Dataset
from sightline.evals.accuracy import TTA, logits, match_classes
from sightline.evals.extraction import describe
from sightline.evals.interval import Ends, ends, half_width, known_ends, of_mean, over_groups, wilson, without_each
from sightline.observe.identity import identify
from sightline.observe.images import fingerprint
from sightline.progress import progress
from sightline.references.matching import published_name
from sightline.spec import About, Result


@dataclass(frozen=True, kw_only=True)
class CorruptionAccuracy(Result):
    """Top-1 on corrupted images. Means and their intervals are over images: an image is the same in every corruption.

    >>> import numpy as np
    >>> right = np.array([[[True, False]], [[True, True]]])  # two kinds, one severity, two images
    >>> r = sl.evals.CorruptionAccuracy(title="", caption="", kinds=("fog", "snow"), severities=(3,),
    ...     right=right, clean=np.array([True, True]), classes=10)
    >>> r.accuracy.tolist(), r.summary()["corrupted"], round(r.kept, 3)
    ([[0.5], [1.0]], 0.75, 0.722)
    """

    kinds: tuple[str, ...]
    severities: tuple[int, ...]
    right: NDArray[np.bool_]  # (kinds, severities, images): whether the prediction is the label
    clean: NDArray[np.bool_]  # (images,): the same before corruption
    classes: int

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Top-1 by kind and severity."""
        return self.right.mean(2)

    @property
    def interval(self) -> NDArray[np.float64]:
        """Ends of the 95 % interval (Wilson) of each, (kinds, severities, 2)."""
        counts, n = self.right.sum(2), self.right.shape[2]
        return np.array([[wilson(int(c), n) for c in row] for row in counts])

    def by_severity(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean over kinds by severity, and half of its 95 % interval over images."""
        each = self.right.mean(0)
        return each.mean(1), half_width(each)

    def by_kind(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean over severities by kind, and half of its 95 % interval over images."""
        each = self.right.mean(1)
        return each.mean(1), half_width(each)

    @property
    def kept(self) -> float:
        """The share of the accuracy beyond guessing that is left on corrupted images."""
        return self._kept(np.array([self.right.mean(), self.clean.mean()]))

    def summary(self) -> dict[str, float]:
        mean, half = self.right.mean(), half_width(self.right.mean((0, 1)))
        by_severity = zip(self.severities, *self.by_severity())
        return {
            "clean": float(self.clean.mean()),
            "corrupted": float(mean),
            "corrupted ±": float(half),
            "kept": self.kept,
            **{f"severity {s}": float(a) for s, a, _ in by_severity},
        }

    def intervals(self) -> dict[str, Ends]:
        n, by_severity = len(self.clean), zip(self.severities, *self.by_severity())
        both = np.stack([self.right.mean((0, 1)), self.clean], 1).astype(np.float64)
        return known_ends(
            {
                "clean": wilson(int(self.clean.sum()), n),
                "corrupted": of_mean(both[:, 0], least=0.0, most=1.0),
                "kept": over_groups(self._kept, (both.mean(0), without_each(both))),
                **{f"severity {s}": ends(float(a), float(h), least=0.0, most=1.0) for s, a, h in by_severity},
            }
        )

    def _kept(self, means: NDArray[np.float64]) -> float:
        guess = 1 / self.classes
        return float((means[0] - guess) / (means[1] - guess)) if means[1] > guess else np.nan


def evaluate_corruptions(
    model: Any,
    dataset: Dataset,
    kinds: Sequence[str] | None = None,
    *,
    severities: Sequence[int] = SEVERITIES,
    seed: int = 0,
    batch: int = 64,
    workers: int = 0,
    tta: TTA | None = None,
) -> CorruptionAccuracy:
    """Accuracy of a model's own classifier on corrupted images: all 15 kinds, or some, at the given severities.

    Images are corrupted at their own size, at most at that of the model; every image has its own noise, the same for
    every model. It takes a pass over the dataset for each kind and severity.

    >>> model = sl.build("vit-nano4", classes=10)
    >>> data = sl.dataset("scenes/shape", "test", num=20)
    >>> sl.evals.evaluate_corruptions(model, data, ["contrast"], severities=[1, 5]).accuracy.shape
    (1, 2)
    """
    chosen = tuple(corruption_kinds() if kinds is None else kinds)
    if not chosen or not len(severities):
        raise ValueError("Give at least one kind of corruption and one severity.")
    size = round(min(model.image.size) / model.image.crop)
    if dataset.labels.ndim == 2:
        raise ValueError(f"{dataset.name} has several labels per image; corruptions are scored by top-1 of one label.")
    each = [(k, s, Corrupted(dataset, k, s, seed=seed, size=size)) for k in chosen for s in severities]
    passes: dict[str, Any] = {"batch": batch, "workers": workers, "tta": tta}
    said = logits(model, dataset, **passes)
    place, names = match_classes(getattr(model, "class_names", None), said.shape[1], dataset)
    labels = place[dataset.labels]
    right = [logits(model, one, **passes).argmax(1) == labels for _, _, one in progress(each, "corruptions")]
    return CorruptionAccuracy(
        title=f"Accuracy on corrupted images of {dataset.name}",
        caption=f"{len(dataset)} images, {len(chosen)} kinds of corruption at {len(severities)} severities.",
        how={"model": describe(model), "variant": published_name(model), "dataset": dataset.name, "seed": seed},
        about=About(models=(identify(model),), images=fingerprint(dataset)),
        kinds=chosen,
        severities=tuple(int(s) for s in severities),
        right=np.array(right).reshape(len(chosen), len(severities), -1),
        clean=said.argmax(1) == labels,
        classes=len(names),
    )
