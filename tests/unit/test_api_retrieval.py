"""The functions of ``hardneg`` without training: mining, inspection, search and evaluation."""

import gc
import gzip
import inspect
import itertools
import json
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

import hardneg as hn
from hardneg.api import search
from hardneg.api.evaluate import Pair, sides_of
from hardneg.api.evaluate import tested as rows_of_tests
from hardneg.api.inputs import holding
from hardneg.api.search import SearcherOptions
from hardneg.cli.tables import comparison_table
from hardneg.errors import ArtifactError, BusyError, InputError, SettingsError
from hardneg.evaluation.measures import Evaluation, parse_measures
from hardneg.experiment.layout import Layout
from hardneg.models.bi_encoder import BiEncoder
from hardneg.negatives.pool import SOURCES, load_pool, save_pool
from hardneg.records import owners
from hardneg.search.bm25 import open_bm25
from hardneg.storage.artifacts import read_manifest
from worlds.tiny_records import pool_of, run_of
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

# ---------------------------------------------------------------- mining


def sources_of(pool):
    return {SOURCES[code] for code in np.unique(pool.sources)}


@pytest.mark.parametrize(
    "sources", [["random"], ["bm25"], ["query"], ["lookahead"], ["query", "lookahead", "bm25", "random"]]
)
def test_every_source_is_mined_alone_and_together(world, tmp_path, sources):
    collection, model = world
    pool = hn.mine(collection, model, tmp_path / "pool", sources=sources, depth=10, count=4, device="cpu")
    assert sources_of(pool) == set(sources)
    assert len(pool) == 60
    again = load_pool(tmp_path / "pool", n_passages=120, collection=collection.digest)
    assert all(
        np.array_equal(getattr(again, name), getattr(pool, name)) for name in ("passage_rows", "sources", "ranks")
    )
    manifest = read_manifest(tmp_path / "pool")
    assert manifest.settings["sources"] == sources
    assert ("model" in manifest.inputs) == bool({"query", "lookahead"} & set(sources))


def test_momentum_joins_and_filters_hold(world, tmp_path):
    collection, model = world
    common, place = {"depth": 10, "count": 4, "device": "cpu"}, Layout(tmp_path / "one").episode(1).negatives
    hn.mine(collection, model, place, **common)
    filters = hn.Filters(rank_from=3, rank_to=8)
    pool = hn.mine(  # of an experiment, the last pool is meant
        collection, model, tmp_path / "two", previous=tmp_path / "one", filters=filters, seed=1, **common
    )
    assert pool.episode == 2
    assert pool.momentum.any()
    fresh = pool.ranks[~pool.momentum]
    assert fresh.min() >= 3
    assert fresh.max() <= 8
    manifest = read_manifest(tmp_path / "two")
    assert manifest.inputs["previous"] == read_manifest(place).digest
    assert manifest.settings["filters"]["rank_from"] == 3


def test_momentum_has_the_share_alpha_and_lookahead_the_share_beta(world, tmp_path):
    collection, model = world
    common = {"depth": 10, "count": 4, "device": "cpu"}
    old = hn.mine(collection, model, tmp_path / "one", **common)
    assert np.diff(old.offsets).tolist() == [8] * len(old)
    for alpha, beta, expected in ((0.25, 0.75, (3, 2, 6)), (0.5, 0.25, (8, 6, 2))):
        shares = {"alpha": alpha, "beta": beta, "previous": tmp_path / "one"}
        pool = hn.mine(collection, model, tmp_path / f"{alpha}", **shares, **common)
        fresh = [~pool.momentum & (pool.sources == SOURCES.index(name)) for name in ("query", "lookahead")]
        counts = [np.bincount(owners(pool.offsets)[part]) for part in (pool.momentum, *fresh)]
        assert {tuple(of) for of in np.transpose(counts).tolist()} == {expected}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"sources": ["qery"]}, "UNKNOWN_SOURCE"),
        ({"sources": []}, "NO_SOURCES"),
        ({"sources": ["bm25", "bm25"]}, "REPEATED_SOURCE"),
        ({"sources": ["query"]}, "NO_MODEL"),
        ({"previous": "somewhere"}, "NO_MOMENTUM"),
        ({"depth": 0}, "BAD_SETTING"),
        ({"count": -1}, "BAD_SETTING"),
        ({"alpha": 1.0}, "BAD_SETTING"),
        ({"beta": float("nan")}, "BAD_SETTING"),
        ({"seed": -1}, "BAD_SETTING"),
        ({"filters": hn.Filters(max_score=float("nan"))}, "BAD_SETTING"),
        ({"split": "tain"}, "UNKNOWN_SPLIT"),
    ],
)
def test_mining_refuses_what_makes_no_sense(world, tmp_path, changes, code):
    with pytest.raises(SettingsError) as caught:
        hn.mine(world[0], None, tmp_path / "pool", **{"sources": ["bm25"], **changes})
    assert caught.value.code == code
    assert not (tmp_path / "pool").exists()


