"""Whatever is given to a public function from Python: it is taken, or refused in one line that says what to give."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import hardneg as hn
from hardneg.data.collection import Collection
from hardneg.data.training_data import Labels
from hardneg.errors import HardnegError
from hardneg.experiment import planning
from hardneg.operations import training
from hardneg.storage import disk
from tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401


class Odd:
    """Nothing that anybody expects, and rude when it is shown."""

    def __repr__(self):
        raise ValueError("not to be shown")


WRONG = {
    "None": None,
    "an integer": 7,
    "below zero": -1,
    "a fraction": 1.5,
    "nan": float("nan"),
    "True": True,
    "no text": "",
    "a text": "x",
    "a NUL": "a\0b",
    "a lone surrogate": "a\ud800b",
    "bytes": b"x",
    "a path": Path("/nowhere/at/all"),
    "an empty list": [],
    "a list of texts": ["x"],
    "a list of integers": [1, 2],
    "a list of lists": [["a", "b", "c", "d"], [1]],
    "an empty dict": {},
    "a flat dict": {"q1": ["p1"]},
    "a dict of dicts": {"test": {"q1": 3}},
    "integer keys": {1: {2: 3}},
    "a tuple": ("a", 1),
    "an array": np.zeros((2, 2)),
    "a class": dict,
    "an object": Odd(),
}
NOT_CALLED = {"HardnegError", "__version__"}  # an exception and a string


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    collection = tiny_collection(root / "collection")
    run = root / "run.trec"
    run.write_text("".join(f"test-{i:02d} Q0 p{i:03d} 1 1.0 made\n" for i in range(16)))
    pool = hn.mine(collection, None, root / "pool", sources=["random"], count=4, cache=root / "cache")
    model = tiny_model(root / "model", collection)
    hn.encode(collection, model, root / "embeddings", cache=root / "cache", device="cpu", dtype="float32")
    (root / "beir").mkdir()
    return SimpleNamespace(root=root, collection=collection, run=run, pool=pool, model=model, cache=root / "cache")


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    """Training itself is looked at elsewhere, and so is the time that it takes."""
    monkeypatch.chdir(tmp_path)  # a text is a path there
    monkeypatch.setattr(disk, "sync", lambda path: None)
    monkeypatch.setattr(training, "train_seeds", lambda *given: {})
    monkeypatch.setattr(planning, "time_stages", lambda *given: ({}, 0.0))


def cases(world, new):
    """For each public name how it is called rightly: function and arguments by name."""
    basic = {"data": world.collection, "model": world.model, "cache": world.cache, "device": "cpu"}
    training_of = {**basic, "out": new / "exp", "preset": "demo", "query_length": 12, "passage_length": 16}
    lists = {
        "passages": [("p1", "text"), ("p2", "A title", "text"), {"id": "p3", "title": "t", "text": "x"}],
        "queries": {"q1": "a query"},
        "qrels": {"test": {"q1": ["p1"]}},
    }
    common = {"data": world.collection, "cache": world.cache}
    return {
        "AnceTele": (hn.settings_of, {"recipe": "ance-tele", "preset": None, "episodes": 2, "extra": []}),
        "Collection": (Collection.from_lists, {**lists, "answers": {"q1": ["x"]}, "to": new / "made"}),
        "Filters": (hn.Filters, {"rank_from": 1, "rank_to": 2, "max_score": 1.0, "absolute_margin": 0.1}),
        "NegativePool": (hn.pool_stats, {"pool": world.pool}),
        "Splits": (hn.Splits, {"train": "train", "dev": "dev", "test": "test"}),
        "allow_code": (lambda revision: hn.allow_code(revision), {"revision": "0" * 40}),
        "clean": (hn.clean, {"experiment": new / "exp", "delete": False}),
        "compare": (
            hn.compare,
            {"runs": [world.run, world.run], **common, "split": "test", "qrels": None, "seed": 1},
        ),
        "doctor": (hn.doctor, {}),
        "encode": (hn.encode, {**basic, "out": new / "emb", "side": "query", "shard": None, "dtype": "float32"}),
        "evaluate": (
            hn.evaluate,
            {"run": world.run, **common, "split": "test", "measures": "RR@10", "qrels": None},
        ),
        "export_pool": (
            hn.export_pool,
            {
                "pool": world.root / "pool",
                **common,
                "out": new / "f.jsonl",
                "format": "dpr",
                "negatives": 2,
                "seed": 1,
            },
        ),
        "follow": (
            lambda experiment, poll: list(hn.follow(experiment, wait=False, poll=poll)),
            {"experiment": new / "exp", "poll": 0.1},
        ),
        "import_collection": (
            hn.import_collection,
            {"source": f"beir:{world.root / 'beir'}", "to": new / "c", "format": "auto", "on_duplicate": "first"},
        ),
        "index": (
            hn.index,
            {
                "embeddings": world.root / "embeddings",
                "out": new / "i",
                "kind": "flat",
                "data": None,
                "model": None,
            },
        ),
        "inspect": (hn.inspect, {"path": world.root / "pool", **common, "query_id": None, "random": 1, "seed": 0}),
        "load_encoder": (
            hn.load_encoder,
            {"model": world.model, "passage_model": None, "device": "cpu", "prompts": None, "pooling": "mean"},
        ),
        "load_pool": (hn.load_pool, {"path": world.root / "pool"}),
        "mine": (
            hn.mine,
            {
                **common,
                "model": None,
                "out": new / "pool",
                "sources": ["random"],
                "count": 2,
                "depth": 5,
                "alpha": 0.5,
                "filters": hn.Filters(),
                "labels": Labels(),
                "file": None,
                "previous": None,
                "seed": 1,
                "split": "train",
            },
        ),
        "plan": (hn.plan, {"recipe": "ance", **training_of, "estimate": False, "settings": None, "config": None}),
        "pool_stats": (hn.pool_stats, {"pool": world.pool}),
        "search_split": (
            hn.search_split,
            {**common, "out": new / "r.trec", "bm25": True, "model": None, "split": "test", "k": 3},
        ),
        "search_text": (hn.search_text, {**common, "text": "words", "bm25": True, "model": None, "k": 2}),
        "settings_of": (
            hn.settings_of,
            {"recipe": "ance", "preset": "demo", "learning_rate": 1e-5, "mode": "sync"},
        ),
        "train": (
            hn.train,
            {"recipe": "ance", **training_of, "splits": hn.Splits(), "seeds": 1, "role": None, "negatives": None},
        ),
        "train_adore": (hn.train_adore, {**training_of, "index_folder": None} | {"passage_length": 16}),
        "train_ance": (hn.train_ance, {**training_of, "role": None}),
        "train_ance_tele": (hn.train_ance_tele, {**training_of, "negatives": None}),
        "train_star": (hn.train_star, training_of),
        "train_warmup": (hn.train_warmup, {**training_of, "passage_model": None, "allow_bin": False}),
        "verify": (lambda path: hn.verify(path), {"path": world.root / "pool"}),
    }


def test_every_public_name_is_tried(world, tmp_path):
    assert set(cases(world, tmp_path)) == set(hn.__all__) - NOT_CALLED


@pytest.mark.parametrize("name", sorted(set(hn.__all__) - NOT_CALLED))
def test_wrong_shapes_are_refused_in_a_line(world, tmp_path, name):
    """Each argument in turn is each of the wrong things; some are right nevertheless, such as a text for a path."""
    tried = 0
    for argument in cases(world, tmp_path)[name][1]:
        for number, (what, value) in enumerate(WRONG.items()):
            function, arguments = cases(world, tmp_path / f"{argument}-{number}")[name]
            try:
                function(**arguments | {argument: value})
            except HardnegError as fault:
                assert str(fault)
            except Exception as fault:
                fault.add_note(f"{name}({argument} = {what})")
                raise
            tried += 1
    assert tried == len(WRONG) * len(cases(world, tmp_path)[name][1])
