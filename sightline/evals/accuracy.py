"""Accuracy of a model's own head: top-1 and top-5, per class, confusion, calibration."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from torch import Tensor

from sightline.data.datasets import Dataset
from sightline.data.quality.sheet import labeled_sheet
from sightline.evals.extraction import check_model, describe, each_batch
from sightline.evals.interval import Ends, image_groups, known_ends, over_groups, wilson
from sightline.evals.multilabel import MultiLabel, score_labels
from sightline.observe.identity import identify
from sightline.observe.images import fingerprint
from sightline.references.matching import published_name
from sightline.spec import About, Result
from sightline.weights.runs import untrained_head

TTA = Literal["mirror", "shift"]  # test-time augmentation
VIEWS = {
    "mirror": "each image and its mirror image",
    "shift": "each image, its mirror image and four shifted copies",
}
WORST = 24  # mistakes that are kept one by one
BINS = 15  # of confidence, for calibration (Guo et al. 2017)


@dataclass(frozen=True, kw_only=True)
class Classification(Result):
    """Accuracy and calibration of predictions.

    The confusion matrix is stored as triples (label, prediction, count): with 21,000 classes it would be too large.

    >>> import numpy as np
    >>> r = sl.evals.score(np.array([[3., 0, 0], [0, 3, 0], [0, 3, 0]]), [0, 1, 2])
    >>> round(r.top1, 3), r.confusion().tolist()
    (0.667, [[1, 0, 0], [0, 1, 0], [0, 1, 0]])
    """

    top1: float
    top5: float  # share of images whose label is among the five best classes; 1 for five classes or fewer
    interval: tuple[float, float]  # 95 % Wilson interval of top-1
    classes: tuple[str, ...]
    per_class: NDArray[np.float64]  # top-1 of each class; NaN for a class without images
    counts: NDArray[np.int64]  # images of each class
    pairs: NDArray[np.int64]  # (m, 3): label, prediction, count
    loss: float  # mean cross-entropy
    calibration_error: float  # ECE over bins of confidence
    bins: NDArray[np.float64]  # (15, 3): mean confidence, accuracy, share of images; NaN, NaN, 0 for an empty bin
    # (up to 24, 4): image, label, prediction and its probability, the most confident mistakes first
    mistakes: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 4)))
    replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 3)))  # (groups of images, 3): mean per
    # class, loss and calibration error without each group

    def confusion(self) -> NDArray[np.int64]:
        """The square matrix: row = label, column = prediction."""
        square = np.zeros((len(self.classes), len(self.classes)), dtype=np.int64)
        square[self.pairs[:, 0], self.pairs[:, 1]] = self.pairs[:, 2]
        return square

    def confused(self, count: int = 10) -> list[tuple[str, str, int]]:
        """The most frequent mistakes: label, prediction, count."""
        wrong = self.pairs[self.pairs[:, 0] != self.pairs[:, 1]]
        worst = wrong[np.argsort(-wrong[:, 2], kind="stable")[:count]]
        return [(self.classes[a], self.classes[b], int(n)) for a, b, n in worst]

    def summary(self) -> dict[str, float]:
        return {
            "top-1": self.top1,
            "top-5": self.top5,
            "mean per class": float(np.nanmean(self.per_class)),
            "cross-entropy": self.loss,
            "calibration error": self.calibration_error,
            "images": float(self.counts.sum()),
        }

    def intervals(self) -> dict[str, Ends]:
        n, numbers = int(self.counts.sum()), self.summary()
        found = {"top-1": self.interval, "top-5": wilson(round(self.top5 * n), n)}
        for i, name in enumerate(("mean per class", "cross-entropy", "calibration error")):
            most = np.inf if name == "cross-entropy" else 1.0
            found[name] = over_groups(float, (np.array(numbers[name]), self.replicates[:, i]), least=0.0, most=most)
        return known_ends(found)


def score(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    classes: Sequence[str] | None = None,
    how: dict[str, Any] | None = None,
    about: About | None = None,
) -> Classification:
    """Score logits (n, k) against labels (n,).

    Equal logits are ranked by class number, so constant logits are right as often as class 0 occurs, not always. ECE:
    15 bins of equal width, the mean of |accuracy - confidence| weighted by the number of images in each.

    >>> import numpy as np
    >>> sl.evals.score(np.zeros((4, 4)), [0, 1, 2, 3]).top1
    0.25
    """
    s, y = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    if s.ndim != 2 or y.ndim != 1 or len(s) != len(y) or len(y) == 0:
        raise ValueError(f"Logits must be (n, classes) with n labels, at least one; got {s.shape} and {y.shape}.")
    if not np.isfinite(s).all():
        raise ValueError(f"{int((~np.isfinite(s)).any(1).sum())} rows of the logits have NaN or infinite values.")
    k = s.shape[1]
    if not np.issubdtype(y.dtype, np.integer) or y.min() < 0 or y.max() >= k:
        raise ValueError(f"Labels must be class numbers in 0..{k - 1}.")
    names = tuple(classes) if classes is not None else tuple(map(str, range(k)))
    if len(names) != k:
        raise ValueError(f"There are {k} logits per image but {len(names)} class names.")
    own = s[np.arange(len(y)), y][:, None]
    before = ((s > own) | ((s == own) & (np.arange(k) < y[:, None]))).sum(1)  # classes ranked above the label's
    guess = s.argmax(1)
    probability = np.exp(s - s.max(1, keepdims=True))
    probability /= probability.sum(1, keepdims=True)
    counts = np.bincount(y, minlength=k)
    hits = np.bincount(y[guess == y], minlength=k)
    ece, bins = calibration(probability.max(1), guess == y)
    loss = np.log(np.exp(s - s.max(1, keepdims=True)).sum(1)) + s.max(1) - own[:, 0]
    pairs, often = np.unique(y * k + guess, return_counts=True)
    return Classification(
        title="Accuracy",
        caption=f"{len(y)} images, {k} classes.",
        how=how or {},
        about=about or About(),
        top1=float((before == 0).mean()),
        top5=float((before < 5).mean()),
        interval=wilson(int((before == 0).sum()), len(y)),
        classes=names,
        per_class=hits / np.where(counts > 0, counts, np.nan),
        counts=counts,
        pairs=np.stack([pairs // k, pairs % k, often], axis=1),
        loss=float(np.mean(loss)),
        calibration_error=ece,
        bins=bins,
        mistakes=worst_mistakes(probability, y),
        replicates=_without_groups(y, guess == y, loss, probability.max(1)),
    )


def _without_groups(
    labels: NDArray[np.int64], right: NDArray[np.bool_], loss: NDArray[np.float64], sure: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Mean accuracy of a class, mean loss and calibration error without each group of images."""
    if len(labels) < 2:
        return np.zeros((0, 3))
    group, rows = image_groups(len(labels)), []
    for g in range(group.max() + 1):
        left = group != g
        counts = np.bincount(labels[left])
        hits = np.bincount(labels[left], right[left])
        rows.append(((hits / np.maximum(counts, 1))[counts > 0].mean(), loss[left].mean(),
                     calibration(sure[left], right[left])[0]))  # fmt: skip
    return np.array(rows)


