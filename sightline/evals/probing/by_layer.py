"""Probe accuracy by depth: per layer and per token, following Raghu et al. (appendix F)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.evals.feature_table import FeatureTable
from sightline.evals.few_shot import check_shots, shot_rows
from sightline.evals.inputs import Given, align_classes, as_features, combine, single_labels
from sightline.evals.interval import Ends, RepeatedAccuracy, ends, image_groups, known_ends, over_groups
from sightline.evals.probing.probes import LinearProbe, fit_hits, make_probe
from sightline.progress import progress
from sightline.spec import Result


@dataclass(frozen=True, kw_only=True)
class ProbeAccuracy(RepeatedAccuracy, Result):
    """Accuracy of a probe at each layer, (layers, seeds), and at each token if all tokens were kept.

    >>> import numpy as np
    >>> r = sl.evals.ProbeAccuracy(title="", caption="", layers=("a", "b"), accuracy=np.array([[0.2], [0.4]]),
    ...     seeds=(0,))
    >>> r.summary()
    {'a': 0.2, 'b': 0.4}
    """

    layers: tuple[str, ...]
    seeds: tuple[int, ...]
    accuracy: NDArray[np.float64]  # (layers, seeds); with tokens, the mean over those of the grid
    per_token: NDArray[np.float64] | None = None  # (layers, tokens), mean over seeds, prefix first; padded with NaN
    grids: dict[str, tuple[int, int]] | None = None
    prefix: dict[str, int] | None = None
    replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))  # see `without_groups`

    def map(self, layer: str) -> NDArray[np.float64]:
        """Accuracy at each position of a layer's grid (Raghu et al., figure D.4)."""
        if self.per_token is None or not self.grids or layer not in self.grids:
            raise ValueError(f"There is no map of {layer!r}: probe features extracted with tokens='all'.")
        grid, start = self.grids[layer], (self.prefix or {})[layer]
        row = self.per_token[self.layers.index(layer)]
        return row[start : start + grid[0] * grid[1]].reshape(grid)

    def summary(self) -> dict[str, float]:
        return {name: float(value) for name, value in zip(self.layers, self.mean)}

    def intervals(self) -> dict[str, Ends]:
        """Over test images; over draws of the shots where a probe does not say which images are right."""
        return known_ends({name: self.interval(i) for i, name in enumerate(self.layers)})

    def interval(self, layer: int) -> Ends:
        """95 % interval of the accuracy at one layer."""
        if len(self.replicates):
            part = self.mean, self.replicates
            return over_groups(lambda x: float(x[layer]), part, least=0.0, most=1.0)
        return ends(float(self.mean[layer]), float(self.half_width[layer]), least=0.0, most=1.0)


