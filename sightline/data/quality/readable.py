"""A dataset without the images that cannot be read, for folders as people have them."""

import logging

import numpy as np

from sightline.data.datasets import Dataset, Subset
from sightline.data.errors import BadImage, TooManyBad
from sightline.data.images import decode

log = logging.getLogger("sightline.data")
MOST_READ = 2_000  # images that are read in full to find the broken ones; larger data is for `sightline data check`
SHOWN = 5


def without_unreadable(data: Dataset, error: TooManyBad) -> Subset:
    """The images of `data` that can be read, and a warning that names the others; `error` where there are none, or too
    many images to read them all."""
    if len(data) > MOST_READ:
        raise error
    reasons = {i: reason for i in range(len(data)) if (reason := _unreadable(data, i))}
    if len(reasons) == len(data):
        raise error
    if reasons:
        listed = "; ".join([*reasons.values()][:SHOWN]) + (" ..." if len(reasons) > SHOWN else "")
        log.warning("%d of %d images cannot be read and are left out: %s.", len(reasons), len(data), listed)
    return Subset(data, np.array([i for i in range(len(data)) if i not in reasons]))


def _unreadable(data: Dataset, index: int) -> str:
    """Why an image cannot be read; empty if it can."""
    try:
        decode(data.image(index))
    except BadImage as error:
        return str(error).rstrip(".")
    return ""
