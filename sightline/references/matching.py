"""Which published numbers stand beside one of ours: the same architecture, the same dataset, the same measurement."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from sightline.models.bit import BiTConfig
from sightline.models.hybrid import HybridConfig
from sightline.models.variants import config
from sightline.models.vit import ViTConfig
from sightline.references.rows import Reference, tables

SHAPE = {
    ViTConfig: ("width", "depth", "heads", "mlp_width", "patch", "attention", "norm", "norm_at", "no_skip"),
    BiTConfig: ("units", "unit", "width_factor", "stem", "norm", "standardize"),
    HybridConfig: ("units", "unit", "stem", "width_factor"),
}


def published_name(model: Any) -> str:
    """The name in the tables of the architecture of a model or configuration; empty if none reports it.

    The size of the images, the position embeddings, the head and the number of classes play no role.

    >>> sl.references.published_name(sl.models.config("ViT-B/16", size=384, classes=10))
    'vit-b16'
    """
    return _names().get(_shape(getattr(model, "config", model)), "")


@cache
def _names() -> dict[Any, str]:
    found: dict[Any, str] = {}
    for name in {row.model for t in tables().values() for row in t.rows}:
        try:
            found[_shape(config(name))] = name
        except ValueError:
            continue  # reported by a paper for comparison, and not ours to build
    return found


def _shape(c: Any) -> Any:
    if type(c) not in SHAPE:
        return None
    own = tuple(getattr(c, name) for name in SHAPE[type(c)])
    return (type(c).__name__, own, _shape(c.vit) if isinstance(c, HybridConfig) else None)


def published_rows(
    model: str, dataset: str, *, metric: str = "top-1", shots: int | None = None
) -> tuple[Reference, ...]:
    """Published accuracies of a model on a dataset, by all of its images or, with `shots`, by so many per class.

    Empty where there are none: a model or dataset that no table reports is no mistake here.

    >>> [(r.table, r.value) for r in sl.references.published_rows("bit-r152x4", "cifar10", shots=10)]
    [('bit-fewshot', 0.97)]
    """
    return tuple(
        row
        for t in tables().values()
        for row in t.rows
        if (row.model, row.dataset, row.metric, row.settings.get("shots")) == (model, dataset, metric, shots)
    )


def as_rows(references: Iterable[Reference]) -> list[dict[str, Any]]:
    """Rows of a printed table.

    >>> sl.references.as_rows(sl.references.find("vit-2", model="vit-h14", dataset="vtab"))[0]["value"]
    0.7763
    """
    return [
        {
            "measured": " ".join(filter(None, (r.dataset, "" if r.metric == "top-1" else r.metric))),
            "value": r.value,
            "±": r.std,
            "conditions": r.conditions,
            "table": r.table,
        }
        for r in references
    ]