@pytest.mark.parametrize(("sources", "code"), [([], "NO_SOURCES"), (["query", "query"], "REPEATED_SOURCE")])
def test_wrong_sources_are_refused_before_anything_is_opened(world, monkeypatch, tmp_path, sources, code):
    opened = Mock()
    monkeypatch.setattr("hardneg.api.mine.collection_of", opened)
    monkeypatch.setattr("hardneg.api.mine.open_mining_inputs", opened)
    with pytest.raises(SettingsError, match=code) as caught:
        hn.mine(*world, tmp_path / "pool", sources=sources, previous=tmp_path, device="cpu")
    assert "NO_MOMENTUM" not in str(caught.value)
    opened.assert_not_called()


def test_a_pool_before_with_rows_beyond_the_corpus_is_refused(world, tmp_path):
    collection, model = world
    pool = hn.mine(collection, None, tmp_path / "one", sources=["bm25"], count=2)
    rows = np.full_like(pool.passage_rows, collection.n_passages)
    save_pool(replace(pool, passage_rows=rows), tmp_path / "beyond", settings={}, inputs={})
    with pytest.raises(ArtifactError, match=r"passage_rows\.npy: BAD_POOL"):
        hn.mine(collection, model, tmp_path / "two", previous=tmp_path / "beyond", device="cpu")


def test_a_pool_is_never_replaced(world, tmp_path):
    hn.mine(world[0], None, tmp_path / "pool", sources=["bm25"], count=2)
    before = read_manifest(tmp_path / "pool").digest
    with pytest.raises(ArtifactError, match="EXISTS") as caught:
        hn.mine(world[0], None, tmp_path / "pool", sources=["random"], count=2)
    assert caught.value.status == 2
    assert read_manifest(tmp_path / "pool").digest == before


def test_two_cannot_mine_into_one_place(world, tmp_path):
    cache = tmp_path / "cache"
    with holding(tmp_path / "pool", cache), pytest.raises(BusyError) as caught:
        hn.mine(world[0], None, tmp_path / "pool", sources=["bm25"], count=2, cache=cache)
    assert caught.value.path == tmp_path / "pool"
    hn.mine(world[0], None, tmp_path / "pool", sources=["bm25"], count=2, cache=cache)


# ---------------------------------------------------------------- inspection


def test_inspection_shows_texts_and_provenance(world, tmp_path):
    collection, model = world
    hn.mine(collection, model, tmp_path / "pool", sources=["lookahead"], depth=10, count=4, device="cpu")
    [found] = hn.inspect(tmp_path / "pool", collection, query_id="train-00")
    row = int(collection.query_ids.rows(["train-00"])[0])
    assert found["text"] == collection.query_texts[row]
    assert {passage["passage_id"] for passage in found["positives"]} == {
        collection.passage_ids[int(p)] for p in collection.qrels("train").positives().of(0)
    }
    first = found["negatives"][0]
    assert first["source"] == "lookahead"
    assert first["anchor"] == found["positives"][0]["passage_id"]
    assert first["rank"] >= 2
    json.dumps(found, allow_nan=False)


def test_drawn_queries_are_drawn_by_the_seed(world, tmp_path):
    hn.mine(world[0], None, tmp_path / "pool", sources=["bm25"], count=2)
    ids = [
        [one["query_id"] for one in hn.inspect(tmp_path / "pool", world[0], random=5, seed=s)] for s in (0, 0, 1)
    ]
    assert ids[0] == ids[1] != ids[2]
    assert len(set(ids[0])) == 5


def test_a_pool_without_queries_is_refused(world, tmp_path):
    empty = pool_of([], collection=world[0].digest)
    save_pool(empty, tmp_path / "pool", settings={}, inputs={})
    with pytest.raises(SettingsError, match="NO_POOL: this pool has no query"):
        hn.inspect(tmp_path / "pool", world[0])


def test_unknown_queries_are_named(world, tmp_path):
    hn.mine(world[0], None, tmp_path / "pool", sources=["bm25"], count=2)
    with pytest.raises(InputError, match="the collection has no query 'nope'"):
        hn.inspect(tmp_path / "pool", world[0], query_id="nope")
    with pytest.raises(InputError, match="the pool has no query 'test-00'"):
        hn.inspect(tmp_path / "pool", world[0], query_id="test-00")


# ---------------------------------------------------------------- encoding and search


def test_given_embeddings_give_the_same_run(world, tmp_path):
    collection, model = world
    made = hn.encode(collection, model, tmp_path / "emb", device="cpu")
    assert made == {**made, "complete": True, "vectors": 120, "dim": 64}
    facts = hn.search_split(collection, tmp_path / "a.trec", model=model, k=10, device="cpu")
    assert facts == {"run": str(tmp_path / "a.trec"), "queries": 16, "hits": 160}
    hn.search_split(collection, tmp_path / "b.trec", model=model, k=10, embeddings=tmp_path / "emb", device="cpu")
    assert (tmp_path / "a.trec").read_bytes() == (tmp_path / "b.trec").read_bytes()
    assert hn.encode(collection, model, tmp_path / "emb", device="cpu") == made


