"""BM25's search by compiled code: the runs of numpy's, bit by bit."""

import sys
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
from test_bm25 import collection, random_collection

from hardneg.errors import ResourceError
from hardneg.process.memory import limit_memory
from hardneg.search import bm25
from hardneg.search.bm25 import bm25_run, bm25_texts, open_bm25

numba = pytest.importorskip("numba")

from hardneg.process import compiled as module  # noqa: E402
from hardneg.search import bm25_compiled  # noqa: E402

KS = (1, 9, 400)
ROWS = np.arange(40, dtype=np.int32)


@pytest.fixture
def compiled(monkeypatch):
    """From here on everything is searched by compiled code."""
    return lambda: monkeypatch.setattr(bm25, "COMPILED", 0)


def assert_same(one, two):
    for mine, theirs in zip(vars(one).values(), vars(two).values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("spread", [0, 1 << 25])
@pytest.mark.parametrize("at_a_time", [7, 32])
def test_the_same_runs_as_numpy(tmp_path, monkeypatch, compiled, spread, at_a_time):
    """With ties at every cut, queries without a hit, and lists shorter than k."""
    c = random_collection()
    c.query_texts[3], c.query_texts[5] = "unheard", "oak oak elm"
    monkeypatch.setattr(bm25, "SPREAD", spread)
    monkeypatch.setattr(bm25, "DENSE", 6)
    monkeypatch.setattr(bm25_compiled, "AT_A_TIME", at_a_time)
    plain = [bm25_run(c, ROWS, k, tmp_path) for k in KS]
    assert np.diff(plain[1].offsets)[3] == 0
    assert (np.diff(plain[2].offsets) < 400).all()
    compiled()
    for one, k in zip(plain, KS, strict=True):
        assert_same(one, bm25_run(c, ROWS, k, tmp_path))


@pytest.mark.parametrize("n", [1, 31, 32, 33])
def test_passages_that_do_not_fill_a_block(tmp_path, compiled, n):
    compiled()
    run = bm25_texts(collection(["oak elm"] * n), ["oak", "elm fig"], n, tmp_path)
    assert run.passage_rows.tolist() == [*range(n)] * 2


@pytest.mark.parametrize("k", [1, 2, 3, 8, 50, 96])
def test_scores_in_any_order(k):
    """Ascending, descending and random scores, many of them equal, so the heap sees every case; a slow loop."""
    rng = np.random.default_rng(0)
    drawn = [*rng.integers(0, 9, (20, 96)), *rng.integers(0, 99, (20, 96))]
    values = np.stack([np.arange(1, 97), np.arange(96, 0, -1), *drawn]).astype(np.float32)
    q, n = values.shape
    starts = np.arange(q, dtype=np.int64) * n
    postings = bm25_compiled.Postings(
        offsets=np.arange(q + 1),
        weights=np.ones(q, np.float32),
        begins=starts,
        ends=starts + n,
        spread=np.full(q, -1, np.int64),
        rows=np.tile(np.arange(n, dtype=np.int32), q),
        values=values.ravel(),
        vectors=np.zeros((0, n), np.float32),
    )
    for i, (rows, scores) in enumerate(bm25_compiled.search_compiled(postings, k, threads=2, block=32)):
        ranked = sorted((-score, row) for row, score in enumerate(values[i].tolist()) if score)
        assert [*zip((-scores).tolist(), rows.tolist(), strict=True)] == ranked[:k]


def test_long_lists_are_made_a_few_at_a_time(tmp_path, monkeypatch, compiled):
    """A thread holds no more hits than it may, and what comes back does not hold what lies behind the last hit."""
    c = random_collection()
    plain, sizes, best = bm25_run(c, ROWS, 400, tmp_path), [], bm25_compiled.best
    monkeypatch.setattr(bm25_compiled, "HITS", 900)
    monkeypatch.setattr(
        bm25_compiled, "best", lambda part, *more: sizes.append(len(part.offsets) - 1) or best(part, *more)
    )
    compiled()
    assert_same(plain, bm25_run(c, ROWS, 400, tmp_path))
    assert sizes == [2] * 20


@pytest.mark.parametrize("threads", [1, 3])
def test_queries_come_in_order_whichever_thread_ends_first(monkeypatch, threads):
    def best(part, k, block):
        first, n = int(part.offsets[0]), len(part.offsets) - 1
        if first >= 90:
            raise ValueError("here")
        return np.arange(first, first + n)[:, None], np.zeros((n, k)), np.ones(n, np.int32)

    monkeypatch.setattr(bm25_compiled, "AT_A_TIME", 10)
    monkeypatch.setattr(bm25_compiled, "best", best)
    none = np.zeros(0)
    postings = bm25_compiled.Postings(np.arange(97), *[none] * 7)
    found = []
    hits = bm25_compiled.search_compiled(postings, 4, threads=threads, block=32)
    with pytest.raises(ValueError, match="here"):
        found.extend(int(rows[0]) for rows, _ in hits)
    assert found == [*range(90)]


@pytest.mark.parametrize(("room", "threads"), [(2**40, 64), (5 * 4 * 416, 5), (1, 1)])
def test_there_are_as_many_threads_as_there_is_memory_for(tmp_path, monkeypatch, compiled, room, threads):
    """Each has a score of every passage: 64 threads need 2 GB for nine million."""
    asked, real = [], bm25_compiled.search_compiled

    def searching(postings, k, *, threads, block):
        asked.append(threads)
        return real(postings, k, threads=1, block=block)

    compiled()
    monkeypatch.setattr(bm25_compiled, "search_compiled", searching)
    monkeypatch.setattr(bm25, "usable_threads", lambda: 64)
    monkeypatch.setattr(bm25, "spare", lambda: room)
    index = open_bm25(random_collection(), tmp_path)
    assert bm25._width(index) == 416
    bm25.search(index, ["oak elm"], ROWS[:1], 3)
    assert asked == [threads]


@pytest.mark.parametrize("by", ["numpy", "compiled code"])
def test_a_search_needs_room_for_a_score_of_every_passage(tmp_path, compiled, by):
    index = replace(open_bm25(random_collection(), tmp_path), n=10_000_000)
    if by == "compiled code":
        compiled()
    limit_memory("1M")
    try:
        with pytest.raises(ResourceError, match="MEMORY_TOO_SMALL: searching by BM25 needs 38 MiB"):
            bm25.search(index, ["oak elm"], ROWS[:1], 3)
    finally:
        limit_memory()


def test_who_stops_listening_stops_the_rest(monkeypatch):
    """What waits is not searched any more."""

    class Pool:
        def __init__(self, threads):
            self.waiting = []

        def submit(self, best, part, k, block):
            future = Future()
            future.set_result((np.zeros((1, k)), np.zeros((1, k)), np.ones(1, np.int32)))
            return future

        def shutdown(self, **how):
            stopped.append(how)

    stopped = []
    monkeypatch.setattr(bm25_compiled, "ThreadPoolExecutor", Pool)
    hits = bm25_compiled.search_compiled(
        bm25_compiled.Postings(np.arange(500), *[np.zeros(0)] * 7), 4, threads=2, block=32
    )
    next(hits)
    hits.close()
    assert stopped == [{"cancel_futures": True}]


def test_it_is_for_many_queries_where_numba_is_installed(monkeypatch):
    assert bm25._is_worth_compiling(1_000, 100_000)
    assert not bm25._is_worth_compiling(1, 100_000)
    monkeypatch.setitem(sys.modules, "hardneg.search.bm25_compiled", None)  # its import fails, as without numba
    assert not bm25._is_worth_compiling(1_000, 100_000)


def test_without_a_place_for_what_is_compiled(monkeypatch):
    asked = []

    def njit(**options):
        asked.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(module, "njit", njit)
    assert module.compiled(len) is len
    assert asked == [{"nogil": True, "cache": True}, {"nogil": True}]
