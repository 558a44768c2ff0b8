"""Folders of images and of masks beside them: Pascal VOC's layout, and images/ with masks/."""

import hashlib
import io
import os
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sightline.data.errors import BadImage, printable
from sightline.data.folder import ImageFiles, file_stamp, is_inside
from sightline.data.images import SUFFIXES, check_size, read_bytes, reason
from sightline.data.targets.target import Target, TargetSource, check_masks, check_object_classes
from sightline.fingerprints import QUICK
from sightline.untrusted import read_text

VOID = 255  # pixels of no known class, in VOC's masks and in most others
VOC = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
LAYOUTS = {  # images, masks of classes, masks of objects, lists of splits
    "voc": ("JPEGImages", "SegmentationClass", "SegmentationObject", "ImageSets/Segmentation"),
    "plain": ("images", "masks", "objects", "splits"),
}
MASK_MODES = ("P", "L", "1", "I;16", "I;16B", "I")  # one value per pixel


class MaskFolder(ImageFiles, TargetSource):
    """Images with a mask each: JPEGImages/ and SegmentationClass/ of Pascal VOC, or images/ and masks/.

    A mask is a PNG of the same name whose values are classes: 0 is the background, 255 counts for nothing. A file
    classes.txt names them, line by line from class 0 on. SegmentationObject/ (or objects/) tells objects apart: their
    numbers; without it the data has classes only. ImageSets/Segmentation/train.txt (or splits/train.txt) lists the
    images of a split.

    >>> import tempfile, pathlib, numpy as np
    >>> from PIL import Image
    >>> home = pathlib.Path(tempfile.mkdtemp())
    >>> for folder, pixels in (("images", np.zeros((4, 4, 3))), ("masks", np.eye(4))):
    ...     (home / folder).mkdir()
    ...     Image.fromarray(pixels.astype(np.uint8)).save(home / folder / "a.png")
    >>> _ = (home / "classes.txt").write_text("background\\ndiagonal\\n")
    >>> data = sl.data.MaskFolder(home)
    >>> data.object_classes, int(data.target(0).masks.sum())
    (('diagonal',), 4)
    """

    def __init__(self, path: str | Path, split: str | None = None):
        root = Path(os.path.realpath(path))
        layout = folder_layout(root)
        if layout is None:
            raise ValueError(
                f"{printable(path)} has no masks: expected JPEGImages/ and SegmentationClass/, or images/ and masks/."
            )
        images, masks, objects, lists = (root / part for part in LAYOUTS[layout])
        self.name, self.home = printable(path), str(root)
        names = _names(lists, split)
        pairs = _pairs(images, masks, names, self.home)
        if not pairs:
            raise ValueError(f"{printable(images)} has no image with a mask of its name in {printable(masks)}.")
        if lost := sorted((names or set()) - {Path(image).stem for image, _ in pairs}):
            raise ValueError(
                f"The split {split} of {self.name} lists {len(lost):,} without an image and a mask of that name, the "
                f"first {printable(lost[0])!r}: bring the files back, or take them off the list."
            )
        self.paths, self.masks = [a for a, _ in pairs], [b for _, b in pairs]
        self.object_masks = [objects / Path(m).name for m in self.masks] if objects.is_dir() else []
        self.instances = bool(self.object_masks)
        self.object_classes = check_object_classes(_class_names(root, layout, self.masks), self.name)
        self.classes, self.labels = (self.name,), np.zeros(len(pairs), np.int64)  # an image as a whole has no class

    def target_key(self) -> str:
        files = [*self.masks, *map(str, self.object_masks)]
        stamps = [file_stamp(path, self.home) for path in files]
        if sum(s.size for s in stamps) > QUICK:
            return repr(stamps)
        return repr([(s.name, hashlib.sha256(read_bytes(p).data).hexdigest()) for s, p in zip(stamps, files)])

    def target(self, index: int) -> Target:
        path = self.masks[index]
        classes = read_mask(path)
        void = classes == VOID
        wrong = np.unique(classes[~void & (classes > len(self.object_classes))])
        if len(wrong):
            raise BadImage(
                f"{printable(path)} has the value {wrong[0]}; expected classes 0 to {len(self.object_classes)}, or "
                f"{VOID} for none: list more names in classes.txt."
            )
        objects = self._objects(index, classes, void)
        values = [v for v in np.unique(objects).tolist() if v]
        check_masks(len(values), classes.shape, printable(path))
        masks = np.zeros((len(values), *classes.shape), np.bool_)
        for mask, value in zip(masks, values):
            mask[...] = objects == value
        return Target(classes=np.array([classes[m][0] for m in masks], np.int64), masks=masks, void=void)

    def _objects(self, index: int, classes: NDArray[np.int64], void: NDArray[np.bool_]) -> NDArray[np.int64]:
        """A number for each object, or for each class where objects are not told apart; 0 elsewhere."""
        if not self.instances:
            return np.where(void, 0, classes)
        objects = read_mask(self.object_masks[index])
        if objects.shape != classes.shape:
            raise BadImage(f"{printable(self.object_masks[index])} and {printable(self.masks[index])} differ in size.")
        inside = ~void & (classes > 0) & (objects != VOID)
        return np.where(inside, objects * (len(self.object_classes) + 1) + classes, 0)