@pytest.mark.parametrize("name", ["settings.json", "corpus.jsonl", "config.json"])
def test_embeddings_are_not_written_among_other_files(world, tmp_path, name):
    (tmp_path / "emb").mkdir()
    (tmp_path / "emb" / name).write_text("{}")
    with pytest.raises(ArtifactError, match="EXISTS: something is here already") as raised:
        hn.encode(*world, tmp_path / "emb", device="cpu")
    assert raised.value.status == 2
    assert [file.name for file in (tmp_path / "emb").iterdir()] == [name]


def test_embeddings_may_be_written_at_the_root_of_a_disk(world, tmp_path):
    for name in ("lost+found", ".Trash"):
        (tmp_path / name).mkdir()
    assert hn.encode(*world, tmp_path, device="cpu")["complete"]


def test_embeddings_of_other_texts_are_refused(world, tmp_path):
    collection, model = world
    hn.encode(collection, model, tmp_path / "queries", side="query", device="cpu")
    with pytest.raises(ArtifactError, match="OTHER_TEXTS"):
        hn.search_split(
            collection, tmp_path / "a.trec", model=model, embeddings=tmp_path / "queries", device="cpu"
        )
    assert not (tmp_path / "a.trec").exists()


def test_one_text_is_searched_like_a_query(world, tmp_path):
    collection, model = world
    hn.search_split(collection, tmp_path / "a.trec", model=model, k=3, device="cpu")
    first = [line.split() for line in (tmp_path / "a.trec").read_text().splitlines()[:3]]
    text = collection.query_texts[int(collection.query_ids.rows([first[0][0]])[0])]
    hits = hn.search_text(collection, text, model=model, k=3, device="cpu")
    assert [hit["passage_id"] for hit in hits] == [columns[2] for columns in first]
    assert [hit["rank"] for hit in hits] == [1, 2, 3]
    assert set(hits[0]) == {"rank", "score", "passage_id", "title", "text"}


def test_bm25_finds_the_words(world):
    collection, _ = world
    [best, *_] = hn.search_text(collection, collection.texts[7], bm25=True)
    assert best["passage_id"] == collection.passage_ids[7]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, "NO_MODEL"),
        ({"model": "m", "bm25": True}, "TWO_SEARCHERS"),
        ({"bm25": True, "embeddings": "e"}, "TWO_SEARCHERS"),
        ({"bm25": True, "index": "i"}, "TWO_SEARCHERS"),
        ({"bm25": True, "passage_model": "m"}, "BAD_SETTING"),
        ({"bm25": True, "query_length": 8}, "BAD_SETTING"),
        ({"model": "m", "embeddings": "e", "index": "i"}, "TWO_SEARCHERS"),
        ({"bm25": True, "k": 0}, "BAD_SETTING"),
        ({"bm25": True, "rerank_k": 20}, "BAD_SETTING"),
        ({"bm25": True, "rerank_by": "m", "rerank_k": 0}, "BAD_SETTING"),
        ({"bm25": True, "split": "tset"}, "UNKNOWN_SPLIT"),
    ],
)
def test_a_search_refuses_what_makes_no_sense(world, tmp_path, arguments, code):
    with pytest.raises(SettingsError) as caught:
        hn.search_split(world[0], tmp_path / "run", **arguments)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("query", "passage", "named"), [("q 1", "p1", "'q 1'"), ("q1", "p\t1", r"'p\t1'"), ("q1", "1\n", r"'1\n'")]
)
def test_ids_that_a_run_cannot_hold_are_refused_before_the_search(tmp_path, monkeypatch, query, passage, named):
    monkeypatch.setattr(SearcherOptions, "open", lambda *_: pytest.fail("it would search"))
    passages = [("p0", "text 0"), (passage, "text 1"), ("p2", "text 2")]
    qrels = {"train": {"a": ["p0"]}, "test": {query: ["p2"]}}
    collection = hn.Collection.from_lists(passages, {"a": "1", query: "2"}, qrels)
    with pytest.raises(InputError) as caught:
        hn.search_split(collection, tmp_path / "run.trec", bm25=True)
    assert str(caught.value) == f"BLANK_IN_ID: a TREC run cannot hold the id {named}; use ids without blanks"
    if passage == "p1":  # queries of another split do not matter
        with pytest.raises(pytest.fail.Exception):
            hn.search_split(collection, tmp_path / "run.trec", bm25=True, split="train")


# ---------------------------------------------------------------- evaluation