def worst_mistakes(probability: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Image, label, prediction and its probability of the mistakes that the model was most sure of."""
    guess = probability.argmax(1)
    sure = probability[np.arange(len(guess)), guess]
    wrong = np.flatnonzero(guess != labels)
    worst = wrong[np.argsort(-sure[wrong], kind="stable")[:WORST]]
    return np.stack([worst, labels[worst], guess[worst], sure[worst]], axis=1).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One image that got a wrong class.

    >>> sl.evals.Mistake(index=3, image="a.jpg", label="cat", predicted="dog", probability=0.98).predicted
    'dog'
    """

    index: int  # of the image in the dataset
    image: str
    label: str
    predicted: str
    probability: float  # of the prediction


def mistakes(result: Classification, dataset: Dataset, count: int = 24) -> list[Mistake]:
    """The most confident mistakes of an evaluation on this dataset, the worst first; at most 24 are kept.

    >>> import numpy as np
    >>> data = sl.dataset("scenes/shape", num=4)
    >>> said = np.eye(10)[(data.labels + 1) % 10] * [[1], [4], [2], [3]]
    >>> [m.index for m in sl.evals.mistakes(sl.evals.score(said, data.labels), data, 2)]
    [1, 3]
    """
    return [
        Mistake(
            index=int(index),
            image=dataset.where(int(index)),
            label=result.classes[int(label)],
            predicted=result.classes[int(predicted)],
            probability=float(probability),
        )
        for index, label, predicted, probability in result.mistakes[:count]
    ]


def mistake_sheet(result: Classification, dataset: Dataset) -> Image.Image:
    """A contact sheet of the most confident mistakes: label, prediction and its probability below each image.

    >>> import numpy as np
    >>> data = sl.dataset("scenes/shape", num=2)
    >>> sl.evals.mistake_sheet(sl.evals.score(np.eye(10)[(data.labels + 1) % 10], data.labels), data).size
    (348, 206)
    """
    found = mistakes(result, dataset)
    if not found:
        raise ValueError(f"There is no mistake to show: all images of {dataset.name} got their label.")
    lines = {m.index: (m.label, f"taken for {m.predicted}, {100 * m.probability:.0f} %") for m in found}
    return labeled_sheet(dataset, lines)


def calibration(
    confidence: NDArray[np.float64], right: NDArray[np.bool_], bins: int = BINS
) -> tuple[float, NDArray[np.float64]]:
    """Expected calibration error, and (confidence, accuracy, share) of each bin; bins include their upper edge only."""
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    count = np.bincount(place, minlength=bins)
    safe = np.where(count > 0, count, np.nan)
    mean = np.bincount(place, confidence, minlength=bins) / safe
    accuracy = np.bincount(place, right.astype(np.float64), minlength=bins) / safe
    share = count / len(confidence)
    return float(np.nansum(share * np.abs(accuracy - mean))), np.stack([mean, accuracy, share], axis=1)


def evaluate(
    model: Any, dataset: Dataset, *, batch: int = 64, workers: int = 0, tta: TTA | None = None
) -> Classification | MultiLabel:
    """A model's own predictions on a dataset, scored; a dataset with several labels per image by
    `sl.evals.score_labels`.

    `tta` (test-time augmentation) averages the logits over an image and its mirror image ("mirror"), or over these and
    four shifted copies ("shift"), at two or six times the cost.

    Classes are matched by name where the model knows its names; by number where the dataset's classes are called by
    numbers (ImageNet-V2's folders 0 to 999, in whatever order they sort); or one to one where there are equally many.
    A dataset may have fewer classes than the model: the others can still be predicted, wrongly.

    >>> r = sl.evaluate(sl.build("vit-nano4", classes=10), sl.dataset("scenes/shape", "test", num=20))
    >>> r.top1, len(r.classes)
    (0.1, 10)
    """
    said = logits(model, dataset, batch=batch, workers=workers, tta=tta)
    place, names = match_classes(getattr(model, "class_names", None), said.shape[1], dataset)
    how = {"model": describe(model), "variant": published_name(model), "dataset": dataset.name, "images": len(dataset)}
    how |= {"tta": tta} if tta else {}
    about = About(models=(identify(model),), images=fingerprint(dataset))
    result: Classification | MultiLabel
    if dataset.labels.ndim == 2:
        table = np.zeros(said.shape, dtype=np.bool_)
        table[:, place] = dataset.labels
        result = score_labels(said, table, classes=names, how=how, about=about)
    else:
        result = score(said, place[dataset.labels], classes=names, how=how, about=about)
    return replace(result, caption=f"{result.caption} Logits averaged over {VIEWS[tta]}.") if tta else result


def logits(
    model: Any, dataset: Dataset, *, batch: int = 64, workers: int = 0, tta: TTA | None = None
) -> NDArray[np.float32]:
    """The logits (n, k) of a model for every image of a dataset.

    >>> sl.evals.logits(sl.build("vit-nano4", classes=10), sl.dataset("scenes/shape", num=4)).shape
    (4, 10)
    """
    check_classifier(model)
    return each_batch(model, dataset, average_views(model, tta), batch=batch, workers=workers).numpy()


def average_views(model: Any, tta: TTA | None) -> Callable[[Tensor], Tensor]:
    """A function of images that gives the model's logits, averaged over views.

    `mirror`: the image and its mirror image. `shift`: also both moved by a 32nd of the side to the lower right and to
    the upper left, with reflected borders, which count a quarter each (Jordan 2024). None: the image alone.
    """
    match tta:
        case None:
            return model
        case "mirror":
            return lambda images: _mirrored(model, images)
        case "shift":
            return lambda images: _shifted(model, images)
    raise ValueError(f"tta={tta!r}: expected mirror, shift or none.")


def _mirrored(model: Any, images: Tensor) -> Tensor:
    return (model(images) + model(images.flip(-1))) / 2


def _shifted(model: Any, images: Tensor) -> Tensor:
    height, width = images.shape[-2:]
    y, x = max(1, height // 32), max(1, width // 32)
    wide = F.pad(images, (x, x, y, y), mode="reflect")
    corners = (wide[..., :height, :width], wide[..., 2 * y :, 2 * x :])
    return _mirrored(model, images) / 2 + sum(_mirrored(model, corner) for corner in corners) / 4


def check_classifier(model: Any) -> None:
    """Refuse a model that only gives features, and one whose head no training has touched."""
    check_model(model, "features")
    if getattr(getattr(model, "config", None), "classes", 1) == 0:
        raise ValueError("The model has no classifier, only features: use sl.fewshot or sl.evals.LinearProbe.")
    if where := untrained_head(model):
        raise ValueError(
            f"The model has learned without labels, in {where}, and its head is all zeros: train one (sightline tune "
            "DATA --model RUN --out RUN2), or measure its features (sightline fewshot RUN DATA)."
        )


def match_classes(
    names: Sequence[str] | None, count: int, dataset: Dataset
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The model's class number for each class of the dataset, and the names of all classes of the model."""
    if names is not None and len(names) == count and set(dataset.classes) <= set(names):
        number = {name: i for i, name in enumerate(names)}
        return np.array([number[c] for c in dataset.classes]), tuple(names)
    own = tuple(names) if names is not None and len(names) == count else None
    if all(c.isdecimal() and int(c) < count for c in dataset.classes):
        return np.array([int(c) for c in dataset.classes]), own or tuple(map(str, range(count)))
    if len(dataset.classes) == count and own is None:
        return np.arange(count), tuple(dataset.classes)
    raise ValueError(
        f"The model has {count:,} classes{' called otherwise' if own else ''}, {dataset.name} has "
        f"{len(dataset.classes):,}, such as {dataset.classes[0]}; they cannot be matched by name or number. "
        "Call the classes by the model's names or numbers, or measure features: sightline fewshot MODEL DATA, or "
        "sl.fewshot."
    )
