"""Nearest layers of two models by CKA, from results that `sightline compare` saved."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sightline.analysis.similarity.cka import CKA
from sightline.observe.model import ObservedModel
from sightline.report.collect import collect

Nearest = list[list[dict[str, Any]]]  # by model and block: the other model's block and the CKA


def nearest_layers(folder: str | Path, first: ObservedModel, second: ObservedModel) -> Nearest:
    """For each block of either model the most similar block of the other, from a folder of saved results.

    Results about other weights than these are refused: they would tell of other models.
    """
    wanted = (first.id.fingerprint, second.id.fingerprint)
    results = [e.result for e in collect(folder).entries if isinstance(e.result, CKA)]
    known = {tuple(m.fingerprint for m in r.about.models): r for r in results if len(r.about.models) == 2}
    if wanted not in known and wanted[::-1] not in known:
        raise ValueError(
            f"{folder} has no CKA of these two models: sightline compare A B DATA --out {folder} computes it."
        )
    turned = wanted not in known
    found = known[wanted[::-1] if turned else wanted]
    table = found.similarity.T if turned else found.similarity
    rows, columns = (found.columns, found.rows) if turned else (found.rows, found.columns)
    a, b = _blocks(first, rows), _blocks(second, columns)
    small = table[np.ix_([i for _, i in a], [j for _, j in b])] if a and b else np.zeros((0, 0))
    return [_best(small, a, b), _best(small.T, b, a)]


def _blocks(s: ObservedModel, names: Sequence[str]) -> list[tuple[int, int]]:
    """(number of the block, its place in the table) of every block output that was compared."""
    place = {name: i for i, name in enumerate(names)}
    return [(n, place[p.path]) for n, p in enumerate(s.block_outputs) if p.path in place]


def _best(table: np.ndarray, a: Sequence[tuple[int, int]], b: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    rows = []
    for (block, _), row in zip(a, table):
        if np.isfinite(row).any():
            best = int(np.nanargmax(row))
            rows.append({"block": block, "other": b[best][0], "cka": float(row[best])})
    return rows