@pytest.fixture
def run_files(tmp_path):
    """Two runs of the queries q1 (positive a) and q2 (positive b), by qrels without a collection."""
    (tmp_path / "qrels").write_text("q1 0 a 1\nq2 0 b 1\n")
    (tmp_path / "one").write_text("q1 Q0 a 1 2 x\nq1 Q0 b 2 1 x\nq9 Q0 a 1 1 x\n")
    (tmp_path / "two").write_text("q1 Q0 b 1 2 x\nq1 Q0 a 2 1 x\nq2 Q0 b 1 1 x\n")
    return tmp_path


def test_a_run_is_scored_with_what_it_lacks(run_files):
    found = hn.evaluate(
        run_files / "one", qrels=run_files / "qrels", measures="RR@10", per_query=run_files / "each"
    )
    assert found == {"measures": {"RR@10": 0.5}, "queries": 2, "missing": 1, "unjudged": 1}
    rows = [json.loads(line) for line in (run_files / "each").read_text().splitlines()]
    assert rows == [{"query_id": "q1", "RR@10": 1.0}, {"query_id": "q2", "RR@10": 0.0}]


def test_runs_are_compared_pair_by_pair(run_files):
    runs = [run_files / "one", run_files / "two"]
    [row] = hn.compare(runs, qrels=run_files / "qrels", measures="RR@10")
    assert (row["a"], row["b"]) == tuple(map(str, runs))
    assert row["difference"] == -0.25
    assert (row["wins"], row["ties"], row["losses"]) == (1, 0, 1)
    assert row["overlap"] == (2 / 2 + 0) / 2  # q1 has both hits in both, q2 is in one, and q9 is not judged
    assert len(hn.compare([*runs, runs[0]], qrels=run_files / "qrels", measures="RR@10 R@10")) == 6


@pytest.mark.parametrize(
    ("hits", "measures", "warned"),
    [
        ([12, 12, 3], "RR@10 R@100 R@1000", "at most 12 hits, so R@100 and R@1000 may be too low"),
        ([12, 12, 3], "RR@10 R@12", ""),
        ([12, 12, 3], "RR@10 AP", "at most 12 hits, so AP may be too low"),
        ([12, 12, 3], "nDCG R@1000", "at most 12 hits, so nDCG and R@1000 may be too low"),
        ([1000, 1000], "AP", ""),
        ([12, 11, 10], "R@100", ""),  # BM25 found no more
        ([2, 2, 2], "R@100", ""),
    ],
)
def test_a_measure_deeper_than_the_run_is_warned_of(hits, measures, warned, caplog):
    run = {f"q{i}": {f"d{j}": float(-j) for j in range(count)} for i, count in enumerate(hits)}
    qrels = {query: {"d1": 1, "d99": 1} for query in run}
    for call in (
        lambda: hn.evaluate(run, qrels=qrels, measures=measures),
        lambda: hn.compare([run, run], qrels=qrels, measures=measures),
    ):
        caplog.clear()
        call()
        assert [warned in line for line in caplog.messages] == [True] * len(caplog.messages)
        assert bool(caplog.messages) == bool(warned)


def test_a_run_that_ends_before_another_is_warned_of_for_measures_without_a_cutoff(caplog):
    """The same ranking has a higher AP if more of it is kept, so the difference would say nothing."""
    whole = {f"q{i}": {f"d{j}": float(-j) for j in range(1300)} for i in range(3)}
    part = {query: dict(list(hits.items())[:1100]) for query, hits in whole.items()}
    qrels = {query: {"d1": 1, "d1200": 1} for query in whole}
    hn.compare([part, part], qrels=qrels, measures="AP")
    assert caplog.messages == []
    hn.compare([whole, part], qrels=qrels, measures="AP RR@10")
    assert [line.split(";")[0] for line in caplog.messages] == [
        "run 2: its queries have at most 1100 hits, so AP may be too low"
    ]


@pytest.mark.parametrize(
    ("grades", "measures", "warned"),
    [
        ({"d1": 1}, "RR AP nDCG RR@100 R@100 nDCG@100 AP@100 P@100 Success@100", ""),  # no more can be found
        ({"d1": 1, "d99": 1}, "RR Success@100", ""),  # the first relevant hit alone counts
        ({"d1": 1, "d99": 1}, "AP nDCG", "AP and nDCG"),
        ({"d99": 1}, "RR AP Success@100", "RR and AP and Success@100"),
        ({"d1": 1, "d99": 2}, "RR RR(rel=2) AP(rel=3)", "RR(rel=2)"),  # no passage has grade 3
        ({"d1": 1, "d99": 0}, "nDCG", ""),
        ({"d1": 1}, "Judged@100", "Judged@100"),  # which further hits are judged is not known
    ],
)
def test_a_measure_that_cannot_be_higher_is_not_called_too_low(grades, measures, warned, caplog):
    run = {f"q{i}": {f"d{j}": float(-j) for j in range(12)} for i in range(3)}
    qrels = dict.fromkeys(run, grades)
    hn.evaluate(run, qrels=qrels, measures=measures)
    hn.compare([run, run], qrels=qrels, measures=measures)
    told = [line.split("so ")[1].split(" may")[0] for line in caplog.messages if "hits" in line]
    assert told == [warned] * 3 * bool(warned)


