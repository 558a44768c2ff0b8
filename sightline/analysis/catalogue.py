"""The analyses by name, and to which models each applies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sightline.analysis.attention import attention_distance
from sightline.analysis.attribution import Method, attribution
from sightline.analysis.cka import cka
from sightline.analysis.embeddings import patch_filters, position_similarity
from sightline.analysis.film import depth_film
from sightline.analysis.gaze import gaze
from sightline.analysis.heads import head_subsets
from sightline.analysis.localisation import localisation
from sightline.analysis.neighbours import neighbour_similarity
from sightline.analysis.on_object import object_focus
from sightline.analysis.pooling_twins import pooling_twins
from sightline.analysis.prior import prior_report
from sightline.analysis.probes import layer_probes, token_probes
from sightline.analysis.receptive import receptive_field
from sightline.analysis.residual import residual_study
from sightline.analysis.rollout import attention_maps, attention_rollout
from sightline.analysis.scale import scale_similarity
from sightline.analysis.subject import Subject, subject
from sightline.analysis.what_if import what_if
from sightline.data.dataset import Dataset
from sightline.data.scenes.scenes import Scenes
from sightline.spec import Result

FEW = 32  # pictures of the analyses that keep a map of each, or run backwards
BATCH = 128  # of CKA
REPEATS = 4  # of CKA, each with half of the pictures: how far halves differ is the error of the whole
SHOWN = 4  # pictures that are kept to be looked through


@dataclass(frozen=True)
class Task:
    """What is looked at with what."""

    models: tuple[Subject, ...]
    data: Dataset
    n: int
    seed: int
    names: tuple[str, ...] = ()  # what to call the models; by default by type and size

    @property
    def few(self) -> int:
        return min(self.n, FEW)

    @cached_property
    def part(self) -> Dataset:
        """The pictures of the probes."""
        whole = self.n >= len(self.data)
        return self.data if whole else self.data.subset(self.n / len(self.data), seed=self.seed)

    @property
    def known(self) -> NDArray[np.int64]:
        """Classes of which there is a picture to learn from and one to test on."""
        return np.flatnonzero(np.bincount(self.part.labels) > 1)

    @property
    def halves(self) -> tuple[Dataset, Dataset]:
        """To learn from and to test on: every second picture of each known class."""
        each = [np.flatnonzero(self.part.labels == number) for number in self.known]
        learn, test = (np.sort(np.concatenate([rows[side::2] for rows in each])) for side in (0, 1))
        return self.part.subset(indices=learn), self.part.subset(indices=test)


@dataclass(frozen=True)
class Analysis:
    """One entry: how to run it, and why it does not apply, if it does not."""

    run: Callable[[Task], Result]
    refuses: Callable[[Task], str | None] = lambda task: None
    which: int | None = None  # of two models, if it is about one of them


def _no_attention(task: Task) -> str | None:
    return None if task.models[0].attention_blocks else f"{task.models[0].name} has no attention"


def _no_sums(task: Task) -> str | None:
    known = any(p.skip and p.branch for p in task.models[0].parts)
    return None if known else f"{task.models[0].name} does not say what its residual sums are made of"


def _no_positions(task: Task) -> str | None:
    try:
        position_similarity(task.models[0].model)
    except ValueError as error:
        return str(error).rstrip(".")
    return None


def _no_classes(task: Task) -> str | None:
    s = task.models[0]
    return None if s.part.get("head") or any(p.kind == "logits" for p in s.parts) else f"{s.name} has no classes"


def _no_rollout(task: Task) -> str | None:
    return _no_attention(task) or _no_classes(task)


def _not_vit_and_cnn(task: Task) -> str | None:
    vit, cnn = _vit_first(task)
    if vit.attention_blocks and any(p.stage is not None for p in cnn.parts) and not cnn.attention_blocks:
        return None
    return "it compares the heads of a ViT with the stages of a CNN"


def _too_few(task: Task) -> str | None:
    return None if task.n >= 4 else f"CKA needs at least 4 pictures; there are {task.n}"


def _no_objects(task: Task) -> str | None:
    source, _ = task.data.origins()
    if not isinstance(source, Scenes):
        return "the pictures have no masks; scenes have"
    if source.scene(0).subject < 0:
        return "these scenes are not about one object"
    return _no_classes(task)


def _no_labels(task: Task) -> str | None:
    """Probes need one label per picture, and at least two classes with a picture to learn from and one to test on."""
    if task.data.labels.ndim != 1:
        return "the pictures have several labels each"
    known = len(task.known)
    return None if known > 1 else f"{task.n} pictures hold {known} classes with two pictures or more; probes need two"


def _not_twins(task: Task) -> str | None:
    kinds = [s.pool if s.attention_blocks else "cnn" for s in task.models]
    return _no_labels(task) or (
        None if sorted(kinds) == ["cls", "gap"] else "it is for a class-token ViT and a GAP twin"
    )


def _vit_first(task: Task) -> tuple[Subject, Subject]:
    a, b = task.models[0], task.models[-1]
    return (a, b) if a.attention_blocks else (b, a)


def _model(task: Task) -> nn.Module:
    return task.models[0].model


def _switches(s: Subject) -> list[str]:
    return [f"{kind} {i}" for kind in ("block", "skip") for i in range(len(s.attention_blocks))]


def _additions(s: Subject) -> str | list[str]:
    """Where "before the addition" is asked: in a ViT behind attention, as in the paper; an MLP sees its token alone."""
    found = [p.path for p in s.parts if p.kind == "sum" and p.sublayer == "attention"]
    return found or "blocks"


def _cka(task: Task, b: Any = None, **more: Any) -> Result:
    half = max(4, task.n // 2)
    return cka(_model(task), b, task.data, batch=min(BATCH, half), n=half, repeats=REPEATS, seed=task.seed, **more)


def _attribution(method: Method) -> Callable[[Task], Result]:
    return lambda t: attribution(_model(t), t.data, method=method, n=min(t.n, FEW // 2), steps=8, seed=t.seed)


def _probes(task: Task) -> Result:
    names = list(task.names) or [s.name for s in task.models]
    if len(set(names)) < len(names):
        names = [f"{name} ({letter})" for name, letter in zip(names, "ab")]
    return layer_probes(dict(zip(names, (s.model for s in task.models))), *task.halves, shots=None)


def _token_probes(task: Task) -> Result:
    s = task.models[0]
    return token_probes(s.model, *task.halves, layers=[s.block_outputs[-1].path], shots=None)


def _twins(task: Task) -> Result:
    cls, gap = sorted(task.models, key=lambda s: s.pool)
    return pooling_twins(cls.model, gap.model, *task.halves, shots=None, seed=task.seed)


LOOK: dict[str, Analysis] = {
    "cka": Analysis(_cka, _too_few),
    "attention-distance": Analysis(lambda t: attention_distance(_model(t), t.data, n=t.n, seed=t.seed), _no_attention),
    "attention-maps": Analysis(lambda t: attention_maps(_model(t), t.data, n=t.few), _no_attention),
    "gaze": Analysis(lambda t: gaze(_model(t), t.data, n=min(t.n, SHOWN), seed=t.seed), _no_attention),
    "depth-film": Analysis(lambda t: depth_film(_model(t), t.data, n=min(t.n, SHOWN), seed=t.seed)),
    "rollout": Analysis(lambda t: attention_rollout(_model(t), t.data, n=t.few), _no_attention),
    "rollout-identity": Analysis(lambda t: attention_rollout(_model(t), t.data, identity=True, n=t.few), _no_attention),
    "rollout-gradient": Analysis(lambda t: attention_rollout(_model(t), t.data, gradient=True, n=t.few), _no_rollout),
    "receptive-field": Analysis(lambda t: receptive_field(_model(t), t.data, n=t.few, seed=t.seed)),
    "receptive-field-before": Analysis(
        lambda t: receptive_field(
            _model(t), t.data, layers=_additions(t.models[0]), side="before", n=t.few, seed=t.seed
        ),
        _no_sums,
    ),
    "residual": Analysis(lambda t: residual_study(_model(t), t.data, n=t.n, seed=t.seed), _no_sums),
    "localisation": Analysis(
        lambda t: localisation(_model(t), t.data, batch=min(BATCH, t.n), n=t.n, seed=t.seed), _too_few
    ),
    "what-if": Analysis(
        lambda t: what_if(_model(t), t.data, _switches(t.models[0]), n=min(t.n, 2 * FEW)), _no_attention
    ),
    "attribution": Analysis(_attribution("grad_cam"), _no_classes),
    "attribution-rollout": Analysis(_attribution("rollout"), _no_rollout),
    "attribution-rollout-gradient": Analysis(_attribution("gradient_rollout"), _no_rollout),
    "object-focus": Analysis(lambda t: object_focus(_model(t), t.data, n=min(t.n, 2 * FEW), seed=t.seed), _no_objects),
    "probes": Analysis(_probes, _no_labels),
    "token-probes": Analysis(_token_probes, _no_labels),
    "patch-filters": Analysis(lambda t: patch_filters(_model(t))),
    "positions": Analysis(lambda t: position_similarity(_model(t)), _no_positions),
    "neighbours": Analysis(lambda t: neighbour_similarity(_model(t), t.data, n=t.n, seed=t.seed)),
    "priors": Analysis(lambda t: prior_report(_model(t), t.data, n=min(t.n, 16), seed=t.seed)),
}

COMPARE: dict[str, Analysis] = {
    "cka": Analysis(lambda t: _cka(t, t.models[1].model), _too_few),
    "cka-pooled": Analysis(lambda t: _cka(t, t.models[1].model, layers="blocks", tokens="gap"), _too_few),
    "by-block": Analysis(
        lambda t: scale_similarity(
            {t.models[0].name: _model(t)}, t.models[1].model, t.data, batch=min(BATCH, t.n), n=t.n, seed=t.seed
        ),
        _too_few,
    ),
    "head-subsets": Analysis(
        lambda t: head_subsets(_vit_first(t)[0].model, _vit_first(t)[1].model, t.data, batch=min(BATCH, t.n), n=t.n),
        lambda t: _not_vit_and_cnn(t) or _too_few(t),
    ),
    "probes": Analysis(_probes, _no_labels),
    "pooling-twins": Analysis(_twins, _not_twins),
}
TWICE = (
    "attention-distance",
    "gaze",
    "depth-film",
    "receptive-field",
    "receptive-field-before",
    "residual",
    "localisation",
    "attribution",
    "object-focus",
    "priors",
    "cka",
)  # of each model, too


def one_of_two(analysis: Analysis, which: int) -> Analysis:
    """An analysis of one model as part of a comparison."""

    def alone(task: Task) -> Task:
        return Task((task.models[which],), task.data, task.n, task.seed, task.names[which : which + 1])

    return Analysis(lambda t: analysis.run(alone(t)), lambda t: analysis.refuses(alone(t)), which)


def comparison() -> dict[str, Analysis]:
    """What compares two models, and what is worth having of both side by side."""
    both = {f"{name}-{'ab'[i]}": one_of_two(LOOK[name], i) for name in TWICE for i in (0, 1)}
    return COMPARE | both


def about(t: Task, analysis: Analysis) -> list[dict[str, str]]:
    """Which models a result is about: name, kind and what the head reads. Two of one name are told apart."""
    names = t.names or tuple(s.name for s in t.models)
    rows = [
        {"name": name, "kind": kind(s), "pool": s.pool if s.attention_blocks else "map"}
        for name, s in zip(names, t.models)
    ]
    if len(rows) == 2 and rows[0]["name"] == rows[1]["name"]:
        for row, side in zip(rows, "ab"):
            row["name"] += f" ({side})"
    return rows if analysis.which is None else [rows[analysis.which]]


def kind(s: Subject) -> str:
    """vit, hybrid or cnn."""
    if not s.attention_blocks:
        return "cnn"
    return "hybrid" if any(p.stage is not None for p in s.parts) else "vit"


def task(models: tuple[nn.Module, ...], data: Dataset, n: int, seed: int, names: Sequence[str] = ()) -> Task:
    """Checked, and the models made ready."""
    if not isinstance(data, Dataset):
        raise ValueError(f"A Dataset is expected, from sl.dataset or sl.Folder; got a {type(data).__name__}.")
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n is a whole number from 1 up; got {n!r}.")
    if names and len(names) != len(models):
        raise ValueError(f"One name per model is expected, {len(models)} in all; got {len(names)}.")
    return Task(tuple(subject(m) for m in models), data, min(n, len(data)), seed, tuple(map(str, names)))
