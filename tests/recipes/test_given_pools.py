"""A given pool with answers as labels: only queries without a negative in the pool are skipped."""

import logging

import numpy as np
import pytest

import hardneg as hn
from hardneg.evaluation.matching import contains
from hardneg.negatives.pool import load_pool
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
