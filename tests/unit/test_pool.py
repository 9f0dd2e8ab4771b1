"""Negative pools: taking, aligning, joining, counting, and files that are whole or refused."""

import tracemalloc
from dataclasses import fields, replace

import numpy as np
import pytest

from hardneg.errors import ArtifactError
from hardneg.negatives.facts import entries_of, realized, stats
from hardneg.negatives.mix import union
from hardneg.negatives.pool import (
    DTYPES,
    ENTRY_ARRAYS,
    KIND,
    SCORES,
    SOURCES,
    NegativePool,
    concatenate,
    load_pool,
    matches,
    repeats,
    save_pool,
    shortfall,
)
from hardneg.negatives.scores import StoredScores
from hardneg.records import Positives, blocks, offsets_of
from hardneg.storage import artifacts
from worlds.tiny_records import as_lists, assert_same, pool_of

POOL = pool_of(
    [[5, 6, 5], [], [7], [8, 9]], [[1], [2, 3], [], [4]], query_rows=[40, 10, 30, 20], collection="c0ffee"
)


# ---------------------------------------------------------------- parts


def test_keep_and_select_move_whole_entries():
    kept = POOL.keep(POOL.ranks != 2)
    assert as_lists(kept) == [[5, 5], [], [7], [8]]
    assert kept.ranks.tolist() == [1, 3, 1, 1]
    part = POOL.select(np.array([3, 0]))
    assert part.query_rows.tolist() == [20, 40]
    assert as_lists(part) == [[8, 9], [5, 6, 5]]
    assert part.positives.of(0).tolist() == [4]
    assert part.scores.tolist() == [-1, -2, -1, -2, -3]


def test_align_takes_the_other_queries_and_their_positives():
    wanted = Positives(np.array([30, 99, 40], np.int32), np.array([0, 1, 1, 3]), np.array([1, 6, 7], np.int32))
    pool = POOL.align(wanted)
    assert pool.query_rows.tolist() == [30, 99, 40]
    assert as_lists(pool) == [[7], [], [5, 6, 5]]
    assert pool.positives.of(2).tolist() == [6, 7]
    same = POOL.align(replace(POOL.positives, passage_rows=np.zeros(4, np.int32)))
    assert as_lists(same) == as_lists(POOL)
    assert same.positive_rows.tolist() == [0, 0, 0, 0]


def test_a_selection_equals_an_alignment_with_the_same_positives():
    scored = replace(POOL, ranker="d", ranker_scores=POOL.scores, positive_scores=np.arange(4, dtype=np.float32))
    for pool in (POOL, scored):
        for rows in ([], [2], [3, 0, 1], [1, 1, 3], range(4)):
            at = np.array(rows, np.int64)
            assert_same(pool.select(at), pool.align(pool.positives.select(at)))


def test_a_selection_looks_at_its_queries_alone():
    queries = 200_000
    plain = pool_of([[1, 2]] * queries, [[3]] * queries)
    zeros = np.zeros(2 * queries, np.float32)
    pool = replace(plain, ranker="d", ranker_scores=zeros, positive_scores=zeros[:queries])
    stored, some = StoredScores(pool), np.arange(0, queries, 5000)
    tracemalloc.start()
    part = pool.select(some)
    found = stored(part.query_rows, np.full(len(some), 3, np.int32))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(part) == len(found) == 40
    assert peak < queries, "not a byte for each query of the pool"


def test_matches_equals_a_loop():
    rng = np.random.default_rng(0)
    table, wanted = (rng.integers(0, 12, n).astype(np.int32) for n in (30, 9))
    positions, offsets = matches(table, wanted)
    for i, value in enumerate(wanted):
        assert positions[offsets[i] : offsets[i + 1]].tolist() == [j for j, v in enumerate(table) if v == value]


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_blocks_cover_every_query_once(size):
    for lengths in ([], [0], [0, 0, 7, 0, 1, 1, 0], [3] * 10):
        ranges = list(blocks(offsets_of(np.array(lengths, np.int64)), size))
        assert [i for a, b in ranges for i in range(a, b)] == list(range(len(lengths)))
        assert len(ranges) >= 1


def test_concatenate_undoes_select():
    parts = [POOL.select(np.array(rows, np.int64)) for rows in ([0], [], [1, 2], [3])]
    assert_same(concatenate(parts), POOL)


# ---------------------------------------------------------------- counts


