"""The one rule of uncertainty: 95 % intervals over what was drawn at random, images or training seeds.

A mean of independent values (training seeds, episodes, images): Student's t. A share of independent cases: Wilson. Any
other statistic of images (CKA, radii, smallest distances): the delete-a-group jackknife, which computes the statistic
itself again without each of 20 to 64 random groups of images, or from what those groups say (`over_groups`). Only mIoU
and AP take the bootstrap over images, which is what their field reports: see sightline/dense/scores.py.
"""

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from sightline.data.draws import hash_key, permute

# two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom; beyond that, an expansion around the normal
T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
Z95 = 1.959964
FEWEST_GROUPS = 4  # with fewer the jackknife's own error is larger than what it measures
ROUNDING = 1e-6  # of a value, in float32: what varies by less is the same for all images
Part = tuple[NDArray, NDArray]  # an array of a result, and the same without each group of images: (groups, *shape)
Ends = tuple[float, float]  # of an interval; NaN where there is none
NO_ENDS: Ends = (math.nan, math.nan)


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


def perturbed(whole: NDArray, left: NDArray) -> Iterator[NDArray]:
    """An array as other images of the same number could have given it, from what it is without each group of images.

    G times the whole minus G - 1 times what it is without a group is that group's own value (Tukey's pseudo-value),
    exact for means and to first order for CKA. Each draw moves the whole by plus or minus every group's deviation. The
    signs are the rows of a Hadamard matrix and their opposites: for what is linear, the mean square of the draws is the
    jackknife's variance to the last digit, without the noise of random draws. The jackknife itself is as good for what
    is smooth. The path of best matches, a smallest distance or a rank are not: leaving out one group moves them by
    nothing or by far, and the jackknife's interval covered 0.80 where such draws cover 0.95 (docs/log.md).
    """
    groups = len(left)
    own = (groups - 1) * (left.mean(0) - left).reshape(groups, -1) / math.sqrt(groups * (groups - 1))
    for signs in balanced_signs(groups):
        move = (signs @ own).reshape(np.shape(whole))
        yield whole + move
        yield whole - move


def error_over_groups(statistic: Callable[..., float], *parts: Part, step: float = 0.0) -> tuple[float, int]:
    """Standard error over images of a statistic of arrays, and its degrees of freedom; NaN for fewer than four groups.

    The whole statistic is computed again with every group's share moved up or down, so that minima, ranks and ratios
    have their own error. `step` is the smallest difference that it can show: no error is smaller.
    """
    counts = {len(left) for _, left in parts}
    groups = counts.pop() if len(counts) == 1 else 0
    if groups < FEWEST_GROUPS:
        return math.nan, 0
    value = float(statistic(*(whole for whole, _ in parts)))
    again = np.array([statistic(*arrays) for arrays in zip(*(perturbed(*part) for part in parts))], dtype=np.float64)
    error = float(np.sqrt(np.square(again - value).mean()))  # around the value: an extreme of noise is biased, too
    return max(error, step), groups - 1


def over_groups(
    statistic: Callable[..., float], *parts: Part, step: float = 0.0, least: float = -math.inf, most: float = math.inf
) -> Ends:
    """The 95 % interval over images of a statistic, between `least` and `most`, which its values cannot leave.

    >>> x = np.random.default_rng(0).normal(1, 0.5, 20)
    >>> [round(end, 3) for end in over_groups(float, (x.mean(), without_each(x)))]
    [0.724, 1.159]
    """
    error, freedom = error_over_groups(statistic, *parts, step=step)
    value = float(statistic(*(whole for whole, _ in parts)))
    if not error > ROUNDING * abs(value):  # nor is NaN
        return NO_ENDS
    return ends(value, t95(freedom) * error, least=least, most=most)


def without_each(values: NDArray) -> NDArray[np.float64]:
    """The mean over the first axis without each of its entries: of images, pairs or queries that are groups of one.

    >>> without_each(np.array([1.0, 2.0, 6.0])).tolist()
    [4.0, 3.5, 1.5]
    """
    n = len(values)
    return (values.sum(0) - values) / (n - 1) if n > 1 else np.zeros((0, *values.shape[1:]))


def image_groups(count: int, most: int = 20) -> NDArray[np.int64]:
    """A random group for each of `count` images, of equal size and always the same ones."""
    return np.asarray(permute(count, hash_key(0, "groups of test images"), np.arange(count)) % max(1, min(most, count)))


def ends(value: float, half: float, *, least: float = -math.inf, most: float = math.inf) -> Ends:
    """An interval from its middle and half of its width; none where nothing varied, which says nothing of how much
    it would."""
    if not (math.isfinite(value) and math.isfinite(half) and half > ROUNDING * abs(value)):
        return NO_ENDS
    return max(value - half, least), min(value + half, most)


def of_mean(values: NDArray, *, least: float = -math.inf, most: float = math.inf) -> Ends:
    """Of the mean of independent values, those that are numbers, by Student's t; NaN for fewer than two, and where all
    are the same, which says nothing of how much they vary.

    >>> [round(end, 2) for end in of_mean(np.array([0.2, 0.4, 0.6]), least=0.0, most=1.0)]
    [0.0, 0.9]
    """
    known = np.asarray(values, dtype=np.float64).ravel()
    known = known[np.isfinite(known)]
    if len(known) < 2 or not known.std() > 0:
        return NO_ENDS
    return ends(float(known.mean()), float(half_width(known)), least=least, most=most)


def of_difference(one: float, other: float, first: Ends, second: Ends) -> Ends:
    """Of the difference of two independent values with intervals of their own (Newcombe 1998).

    >>> [round(end, 3) for end in of_difference(0.7, 0.5, (0.6, 0.78), (0.4, 0.6))]
    [0.059, 0.328]
    """
    value = one - other
    low = value - math.hypot(one - first[0], second[1] - other)
    return low, value + math.hypot(first[1] - one, other - second[0])


def of_median(values: NDArray) -> Ends:
    """Of the median of independent values, between two of them: as many lie outside as a fair coin leaves 2.5 % of the
    time at either end. NaN for fewer than six.

    >>> of_median(np.arange(10.0))
    (1.0, 8.0)
    """
    n = len(values)
    tail, outside = 0.5**n, 0
    while tail <= 0.025:
        outside += 1
        tail += math.comb(n, outside) * 0.5**n
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    return (float(ordered[outside - 1]), float(ordered[n - outside])) if outside else NO_ENDS


def intervals_of(
    statistics: Mapping[str, Callable[..., float]], *parts: Part, least: float = -math.inf, most: float = math.inf
) -> dict[str, Ends]:
    """The intervals of several statistics of the same arrays, by name; without those that have none."""
    return known_ends({name: over_groups(f, *parts, least=least, most=most) for name, f in statistics.items()})


def known_ends(found: Mapping[str, Ends]) -> dict[str, Ends]:
    """Only what is known."""
    return {name: (low, high) for name, (low, high) in found.items() if math.isfinite(low) and math.isfinite(high)}


def wilson(hits: int, n: int) -> tuple[float, float]:
    """95 % interval of a proportion of n independent cases (Wilson 1927), valid near 0 and 1 too."""
    if n == 0:
        return float("nan"), float("nan")
    p, z = hits / n, Z95
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return min(float(middle - half), p), max(float(middle + half), p)  # rounding must not put p outside
