"""Oxford-IIIT Pets with its trimaps: the pixels of the animal, the background, and a border that counts for nothing."""

from pathlib import Path

import numpy as np

from sightline.data.draws import Ints
from sightline.data.errors import BadImage, printable
from sightline.data.folder import Manifest, file_stamp
from sightline.data.images import EncodedImage
from sightline.data.targets.mask_folder import read_mask
from sightline.data.targets.target import Target, TargetSource
from sightline.fingerprints import FileStamp

ANIMAL, GROUND, BORDER = 1, 2, 3  # the values of a trimap


class Pets(TargetSource):
    """The pets with breeds as labels and trimaps as masks; the trimaps are read when a dense task asks for them.

    >>> sl.data.Pets("no-such-folder")
    Traceback (most recent call last):
        ...
    ValueError: no-such-folder/list.csv is not a readable manifest ([Errno 2] No such file or directory: ...
    """

    object_classes = ("pet",)
    instances = False

    def __init__(self, folder: str | Path, split: str | None = None):
        self.folder, self.listed = Path(folder), Manifest(Path(folder) / "list.csv", split)
        self.name, self.classes, self.labels = self.listed.name, self.listed.classes, self.listed.labels
        self.paths = self.listed.paths

    def image(self, index: int) -> EncodedImage:
        return self.listed.image(index)

    def where(self, index: int) -> str:
        return self.listed.where(index)

    def stamps(self, indices: Ints) -> list[FileStamp] | None:
        return self.listed.stamps(indices)

    def trimap(self, index: int) -> Path:
        """The file of one trimap."""
        return self.folder / "annotations" / "trimaps" / f"{Path(self.paths[index]).stem}.png"

    def target_key(self) -> str:
        return repr([file_stamp(str(self.trimap(i)), str(self.folder)) for i in range(len(self))])

    def target(self, index: int) -> Target:
        path = self.trimap(index)
        values = read_mask(path)
        if not np.isin(values, (ANIMAL, GROUND, BORDER)).all():
            raise BadImage(f"{printable(path)} is no trimap: expected 1 (animal), 2 (background) and 3 (border).")
        animal = values == ANIMAL
        there = animal[None] if animal.any() else animal[None][:0]
        return Target(classes=np.ones(len(there), np.int64), masks=there, void=values == BORDER)