def test_only_queries_whose_search_was_cut_can_make_a_measure_too_low(caplog):
    """The search of q2 found no more, and q3 is not in the run: a larger k would change neither."""
    run = {f"q{i}": {f"d{j}": float(-j) for j in range(hits)} for i, hits in enumerate([12, 12, 3])}
    qrels = {"q0": {"d1": 1}, "q1": {"d1": 1}, "q2": {"d99": 1}, "q3": {"d99": 1}}
    hn.evaluate(run, qrels=qrels, measures="RR AP R@100")
    assert caplog.messages == []


def test_measures_may_be_a_list(run_files):
    one, two, qrels = (run_files / name for name in ("one", "two", "qrels"))
    text, names = "RR@10 R@1", ["RR@10", "R@1"]
    assert hn.evaluate(one, qrels=qrels, measures=names) == hn.evaluate(one, qrels=qrels, measures=text)
    assert hn.compare([one, two], qrels=qrels, measures=tuple(names)) == hn.compare(
        [one, two], qrels=qrels, measures=text
    )
    with pytest.raises(SettingsError, match=r"evaluate: measures is 10 \(int\); give a string or a list$"):
        hn.evaluate(one, qrels=qrels, measures=10)


def test_two_runs_are_compared_query_by_query(run_files):
    a, b = map(str, (run_files / "one", run_files / "two"))
    hn.compare([a, b], qrels=run_files / "qrels", measures="RR@10", per_query=run_files / "each")
    first, second = (json.loads(line) for line in (run_files / "each").read_text().splitlines())
    parted = {"differ_at": 1, "hits": ["a", "b"], "grades": [1, None]}
    assert first == {"query_id": "q1", "a": a, "b": b, "RR@10": [1.0, 0.5], **parted}
    parted = {"differ_at": 1, "hits": [None, "b"], "grades": [None, 1]}
    assert second == {"query_id": "q2", "a": a, "b": b, "RR@10": [0.0, 1.0], **parted}
    hn.compare([a, b, a], qrels=run_files / "qrels", measures="RR@10", per_query=run_files / "each")
    rows = [json.loads(line) for line in (run_files / "each").read_text().splitlines()]
    assert len(rows) == 6  # three pairs of two queries
    assert {row["differ_at"] for row in rows if row["a"] == row["b"]} == {None}


def test_values_of_queries_are_packed_in_a_file_named_gz(run_files):
    for name in ("each", "each.gz"):
        hn.evaluate(run_files / "one", qrels=run_files / "qrels", measures="RR@10", per_query=run_files / name)
    packed = (run_files / "each.gz").read_bytes()
    assert packed != (run_files / "each").read_bytes()
    assert gzip.decompress(packed) == (run_files / "each").read_bytes()


def test_judgements_come_from_one_place(run_files, world):
    for sources in ({}, {"data": world[0], "qrels": run_files / "qrels"}):
        with pytest.raises(SettingsError, match="NO_JUDGEMENTS"):
            hn.evaluate(run_files / "one", **sources)
    with pytest.raises(SettingsError, match="ONE_RUN"):
        hn.compare([run_files / "one"], qrels=run_files / "qrels")


def test_a_closed_searcher_says_so(world):
    with hn.open_searcher(world[0], bm25=True) as searcher:
        assert searcher.search("bade", 2)
    for call in (lambda: searcher.search("bade"), lambda: searcher.run("dev")):
        with pytest.raises(SettingsError, match="CLOSED: this searcher is closed; open another one") as fault:
            call()
    assert str(pickle.loads(pickle.dumps(fault.value))) == str(fault.value)
    assert not hasattr(searcher, "retriever")
    assert ("is_closed", True) in inspect.getmembers(searcher)


def test_a_closed_searcher_keeps_neither_vectors_nor_weights(world, tmp_path):
    """Its name may live on, as after ``with``; a search that is at work keeps what it needs."""
    with hn.open_searcher(*world, device="cpu", cache=tmp_path) as searcher:
        kept = [weakref.ref(one) for one in (searcher.retriever.encoder, searcher.retriever.passages)]
        assert searcher.search("bade", 2)
        assert all(one() is not None for one in kept)
    gc.collect()
    assert [one() for one in kept] == [None, None]
    assert searcher.is_closed
    searcher.close()


