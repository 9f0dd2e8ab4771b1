"""Search by several processes, each in its part of the passages: the run of one process, bit for bit."""

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed  # before processes are forked: it takes seconds

from hardneg.diagnostics.pairwise_errors import pairwise_errors
from hardneg.errors import HardnegError
from hardneg.models.loading import load_encoder
from hardneg.process.distributed import apart, by_leader, group, is_leader, member, together
from hardneg.records import Positives, TokenBatch, offsets_of
from hardneg.search import embeddings, encoding, parts
from hardneg.search.embedding_store import Embeddings, Part, shard_name
from hardneg.search.embeddings import encode_store
from hardneg.search.encoding import Encoding
from hardneg.search.exact import ExactIndex
from hardneg.search.parts import SharedIndex
from hardneg.search.retrieve import StoredIndex, index_run
from hardneg.search.retriever import CachedRetriever
from hardneg.storage.artifacts import MANIFEST
from processes import in_group
from processes import together as launched
from worlds.tiny_world import one_thread  # noqa: F401

DIM = 24


class Rows:
    """Sequences of one token each: the number of the row."""

    digest = "rows"

    def __init__(self, n):
        self.lengths = np.ones(n, np.int64)

    def __len__(self):
        return len(self.lengths)

    def read(self, rows):
        return TokenBatch(np.asarray(rows, np.int32), offsets_of(np.ones(len(rows), np.int64)))


class Table:
    """An encoder whose vectors are the rows of a matrix."""

    dim, precision = DIM, "float32"

    def __init__(self, matrix):
        self.matrix = torch.from_numpy(matrix)

    def encode(self, tokens, side):
        return self.matrix[torch.from_numpy(tokens.ids).long()]

    def digest(self, side=None):
        return "table"


