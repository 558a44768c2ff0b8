"""Pictures that are the same, or nearly: perceptual hashes, found without comparing all with all.

Hashes that differ in at most b bits agree in one of b + 1 bands, so only pictures that share a band are compared. Flat
pictures share hashes without being alike; so a pair counts only if the small grey copies are alike too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

THUMB = 32  # side of the small grey copy
NEAR = 4  # bits of 64
ALIKE = 8.0  # mean difference of the grey copies, of 255
PAIRS = 1 << 20  # compared in one go

Prints = tuple[NDArray[np.uint64], NDArray[np.uint8], NDArray[np.int64]]  # hashes, grey copies, exact hashes


@dataclass(frozen=True)
class Twin:
    """Two pictures that are alike, by their rows."""

    first: int
    second: int
    bits: int
    exact: bool


def _cosines() -> NDArray[np.float32]:
    """The eight lowest cosines of length 32."""
    k, x = np.arange(8)[:, None], np.arange(THUMB)[None, :]
    return np.cos(np.pi / THUMB * (x + 0.5) * k).astype(np.float32)


def fingerprints(thumbs: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """A perceptual hash: the signs of the lowest 8 x 8 cosine coefficients about their median (the mean left out)."""
    cosines = _cosines()
    found = [np.empty(0, dtype=np.uint64)]
    for start in range(0, len(thumbs), 4096):
        waves = (cosines @ thumbs[start : start + 4096].astype(np.float32) @ cosines.T).reshape(-1, 64)
        waves[:, 0] = 0
        bits = waves > np.median(waves, axis=1, keepdims=True)
        found.append(np.packbits(bits, axis=1).view(np.uint64)[:, 0])
    return np.concatenate(found)


def _bit_counts(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    return np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).sum(1, dtype=np.int64)


def twins(one: Prints, two: Prints, *, near: int, same: bool) -> Iterator[Twin]:
    """Pairs that are alike: each picture of the second set with the first one of the first set that is like it."""
    pairs = np.concatenate([np.empty((0, 2), np.int64), *_candidates(one[0], two[0], near, same)])
    pairs = np.unique(pairs, axis=0)
    told: set[int] = set()
    for start in range(0, len(pairs), PAIRS):
        a, b = pairs[start : start + PAIRS].T
        bits = _bit_counts(one[0][a] ^ two[0][b])
        close = np.flatnonzero(bits <= near)
        for i in close:
            first, second = int(a[i]), int(b[i])
            if second in told:
                continue
            apart = np.abs(one[1][first].astype(np.int16) - two[1][second]).mean()
            if apart <= ALIKE:
                told.add(second)
                exact = bool(one[2][first] == two[2][second])
                yield Twin(first, second, int(bits[i]), exact)


def _candidates(one: NDArray[np.uint64], two: NDArray[np.uint64], near: int, same: bool) -> Iterator[NDArray[np.int64]]:
    """Pairs of rows that agree in a band of bits."""
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
