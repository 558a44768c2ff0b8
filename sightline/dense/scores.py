"""Mean intersection over union, and the bootstrap over images that both dense metrics use."""

import numpy as np
from numpy.typing import NDArray

from sightline.data.draws import Draws
from sightline.data.targets.target import IGNORE

Floats = NDArray[np.float64]
RESAMPLES = 200  # of the images, for an interval


def resample_weights(images: int, *, resamples: int = RESAMPLES, seed: int = 0) -> Floats:
    """How often each image occurs in each of the resamples with replacement, (resamples, images).

    >>> resample_weights(5, resamples=2).sum(1).tolist()
    [5.0, 5.0]
    """
    drawn = Draws(seed, np.arange(resamples)).choices("bootstrap", images, images)
    return np.stack([np.bincount(row, minlength=images) for row in drawn]).astype(np.float64)


def percentile_interval(values: Floats) -> Floats:
    """The middle 95 % of a statistic over resamples along the first axis: low and high on a new last axis."""
    with np.errstate(invalid="ignore"):
        bad = np.isnan(values).any(0)
        ends = np.quantile(np.where(np.isnan(values), 0.0, values), (0.025, 0.975), axis=0)
    return np.moveaxis(np.where(bad, np.nan, ends), 0, -1)


def pixel_counts(guess: NDArray[np.integer], truth: NDArray[np.integer], classes: int) -> NDArray[np.int64]:
    """Pixels of each class of one image, (3, classes): correct, predicted, true. Ignored pixels count for nothing.

    >>> import numpy as np
    >>> pixel_counts(np.array([[0, 1, 1]]), np.array([[0, 1, -1]]), 2).tolist()
    [[1, 1], [1, 1], [1, 1]]
    """
    counted = truth != IGNORE
    g, t = guess[counted].astype(np.int64), truth[counted].astype(np.int64)
    return np.stack([np.bincount(v, minlength=classes) for v in (g[g == t], g, t)])


def intersection_over_union(counts: NDArray[np.number]) -> Floats:
    """By class, from counts (..., 3, classes) that were added over images; NaN for a class that neither occurs nor is
    predicted."""
    both, guess, truth = (counts[..., i, :].astype(np.float64) for i in range(3))
    either = guess + truth - both
    return both / np.where(either > 0, either, np.nan)


def mean_iou(counts: NDArray[np.int64], *, resamples: int = RESAMPLES, seed: int = 0) -> tuple[float, Floats]:
    """Mean over classes of the intersection over union, from counts of images (n, 3, classes), and its 95 % interval.

    >>> import numpy as np
    >>> round(sl.dense.mean_iou(np.array([[[2, 1], [3, 1], [2, 2]]]))[0], 4)
    0.5833
    """
    if len(counts) == 0:
        raise ValueError("There are no images to compute an intersection over union of.")
    weights = resample_weights(len(counts), resamples=resamples, seed=seed)
    again = np.tensordot(weights, counts.astype(np.float64), 1)
    value = float(np.nanmean(intersection_over_union(counts.sum(0))))
    return value, percentile_interval(np.nanmean(intersection_over_union(again), axis=-1))
