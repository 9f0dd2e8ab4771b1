"""STAR that mines among some passages: for whom, among which, with which vectors, and what is refused."""

import json
from functools import partial

import numpy as np
import pytest

import hardneg as hn
from faults.power import assert_resumes
from hardneg.api.reopen import experiment_data
from hardneg.data.training_data import choose_splits
from hardneg.errors import Faults, SettingsError
from hardneg.models.loading import load_encoder
from hardneg.negatives.groups import epoch_order
from hardneg.negatives.pool import load_pool
from hardneg.recipes.mined_among import share_mined_among, visited
from hardneg.recipes.star import RECIPE
from hardneg.search.bm25 import bm25_run
from hardneg.search.encoding import Encoding
from hardneg.search.retriever import Retriever
from worlds.tiny_world import COMMON, one_thread  # noqa: F401

SETTINGS = COMMON | {"queries_per_step": 4, "measures": "RR@10", "steps": 3, "depth": 5, "examine": "judged"}
SETTINGS |= {"dev_passages": 1, "keep": "best", "mine_passages": 2, "device": "cpu"}


@pytest.fixture
def train(world, tmp_path):
    """A function that trains STAR on the tiny world; returns the experiment's folder."""

    def run(out="exp", *, test="none", **changes):
        splits = hn.Splits("train", "dev", test)
        options = {"cache": tmp_path / f"cache-{out}", "splits": splits, **SETTINGS, **changes}
        hn.train("star", world.collection, world.calm, tmp_path / out, **options)
        return tmp_path / out

    return run


def pool_of(out):
    return load_pool(out / "episodes/1/negatives", n_passages=120)


def entries(pool):
    """{query row: the rows of its negatives, in order}."""
    return {
        int(query): pool.passage_rows[begin:end].tolist()
        for query, begin, end in zip(pool.query_rows, pool.offsets[:-1], pool.offsets[1:], strict=True)
    }


def embedded(out):
    """The tokens of every encoding of passages that was no hit of the cache."""
    rows = map(json.loads, (out / "timing.jsonl").read_text().splitlines())
    return [
        row["tokens"] for row in rows if row["stage"] == "encode" and row["side"] == "passage" and row["tokens"]
    ]


def test_the_queries_are_the_first_of_the_first_epoch(world):
    train = choose_splits(world.collection, dev="none").train
    order = train.query_rows[epoch_order(train.query_rows, seed=7, episode=0, epoch=0)].tolist()
    some = visited(train, needed=9, seed=7)
    assert some.query_rows.tolist() == sorted(order[:12]), "9 and a quarter more"
    for i, query in enumerate(some.query_rows):
        (at,) = np.flatnonzero(train.query_rows == query)
        assert some.of(i).tolist() == train.of(at).tolist()
    assert visited(train, needed=len(train), seed=7).query_rows.tolist() == train.query_rows.tolist()


def test_the_pool_is_what_a_loop_finds_among_bm25s_hits(train, world, tmp_path):
    out = train(mine_passages=2)
    pool, data = pool_of(out), experiment_data(out)
    queries = visited(data.train, needed=4 * 3, seed=SETTINGS.get("seed", 0))
    assert pool.query_rows.tolist() == queries.query_rows.tolist()
    run = bm25_run(data.collection, queries.query_rows, 2, tmp_path / "loop")
    among = sorted({*run.passage_rows.tolist(), *queries.passage_rows.tolist()})
    assert len(among) < data.collection.n_passages
    encoder = load_encoder(world.calm, device="cpu")
    whole = Retriever(encoder, data.collection, tmp_path / "loop", encoding=Encoding())
    ranked, keys = whole.search_queries(queries.query_rows, 120, as_trained=True), data.collection.text_keys
    for i, query in enumerate(queries.query_rows.tolist()):
        positives = {keys[row] for row in queries.of(i)}  # copies of a positive are no negatives
        hits = ranked.select(np.array([i]))
        scores = dict(zip(hits.passage_rows.tolist(), hits.scores.tolist(), strict=True))
        expected = [row for row in scores if row in among and keys[row] not in positives][:5]
        found = entries(pool)[query]
        assert len(set(found)) == 5
        assert set(found) <= {row for row in among if keys[row] not in positives}
        # vectors of other batches differ in their last bits, by which nearly equal scores change places
        assert [scores[row] for row in found] == pytest.approx([scores[row] for row in expected], abs=0.01), query


def test_only_these_passages_are_embedded_and_with_a_test_split_the_same_are_mined(train):
    some, whole = train("some"), train("whole", test="test")
    assert entries(pool_of(some)) == entries(pool_of(whole))
    every = max(embedded(whole))
    assert max(embedded(some)) < every / 2
    assert not list((some / "cache").glob("embeddings/*")), "nothing is left of them"


@pytest.mark.parametrize("bound", [{"relative_margin": 0.0005}, {"absolute_margin": 0.02}])
def test_margins_compare_with_the_right_positives(train, bound):
    some, whole = train("some", **bound), train("whole", test="test", **bound)
    assert entries(pool_of(some)) == entries(pool_of(whole))
    assert entries(pool_of(some)) != entries(pool_of(train("free")))


def test_a_long_schedule_mines_for_all_queries_and_keeps_its_length(train):
    out = train(steps=None, epochs=2.0, mine_passages=1)
    pool, data = pool_of(out), experiment_data(out)
    assert len(pool) == len(data.train)
    short = train("short", steps=None, epochs=2.0, max_steps=3)
    rows = [json.loads(line) for line in (short / "metrics.jsonl").read_text().splitlines()]
    assert len(pool_of(short)) < len(data.train)
    assert max(row["step"] for row in rows if "loss" in row) == 3


def test_the_steps_take_the_queries_of_the_usual_order(run_states):
    options = {"steps": 3, "queries_per_step": 4, "examine": "judged", "depth": 5}
    usual = run_states(RECIPE, **options)
    some = run_states(RECIPE, mine_passages=2, **options)
    for one, other in zip(usual.batches, some.batches, strict=True):
        assert one.query_rows.tolist() == other.query_rows.tolist()
        assert one.passage_rows[:, 0].tolist() == other.passage_rows[:, 0].tolist()


def test_it_resumes_to_the_same_bytes(run_states, tmp_path):
    options = {"steps": 7, "queries_per_step": 4, "examine": "judged", "mine_passages": 2}
    files = ("model/model.safetensors", "metrics.jsonl")
    assert_resumes(partial(run_states, RECIPE, **options), tmp_path, after=4, files=files)


def test_what_would_save_nothing_or_mislead_is_refused(train):
    with pytest.raises(Faults, match="mine_passages = 2 with examine = all"):
        train(examine="all")
    with pytest.raises(SettingsError, match="mine_passages = 2 with chunks = 2"):
        train(chunks=2, dev_passages=None)


def test_the_estimate_counts_the_passages_at_most(world):
    data = choose_splits(world.collection, dev="none")
    each = len(data.train.passage_rows) / len(data.train)
    assert share_mined_among(data, None, needed=5) == 1.0
    assert share_mined_among(data, 2, needed=4) == pytest.approx((2 + each) * 5 / 120)
    assert share_mined_among(data, 120, needed=1000) == 1.0
