"""Keyed randomness: every draw is a pure function of (seed, purpose, episode, epoch, query, ...).

Nothing depends on the order of arrival, so workers, shards and resumed experiments draw alike.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

UInt64 = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def key(seed: int, purpose: str, *parts: int) -> int:
    """A 64-bit key of the draw's name, e.g. ``key(seed, "sample/query", episode)``."""
    text = "\x1f".join([str(seed), purpose, *(str(int(part)) for part in parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _mix(x: UInt64) -> UInt64:
    """The finaliser of splitmix64: a bijection of 64-bit words with full avalanche."""
    x = x ^ (x >> np.uint64(30))
    x *= _MIX_1
    x ^= x >> np.uint64(27)
    x *= _MIX_2
    x ^= x >> np.uint64(31)
    return x


def hash64(base: int, *columns: NDArray[np.integer]) -> UInt64:
    """Random 64-bit words: one for each element of the broadcast ``columns``, a function of it and ``base``."""
    with np.errstate(over="ignore"):
        state: UInt64 = np.asarray(np.uint64(base))
        for column in columns:
            state = _mix(state + _GOLDEN + _mix(np.asarray(column).astype(np.uint64) * _GOLDEN + _MIX_2))
    return state


def below(words: UInt64, n: NDArray[np.integer] | int) -> NDArray[np.int64]:
    """Integers uniform in [0, n) from random ``words`` (bias below n / 2^53)."""
    high = (words >> np.uint64(11)).view(np.int64)  # signed integers become floats several times faster
    return (high.astype(np.float64) * (n * 2.0**-53)).astype(np.int64)


def smallest(words: UInt64, offsets: NDArray[np.int64], counts: NDArray[np.integer]) -> NDArray[np.int64]:
    """Uniform draws without replacement from ragged lists.

    Takes the ``counts[i]`` elements with the smallest words from span i (all of them when fewer), and
    returns their indices, span by span, in ascending order of word: a random order.
    """
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    bits = np.uint64(len(offsets).bit_length())
    keys = (owner.astype(np.uint64) << (np.uint64(64) - bits)) | (words >> bits)
    order = np.argsort(keys)  # one sort of words, several times faster than two stable ones
    if (np.diff(keys[order]) == 0).any():  # rare: two keys differ only in the bits that were cut off
        order = np.lexsort((words, owner))
    rank = np.arange(len(words)) - offsets[owner]
    return order[rank < np.asarray(counts)[owner]]


def permutation(base: int, n: int) -> NDArray[np.int64]:
    """A permutation of range(n) [n], decided by the key ``base``."""
    return np.argsort(hash64(base, np.arange(n)), kind="stable")