def test_an_open_searcher_keeps_what_it_asks_again(world, tmp_path, monkeypatch):
    """The index of BM25, which each query read anew before, and the model of a bi-encoder that re-ranks."""
    collection, model = world
    opened = []
    monkeypatch.setattr(search, "open_bm25", lambda *given: opened.append(given) or open_bm25(*given))
    how = {"rerank_by": model, "device": "cpu", "cache": tmp_path}
    with hn.open_searcher(collection, bm25=True, **how) as searcher:
        first, ranker = searcher.retriever.first, searcher.retriever.scorer.retriever
        assert ranker._held is not None
        assert "passages" in vars(ranker)
        again = pickle.loads(pickle.dumps(first))  # of its own
        with ThreadPoolExecutor(4) as pool:
            runs = list(pool.map(lambda _: again.search_texts(["bade"], 3), range(4)))
        assert len(opened) == 2
        for run in (*runs, first.search_texts(["bade"], 3)):
            assert run.passage_rows.tolist() == runs[0].passage_rows.tolist()
        assert searcher.search("bade", 2)
        assert len(opened) == 2
    assert ranker._held is None
    assert "index" not in vars(first)


def test_a_split_that_is_not_there_builds_no_index(world, tmp_path):
    with pytest.raises(SettingsError, match="UNKNOWN_SPLIT"):
        hn.bm25(world[0], "tset", cache=tmp_path)
    assert not (tmp_path / "bm25").exists()


# ---------------------------------------------------------------- the caller's working directory and home folder


def test_what_is_open_stays_so_when_the_caller_changes_its_working_directory(world, tmp_path, monkeypatch):
    """Relative paths mean what they meant when they were given; also that of a cache which is filled later."""
    collection, model = world
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(collection.path.parent)
    searcher = hn.open_searcher(collection.path.name, bm25=True, cache="cache-of-this")
    monkeypatch.setenv("HARDNEG_CACHE", "another-cache")
    second = hn.open_searcher(collection.path.name, model=model, device="cpu")
    opened = hn.open_collection(collection.path.name)
    monkeypatch.chdir(other)
    assert searcher.search("bade", 2)
    assert len(second.run("dev", 2)) == 16
    assert len(opened.qrels("dev").query_rows) == 16
    assert list(other.iterdir()) == []


def test_a_path_in_the_home_folder_is_found_from_python_too(tmp_path, monkeypatch):
    """Before, a folder with the name ~ was made in the working directory."""
    home, here = tmp_path / "home", tmp_path / "here"
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    hn.Collection.from_lists([("a", "", "one ~/text")], {"q": "one"}, {"test": {"q": ["a"]}}, to="~/data")
    hits = hn.search_text("~/data", "~/text", bm25=True, cache="~/cache")
    assert [hit["passage_id"] for hit in hits] == ["a"]
    run = {"q": {"a": 1.0}}
    measured = hn.evaluate(run, data="~/data", measures="RR@10")
    assert measured["measures"] == {"RR@10": 1.0}
    assert list(here.iterdir()) == []
    assert sorted(place.name for place in home.iterdir()) == ["cache", "data"]


def test_an_overlap_is_that_of_the_judged_queries():
    one, two = ({"q1": {"a": 2.0, "b": 1.0}, "q2": {name: 1.0}} for name in ("c", "d"))
    (row,) = hn.compare([one, two], qrels={"q1": {"a": 1}}, measures=["RR@10"])
    assert (row["ties"], row["overlap"]) == (1, 1.0)


def test_a_grade_below_0_is_no_missing_judgement(tmp_path):
    runs = [{"q": {"a": 1.0}}, {"q": {"b": 1.0}}, {"q": {"c": 1.0}}]
    hn.compare(runs, qrels={"q": {"b": 1, "a": -1}}, measures=["RR@10"], per_query=tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["grades"] for row in rows] == [[-1, 1], [-1, None], [1, None]]


def test_options_of_a_model_without_one_are_refused_in_mining(world, tmp_path):
    with pytest.raises(SettingsError, match="query_length = 7 has no effect without a model"):
        hn.mine(world[0], None, tmp_path / "pool", sources=["bm25"], query_length=7)


def test_an_experiment_stands_for_its_model_in_doctor(world, tmp_path):
    hn.train_warmup(*world, tmp_path / "exp", mixtures=["in_batch"], steps=[1], device="cpu")
    facts = [hn.examine(world[0], model=tmp_path / place) for place in ("exp", "exp/model")]
    assert facts[0]["tokens"] == facts[1]["tokens"]


def test_many_texts_are_encoded_in_batches(world, monkeypatch):
    collection, model = world
    texts = [f"turtle number {i} of the sea" for i in range(200)]
    with hn.open_retriever(collection, model, device="cpu") as whole:
        expected = whole.text_vectors(texts)
    sizes, encode = [], BiEncoder.encode
    with hn.open_retriever(collection, model, device="cpu") as retriever:
        retriever.encoding = replace(retriever.encoding, token_budget=100)

        def counted(self, tokens, side):
            sizes.append(len(tokens.ids))
            return encode(self, tokens, side)

        monkeypatch.setattr(BiEncoder, "encode", counted)
        found = retriever.text_vectors(texts)
    assert len(sizes) > 10
    assert max(sizes) <= 100
    assert np.allclose(found, expected, atol=2e-2)


