"""`sl.data.corrupt` and `sl.data.Corrupted`: one image or a whole dataset, corrupted by rule with keyed draws."""

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from sightline.data.corruptions.kinds import KINDS
from sightline.data.datasets import Dataset
from sightline.data.draws import Ints, generator
from sightline.data.images import Pixels, decode
from sightline.fingerprints import FileStamp

SEVERITIES = (1, 2, 3, 4, 5)


def corruption_kinds() -> tuple[str, ...]:
    """The names of the 15 corruptions: noise, blur, weather, digital.

    >>> sl.data.corruption_kinds()[:3]
    ('gaussian-noise', 'shot-noise', 'impulse-noise')
    """
    return tuple(KINDS)


def corrupt(image: ArrayLike | Image.Image, kind: str, severity: int, *, seed: int = 0, index: int = 0) -> Pixels:
    """An image (h, w, 3) with one of the 15 corruptions of `sl.data.corruption_kinds()`, at severity 1 to 5.

    The same seed and index give the same noise, at every severity: only its strength differs.

    >>> import numpy as np
    >>> sl.data.corrupt(np.full((8, 8, 3), 200, np.uint8), "contrast", 5).shape
    (8, 8, 3)
    """
    if kind not in KINDS:
        raise ValueError(f"There is no corruption {kind!r}; there are {', '.join(KINDS)}.")
    if not isinstance(severity, int | np.integer) or severity not in SEVERITIES:
        raise ValueError(f"severity={severity!r}: expected a whole number from 1 to 5.")
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise ValueError(f"An RGB image is uint8 (h, w, 3); got {pixels.dtype} {pixels.shape}.")
    one = KINDS[kind]
    rng = generator(seed, "corruption", kind, index)
    out = one.apply(pixels.astype(np.float64) / 255, one.strengths[severity - 1], rng)
    return np.round(np.clip(out, 0, 1) * 255).astype(np.uint8)


class Corrupted(Dataset):
    """A dataset whose images are corrupted as they are read; larger ones are first reduced to `size` on the short side.

    >>> data = sl.data.Corrupted(sl.dataset("scenes/shape", num=4), "fog", 3)
    >>> data[0][0].shape, data.name
    ((32, 32, 3), 'scenes/shape, fog 3')
    """

    def __init__(self, parent: Dataset, kind: str, severity: int, *, seed: int = 0, size: int | None = None):
        corrupt(np.zeros((8, 8, 3), np.uint8), kind, severity)  # refused here, not in a worker
        self.parent, self.kind, self.severity, self.seed, self.size = parent, kind, severity, seed, size
        self.name, self.classes, self.labels = f"{parent.name}, {kind} {severity}", parent.classes, parent.labels

    def image(self, index: int) -> Pixels:
        image = decode(self.parent.image(index))
        short = min(image.size)
        if self.size is not None and short > self.size:
            width, height = (max(1, round(n * self.size / short)) for n in image.size)
            image = image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
        return corrupt(image, self.kind, self.severity, seed=self.seed, index=int(index))

    def where(self, index: int) -> str:
        return self.parent.where(index)

    def stamps(self, indices: Ints) -> list[FileStamp] | None:
        return None  # the pixels are not those of the files
