"""What each layer and each token knows of the class: probes through the depth (Raghu et al., figures 11, 13, D.4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.analysis.similarity.block_similarity import pad_rows
from sightline.data.datasets import Dataset
from sightline.evals.extraction import extract
from sightline.evals.inputs import combine
from sightline.evals.interval import Ends, ends, known_ends, over_groups
from sightline.evals.probing.by_layer import ProbeAccuracy, probe, tuning
from sightline.evals.probing.probes import LinearProbe
from sightline.observe.model import Model, ObservedModel, observe
from sightline.observe.selection import Tokens
from sightline.spec import Result

# how the model pools: what is probed, as figure 11b names it
CURVES: dict[str, dict[str, Tokens]] = {
    "cls": {"class token": "cls", "mean of patches": "gap", "mean of all": "mean"},
    "gap": {"first token": 0, "mean of patches": "gap"},  # the first of those that are averaged: a register is not
    "cnn": {"mean of the map": "gap"},
}


@dataclass(frozen=True, kw_only=True)
class LayerProbes(Result):
    """Accuracy of a probe on each block, one curve per model and choice of tokens.

    >>> import numpy as np
    >>> r = sl.analysis.LayerProbes(title="", caption="", curves=("a; class token",), accuracy=np.array([[0.1, 0.6]]),
    ...                    half_width=np.zeros((1, 2)))
    >>> r.summary()["a; class token, last block"]
    0.6
    """

    curves: tuple[str, ...]  # "model; tokens"
    accuracy: NDArray[np.float64]  # (curves, blocks of the deepest); NaN after the last block of a shallower model
    half_width: NDArray[np.float64]  # of the 95 % interval over draws of the shots; NaN for one draw
    replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0, 0)))  # without test images

    def summary(self) -> dict[str, float]:
        numbers: dict[str, float] = {}
        for name, row in zip(self.curves, self.accuracy):
            row = row[np.isfinite(row)]
            numbers |= {f"{name}, last block": float(row[-1]), f"{name}, best block": float(row.max())}
        return numbers

    def intervals(self) -> dict[str, Ends]:
        """Over test images; over draws of the shots where a probe does not say which images are right."""
        found: dict[str, Ends] = {}
        for i, (name, row) in enumerate(zip(self.curves, self.accuracy)):
            count = int(np.isfinite(row).sum())
            found[f"{name}, last block"] = self.interval(i, count - 1)
            found[f"{name}, best block"] = self.interval(i, int(row[:count].argmax()))
        return known_ends(found)

    def interval(self, curve: int, block: int) -> Ends:
        """95 % interval of one accuracy."""
        value = float(self.accuracy[curve, block])
        if len(self.replicates):
            part = np.array(value), self.replicates[:, curve, block]
            return over_groups(float, part, least=0.0, most=1.0)
        return ends(value, float(self.half_width[curve, block]), least=0.0, most=1.0)


def layer_probes(
    models: Model | Mapping[str, Model],
    train: Dataset,
    test: Dataset,
    *,
    shots: int | None = 10,
    seeds: int | Sequence[int] = 1,
    batch: int = 64,
    with_probe: Any = None,
) -> LayerProbes:
    """The accuracy of the measuring room's probe at every block, for each choice of tokens that a model has.

    A model that reads its class token gives three curves (class token; mean of patches; mean of all), one that
    averages gives two (first token; mean), a CNN one (its maps brought to the last one's size), a hybrid those of its
    encoder: a CLS and a GAP model
    together are the five curves of figure 11b. Ridge regression on 10 images per class unless said, its l2 tuned on
    held-out training images, as in the paper; `with_probe=sl.evals.LinearProbe(l2=1024)` fixes it.

    >>> train, test = (sl.dataset("scenes/shape", split, num=40, size=32) for split in ("train", "test"))
    >>> twins = {"CLS": sl.build("vit-nano4", depth=2), "GAP": sl.build("vit-nano4", depth=2, pool="gap")}
    >>> sl.analysis.layer_probes(twins, train, test, shots=2).curves
    ('CLS; class token', 'CLS; mean of patches', 'CLS; mean of all', 'GAP; first token', 'GAP; mean of patches')
    """
    given = dict(models) if isinstance(models, Mapping) else {"model": models}
    if not given:
        raise ValueError("There is no model to probe.")
    names, rows, bands, left, about = [], [], [], [], []
    for name, model in given.items():
        s = observe(model)
        s = s.with_name(name) if isinstance(models, Mapping) else s
        for curve, tokens in CURVES[_kind(s)].items():
            both = (
                extract(s, part, layers=_layers(s), tokens=tokens, batch=batch, maps="last") for part in (train, test)
            )
            found = probe(*both, probe=with_probe, shots=shots, seeds=seeds)
            names.append(f"{name}; {curve}")
            rows.append(found.mean)
            bands.append(found.half_width)
            left.append(found.replicates)
            about.append(found.about)
    return LayerProbes(
        title="What each block knows",
        caption=(
            f"Accuracy of a linear probe by block, "
            f"{'all images' if shots is None else f'{shots} images per class'}, {len(test):,} to "
            f"test{tuning(LinearProbe() if with_probe in (None, 'ridge') else with_probe)}."
        ),
        how={
            "n": len(test),
            "shots": shots or "all",
            "seeds": seeds if isinstance(seeds, int) else tuple(seeds),
            "probe": found.how["probe"],
        },
        about=combine(*about),
        curves=tuple(names),
        accuracy=pad_rows(rows),
        half_width=pad_rows(bands),
        replicates=np.stack([pad_rows(list(group)) for group in zip(*left)]) if len(left[0]) else np.zeros((0, 0, 0)),
    )


def _layers(s: ObservedModel) -> str | list[str]:
    """All blocks; of a hybrid those of its encoder, where there are tokens to choose from."""
    encoder = [p.path for p in s.block_outputs if p.stage is None]
    return encoder if s.attention_blocks and len(encoder) < len(s.block_outputs) else "blocks"


def _kind(s: ObservedModel) -> str:
    if not s.encoder_blocks:
        return "cnn"
    return s.own_pool


def token_probes(
    model: Model,
    train: Dataset,
    test: Dataset,
    *,
    layers: Any = (0, 1, 5, 10, 11),
    shots: int | None = 10,
    batch: int = 64,
    with_probe: Any = None,
) -> ProbeAccuracy:
    """One probe per token: accuracy maps over the grid, and the mean without the class token (figures 11a, D.4).

    `layers` are block numbers (those that the model does not have are left out), paths, or "blocks". The features of
    all tokens of these layers are held in memory. The probe is that of `layer_probes`.

    >>> train, test = (sl.dataset("scenes/shape", split, num=40, size=32) for split in ("train", "test"))
    >>> found = sl.analysis.token_probes(sl.build("vit-nano4", size=32, patch=16), train, test, layers=(5,), shots=2)
    >>> found.map("blocks.5.mlp_sum").shape
    (2, 2)
    """
    s = observe(model)
    if not isinstance(layers, str):
        depth = len(s.block_outputs)
        layers = [l for l in layers if not isinstance(l, int) or l < depth]
        if not layers:
            raise ValueError(f"{s.name} has blocks 0 to {depth - 1} only.")
    both = (extract(s, part, layers=layers, tokens="all", batch=batch) for part in (train, test))
    return probe(*both, probe=with_probe, shots=shots)