def test_a_dev_among_few_passages_is_not_compared_in_silence(world, tmp_path, caplog):
    collection, model = world
    given = {"mixtures": ["in_batch"], "steps": [1], "device": "cpu", "splits": hn.Splits(test="none")}
    given |= {"examine": "judged", "dev_passages": 3, "measures": "RR@10"}
    for name in ("one", "two"):
        hn.train_warmup(collection, model, tmp_path / name, **given)
    run = tmp_path / "all.trec"
    hn.search_split(collection, run, bm25=True, split="dev", k=20)
    told = "its dev ranks the first 3 passages of BM25 alone, so its figures are too high"
    for runs, warned in (([tmp_path / "one", run], True), ([tmp_path / "one", tmp_path / "two"], False)):
        caplog.clear()
        hn.compare(runs, data=collection, split="dev", measures="RR@10")
        assert (told in caplog.text) == warned
    caplog.clear()
    hn.evaluate(tmp_path / "one", data=collection, split="dev", measures="RR@10")
    assert told in caplog.text
    assert "give a test split, or train with dev_passages = none" in caplog.text, "there is no test to take"
    caplog.clear()
    hn.train_warmup(collection, model, tmp_path / "tested", **given | {"splits": hn.Splits()})
    tests = tmp_path / "tests.trec"
    hn.search_split(collection, tests, bm25=True, split="test", k=20)
    caplog.clear()
    with pytest.raises(InputError, match=r"NO_OVERLAP.*none of the"):  # no run to tune on was given
        hn.fuse([tests, tmp_path / "tested"], tmp_path / "f.trec", data=collection, split="test", tune="dev")
    assert "too high" not in caplog.text, "its run of dev was not read"


def test_a_run_of_few_passages_says_so_wherever_it_goes(world, tmp_path, caplog):
    collection, model = world
    given = {"mixtures": ["in_batch"], "steps": [1], "device": "cpu", "splits": hn.Splits(test="none")}
    given |= {"examine": "judged", "measures": "RR@10", "cache": tmp_path / "cache"}
    for few in (3, 2):
        hn.train_warmup(collection, model, tmp_path / f"{few}", dev_passages=few, **given)
    judged = {"data": collection, "split": "dev", "measures": "RR@10", "cache": tmp_path / "cache"}
    one, written = (tmp_path / "3/runs" / f"{name}.dev.trec.gz" for name in ("final", "bm25"))
    kept = next((tmp_path / "3").glob("**/runs/dev"))
    whole = tmp_path / "all.trec"
    hn.search_split(collection, whole, bm25=True, split="dev", k=20, cache=tmp_path / "cache")
    hn.fuse([tmp_path / "3", whole], tmp_path / "fused.trec", data=collection, split="dev")
    hn.rerank(kept, tmp_path / "again.trec", data=collection, ranker=model, cache=tmp_path / "cache", device="cpu")
    runs = [one, written, kept, tmp_path / "fused.trec", tmp_path / "again.trec"]
    part = "ranks a part of the passages alone, as a dev with dev_passages does, so its figures are too high"
    for run in runs:
        told = f"{'one of the runs that are fused in it' if run.name == 'fused.trec' else 'it'} {part}"
        caplog.clear()
        hn.evaluate(run, **judged)
        assert f"{run}: {told}" in caplog.text, run
        caplog.clear()
        hn.compare([run, whole], **judged)
        assert f"{run}: {told}" in caplog.text, run
    caplog.clear()
    alike = [run for run in runs if run.name != "fused.trec"]  # that one ranks other passages, too
    with pytest.raises(InputError, match="NO_OVERLAP"):
        hn.compare([kept, tmp_path / "fused.trec"], **judged)
    hn.compare([*alike, tmp_path / "3"], **judged)
    hn.evaluate(whole, **judged)
    assert "too high" not in caplog.text
    with pytest.raises(
        InputError, match=r"NO_OVERLAP: .*final\.dev\.trec\.gz: it does not rank the same part of the passages as"
    ):
        hn.compare([kept, tmp_path / "2/runs/final.dev.trec.gz"], **judged)


