"""STAR that mines among a part of the passages: the queries, the passages, the vectors, and refusals."""

import json

import numpy as np
import pytest
from executed import watched

import hardneg as hn
from faults.power import assert_resumes
from hardneg.api.reopen import experiment_data
from hardneg.data.training_data import choose_splits
from hardneg.models.loading import load_encoder
from hardneg.negatives.groups import epoch_order
from hardneg.negatives.pool import load_pool
from hardneg.recipes.mined_among import part_mined, visited
from hardneg.recipes.star import Star, plan
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


@pytest.fixture
def loop(world, tmp_path):
    """A function: experiment -> each query, its negatives, {what may be one: score}, its lowest positive's."""

    def run(out):
        data, keys = experiment_data(out), world.collection.text_keys
        queries = visited(data.train, needed=4 * 3, seed=SETTINGS["seed"])
        hits = bm25_run(data.collection, queries.query_rows, 2, tmp_path / "loop")
        among = {*hits.passage_rows.tolist(), *queries.passage_rows.tolist()}
        assert len(among) < data.collection.n_passages
        whole = Retriever(load_encoder(world.calm, device="cpu"), data.collection, tmp_path, encoding=Encoding())
        ranked = whole.search_queries(queries.query_rows, 120, as_trained=True)
        found = entries(pool_of(out))
        assert [*found] == queries.query_rows.tolist()
        for i, query in enumerate(queries.query_rows.tolist()):
            positives = {keys[row] for row in queries.of(i)}  # copies of a positive are no negatives
            every = ranked.select(np.array([i]))
            scores = dict(zip(every.passage_rows.tolist(), every.scores.tolist(), strict=True))
            may = {row: score for row, score in scores.items() if row in among and keys[row] not in positives}
            yield query, found[query], may, min(scores[row] for row in queries.of(i).tolist())

    return run


NEAR = 0.01  # vectors of other batches differ in their last bits, by which nearly equal scores change places


def test_the_pool_is_what_a_loop_finds_among_bm25s_hits(train, loop):
    for query, found, may, _ in loop(train()):
        assert len({*found}) == 5
        expected = sorted(may.values(), reverse=True)[:5]
        assert [may[row] for row in found] == pytest.approx(expected, abs=NEAR), query


@pytest.mark.parametrize(("name", "value"), [("absolute_margin", 0.3), ("relative_margin", 0.005)])
def test_margins_compare_with_the_positives_of_the_query(train, loop, name, value):
    dropped = 0
    for query, found, may, positive in loop(train(**{name: value})):
        bound = positive - value * (positive if name == "relative_margin" else 1)
        nearest = sorted(may, key=may.get, reverse=True)[:5]
        last = may[nearest[-1]]
        assert {row for row in nearest if last + NEAR < may[row] < bound - NEAR} <= {*found}, query
        assert max(map(may.get, found), default=-np.inf) < bound + NEAR, query
        dropped += len(nearest) - len(found)
    assert dropped > 5


def test_only_these_passages_are_embedded(train):
    some, whole = train("some", cache=None), train("whole", mine_passages=None)
    assert max(embedded(some)) < max(embedded(whole)) / 2
    assert not [*some.rglob("embeddings/*")], "nothing is left of them"


@pytest.mark.parametrize("changes", [{"test": "test"}, {"examine": "all"}, {"dev_passages": None}])
def test_where_all_are_embedded_anyway_all_are_mined_for_all_queries(train, changes):
    some, whole = train("some", **changes), train("whole", mine_passages=None, **changes)
    assert entries(pool_of(some)) == entries(pool_of(whole))
    assert len(pool_of(some)) == len(experiment_data(some).train)


def test_a_long_schedule_mines_for_all_queries_and_a_short_one_keeps_its_length(train):
    out = train(steps=None, epochs=2.0)
    assert len(pool_of(out)) == len(experiment_data(out).train)
    short = train("short", steps=None, epochs=2.0, max_steps=3)
    rows = [json.loads(line) for line in (short / "metrics.jsonl").read_text().splitlines()]
    assert len(pool_of(short)) < len(experiment_data(short).train)
    assert max(row["step"] for row in rows if "loss" in row) == 3


def test_the_steps_take_the_queries_and_positives_of_the_usual_order(train):
    seen = []
    for hits in (None, 2):
        with watched() as batches:
            train(f"hits-{hits}", mine_passages=hits)
        seen.append([(one.query_rows.tolist(), one.passage_rows[:, 0].tolist()) for one in batches])
    assert seen[0] == seen[1] != []


def test_it_resumes_to_the_same_bytes(train, tmp_path):
    files = ("model/model.safetensors", "metrics.jsonl")

    def run(path):
        train(path.relative_to(tmp_path), cache=tmp_path / f"{path.name}-cache", steps=7, checkpoint_every=2)

    assert_resumes(run, tmp_path, after=4, files=files)


def test_the_estimate_counts_the_passages_at_most(world):
    data = choose_splits(world.collection, dev="none")
    each = len(data.train.passage_rows) / len(data.train)
    assert part_mined(data, None, needed=5) == (1.0, 1.0)
    assert part_mined(data, 2, needed=4) == pytest.approx(((2 + each) * 5 / 120, 5 / len(data.train)))
    assert part_mined(data, 120, needed=1000) == (1.0, 1.0)

    some = Star(**{name: value for name, value in SETTINGS.items() if name in Star.model_fields})
    every = some.model_copy(update={"mine_passages": None})
    judged, tested = (choose_splits(world.collection, dev="dev", test=test) for test in ("none", "test"))
    assert plan(some, judged, None).encoded[1] < plan(every, judged, None).encoded[1]
    assert plan(some, judged, None).mined < plan(every, judged, None).mined == 1
    assert plan(some, tested, None).encoded == plan(every, tested, None).encoded, "all are embedded for test"
