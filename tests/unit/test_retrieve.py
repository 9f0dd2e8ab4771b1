"""From query vectors to runs."""

import gc
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from hardneg.errors import InputError, NumericError, SettingsError
from hardneg.search.embeddings import Embeddings
from hardneg.search.retrieve import StoredIndex, index_run
from hardneg.search.vectors import as_tensor
from hardneg.storage.artifacts import Manifest
from reference_search import search


def vectors(n, seed, dtype="float16"):
    return np.random.default_rng(seed).normal(size=(n, 12)).astype(dtype)


def embeddings(matrix, shards=1):
    norm = float(np.linalg.norm(matrix.astype(np.float64), axis=1).max())
    parts = tuple(np.array_split(matrix, shards))
    return Embeddings(Path(), len(matrix), 12, parts, matrix.mean(0), 0.0, norm, Manifest("embeddings"))


def run_of(queries, rows, passages, k, name="query row {}".format, **layout):
    return index_run(StoredIndex(passages, **layout), torch.as_tensor(queries), rows, k, "c", name=name)


def test_a_run_holds_what_exact_search_finds():
    passages, queries = vectors(90, 0), vectors(7, 1, "float32")
    rows = np.array([40, 3, 8, 1, 0, 99, 5], np.int32)
    run = run_of(queries, rows, embeddings(passages), 10)
    scores, found = search(queries, passages, 10)
    assert (run.unit, run.collection, len(run)) == ("passage", "c", 7)
    np.testing.assert_array_equal(run.query_rows, rows)
    for i in range(7):
        hits, values = run.hits(i)
        np.testing.assert_array_equal(hits, found[i].numpy())
        np.testing.assert_array_equal(values, scores[i].numpy())
    assert (run.query_rows.dtype, run.offsets.dtype) == (np.int32, np.int64)
    assert (run.passage_rows.dtype, run.scores.dtype) == (np.int32, np.float32)


def test_shards_tiles_and_chunks_change_nothing():
    passages, queries = vectors(90, 2), vectors(7, 3)
    rows = np.arange(7, dtype=np.int32)
    one = run_of(queries, rows, embeddings(passages), 10)
    two = run_of(queries, rows, embeddings(passages, 4), 10, tile=2, chunk=11)
    for a, b in zip(vars(one).values(), vars(two).values(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_more_hits_than_passages():
    run = run_of(vectors(2, 4), np.arange(2), embeddings(vectors(5, 5)), 50)
    assert run.offsets.tolist() == [0, 5, 10]
    assert sorted(run.hits(1)[0].tolist()) == [0, 1, 2, 3, 4]


def test_queries_are_left_as_they_are():
    queries = vectors(2, 6, "float32")
    before = queries.copy()
    run_of(queries, np.arange(2), embeddings(vectors(5, 7, "float32")), 2)
    np.testing.assert_array_equal(queries, before)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0])
def test_a_query_vector_that_is_none_is_named(value):
    queries = vectors(3, 8)
    queries[1] = value
    with pytest.raises(NumericError, match="query q77"):
        run_of(queries, np.array([5, 77, 6]), embeddings(vectors(5, 9)), 2, "query q{}".format)


def test_requests_that_make_no_sense():
    with pytest.raises(SettingsError, match="BAD_K"):
        run_of(vectors(2, 4), np.arange(2), embeddings(vectors(5, 5)), 0)
    with pytest.raises(InputError, match="NO_QUERIES"):
        run_of(vectors(0, 4), np.arange(0), embeddings(vectors(5, 5)), 3)


def test_vectors_that_are_only_read_leave_the_filters_of_warnings_alone(monkeypatch, recwarn):
    """The filters belong to all threads, so nobody may change them, however briefly."""
    real, seen = torch.as_tensor, []

    def noted(values):
        seen.append(list(warnings.filters))
        return real(values)

    monkeypatch.setattr(torch, "as_tensor", noted)
    torch.set_warn_always(True)
    try:
        matrix = vectors(3, 0)
        matrix.flags.writeable = False
        found = as_tensor(matrix)
    finally:
        torch.set_warn_always(False)
    assert seen == [list(warnings.filters)]
    assert not recwarn.list
    assert found.data_ptr() == matrix.ctypes.data
    del matrix
    gc.collect()
    np.testing.assert_array_equal(found.numpy(), vectors(3, 0))