def probe(
    train: Given, test: Given, *, probe: Any = None, shots: int | None = None, seeds: int | Sequence[int] = 1
) -> ProbeAccuracy:
    """The accuracy of a probe at every layer of the features, and at every token if all were kept.

    `probe` is "ridge", "logistic" or "knn", or anything with fit and score; the default is Raghu et al.'s: ridge to +-1
    targets, its l2 tuned on held-out training images, anew for each fit. `LinearProbe(l2=1024)` takes the fixed l2 of
    few-shot evaluation in the ViT and BiT papers. With `shots` it learns from so many images of each class (Raghu et
    al.: 10), once per seed, otherwise from all.
    For the curves of their figure 11 extract with tokens "cls", "gap", "mean" or "first"; for residual networks with
    maps="last"; for figure D.4 with "all": the accuracy of a layer is then the mean over the tokens of its grid.

    >>> model = sl.build("vit-nano4")
    >>> parts = [sl.dataset("scenes/shape", split, num=40, size=32) for split in ("train", "test")]
    >>> both = [sl.extract(model, part, layers=[0, 5], tokens="gap") for part in parts]
    >>> sl.probe(*both, probe=sl.evals.KNNProbe(3)).layers
    ('blocks.0.mlp_sum', 'blocks.5.mlp_sum')
    """
    train, test = align_classes(as_features(train, "training features"), as_features(test, "test features"))
    if list(train.layers) != list(test.layers):
        raise ValueError("Training and test features have different layers: extract both with the same layers.")
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not numbers:
        raise ValueError("At least one seed is needed.")
    if isinstance(probe, str) and probe != "ridge":
        probe = make_probe(probe)
    chosen = LinearProbe("ridge") if probe in (None, "ridge") else probe
    jobs = [(name, seed) for name in train.layers for seed in (numbers if shots else numbers[:1])]
    found: dict[str, list[NDArray[np.float64]]] = {name: [] for name in train.layers}  # (tokens, test images or 1)
    for name, seed in progress(jobs, "probes"):
        part = train.layer(name) if shots is None else few(train.layer(name), shots, seed)
        found[name].append(one_layer(chosen, part, test.layer(name)))
    each = {name: np.stack(values)[:, train.prefix.get(name, 0) :].mean((0, 1)) for name, values in found.items()}
    every = {name: np.stack([hits.mean(1) for hits in values]) for name, values in found.items()}
    with_tokens = [name for name, v in train.layers.items() if v.ndim == 3]
    accuracy = np.stack([e[:, train.prefix.get(n, 0) :].mean(1) for n, e in every.items()])
    return ProbeAccuracy(
        title="Accuracy by layer",
        caption=f"{type(chosen).__name__} on frozen features, "
        f"{'all training images' if shots is None else f'{shots} training images per class'}, "
        f"{len(test)} test images{tuning(chosen)}.",
        how={**train.how, "probe": _describe(chosen), "shots": shots or "all"},
        about=combine(train.about, test.about),
        layers=tuple(train.layers),
        seeds=numbers if shots else numbers[:1],
        accuracy=accuracy,
        per_token=_table([e.mean(0) for e in every.values()]) if with_tokens else None,
        grids=dict(train.grids) if with_tokens else None,
        prefix=dict(train.prefix) if with_tokens else None,
        replicates=without_groups(np.stack(list(each.values()))),
    )


def without_groups(hits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Accuracy without each of up to 20 random groups of test images, (groups, layers), from hits by layer and image.

    They are what an interval over test images is computed from; there are none where a probe tells its score alone.
    """
    layers, count = hits.shape
    if count < 2:
        return np.zeros((0, layers))
    group = image_groups(count)
    return np.stack([hits[:, group != g].mean(1) for g in range(group.max() + 1)])


def tuning(probe: Any) -> str:
    """How its l2 was chosen, for a caption; nothing for a probe without one."""
    if not isinstance(probe, LinearProbe):
        return ""
    fixed = isinstance(probe.l2, int | float)
    return f", l2 = {probe.l2:,g}, fixed" if fixed else ", l2 tuned on held-out training images"


def few(data: FeatureTable, shots: int, seed: int) -> FeatureTable:
    """`shots` images of each class."""
    labels = single_labels(data, "training features")
    kept = np.unique(labels)
    check_shots((shots,), np.searchsorted(kept, labels), [data.classes[i] for i in kept])
    return data.take(shot_rows(labels, shots, seed=seed))


def one_layer(probe: Any, train: FeatureTable, test: FeatureTable) -> NDArray[np.float64]:
    """By token, one for features without tokens: 1 for each test image that is right, or only the share of them."""
    if train.features.ndim == 2:
        return fit_hits(probe, train, test)[None]
    if train.features.shape[1] != test.features.shape[1]:
        raise ValueError("Training and test images have different numbers of tokens.")
    tokens = range(train.features.shape[1])
    return np.stack([fit_hits(probe, *(_token(e, i) for e in (train, test))) for i in tokens])


def _token(data: FeatureTable, index: int) -> FeatureTable:
    return replace(data, layers={k: v[:, index] for k, v in data.layers.items()}, grids={}, prefix={})


def _table(rows: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Rows of unequal length as one table, padded with NaN."""
    table = np.full((len(rows), max(map(len, rows))), np.nan)
    for line, row in zip(table, rows):
        line[: len(row)] = row
    return table


def _describe(probe: Any) -> str:
    settings = {k: v for k, v in vars(probe).items() if isinstance(v, str | int | float) and not k.endswith("_")}
    return f"{type(probe).__name__}({', '.join(f'{k}={v}' for k, v in settings.items())})"
