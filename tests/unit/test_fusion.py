"""Fusion of runs against hand-computed cases and slow loops."""

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from hardneg.errors import ArtifactError, NumericError, SettingsError
from hardneg.records import Run, offsets_of
from hardneg.search import fusion as module
from hardneg.search.fusion import Fusion, fuse, grid, of_queries, tune_weights
from worlds.tiny_records import run_of

RRF = Fusion()
MIN_MAX = Fusion("linear")
Z = Fusion("linear", "z")


def lists(run):
    """Query row -> its hits as (row, score)."""
    return {
        int(query): list(zip(*(part.tolist() for part in run.hits(i)), strict=True))
        for i, query in enumerate(run.query_rows)
    }


def slow_worth(fusion, hits):
    """Passage -> what a list gives it."""
    if fusion.method == "rrf":
        return {row: 1.0 / (fusion.rank_constant + rank) for rank, (row, _) in enumerate(hits, 1)}
    scores = [score for _, score in hits]
    if len(set(scores)) <= 1:
        return {row: 1.0 for row, _ in hits}
    mean = sum(scores) / len(scores)
    deviation = math.sqrt(sum((score - mean) ** 2 for score in scores) / len(scores))
    unit = max(scores) - min(scores) if fusion.normalisation == "min-max" else deviation
    return {row: (score - min(scores)) / unit for row, score in hits}


def slow_fuse(runs, weights, fusion, k, prefer):
    """A dictionary of each query; ``prefer`` [passages]: of equal scores the lower stands first."""
    queries = sorted({int(query) for run in runs for query in run.query_rows})
    found = {}
    for query in queries:
        total = {}
        for run, weight in zip(runs, weights, strict=True):
            for row, worth in slow_worth(fusion, lists(run).get(query, [])).items() if weight else ():
                total[row] = total.get(row, 0.0) + weight * worth
        ranked = sorted(total, key=lambda row: (-np.float32(total[row]), prefer[row]))
        found[query] = [(row, float(np.float32(total[row]))) for row in ranked[:k]]
    return found


def random_run(draw, queries, passages=60, *, longest=25, quantum=None):
    rows = np.sort(draw.choice(40, queries, replace=False)).astype(np.int32)
    lengths = draw.integers(0, longest, queries)
    hits = [draw.choice(passages, n, replace=False).astype(np.int32) for n in lengths]
    scores = [-np.sort(-draw.normal(size=n).astype(np.float32)) for n in lengths]
    if quantum:
        scores = [np.round(score / quantum).astype(np.float32) * np.float32(quantum) for score in scores]
    return Run(rows, offsets_of(lengths), np.concatenate(hits), np.concatenate(scores))


# ---------------------------------------------------------------- by hand


def test_reciprocal_ranks_by_hand():
    a, b = run_of([[7, 3, 5]]), run_of([[3, 9]])
    [found] = lists(fuse([a, b])).values()
    assert [row for row, _ in found] == [3, 7, 9, 5]
    expected = [1 / 62 + 1 / 61, 1 / 61, 1 / 62, 1 / 63]
    assert [score for _, score in found] == [float(np.float32(value)) for value in expected]


@pytest.mark.parametrize("runs", [3, 4])
def test_a_passage_has_the_worth_of_all_runs(runs):
    """Three or more, too, and not only of two that are neighbours when hits are sorted by passage."""
    [found] = lists(fuse([run_of([[7, 3]])] * runs)).values()
    assert found == [(7, float(np.float32(runs / 61))), (3, float(np.float32(runs / 62)))]


def test_linear_by_hand():
    a, b = run_of([[(7, 4.0), (3, 3.0), (5, 2.0)]]), run_of([[(3, 0.9), (9, 0.4)]])
    [found] = lists(fuse([a, b], [1.0, 2.0], fusion=MIN_MAX)).values()
    assert found == [(3, 2.5), (7, 1.0), (5, 0.0), (9, 0.0)]
    [found] = lists(fuse([a, b], fusion=Z)).values()
    sigma = math.sqrt(2 / 3)  # of 4, 3, 2; that of 0.9, 0.4 is 0.25
    assert [row for row, _ in found] == [3, 7, 5, 9]
    assert [score for _, score in found] == pytest.approx([1 / sigma + 2, 2 / sigma, 0, 0], abs=1e-6)


