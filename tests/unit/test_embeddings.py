"""Embedding stores: shards, resuming, sharing between processes, and refusals."""

import contextlib
import gc
import hashlib
import itertools
import logging
import os
import resource

import numpy as np
import pytest
import torch

from hardneg.errors import ArtifactError, InputError, NumericError, ResourceError, SettingsError
from hardneg.records import TokenBatch, offsets_of, take_spans
from hardneg.search import embeddings
from hardneg.search.embedding_store import Part
from hardneg.search.embeddings import Embeddings, discard, encode_store, missing_parts
from hardneg.storage.artifacts import verify
from worlds.tiny_records import vectors_of

DIM = 6
set_limits = resource.setrlimit  # a test replaces it


class Tokens:
    """Random sequences in memory."""

    def __init__(self, n=50, seed=0):
        rng = np.random.default_rng(seed)
        self.lengths = rng.integers(1, 9, n)
        self.offsets = offsets_of(self.lengths)
        self.ids = rng.integers(0, 100, self.offsets[-1]).astype(np.int32)
        self.digest = hashlib.sha256(self.ids.tobytes()).hexdigest()

    def __len__(self):
        return len(self.lengths)

    def read(self, rows):
        index, offsets = take_spans(self.offsets, rows)
        return TokenBatch(self.ids[index], offsets)


class Encoder:
    """Sums of token vectors, plus what betrays the batch: its number of sequences moves the last bits."""

    dim = DIM
    precision = "float32"

    def __init__(self, seed=1, replaced=None, fail_after=None):
        self.table = torch.randn(100, DIM, generator=torch.Generator().manual_seed(seed))
        self.seed, self.replaced, self.fail_after = seed, replaced or {}, fail_after
        self.batches = []

    def encode(self, tokens, side):
        if self.fail_after is not None and len(self.batches) >= self.fail_after:
            raise KeyboardInterrupt
        assert not torch.is_grad_enabled()
        self.batches.append(len(tokens))
        sums = [self.table[ids].sum(0) for ids in np.split(tokens.ids, tokens.offsets[1:-1])]
        vectors = torch.stack(sums) * (1 + 0.01 * len(tokens)) + (1.0 if side == "query" else 0.0)
        for length, value in self.replaced.items():
            vectors[tokens.lengths == length] = value
        return vectors

    def digest(self, side=None):
        return f"encoder {self.seed}"


def encode(tokens, path, encoder=None, **options):
    options = {"side": "passage", "budget": 24, "shard_rows": 16, **options}
    return encode_store(encoder or Encoder(), tokens, path, **options)


def test_vectors_are_the_encoders_by_row(tmp_path):
    tokens = Tokens()
    found = encode(tokens, tmp_path / "e", budget=1, dtype="float32")  # a budget of 1: every sequence alone
    with torch.no_grad():
        expected = torch.cat([Encoder().encode(tokens.read(np.array([row])), "passage") for row in range(50)])
    np.testing.assert_array_equal(vectors_of(found), expected.numpy())
    assert (found.n, found.dim, [len(s) for s in found.shards]) == (50, DIM, [16, 16, 16, 2])


def test_stored_as_float16(tmp_path):
    tokens = Tokens()
    half, single = encode(tokens, tmp_path / "h"), encode(tokens, tmp_path / "s", dtype="float32")
    assert vectors_of(half).dtype == np.float16
    np.testing.assert_array_equal(vectors_of(half), vectors_of(single).astype(np.float16))


def test_rows_across_shards(tmp_path):
    found = encode(Tokens(), tmp_path / "e")
    rows = np.array([49, 0, 16, 15, 31, 32, 0])
    np.testing.assert_array_equal(found.rows(rows), np.concatenate(found.shards)[rows])
    assert found.rows(np.array([], np.int64)).shape == (0, DIM)


def test_shards_are_memory_mapped(tmp_path):
    found = encode(Tokens(), tmp_path / "e", shard_rows=100)
    assert [isinstance(shard, np.memmap) for shard in found.shards] == [True]


