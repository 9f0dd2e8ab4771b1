"""The groups of queries in which retrieval got better or worse: by hand, and against loops."""

from types import SimpleNamespace

import numpy as np
import pytest

from hardneg.data.collection import Collection
from hardneg.diagnostics.breakdown import (
    OTHERS,
    by_label,
    by_source,
    by_value,
    lexical_overlap,
    most_moved,
    parts_of,
    positive_counts,
    quarters,
    query_lengths,
    source_counts,
)
from hardneg.negatives.pool import SOURCES
from hardneg.records import offsets_of
from hardneg.report.facts_queries import breakdown_table
from worlds.tiny_records import positives_of


def test_properties_by_hand():
    assert query_lengths(["What's a Rabbit?", "", "one"]).tolist() == [4, 0, 1]
    found = lexical_overlap(["a Rabbit a", "dog", "?", "cat"], [["rabbit", "A RABBIT!"], ["cat"], ["x"], []])
    np.testing.assert_array_equal(found, [1, 0, np.nan, np.nan])
    assert query_lengths(["दिन और रात", "man\u0303ana", "ไม่ดี"]).tolist() == [3, 1, 1]  # marks divide no word
    assert lexical_overlap(["दिन"], [["दान"]]).tolist() == [0]
    assert positive_counts(positives_of([[1], [2, 3], []])).tolist() == [1, 2, 0]


def test_parts_are_what_ids_begin_with():
    assert parts_of(["numpy.sum", "numpy.linalg.norm", "torch.nn"]) == ["numpy", "numpy", "torch"]
    assert parts_of(["nq/a.b", "nq/c", "trec/1"]) == ["nq", "nq", "trec"]
    many = ["a-1"] * 30 + [f"b{i}-1" for i in range(20)]
    assert parts_of(many)[:30] == ["a"] * 30
    assert parts_of(many).count(OTHERS) == 9  # of 21 parts, 12 stand apart
    for none in ([], ["1", "2"], ["p-1", "p-2"], ["p-1", "2"], [f"{i}-0" for i in range(40)]):
        assert parts_of(none) is None


def test_sources_are_counted_over_all_pools():
    pools = [
        pool_of({3: ["query", "query", "bm25"], 1: ["lookahead"]}),
        pool_of({1: ["lookahead", "query"], 9: ["random"]}),  # 9 is not asked for
    ]
    counts = source_counts(pools, np.array([1, 3, 4], np.int32))
    names = [{SOURCES[at]: int(row[at]) for at in np.flatnonzero(row)} for row in counts]
    assert names == [{"query": 1, "lookahead": 2}, {"bm25": 1, "query": 2}, {}]
    groups = by_source(np.array([0.0, 0.5, 1.0]), np.array([1.0, 0.5, 0.0]), counts)
    assert [(by, group.name, group.difference) for by, group in groups] == [
        ("most of its negatives", "lookahead", 1.0),
        ("most of its negatives", "query", 0.0),
        ("most of its negatives", "none", -1.0),
    ]


def test_where_one_source_has_most_its_share_tells():
    counts = source_counts(
        [pool_of({0: ["query"] * 4, 1: ["query", "query", "query", "bm25"]})], np.arange(2, dtype=np.int32)
    )
    groups = by_source(np.array([0.0, 0.0]), np.array([0.5, 1.0]), counts)
    assert [(by, group.name, group.queries, group.difference) for by, group in groups] == [
        ("most of its negatives", "query", 2, 0.75),
        ("share of negatives from bm25", "below 0.25", 1, 0.5),
        ("share of negatives from bm25", "0.25 or more", 1, 1.0),
        ("share of negatives from query", "below 1", 1, 1.0),
        ("share of negatives from query", "1 or more", 1, 0.5),
    ]


def pool_of(sources):
    """As much of a pool as counting its sources reads: the sources of each query's negatives."""
    names = [name for row in sources.values() for name in row]
    return SimpleNamespace(
        query_rows=np.array([*sources], np.int32),
        offsets=offsets_of(np.array([len(row) for row in sources.values()])),
        sources=np.array([SOURCES.index(name) for name in names], np.uint8),
    )


