"""A model with its dense head: from images to classes of pixels or to objects, and its file beside the weights."""

from collections.abc import Sequence
from dataclasses import asdict
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline import fingerprints
from sightline.data.targets.view import dense_spec
from sightline.dense.coco_metric import MOST, Detections
from sightline.dense.config import DenseConfig
from sightline.dense.heads import DenseHead, QueryHead, Segments, build_head
from sightline.models.construct import Model
from sightline.spec import ImageSpec, from_json, to_json
from sightline.weights.containers.header import from_json as checked_record
from sightline.weights.containers.safetensors import SafetensorsSource, write_safetensors
from sightline.weights.loading import load
from sightline.weights.report import WeightsError

FILE = "dense.safetensors"  # the head, beside the model.safetensors of a run
HEADER = "sightline-dense"


class DenseModel(nn.Module):
    """A backbone and its dense head: `segment` gives a class per pixel, `detect` objects with masks and boxes.

    >>> import torch
    >>> model = sl.build("vit-nano4", classes=0)
    >>> config = sl.dense.DenseConfig(task="segment", kind="linear", classes=("cat", "dog"))
    >>> dense = sl.dense.DenseModel(model, sl.dense.build_head(model, config), config)
    >>> dense.segment(torch.zeros(1, 3, 32, 32), [(20, 30)])[0].shape
    (20, 30)
    """

    def __init__(self, model: Model, head: DenseHead, config: DenseConfig):
        super().__init__()
        self.model, self.dense, self.config = model, head, config

    @property
    def image(self) -> ImageSpec:
        """The preprocessing: the whole image, squashed to the model's size."""
        return dense_spec(self.model.image)

    @torch.no_grad()
    def segment(self, images: Tensor, sizes: Sequence[tuple[int, int]]) -> list[NDArray[np.int64]]:
        """The class of every pixel (0 is the background), for images of these original sizes (height, width)."""
        self._check("segment")
        found = self.dense(self.model, images)
        scores = semantic_scores(found[-1]) if isinstance(self.dense, QueryHead) else found
        return [_resized(s[None], size)[0].argmax(0).cpu().numpy() for s, size in zip(scores, sizes)]

    @torch.no_grad()
    def detect(self, images: Tensor, sizes: Sequence[tuple[int, int]]) -> list[Detections]:
        """Objects with masks at these original sizes (height, width), the most confident first; at most 100 each."""
        self._check("detect")
        found = self.dense(self.model, images)[-1]
        return [detections(Segments(c, m), size) for c, m, size in zip(found.classes, found.masks, sizes)]

    def _check(self, task: str) -> None:
        if self.config.task != task:
            raise ValueError(f"This model was trained to {self.config.task}; it does not {task}.")


def _resized(maps: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(maps.float(), size=size, mode="bilinear")


def semantic_scores(found: Segments) -> Tensor:
    """Score of each class in each cell (b, k, y, x): the sum over queries of class probability times mask."""
    return torch.einsum("bqk,bqyx->bkyx", found.classes.float().softmax(-1)[..., :-1], found.masks.float().sigmoid())


def detections(found: Segments, size: tuple[int, int]) -> Detections:
    """The objects of one image (classes (q, k), masks (q, y, x)): every query with each class of its own, scored by the
    probability of the class times the mean certainty of the mask inside it."""
    chances = found.classes.float().softmax(-1)[:, :-1]
    top = chances.flatten().topk(min(MOST, chances.numel()))
    queries, classes = top.indices // chances.shape[1], top.indices % chances.shape[1]
    used, numbers = queries.unique(return_inverse=True)
    soft = _resized(found.masks[used][None], size)[0].sigmoid()
    masks = soft > 0.5
    sure = (soft * masks).sum((1, 2)) / masks.sum((1, 2)).clamp(min=1)
    scores = top.values * sure[numbers]
    order = torch.argsort(scores, descending=True, stable=True)
    order = order[masks.any(2).any(1)[numbers][order]]  # a query without a pixel has found nothing
    return Detections(
        classes=(classes[order] + 1).cpu().numpy(),
        scores=scores[order].double().cpu().numpy(),
        masks=masks[numbers[order]].cpu().numpy(),
    )


def save_head(head: nn.Module, config: DenseConfig, model: nn.Module, path: str | Path) -> None:
    """Write a head beside its model, with the fingerprint of the weights that it was trained with."""
    about = {**asdict(config), "weights": fingerprints.of_tensors(model.state_dict())}
    write_safetensors(Path(path), {n: t.detach().cpu() for n, t in head.state_dict().items()}, {HEADER: to_json(about)})


def load_dense(folder: str | PathLike[str]) -> DenseModel:
    """The model and the dense head of a run folder; ValueError if it has no head, or one of other weights.

    >>> sl.dense.load_dense("no/such/run")
    Traceback (most recent call last):
        ...
    ValueError: no/such/run has no dense head (dense.safetensors): train one with --task segment or --task detect.
    """
    path = Path(fspath(folder)) / FILE
    if not path.is_file():
        raise ValueError(
            f"{fspath(folder)} has no dense head ({FILE}): train one with --task segment or --task detect."
        )
    source = SafetensorsSource(path)
    config, weights = _read_header(source, path)
    model = load(path.parent)
    if fingerprints.of_tensors(model.state_dict()) != weights:
        raise ValueError(f"{path} was trained with other weights than those beside it: run the training again.")
    head = build_head(model, config)
    expected = {n: tuple(t.shape) for n, t in head.state_dict().items()}
    if expected != {n: tuple(s) for n, s in source.shapes.items()}:
        raise ValueError(f"{path} does not hold the head that it describes: it is damaged, or of another version.")
    head.load_state_dict({n: source.read(n) for n in expected})
    return DenseModel(model, head, config).eval()


def is_dense(what: Any) -> bool:
    """Whether this is a run folder with a dense head, or such a model."""
    if isinstance(what, DenseModel):
        return True
    return isinstance(what, str | PathLike) and (Path(fspath(what)) / FILE).is_file()


def _read_header(source: SafetensorsSource, path: Path) -> tuple[DenseConfig, str]:
    try:
        about = from_json(source.header[HEADER])
        weights = about.pop("weights")
        return checked_record(DenseConfig, about), str(weights)
    except (KeyError, ValueError, TypeError, AttributeError, WeightsError) as error:
        raise ValueError(f"{path} is not a dense head that this Sightline can read ({error!s:.200}).") from error