@contextlib.contextmanager
def few_files():
    """The process may hold twenty files more than it does, until it raises its own limit."""
    gc.collect()  # or more, when what is not needed lets go of its files
    limits, used = resource.getrlimit(resource.RLIMIT_NOFILE), set(map(int, os.listdir("/proc/self/fd")))
    free = (number for number in itertools.count() if number not in used)  # the limit is one of numbers
    set_limits(resource.RLIMIT_NOFILE, (next(itertools.islice(free, 20, None)), limits[1]))
    try:
        yield
    finally:
        set_limits(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("opened", [Embeddings.open, lambda path: Part.open(path, 0, 2)])
def test_a_store_may_have_more_shards_than_a_process_usually_holds_files(tmp_path, monkeypatch, opened):
    encode(Tokens(), tmp_path / "e", shard_rows=1)
    with few_files():
        assert len(opened(tmp_path / "e").shards) in (50, 25)

    def refuse(*given):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    said = r"UNREADABLE: cannot read \(Too many open files\); raise the limit of open files \(ulimit -n\)"
    with few_files(), pytest.raises(ResourceError, match=rf"shard-000\d\d/.*{said}"):
        opened(tmp_path / "e")


def test_statistics_equal_a_slow_loop(tmp_path, monkeypatch):
    monkeypatch.setattr(embeddings, "BLOCK", 3)
    found = encode(Tokens(), tmp_path / "e")
    vectors = vectors_of(found).astype(np.float64)
    norms = [np.sqrt(sum(x * x for x in vector)) for vector in vectors]
    cosines = [vectors[i] @ vectors[j] / (norms[i] * norms[j]) for i in range(50) for j in range(50) if i != j]
    np.testing.assert_allclose(found.mean, vectors.mean(0), rtol=1e-12, atol=1e-12)
    assert found.mean.dtype == np.float64
    assert found.mean_pairwise_cosine == pytest.approx(np.mean(cosines), abs=1e-12)
    assert found.max_norm == pytest.approx(max(norms), rel=1e-6)


def test_one_text(tmp_path):
    found = encode(Tokens(1), tmp_path / "e")
    assert (found.n, found.mean_pairwise_cosine) == (1, 0.0)


def test_vectors_nearly_all_alike_are_announced(tmp_path, caplog):
    encoder = Encoder()
    encoder.table = encoder.table * 1e-3 + 1
    with caplog.at_level(logging.WARNING):
        found = encode(Tokens(), tmp_path / "e", encoder)
    assert found.mean_pairwise_cosine > 0.99
    assert "mean pairwise cosine" in caplog.text


def test_resume_after_a_kill_between_and_within_shards(tmp_path):
    tokens = Tokens()
    whole = encode(tokens, tmp_path / "whole")
    batches = Encoder()
    encode(tokens, tmp_path / "count", batches)
    for after in range(1, len(batches.batches)):
        path = tmp_path / f"killed-{after}"
        with pytest.raises(KeyboardInterrupt):
            encode(tokens, path, Encoder(fail_after=after))
        with pytest.raises(ArtifactError):
            Embeddings.open(path)
        resumed = encode(tokens, path)
        assert resumed.digest == whole.digest
        verify(path)


def test_finished_shards_are_kept(tmp_path):
    tokens, first, second = Tokens(), Encoder(fail_after=5), Encoder()
    with pytest.raises(KeyboardInterrupt):
        encode(tokens, tmp_path / "e", first)
    assert [p.name for p in (tmp_path / "e").glob("shard-*")] == ["shard-00000"]
    kept = tmp_path / "e" / "shard-00000" / "vectors.npy"
    before = kept.stat().st_ino
    encode(tokens, tmp_path / "e", second)
    assert kept.stat().st_ino == before
    assert sum(second.batches) == 50 - 16


def test_shared_between_processes(tmp_path):
    """Any number of processes, in any order, give the digests of one."""
    tokens = Tokens()
    whole = encode(tokens, tmp_path / "whole")
    for count in (2, 3, 4):
        path = tmp_path / f"by-{count}"
        made = [encode(tokens, path, shard=(i, count)) for i in reversed(range(count))]
        assert made[:-1] == [None] * (count - 1)
        assert made[-1].digest == whole.digest
        verify(path)


def test_more_processes_than_shards(tmp_path):
    made = [encode(Tokens(), tmp_path / "e", shard=(i, 6)) for i in range(6)]
    assert [e is None for e in made] == [True, True, True, False, False, False]


def test_the_parts_that_are_missing_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(embeddings, "rows_of_shard", lambda n: 16)  # four shards
    left = [["0/3", "1/3"], ["0/3"], []]
    for i, missing in zip((2, 1, 0), left, strict=True):
        encode(Tokens(), tmp_path / "e", shard=(i, 3))
        assert missing_parts(tmp_path / "e", 50, 3) == missing
    assert missing_parts(tmp_path / "other", 50, 6) == ["0/6", "1/6", "2/6", "3/6"]  # the others have no shard


def test_a_lost_rank_is_resumed_by_whoever_comes(tmp_path):
    tokens = Tokens()
    assert encode(tokens, tmp_path / "e", shard=(1, 2)) is None
    assert encode(tokens, tmp_path / "e").digest == encode(tokens, tmp_path / "whole").digest


def test_a_finished_store_is_opened_without_encoding(tmp_path):
    tokens, encoder = Tokens(), Encoder()
    first = encode(tokens, tmp_path / "e")
    assert encode(tokens, tmp_path / "e", encoder).digest == first.digest
    assert encoder.batches == []


@pytest.mark.parametrize("part", [None, (0, 2)])
@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"encoder": Encoder(2)}, "encoder encoder 1, not encoder 2"),
        ({"tokens": Tokens(seed=5)}, "tokens .*, not"),
        ({"dtype": "float32"}, "dtype float16, not float32"),
        ({"side": "query"}, "side passage, not query"),
        ({"budget": 30}, "budget 24, not 30"),
        ({"shard_rows": 10}, "shard_rows 16, not 10"),
    ],
)
def test_a_folder_made_from_something_else_is_refused(tmp_path, change, values, part):
    encode(Tokens(), tmp_path / "e", shard=part or (0, 1))
    files = {p: p.read_bytes() for p in (tmp_path / "e").rglob("*") if p.is_file()}
    options = {"tokens": Tokens(), "encoder": Encoder(), **change}
    with pytest.raises(ArtifactError, match=f"OTHER_INPUTS: made with {values}"):
        encode(path=tmp_path / "e", **options)
    assert files == {p: p.read_bytes() for p in (tmp_path / "e").rglob("*") if p.is_file()}


