"""`sl.predict`: classify images with a trained model; class names and probabilities."""

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sightline.data.datasets import Dataset
from sightline.data.errors import BadImage, printable
from sightline.data.opening import image_files, model_batch
from sightline.evals.accuracy import check_classifier
from sightline.observe.model import ObservedModel, evaluation_mode, place
from sightline.observe.source import open_model
from sightline.progress import progress
from sightline.spec import Displayable, ImageSpec
from sightline.weights.containers.files import SEVERAL_LABELS
from sightline.weights.names import class_names
from sightline.weights.runs import COLDEST, HOTTEST, run_temperature

log = logging.getLogger("sightline.evals")
Source = tuple[str, Callable[[], Any]]  # an image's name, and a function that opens it
FEW = 20  # images that are too few to fit a temperature
LINES = 20  # images of a repr


class TopClasses(NamedTuple):
    """The most probable classes of one batch, and the number of classes."""

    indices: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    classes: int


@dataclass(frozen=True, kw_only=True)
class Prediction(Displayable):
    """The prediction for one image: its most probable classes, the best first.

    >>> p = sl.evals.Prediction(image="a.jpg", names=("cat", "dog"), indices=(1, 0), probabilities=(0.9, 0.1))
    >>> p.name, p.probability
    ('cat', 0.9)
    """

    image: str
    names: tuple[str, ...]
    indices: tuple[int, ...]  # class numbers
    probabilities: tuple[float, ...]

    @property
    def name(self) -> str:
        """The most probable class."""
        return self.names[0]

    @property
    def probability(self) -> float:
        """The probability of the most probable class."""
        return self.probabilities[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions(Sequence[Prediction], Displayable):
    """The predictions for images, one `Prediction` each, in order; images that could not be read are in `bad`.

    >>> import numpy as np
    >>> p = sl.evals.Predictions(images=("a.jpg",), classes=("dog", "cat"), indices=np.array([[1]]),
    ...                    probabilities=np.array([[0.9]]))
    >>> p[0].name, p.names, len(p)
    ('cat', (('cat',),), 1)
    """

    images: tuple[str, ...]  # paths, or numbers for images without a path
    classes: tuple[str, ...]  # the names of all of the model's classes
    indices: NDArray[np.int64]  # (n, top): class numbers, the most probable first
    probabilities: NDArray[np.float64]  # (n, top)
    bad: dict[str, str] = field(default_factory=dict)  # images that could not be read, with the reason
    by: str = "softmax"  # or sigmoid: each class independently, if an image can have several labels
    named_by: str = "model"  # source of the names: model, imagenet-1k, imagenet-1k (assumed), or number if none
    temperature: float = 1.0  # that logits were divided by: not 1 for a run, which is calibrated on its validation data

    @property
    def names(self) -> tuple[tuple[str, ...], ...]:
        """Class names, image by image."""
        return tuple(tuple(self.classes[i] for i in row) for row in self.indices)

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        """A line per image; all classes of ImageNet would fill the terminal."""
        best = [
            f"{one.image}: " + ", ".join(f"{n} {100 * p:.1f} %" for n, p in zip(one.names, one.probabilities))
            for one in self[:LINES]
        ]
        more = [f"and {len(self) - LINES:,} more"] * (len(self) > LINES)
        bad = [f"{len(self.bad):,} could not be read: .bad has the reasons"] * bool(self.bad)
        return "\n".join([f"Predictions of {len(self):,} image{'s' * (len(self) != 1)}", *best, *more, *bad])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return Prediction(
            image=self.images[index],
            names=tuple(self.classes[i] for i in self.indices[index]),
            indices=tuple(self.indices[index].tolist()),
            probabilities=tuple(self.probabilities[index].tolist()),
        )


def predict(model: Any, images: Any, *, top: int = 5, batch: int = 64) -> Predictions:
    """The `top` most probable classes of each image.

    `model` is a model, a weights file, a run or its folder, a published name, or FILE.py:FUNCTION.
    `images` is a file, a folder (with its subfolders), a pattern such as "cats/*.jpg", a PIL image, a uint8 array
    (h, w, 3) or tensor (3, h, w), a float tensor (3, h, w) that is already preprocessed for this model, a batch or a
    list of any of these, or a Dataset. Each is preprocessed as in `sl.evaluate`. An image that cannot be read is logged
    and listed in `bad`; it is an error only if no image can be read.

    Probabilities are a softmax, or a sigmoid per class if the model was trained that way. Those of a run that had
    validation data are calibrated on it (`temperature`). Class names come from the
    model; a head of 1,000 classes without names is assumed to be ImageNet-1k's, and `named_by` says so.

    >>> from PIL import Image
    >>> model = sl.build("vit-nano4", classes=2)
    >>> model.class_names = ("cat", "dog")
    >>> said = sl.predict(model, [Image.new("RGB", (40, 30), color) for color in ("red", "blue")])
    >>> said[0].name, said.probabilities.tolist()
    ('cat', [[0.5, 0.5], [0.5, 0.5]])
    """
    for name, value in (("top", top), ("batch", batch)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a positive whole number; got {value!r}.")
    ready = open_model(model, untrained=False)
    return predict_calibrated(ready, images, run_temperature(model), top=top, batch=batch)


def predict_calibrated(ready: Any, images: Any, temperature: float, *, top: int, batch: int) -> Predictions:
    """The predictions of an open model, with its logits divided by a temperature."""
    check_classifier(ready)
    sources = list(_sources(images))
    if not sources:
        raise ValueError("There are no images to predict: give files, a folder, a pattern or images.")
    by = probability_rule(ready)
    temperature = temperature if by == "softmax" else 1.0
    done: list[str] = []
    rows: list[TopClasses] = []
    bad: dict[str, str] = {}
    level = logging.WARNING if len(sources) > 1 else logging.DEBUG  # a single bad image is the error itself
    with evaluation_mode(ready):
        for chunk in progress([sources[i : i + batch] for i in range(0, len(sources), batch)], "predicting"):
            names, prepared = _open(chunk, ready.image, bad, level=level)
            if names:
                said = _logits(ready, torch.cat(prepared), names) / temperature
                rows.append(top_classes(said, by=by, top=top))
                done += names
    if not rows:
        first = next(iter(bad.values()))
        raise BadImage(first if len(bad) == 1 else f"None of the {len(bad)} images can be read. The first: {first}")
    classes, named_by = class_names(ready, rows[0].classes)
    return Predictions(
        images=tuple(done),
        classes=classes,
        indices=np.concatenate([row.indices for row in rows]),
        probabilities=np.concatenate([row.probabilities for row in rows]),
        bad=bad,
        by=by,
        named_by=named_by,
        temperature=temperature,
    )


@contextmanager
def noting_predictions(s: ObservedModel) -> Iterator[list[str]]:
    """What the model says of each image that passes it while this is open, such as "beagle 83 %", for captions."""
    said: list[str] = []
    temperature = run_temperature(s.model) if s.classes and probability_rule(s.model) == "softmax" else 1.0

    def note(module: Any, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim == 2:
            scores = output.detach().double().cpu().numpy()
            names, _ = class_names(s.model, scores.shape[1])
            best = top_classes(scores / temperature, by=probability_rule(s.model), top=1)
            said.extend(
                f"{names[int(i)]} {100 * p:.0f} %" if np.isfinite(p) else "not a number"
                for i, p in zip(best.indices[:, 0], best.probabilities[:, 0])
            )

    handle = s.model.register_forward_hook(note) if s.classes else None
    try:
        yield said
    finally:
        if handle is not None:
            handle.remove()


def fit_temperature(logits: NDArray, labels: NDArray[np.int64]) -> float:
    """The temperature at which a softmax of logits (n, k) / temperature fits n labels best (Guo et al. 2017).

    1 where there are fewer than 20 images: they would say little.

    >>> import numpy as np
    >>> labels = np.arange(100) % 2
    >>> sure = 8.0 * np.eye(2)[np.where(np.arange(100) < 25, 1 - labels, labels)]  # three quarters right
    >>> round(sl.evals.fit_temperature(sure, labels), 1)
    7.3
    """
    if len(labels) < FEW:
        return 1.0
    scores = np.asarray(logits, dtype=np.float64)
    own = scores[np.arange(len(labels)), labels]

    cold, hot = math.log(COLDEST), math.log(HOTTEST)
    for _ in range(40):  # the loss is convex in 1 / temperature: bisect its slope
        middle = (cold + hot) / 2
        scaled = scores / math.exp(middle)
        weight = np.exp(scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True))
        too_cold = ((weight * scores).sum(1) - own).mean() > 0
        cold, hot = (middle, hot) if too_cold else (cold, middle)
    return float(f"{math.exp((cold + hot) / 2):.4g}")


def _sources(images: Any, number: int = 0) -> Iterator[Source]:
    """Every image with its name, not opened yet; an image without a name gets its number."""
    match images:
        case Dataset():
            for i in range(len(images)):
                yield images.where(i), partial(images.image, i)
        case str() | os.PathLike():
            yield from _files(images)
        case Tensor() | np.ndarray() if images.ndim == 4:
            for i, row in enumerate(images):
                yield from _sources(row, i)
        case Image.Image() | Tensor() | np.ndarray():
            yield getattr(images, "filename", "") or f"image {number}", lambda: images
        case Iterable() if not isinstance(images, bytes | Mapping):
            for i, item in enumerate(images):
                yield from _sources(item, i)
        case _:
            raise ValueError(
                "Images are files, folders, patterns, PIL images, arrays, tensors, a list of them or a Dataset; "
                f"got a {type(images).__name__}."
            )


def _files(where: str | os.PathLike[str]) -> Iterator[Source]:
    try:
        found = image_files(where)
    except BadImage as error:
        yield os.fspath(where), partial(_refuse, error)
        return
    for path in found:
        yield path, partial(Path, path)


def _refuse(error: BadImage) -> None:
    raise error


def _open(
    chunk: Sequence[Source], spec: ImageSpec, bad: dict[str, str], *, level: int
) -> tuple[list[str], list[Tensor]]:
    """Names and preprocessed pixels of the readable images; the others are added to `bad` and logged."""
    names, prepared = [], []
    for name, get in chunk:
        try:
            prepared.append(model_batch([get()], spec))
            names.append(name)
        except BadImage as error:
            bad[name] = str(error)
            log.log(level, "bad image: %s", error)
    return names, prepared


def _logits(model: Any, images: Tensor, names: Sequence[str]) -> NDArray[np.float64]:
    device, dtype = place(model)
    logits = model(images.to(device=device, dtype=dtype)).double().cpu().numpy()
    broken = next((name for name, row in zip(names, logits) if not np.isfinite(row).all()), None)
    if broken is not None:
        raise ValueError(
            f"The model's output for {printable(broken)} has NaN or infinite values: its weights are broken."
        )
    return logits


def probability_rule(model: Any) -> str:
    """softmax, or sigmoid if the weights or the library say that an image can have several labels."""
    if (own := getattr(model, "probability", None)) is not None:
        return own
    about = getattr(getattr(model, "inner", None), "config", None)
    return "sigmoid" if getattr(about, "problem_type", None) == SEVERAL_LABELS else "softmax"


def top_classes(logits: NDArray[np.float64], *, by: str, top: int) -> TopClasses:
    """Top classes by logit, because large probabilities round to 1; ties by class number, as in `sl.evals.score`."""
    indices = np.argsort(-logits, axis=1, kind="stable")[:, :top]
    if by == "sigmoid":
        probabilities = np.exp(-np.logaddexp(0, -logits))
    else:
        probabilities = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    return TopClasses(indices, np.take_along_axis(probabilities, indices, axis=1), logits.shape[1])
