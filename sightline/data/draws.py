"""Random numbers without state: every draw is a hash of its key, so the order of access cannot change it.

The key is (seed, epoch, index, name of the draw). No draw affects another: processes agree without communicating, and a
new kind of draw leaves the others unchanged. The name is part of the key: rename a draw, and its values change.
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Number = int | float  # users may write 1 for 1.0
Ints = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
ROUNDS = 6  # rounds of the Feistel network; four are enough to look random


def splitmix64(words: UInt64s) -> UInt64s:
    """The finalizer of SplitMix64 (Steele, Lea & Flood 2014): every input bit affects every output bit."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def hash_key(*parts: int | str) -> int:
    """A 64-bit hash of strings and integers, the same on every machine and in every run."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def _as_uint64(values: Ints | int) -> UInt64s:
    return np.atleast_1d(np.asarray(values)).astype(np.int64).view(np.uint64)


@dataclass(frozen=True)
class Draws:
    """Random numbers for many items at once; row i depends only on the key, `items[i]` and the name of the draw."""

    key: int
    items: Ints

    def _bits(self, name: str, count: int) -> UInt64s:
        rows = splitmix64(_as_uint64(self.items) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(hash_key(self.key, name)))
        columns = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)
        return splitmix64(rows[:, None] + columns)

    def many(self, name: str, count: int) -> NDArray[np.float64]:
        """Uniform in [0, 1), shape (items, count)."""
        return (self._bits(name, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def uniform(self, name: str, low: Number = 0.0, high: Number = 1.0) -> NDArray[np.float64]:
        """Uniform in [low, high), one per item."""
        return low + (high - low) * self.many(name, 1)[:, 0]

    def integers(self, name: str, high: int) -> Ints:
        """Uniform in 0 .. high - 1, one per item."""
        return np.minimum((self.many(name, 1)[:, 0] * high).astype(np.int64), high - 1)

    def choices(self, name: str, high: int, count: int) -> Ints:
        """Uniform in 0 .. high - 1, shape (items, count)."""
        return np.minimum((self.many(name, count) * high).astype(np.int64), high - 1)


def permute(n: int, key: int, positions: Ints) -> Ints:
    """The values of a keyed random permutation of 0 .. n - 1 at `positions`, computed without storing the permutation.

    A Feistel network is a bijection of 2^(2h) numbers whatever its round function; a value outside 0 .. n - 1 goes
    through the network again until it is inside ("cycle walking"), fewer than four times on average.
    """
    half = max(1, math.ceil(math.log2(max(n, 2)) / 2))
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    keys = [np.uint64(hash_key(key, "round", i)) for i in range(ROUNDS)]
    values = _as_uint64(positions).copy()
    outside = np.arange(len(values))
    while len(outside):
        value = values[outside]
        left, right = value >> shift, value & mask
        for k in keys:
            left, right = right, left ^ (splitmix64(right + k) & mask)
        value = (left << shift) | right
        values[outside] = value
        outside = outside[value >= np.uint64(n)]
    return values.view(np.int64)


def generator(*parts: int | str) -> np.random.Generator:
    """A NumPy generator with the same kind of key, for draws that need one (a beta distribution, a permutation)."""
    return np.random.Generator(np.random.Philox(key=hash_key(*parts)))