@pytest.mark.parametrize("part", [None, (0, 2)])
def test_a_damaged_shard_is_named(tmp_path, part):
    encode(Tokens(), tmp_path / "e", shard=part or (0, 1))
    file = tmp_path / "e" / "shard-00000" / "vectors.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"shard-00000/vectors.npy: CORRUPT"):
        encode(Tokens(), tmp_path / "e")


@pytest.mark.parametrize(
    ("value", "words"),
    [(float("nan"), "NaN"), (float("inf"), "Inf"), (0.0, "zero"), (1e5, "float16"), (1e-9, "zero")],
)
def test_a_vector_that_is_none_is_named(tmp_path, value, words):
    row = int(np.flatnonzero(Tokens().lengths == 8)[0])  # the first of several
    with pytest.raises(NumericError, match=rf"id-{row} \(row {row}\).*{words}"):
        encode(Tokens(), tmp_path / "e", Encoder(replaced={8: value}), name="id-{}".format)
    assert not (tmp_path / "e" / f"shard-{row // 16:05d}").exists()
    with pytest.raises(ArtifactError):
        Embeddings.open(tmp_path / "e")


def test_progress_counts_the_tokens_that_are_left(tmp_path):
    tokens, calls = Tokens(), []
    encode(tokens, tmp_path / "e", shard=(0, 2))
    left = int(tokens.lengths[16:32].sum() + tokens.lengths[48:].sum())
    encode(tokens, tmp_path / "e", progress=lambda *call: calls.append(call))
    assert calls[-1] == (left, left)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    assert len(calls) > 2


def test_requests_that_make_no_sense(tmp_path):
    with pytest.raises(SettingsError, match="shard 2/2"):
        encode(Tokens(), tmp_path / "e", shard=(2, 2))
    with pytest.raises(InputError, match="NOTHING_TO_ENCODE"):
        encode(Tokens(0), tmp_path / "e")


def test_discard(tmp_path):
    encode(Tokens(), tmp_path / "e")
    encode(Tokens(), tmp_path / "half", shard=(0, 2))
    for name in ("e", "half", "never"):
        discard(tmp_path / name)
        assert not (tmp_path / name).exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(ArtifactError, match="NOT_EMBEDDINGS"):
        discard(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()


@pytest.mark.parametrize("at", [0, 2])  # in the first shard: later a thread of this process writes
def test_another_process_may_make_the_same_meanwhile(tmp_path, at):
    tokens, path = Tokens(), tmp_path / "e"
    expected = encode(tokens, tmp_path / "alone")

    class Overtaken(Encoder):
        def encode(self, tokens_of_batch, side):
            if len(self.batches) == at:
                assert encode(tokens, path) is not None
            return super().encode(tokens_of_batch, side)

    late, done = Overtaken(), []
    found = encode(tokens, path, late, progress=lambda *counts: done.append(counts))
    np.testing.assert_array_equal(vectors_of(found), vectors_of(expected))
    assert verify(path).files.keys() == verify(tmp_path / "alone").files.keys()
    assert sum(late.batches) < 2 * 16 + 1  # of 50: what was made meanwhile is not made again
    assert done[-1] == (tokens.lengths.sum(), tokens.lengths.sum())
    assert not list(tmp_path.rglob(".tmp-*"))
