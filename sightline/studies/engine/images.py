"""The images of studies: drawn or resized once, kept in the store, and read from there by every run."""

import logging
import os
from pathlib import Path

import numpy as np
from PIL import Image

from sightline import fingerprints
from sightline.archives import map_array, save_array
from sightline.data.arrays import Arrays
from sightline.data.datasets import Dataset
from sightline.data.draws import hash_key, permute
from sightline.data.source import dataset
from sightline.files import atomic, lock, remove_leftovers, set_aside
from sightline.studies.engine.specs import Images, digest, sparse
from sightline.studies.engine.store import read, write
from sightline.untrusted import printable

PIECE = 1024  # images at a time
CHECKED: set[tuple[Path, tuple[int, int, int]]] = set()  # by this process: files as they were then
log = logging.getLogger(__name__)


def open_images(images: Images, store: Path, *, masks: bool = False) -> Dataset:
    """A dataset from its description. With `masks`, scenes as they are drawn, which know what is where."""
    source = source_of(images)
    if masks:
        return source
    file = store / "images" / digest("images", sparse(images)) / "images.npy"
    if (file, _stamp(file)) not in CHECKED:
        with lock(file.with_name(".lock")):
            remove_leftovers(file.parent)
            check_source(source, images, file.with_name("source.json"))
            if not is_whole(file):
                with atomic(file) as partial:
                    save_array(partial, pixels(source, images))
        CHECKED.add((file, _stamp(file)))
    return Arrays(map_array(file), source.labels, classes=source.classes, name=images.name)


def check_source(source: Dataset, images: Images, note: Path) -> None:
    """Refuse images that are others than when the first task of the study read them: pixels and labels would mix."""
    known = {"fingerprint": source.fingerprint(), "rules": fingerprints.VERSION}
    before = read(note) if note.exists() else {}
    if before.get("rules") != known["rules"]:  # the first time
        write(note, known)
    elif before != known:
        raise ValueError(
            f"{images.name} ({images.split}) has changed since this folder's studies read it: bring the images back, "
            f"or give another --out (removing {printable(note.parent)} mixes numbers of both)."
        )


def is_whole(file: Path) -> bool:
    """Whether the file is there as it was written; a damaged one is set aside."""
    if not os.path.lexists(file):
        return False
    try:
        map_array(file)
        return True
    except ValueError as error:
        log.warning("%s It is now %s, and drawn again.", error, set_aside(file).name)
        return False


def _stamp(file: Path) -> tuple[int, int, int]:
    if not file.is_file():
        return 0, 0, 0
    about = file.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns


def source_of(images: Images) -> Dataset:
    """The images as their source gives them."""
    if images.name.startswith("scenes/"):
        options = {} if images.num is None else {"num": images.num}
        return dataset(images.name, split=images.split, size=images.size, seed=images.seed, **options)
    whole: Dataset = dataset(images.name, split=images.split)
    whole = whole.imbalanced(images.tail, seed=images.seed) if images.tail else whole
    if images.num is None or images.num >= len(whole):
        return whole
    return whole.subset(images.num / len(whole), seed=images.seed)


def pixels(source: Dataset, images: Images) -> np.ndarray:
    """All pixels, at the size that is asked for."""
    out = np.empty((len(source), images.size, images.size, 3), np.uint8)
    for start in range(0, len(source), PIECE):
        rows = np.arange(start, min(start + PIECE, len(source)))
        for row, image in zip(rows, source.images(rows)):
            out[row] = resized(np.asarray(image), images.size)
    return permuted(out, images.permuted) if images.permuted else out


def resized(image: np.ndarray, size: int) -> np.ndarray:
    """One image at another size."""
    if image.shape[:2] == (size, size):
        return image
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))


def permuted(stack: np.ndarray, side: int) -> np.ndarray:
    """Every image with its patches in another order, the same for all: what is local is no longer near."""
    n, size = len(stack), stack.shape[1]
    grid = size // side
    patches = stack.reshape(n, grid, side, grid, side, 3).swapaxes(2, 3).reshape(n, grid * grid, side, side, 3)
    order = permute(grid * grid, hash_key(0, "patch order"), np.arange(grid * grid))
    moved = patches[:, order].reshape(n, grid, grid, side, side, 3).swapaxes(2, 3)
    return np.ascontiguousarray(moved.reshape(n, size, size, 3))
