"""What a run logged, as a result."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sightline.spec import Result


@dataclass(frozen=True, kw_only=True)
class Curves(Result):
    """What a run logged, by step: one row per line of its log, NaN where a line has no value.

    >>> import numpy as np
    >>> values = np.array([[2.0], [1.0]])
    >>> c = sl.training.Curves(title="", caption="", step=np.array([1, 2]), names=("train/loss",), values=values)
    >>> c.of("train/loss")
    (array([1, 2]), array([2., 1.]))
    """

    step: NDArray[np.int64]  # (n,)
    names: tuple[str, ...]
    values: NDArray[np.float64]  # (n, names)

    def of(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Steps and finite values of one series."""
        column = self.values[:, self.names.index(name)]
        finite = np.isfinite(column)
        return self.step[finite], column[finite]

    def summary(self) -> dict[str, float]:
        """The last value of each series."""
        return {name: float(values[-1]) for name in self.names if len(values := self.of(name)[1])}