def test_a_list_of_one_score_counts_as_found():
    a, b = run_of([[(1, 5.0)]]), run_of([[(2, 3.0), (3, 1.0)]])
    for fusion in (MIN_MAX, Z):
        [found] = lists(fuse([a, b], fusion=fusion)).values()
        assert dict(found)[1] == 1.0
        assert dict(found)[3] == 0.0


def test_ties_rank_by_row_or_by_id_also_at_the_cut():
    a, b = run_of([[4, 2]]), run_of([[2, 4]])
    assert [row for row, _ in lists(fuse([a, b]))[0]] == [2, 4]
    ranks = np.arange(10, dtype=np.int32)
    assert [row for row, _ in lists(fuse([a, b], id_rank=ranks))[0]] == [4, 2]
    assert [row for row, _ in lists(fuse([a, b], id_rank=ranks, k=1))[0]] == [4]
    assert [row for row, _ in lists(fuse([a, b], id_rank=ranks[::-1].copy(), k=1))[0]] == [2]


@pytest.mark.parametrize("fusion", [RRF, MIN_MAX, Z])
def test_a_run_of_weight_0_gives_its_queries_and_no_hits(fusion):
    a = replace(run_of({0: [(7, 4.0), (3, 3.0)]}), limited="few")
    b = run_of({0: [(3, math.inf), (9, 0.4)], 1: [(5, 1.0)]})
    found = fuse([a, b], [1.0, 0.0], fusion=fusion)
    assert {query: [row for row, _ in hits] for query, hits in lists(found).items()} == {0: [7, 3], 1: []}
    assert found.limited == "few"


def test_a_query_that_a_run_lacks_keeps_the_others():
    a, b = run_of({9: [1, 2], 4: [5]}), run_of({4: [6, 5], 2: [8], 11: []})
    found = fuse([a, b])
    assert found.query_rows.tolist() == [2, 4, 9, 11]
    assert {query: [row for row, _ in hits] for query, hits in lists(found).items()} == {
        2: [8],
        4: [5, 6],
        9: [1, 2],
        11: [],
    }


# ---------------------------------------------------------------- against the slow loop


