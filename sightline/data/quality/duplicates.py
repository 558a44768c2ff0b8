"""Find duplicates and near duplicates by perceptual hashes, without comparing all pairs of images.

Hashes that differ in at most b bits agree in one of b + 1 bands, so only images that share a band are compared. Images
of little contrast share hashes without being similar, so the gray thumbnails of a pair must be similar as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

GRAY = 32  # side of the gray copy that is hashed
THUMB = GRAY // 2  # side of the thumbnail that is kept for comparison
MAX_BITS = 8  # of 64: with MIN_CORRELATION, 190 near duplicates across the splits of CIFAR-10, few of them wrong
MIN_CORRELATION = 0.9  # of the gray thumbnails
FLAT = 4.0  # variance, in gray levels squared, below which a correlation means nothing
PAIRS = 1 << 13  # of thumbnails, compared at a time
CANDIDATES, AHEAD = 1 << 20, 2048  # pairs of hashes that are compared at a time, of at most so many images

ImageHashes = tuple[
    NDArray[np.uint64], NDArray[np.uint8], NDArray[np.int64]
]  # perceptual hashes, gray thumbnails, hashes of all pixels


@dataclass(frozen=True)
class DuplicatePair:
    """Two images that are (nearly) the same, by index."""

    first: int
    second: int
    bits: int  # of the perceptual hash that differ
    exact: bool


def _cosines() -> NDArray[np.float32]:
    """The eight lowest frequencies of the cosine transform of a gray copy."""
    k, x = np.arange(8)[:, None], np.arange(GRAY)[None, :]
    return np.cos(np.pi / GRAY * (x + 0.5) * k).astype(np.float32)


def halve(copies: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Thumbnails: gray copies at half their side."""
    return copies.reshape(len(copies), THUMB, 2, THUMB, 2).mean((2, 4)).astype(np.uint8)


def perceptual_hashes(thumbs: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Which of the lowest 8 x 8 cosine coefficients are above their median (without the mean), as 64 bits."""
    cosines = _cosines()
    hashes = [np.empty(0, dtype=np.uint64)]
    for start in range(0, len(thumbs), 4096):
        coefficients = (cosines @ thumbs[start : start + 4096].astype(np.float32) @ cosines.T).reshape(-1, 64)
        coefficients[:, 0] = 0
        bits = coefficients > np.median(coefficients, axis=1, keepdims=True)
        hashes.append(np.packbits(bits, axis=1).view(np.uint64)[:, 0])
    return np.concatenate(hashes)


def _bit_counts(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    if hasattr(np, "bitwise_count"):  # since numpy 2
        return np.bitwise_count(words).astype(np.int64)
    return np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).sum(1, dtype=np.int64)


def find_duplicates(one: ImageHashes, two: ImageHashes, *, near: int, same: bool) -> Iterator[DuplicatePair]:
    """For each image of the second set, the first image of the first set that is (nearly) the same.

    Images of the first set are taken in order, a few at a time, and compared with those of the second that have no
    partner yet. So a thousand copies of an image cost a thousand comparisons, not a million.
    """
    bands, row = _Bands(two[0], np.arange(len(two[0])), near), 0
    while row < len(one[0]) and len(bands.rows):
        pairs, row = bands.candidates(one[0], row, near)
        if same:
            pairs = pairs[pairs[:, 0] < pairs[:, 1]]
        matched = np.zeros(len(two[0]), dtype=np.bool_)
        for start in range(0, len(pairs), PAIRS):
            block = pairs[start : start + PAIRS]
            block = block[~matched[block[:, 1]]]
            for first, second in block[_is_same_image(one[1][block[:, 0]], two[1][block[:, 1]])]:
                if not matched[second]:
                    matched[second] = True
                    bits = int(_bit_counts(one[0][first : first + 1] ^ two[0][second : second + 1])[0])
                    yield DuplicatePair(int(first), int(second), bits, bool(one[2][first] == two[2][second]))
        if matched.any():
            bands = _Bands(two[0], bands.rows[~matched[bands.rows]], near)


def _is_same_image(one: NDArray[np.uint8], two: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether thumbnails correlate, at any brightness and contrast; flat ones must have the same gray level."""
    a, b = (x.reshape(len(x), THUMB * THUMB).astype(np.float32) for x in (one, two))
    level = np.abs(a.mean(1) - b.mean(1))
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    strength = np.sqrt((a * a).sum(1) * (b * b).sum(1))
    flat = strength < FLAT * THUMB * THUMB
    return np.where(
        flat, (level < 1) & (np.abs(a - b).max(1, initial=0) < 8), (a * b).sum(1) > MIN_CORRELATION * strength
    )


class _Bands:
    """Some images, sorted by each band of bits of their hashes: hashes that differ in at most `near` agree in one."""

    def __init__(self, hashes: NDArray[np.uint64], rows: NDArray[np.int64], near: int):
        self.hashes, self.rows = hashes, rows
        edges = np.linspace(0, 64, near + 2).astype(int)
        self.shifts = [(np.uint64(low), np.uint64((1 << (int(high) - int(low))) - 1)) for low, high in pairwise(edges)]
        values = [(hashes[rows] >> shift) & mask for shift, mask in self.shifts]
        orders = [np.argsort(v, kind="stable") for v in values]
        self.sorted = [(rows[order], v[order]) for v, order in zip(values, orders)]

    def candidates(self, one: NDArray[np.uint64], row: int, near: int) -> tuple[NDArray[np.int64], int]:
        """Pairs of an image of `one`, from `row` on, and one of these that differ in at most `near` bits, in order;
        and where to go on. As many rows as make about CANDIDATES comparisons, but one at least."""
        ahead = one[row : row + AHEAD]
        spans = []
        for (shift, mask), (_, values) in zip(self.shifts, self.sorted):
            keys = (ahead >> shift) & mask
            spans.append((np.searchsorted(values, keys, "left"), np.searchsorted(values, keys, "right")))
        work = np.cumsum(sum(right - left for left, right in spans))
        end = max(1, int(np.searchsorted(work, CANDIDATES, "right")))
        found = [np.empty((0, 2), np.int64)]
        for (partners, _), (left, right) in zip(self.sorted, spans):
            counts = (right - left)[:end]
            rows = np.repeat(np.arange(row, row + len(counts)), counts)
            steps = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
            others = partners[np.repeat(left[:end], counts) + steps]
            keep = _bit_counts(one[rows] ^ self.hashes[others]) <= near
            found.append(np.stack([rows[keep], others[keep]], axis=1))
        return np.unique(np.concatenate(found), axis=0), row + end
