"""What BM25 takes in an estimate: the queries that each recipe searches by words, and the speed of a sample."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

import hardneg as hn
from hardneg.data.training_data import Labels, choose_splits
from hardneg.models.loading import load_encoder
from hardneg.negatives.pool import empty_pool
from hardneg.process.memory import limit_memory
from hardneg.recipes import ance_tele, cost_model, estimate, star, warmup
from hardneg.recipes import microbenchmarks as timing
from hardneg.recipes.estimate import take_sample, time_stages
from hardneg.recipes.microbenchmarks import LexicalCost
from hardneg.search.bm25 import open_bm25, search
from hardneg.search.bm25_sample import index_of, repeated
from worlds.tiny_world import COMMON, one_thread, tiny_collection, tiny_model  # noqa: F401

N, QUERIES, JUDGED = 120, 60, 32  # of the tiny world
STAGE = "index and search by BM25"
NO_LISTS = {"bm25_lists": 0}


@pytest.fixture(scope="module")
def world(world):
    return choose_splits(world.collection), load_encoder(world.model), world.model


def texts_of(collection):
    rows = np.arange(collection.n_passages)
    return [" ".join(both) for both in zip(collection.titles.take(rows), collection.texts.take(rows), strict=True)]


def test_the_index_of_a_sample_is_the_one_that_is_built(world, tmp_path):
    collection = world[0].collection
    made, built = index_of(texts_of(collection), collection.language), open_bm25(collection, tmp_path)
    assert made.terms == built.terms
    for name in ("offsets", "rows", "scores"):
        np.testing.assert_array_equal(getattr(made, name), getattr(built, name))


def test_a_repeated_index_has_every_passage_so_often(world):
    collection = world[0].collection
    once = index_of(texts_of(collection), collection.language)
    queries, names = collection.query_texts.take(np.arange(5)), np.arange(5, dtype=np.int32)
    single, thrice = (search(index, queries, names, index.n) for index in (once, repeated(once, 3)))
    for query in range(5):
        (begin, end), (first, last) = single.offsets[query : query + 2], thrice.offsets[query : query + 2]
        expected = sorted(
            (-score, row + N * copy)
            for row, score in zip(single.passage_rows[begin:end], single.scores[begin:end], strict=True)
            for copy in range(3)
        )
        assert thrice.passage_rows[first:last].tolist() == [row for _, row in expected]
        np.testing.assert_array_equal(thrice.scores[first:last], [-score for score, _ in expected])


def test_texts_without_a_word_are_an_empty_index():
    assert index_of(["the", "of"], "english").offsets.tolist() == [0]


@pytest.mark.parametrize(
    ("recipe", "changes", "labels", "expected"),
    [
        (warmup.RECIPE, {"mixtures": ["in_batch"]}, "qrels", JUDGED),  # BM25 itself is measured
        (warmup.RECIPE, {"mixtures": ["in_batch"], "bm25_lists": 10_000}, "qrels", JUDGED + QUERIES),
        (warmup.RECIPE, {"mixtures": ["in_batch"], "bm25_lists": 7}, "qrels", JUDGED + 7),
        (
            warmup.RECIPE,
            {"mixtures": ["in_batch"], "bm25_lists": 7, "examine": "judged"},
            "qrels",
            JUDGED,
        ),
        (warmup.RECIPE, {"mixtures": ["bm25"]}, "qrels", JUDGED + QUERIES),
        (warmup.RECIPE, {"mixtures": ["bm25", "in_batch", "bm25+random"]}, "qrels", JUDGED + 2 * QUERIES),
        (warmup.RECIPE, {"mixtures": ["random", "bm25"]}, "answers", JUDGED + 3 * QUERIES),
        (ance_tele.RECIPE, {"episodes": 2}, "qrels", JUDGED),
        (ance_tele.RECIPE, {"episodes": 2, "extra": ["bm25"]}, "qrels", JUDGED + 2 * QUERIES),
        (star.RECIPE, {}, "answers", JUDGED),  # the model itself finds positives
    ],
)
def test_the_queries_that_bm25_searches_by_hand(world, recipe, changes, labels, expected):
    data = replace(world[0], labels=Labels(labels))
    work = recipe.plan(recipe.settings(**(COMMON | NO_LISTS | changes)), data, world[1])
    assert work.by_words == expected


@pytest.mark.parametrize(("steps", "every", "searches"), [(2, None, 1), (8, 4, 2)])
def test_dev_is_searched_to_be_judged_among_its_hits(world, steps, every, searches):
    values = COMMON | NO_LISTS | {"mixtures": ["in_batch"], "steps": [steps], "measure_every": every}
    plain, few = (
        warmup.plan(warmup.RECIPE.settings(**values, dev_passages=among), world[0], world[1])
        for among in (None, 3)
    )
    assert few.by_words - plain.by_words == searches * len(world[0].dev)


@pytest.mark.parametrize(("labels", "each"), [("qrels", 1), ("answers", 2)])
def test_star_searches_by_words_only_for_the_queries_that_it_mines_among_their_hits(
    world, monkeypatch, labels, each
):
    monkeypatch.setattr(cost_model, "dev_share", lambda *_: 0.2)
    data = replace(choose_splits(world[0].collection, dev="dev", test="none"), labels=Labels(labels))
    values = COMMON | {"examine": "judged", "dev_passages": 1, "dev_queries": None, "steps": 2}
    visited = 1.25 * 2 * 8
    plain, among = (
        star.plan(star.RECIPE.settings(**values, mine_passages=hits), data, world[1]).by_words
        for hits in (None, 2)
    )
    assert among - plain == pytest.approx(each * visited)
    settings = star.RECIPE.settings(**values, mine_passages=2)
    tested, given = replace(data, test=data.dev), empty_pool(data.train, 1, "")
    assert star.plan(settings, tested, world[1]).by_words == 3 * len(data.dev)  # all is embedded for test
    assert star.plan(settings, data, world[1], given=given).by_words == 2 * len(data.dev)


def test_indexing_is_once_and_searching_grows_with_the_queries(world, monkeypatch):
    data, encoder, _ = world
    monkeypatch.setattr(estimate, "bm25_seconds", lambda *_: LexicalCost(5.0, 2.0))
    work = warmup.plan(warmup.RECIPE.settings(**(COMMON | NO_LISTS)), data, encoder)
    found = [
        time_stages(replace(work, by_words=queries), encoder, take_sample(work, encoder))[0]
        for queries in (0, 10, 20)
    ]
    assert STAGE not in found[0]
    assert [seconds[STAGE] for seconds in found[1:]] == [N * (5 + 2 * 10), N * (5 + 2 * 20)]


def test_stages_stand_in_the_order_in_which_they_begin(world, monkeypatch):
    data, encoder, _ = world
    monkeypatch.setattr(estimate, "bm25_seconds", lambda *_: LexicalCost(5.0, 2.0))
    work = replace(warmup.plan(warmup.RECIPE.settings(**(COMMON | NO_LISTS)), data, encoder), by_words=10)
    seconds, _ = time_stages(work, encoder, take_sample(work, encoder))
    assert [*seconds] == ["tokenise", "encode", "search", STAGE, "train", "save and verify"]


def test_the_speed_is_that_of_the_sample(world, monkeypatch):
    """By hand, where whatever is timed takes a second."""
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=count().__next__))
    data = world[0]
    assert timing.bm25_seconds(data, 20) == (1 / N, 1 / (data.collection.n_queries * N))
    monkeypatch.setattr(timing, "TIMED_TEXTS", 10)
    monkeypatch.setattr(timing, "TIMED_WORDS", 7)
    monkeypatch.setattr(timing, "SEARCHED", 49)
    assert timing.bm25_seconds(data, 20) == (1 / 10, 1 / (7 * 50))


@pytest.fixture
def sampled(monkeypatch):
    """The sample: (bytes of its passages, bytes of its queries, postings of its index, postings of the copies)."""
    taken, made = [], []
    real, copy, find = timing.index_of, timing.repeated, timing.query_terms
    monkeypatch.setattr(timing, "index_of", lambda texts, _: (taken.append(texts), real(texts, _))[1])
    monkeypatch.setattr(timing, "repeated", lambda *given: (made.append([given[0], copy(*given)]), made[-1][1])[1])
    monkeypatch.setattr(
        timing, "query_terms", lambda index, texts: (made[-1].append(texts), find(index, texts))[1]
    )

    def of(data):
        taken.clear()
        timing.bm25_seconds(data, 20)
        assert [len(one) for one in taken[:-1]] == [1]  # all but this one are indexed once
        once, copies, queries = made[-1][:3]
        return *(sum(map(len, texts)) for texts in (taken[-1], queries)), len(once.rows), len(copies.rows)

    return of


def test_the_sample_is_bounded_by_its_bytes_and_postings(world, monkeypatch, sampled):
    data = world[0]
    passages, queries, postings, _ = sampled(data)
    monkeypatch.setattr(timing, "TEXT_BYTES", passages // 6)
    monkeypatch.setattr(timing, "WORD_BYTES", queries // 6)
    fewer = sampled(data)
    assert passages / 12 < fewer[0] < passages / 5
    assert queries / 12 < fewer[1] < queries / 5
    assert fewer[3] >= 5 * fewer[2]  # about as many passages as there are
    monkeypatch.setattr(timing, "POSTINGS", 3 * postings // 6)
    assert fewer[2] < sampled(data)[3] <= 3 * postings // 6
    monkeypatch.setattr(timing, "TEXT_BYTES", 1)
    monkeypatch.setattr(timing, "POSTINGS", 1)
    assert sampled(data)[0] > 1  # at least one passage


def test_a_limit_of_memory_makes_the_sample_smaller_and_never_refuses_it(world, monkeypatch, sampled):
    data = world[0]
    passages, *_, postings = sampled(data)
    limit_memory("1M")  # less than the process has
    try:
        assert sampled(data)[0] == passages  # which is below the least
        monkeypatch.setattr(timing, "LEAST_MEMORY", timing.MEMORY_OF_ONE * passages // 10)
        fewer = sampled(data)
    finally:
        limit_memory()
    assert passages / 20 < fewer[0] < passages / 5
    assert fewer[2] < fewer[3] <= passages / 10 < postings


@pytest.mark.parametrize(
    ("given", "searched"),
    [
        ({}, 2 * JUDGED + QUERIES),  # it ranks first, too
        ({"sources": ["random"]}, 2 * JUDGED),
        ({"retriever": True}, JUDGED),
        ({"retriever": True, "sources": ["bm25"]}, JUDGED + QUERIES),
    ],
)
def test_a_ranker_by_hand(world, monkeypatch, given, searched):
    data, _, model = world
    monkeypatch.setattr("hardneg.recipes.estimate.bm25_seconds", lambda *_: LexicalCost(5.0, 2.0))
    given = given | ({"retriever": model} if "retriever" in given else {})
    options = COMMON | {"steps": 2, "max_length": 24, "device": "cpu", "estimate": True} | given
    found = hn.plan("ranker", data.collection, model, **options)
    assert found["seconds"][STAGE] == N * (5 + 2 * searched)


@pytest.mark.parametrize("recipe", ["warmup", "ranker"])
@pytest.mark.parametrize("where", ["its own cache", "a given cache", "each seed's cache"])
def test_an_index_that_lies_in_the_cache_is_not_built_again(world, monkeypatch, tmp_path, recipe, where):
    data, _, model = world
    monkeypatch.setattr("hardneg.recipes.estimate.bm25_seconds", lambda *_: LexicalCost(5.0, 2.0))
    monkeypatch.setattr(timing, "seconds_of", lambda work: (work(), 1.0)[1])
    out, cache = tmp_path / "out", tmp_path / "stores"
    own = {"max_length": 24} if recipe == "ranker" else {"mixtures": ["bm25"]}
    options, places = COMMON | {"steps": 2, "seed": 0, "device": "cpu", "estimate": True} | own, [out / "cache"]
    if where == "a given cache":
        options, places = options | {"cache": cache}, [cache]
    if where == "each seed's cache":
        options, places = options | {"seeds": 2}, [out / f"seed-{seed}" / "cache" for seed in (0, 1)]

    def seconds():
        return hn.plan(recipe, data.collection, model, out, **options)["seconds"][STAGE]

    before = seconds()
    for place in places:
        assert seconds() == before
        open_bm25(data.collection, place)
    assert before - seconds() == len(places) * N * 5
