"""The one rule of uncertainty: 95 % intervals over what was drawn at random, images or training seeds.

A mean of independent values (training seeds, episodes, images): Student's t. A share of independent cases: Wilson. Any
other statistic of images (CKA, radii, smallest distances): the delete-a-group jackknife, which computes the statistic
itself again without each of 20 to 64 random groups of images. Only mIoU and AP take the bootstrap over images, which is
what their field reports: see sightline/dense/scores.py.
"""

import numpy as np
from numpy.typing import NDArray

# two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom; beyond that, an expansion around the normal
T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
Z95 = 1.959964
FEWEST_GROUPS = 4  # with fewer the jackknife's own error is larger than what it measures


def t95(freedom: int) -> float:
    """The half-width of a 95 % interval in standard errors."""
    if freedom < 1:
        return float("nan")
    if freedom <= len(T95):
        return T95[freedom - 1]
    return Z95 + (Z95**3 + Z95) / (4 * freedom)


def half_width(values: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    """Half of the 95 % confidence interval of the mean along an axis; NaN for a single value."""
    n = values.shape[axis]
    if n < 2:
        return np.full(np.delete(values.shape, axis), np.nan)
    return np.asarray(t95(n - 1) * values.std(axis, ddof=1) / np.sqrt(n))


class RepeatedAccuracy:
    """What results share whose accuracies were measured several times, by seed or episode: along the last axis."""

    accuracy: NDArray[np.float64]

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean accuracy over seeds or episodes."""
        return self.accuracy.mean(-1)

    @property
    def half_width(self) -> NDArray[np.float64]:
        """Half of the 95 % confidence interval of that mean (Student's t); NaN where there is one value."""
        return half_width(self.accuracy)


def jackknife(left: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half of the 95 % interval of a statistic, given its values without each group of images along the first axis.

    The values are highly correlated, so their spread is multiplied: (G - 1) / G times the sum of squares is the
    variance (Quenouille; Tukey; for groups, Shao & Wu 1989). NaN for fewer than four groups.
    """
    left = np.asarray(left, dtype=np.float64)
    count = len(left)
    if count < FEWEST_GROUPS:
        return np.full(left.shape[1:], np.nan)
    error = np.sqrt((count - 1) / count * np.square(left - left.mean(0)).sum(0))
    return np.asarray(t95(count - 1) * error)


def balanced_signs(groups: int) -> NDArray[np.float64]:
    """Rows of +1 and -1, a column per group: columns are orthogonal to each other and to a constant, the first row is
    all +1 (Sylvester's Hadamard matrix without its first column).

    >>> balanced_signs(3).tolist()
    [[1.0, 1.0, 1.0], [-1.0, 1.0, -1.0], [1.0, -1.0, -1.0], [-1.0, -1.0, 1.0]]
    """
    signs = np.ones((1, 1))
    while len(signs) <= groups:
        signs = np.block([[signs, signs], [signs, -signs]])
    return signs[:, 1 : groups + 1]


def wilson(hits: int, n: int) -> tuple[float, float]:
    """95 % interval of a proportion of n independent cases (Wilson 1927), valid near 0 and 1 too."""
    if n == 0:
        return float("nan"), float("nan")
    p, z = hits / n, Z95
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return min(float(middle - half), p), max(float(middle + half), p)  # rounding must not put p outside
