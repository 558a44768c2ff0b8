"""ImageNet-ReaL: the reassessed labels of ImageNet's validation images (Beyer et al. 2020)."""

import re
from pathlib import Path

import numpy as np

from sightline.data.datasets import Dataset
from sightline.data.draws import Ints
from sightline.data.errors import printable
from sightline.data.folder import Folder
from sightline.data.images import EncodedImage
from sightline.data.named.entry import NamedDataset
from sightline.fingerprints import FileStamp
from sightline.untrusted import read_json

FILE = "real.json"
COUNTS = (50_000, 3_163, 57_553)  # lists, empty lists, labels in total: counted in the published file


class ReassessedLabels(Dataset):
    """ImageNet's validation images with any number of labels each; scoring skips those that have none."""

    def __init__(self, images: Folder, lists: list[list[int]]):
        self.name, self.classes, self.files = "imagenet-real", images.classes, images
        self.labels = np.zeros((len(images), 1000), dtype=np.bool_)
        for row, path in enumerate(images.paths):
            number = re.search(r"val_(\d{8})", Path(path).name)
            if number is None or not 1 <= int(number.group(1)) <= len(lists):
                raise ValueError(
                    f"{printable(path)} is not named like ILSVRC2012_val_00000001.JPEG, which labels go by."
                )
            self.labels[row, lists[int(number.group(1)) - 1]] = True

    def image(self, index: int) -> EncodedImage:
        return self.files.image(index)

    def where(self, index: int) -> str:
        return self.files.where(index)

    def stamps(self, indices: Ints) -> list[FileStamp] | None:
        return self.files.stamps(indices)


class ReassessedLabelStorage:
    """The labels in the published file; the images in the folder of ImageNet next to this one."""

    def prepare(self, entry: NamedDataset, raw: Path, folder: Path) -> bool:
        return _read_lists(raw / FILE) is not None

    def open(self, entry: NamedDataset, folder: Path, split: str) -> Dataset:
        lists = _read_lists(folder / "raw" / FILE) or _read_lists(folder / FILE)
        if lists is None:
            raise ValueError(f"{FILE} is not in {printable(folder)}. Fetch it with: sightline data get imagenet-real.")
        imagenet = folder.parent / "imagenet"
        if not (imagenet / split).is_dir():
            raise ValueError(
                f"imagenet-real needs the images of ImageNet in {printable(imagenet / split)}, one folder per class."
            )
        return ReassessedLabels(Folder(imagenet, split, follow_links=True), lists)


def _read_lists(path: Path) -> list[list[int]] | None:
    """The labels of each image, or None if there is no such file."""
    if not path.exists():
        return None
    try:
        lists = read_json(path)
        counts = (len(lists), sum(not row for row in lists), sum(len(row) for row in lists))
        valid = all(isinstance(c, int) and 0 <= c < 1000 for row in lists for c in row)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{printable(path)} does not contain the reassessed labels ({error}).") from error
    if counts != COUNTS or not valid:
        raise ValueError(f"{printable(path)} has {counts} lists, empty lists and labels; expected {COUNTS}.")
    return lists
