"""The published numbers of tables.json next to this file, one typed row each, which knows its table and source."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from sightline.models.variants import canonical

ACCURACIES = ("top-1", "top-5")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One published number.

    `value` is in our units: accuracy is a share of 1, cost in the unit that `metric` names. A row belongs to one table:
    numbers of two tables were measured under different conditions, even if model and dataset are the same.

    >>> row = sl.references.find("vit-2", model="ViT-H/14", dataset="imagenet")[0]
    >>> row.value, row.std, row.pretraining
    (0.8855, 0.0004, 'jft-300m')
    """

    table: str  # vit-2, bit-1, fixres ...
    source: str
    model: str  # the name under which Sightline builds it, where it can
    printed: str  # the name in the table
    pretraining: str  # dataset; empty if the table does not say
    dataset: str  # the name under which Sightline opens it, where it can; empty for a cost
    metric: str  # top-1, top-5, TPUv3-core-days or exaFLOPs
    value: float
    std: float | None = None  # over runs, where it is published
    settings: dict[str, Any] = field(default_factory=dict)  # what tells this row from others: epochs, size, shots ...

    @property
    def conditions(self) -> str:
        """Pre-training and settings in words: "imagenet-21k, size 384"."""
        words = [f"{k} {v}" for k, v in self.settings.items()]
        return ", ".join(filter(None, (self.pretraining, *words)))


@dataclass(frozen=True, kw_only=True)
class ReferenceTable:
    """One table of a paper.

    >>> sl.references.tables()["vit-6"].source
    'Dosovitskiy et al. 2020, arXiv 2010.11929v2, table 6'
    """

    name: str
    source: str
    url: str
    about: str
    rows: tuple[Reference, ...]


@cache
def tables() -> dict[str, ReferenceTable]:
    """All tables by name.

    >>> list(sl.references.tables())[:4]
    ['vit-2', 'vit-5', 'vit-6', 'vit-7']
    """
    text = resources.files("sightline.references").joinpath("tables.json").read_text(encoding="utf-8")
    return {
        name: ReferenceTable(
            name=name,
            source=t["source"],
            url=t["url"],
            about=t["about"],
            rows=tuple(one for row in t["rows"] for one in _cells(name, t["source"], row)),
        )
        for name, t in json.loads(text).items()
    }


def _cells(table: str, source: str, row: dict[str, Any]) -> Iterator[Reference]:
    """One reference for each cell of a printed row."""
    about = {key: row[key] for key in ("model", "printed", "pretraining")}
    about |= {"table": table, "source": source, "settings": row.get("settings", {})}
    for what, numbers in row["accuracy"].items():
        dataset, _, rank = what.partition(" top-")
        value, *std = (round(x / 100, 6) for x in numbers)
        yield Reference(dataset=dataset, metric=f"top-{rank or 1}", value=value, std=std[0] if std else None, **about)
    for unit, amount in row.get("cost", {}).items():
        yield Reference(dataset="", metric=unit, value=float(amount), **about)


def find(
    table: str | None = None,
    *,
    model: str | None = None,
    dataset: str | None = None,
    pretraining: str | None = None,
    metric: str | None = None,
) -> tuple[Reference, ...]:
    """The published numbers that fit everything given, in the order of the tables; none is averaged or merged.

    `model` is our name or the paper's: vit-l16, ViT-L/16.

    >>> [(r.table, r.value) for r in sl.references.find(model="vit-h14", dataset="imagenet", pretraining="jft-300m")]
    [('vit-2', 0.8855), ('vit-5', 0.8804), ('vit-6', 0.8808)]
    """
    asked = {"table": table, "model": model and canonical(model), "dataset": dataset}
    asked |= {"pretraining": pretraining, "metric": metric}
    every = [row for t in tables().values() for row in t.rows]
    for key, value in asked.items():
        known = sorted({getattr(row, key) for row in every} - {""})
        if value is not None and value not in known:
            raise ValueError(f"No published number has {key} {value!r}; there are {', '.join(known)}.")
    return tuple(row for row in every if all(v is None or getattr(row, k) == v for k, v in asked.items()))
