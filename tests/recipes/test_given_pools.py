"""A given pool: which queries are skipped with answers as labels, and that it does not count as mined."""

import json
import logging

import numpy as np
import pytest

import hardneg as hn
from hardneg.api.diagnose import opened_at
from hardneg.diagnostics.composition import draws_from_state
from hardneg.diagnostics.cost import summary
from hardneg.evaluation.matching import contains
from hardneg.negatives.pool import SOURCES, load_pool, names_of
from hardneg.recipes import estimate
from hardneg.report.facts_negatives import composition_table
from hardneg.report.table import NotRecorded
from worlds.qa_world import qa_collection
from worlds.tiny_world import COMMON, one_thread, tiny_model  # noqa: F401

BARE = 3  # training queries of which the pool has no negative
RUNS = {
    "warmup": {"mixtures": ["file+in_batch"], "steps": [2]},
    "ranker": {"steps": 2, "max_length": 24, "negatives_per_query": 2},
}


@pytest.fixture(scope="module")
def qa(tmp_path_factory):
    root = tmp_path_factory.mktemp("qa")
    collection = qa_collection(root / "collection")
    every = hn.mine(collection, None, root / "every", sources=["random"], count=6, labels="answers")
    negatives = {
        collection.query_ids[query]: [collection.passage_ids[row] for row in every.passage_rows[a:b]]
        for query, a, b in zip(every.query_rows, every.offsets[:-1], every.offsets[1:], strict=True)
    }
    lines = [
        f"{query} Q0 {passage} {rank} {-rank} x"
        for query, passages in [*negatives.items()][BARE:]
        for rank, passage in enumerate(passages, 1)
    ]
    (root / "some.trec").write_text("\n".join(lines) + "\n")
    hn.mine(collection, None, root / "pool", sources=["file"], file=root / "some.trec")
    return collection, tiny_model(root / "model", collection, dropout=0.0), root


@pytest.mark.parametrize("recipe", RUNS)
def test_queries_that_a_given_pool_lacks_are_skipped(qa, tmp_path, recipe):
    collection, model, root = qa
    settings = COMMON | RUNS[recipe] | {"labels": "answers", "measures": "RR@10", "device": "cpu"}
    hn.train(recipe, collection, model, tmp_path / "exp", negatives=root / "pool", **settings)
    pool = load_pool(tmp_path / "exp/episodes/1/negatives")
    counts = np.diff(pool.offsets)
    assert (counts == 0).sum() >= BARE
    assert counts.sum() > 0
    for query, a, b in zip(pool.query_rows, pool.offsets[:-1], pool.offsets[1:], strict=True):
        for row in pool.passage_rows[a:b]:
            assert not contains(collection.texts[row], collection.answers(query))


@pytest.mark.parametrize("recipe", [*RUNS, "ance-tele"])
def test_skipped_queries_are_told_once(qa, tmp_path, recipe, caplog):
    collection, model, root = qa
    settings = COMMON | RUNS.get(recipe, {"episodes": 1, "steps": 2}) | {"measures": "RR@10", "device": "cpu"}
    with caplog.at_level(logging.WARNING, "hardneg"):
        hn.train(recipe, collection, model, tmp_path / "exp", negatives=root / "pool", **settings)
    told = [message for message in caplog.messages if "have no negative, and are skipped" in message]
    assert len(told) == 1, told


@pytest.mark.parametrize("recipe", ["star", "ance-tele", "warmup"])
def test_a_pool_that_was_mined_elsewhere_is_not_mined_by_training(world, tmp_path, recipe):
    """Its entries keep their sources, and neither the costs nor the composition take them for the experiment's."""
    hn.mine(world.collection, world.calm, tmp_path / "pool", sources=["query"], count=6)
    own = {"warmup": {"mixtures": ["file"], "steps": [2]}, "ance-tele": {"episodes": 1, "steps": 2}}
    settings = COMMON | own.get(recipe, {"steps": 2}) | {"measures": "RR@10", "device": "cpu", "examine": "all"}
    out = tmp_path / "exp"
    hn.train(recipe, world.collection, world.calm, out, negatives=tmp_path / "pool", **settings)
    pool = load_pool(out / "episodes/1/negatives")
    assert names_of(pool.sources) == pool.given == ("query",)
    assert (pool.mined, draws_from_state(pool)) == (0, False)
    assert summary(map(json.loads, (out / "timing.jsonl").read_text().splitlines())).refreshes == 0
    with pytest.raises(NotRecorded, match="No negatives were drawn"):
        composition_table(opened_at(out))


def test_what_is_mined_beside_given_negatives_counts_as_mined(world, tmp_path):
    """In a mixture only the sources of the given pool are given; one that both have counts as mined."""
    settings = COMMON | {"mixtures": ["bm25+file"], "steps": [2], "measures": "RR@10", "device": "cpu"}
    for name, given, counted in (("query", ("query",), "bm25"), ("bm25", (), "bm25")):
        hn.mine(world.collection, world.calm, tmp_path / name, sources=[name], count=6)
        out = tmp_path / f"with-{name}"
        hn.train("warmup", world.collection, world.calm, out, negatives=tmp_path / name, **settings)
        pool = load_pool(out / "episodes/1/negatives")
        assert pool.given == given
        assert pool.mined == np.count_nonzero(pool.sources == SOURCES.index(counted)) > 0


@pytest.mark.parametrize("recipe", ["star", "ance-tele"])
def test_a_plan_with_a_given_pool_counts_no_mining(world, tmp_path, monkeypatch, recipe):
    """Only the passages that dev is judged among are encoded; the plan counts as many tokens as are then timed."""
    hn.mine(world.collection, None, tmp_path / "pool", sources=["random"], count=8)
    settings = COMMON | {"steps": 2, "measures": "RR@10", "device": "cpu", "splits": hn.Splits(test="none")}
    settings |= {"examine": "judged", "dev_passages": 2} | ({"episodes": 1} if recipe == "ance-tele" else {})
    for name in ("encode_seconds", "search_seconds"):
        monkeypatch.setattr(estimate, name, lambda *_: 1.0)
    monkeypatch.setattr(estimate, "time_training", lambda *_: (0.0, 0.0))
    monkeypatch.setattr(estimate, "add_exchange", lambda *_: None)
    place = world.collection, world.calm, tmp_path / "exp"
    ours, mining = (
        hn.plan(recipe, *place, negatives=pool, estimate=True, **settings)["seconds"]
        for pool in (tmp_path / "pool", None)
    )
    hn.train(recipe, *place, negatives=tmp_path / "pool", **settings)
    rows = map(json.loads, (tmp_path / "exp/timing.jsonl").read_text().splitlines())
    timed = sum(row["tokens"] for row in rows if row["stage"] == "encode")
    assert timed == pytest.approx(ours["encode"], rel=0.1)
    assert mining["encode"] > 1.5 * timed
    assert mining["search"] > ours["search"]