def folder_layout(root: Path) -> str | None:
    """Which layout a folder of images and masks has."""
    return next((name for name, (a, b, *_) in LAYOUTS.items() if (root / a).is_dir() and (root / b).is_dir()), None)


def mask_splits(root: Path) -> tuple[str, ...]:
    """The splits that are listed in a folder of images and masks."""
    layout = folder_layout(root)
    if layout is None:
        return ()
    return tuple(s for s in ("train", "val", "test") if (root / LAYOUTS[layout][3] / f"{s}.txt").is_file())


def read_mask(path: str | Path) -> NDArray[np.int64]:
    """The values of a mask, one per pixel: the numbers of a palette, not its colors."""
    raw = read_bytes(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(io.BytesIO(raw.data), formats=("PNG", "BMP", "TIFF", "PPM"))
            check_size(image.size, raw.name)
            if image.mode not in MASK_MODES:
                raise BadImage(
                    f"{raw.name} is a {image.mode} image; a mask has one value per pixel: a gray or palette PNG."
                )
            return np.asarray(image).astype(np.int64)
        except BadImage:
            raise
        except Exception as error:  # broken files make Pillow raise many types
            raise BadImage(f"{raw.name} is not a mask that can be read ({reason(error)}).") from error


def _names(lists: Path, split: str | None) -> set[str] | None:
    """The names of a split's images; None for all images."""
    if split is None:
        return None
    try:
        lines = read_text(lists / f"{split}.txt").splitlines()
    except FileNotFoundError:
        raise ValueError(
            f"There is no list {printable(lists / split)}.txt of the images of the split {split}."
        ) from None
    return {line.split()[0] for line in lines if line.strip()}


def _pairs(images: Path, masks: Path, names: set[str] | None, home: str) -> list[tuple[str, str]]:
    """Images and their masks, by name without extension; links that lead out of the folder are left out."""
    there = {Path(n).stem: n for n in sorted(os.listdir(masks)) if n.lower().endswith(SUFFIXES)}
    files = sorted(n for n in os.listdir(images) if n.lower().endswith(SUFFIXES) and not n.startswith("."))
    pairs = [
        (str(images / n), str(masks / there[Path(n).stem]))
        for n in files
        if Path(n).stem in there and (names is None or Path(n).stem in names)
    ]
    return [pair for pair in pairs if all(is_inside(p, home) for p in pair)]


def _class_names(root: Path, layout: str, masks: list[str]) -> tuple[str, ...]:
    """Names from class 1 on: those of classes.txt, of VOC, or numbers up to the largest in any mask."""
    try:
        lines = [printable(line.strip()) for line in read_text(root / "classes.txt").splitlines() if line.strip()]
    except FileNotFoundError:
        if layout == "voc":
            return VOC
        largest = max(int(v[v != VOID].max(initial=0)) for v in map(read_mask, masks))
        return tuple(map(str, range(1, largest + 1)))
    return tuple(lines[1:])
