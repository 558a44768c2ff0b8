"""Images in random groups, so that a statistic can be computed again without each of them (see `evals/interval.py`)."""

import numpy as np
from numpy.typing import NDArray

from sightline.data.draws import hash_key, permute

GROUPS = 20  # 20 copies of a result can be kept, and the half width has 19 degrees of freedom


class ImageGroups:
    """The group of each image: groups of equal size, at random, the same for an image in every repeat.

    Two results on the same images, in the same order and with the same seed, have the same groups; differences between
    them are taken group by group. `total` is the number of images of a pass, where it is known before; `most` is how
    many groups there are where there are as many images.
    """

    def __init__(self, total: int | None, seed: int, *, most: int = GROUPS):
        self.count = most if total is None else min(most, total)
        known = total or 0
        self._order = permute(known, hash_key(seed, "groups"), np.arange(known)) if known else np.arange(0)
        self._group: dict[int, int] = {}

    def __call__(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of images by their number in the data."""
        for number in index.tolist():
            if number not in self._group:
                place = len(self._group)
                self._group[number] = int(self._order[place] if place < len(self._order) else place) % self.count
        return np.array([self._group[number] for number in index.tolist()], dtype=np.int64)
