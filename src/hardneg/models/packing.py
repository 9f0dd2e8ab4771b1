"""Batches without padding: which sequences go together, and where their tokens lie.

A flat batch holds the tokens of all sequences, one sequence after another, the longest first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardneg.records import Int64, offsets_of

WINDOW = 1 << 16  # sequences sorted together
GROUP = 1 << 17  # attention weights of one head computed at once: they stay in the processor's cache
SEQUENCES = (1 << 16) - 1  # attended together at most: CUDA's grids take no more in that direction


def plan_batches(lengths: NDArray[np.integer], budget: int, *, window: int = WINDOW) -> list[Int64]:
    """Group sequences of these ``lengths`` [n] into batches of at most ``budget`` tokens.

    Windows of ``window`` consecutive sequences are sorted, longest first, and cut. A sequence longer than the
    budget is alone. A pure function of its arguments.

    Returns
    -------
    The positions of each batch; every position is in exactly one.
    """
    batches = []
    for start in range(0, len(lengths), window):
        part = np.asarray(lengths[start : start + window], np.int64)
        order = np.argsort(-part, kind="stable")
        ends = np.cumsum(part[order])
        first, done = 0, 0
        while first < len(order):
            last = max(int(np.searchsorted(ends, done + budget, side="right")), first + 1)
            batches.append(start + order[first:last])
            first, done = last, int(ends[last - 1])
    return batches


@dataclass(frozen=True)
class Call:
    """Consecutive sequences of a flat batch that one call of an attention kernel takes."""

    sequences: slice
    tokens: slice
    longest: int


@dataclass(frozen=True, eq=False)
class FlatLayout:
    """The places of sequences in a flat batch, longest first, so that equal lengths are neighbours."""

    groups: tuple[tuple[int, int], ...]  # (sequences, their length), consecutive
    calls: tuple[Call, ...]  # what is attended together where lengths may differ, consecutive
    positions: Tensor  # [T] int64, the place of each token in its sequence
    bounds: Tensor  # [n + 1] int32, where sequences begin and end


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy ``array`` to ``device``.

    The copy to CUDA goes through pinned memory, since for any other memory the driver waits.
    """
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def lay_out(lengths: Int64, device: torch.device) -> FlatLayout:
    """The layout of a flat batch of sequences with these ``lengths`` [n], which must be descending."""
    offsets = offsets_of(lengths)
    positions = np.arange(offsets[-1], dtype=np.int64) - np.repeat(offsets[:-1], lengths)
    return FlatLayout(
        groups=_groups(lengths, GROUP if device.type == "cpu" else 32 * GROUP),  # on CUDA launches cost more
        calls=_calls(offsets),
        positions=upload(positions, device),
        bounds=upload(offsets.astype(np.int32), device),
    )


def _groups(lengths: Int64, size: int) -> tuple[tuple[int, int], ...]:
    values, counts = np.unique(-lengths, return_counts=True)
    groups = []
    for length, count in zip((-values).tolist(), counts.tolist(), strict=True):
        most = min(max(size // (length * length), 1), SEQUENCES)
        groups += [(min(most, count - done), length) for done in range(0, count, most)]
    return tuple(groups)


def _calls(offsets: Int64) -> tuple[Call, ...]:
    """The calls of at most ``SEQUENCES`` sequences each; the first sequence of a call is its longest."""
    found = []
    for first in range(0, len(offsets) - 1, SEQUENCES):
        last = min(first + SEQUENCES, len(offsets) - 1)
        start, end = int(offsets[first]), int(offsets[last])
        found.append(Call(slice(first, last), slice(start, end), int(offsets[first + 1]) - start))
    return tuple(found)


def padded_together(groups: Sequence[tuple[int, int]], free: int) -> list[Call]:
    """Cut a batch into the calls that cost least, if a call costs as much as ``free`` tokens more than it has.

    Parameters
    ----------
    groups : (sequences, their length), longest first.

    Returns
    -------
    Calls of at most ``SEQUENCES`` sequences each, in order. No other cut has a lower sum, over its calls, of
    sequences times longest length plus ``free``.
    """
    counts, lengths = np.array(groups, np.int64).reshape(-1, 2).T
    before = offsets_of(counts)  # sequences before each group
    cost, begin = np.zeros(len(counts) + 1), np.zeros(len(counts) + 1, np.int64)
    for end in range(1, len(counts) + 1):  # the cheapest way to the end of each group: its last call's begin
        first = int(np.searchsorted(before, before[end] - SEQUENCES))
        ways = cost[first:end] + (before[end] - before[first:end]) * lengths[first:end] + free
        begin[end] = first + int(np.argmin(ways))
        cost[end] = ways[begin[end] - first]
    cuts = [len(counts)]
    while cuts[-1]:
        cuts.append(int(begin[cuts[-1]]))
    tokens = offsets_of(counts * lengths)
    return [
        Call(slice(int(before[a]), int(before[b])), slice(int(tokens[a]), int(tokens[b])), int(lengths[a]))
        for b, a in reversed([*itertools.pairwise(cuts)])
    ]
