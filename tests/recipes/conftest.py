"""Experiments of the tiny world, each executed once for all tests that look at it."""

import json
from collections import Counter
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import hardneg as hn
from hardneg.data.training_data import choose_splits
from hardneg.experiment.folder import Experiment
from hardneg.models.loading import load_encoder
from hardneg.negatives.pool import ENTRY_ARRAYS, SOURCES
from hardneg.recipes import ance_tele
from hardneg.search.ann import FaissIndex
from hardneg.training import objectives
from hardneg.training.objectives import masked_columns
from tiny_world import COMMON, SETTINGS, tiny_collection, tiny_model


@dataclass
class World:
    """A collection, a pretrained model with BERT's dropout, and the same without any."""

    root: Path
    collection: object
    model: str
    calm: str


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


def multiset(values):
    """How often each value stands in ``values``; comparable by <= and -."""
    return Counter(tuple(sorted(v.items())) if isinstance(v, dict) else v for v in values)


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    collection = tiny_collection(root / "collection")
    calm = tiny_model(root / "calm", collection, dropout=0.0)
    return World(root, collection, tiny_model(root / "model", collection), calm)


@contextmanager
def watched():
    """One thread, as suits a model this small; yields the list of the batches that are trained on meanwhile."""
    batches, threads = [], torch.get_num_threads()

    def watch(batch, *args, **kwargs):
        batches.append(batch)
        return masked_columns(batch, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objectives, "masked_columns", watch)
        torch.set_num_threads(1)
        yield batches
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def execute(world, tmp_path_factory):
    """A function that executes an experiment from start to results."""

    def run(out=None, *, splits=("train", "dev", "test"), **changes):
        settings = SETTINGS | {"store_dtype": "float32"} | changes
        out = out or tmp_path_factory.mktemp("experiment") / "exp"
        with watched() as batches:
            results = hn.train_ance_tele(
                world.collection, world.calm, out, splits=hn.Splits(*splits), device="cpu", **settings
            )
        return Executed(out, settings, results, batches)

    return run


@pytest.fixture(scope="session")
def train_only(world, tmp_path_factory):
    """A function that runs the recipe without measuring anything, which is quicker."""
    cache = tmp_path_factory.mktemp("cache")

    def run(*, passage_model=None, **changes):
        settings = ance_tele.AnceTele(**(SETTINGS | {"store_dtype": "float32"} | changes))
        overrides = {name: changes[name] for name in ("pooling", "normalize", "scale") if name in changes}
        base = load_encoder(world.calm, passage_model, **overrides)
        data = choose_splits(world.collection, dev="none", test="none")
        path = tmp_path_factory.mktemp("experiment")
        with watched() as batches:
            for state in ance_tele.ance_tele(settings, data, partial(deepcopy, base), Experiment(path, cache)):
                state.discard()
        return Executed(path, settings.model_dump(), {}, batches)

    return run


@pytest.fixture(scope="session")
def whole(execute):
    """Three episodes, with the settings as they are and without dropout."""
    return execute()


@pytest.fixture(scope="session")
def run_states(world, tmp_path_factory):
    """A function that runs any recipe without measuring anything, on one thread, and watches its batches."""
    cache = tmp_path_factory.mktemp("cache")

    def run(recipe, *, path=None, base=None, given=None, index_folder=None, **changes):
        settings = recipe.settings(**(COMMON | changes))
        base = base or load_encoder(world.calm)
        data = choose_splits(world.collection, dev="none", test="none")
        experiment = Experiment(path or tmp_path_factory.mktemp("experiment"), cache)
        names = []
        with watched() as batches:
            options = {} if given is None else {"given": given}
            options |= {} if index_folder is None else {"index": FaissIndex(index_folder)}
            for state in recipe.run(settings, data, partial(deepcopy, base), experiment, **options):
                names.append(state.name)
        return Executed(experiment.path, settings.model_dump(), {"states": names}, batches)

    return run
