"""`sl.draw`: a figure of any result. One table says which function draws which type."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from sightline.analysis.ablation import WhatIf
from sightline.analysis.attention.distance import AttentionDistance
from sightline.analysis.attention.head_attention import HeadAttention
from sightline.analysis.attention.head_subsets import HeadSubsets
from sightline.analysis.attention.rollout import AttentionMaps
from sightline.analysis.biases import InductiveBias
from sightline.analysis.embeddings import PatchFilters, PositionSimilarity
from sightline.analysis.pca import FeaturePCA
from sightline.analysis.probes import LayerProbes
from sightline.analysis.receptive_fields import ReceptiveField
from sightline.analysis.residual import ResidualRatios
from sightline.analysis.saliency.attribution import Attribution
from sightline.analysis.saliency.faithfulness import ObjectMass
from sightline.analysis.saliency.object_focus import ObjectFocus
from sightline.analysis.similarity.block_similarity import BlockSimilarity
from sightline.analysis.similarity.cka import CKA
from sightline.analysis.similarity.localization import Localization
from sightline.analysis.similarity.neighbors import NeighborSimilarity
from sightline.analysis.similarity.pooling_comparison import PoolingComparison
from sightline.evals.accuracy import Classification, TestSets
from sightline.evals.episodic import Episodes
from sightline.evals.few_shot import FewShot
from sightline.evals.multilabel import MultiLabel, ReaL
from sightline.evals.probing.by_layer import ProbeAccuracy
from sightline.evals.reid import Retrieval
from sightline.evals.vtab_protocol import Vtab
from sightline.spec import Result, atomic
from sightline.training.run.curves import Curves
from sightline.views import attention, depth, scores, similarity
from sightline.views.style import COLORS, finite, heat, legend, lines, new_figure, styled

Size = tuple[float, float]  # inches
# one panel: (result, axes); drawn into the axes of the caller
PANEL: dict[type[Result], tuple[Callable[..., None], Size]] = {
    CKA: (similarity.draw_cka, (5.6, 4.8)),
    HeadSubsets: (similarity.draw_heads, (6.0, 3.8)),
    BlockSimilarity: (similarity.draw_block_similarity, (6.0, 3.8)),
    Localization: (similarity.draw_localization, (5.4, 4.8)),
    ObjectFocus: (attention.draw_focus, (6.4, 2.6)),
    ObjectMass: (attention.draw_object_mass, (4.6, 4.2)),
    InductiveBias: (depth.draw_inductive_bias, (7.0, 3.2)),
    NeighborSimilarity: (depth.draw_neighbors, (6.0, 3.6)),
    PatchFilters: (depth.draw_filters, (6.4, 4.0)),
    FewShot: (scores.draw_fewshot, (5.6, 3.8)),
    Episodes: (scores.draw_episodes, (5.6, 3.8)),
    LayerProbes: (scores.draw_layer_probes, (6.6, 4.2)),
    TestSets: (scores.draw_test_sets, (5.6, 3.8)),
    Vtab: (scores.draw_vtab, (8.6, 4.6)),
    MultiLabel: (scores.draw_multilabel, (7.0, 3.8)),
    ReaL: (scores.draw_real, (6.0, 1.8)),
    Retrieval: (scores.draw_retrieval, (5.6, 3.8)),
}
# several panels: (result, figure); the axes of the caller make room for a figure of its own
FIGURE: dict[type[Result], tuple[Callable[..., None], Size]] = {
    PoolingComparison: (similarity.draw_pooling_comparison, (9.0, 4.0)),
    WhatIf: (similarity.draw_what_if, (8.6, 5.0)),
    AttentionDistance: (attention.draw_distance, (9.0, 4.0)),
    AttentionMaps: (attention.draw_maps, (8.6, 3.6)),
    Attribution: (attention.draw_attribution, (8.6, 5.2)),
    HeadAttention: (attention.draw_head_attention, (8.0, 5.6)),
    FeaturePCA: (attention.draw_feature_pca, (9.0, 3.6)),
    ReceptiveField: (depth.draw_receptive, (8.6, 5.0)),
    ResidualRatios: (depth.draw_residual, (9.0, 4.0)),
    PositionSimilarity: (depth.draw_positions, (8.6, 4.4)),
    ProbeAccuracy: (scores.draw_probed, (8.0, 5.4)),
    Classification: (scores.draw_classification, (9.0, 4.6)),
    Curves: (scores.draw_curves, (9.0, 4.4)),
}


def draw(result: Result, ax: Any = None, *, title: bool = True) -> Any:
    """A matplotlib figure of a result. With `ax`, it is drawn there; several panels take its place in the layout.

    A type without a drawing of its own shows its curves, its tables as heat maps, or the numbers of its summary.

    >>> import numpy as np
    >>> r = sl.analysis.HeadSubsets(title="Heads", caption="", similarity=np.array([[0.6], [0.3]]),
    ...     subsets=((0,), (1,)),
    ...                    distance=np.array([20.0, 90.0]), columns=("stages.0",), block=0)
    >>> figure = sl.draw(r)
    >>> figure.axes[0].get_xlabel(), figure.axes[0].get_title()
    ('mean attention distance of the subset, pixels', 'Heads')
    """
    if not isinstance(result, Result):
        raise ValueError(f"A result is drawn, such as sl.cka returns; got a {type(result).__name__}.")
    panel = PANEL.get(type(result))
    several = FIGURE.get(type(result)) or (fallback, (7.0, 4.0))
    with styled():
        figure = ax.figure if ax is not None else new_figure((panel or several)[1])
        if panel is not None:
            at = ax if ax is not None else figure.subplots()
            panel[0](result, at)
            if title:
                at.set_title(result.title)
            return figure
        place = figure if ax is None else _instead(ax)
        several[0](result, place)
        if title:
            place.suptitle(result.title, fontsize=10)
    return figure


def _instead(ax: Any) -> Any:
    """A figure within the figure, where the axes were."""
    place = ax.get_subplotspec()
    if place is None:
        raise ValueError("This result has several panels: give axes made by subplots, or none.")
    figure = ax.figure
    ax.remove()
    return figure.add_subfigure(place)


def fallback(r: Result, figure: Any) -> None:
    """Any result: curves of equal length over their steps, one heat map of a table, or the numbers of the summary."""
    arrays = {f.name: v for f in fields(r) if isinstance(v := getattr(r, f.name), np.ndarray) and v.size}
    for name in [f.name for f in fields(r) if isinstance(getattr(r, f.name), dict) and f.name != "how"]:
        inner = getattr(r, name)
        arrays |= {f"{k}": np.asarray(v) for k, v in inner.items() if np.ndim(v) == 1 and np.size(v)}
    numeric = {k: v for k, v in arrays.items() if np.issubdtype(v.dtype, np.number)}
    curves = {k: v for k, v in numeric.items() if v.ndim == 1 and len(v) > 1}
    tables = {k: v for k, v in numeric.items() if v.ndim == 2}
    if curves:
        _curves(curves, figure)
    elif tables:
        name, table = next(iter(tables.items()))
        ax = figure.subplots()
        heat(ax, table.astype(float), top=max(finite(table).max(initial=0), 1e-9), label=name)
        ax.set(xlabel="column", ylabel="row")
    else:
        _numbers(r.summary(), figure)


def _curves(curves: dict[str, Any], figure: Any) -> None:
    """One panel per curve: their units are not known to be the same."""
    steps = next((k for k in ("step", "steps", "epoch", "epochs") if k in curves), None)
    names = [k for k in curves if k != steps][:12]
    columns = min(3, len(names))
    axes = figure.subplots(-(-len(names) // columns), columns, squeeze=False).ravel()
    for ax, name in zip(axes, names):
        fits = steps is not None and len(curves[steps]) == len(curves[name])
        lines(ax, curves[steps] if fits and steps else np.arange(len(curves[name])), curves[name][None], [name])
        ax.set(xlabel=steps if fits else "entry", title=name)
    for ax in axes[len(names) :]:
        ax.remove()


def _numbers(numbers: dict[str, float], figure: Any) -> None:
    ax = figure.subplots()
    known = {k: v for k, v in numbers.items() if np.isfinite(v)}
    ax.barh(range(len(known)), list(known.values()), color=COLORS[0])
    ax.set_yticks(range(len(known)), list(known))
    ax.invert_yaxis()
    ax.set_xlabel("value" if known else "this result has no numbers to show")
    legend(ax, 0)


def save_figure(result: Result, path: str | Path) -> list[Path]:
    """Write a result as `path`.png and `path`.svg, and the numbers behind it as `path`.npz.

    >>> import numpy as np, tempfile
    >>> r = sl.analysis.ObjectMass(title="Mass", caption="", mass=np.array([0.6]), area=np.array([0.2]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [p.name for p in sl.save_figure(r, folder + "/mass")]
    ['mass.png', 'mass.svg', 'mass.npz']
    """
    base = Path(path)
    base = base.with_suffix("") if base.suffix in (".png", ".svg", ".npz") else base
    figure = draw(result)
    out = []
    for kind in ("png", "svg"):
        place = base.with_name(f"{base.name}.{kind}")
        with atomic(place) as partial, styled():
            figure.savefig(partial, format=kind, metadata={"Date": None} if kind == "svg" else None)
        out.append(place)
    return [*out, result.save(base.with_name(f"{base.name}.npz"))]
