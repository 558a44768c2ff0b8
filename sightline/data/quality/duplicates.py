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
PAIRS = 1 << 13  # compared at a time

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
    """For each image of the second set, the first image of the first set that is (nearly) the same."""
    pairs = np.concatenate([np.empty((0, 2), np.int64), *_candidates(one[0], two[0], near, same)])
    pairs = np.unique(pairs, axis=0)
    matched = np.zeros(len(two[0]), dtype=np.bool_)
    for start in range(0, len(pairs), PAIRS):
        block = pairs[start : start + PAIRS]
        block = block[~matched[block[:, 1]]]
        for first, second in block[_is_same_image(one[1][block[:, 0]], two[1][block[:, 1]])]:
            if not matched[second]:
                matched[second] = True
                bits = int(_bit_counts(one[0][first : first + 1] ^ two[0][second : second + 1])[0])
                yield DuplicatePair(int(first), int(second), bits, bool(one[2][first] == two[2][second]))


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


def _candidates(one: NDArray[np.uint64], two: NDArray[np.uint64], near: int, same: bool) -> Iterator[NDArray[np.int64]]:
    """Pairs of images whose hashes agree in a band of bits and differ in at most `near`."""
    edges = np.linspace(0, 64, near + 2).astype(int)
    for low, high in pairwise(edges):
        mask = np.uint64((1 << (int(high) - int(low))) - 1)
        left, right = ((h >> np.uint64(low)) & mask for h in (one, two))
        order = np.argsort(right, kind="stable")
        first = np.searchsorted(right[order], left, side="left")
        count = np.searchsorted(right[order], left, side="right") - first
        for start in range(0, len(left), 2048):
            counts = count[start : start + 2048]
            rows = np.repeat(np.arange(start, start + len(counts)), counts)
            steps = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
            partners = order[first[rows] + steps]
            keep = _bit_counts(one[rows] ^ two[partners]) <= near
            keep &= (rows < partners) if same else True
            yield np.stack([rows[keep], partners[keep]], axis=1)
