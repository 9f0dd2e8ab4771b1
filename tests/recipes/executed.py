"""What came out of an experiment, and the batches that it trained on."""

import json
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from hardneg.experiment.layout import Layout, run_of
from hardneg.negatives.pool import ENTRY_ARRAYS, SOURCES
from hardneg.search.runs import load_run
from hardneg.storage.artifacts import is_published
from hardneg.training.stage import Stage


@dataclass
class Executed:
    """An experiment that ran: where, with which settings, what came out, and the batches it trained on."""

    path: Path
    settings: dict
    results: dict
    batches: list = field(default_factory=list)

    @property
    def metrics(self):
        return [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]

    def losses(self, episode):
        return [row["loss"] for row in self.metrics if row["episode"] == episode]

    def pool(self, episode):
        return read_pool(self.path / f"episodes/{episode}/negatives")

    def run(self, name):
        """The lists of a stored run: [[(row, score), ...], ...]."""
        folder = self.path / name
        rows, scores, offsets = (np.load(folder / f"{x}.npy") for x in ("passage_rows", "scores", "offsets"))
        hits = list(zip(rows.tolist(), scores.tolist(), strict=True))
        return [hits[a:b] for a, b in pairwise(offsets.tolist())]


def read_pool(folder):
    """The entries of every query of a stored pool, as dictionaries, read array by array."""
    arrays = {name: np.load(folder / f"{name}.npy").tolist() for name in (*ENTRY_ARRAYS, "offsets")}
    pool = []
    for start, stop in pairwise(arrays["offsets"]):
        columns = [arrays[name][start:stop] for name in ENTRY_ARRAYS]
        entries = [dict(zip(ENTRY_ARRAYS, values, strict=True)) for values in zip(*columns, strict=True)]
        pool.append([{**entry, "sources": SOURCES[entry["sources"]]} for entry in entries])
    return pool


def run_of_state(experiment, state, name):
    """The published run of a state (``dev``, ``test``, ``query`` or ``lookahead``); None: it has none."""
    if state.runs is None:
        return None
    place = run_of(Layout(experiment) / state.runs, name)
    return load_run(place) if is_published(place) else None


def multiset(values):
    """How often each value stands in ``values``; comparable by <= and -."""
    return Counter(tuple(sorted(v.items())) if isinstance(v, dict) else v for v in values)


@contextmanager
def watched():
    """One thread, as suits a model this small; yields the list of the micro-batches that are trained on."""
    batches, threads, also = [], torch.get_num_threads(), Stage.watch

    def watch(name, step, batch):
        if also is not None:
            also(name, step, batch)
        batches.extend(batch.micro())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stage, "watch", staticmethod(watch))
        torch.set_num_threads(1)
        yield batches
    torch.set_num_threads(threads)