@pytest.mark.parametrize("fusion", [RRF, Fusion(rank_constant=1), MIN_MAX, Z])
@pytest.mark.parametrize("runs", [2, 3, 5])
@pytest.mark.parametrize("block", [1, 100, 1 << 20])
def test_it_equals_a_slow_loop(fusion, runs, block, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", block)
    draw = np.random.default_rng(runs)
    given = [random_run(draw, 30 + i, 25, quantum=0.5 if i % 2 else None) for i in range(runs)]
    weights = draw.integers(1, 5, runs) / 2
    weights[3:4] = 0
    pairs = [{(query, row) for query, hits in lists(run).items() for row, _ in hits} for run in given]
    assert set.intersection(*pairs)  # of a query and a passage that every run has, with a weight that counts
    ranks = draw.permutation(60).astype(np.int32)
    for k in (None, 7):
        for id_rank, prefer in ((None, np.arange(60)), (ranks, -ranks)):
            found = lists(fuse(given, weights.tolist(), fusion=fusion, k=k, id_rank=id_rank))
            expected = slow_fuse(given, weights, fusion, k, prefer)
            assert found.keys() == expected.keys()
            for query, hits in expected.items():
                assert [row for row, _ in found[query]] == [row for row, _ in hits]
                assert [s for _, s in found[query]] == pytest.approx([s for _, s in hits], rel=1e-6, abs=1e-7)


def test_rows_and_lists_of_any_size_fit_into_the_keys():
    top = np.iinfo(np.int32).max
    long = np.arange(top, top - 70_000, -1, dtype=np.int64).astype(np.int32)
    a = Run(
        np.array([0, 1], np.int32),
        np.array([0, 70_000, 70_001]),
        np.append(long, np.int32(0)),
        np.append(np.arange(70_000, 0, -1), 1).astype(np.float32),
    )
    found = fuse([a, run_of({1: [top]})])
    assert np.array_equal(found.passage_rows[:70_000], long)
    assert found.passage_rows[70_000:].tolist() == [0, top]


def test_no_queries_are_no_fault():
    empty = run_of([])
    assert len(fuse([empty, empty])) == 0
    assert lists(fuse([empty, run_of([[1]])], fusion=MIN_MAX)) == {0: [(1, 1.0)]}


def test_memory_beyond_the_result_is_that_of_a_block(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 1 << 14)
    draw, depth = np.random.default_rng(0), 400
    rows = np.argsort(draw.random((1000, 2000)), axis=1)[:, :depth].astype(np.int32)
    scores = np.tile(np.arange(depth, 0, -1, dtype=np.float32), 1000)
    run = Run(np.arange(1000, dtype=np.int32), np.arange(1001) * depth, rows.ravel(), scores)
    fuse([run, run], k=10)  # what numpy loads once
    tracemalloc.start()
    fuse([run, run], k=10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20  # both runs: 800,000 hits, 6.4 MB, and 40 MB as keys and places at once


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("weights", [[1.0], [1, 1, 1], [0, 0], [-1, 2], [1, math.nan], [math.inf, 1]])
def test_weights_that_do_not_fit_are_refused(weights):
    with pytest.raises(SettingsError, match="BAD_WEIGHTS"):
        fuse([run_of([[1]]), run_of([[2]])], weights)


def test_one_run_is_refused():
    with pytest.raises(SettingsError, match="ONE_RUN"):
        fuse([run_of([[1]])])


def test_runs_of_other_things_are_refused():
    with pytest.raises(ArtifactError, match="OTHER_COLLECTION"):
        fuse([run_of([[1]], collection="a" * 64), run_of([[1]], collection="b" * 64)])
    with pytest.raises(ArtifactError, match="OTHER_UNIT: one run ranks passages, another chunks"):
        fuse([run_of([[1]]), run_of([[1]], unit="chunk")])
    assert fuse([run_of([[1]]), run_of([[1]], unit="document")]).unit == "document", "both rank rows"
    assert fuse([run_of([[1]], collection="a"), run_of([[1]])]).collection == "a"


def test_infinite_scores_have_ranks_only():
    infinite = run_of([[(1, math.inf), (2, 0.0)]])
    assert lists(fuse([infinite, run_of([[1]])]))[0][0][0] == 1
    with pytest.raises(NumericError, match="NAN_SCORE"):
        fuse([infinite, run_of([[1]])], fusion=MIN_MAX)


# ---------------------------------------------------------------- tuning


def test_the_grid_is_even_first():
    assert grid(2, 2) == [(0.5, 0.5), (1.0, 0.0), (0.0, 1.0)]
    assert len(grid(3)) == 66
    assert all(sum(point) == pytest.approx(1) for point in grid(4))
    assert grid(2)[0] == (0.5, 0.5)
    with pytest.raises(SettingsError, match="8 runs have 19,448 weights"):
        grid(8)


def test_the_best_weights_are_found_and_ties_go_to_the_first():
    good, bad = run_of([[1, 2, 3]]), run_of([[3, 2, 1]])

    def measured(run):
        return 1.0 / (1 + run.passage_rows.tolist().index(1))

    tuned = tune_weights([bad, good], measured, fusion=MIN_MAX)
    assert (tuned.weights, tuned.value) == ((0.5, 0.5), 1.0)  # all tie there, and the lower row is first
    behind = tune_weights([bad, good], measured, fusion=MIN_MAX, id_rank=np.arange(4, dtype=np.int32))
    assert (behind.weights, behind.value) == ((0.4, 0.6), 1.0)


def test_the_lists_of_some_queries():
    run = run_of({9: [1, 2], 4: [5], 2: [7, 8]})
    assert lists(of_queries(run, np.array([2, 3, 9], np.int32))) == {2: lists(run)[2], 9: lists(run)[9]}


def test_a_fused_run_says_which_passages_were_ranked():
    """One that is made of others over different passages is of none of these parts."""
    whole, a, b = (replace(run_of([[0, 1]]), limited=part) for part in ("", "a", "b"))
    assert [fuse([one, one], k=2).limited for one in (whole, a)] == ["", "a"]
    mixed = {fuse(runs, k=2).limited for runs in ([whole, a], [a, whole], [a, b], [b, a])}
    assert len(mixed) == 2
    assert not mixed & {"", "a", "b"}
