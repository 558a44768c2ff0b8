"""Bipartite matching: which query answers for which object, at the least total cost."""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def assign(cost: Floats) -> NDArray[np.int64]:
    """The column of each row, no column twice, such that the sum of the costs is least; no more rows than columns.

    Shortest augmenting paths with dual prices (Jonker & Volgenant 1987; Crouse 2016).

    >>> import numpy as np
    >>> sl.dense.assign(np.array([[4.0, 1, 3], [2, 0, 5]])).tolist()
    [1, 0]
    """
    cost = np.asarray(cost, np.float64)
    rows, columns = cost.shape
    if rows > columns:
        raise ValueError(f"{rows} rows cannot each have one of {columns} columns.")
    if not np.isfinite(cost).all():
        raise ValueError("The costs of a matching must be finite.")
    column_of, row_of = np.full(rows, -1), np.full(columns, -1)
    row_price, column_price = np.zeros(rows), np.zeros(columns)
    for start in range(rows):
        before, column = _cheapest_path(cost, start, (column_of, row_of), (row_price, column_price))
        row = -1
        while row != start:  # each row on the path passes its column on to the one before it
            row = int(before[column])
            row_of[column] = row
            column_of[row], column = column, int(column_of[row])
    return column_of


def _cheapest_path(
    cost: Floats,
    start: int,
    matched: tuple[NDArray[np.int64], NDArray[np.int64]],
    prices: tuple[Floats, Floats],
) -> tuple[NDArray[np.int64], int]:
    """The row before each column on the cheapest path from `start` to a free column; that column. Updates prices."""
    (column_of, row_of), (row_price, column_price) = matched, prices
    columns = len(row_of)
    length, before = np.full(columns, math.inf), np.full(columns, -1)
    left = np.ones(columns, np.bool_)
    row, lowest, passed = start, 0.0, [start]
    while True:
        step = lowest + cost[row] - row_price[row] - column_price
        better = left & (step < length)
        length[better], before[better] = step[better], row
        column = int(np.where(left, length, math.inf).argmin())
        lowest, left[column] = float(length[column]), False
        if row_of[column] < 0:
            break
        row = int(row_of[column])
        passed.append(row)
    row_price[start] += lowest
    others = np.array(passed[1:], np.int64)
    row_price[others] += lowest - length[column_of[others]]
    column_price[~left] -= lowest - length[~left]
    return before, column