def vectors(n, seed, copies=1):
    """Random unit vectors, of which each stands ``copies`` times: all of them tie."""
    drawn = np.random.default_rng(seed).standard_normal((-(-n // copies), DIM)).astype(np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return np.random.default_rng(seed).permutation(np.repeat(drawn, copies, axis=0)[:n])


def store_of(path, matrix, rows, dtype="float16"):
    return encode_store(
        Table(matrix), Rows(len(matrix)), path, side="passage", budget=64, dtype=dtype, shard_rows=rows
    )


def searched(store, queries, k, rows=None):
    return [found.numpy() for found in StoredIndex(store, rows=rows).search(queries, k)]


# ---------------------------------------------------------------- parts


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 9])
def test_parts_are_the_shards_that_a_process_encodes_and_together_all(tmp_path, processes):
    matrix = vectors(100, 1)
    store_of(tmp_path / "e", matrix, 16)
    found = [Part.open(tmp_path / "e", own, processes) for own in range(processes)]
    rows = np.concatenate([part.rows for part in found])
    assert sorted(rows.tolist()) == list(range(100))
    for own, part in enumerate(found):
        assert {row // 16 % processes for row in part.rows.tolist()} <= {own}
        for row, vector in zip(part.rows, np.concatenate([*part.shards, np.zeros((0, DIM))]), strict=True):
            np.testing.assert_array_equal(vector, matrix[row].astype(np.float16))
    chosen = np.array([0, 3, 15, 16, 17, 70, 99], np.int32)
    some = [part.among(chosen) for part in found]
    assert sorted(np.concatenate([part.rows for part in some]).tolist()) == list(range(7))
    for part in some:
        for row, vector in zip(part.rows, np.concatenate([*part.shards, np.zeros((0, DIM))]), strict=True):
            np.testing.assert_array_equal(vector, matrix[chosen[row]].astype(np.float16))


def test_a_process_opens_the_files_of_its_own_part_alone(tmp_path):
    store_of(tmp_path / "e", vectors(100, 1), 16)
    (tmp_path / "e/shard-00001/vectors.npy").unlink()
    assert len(Part.open(tmp_path / "e", 0, 2).rows) == 52
    with pytest.raises(HardnegError, match="shard-00001"):
        Part.open(tmp_path / "e", 1, 2)


# ---------------------------------------------------------------- the same run

CASES = {
    "random": (300, 16, 20, 1, "float16"),
    "stored as float32": (300, 16, 20, 1, "float32"),
    "all tie with some, across the parts": (240, 16, 50, 6, "float16"),
    "all the same": (60, 8, 7, 60, "float16"),
    "fewer passages than processes": (2, 1, 5, 1, "float16"),
    "fewer shards than processes": (30, 16, 30, 1, "float16"),
    "k larger than a part": (40, 3, 39, 2, "float32"),
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    root, made = tmp_path_factory.mktemp("stores"), {}
    for number, (what, (n, rows, _, copies, dtype)) in enumerate(CASES.items()):
        made[what] = store_of(root / str(number), vectors(n, number, copies), rows, dtype)
    return made


@pytest.mark.parametrize("processes", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4))])
def test_the_hits_are_those_of_one_process(stores, tmp_path, processes, monkeypatch):
    monkeypatch.setattr(parts, "AT_ONCE", 1)
    monkeypatch.setattr(parts, "LEAST_QUERIES", 9)  # several blocks, the last one smaller
    queries = torch.from_numpy(vectors(31, 2))

    def work(rank):
        for number, (what, (n, _, k, _, _)) in enumerate(CASES.items()):
            index = SharedIndex(stores[what])
            expected = searched(stores[what], queries, k)
            check(index.search(queries, k), expected)  # in step: all get them
            led = by_leader(lambda index=index, k=k: [found.numpy() for found in index.search(queries, k)])
            check(led, expected)
            some = np.unique(np.random.default_rng(number).integers(0, n, n // 2 + 1)).astype(np.int32)
            check(
                SharedIndex(stores[what], rows=some).search(queries, k), searched(stores[what], queries, k, some)
            )

    def check(found, expected):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(a).view(np.int32), b.view(np.int32))

    in_group(processes, work, tmp_path / "log")


def test_documents_and_counts_are_those_of_one_process(tmp_path):
    matrix = vectors(200, 3, 4)
    store = store_of(tmp_path / "e", matrix, 16)
    queries = torch.from_numpy(vectors(12, 4))
    documents = np.array([*range(0, 100, 5), *range(100, 201, 2)], np.int64)
    rows = np.arange(12, dtype=np.int32)
    positives = Positives(
        rows, np.arange(0, 25, 2), np.random.default_rng(5).permutation(200)[:24].astype(np.int32)
    )
    expected = index_run(StoredIndex(store), queries, rows, 8, "c", documents=documents)
    errors = pairwise_errors(ExactIndex(store.shards), queries.numpy(), positives)
    assert errors.errors.any()

    def work(rank):
        index = SharedIndex(store)
        run = by_leader(index_run, index, queries, rows, 8, "c", documents=documents)
        for name in ("offsets", "passage_rows", "scores"):
            np.testing.assert_array_equal(getattr(run, name), getattr(expected, name))
        found = by_leader(pairwise_errors, index, queries.numpy(), positives)
        np.testing.assert_array_equal(found.errors, errors.errors)
        np.testing.assert_array_equal(found.scores, errors.scores)

    in_group(3, work, tmp_path / "log")


def test_alone_it_is_a_search_like_any_other(tmp_path):
    store = store_of(tmp_path / "e", vectors(70, 6), 16)
    queries = torch.from_numpy(vectors(5, 7))
    for a, b in zip(SharedIndex(store).search(queries, 9), StoredIndex(store).search(queries, 9), strict=True):
        assert torch.equal(a, b)


def state_of(world, folder):
    """A model over the tiny collection, whose store has many shards."""
    encoder = load_encoder(world.model, device="cpu")
    encoding = Encoding(token_budget=512, dtype="float32")
    return CachedRetriever(encoder, world.collection, folder / "runs", folder / "cache", encoding=encoding)


def test_runs_and_what_is_mined_by_rank_0_are_searched_by_all(world, tmp_path, monkeypatch):
    monkeypatch.setattr(embeddings, "LEAST_ROWS", 16)
    rows = np.arange(40, dtype=np.int32)
    alone = state_of(world, tmp_path / "alone").search("query", rows, 9)
    (tmp_path / "seen").mkdir()

    def work(rank):
        state, real = state_of(world, tmp_path / "all"), parts.PartIndex.keys
        called = []
        monkeypatch.setattr(parts.PartIndex, "keys", lambda *args: (called.append(args), real(*args))[1])
        _ = state.passages  # encoded by all
        found = [
            state.search("in step", rows, 9),
            by_leader(state.search, "by rank 0", rows, 9),
            state.limited(np.arange(5, 90, dtype=np.int32), alone=False).search("some", rows, 9),
        ]
        assert len(called) == 3
        for run in found[:2]:
            for name in ("passage_rows", "offsets", "scores"):
                np.testing.assert_array_equal(getattr(run, name), getattr(alone, name))
        assert set(found[2].passage_rows.tolist()) <= set(range(5, 90))

    in_group(3, work, tmp_path / "log")


def test_the_tokens_that_all_processes_encode_are_counted(world, tmp_path, monkeypatch):
    """Each makes every third shard. Shards that are there already do not count."""
    monkeypatch.setattr(embeddings, "LEAST_ROWS", 16)

    def work(rank):
        state, rows = state_of(world, tmp_path / "all"), []

        @contextlib.contextmanager
        def timed(stage, **facts):
            yield facts
            rows.append(facts)

        state.timed = timed
        store, place = state._embeddings("passage")
        state._embed("passage")

        def lose_one():
            (place / MANIFEST).unlink()
            shutil.rmtree(place / shard_name(1))

        by_leader(lose_one)
        state._embed("passage")
        lengths = np.asarray(store.lengths)
        assert [row["tokens"] for row in rows] == [lengths.sum(), lengths[16:32].sum()]

    in_group(3, work, tmp_path / "log")


def test_a_process_that_does_not_see_the_embeddings_beside_is_refused(world, tmp_path, monkeypatch):
    """The other one finds them in the cache of the experiment that trained the model. Neither waits for ever."""
    monkeypatch.setattr(encoding, "UNSEEN_SECONDS", 1)
    _ = state_of(world, tmp_path / "first").passages

    def work(rank):
        signal.alarm(60)  # not the hours that a group waits for one of its processes
        state = state_of(world, tmp_path / "second")
        state.beside = [tmp_path / "first/cache", None][rank]
        if rank:
            with pytest.raises(HardnegError, match=r"NO_MANIFEST.*; all processes must see the same files"):
                _ = state.passages
        else:
            assert state.passages.path.is_relative_to(state.beside)

    in_group(2, work, tmp_path / "log")


# ---------------------------------------------------------------- while rank 0 works alone


def stand(value):
    """What a process finds of itself in an errand."""
    assert value == [1, 2]
    return (*member(), apart(), is_leader(), by_leader(lambda: member()))


def test_those_who_wait_do_what_rank_0_asks_and_wait_on(tmp_path):
    def lead():
        assert member() == (0, 1)
        assert apart()
        for _ in range(3):
            assert together(stand, [1, 2]) == (0, 3, False, True, (0, 1))
        assert apart()
        return by_leader(lambda: "found")

    def work(rank):
        assert by_leader(lead) == "found"
        assert not apart()
        assert member() == (rank, 3)
        assert together(stand, [1, 2])[:2] == (rank, 3)

    in_group(3, work, tmp_path / "log")


def lost(store, queries, how):
    """The work of a process that searches, the last of which fails."""

    def work(rank):
        if rank == 1:
            if how == "killed":
                real = parts.PartIndex.keys

                def keys(*args):
                    real(*args)
                    os.kill(os.getpid(), signal.SIGKILL)

                parts.PartIndex.keys = keys
            elif how == "a part is missing":
                for file in Path(store.path).glob("shard-*1/vectors.npy"):
                    file.unlink()
        try:
            with group():
                by_leader(SharedIndex(store).search, queries, 5)
        except HardnegError as fault:
            os.write(2, f"{rank}: {fault}\n".encode())
            return fault.status
        return 0

    return work


@pytest.mark.slow  # whoever is left waits for its launcher
@pytest.mark.parametrize(("how", "status"), [("killed", -9), ("a part is missing", 4)])
def test_one_that_is_lost_ends_the_search_in_one_line(tmp_path, how, status):
    store, queries = store_of(tmp_path / "e", vectors(80, 8), 16), torch.from_numpy(vectors(5, 7))
    begun = time.monotonic()
    assert launched(2, lost(store, queries, how), tmp_path / "log") == [8, status]
    assert time.monotonic() - begun < 30
    said = (tmp_path / "log").read_text()
    assert said.count("0: PEER_LOST: another process") == 1
    assert said.count("Traceback") == 0
    assert ("MISSING_FILE" in said) == (how != "killed")


@pytest.mark.slow
def test_a_slow_one_is_waited_for(tmp_path):
    store, queries = store_of(tmp_path / "e", vectors(80, 8), 16), torch.from_numpy(vectors(5, 7))
    expected = searched(store, queries, 5)

    def work(rank):
        if rank == 1:
            real = parts.PartIndex.keys
            parts.PartIndex.keys = lambda *args: (time.sleep(1.5), real(*args))[1]
        for a, b in zip(SharedIndex(Embeddings.open(store.path)).search(queries, 5), expected, strict=True):
            np.testing.assert_array_equal(a.numpy(), b)

    in_group(2, work, tmp_path / "log")
