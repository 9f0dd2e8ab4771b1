"""Re-ranking by any scorer: what moves, what stays, and how scores keep both apart."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from hardneg.data.collection import Collection
from hardneg.data.formats.trec import read_run, write_run
from hardneg.data.ids import Vocabulary
from hardneg.errors import NumericError, SettingsError
from hardneg.models.loading import load_encoder
from hardneg.records import Run, offsets_of, spans
from hardneg.search import rerank as module
from hardneg.search.encoding import Encoding
from hardneg.search.rerank import RerankedRetriever, RetrieverScorer, below, rerank
from hardneg.search.retriever import Retriever
from worlds.tiny_records import run_of
from worlds.tiny_world import one_thread  # noqa: F401


class Table:
    """A scorer that reads scores from a table, and remembers how much it was asked at once."""

    def __init__(self, scores, ticks=False):
        self.scores, self.asked, self.ticks = np.asarray(scores, np.float32), [], ticks

    def score(self, query_rows, passage_rows, *, progress):
        self.asked.append(len(query_rows))
        for done in range(len(query_rows) if self.ticks else 0):
            progress(done + 1, len(query_rows))
        return self.scores[query_rows, passage_rows]


def slow_rerank(run, scores, k):
    """The rows of each list, one query at a time."""
    found = []
    for i, query in enumerate(run.query_rows):
        rows = run.hits(i)[0].tolist()
        head = sorted(rows[:k], key=lambda row: (-scores[query, row], row))
        found.append(head + rows[k:])
    return found


def rows_by_query(run):
    return [run.hits(i)[0].tolist() for i in range(len(run))]


def test_by_hand():
    run = run_of([[3, 1, 2, 0], [2, 0]])
    found = rerank(run, Table([[0.5, 2.25, 7.0, -1.5], [0.0, 0.0, 0.0, 0.0]]), 3)
    assert rows_by_query(found) == [[2, 1, 3, 0], [0, 2]]
    assert found.scores.tolist() == [7.0, 2.25, -1.5, -3.0, 0.0, 0.0]


@pytest.mark.parametrize("k", [1, 2, 5, 19, 100])
@pytest.mark.parametrize("block", [1, 30, 1 << 18])
def test_it_equals_a_slow_loop_and_sorts_into_the_same_order(k, block, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", block)
    draw = np.random.default_rng(k)
    lengths = np.append(draw.integers(0, 20, 30), [0, 1, 0])
    rows = np.concatenate([draw.choice(50, n, replace=False) for n in lengths]).astype(np.int32)
    old = Run(draw.permutation(33).astype(np.int32), offsets_of(lengths), rows, np.zeros(len(rows), np.float32))
    scores = np.round(draw.normal(size=(33, 50)) * 100, 1).astype(np.float32)
    new = rerank(old, Table(scores), k)
    assert rows_by_query(new) == slow_rerank(old, scores, k)
    assert np.array_equal(new.offsets, old.offsets)
    for i, query in enumerate(new.query_rows):
        found, given = new.hits(i)
        assert given[:k].tolist() == scores[query, found[:k]].tolist()
        tail = given[max(k - 1, 0) :]
        assert (np.diff(tail) < 0).all()


class Listed:
    """A retriever that finds the passages of one list for whatever is asked."""

    def __init__(self, collection, rows):
        self.collection, self.rows = collection, rows

    def search_queries(self, query_rows, k):
        return run_of([self.rows] * len(query_rows), query_rows=query_rows).cut(k)

    def search_texts(self, texts, k):
        return self.search_queries(range(len(texts)), k)


def test_as_many_hits_are_reranked_however_few_are_asked_for(tmp_path):
    """The scorer lifts the 15th of 30 hits to the first place, and the 21st stays where it is."""
    passages, queries = {f"p{i:02d}": f"text {i}" for i in range(30)}, {"a": "one", "b": "two"}
    collection = Collection.from_lists(passages, queries, {"train": {"a": ["p00"]}}, to=tmp_path / "c")
    order, scores = np.random.default_rng(0).permutation(30), np.zeros((2, 30))
    scores[:, order[14]], scores[:, order[20]] = 1.0, 2.0
    table = Table(scores)
    table.of_texts = lambda texts: table
    retriever = RerankedRetriever(Listed(collection, order), table, 20)
    rows = np.arange(2, dtype=np.int32)
    for search, asked in ((retriever.search_queries, rows), (retriever.search_texts, ["three", "four"])):
        whole, few = search(asked, 20), search(asked, 3)
        assert rows_by_query(few) == [hits[:3] for hits in rows_by_query(whole)]
        assert [hits[0] for hits in rows_by_query(few)] == [order[14]] * 2


def test_a_file_keeps_the_order(tmp_path):
    ids = Vocabulary([f"p{(7 * i) % 1000:03d}" for i in range(1000)])
    queries = Vocabulary(["a"])
    draw = np.random.default_rng(0)
    for shift in (0.0, 1e-30, -12345.678, 1e9, -1e20):
        run = run_of([draw.permutation(1000)], np.zeros(1000))
        new = rerank(run, Table((draw.random((1, 1000)) + shift).astype(np.float32)), 10)
        write_run(tmp_path / "run.trec", new, queries, ids)
        again = read_run(tmp_path / "run.trec", queries, ids)
        assert again.passage_rows[10:].tolist() == run.passage_rows[10:].tolist()
        assert again.scores.tolist() == new.scores.tolist()
        assert set(again.passage_rows[:10]) == set(run.passage_rows[:10])


def test_scores_below_are_distinct_and_lower_wherever_float32_ends():
    for lowest in (0.0, -0.0, 1e-45, 0.3, -7.0, 2.0**24, -(2.0**24), 1e30, -1e30, 3.0**40):
        found = below(np.array([lowest], np.float32), np.array([0, 5000]))
        assert found[0] < np.float32(lowest)
        assert (np.diff(found) < 0).all()
        assert np.isfinite(found).all()
    long = below(np.array([-8388607.5], np.float32), np.array([0, 1 << 22]))
    assert (np.diff(long) < 0).all()


@pytest.mark.parametrize("block", [1, 1 << 18])
def test_progress_goes_on_within_a_block(block, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", block)
    seen = []
    table = Table(np.zeros((2, 4)), ticks=True)
    rerank(run_of([[3, 1, 2, 0], [2, 0]]), table, 3, progress=lambda *of: seen.append(of))
    assert sorted(set(seen)) == [(done, 5) for done in range(1, 6)]
    assert seen == sorted(seen)


def test_nothing_to_rerank_is_no_fault():
    table = Table([[1.0]])
    assert len(rerank(run_of([]), table, 10)) == 0
    assert rows_by_query(rerank(run_of([[], []]), table, 10)) == [[], []]
    assert table.asked == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e38])
def test_a_score_that_is_none_is_named(bad):
    with pytest.raises(NumericError, match="query row 1 and passage row 2 is"):
        rerank(run_of([[0, 1], [1, 2]]), Table([[0.0, 1.0, 2.0], [0.0, 1.0, bad]]), 2)
    with pytest.raises(SettingsError, match="BAD_K"):
        rerank(run_of([[0]]), Table([[1.0]]), 0)


def test_the_run_stays_what_it_is_of():
    run = run_of([[1, 0]], unit="document", collection="c")
    found = rerank(run, Table([[1.0, 2.0]]), 2)
    assert (found.unit, found.collection) == ("document", "c")
    assert run.scores.tolist() == [9.0, 8.0]


def test_a_deep_run_takes_the_memory_of_a_block(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 1 << 14)
    rows = np.tile(np.arange(1000, dtype=np.int32), 1000)
    run = Run(np.arange(1000, dtype=np.int32), np.arange(1001) * 1000, rows, np.zeros(len(rows), np.float32))
    table = Table(np.zeros((1000, 1000)))
    rerank(run, table, 100)
    tracemalloc.start()
    rerank(run, table, 100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < rows.nbytes + run.scores.nbytes + (3 << 20)  # the result, and 16,384 hits' temporaries
    assert max(table.asked) <= 1 << 14


# ---------------------------------------------------------------- a bi-encoder


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_bi_encoder_gives_its_own_searchs_scores(world, tmp_path, monkeypatch, chunks):
    monkeypatch.setattr(module, "PAIRS", 50)
    encoder = load_encoder(world.model)
    encoder.settings = replace(encoder.settings, chunks=chunks, passage_length=6)
    retriever = Retriever(encoder, world.collection, tmp_path, encoding=Encoding(512))
    rows = world.collection.qrels("test").query_rows
    searched = retriever.search_queries(rows, 120)
    draw = np.random.default_rng(0)
    order = np.concatenate(
        [draw.permutation(n) + s for n, s in zip(spans(searched.offsets), searched.offsets[:-1], strict=True)]
    )
    shuffled = replace(searched, passage_rows=searched.passage_rows[order], scores=searched.scores[order])
    seen = []
    found = rerank(shuffled, RetrieverScorer(retriever), 120, progress=lambda done, _: seen.append(done))
    assert seen[:2] == [50, 100]
    assert np.array_equal(found.passage_rows, searched.passage_rows)
    assert np.array_equal(found.scores, searched.scores)
    assert searched.unit == found.unit == ("passage" if chunks == 1 else "document")


def test_texts_get_the_scores_of_their_search_too(world, tmp_path, monkeypatch):
    collection, place = world
    encoder = load_encoder(place)
    retriever = Retriever(encoder, collection, tmp_path, encoding=Encoding(dtype="float16"))
    texts = collection.query_texts.take(np.arange(3))
    run = retriever.search_texts(texts, 30)
    owner = np.repeat(np.arange(3, dtype=np.int32), spans(run.offsets))
    seen = []
    monkeypatch.setattr(module, "PAIRS", 50)
    scorer = RetrieverScorer(retriever).of_texts(texts)
    scores = scorer.score(owner, run.passage_rows, progress=lambda *of: seen.append(of))
    assert seen == [(50, 90), (90, 90)]
    assert np.array_equal(scores, run.scores)