def test_a_window_of_ranks_beyond_the_depth_is_told(world, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr("hardneg.api.mine.note", said.append)
    given = {"sources": ["bm25"], "depth": 5, "cache": world.root / "cache"}
    for number, filters in enumerate((hn.Filters(rank_from=6), hn.Filters(rank_to=9), hn.Filters(rank_to=5))):
        hn.mine(world.collection, None, tmp_path / f"{number}", filters=filters, **given)
    hn.mine(
        world.collection, None, tmp_path / "random", **(given | {"sources": ["random"]}), filters=hn.Filters(7, 9)
    )
    first = "negatives come from the first 5 hits that are no positives"
    assert said == [f"rank_from = 6 with depth = 5: {first}", f"rank_to = 9 with depth = 5: {first}"]


def test_a_model_that_mines_nothing_is_told(world, tmp_path, monkeypatch):
    said, given = [], {"count": 2, "depth": 5, "cache": world.root / "cache", "device": "cpu"}
    monkeypatch.setattr("hardneg.api.mine.note", said.append)
    hn.mine(*world, tmp_path / "words", sources=["bm25", "random"], **given)
    hn.mine(*world, tmp_path / "file", sources=["file"], file=tmp_path / "words", **given)
    told = [
        f"no effect of model = {world[1]}: no model mines {what} negatives" for what in ("bm25 and random", "file")
    ]
    assert said == told
    hn.mine(*world, tmp_path / "near", sources=["query", "bm25"], **given)
    hn.mine(world[0], None, tmp_path / "none", sources=["bm25"], **{**given, "device": None})
    assert said == told


def test_a_run_ties_with_seeds_that_equal_it():
    """Means over seeds are rounded, and so are the values of a run that is compared with them."""
    found = Evaluation(np.arange(40, dtype=np.int32), {"RR@10": 1 / np.arange(1.0, 41)}, 0, 0)
    hits = run_of([[0]] * 40)
    sides = sides_of(["several", "one"], [["several/seed-1", "several/seed-2"], ["one"]], [("", hits, found)] * 3)
    (row,) = rows_of_tests(sides, [Pair(*sides)], parse_measures("RR@10"), seed=0)
    assert (row["wins"], row["ties"], row["losses"], row["p"]) == (0, 40, 0, 1)
    assert set(row["by_seed"].values()) == {0}
    alone = sides_of(["one", "other"], [["one"], ["other"]], [("", hits, found)] * 2)
    assert alone[0].evaluation is found


def test_several_seeds_are_averaged_for_each_query(world, tmp_path):
    """Values, differences by seed, wins and overlaps equal a plain loop over the seeds' own runs."""
    given = {"mixtures": ["in_batch"], "device": "cpu", "cache": world.root / "cache"}
    for name, seeds, steps in (("one", 3, 2), ("two", 2, 4)):
        hn.train_warmup(*world, tmp_path / name, seed=5, seeds=seeds, steps=[steps], **given)
    hn.search_split(world.collection, tmp_path / "words.trec", bm25=True, split="test", k=20)
    runs = [tmp_path / name for name in ("one", "two", "words.trec")]
    per_query = tmp_path / "each.jsonl"
    rows = hn.compare(runs, data=world.collection, measures="RR@10", per_query=per_query)

    def values(run):
        hn.evaluate(run, data=world.collection, measures="RR@10", per_query=tmp_path / "values")
        rows = map(json.loads, (tmp_path / "values").read_text().splitlines())
        return {row["query_id"]: row["RR@10"] for row in rows}

    names = [[5, 6, 7], [5, 6], [None]]
    single = [
        {seed: values(run if seed is None else run / f"seed-{seed}") for seed in some}
        for run, some in zip(runs, names, strict=True)
    ]
    mean = [{q: np.mean([one[q] for one in of.values()]) for q in of[next(iter(of))]} for of in single]
    kept = [json.loads(line) for line in per_query.read_text().splitlines()]
    for row, (a, b), common in zip(rows, ((0, 1), (0, 2), (1, 2)), ([5, 6], [5, 6, 7], [5, 6]), strict=True):
        assert (row["a"], row["b"]) == (str(runs[a]), str(runs[b]))
        differences = [mean[a][q] - mean[b][q] for q in mean[a]]
        assert row["difference"] == pytest.approx(np.mean(differences), abs=1e-12)
        counts = [sum(d > 1e-9 for d in differences), sum(d < -1e-9 for d in differences)]
        assert [row["wins"], row["losses"]] == counts
        expected = {}
        for seed in common:
            left, right = (single[side].get(seed) or single[side][None] for side in (a, b))
            expected[str(seed)] = pytest.approx(np.mean([left[q] - right[q] for q in left]), abs=1e-12)
        assert row["by_seed"] == expected
        mine = [one for one in kept if (one["a"], one["b"]) == (row["a"], row["b"])]
        assert {one["query_id"]: one["RR@10"] for one in mine} == {
            q: pytest.approx([mean[a][q], mean[b][q]]) for q in mean[a]
        }
        pairs = [
            hn.compare(two, data=world.collection, measures="RR@10")[0]["overlap"]
            for two in itertools.product(*(sorted(runs[side].glob("seed-*")) or [runs[side]] for side in (a, b)))
        ]
        assert row["overlap"] == pytest.approx(np.mean(pairs))
    alone = hn.compare([runs[0] / "seed-5", runs[2]], data=world.collection, measures="RR@10")
    assert "by_seed" not in alone[0]
    assert "by seed" in comparison_table(rows)
    assert "5: " in comparison_table(rows)
    with pytest.raises(SettingsError, match="give two runs or more"):
        hn.compare([runs[0]], data=world.collection)
    (runs[0] / "results.json").unlink()
    with pytest.raises(ArtifactError, match="NOT_FINISHED: not all seeds of this experiment are trained"):
        hn.compare(runs, data=world.collection)
