"""Mining: the runs that each source reads and their depth; a pool depends on the embeddings alone."""

import logging
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from hardneg.data.collection import Collection
from hardneg.data.training_data import choose_splits
from hardneg.errors import SettingsError
from hardneg.experiment.snapshot import Snapshot
from hardneg.models.loading import load_encoder
from hardneg.models.tokenizing import token_store
from hardneg.negatives import candidates, mining, sources
from hardneg.negatives import pool as pools
from hardneg.negatives.candidates import Filters
from hardneg.negatives.facts import entries_of, stats
from hardneg.negatives.imported_pool import import_pool
from hardneg.negatives.mining import TELEPORTED, Corpus, QueryScores, mine_candidates, mine_pool, training_depth
from hardneg.negatives.pool import DTYPES, SOURCES, load_pool, save_pool
from hardneg.records import Positives, Run, blocks, owners, spans
from hardneg.search import exact
from hardneg.search.bm25 import bm25_run
from hardneg.search.embeddings import encode_store
from hardneg.search.encoding import Encoding
from hardneg.search.retrieve import dot_products
from reference_candidates import slow_candidates
from worlds.tiny_records import positives_of, vectors_of
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

DEPTH = 12


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("mining")


@pytest.fixture(scope="module")
def state(root):
    collection = tiny_collection(root / "collection")
    encoder = load_encoder(tiny_model(root / "model", collection))
    return Snapshot(
        encoder, collection, "state", root / "runs", root / "cache", encoding=Encoding(token_budget=512)
    )


@pytest.fixture(scope="module")
def train(state):
    return choose_splits(state.collection).train


def pool_of(state, train, **changes):
    options = {
        "sources": ["query", "lookahead"],
        "episode": 1,
        "depth": DEPTH,
        "size": 8,
        "count": 4,
        "alpha": 0.5,
        "beta": 0.5,
        "seed": 3,
    }
    return mine_pool(state, train, changes.pop("previous", None), **(options | changes))


def equal(a, b):
    return all(np.array_equal(getattr(a, name), getattr(b, name), equal_nan=name == "scores") for name in DTYPES)


# ---------------------------------------------------------------- candidates


@pytest.mark.parametrize("source", ["query", "lookahead", "bm25"])
def test_candidates_equal_a_slow_loop(state, train, source):
    pool = mine_candidates(state, train, source, episode=4, depth=DEPTH)
    runs = {
        "query": lambda: state.search("query", train.query_rows, 100),
        "lookahead": lambda: state.neighbours("lookahead", train.query_rows, train.first(), 100),
        "bm25": lambda: bm25_run(state.collection, train.query_rows, 100, state.cache),
    }
    run = runs[source]()
    assert pool.query_rows.tolist() == train.query_rows.tolist()
    dropped = 0
    for i in range(len(train)):
        hits = zip(*(values.tolist() for values in run.hits(i)), strict=True)
        expected = slow_candidates(state.collection, hits, train.of(i).tolist(), DEPTH)
        found = [(entry.passage_row, entry.rank, entry.score) for entry in entries_of(pool, i)]
        assert found == expected
        anchor = train.of(i)[0] if source == "lookahead" else None
        assert all((e.source, e.episode, e.anchor) == (source, 4, anchor) for e in entries_of(pool, i))
        dropped += found[-1][1] - len(found)
    assert dropped > 0


def test_lookahead_around_all_positives(state, train):
    pool = mine_candidates(state, train, "lookahead", episode=1, depth=DEPTH, anchors="all")
    anchors = np.unique(pool.anchors)
    assert set(anchors.tolist()) == set(train.passage_rows.tolist())
    for i in range(len(train)):
        entries = entries_of(pool, i)
        assert [e.anchor for e in entries] == np.repeat(train.of(i), DEPTH).tolist()
    first = mine_candidates(state, train, "lookahead", episode=1, depth=DEPTH)
    assert len(pool.passage_rows) == len(train.passage_rows) * DEPTH > len(first.passage_rows)


