"""Scores of a pool by a frozen model: each pair is scored once, kept with the pool, and filtered by its score."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

import hardneg as hn
from hardneg.api import score as scoring
from hardneg.api.clean import clean_cache
from hardneg.data.training_data import choose_splits
from hardneg.errors import ArtifactError, HardnegError, NumericError
from hardneg.models.rankers import new_ranker, save_ranker
from hardneg.models.source import ModelSource
from hardneg.negatives import scores
from hardneg.negatives.candidates import ALL, Filters
from hardneg.negatives.facts import stats
from hardneg.negatives.imported_pool import import_pool
from hardneg.negatives.mix import union
from hardneg.negatives.pool import SOURCES, concatenate, load_pool, save_pool
from hardneg.negatives.scores import Guide, lowest_positive, within
from hardneg.records import owners, spans
from hardneg.storage.artifacts import read_manifest
from worlds.tiny_records import as_lists, assert_same, pool_of, positives_of
from worlds.tiny_world import one_thread  # noqa: F401


def hashed(query_rows, passage_rows):
    """A score for each pair that no arithmetic of rows repeats."""
    return np.sin(query_rows * 37.0 + passage_rows * 11.0).astype(np.float32)


class Counting:
    """A scorer that notes the pairs it is asked for."""

    def __init__(self, score=hashed):
        self.score_of, self.asked = score, []

    def __call__(self, query_rows, passage_rows):
        self.asked += zip(query_rows.tolist(), passage_rows.tolist(), strict=True)
        return self.score_of(query_rows, passage_rows)


def some_pool(queries=40, seed=3):
    """Queries with 0 to 9 entries of two sources, some of them twice, and 1 or 2 positives."""
    draw = np.random.default_rng(seed)
    lists = [draw.integers(0, 60, draw.integers(0, 10)).tolist() for _ in range(queries)]
    positives = [draw.choice(np.arange(60, 90), 1 + i % 2, replace=False).tolist() for i in range(queries)]
    names = np.array([SOURCES.index("query"), SOURCES.index("bm25")], np.uint8)
    sources = names[draw.integers(0, 2, sum(map(len, lists)))]
    rows = draw.permutation(200)[:queries]
    return pool_of(lists, positives, query_rows=rows, source=sources)


def slow_filter(pool, filters):
    """(position of the query, position of the entry) of what stays, and what is dropped, one entry at a time."""
    stays, dropped = [], {}
    for i, query in enumerate(pool.query_rows.tolist()):
        p = min(hashed(np.array([query]), np.array([row]))[0] for row in pool.positives.of(i))
        span, fine = range(pool.offsets[i], pool.offsets[i + 1]), []
        for j in span:
            s = hashed(np.array([query]), pool.passage_rows[j : j + 1])[0]
            ok = filters.max_score is None or s <= filters.max_score
            ok = ok and (filters.absolute_margin is None or s <= p - filters.absolute_margin)
            ok = ok and (filters.relative_margin is None or s <= p - filters.relative_margin * abs(p))
            fine += [(-s, j)] if ok else []
        of_source = [[one for one in sorted(fine) if pool.sources[one[1]] == code] for code in range(len(SOURCES))]
        kept = {j for ranked in of_source for _, j in ranked[: filters.top]}
        for j in span:
            if j not in kept:
                name = SOURCES[pool.sources[j]]
                dropped[name] = dropped.get(name, 0) + 1
        stays += [(i, j) for j in span if j in kept]
    return stays, dropped


def test_every_pair_is_scored_once_whatever_the_blocks(monkeypatch):
    pool, ask = some_pool(), Counting()
    whole = Guide(ask, "d").scored(pool)
    owner = pool.query_rows[owners(pool.offsets)]
    assert np.array_equal(whole.ranker_scores, hashed(owner, pool.passage_rows))
    of_positives = pool.query_rows[owners(pool.positive_offsets)]
    assert np.array_equal(whole.positive_scores, hashed(of_positives, pool.positive_rows))
    assert whole.ranker == "d"
    assert len(ask.asked) == len(set(ask.asked)) < len(pool.passage_rows) + len(pool.positive_rows)
    assert_same(replace(whole, ranker="", ranker_scale=None, ranker_scores=None, positive_scores=None), pool)
    monkeypatch.setattr(scores, "PAIRS", 7)
    again, seen = Counting(), []
    assert_same(Guide(again, "d").scored(pool, progress=lambda *at: seen.append(at)), whole)
    assert again.asked == ask.asked
    assert len(seen) > 5
    assert seen[-1] == (len(pool.passage_rows) + len(pool.positive_rows),) * 2


def test_scores_stay_with_their_entries():
    pool = Guide(hashed, "d").scored(some_pool())
    shuffled = pool.select(np.random.default_rng(1).permutation(len(pool))[:20])
    halves = concatenate([pool.select(np.arange(0, 9)), pool.select(np.arange(9, 40))])
    assert_same(halves, pool)
    mixed = union([pool.keep(pool.sources == code) for code in np.unique(pool.sources)])
    imported = import_pool(pool, pool.positives, 5, np.arange(100, dtype=np.uint64))
    for one in (shuffled, mixed, imported, pool.keep(pool.ranks > 2)):
        assert np.array_equal(one.ranker_scores, hashed(one.query_rows[owners(one.offsets)], one.passage_rows))
        of_positives = one.query_rows[owners(one.positive_offsets)]
        assert np.array_equal(one.positive_scores, hashed(of_positives, one.positive_rows))
    unscored = union([pool, some_pool()])
    assert (unscored.ranker, unscored.ranker_scores, unscored.positive_scores) == ("", None, None)
    other = union([pool, replace(pool, ranker="e")])
    assert other.ranker == ""
    assert union([some_pool().keep(np.zeros(len(pool.passage_rows), bool)), pool]).ranker == "d"


def test_a_positive_that_was_not_scored_has_none():
    pool = Guide(hashed, "d").scored(pool_of([[1], [2]], [[5], [6]]))
    moved = pool.align(positives_of([[5, 7], [6]]))
    expected = hashed(np.array([0, 0, 1]), np.array([5, 7, 6]))
    assert np.array_equal(np.isnan(moved.positive_scores), [False, True, False])
    assert np.array_equal(moved.positive_scores[[0, 2]], expected[[0, 2]])
    with pytest.raises(NumericError, match="1 query has a positive without a score"):
        lowest_positive(moved)
    assert_same(
        Guide(hashed, "d").filtered(moved, ALL), replace(moved, positive_scores=expected, filtered={"query": 0})
    )


def test_a_scored_pool_is_read_as_it_was_written(tmp_path):
    pool = within(Guide(hashed, "d").scored(some_pool()), Filters(max_score=0.5))
    save_pool(pool, tmp_path / "pool", settings={}, inputs={})
    assert_same(load_pool(tmp_path / "pool"), pool)
    assert load_pool(tmp_path / "pool").ranker_scale == 1.0
    assert read_manifest(tmp_path / "pool").facts["ranker"] == "d"
    assert stats(pool)["ranker"] == "d"
    save_pool(some_pool(), tmp_path / "plain", settings={}, inputs={})
    assert not list((tmp_path / "plain").glob("*_scores.npy"))
    assert "ranker" not in read_manifest(tmp_path / "plain").facts


@pytest.mark.parametrize("scale", [0, -1.0, "20"])
def test_a_scale_that_is_no_positive_number_is_refused(tmp_path, scale):
    pool = replace(Guide(hashed, "d").scored(some_pool()), ranker_scale=scale)
    save_pool(pool, tmp_path / "pool", settings={}, inputs={})
    with pytest.raises(ArtifactError, match="BAD_POOL: its ranker_scale is"):
        load_pool(tmp_path / "pool")


BOUNDS = (
    {"max_score": 0.3},
    {"absolute_margin": 0.2},
    {"relative_margin": 0.1},
    {"top": 2},
    {"absolute_margin": 0.1, "max_score": 0.4, "top": 1},
)


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_filters_equal_a_loop_over_entries(bounds):
    pool = some_pool()
    filters = Filters(**bounds)
    found = Guide(hashed, "d").filtered(pool, filters)
    stays, dropped = slow_filter(pool, filters)
    expected = [[] for _ in range(len(pool))]
    for i, j in stays:
        expected[i].append(int(pool.passage_rows[j]))
    assert as_lists(found) == expected
    assert found.filtered == {"query": 0, "bm25": 0} | dropped
    assert 0 < len(found.passage_rows) < len(pool.passage_rows)


def test_by_hand():
    # p = 0.8; 0.76 is its share of 0.95, and 0.75 it less 0.05
    given = {5: 0.8, 6: 0.9, 1: 0.79, 2: 0.76, 3: 0.75, 4: 0.2}
    guide = Guide(lambda queries, rows: np.array([given[row] for row in rows.tolist()], np.float32), "d")
    pool = pool_of([[1, 2, 3, 4]], [[5, 6]])
    kept = {
        (("relative_margin", 0.05),): [2, 3, 4],
        (("absolute_margin", 0.05),): [3, 4],
        (("max_score", 0.5),): [4],
        (("top", 2),): [1, 2],
        (("relative_margin", 0.05), ("top", 2)): [2, 3],
    }
    for bounds, left in kept.items():
        assert as_lists(guide.filtered(pool, Filters(**dict(bounds)))) == [left]


def test_a_score_that_is_no_number_names_its_pair():
    nothing = Guide(
        lambda queries, rows: np.full(len(rows), np.nan, np.float32), "d", "query {} and passage {}".format
    )
    with pytest.raises(NumericError, match="BAD_SCORE: the score of query 0 and passage 1 is nan"):
        nothing.scored(pool_of([[1]], [[5]]))


# ---------------------------------------------------------------- by models


@pytest.fixture(scope="module")
def mined(world):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARDNEG_CACHE", str(world.root / "cache"))
        options = {"sources": ["query", "bm25"], "count": 6, "depth": 20, "device": "cpu"}
        hn.mine(world.collection, world.model, world.root / "pool", **options)
    return world.root / "pool"


@pytest.fixture(scope="module")
def ranker(world):
    save_ranker(new_ranker(ModelSource.at(world.model), seed=3), world.root / "ranker")
    return world.root / "ranker"


def options_of(world):
    return {"data": world.collection, "device": "cpu", "cache": world.root / "cache"}


def test_a_bi_encoder_scores_as_its_search_does(world, mined, tmp_path):
    pool = hn.score(mined, tmp_path / "scored", ranker=world.model, **options_of(world))
    with hn.open_retriever(world.collection, world.model, device="cpu", cache=world.root / "cache") as retriever:
        run = retriever.search_queries(pool.query_rows, 120)
    found = {
        (q, p): s
        for q, p, s in zip(run.query_rows[owners(run.offsets)], run.passage_rows, run.scores, strict=True)
    }
    owner = pool.query_rows[owners(pool.offsets)]
    assert [found[pair] for pair in zip(owner, pool.passage_rows, strict=True)] == pool.ranker_scores.tolist()
    assert_same(load_pool(tmp_path / "scored"), pool)
    before = load_pool(mined)
    for name in ("sources", "ranks", "scores", "episodes", "anchors", "passage_rows", "positive_rows"):
        np.testing.assert_array_equal(getattr(pool, name), getattr(before, name))
    manifest = read_manifest(tmp_path / "scored")
    assert manifest.inputs["pool"] == read_manifest(mined).digest
    assert manifest.inputs["ranker"] == pool.ranker == retriever.digest
    assert not list((world.root / "cache" / scoring.PARTS).iterdir())


def test_a_cross_encoder_scores_each_pair(world, mined, ranker, tmp_path):
    pool = hn.score(mined, tmp_path / "scored", ranker=ranker, **options_of(world))
    scorer = scoring.open_scorer(ModelSource.at(ranker, device="cpu"), world.collection, world.root / "cache")
    expected = scorer.score(pool.query_rows[owners(pool.offsets)], pool.passage_rows)
    np.testing.assert_allclose(pool.ranker_scores, expected, atol=1e-5)
    assert pool.ranker == scorer.digest
    [found] = hn.inspect(tmp_path / "scored", world.collection)
    assert all(isinstance(one["ranker_score"], float) for one in (*found["positives"], *found["negatives"]))
    assert "ranker_score" not in hn.inspect(mined, world.collection)[0]["negatives"][0]


class Stopped:
    """A scorer that stops the program after so many calls; ``asked`` gets the number of pairs of each."""

    def __init__(self, scorer, calls, asked):
        self.scorer, self.calls, self.asked = scorer, calls, asked
        self.digest, self.scale = scorer.digest, scorer.scale

    def score(self, queries, passages):
        self.asked.append(len(queries))
        if len(self.asked) > self.calls:
            raise KeyboardInterrupt
        return self.scorer.score(queries, passages)


def stopped(patch, calls):
    """Let scoring stop after so many calls; returns the list that gets the number of pairs of each."""
    real, asked = scoring.open_scorer, []
    patch.setattr(scoring, "open_scorer", lambda *a, **o: Stopped(real(*a, **o), calls, asked))
    return asked


def test_scoring_goes_on_where_it_stopped(world, mined, tmp_path, monkeypatch):
    monkeypatch.setattr(scores, "PAIRS", 100)
    options = options_of(world) | {"ranker": world.model}
    whole = hn.score(mined, tmp_path / "whole", **options)
    with monkeypatch.context() as patched:
        asked = stopped(patched, 3)
        with pytest.raises(KeyboardInterrupt):
            hn.score(mined, tmp_path / "stopped", **options)
    assert not (tmp_path / "stopped").exists()
    first = len(asked) - 1
    asked = stopped(monkeypatch, 10**6)
    assert_same(hn.score(mined, tmp_path / "stopped", **options), whole)
    total = -(-(len(whole.passage_rows) + len(whole.positive_rows)) // 100)
    assert first == 3
    assert len(asked) <= total - first + 1
    assert read_manifest(tmp_path / "stopped").digest == read_manifest(tmp_path / "whole").digest


def test_scoring_with_other_embeddings_does_not_go_on_with_blocks_of_these(world, mined, tmp_path, monkeypatch):
    monkeypatch.setattr(scores, "PAIRS", 100)
    monkeypatch.setenv("HARDNEG_PRECISION", "float32")  # what bfloat16 gives, float16 holds
    options = options_of(world) | {"ranker": world.model}
    whole = hn.score(mined, tmp_path / "whole", **options)
    assert "embeddings" not in read_manifest(tmp_path / "whole").inputs
    exact = tmp_path / "float32"
    hn.encode(world.collection, world.model, exact, dtype="float32", device="cpu")
    with monkeypatch.context() as patched:
        stopped(patched, 3)
        with pytest.raises(KeyboardInterrupt):
            hn.score(mined, tmp_path / "scored", embeddings=exact, **options)
    assert_same(hn.score(mined, tmp_path / "scored", **options), whole)
    scored = hn.score(mined, tmp_path / "exact", embeddings=exact, **options)
    assert read_manifest(tmp_path / "exact").inputs["embeddings"] == read_manifest(exact).digest
    assert (scored.ranker_scores[:300] != whole.ranker_scores[:300]).any()  # or this could not fail


def test_blocks_are_not_deleted_while_a_pool_is_scored(world, mined, tmp_path, monkeypatch):
    monkeypatch.setattr(scores, "PAIRS", 100)
    real, there = scoring.open_scorer, []
    blocks = tmp_path / "cache" / scoring.PARTS

    def cleaning(*given, **options):
        scorer = real(*given, **options)
        score = scorer.score

        def score_cleaned(queries, passages):
            clean_cache(cache=tmp_path / "cache", delete=True)
            there.append(len([*blocks.glob("*/*/manifest.json")]))
            return score(queries, passages)

        scorer.score = score_cleaned
        return scorer

    monkeypatch.setattr(scoring, "open_scorer", cleaning)
    options = options_of(world) | {"ranker": world.model, "cache": tmp_path / "cache"}
    hn.score(mined, tmp_path / "scored", **options)
    assert there == [*range(len(there))]
    assert len(there) > 3


@pytest.mark.parametrize("source", ["query", "lookahead", "bm25", "random", "file"])
def test_what_is_mined_keeps_the_margin_of_another_model(world, mined, ranker, tmp_path, source):
    shutil.copytree(mined, tmp_path / "file")
    file = {"file": tmp_path / "file"} if source == "file" else {}
    common = options_of(world) | {"sources": [source], "count": 10, "depth": 20} | file
    model, data = (world.model if source in ("query", "lookahead") else None), common.pop("data")
    plain = hn.mine(data, model, tmp_path / "plain", **common)
    filters = Filters(absolute_margin=0.001)
    pool = hn.mine(data, model, tmp_path / "pool", **common, filters=filters, filter_by=ranker)
    digest = scoring.open_scorer(ModelSource.at(ranker, device="cpu"), data, world.root / "cache").digest
    assert pool.ranker == digest == read_manifest(tmp_path / "pool").inputs["filter_by"]
    lowest = lowest_positive(pool)[owners(pool.offsets)]
    assert (pool.ranker_scores <= lowest - 0.001 + 1e-6).all()
    assert pool.filtered[source] > 0
    assert set(pool.filtered) == {source}
    if source == "random":  # all are looked at, and what is dropped is not replaced
        assert len(plain.passage_rows) - pool.filtered[source] == len(pool.passage_rows)
    assert len(pool.passage_rows) <= len(plain.passage_rows)


def test_momentum_keeps_the_margin_too(world, mined, ranker, tmp_path):
    common = options_of(world) | {"sources": ["query"], "count": 6, "depth": 20, "previous": mined}
    data, filters = common.pop("data"), Filters(absolute_margin=0.001)
    pool = hn.mine(data, world.model, tmp_path / "pool", **common, filters=filters, filter_by=ranker)
    assert pool.momentum.any()
    assert (pool.ranker_scores <= lowest_positive(pool)[owners(pool.offsets)] - 0.001 + 1e-6).all()
    later = hn.mine(
        data,
        world.model,
        tmp_path / "later",
        **common | {"previous": tmp_path / "pool"},
        filters=filters,
        filter_by=ranker,
    )
    assert later.ranker == pool.ranker


def test_momentum_obeys_a_guides_highest_score_and_no_top(world, mined, ranker, tmp_path):
    """Its own stored scores, by the model that mined it, are not compared."""
    common = options_of(world) | {"sources": ["query"], "count": 6, "depth": 20, "previous": mined}
    old, most = load_pool(mined), 5.0
    assert old.scores[old.sources == SOURCES.index("query")].min() > most
    filters = Filters(top=2, max_score=most)
    data = common.pop("data")
    pool = hn.mine(data, world.model, tmp_path / "pool", **common, filters=filters, filter_by=ranker)
    assert pool.ranker_scores.max() <= most
    owner = owners(pool.offsets)
    of_query = (pool.sources == SOURCES.index("query")) & pool.momentum
    assert np.bincount(owner[~pool.momentum], minlength=len(pool)).tolist() == [2] * len(pool)
    assert np.bincount(owner[pool.momentum], minlength=len(pool)).tolist() == [6] * len(pool)
    assert np.bincount(owner[of_query]).max() > 2


def test_top_keeps_the_highest_of_the_model_that_mines(world, tmp_path):
    common = options_of(world) | {"sources": ["query"], "count": 10, "depth": 20}
    data = common.pop("data")
    pool = hn.mine(data, world.model, tmp_path / "pool", **common, filters=Filters(top=3))
    whole = hn.mine(data, world.model, tmp_path / "whole", **common | {"count": 20, "beta": 0.0})
    assert spans(pool.offsets).max() == 3
    train = choose_splits(data, dev="none", test="none").train
    assert np.array_equal(pool.query_rows, train.query_rows)
    for i, ranks in enumerate(as_lists(pool, "ranks")):
        assert ranks == sorted(as_lists(whole, "ranks")[i])[:3]
    near = hn.mine(
        data, world.model, tmp_path / "near", **common | {"sources": ["lookahead"]}, filters=Filters(top=3)
    )
    assert spans(near.offsets).max() == 3


# ---------------------------------------------------------------- on the command line


def test_the_command_scores_and_filters(world, mined, tmp_path, hardneg):
    options = ["--ranker", world.model, "--data", world.collection.path, "--device", "cpu"]
    bound = ["--relative-margin", "0.05", "--json"]
    status, out, _ = hardneg("score", mined, *options, "--out", tmp_path / "scored", *bound)
    found = json.loads(out)
    assert status == 0
    plain, pool = load_pool(mined), load_pool(tmp_path / "scored")
    assert len(plain.passage_rows) - sum(pool.filtered.values()) == len(pool.passage_rows) > 0
    assert found["filtered"] == pool.filtered
    assert found["ranker"] == pool.ranker
    assert " ranker " in hardneg("inspect", tmp_path / "scored", "--data", world.collection.path)[1]


@pytest.mark.parametrize(
    ("sources", "bounds"),
    [
        (["query", "bm25"], {"relative_margin": 0.05}),
        (["lookahead", "file"], {"absolute_margin": 0.1}),
        (["bm25", "random"], {"max_score": 1.0}),
        (["random"], {"top": 2}),
    ],
)
def test_bounds_that_a_source_has_no_scores_for_are_refused_before_anything_is_opened(tmp_path, sources, bounds):
    file = {"file": tmp_path / "no-file"} if "file" in sources else {}
    with pytest.raises(HardnegError, match="NO_MARGIN"):
        hn.mine(
            tmp_path / "no-data",
            "no-model",
            tmp_path / "pool",
            sources=sources,
            filters=hn.Filters(**bounds),
            **file,
        )


def test_what_makes_no_sense_is_said_in_one_line(world, mined, tmp_path, hardneg):
    options = ["--data", world.collection.path, "--device", "cpu"]
    for command, code in (
        (["score", mined, "--ranker", world.model, "--out", mined], "EXISTS"),
        (["mine", "--sources", "bm25", "--filter-by", world.model, "--out", tmp_path / "x"], "NO_BOUND"),
        (["mine", "--sources", "bm25", "--relative-margin", "0.1", "--out", tmp_path / "x"], "NO_MARGIN"),
        (["score", mined, "--ranker", world.model, "--out", tmp_path / "x", "--top", "0"], "USAGE"),
    ):
        status, _, err = hardneg(*command, *options)
        assert status == 2
        assert code in err
        assert len(err.splitlines()) == 1
        assert not (tmp_path / "x").exists()
