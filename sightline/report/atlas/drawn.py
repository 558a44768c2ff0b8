"""Numbers of a study over its seeds, as the atlas draws them: means with intervals, and tables."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from sightline.report.atlas.charts import Point
from sightline.studies.effects import over_seeds
from sightline.studies.engine.analyses import unpacked
from sightline.studies.engine.study import MissingNumberError, SeedNumbers, value_of

Panel = tuple[str, Markup]  # heading and chart


@dataclass(frozen=True)
class Drawn:
    """The seeds of a study."""

    seeds: Sequence[SeedNumbers]

    def interval(self, of: Callable[[SeedNumbers], float]) -> tuple[float, float, float]:
        """Mean over the seeds that have the number, and its 95 % interval."""
        found = over_seeds("", [known(of, s) for s in self.seeds])
        if not math.isfinite(found.value):
            raise MissingNumberError("not measured yet")
        return found.value, found.low, found.high

    def point(self, x: float, of: Callable[[SeedNumbers], float]) -> list[Point]:
        """A point of a line; none where nothing was measured."""
        try:
            return [(x, *self.interval(of))]
        except MissingNumberError:
            return []

    def curve(self, of: Callable[[SeedNumbers], Sequence[float]], *, depth: bool = False) -> list[Point]:
        """A point for every entry of a list, counted from 1; `depth` spreads them from 0 to 1."""
        length = len(self.first(of))
        places = [i / max(1, length - 1) if depth else i + 1 for i in range(length)]
        return [p for i, x in enumerate(places) for p in self.point(x, lambda s, i=i: of(s)[i])]  # type: ignore[misc]

    def first(self, of: Callable[[SeedNumbers], Any]) -> Any:
        """What the first seed that has it says."""
        for s in self.seeds:
            try:
                return of(s)
            except (MissingNumberError, KeyError, IndexError):
                continue
        raise MissingNumberError("not measured yet")

    def table(self, of: Callable[[SeedNumbers], Any]) -> NDArray[np.float64]:
        """Mean over the seeds of a table, whether packed as text or a list of lists."""
        found = []
        for s in self.seeds:
            try:
                rows = of(s)
            except (MissingNumberError, KeyError, IndexError):
                continue
            found.append(unpacked(rows) if isinstance(rows[0], str) else np.array(rows, dtype=float))
        if not found:
            raise MissingNumberError("not measured yet")
        return np.asarray(np.mean([t for t in found if t.shape == found[0].shape], axis=0))


def known(of: Callable[[SeedNumbers], float], s: SeedNumbers) -> float:
    """The number of one seed; NaN where it, or a part of the measurement, is missing."""
    try:
        return value_of(of, s)
    except (KeyError, IndexError):
        return math.nan


def some(series: dict[str, list[Point]]) -> dict[str, list[Point]]:
    """The lines that have points."""
    kept = {name: points for name, points in series.items() if points}
    if not kept:
        raise MissingNumberError("not measured yet")
    return kept
