"""The sample of vectors: the same queries in every state with their hardest negatives, stored and read again."""

from types import SimpleNamespace

import numpy as np

from hardneg.diagnostics.sampled_vectors import (
    KIND,
    NEGATIVES,
    QUERIES,
    SampledVectors,
    hardest,
    load_sample,
    sampled,
    save_sample,
)
from hardneg.records import Positives, Run, offsets_of
from hardneg.storage.artifacts import read_manifest


def positives_of(count):
    rows = np.arange(count, dtype=np.int32)
    return Positives(rows, offsets_of((rows % 5 != 0).astype(np.int64)), rows[rows % 5 != 0] + 1000)


def test_the_sample_is_of_queries_with_positives_and_does_not_change():
    some = sampled(positives_of(500))
    assert len(some) == QUERIES
    assert (some.query_rows % 5 != 0).all()
    assert (np.diff(some.query_rows) > 0).all()
    assert np.array_equal(some.query_rows, sampled(positives_of(500)).query_rows)
    assert len(sampled(positives_of(10))) == 8


def test_the_hardest_are_the_first_hits_without_positives_and_copies():
    run = Run(
        np.array([0, 1], np.int32),
        np.array([0, 6, 8]),
        np.array([9, 3, 4, 5, 6, 7, 2, 8], np.int32),
        np.arange(8, 0, -1, dtype=np.float32),
    )
    keys = np.arange(10, dtype=np.uint64)
    keys[4] = keys[9]  # passage 4 has the text of query 0's positive
    data = SimpleNamespace(collection=SimpleNamespace(text_keys=keys))
    some = Positives(np.array([0, 1], np.int32), np.array([0, 1, 2]), np.array([9, 8], np.int32))
    assert hardest(run, some, data).tolist() == [[3, 5, 6], [2, -1, -1]]
    assert NEGATIVES == 3


def test_a_sample_is_read_as_it_was_kept(tmp_path):
    rng = np.random.default_rng(0)
    rows = np.array([2, 5, 7], np.int32)
    sample = SampledVectors(
        np.array([1, 4], np.int32),
        rng.normal(size=(2, 3)).astype(np.float16),
        rows,
        rng.normal(size=(3, 3)).astype(np.float16),
        np.array([5, 2], np.int32),
        np.array([[7, 2, -1], [5, -1, -1]], np.int32),
    )
    save_sample(sample, tmp_path / "sample", {"model": "m"})
    assert read_manifest(tmp_path / "sample").kind == KIND
    again = load_sample(tmp_path / "sample")
    assert np.array_equal(again.passages, sample.passages)
    assert np.array_equal(again.of(np.array([7, 2])), sample.passages[[2, 0]])