def test_random_needs_no_model_and_avoids_positives(state, train):
    pool = mine_candidates(Corpus(state.collection, state.cache), train, "random", episode=1, count=9)
    assert equal(pool, mine_candidates(state, train, "random", episode=1, count=9))
    for i in range(len(train)):
        rows = [entry.passage_row for entry in entries_of(pool, i)]
        assert len(set(rows)) == 9
        assert not set(rows) & set(train.of(i).tolist())


def test_runs_are_deep_enough_for_diagnostics_and_for_what_is_dropped(state, train):
    assert training_depth(state.collection, train, 5) == 100
    assert training_depth(state.collection, train, 90) == 90 + 2 + 16
    assert training_depth(state.collection, train, 5000) == state.collection.n_passages


def test_lists_that_copies_leave_short_are_searched_deeper(tmp_path, caplog):
    # 60 copies of the positive fill the first hits: 20 + 1 + 16 are not enough, nor is twice that
    texts = ["red apple tree"] * 60 + [f"blue stone {chr(97 + i)} river" for i in range(26)]
    passages = [(f"p{i}", text) for i, text in enumerate(texts)]
    collection = Collection.from_lists(
        passages, {"q": "red apple tree blue"}, {"train": {"q": ["p0"]}}, to=tmp_path / "c"
    )
    encoder = load_encoder(tiny_model(tmp_path / "m", collection))
    state = Snapshot(encoder, collection, "s", tmp_path / "runs", tmp_path / "cache", encoding=Encoding(512))
    train = choose_splits(collection, dev="none").train
    asked = []

    def search(name, rows, k, **options):
        asked.append(k)
        return Snapshot.search(state, name, rows, k, **options)

    state.search = search
    with caplog.at_level(logging.INFO, "hardneg"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(mining, "DIAGNOSTIC_DEPTH", 1)
        pool = mine_candidates(state, train, "query", episode=1, depth=20)
    assert asked == [37, 74, 86]
    assert len(pool.passage_rows) == 20
    assert pool.passage_rows.min() >= 60
    assert "searching 74 deep" in caplog.text


def test_bm25_searches_only_the_lists_deeper_that_deeper_hits_change(tmp_path, monkeypatch):
    """Copies of a positive leave one list short; copies of a negative leave another one with too few texts."""
    fox, dog = ["red fox"] * 40, ["blue dog and cat"] * 20
    deep = [f"red fox {'x ' * i}" for i in range(1, 30)] + [f"blue dog and cat {'y ' * i}" for i in range(1, 40)]
    owls = [f"owl {'z ' * i}" for i in range(60)]
    passages = {f"p{i:03}": text for i, text in enumerate([*fox, "blue dog", *dog, *deep, *owls])}
    queries = {"short": "red fox", "same": "blue dog", "whole": "owl"}
    qrels = {"short": ["p000"], "same": ["p040"], "whole": ["p130"]}
    c = Collection.from_lists(passages, queries, {"train": qrels}, to=tmp_path / "c")
    train, asked, real = choose_splits(c, dev="none").train, [], mining.bm25_run

    def counted(collection, rows, k, cache):
        asked.append((rows.tolist(), k))
        return real(collection, rows, k, cache)

    monkeypatch.setattr(mining, "bm25_run", counted)
    monkeypatch.setattr(mining, "DIAGNOSTIC_DEPTH", 1)
    corpus = Corpus(c, tmp_path / "cache")
    pool = mine_candidates(corpus, train, "bm25", episode=1, depth=20)
    short, same = c.query_ids.rows(["short", "same"]).tolist()
    assert [(sorted(rows), k) for rows, k in asked] == [([0, 1, 2], 37), (sorted([short, same]), 74)]
    # As deep for all, as it was before:
    run = real(c, train.query_rows, 74, corpus.cache)
    options = {"text_keys": c.text_keys, "copies": c.copies}
    expected = candidates.candidates(run, train, source="bm25", episode=1, depth=20, **options)
    assert pool == expected
    assert np.diff(pool.offsets).tolist() == [20, 20, 20]
    assert pool.copies["bm25"] == 19
    shallow = run.cut(37)
    assert candidates.candidates(shallow, train, source="bm25", episode=1, depth=20, **options) != expected


# ---------------------------------------------------------------- pools


def test_sources_share_the_new_part_by_beta(state, train):
    for beta, lookahead in ((0.0, 0), (0.25, 2), (0.5, 4), (0.8, 6)):
        sources = ["query", "lookahead"] if beta else ["query"]
        pool = pool_of(state, train, sources=sources, beta=beta)
        assert np.diff(pool.offsets).tolist() == [8] * len(train)
        counts = np.bincount(pool.sources, minlength=len(SOURCES))
        assert counts[SOURCES.index("lookahead")] == lookahead * len(train)


@pytest.mark.parametrize("mode", ["weighted", "accumulate"])
def test_mining_holds_no_more_candidates_than_can_be_drawn(state, train, mode, monkeypatch):
    """The pool is that of a draw from all candidates, bit for bit; blocks of a few queries are drawn from."""
    options = {"mode": mode, "sources": ["query", "lookahead", "random"], "size": 6, "alpha": 0.5, "beta": 0.4}
    held, teleport, small = [], mining.teleport, partial(blocks, size=40)

    def counted(query, lookahead, momentum, **rest):
        held.append(max(spans(one.offsets).max() for one in (query, lookahead)))
        return teleport(query, lookahead, momentum, **rest)

    monkeypatch.setattr(mining, "teleport", counted)
    monkeypatch.setattr(sources, "blocks", small)
    found = [pool_of(state, train, **options)]
    few = found[0].keep(np.arange(len(found[0].passage_rows)) % 3 > 0)  # some new parts shrink
    found.append(pool_of(state, train, **options, episode=2, previous=few))
    monkeypatch.setattr(mining, "drawn_ahead", lambda part, *, count, seed, keep: part)
    whole = [pool_of(state, train, **options), pool_of(state, train, **options, episode=2, previous=few)]
    assert all(equal(a, b) for a, b in zip(found, whole, strict=True))
    assert held == [6, 6, DEPTH, DEPTH]


def test_lookahead_left_out_leaves_its_share_to_the_query(state, train):
    pool = pool_of(state, train, sources=["query"], beta=0.5)
    assert set(pool.sources.tolist()) == {SOURCES.index("query")}
    assert np.diff(pool.offsets).tolist() == [8] * len(train)


def test_every_other_source_draws_count_besides(state, train):
    pool = pool_of(state, train, sources=["query", "lookahead", "bm25", "random"])
    for i in range(len(train)):
        sources = [entry.source for entry in entries_of(pool, i)]
        assert sources[:8] == ["query"] * 4 + ["lookahead"] * 4
        assert sources.count("random") == 4
        assert sources.count("bm25") <= 4  # only passages that share a word
    alone = pool_of(Corpus(state.collection, state.cache), train, sources=["bm25", "random"])
    assert set(alone.sources.tolist()) == {SOURCES.index("bm25"), SOURCES.index("random")}


def test_a_pool_depends_on_its_seed_and_episode(state, train):
    pool = pool_of(state, train)
    assert equal(pool, pool_of(state, train))
    assert not equal(pool, pool_of(state, train, seed=4))
    later = pool_of(state, train, episode=2)
    assert not np.array_equal(pool.passage_rows, later.passage_rows)


@pytest.mark.parametrize(
    ("sources", "code"),
    [
        ([], "NO_SOURCES"),
        (["query", "lokahead"], "UNKNOWN_SOURCE"),
        (["query", "query"], "REPEATED_SOURCE"),
    ],
)
def test_bad_sources(state, train, sources, code):
    with pytest.raises(SettingsError) as fault:
        pool_of(state, train, sources=sources)
    assert fault.value.code == code


@pytest.mark.parametrize("source", ["query", "lookahead"])
def test_a_model_is_needed_to_search_with_it(state, train, source):
    with pytest.raises(SettingsError, match="NO_MODEL"):
        pool_of(Corpus(state.collection, state.cache), train, sources=[source])


def test_margins_are_measured_from_the_positive_that_scores_least(state, train):
    run = mine_run(state, train, "query")
    listed = [dict(zip(*map(np.ndarray.tolist, run.hits(i)), strict=True)) for i in range(len(train))]
    known = QueryScores.of(state, train, "lookahead")
    lowest = known.positives_lowest()
    assert lowest.tolist() == [min(listed[i][row] for row in train.of(i)) for i in range(len(train))]
    assert any(listed[i][train.of(i)[0]] > lowest[i] for i in range(len(train)))  # it is not always the first
    at, rows = np.repeat(np.arange(len(train)), 3), np.tile(np.array([4, 0, 9], np.int32), len(train))
    assert known(at, rows).tolist() == [listed[i][row] for i, row in zip(at, rows, strict=True)]
    nobody = Positives(train.query_rows[:2], np.array([0, 0, 1]), train.passage_rows[:1])
    assert QueryScores.of(state, nobody, "query").positives_lowest()[0] == 0
    with pytest.raises(SettingsError, match="NO_MARGIN"):
        QueryScores.of(state, train, "bm25")


BOUNDS = [
    Filters(relative_margin=0.02),
    Filters(absolute_margin=0.3),
    Filters(max_score=0.0),  # 0 stands for the middle of the scores there
    Filters(rank_from=3, relative_margin=-0.01),
]


@pytest.mark.parametrize("filters", BOUNDS)
@pytest.mark.parametrize("source", ["query", "lookahead"])
def test_what_is_filtered_equals_a_slow_loop(state, train, source, filters, monkeypatch):
    """Both sources compare the scores for the query; ranks and highest scores are those of the list."""
    monkeypatch.setattr(mining, "PAIRS", 7)
    for_query, run = mine_run(state, train, "query"), mine_run(state, train, source)
    if filters.max_score is not None:
        filters = Filters(max_score=float(np.median(run.cut(DEPTH).scores)))
    pool = mine_candidates(state, train, source, episode=1, depth=DEPTH, filters=filters)
    removed = 0
    for i in range(len(train)):
        scores = dict(zip(*map(np.ndarray.tolist, for_query.hits(i)), strict=True))
        p = min(scores[row] for row in train.of(i))
        expected = []
        hits = [(int(row), float(score)) for row, score in zip(*run.hits(i), strict=True)]
        for row, rank, listed in slow_candidates(state.collection, hits, train.of(i).tolist(), DEPTH):
            keep = rank >= filters.rank_from
            keep &= filters.max_score is None or listed <= filters.max_score
            keep &= filters.absolute_margin is None or scores[row] <= p - filters.absolute_margin
            keep &= filters.relative_margin is None or scores[row] <= p - filters.relative_margin * abs(p)
            expected += [(row, rank, listed)] if keep else []
            removed += not keep
        assert [(e.passage_row, e.rank, e.score) for e in entries_of(pool, i)] == expected
    assert pool.filtered == {source: removed}
    assert 0 < removed < DEPTH * len(train)


def test_bounds_hold_for_what_an_older_pool_hands_on(state, train):
    """Negatives that an episode without bounds mined at ranks 1 to 4 are no momentum of one with bounds."""
    old = pool_of(state, train)
    assert any(e.rank < 5 for i in range(len(train)) for e in entries_of(old, i))
    new = pool_of(state, train, previous=old, episode=2, filters=Filters(rank_from=5))
    carried = [e.rank for i in range(len(train)) for e in entries_of(new, i) if e.momentum]
    assert carried
    assert min(carried) >= 5


def test_a_pool_counts_what_bounds_kept_out_of_each_source(state, train, tmp_path, caplog):
    plain, filters = pool_of(state, train), Filters(relative_margin=0.02)
    assert plain.filtered == {}
    assert "filtered" not in stats(plain)
    with caplog.at_level(logging.INFO, "hardneg"):
        pool = pool_of(state, train, filters=filters)
    alone = [
        mine_candidates(state, train, source, episode=1, depth=DEPTH, filters=filters) for source in TELEPORTED
    ]
    assert pool.filtered == alone[0].filtered | alone[1].filtered
    assert f"query: bounds on rank and score keep out {pool.filtered['query']} candidates" in caplog.text
    save_pool(pool, tmp_path / "pool", settings={}, inputs={})
    assert load_pool(tmp_path / "pool").filtered == stats(pool)["filtered"] == pool.filtered
    later = pool_of(state, train, episode=2, previous=pool)
    assert later.filtered == {}  # nothing was kept out of this one, whatever was of the one before


@pytest.mark.parametrize("relative", [0.0, 0.05, 0.5])
def test_a_relative_margin_filters_as_sentence_transformers_does(relative):
    """Both filter the same hits by the same scores, some of which are negative; a query may have two positives."""
    library = pytest.importorskip("sentence_transformers.util")
    datasets = pytest.importorskip("datasets")
    draw = np.random.default_rng(4)
    vectors = draw.normal(size=(40, 6)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries, passages = vectors[:10], vectors[10:]
    positives = positives_of([[3 * i, 3 * i + 1] if i % 2 else [3 * i] for i in range(10)])
    pairs = [(f"q{i}", f"p{row}") for i in range(10) for row in positives.of(i)]
    columns = dict(zip(("query", "answer"), map(list, zip(*pairs, strict=True)), strict=True))
    theirs = library.mine_hard_negatives(
        datasets.Dataset.from_dict(columns),
        Given(queries, passages),
        corpus=[f"p{row}" for row in range(30)],
        range_max=30,
        num_negatives=30,
        relative_margin=relative,
        verbose=False,
    )
    expected = {(row["query"], row["negative"]) for row in theirs}

    scores = queries @ passages.T
    order = np.argsort(-scores, axis=1, kind="stable").astype(np.int32)
    listed = np.take_along_axis(scores, order, axis=1).ravel()
    run = Run(positives.query_rows, np.arange(0, 301, 30), order.ravel(), listed)
    lowest = QueryScores(Given(queries, passages), positives, queries).positives_lowest()
    assert (lowest < 0).any()
    pool = candidates.candidates(
        run,
        positives,
        source="query",
        episode=1,
        depth=None,
        filters=Filters(relative_margin=relative),
        positive_scores=lowest,
    )
    found = {(f"q{i}", f"p{e.passage_row}") for i in range(10) for e in entries_of(pool, i)}
    assert found == expected
    assert 0 < pool.filtered["query"] < 300 - len(pairs)


class Given:
    """A model whose vectors of ``q3`` and ``p5`` are given, for both libraries."""

    device = torch.device("cpu")

    def __init__(self, queries, passages):
        self.queries, self.passages = queries, passages

    def encode_query(self, texts, **_):
        return self.queries[[int(text[1:]) for text in texts]]

    def encode_document(self, texts, **_):
        return self.passages[[int(text[1:]) for text in texts]]

    def similarity(self, a, b):
        return torch.as_tensor(a) @ torch.as_tensor(b).T

    def similarity_pairwise(self, a, b):
        return (torch.as_tensor(a) * torch.as_tensor(b)).sum(dim=-1)

    def pair_scores(self, vectors, passages):
        return dot_products(vectors, self.passages[passages])


def mine_run(state, train, source):
    if source == "query":
        return state.search("query", train.query_rows, state.collection.n_passages)
    return state.neighbours("lookahead", train.query_rows, train.first(), state.collection.n_passages)


# ---------------------------------------------------------------- how it is computed makes no difference


@pytest.fixture(scope="module")
def straight(state, train):
    second = pool_of(state, train, episode=2, previous=pool_of(state, train))
    return pool_of(state, train), second


def count_blocks(monkeypatch, size):
    """Let every block have about ``size`` entries; a list that grows by the number of blocks of each cut."""
    cuts = []

    def counted(offsets, size=size):
        found = list(blocks(offsets, size))
        cuts.append(len(found))
        return found

    for module in (pools, sources, candidates):
        assert module.blocks is blocks  # or what is counted is not what is used
        monkeypatch.setattr(module, "blocks", counted)
    return cuts


@pytest.mark.parametrize(
    ("tile", "chunk", "slice_", "block", "threads"),
    [(1, 1024, 2048, 1 << 17, 1), (7, 13, 5, 64, 1), (64, 120, 120, 1 << 17, 2), (1024, 33, 8, 200, 2)],
)
@pytest.mark.parametrize("shard_rows", [120, 11])
def test_pools_from_the_same_embeddings_are_identical(
    state, train, straight, tmp_path, monkeypatch, tile, chunk, slice_, block, threads, shard_rows
):
    for name, value in (("TILE", tile), ("CHUNK", chunk), ("SLICE", slice_)):
        monkeypatch.setattr(exact, name, {"cpu": value})
    cuts = count_blocks(monkeypatch, block)
    torch.set_num_threads(threads)
    other = Snapshot(
        state.encoder, state.collection, "other", tmp_path / "runs", state.cache, encoding=state.encoding
    )
    whole = vectors_of(state.passages)
    shards = tuple(whole[i : i + shard_rows] for i in range(0, len(whole), shard_rows))
    other.__dict__["passages"] = replace(state.passages, shards=shards)
    other.__dict__["queries"] = state.queries
    try:
        first = pool_of(other, train)
        second = pool_of(other, train, episode=2, previous=first)
    finally:
        torch.set_num_threads(1)
    assert equal(first, straight[0])
    assert equal(second, straight[1])
    assert (max(cuts) > 1) == (block < 1 << 17)
    assert block > 64 or max(cuts) == len(train)  # no list fits with another


@pytest.mark.parametrize("block", [1, 64, 200])
def test_random_negatives_do_not_depend_on_how_many_queries_are_drawn_for_at_once(
    state, train, monkeypatch, block
):
    corpus, drawn = Corpus(state.collection, state.cache), []
    whole = mine_candidates(corpus, train, "random", episode=1, count=9)
    real = sources._random_rows
    monkeypatch.setattr(sources, "_random_rows", lambda part, *args: drawn.append(len(part)) or real(part, *args))
    monkeypatch.setattr(sources, "BLOCK", block)
    assert equal(mine_candidates(corpus, train, "random", episode=1, count=9), whole)
    assert len(drawn) > 1
    assert sum(drawn) == len(train)


def test_shards_encoded_by_several_workers_give_the_same_pool(state, train, tmp_path):
    store = token_store(state.encoder, state.collection, state.cache, "passage")
    pools = []
    for name, shares in (("one", [(0, 1)]), ("three", [(2, 3), (0, 3), (1, 3)])):
        for share in shares:
            encode_store(
                state.encoder, store, tmp_path / name, side="passage", budget=512, shard=share, shard_rows=16
            )
        other = Snapshot(
            state.encoder,
            state.collection,
            name,
            tmp_path / f"{name}-runs",
            tmp_path / "cache",
            encoding=state.encoding,
            passages_at=tmp_path / name,
        )
        pools.append(pool_of(other, train))
    assert equal(*pools)


def test_a_draw_does_not_depend_on_the_other_queries(state, train):
    some = train.select(np.array([3, 30, 59]))
    assert equal(pool_of(state, some), pool_of(state, train).select(np.array([3, 30, 59])))


# ---------------------------------------------------------------- given negatives


def test_given_negatives_are_those_of_the_training_queries_without_their_positives(state, train):
    pool = pool_of(state, train, episode=2, previous=pool_of(state, train))
    fewer = train.select(np.array([0, 7, 20]))
    row = int(pool.select(np.array([7])).passage_rows[0])  # becomes a positive
    twice = np.concatenate([fewer.of(0), fewer.of(1), [row], fewer.of(2)]).astype(np.int32)
    offsets = np.cumsum([0, len(fewer.of(0)), len(fewer.of(1)) + 1, len(fewer.of(2))])
    positives = Positives(fewer.query_rows, offsets, twice)
    found = import_pool(pool, positives, 3, state.collection.text_keys)
    assert found.query_rows.tolist() == fewer.query_rows.tolist()
    assert found.positive_rows.tolist() == twice.tolist()
    keys = state.collection.text_keys
    for i, before in enumerate((0, 7, 20)):
        kept = [e for e in entries_of(pool, before) if i != 1 or keys[e.passage_row] != keys[row]]
        assert [e.passage_row for e in entries_of(found, i)] == [e.passage_row for e in kept]
        assert [e.momentum for e in entries_of(found, i)] == [e.momentum for e in kept]
    assert found.episode == 3
    assert found.episodes.max() == 3
    assert found.momentum.any()
    assert not found.momentum.all()


@pytest.mark.parametrize("episode", [1, 2, 5])
def test_given_negatives_of_any_episode_fit_any_other(state, train, episode, tmp_path):
    given = pool_of(state, train, episode=2, previous=pool_of(state, train))
    save_pool(
        import_pool(given, train, episode, state.collection.text_keys), tmp_path / "p", settings={}, inputs={}
    )
    loaded = load_pool(tmp_path / "p", n_passages=state.collection.n_passages)
    assert np.array_equal(loaded.momentum, given.momentum)


RANDOM = [Filters(relative_margin=0.02), Filters(absolute_margin=0.3), Filters(top=2), Filters(max_score=0.0)]


@pytest.mark.parametrize("filters", RANDOM)
def test_the_model_that_mines_compares_random_draws_too(state, train, filters):
    known = QueryScores.of(state, train, "random")
    plain = mine_candidates(state, train, "random", episode=1, count=6, seed=3)
    if filters.max_score is not None:
        filters = Filters(max_score=float(np.median(known(owners(plain.offsets), plain.passage_rows))))
    pool = mine_candidates(state, train, "random", episode=1, count=6, seed=3, filters=filters)
    lowest, left = known.positives_lowest(), []
    for i in range(len(train)):
        rows = plain.passage_rows[plain.offsets[i] : plain.offsets[i + 1]].tolist()
        scores = {row: float(known(np.array([i]), np.array([row], np.int32))[0]) for row in rows}
        most = min(
            lowest[i] - (filters.absolute_margin or 0),
            lowest[i] - (filters.relative_margin or 0) * abs(lowest[i]) if filters.relative_margin else np.inf,
        )
        most = np.inf if not filters.margin else most
        kept = [row for row in rows if scores[row] <= min(most, filters.max_score or np.inf)]
        best = sorted(kept, key=lambda row: -scores[row])[: filters.top]
        left.append([row for row in kept if row in best])
    found = [pool.passage_rows[a:b].tolist() for a, b in pairwise(pool.offsets.tolist())]
    assert found == left
    assert pool.filtered == {"random": len(plain.passage_rows) - len(pool.passage_rows)}
    assert 0 < len(pool.passage_rows) < len(plain.passage_rows)


def test_random_draws_without_a_model_have_nothing_to_compare(state, train):
    corpus = Corpus(state.collection, state.cache)
    mine_candidates(corpus, train, "random", episode=1, count=6, filters=Filters(rank_from=2))
    for filters in RANDOM:
        with pytest.raises(SettingsError, match="NO_MARGIN: random negatives have no scores"):
            mine_candidates(corpus, train, "random", episode=1, count=6, filters=filters)