def test_groups_by_hand():
    before, after = np.array([0.5, 0.0, 1.0, 0.2]), np.array([1.0, 0.5, 0.5, 0.2])
    found = by_value(before, after, np.array([1, 2, 5, np.nan]), np.array([2, 4, 5]))
    assert [(group.name, group.queries, group.better, group.worse) for group in found] == [
        ("below 2", 1, 1, 0),
        ("2 to below 4", 1, 1, 0),
        ("5 or more", 1, 0, 1),
        ("unknown", 1, 0, 0),
    ]
    assert found[0].as_json()["difference"] == 0.5
    assert found[0].error is None
    both = by_label(before, after, ["web", "book", "web", "book"])
    assert [(group.name, group.difference) for group in both] == [("web", 0.0), ("book", 0.25)]
    assert both[0].error == pytest.approx(0.5)  # of 0.5 and -0.5


def test_quarters():
    assert quarters(np.arange(8)).tolist() == [2, 4, 6]
    assert quarters(np.array([1, 1, 1, 1, 2])).tolist() == []
    assert quarters(np.array([1, 1, 1, 2, 3])).tolist() == [2]
    assert quarters(np.array([np.nan])).tolist() == []
    assert [group.name for group in by_value(np.zeros(2), np.ones(2), np.ones(2))] == ["all"]


def test_groups_equal_a_loop():
    rng = np.random.default_rng(7)
    before, after, values = rng.random(90), rng.random(90), rng.integers(0, 12, 90).astype(float)
    values[:5] = np.nan
    edges = quarters(values)
    found = by_value(before, after, values)
    assert len(found) == len(edges) + 2
    assert sum(group.queries for group in found) == 90
    bounds = [-np.inf, *edges, np.inf]
    for group, low, high in zip(found, bounds, bounds[1:], strict=False):
        members = [i for i in range(90) if low <= values[i] < high]
        change = [after[i] - before[i] for i in members]
        assert group.queries == len(members)
        assert group.difference == pytest.approx(np.mean(change))
        assert group.error == pytest.approx(np.std(change, ddof=1) / np.sqrt(len(members)))
        assert group.better == sum(one > 0 for one in change)


def test_most_moved_by_hand():
    rows = np.array([7, 3, 5, 9, 1], np.int32)
    before, after = np.array([0.1, 0.5, 0.5, 1.0, 0.0]), np.array([1.0, 1.0, 1.0, 0.0, 0.0])
    best, worst = most_moved(rows, before, after, np.array([10, 2, 2, 1, 0]), np.array([1, 1, 1, 0, 0]), count=2)
    assert [(one.query_row, one.rank_before, one.rank_after) for one in best] == [(7, 10, 1), (3, 2, 1)]
    assert [(one.query_row, one.before, one.after, one.rank_after) for one in worst] == [(9, 1.0, 0.0, 0)]


def test_words_of_a_title_are_words_of_the_positive(tmp_path):
    """Else queries whose words stand in titles would seem to share none with what BM25 finds by them."""
    passages = [("p", "red apple", "a text"), ("r", "", "blue plum")]
    queries, judged = {"q": "red apple", "s": "green fig"}, {"q": ["p"], "s": ["r"]}
    collection = Collection.from_lists(passages, queries, {"train": judged}, to=tmp_path / "c")
    positives = collection.qrels("train").positives()
    values = {"before": np.zeros(2), "after": np.array([0.0, 1.0]), "measure": "RR@10"}
    change = SimpleNamespace(query_rows=positives.query_rows, positives=positives, **values)
    opened = SimpleNamespace(kept={"change": change}, data_here=SimpleNamespace(collection=collection))
    rows = [row for row in breakdown_table(opened).rows if row[0] == "share of its words in a positive"]
    assert [row[1:3] for row in rows] == [("below 1", 1), ("1 or more", 1)]