def test_repeats_equals_a_loop(monkeypatch):
    rng = np.random.default_rng(1)
    pool = pool_of([(8 * rng.integers(0, 6, rng.integers(0, 9))).tolist() for _ in range(50)])
    expected = [row in rows[:j] for rows in as_lists(pool) for j, row in enumerate(rows)]
    assert any(expected)
    assert repeats(pool).tolist() == expected
    copies = np.full(48, -1, np.int32)
    copies[[8, 24, 32]] = 8
    of = [[8 if row in (24, 32) else row for row in rows] for rows in as_lists(pool)]
    same_text = [row in rows[:j] for rows in of for j, row in enumerate(rows)]
    assert sum(same_text) > sum(expected)
    assert repeats(pool, copies).tolist() == same_text
    monkeypatch.setattr(blocks, "__defaults__", (10,))
    assert repeats(pool).tolist() == expected
    assert repeats(pool, copies).tolist() == same_text


def test_stats_by_hand():
    pool = replace(POOL, sources=np.array([3, 3, 4, 4, 3, 4], np.uint8), episode=2)
    pool = replace(pool, episodes=np.array([1, 2, 2, 2, 2, 1], np.int32))
    assert stats(pool) == {
        "queries": 4,
        "entries": 6,
        "per_source": {"query": 3, "lookahead": 3},
        "momentum_share": 2 / 6,
        "duplicate_share": 1 / 6,
        "min_per_query": 0,
        "median_per_query": 1.5,
        "max_per_query": 3,
        "queries_without_entries": 1,
    }
    assert realized(pool) == {"query": 2 / 4, "lookahead": 2 / 4, "momentum": 2 / 4}
    assert shortfall(pool, 2) == {"queries": 2, "entries": 3}
    assert shortfall(pool, np.array([3, 0, 1, 2])) == {"queries": 0, "entries": 0}


def test_stats_of_nothing():
    nothing = stats(POOL.select(np.zeros(0, np.int64)))
    assert (nothing["queries"], nothing["entries"], nothing["momentum_share"]) == (0, 0, 0.0)


def test_entries_read_what_the_source_knows():
    pool = replace(
        POOL,
        sources=np.array([4, 0, 3, 3, 3, 3], np.uint8),
        ranks=np.array([7, 0, 1, 1, 1, 1], np.int32),
        scores=np.array([0.0, np.nan, 1, 1, 1, 1], np.float32),
        anchors=np.array([1, -1, -1, -1, -1, -1], np.int32),
        episodes=np.array([1, 2, 2, 2, 2, 2], np.int32),
        episode=2,
    )
    first, second, _ = entries_of(pool, 0)
    assert first._asdict() == {
        "passage_row": 5,
        "source": "lookahead",
        "rank": 7,
        "score": 0.0,
        "episode": 1,
        "anchor": 1,
        "momentum": True,
        "ranker_score": None,
    }
    assert (second.source, second.rank, second.score, second.anchor) == ("random", None, None, None)
    assert entries_of(pool, 1) == []


# ---------------------------------------------------------------- files


def test_counts_of_what_was_left_out_come_back(tmp_path):
    pool = replace(POOL, filtered={"query": 2}, copies={"query": 3, "bm25": 1})
    save_pool(pool, tmp_path / "p", settings={}, inputs={})
    back = load_pool(tmp_path / "p")
    assert (back.filtered, back.copies) == (pool.filtered, pool.copies)
    assert stats(back)["copies"] == {"query": 3, "bm25": 1}
    assert concatenate([pool.select(np.array([0])), pool.select(np.array([1]))]).copies == {"query": 6, "bm25": 2}
    assert union([pool, pool]).copies == {"query": 6, "bm25": 2}
    assert "copies" not in stats(POOL)


def test_saved_pool_comes_back(tmp_path):
    save_pool(POOL, tmp_path / "pool", settings={"depth": 200}, inputs={"model": "abc"})
    assert_same(load_pool(tmp_path / "pool", n_passages=95, collection="c0ffee"), POOL)
    manifest = artifacts.verify(tmp_path / "pool")
    assert (manifest.settings, manifest.inputs) == ({"depth": 200}, {"model": "abc"})
    assert set(manifest.files) == {f"{name}.npy" for name in DTYPES}


def test_empty_pool_comes_back(tmp_path):
    empty = POOL.select(np.zeros(0, np.int64))
    save_pool(empty, tmp_path / "pool", settings={}, inputs={})
    assert_same(load_pool(tmp_path / "pool"), empty)


def test_a_pool_is_never_replaced(tmp_path):
    save_pool(POOL, tmp_path / "pool", settings={}, inputs={})
    with pytest.raises(ArtifactError, match="EXISTS"):
        save_pool(POOL, tmp_path / "pool", settings={}, inputs={})


def test_a_file_of_negatives_is_no_pool(tmp_path):
    (tmp_path / "lists.jsonl").write_text("{}\n")
    with pytest.raises(ArtifactError, match=r"this is a file, but a pool is a folder; make a pool of it"):
        load_pool(tmp_path / "lists.jsonl")


def test_another_collection_is_refused(tmp_path):
    save_pool(POOL, tmp_path / "pool", settings={}, inputs={})
    with pytest.raises(ArtifactError, match="OTHER_COLLECTION"):
        load_pool(tmp_path / "pool", collection="beef")


