"""The images of studies: drawn or resized once, kept in the store, and read from there by every run."""

from pathlib import Path

import numpy as np
from PIL import Image

from sightline.data.arrays import Arrays
from sightline.data.datasets import Dataset
from sightline.data.draws import hash_key, permute
from sightline.data.source import dataset
from sightline.files import lock
from sightline.spec import atomic
from sightline.studies.engine.specs import Images, digest, sparse

PIECE = 1024  # images at a time


def open_images(images: Images, store: Path, *, masks: bool = False) -> Dataset:
    """A dataset from its description. With `masks`, scenes as they are drawn, which know what is where."""
    source = source_of(images)
    if masks:
        return source
    folder = store / "images" / digest("images", sparse(images))
    file = folder / "images.npy"
    if not file.exists():
        with lock(folder / ".lock"):
            if not file.exists():
                with atomic(file) as partial, partial.open("wb") as out:
                    np.save(out, pixels(source, images), allow_pickle=False)
    stack = np.load(file, mmap_mode="r")
    return Arrays(stack, source.labels, classes=source.classes, name=images.name)


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
