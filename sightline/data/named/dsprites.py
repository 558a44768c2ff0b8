"""Two named datasets that are like no other: dSprites, one bit per pixel; and ImageNet's reassessed labels."""

import json
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.data.datasets import Dataset
from sightline.data.draws import Ints, shuffled
from sightline.data.errors import shown
from sightline.data.folder import Folder
from sightline.data.images import Encoded, Pixels
from sightline.data.named.readers import dsprites_file

FACTORS = {"shape": 3, "scale": 6, "orientation": 40, "x": 32, "y": 32}  # columns 1..5 of latents_classes
SPRITES = 737_280
REAL = (50_000, 3_163, 57_553)  # lists, empty ones, labels in all: counted in the published file


def pack_dsprites(raw: Path, folder: Path) -> bool:
    """Eight pixels to a byte: 0.4 GB on disk, mapped, instead of 3 GB in memory."""
    path = dsprites_file(raw)
    if path is None:
        return False
    with np.load(path, allow_pickle=False) as file:
        images, factors = file["imgs"], file["latents_classes"]
    sizes = tuple(int(n) + 1 for n in factors.max(0)[1:])
    if images.shape != (SPRITES, 64, 64) or sizes != tuple(FACTORS.values()):
        raise ValueError(f"dsprites: expected {SPRITES} images of 64 x 64 px, got {images.shape} with factors {sizes}.")
    np.save(folder / "images.part.npy", np.packbits(images.reshape(SPRITES, -1), axis=1))
    (folder / "images.part.npy").replace(folder / "images.npy")
    np.save(folder / "factors.npy", factors[:, 1:].astype(np.uint8))
    return True


class Sprites(Dataset):
    """dSprites; the label is one of its factors, in as many classes as it has values, or in `groups` equal ranges."""

    def __init__(self, packed: NDArray[np.uint8], factors: NDArray[np.uint8], *, label: str, groups: int | None = None):
        if label not in FACTORS:
            raise ValueError(f"dsprites has the factors {', '.join(FACTORS)}, not {shown(label)}.")
        values = factors[:, list(FACTORS).index(label)].astype(np.int64)
        count = FACTORS[label]
        self.name, self.packed, self.factors = "dsprites", packed, factors
        self.labels = values if groups is None else values * groups // count
        shapes = ("square", "ellipse", "heart")
        self.classes = shapes if label == "shape" else tuple(f"{label} {i}" for i in range(groups or count))

    def image(self, index: int) -> Pixels:
        return self.images(np.array([index]))[0]

    def images(self, indices: Ints) -> Pixels:
        bits = np.unpackbits(np.asarray(self.packed[indices]), axis=1).reshape(-1, 64, 64, 1)
        return np.repeat(bits * np.uint8(255), 3, axis=3)

    def where(self, index: int) -> str:
        return f"dsprites[{index}]"


def open_dsprites(folder: Path, split: str, *, label: str = "shape", groups: int | None = None) -> Dataset:
    """80 % train, 10 % val, 10 % test (VTAB's shares), by a fixed shuffle."""
    packed, factors = np.load(folder / "images.npy", mmap_mode="r"), np.load(folder / "factors.npy")
    whole = Sprites(packed, factors, label=label, groups=groups)
    order = shuffled(SPRITES, 0, np.arange(SPRITES))
    cuts = [0, SPRITES * 8 // 10, SPRITES * 9 // 10, SPRITES]
    part = ("train", "val", "test").index(split)
    return whole.subset(indices=np.sort(order[cuts[part] : cuts[part + 1]]))


def read_real(path: Path) -> list[list[int]] | None:
    """The lists of real.json, or None where there is no such file."""
    if not path.exists():
        return None
    try:
        lists = json.loads(path.read_text())
        counts = (len(lists), sum(not row for row in lists), sum(len(row) for row in lists))
        sane = all(isinstance(c, int) and 0 <= c < 1000 for row in lists for c in row)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{shown(path)} does not hold the reassessed labels ({error}).") from error
    if counts != REAL or not sane:
        raise ValueError(f"{shown(path)} has {counts} lists, empty ones and labels; expected {REAL}.")
    return lists


class Relabeled(Dataset):
    """ImageNet's validation images with any number of labels each; those without any are to be skipped in scoring."""

    def __init__(self, images: Folder, lists: list[list[int]]):
        self.name, self.classes, self.files = "imagenet-real", images.classes, images
        self.labels = np.zeros((len(images), 1000), dtype=np.bool_)
        for row, path in enumerate(images.paths):
            number = re.search(r"val_(\d{8})", Path(path).name)
            if number is None or not 1 <= int(number.group(1)) <= len(lists):
                raise ValueError(
                    f"{shown(path)} is not called ILSVRC2012_val_00000001.JPEG or alike; labels go by that."
                )
            self.labels[row, lists[int(number.group(1)) - 1]] = True

    def image(self, index: int) -> Encoded:
        return self.files.image(index)

    def where(self, index: int) -> str:
        return self.files.where(index)


def imagenet_real(folder: Path, imagenet: Path) -> Relabeled:
    """The labels from `folder`, the images from ImageNet's own."""
    lists = read_real(folder / "raw" / "real.json") or read_real(folder / "real.json")
    if lists is None:
        raise ValueError("imagenet-real is not there; fetch it with: sightline data get imagenet-real.")
    if not (imagenet / "val").is_dir():
        raise ValueError(
            f"imagenet-real needs the images of ImageNet in {shown(imagenet / 'val')}, one folder per class."
        )
    return Relabeled(Folder(imagenet, "val", follow_links=True), lists)
