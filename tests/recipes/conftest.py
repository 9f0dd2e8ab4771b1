"""Experiments of the tiny world, each executed once for all tests that look at it."""

from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from executed import Executed, watched

import hardneg as hn
from hardneg.data.training_data import DevDraw
from hardneg.experiment.folder import Experiment
from hardneg.models.loading import load_encoder
from hardneg.models.source import ModelSource
from hardneg.recipes import ance_tele
from hardneg.recipes.adore.lists import Retrieval
from hardneg.recipes.frozen import frozen_models
from hardneg.recipes.training_run import TrainingRun
from hardneg.search.ann import FaissIndex
from worlds.tiny_world import COMMON, SETTINGS, tiny_collection, tiny_model


@dataclass
class World:
    """A collection, a pretrained model with BERT's dropout, and the same without any."""

    root: Path
    collection: object
    model: str
    calm: str


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    collection = tiny_collection(root / "collection")
    calm = tiny_model(root / "calm", collection, dropout=0.0)
    return World(root, collection, tiny_model(root / "model", collection), calm)


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
        data = settings.data_of(world.collection, hn.Splits(dev="none", test="none"), draw=DevDraw())
        path = tmp_path_factory.mktemp("experiment")
        with watched() as batches:
            training = TrainingRun(settings, data, Experiment(path, cache))
            for state in ance_tele.ance_tele(training, partial(deepcopy, base)):
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

    def run(recipe, *, path=None, base=None, given=None, index_folder=None, ranker=None, frozen=None, **changes):
        settings = recipe.settings(**(COMMON | changes))
        base = base or load_encoder(world.calm)
        data = settings.data_of(world.collection, hn.Splits(dev="none", test="none"), draw=DevDraw())
        experiment = Experiment(path or tmp_path_factory.mktemp("experiment"), cache)
        names = []
        with watched() as batches:
            options = {} if given is None else {"given": given}
            options |= {} if index_folder is None else {"index": FaissIndex(index_folder)}
            options |= {} if ranker is None else {"ranker": ranker}
            beside = None
            if frozen is not None:
                source = ModelSource.at(world.calm, device="cpu", **frozen)
                beside = frozen_models(settings, source, partial(deepcopy, base), data, cache)
            training = TrainingRun(settings, data, experiment, beside)
            for state in recipe.run(training, partial(deepcopy, base), **options):
                names.append(state.name)
        return Executed(experiment.path, settings.model_dump(), {"states": names}, batches)

    return run


@pytest.fixture
def watched_batches(monkeypatch):
    """The queries of every step that is trained."""
    batches, real = [], Retrieval.lists

    def lists(self, batch, vectors):
        batches.append(batch.query_rows.tolist())
        return real(self, batch, vectors)

    monkeypatch.setattr(Retrieval, "lists", lists)
    return batches