def test_rows_beyond_the_corpus_are_refused(tmp_path):
    save_pool(POOL, tmp_path / "pool", settings={}, inputs={})
    with pytest.raises(ArtifactError, match=r"passage_rows\.npy: BAD_POOL"):
        load_pool(tmp_path / "pool", n_passages=9)


BROKEN = {
    "offsets that fall": {"offsets": np.array([0, 3, 2, 4, 6])},
    "offsets that start late": {"offsets": np.array([1, 3, 3, 4, 6])},
    "offsets that end early": {"offsets": np.array([0, 3, 3, 4, 5])},
    "offsets of other queries": {"offsets": np.array([0, 3, 6])},
    "positives that end early": {"positive_offsets": np.array([0, 1, 3, 3, 3])},
    "short ranks": {"ranks": np.ones(5, np.int32)},
    "wide rows": {"passage_rows": POOL.passage_rows.astype(np.int64)},
    "square scores": {"scores": np.zeros((6, 1), np.float32)},
    "negative rows": {"passage_rows": -POOL.passage_rows},
    "negative positives": {"positive_rows": np.full(4, -1, np.int32)},
    "unknown source": {"sources": np.full(6, 7, np.uint8)},
    "entries from the future": {"episodes": np.full(6, 2, np.int32)},
    "bad anchor": {"anchors": np.full(6, -2, np.int32)},
    "one query twice": {"query_rows": np.array([40, 10, 40, 20], np.int32)},
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_invariants_name_the_file(tmp_path, name):
    save_pool(replace(POOL, **BROKEN[name]), tmp_path / "pool", settings={}, inputs={})
    with pytest.raises(ArtifactError, match="BAD_POOL") as fault:
        load_pool(tmp_path / "pool")
    assert fault.value.path == tmp_path / "pool" / f"{next(iter(BROKEN[name]))}.npy"


@pytest.mark.parametrize("name", ["ranker_scores", "positive_scores"])
@pytest.mark.parametrize("score", [np.inf, -np.inf, np.nan])
def test_infinite_scores_of_a_ranker_name_the_file(tmp_path, name, score):
    """An earlier version made them of a teacher's scores beyond float32; NaN stands for no score."""
    arrays = {"ranker_scores": np.zeros(6, np.float32), "positive_scores": np.zeros(4, np.float32)}
    arrays[name][2] = score
    save_pool(replace(POOL, ranker="d", **arrays), tmp_path / "pool", settings={}, inputs={})
    if np.isnan(score):
        assert np.isnan(getattr(load_pool(tmp_path / "pool"), name)[2])
        return
    with pytest.raises(ArtifactError, match="BAD_POOL: infinite scores; mine the negatives again") as fault:
        load_pool(tmp_path / "pool")
    assert fault.value.path == tmp_path / "pool" / f"{name}.npy"


def test_a_pool_from_before_a_source_was_added_is_read(tmp_path, monkeypatch):
    save_pool(POOL, tmp_path / "pool", settings={}, inputs={})
    monkeypatch.setattr("hardneg.negatives.pool.SOURCES", (*SOURCES, "topic"))
    assert load_pool(tmp_path / "pool").sources.tolist() == POOL.sources.tolist()
    monkeypatch.setattr("hardneg.negatives.pool.SOURCES", ("topic", *SOURCES))
    with pytest.raises(ArtifactError, match=r"BAD_POOL: its sources are .*must come first, in their order"):
        load_pool(tmp_path / "pool")


@pytest.mark.parametrize("named", [5, True, [], None, {"random": 0}])
def test_sources_that_are_no_list_are_refused(tmp_path, named):
    with artifacts.publish(tmp_path / "pool", KIND) as draft:
        for name in DTYPES:
            draft.array(f"{name}.npy", getattr(POOL, name))
        draft.facts = {"episode": 1, "collection": "", "sources": named}
    with pytest.raises(ArtifactError, match="BAD_POOL: its sources are"):
        load_pool(tmp_path / "pool")


def test_a_foreign_source_table_is_refused(tmp_path):
    with artifacts.publish(tmp_path / "pool", KIND) as draft:
        for name in DTYPES:
            draft.array(f"{name}.npy", getattr(POOL, name))
        draft.facts = {"episode": 1, "collection": "", "sources": ["bm25", "random"]}
    with pytest.raises(ArtifactError, match="BAD_POOL"):
        load_pool(tmp_path / "pool")


def test_every_array_field_is_stored():
    facts = ("episode", "collection", "filtered", "copies", "ranker", "ranker_scale", "given")
    arrays = [field.name for field in fields(NegativePool) if field.name not in facts]
    assert [*DTYPES, *SCORES] == arrays
    assert set(ENTRY_ARRAYS) < set(arrays)
