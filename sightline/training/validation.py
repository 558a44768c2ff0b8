"""Validation during training, every image once whatever the number of processes; and the test afterwards."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.data.datasets import Dataset
from sightline.data.draws import Draws, hash_key
from sightline.dense.evaluation import evaluate_dense
from sightline.dense.model import is_dense
from sightline.evals.accuracy import evaluate, logits
from sightline.evals.prediction import fit_temperature
from sightline.evals.probing.representation import effective_rank, neighbor_accuracy
from sightline.models.construct import Model
from sightline.spec import Result
from sightline.training.objectives.classification import ClassificationObjective, classification_loss
from sightline.training.preflight.checks import has_labels
from sightline.training.recipe import Recipe
from sightline.training.run.folder import Run
from sightline.training.train_state import TrainState

LARGEST_BATCH = 256
ENOUGH = 5_000  # images to fit one number by
JUDGED = 2_000  # validation images at most whose neighbors are asked, at each of about ten evaluations
WATCHED = 512  # training images whose features are watched where there is too little validation data
LEAST_VARIANCE = 0.01  # of embeddings, which LeJEPA wants to have variance 1
FEWEST = 32  # images whose features say something about their rank
log = logging.getLogger(__name__)


def validate(state: TrainState, val: Dataset, *, workers: int = 0) -> dict[str, float]:
    """What validation data says of the averaged weights if there are any: `val/loss` (not for LeJEPA, whose loss needs
    views), `val/accuracy` for classification, else what `judge_features` says."""
    metrics = {} if getattr(state.objective, "whole_batch", False) else mean_loss(state, val, workers=workers)
    if learns_without_labels(state):
        metrics |= judge_features(state, val, workers=workers)
    return metrics


def validation_score(metrics: dict[str, Any]) -> float | None:
    """The number by which the best weights are chosen; None if there is none."""
    if "val/accuracy" not in metrics and "val/loss" in metrics:
        return -metrics["val/loss"]
    return metrics.get("val/accuracy", metrics.get("val/knn"))


def learns_without_labels(state: TrainState) -> bool:
    return hasattr(state.objective, "represent")


def warn_of_few(state: TrainState, train: Dataset) -> None:
    """Say that a collapse would not be noticed where there are too few images to tell."""
    if learns_without_labels(state) and len(train) < FEWEST and state.processes.first:
        log.warning(
            "%s has %d images, and fewer than %d do not tell whether the features collapse: this run is not watched.",
            train.name, len(train), FEWEST,
        )  # fmt: skip


def judge_features(state: TrainState, data: Dataset, *, workers: int = 0, name: str = "val") -> dict[str, float]:
    """`rank`, the effective rank of what the loss trains; for LeJEPA `embedding rank`, that of the embeddings; and, for
    validation data with one label per image, `knn`: the share of the images whose label their nearest neighbors among
    the others predict, 20 of them or half the images of a class. Of at most 2,000 images, or 512 of the training data;
    nothing if there are fewer than 32. Every process sees all of them."""
    if len(data) < FEWEST:
        return {}
    most = JUDGED if name == "val" else WATCHED
    data = data if len(data) <= most else data.sample(most)
    rows: list[Tensor] = []
    embeddings: list[Tensor] = []
    objective: Any = state.objective
    with state.evaluation_model() as model, torch.inference_mode(not state.processes.sharded), state.precision():
        batch = min(LARGEST_BATCH, state.recipe.micro or LARGEST_BATCH)
        for images, _ in data.batches(model.image, batch=batch, workers=workers, device=state.device):
            with torch.no_grad():
                rows.append(objective.represent(images))
                if hasattr(objective, "embed"):
                    embeddings.append(objective.embed(rows[-1]).cpu())
    features = torch.cat(rows).float().cpu()
    metrics = {f"{name}/rank": effective_rank(features)}
    if embeddings:
        metrics[f"{name}/embedding rank"] = embedding_rank(torch.cat(embeddings))
    if name == "val" and has_labels(data):
        fair = len(data) // (2 * len(set(data.labels.tolist())))  # more would not find that many of their own class
        metrics["val/knn"] = neighbor_accuracy(features, data.labels, neighbors=max(1, min(20, fair)))
    return metrics


def embedding_rank(embeddings: Tensor) -> float:
    """The effective rank of embeddings that should have variance 1 in each direction; 0 if they have next to none."""
    return effective_rank(embeddings) if embeddings.var(0).mean() > LEAST_VARIANCE else 0.0


def mean_loss(state: TrainState, val: Dataset, *, workers: int = 0) -> dict[str, float]:
    """`val/loss`, and `val/accuracy` for classification."""
    processes, recipe = state.processes, state.recipe
    largest = min(LARGEST_BATCH, recipe.batch, processes.size * (recipe.micro or LARGEST_BATCH))
    batch = max(processes.size, largest)
    place = {"rank": processes.rank, "world": processes.size, "device": state.device}
    sums = torch.zeros(3, dtype=torch.float64)
    with state.evaluation_model() as model, torch.inference_mode(not processes.sharded), state.precision():
        batches = val.batches(model.image, batch=batch, workers=workers, **place)
        for number, (images, labels) in enumerate(batches):
            rows = torch.as_tensor(batches.indices(number)[0])
            sums += _batch_sums(state, images, labels, rows)
    loss, correct, count = processes.sum(sums.tolist())
    metrics = {"val/loss": loss / count}
    if isinstance(state.objective, ClassificationObjective):
        metrics["val/accuracy"] = correct / count
    return metrics


@torch.no_grad()
def _batch_sums(state: TrainState, images: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """Summed loss, correct predictions, and number of images."""
    n = len(images)
    if not isinstance(state.objective, ClassificationObjective):
        draws = Draws(hash_key(state.recipe.seed, "val"), rows.numpy())
        loss = state.objective(images, labels, draws) if n or state.processes.sharded else torch.zeros(())
        return torch.tensor([float(loss) * n if n else 0.0, 0.0, n], dtype=torch.float64)
    logits = state.model(images).float()
    if n == 0:
        return torch.zeros(3, dtype=torch.float64)
    loss = classification_loss(logits, labels, loss=state.objective.loss) * n
    if labels.ndim == 2:  # several labels: the top prediction is correct if it is one of them
        correct = labels.gather(1, logits.argmax(1, keepdim=True)).sum()
    else:
        correct = (logits.argmax(1) == labels).sum()
    return torch.tensor([loss.item(), correct.item(), n], dtype=torch.float64)


def calibrate(model: Model, val: Dataset | None, recipe: Recipe) -> dict[str, float]:
    """The temperature that makes probabilities fit the validation data, for `sl.predict`; nothing without such data."""
    if val is None or val.labels.ndim != 1 or recipe.task != "classify" or recipe.loss != "softmax":
        return {}
    val = val if len(val) <= ENOUGH else val.sample(ENOUGH)
    said = logits(model, val, batch=min(LARGEST_BATCH, recipe.micro or LARGEST_BATCH))
    return {"temperature": fit_temperature(said, val.labels.astype(np.int64))}


def evaluate_run(run: Run, test: Dataset) -> Result:
    """Accuracy of a run's model on data that training never saw, measured once and kept in the folder (test.npz); of a
    dense task mIoU or AP.

    >>> import tempfile
    >>> data, test = (sl.dataset("scenes/shape", split=s, num=32, size=16) for s in ("train", "test"))
    >>> model = sl.build("vit-nano4", classes=10, size=16, depth=1)
    >>> run = sl.fit(model, data, sl.Recipe(lr=1e-3, batch=16, steps=1), out=tempfile.mkdtemp())
    >>> 0 <= sl.training.evaluate_run(run, test).summary()["top-1"] <= 1
    True
    """
    file = run.path / "test.npz"
    if file.exists():
        return Result.load(file)
    result = evaluate_dense(run, test) if is_dense(run) else evaluate(run.model, test)
    models = tuple(replace(model, name=run.path.absolute().name) for model in result.about.models)
    result = replace(result, about=replace(result.about, models=models))  # a run is known by its folder
    result.save(file)
    return result
