"""A state of the model: its runs against brute force, published once, and made again for another question."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from hardneg.errors import ArtifactError
from hardneg.experiment.snapshot import Snapshot
from hardneg.models.loading import load_encoder
from hardneg.models.tokenizing import token_store
from hardneg.process import progress
from hardneg.search import on_demand
from hardneg.search.embeddings import encode_store
from hardneg.search.encoding import Encoding
from hardneg.storage.artifacts import load_array, read_manifest
from worlds.tiny_records import vectors_of
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

ENCODING = Encoding(token_budget=512)


@pytest.fixture(scope="module")
def world(world):
    return world.collection, load_encoder(world.model)


@pytest.fixture
def snapshot(world, tmp_path):
    def make(encoder=None, **options):
        collection, ours = world
        options = {"encoding": ENCODING, **options}
        return Snapshot(encoder or ours, collection, "state", tmp_path / "runs", tmp_path / "cache", **options)

    return make


def brute_force(vectors, passages, k):
    """Rows and scores of the k best by float64 products of the stored vectors, ties by row."""
    products = vectors.astype(np.float64) @ passages.astype(np.float64).T
    scores = products.astype(np.float32)
    order = np.array([sorted(range(len(passages)), key=lambda row, s=s: (-s[row], row))[:k] for s in scores])
    return order, np.take_along_axis(scores, order, 1)


def equals(run, order, scores):
    assert run.passage_rows.reshape(order.shape).tolist() == order.tolist()
    np.testing.assert_allclose(run.scores.reshape(order.shape), scores, rtol=1e-6)


def times(folder):
    return {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_search_equals_brute_force(snapshot, world, dtype):
    state = snapshot(encoding=Encoding(512, dtype))
    rows = np.array([3, 90, 41], np.int32)
    run = state.search("query", rows, 30)
    assert run.query_rows.tolist() == rows.tolist()
    assert np.diff(run.offsets).tolist() == [30] * 3
    assert run.collection == world[0].digest
    assert vectors_of(state.passages).dtype == dtype
    equals(run, *brute_force(state.queries.rows(rows), vectors_of(state.passages), 30))


def test_neighbours_are_those_of_the_passage_for_its_owner(snapshot):
    state = snapshot()
    owners, anchors = np.array([5, 5, 9], np.int32), np.array([100, 7, 4], np.int32)
    run = state.neighbours("lookahead", owners, anchors, 10)
    assert run.query_rows.tolist() == [5, 5, 9]
    matrix = vectors_of(state.passages)
    equals(run, *brute_force(matrix[anchors], matrix, 10))


def test_vectors_are_those_of_the_encoder_alone(snapshot, world):
    collection, encoder = world
    state = snapshot(encoding=Encoding(512, "float32"))
    for side, found in (("query", state.queries), ("passage", state.passages)):
        store = token_store(encoder, collection, state.cache, side)
        for row in (0, 17, 64):
            with torch.no_grad():
                alone = encoder.encode(store.read(np.array([row])), side)
            torch.testing.assert_close(torch.tensor(found.rows(np.array([row]))), alone, rtol=1e-5, atol=1e-5)


def test_a_published_run_is_not_made_again(snapshot):
    state, rows = snapshot(), np.arange(4, dtype=np.int32)
    state.search("query", rows, 20)
    before = times(state.folder)
    state.discard()
    again = snapshot()
    run = again.search("query", rows, 20)
    shallower = again.search("query", rows, 5)
    assert times(state.folder) == before
    assert "queries" not in again.__dict__, "nothing was encoded"
    assert shallower.passage_rows.tolist() == run.cut(5).passage_rows.tolist()
    assert np.diff(shallower.offsets).tolist() == [5] * 4


def test_the_geometry_of_the_corpus_outlives_its_embeddings(snapshot):
    state = snapshot()
    state.save_corpus_stats()
    mean, before = state.passages.mean.copy(), times(state.folder)
    state.discard()
    again = snapshot()
    again.save_corpus_stats()
    assert times(state.folder) == before
    assert "passages" not in again.__dict__, "nothing was encoded"
    assert np.array_equal(load_array(state.folder / "geometry" / "mean.npy"), mean)


@pytest.mark.parametrize("change", ["deeper", "others", "order", "encoding", "model"])
def test_another_question_is_answered_anew(snapshot, world, tmp_path, change):
    rows = np.arange(4, dtype=np.int32)
    snapshot().search("query", rows, 20)
    before = read_manifest(tmp_path / "runs/query").digest
    if change == "model":
        encoder = load_encoder(str(world[1].towers[0].transformer.name_or_path), scale=2.0)
        run = snapshot(encoder).search("query", rows, 20)
    else:
        asked = {"others": rows + 1, "order": rows[::-1]}.get(change, rows)
        encoding = Encoding(token_budget=640) if change == "encoding" else ENCODING
        run = snapshot(encoding=encoding).search("query", asked, 25 if change == "deeper" else 20)
        assert run.query_rows.tolist() == asked.tolist()
    assert read_manifest(tmp_path / "runs/query").digest != before
    assert np.diff(run.offsets).tolist() == [25 if change == "deeper" else 20] * 4


def test_more_than_there_is_gives_all(snapshot, world):
    run = snapshot().search("query", np.arange(2, dtype=np.int32), 1000)
    assert np.diff(run.offsets).tolist() == [world[0].n_passages] * 2
    assert sorted(run.hits(0)[0].tolist()) == list(range(world[0].n_passages))


def test_discard_deletes_embeddings_and_keeps_runs(snapshot, tmp_path):
    state = snapshot()
    state.search("query", np.arange(2, dtype=np.int32), 5)
    kept = times(tmp_path / "runs")
    assert len(list((tmp_path / "cache/embeddings").iterdir())) == 2
    state.discard()
    assert not list((tmp_path / "cache/embeddings").iterdir())
    assert times(tmp_path / "runs") == kept
    state.discard()  # nothing is there any more
    assert len(vectors_of(state.passages)) == 120


def test_states_of_different_weights_do_not_share_embeddings(snapshot, world, tmp_path):
    other = load_encoder(str(world[1].towers[0].transformer.name_or_path))
    with torch.no_grad():
        next(other.parameters()).mul_(1.01)
    a, b = snapshot(), snapshot(other)
    assert a.digest != b.digest
    assert not np.array_equal(vectors_of(a.passages), vectors_of(b.passages))
    assert len(list((tmp_path / "cache/embeddings").iterdir())) == 2


def test_the_digest_is_of_the_state_it_was_made_from(snapshot, world):
    encoder = load_encoder(str(world[1].towers[0].transformer.name_or_path))
    state = snapshot(encoder)
    before = state.digest
    with torch.no_grad():
        next(encoder.parameters()).mul_(1.01)
    assert state.digest == before


def test_queries_may_be_longer_in_search(snapshot, world):
    encoder = load_encoder(str(world[1].towers[0].transformer.name_or_path), query_length=4)
    short = snapshot(encoder)
    name = str(encoder.towers[0].transformer.name_or_path)
    long = snapshot(load_encoder(name, query_length=4, search_query_length=32))
    whole = snapshot()
    assert not np.array_equal(vectors_of(short.queries), vectors_of(long.queries))
    assert np.array_equal(vectors_of(whole.queries), vectors_of(long.queries))
    assert np.array_equal(vectors_of(whole.passages), vectors_of(long.passages))


def test_given_embeddings_must_be_of_this_model(snapshot, world, tmp_path):
    collection, encoder = world
    store = token_store(encoder, collection, tmp_path / "cache", "passage")
    encode_store(encoder, store, tmp_path / "given", side="passage", budget=512)
    state = snapshot(passages_at=tmp_path / "given")
    assert np.array_equal(vectors_of(state.passages), vectors_of(snapshot().passages))
    other = load_encoder(str(encoder.towers[0].transformer.name_or_path), pooling="mean")
    with pytest.raises(ArtifactError, match="OTHER_MODEL"):
        _ = snapshot(other, passages_at=tmp_path / "given").passages


def test_stages_are_measured(snapshot):
    seen = []

    @contextmanager
    def timed(stage, **facts):
        seen.append((stage, facts))
        yield facts

    snapshot(timed=timed).search("query", np.arange(3, dtype=np.int32), 5)
    assert [stage for stage, _ in seen] == ["encode", "encode", "search"]
    assert seen[-1][1] == {"run": "query", "queries": 3, "k": 5}


def test_vectors_from_the_cache_are_not_counted_as_encoded(snapshot, world):
    seen = []

    @contextmanager
    def timed(stage, **facts):
        yield facts
        seen.append((facts["side"], facts["tokens"], facts["cached"]))

    first = snapshot(timed=timed)
    first.passages, first.queries  # noqa: B018
    again = snapshot(timed=timed)
    again.passages, again.queries  # noqa: B018
    tokens = {
        side: int(token_store(world[1], world[0], first.cache, side).lengths.sum())
        for side in ("passage", "query")
    }
    assert seen[:2] == [("passage", tokens["passage"], False), ("query", tokens["query"], False)]
    assert seen[2:] == [("passage", 0, True), ("query", 0, True)]


def test_search_texts_is_a_search_of_the_collections_own(snapshot, world):
    state = snapshot()
    texts = world[0].query_texts.take(np.array([3, 8]))
    found = state.search_texts(texts, 10)
    expected = state.search("query", np.array([3, 8], np.int32), 10)
    assert found.query_rows.tolist() == [0, 1]
    assert found.passage_rows.tolist() == expected.passage_rows.tolist()


def test_the_mode_of_the_encoder_is_put_back(snapshot, world):
    encoder = load_encoder(str(world[1].towers[0].transformer.name_or_path))
    encoder.train()
    a = vectors_of(snapshot(encoder).passages)
    assert encoder.training
    assert np.array_equal(a, vectors_of(snapshot().passages))  # without dropout


def test_queries_on_demand_give_a_sign_of_life_for_each_batch(snapshot, world, monkeypatch):
    """Those who wait for a process that encodes take it for dead without one."""
    monkeypatch.setattr(on_demand, "AT_ONCE", 8)
    collection, encoder = world
    state, rows = snapshot(sparing=True), np.arange(30, dtype=np.int32)[::-1].copy()
    store = token_store(encoder, collection, state.cache, "query")
    before = progress.beats
    found = state.queries.rows(rows)
    assert progress.beats - before == 4
    with encoder.inference("float32"):
        parts = [encoder.encode(store.read(rows[i : i + 8]), "query").cpu().numpy() for i in range(0, 30, 8)]
    assert np.array_equal(found, np.concatenate(parts).astype("float16"))
    assert state.queries.rows(rows) is found


def test_many_queries_on_demand_are_held_once(snapshot, monkeypatch):
    state = snapshot(sparing=True)
    monkeypatch.setattr(on_demand, "BESIDE", 5 * state.encoder.dim * 2)  # the vectors of five queries in float16
    queries, encoded, held = state.queries, [], []
    encode = queries._encoded

    def counted(rows):
        held.append([len(one) for one in queries._last.values()])
        encoded.append(len(rows))
        return encode(rows)

    monkeypatch.setattr(queries, "_encoded", counted)
    for rows in (np.arange(9), np.arange(4), np.arange(9), np.arange(10, 18), np.arange(3), np.arange(10, 18)):
        queries.rows(rows)
    assert encoded == [9, 4, 8, 3]
    assert held == [[], [9], [4], [8]]


def test_dev_and_test_are_encoded_once_on_demand(snapshot, monkeypatch):
    """A state searches dev, then test; then its errors on dev are counted, then those on test."""
    state, encoded = snapshot(sparing=True), []
    queries, dev, test = state.queries, np.arange(8000), np.arange(10_000, 21_000)
    queries.whole_from = 50_000

    def zeros(rows):
        encoded.append(len(rows))
        return np.zeros((len(rows), state.encoder.dim), "float16")

    monkeypatch.setattr(queries, "_encoded", zeros)
    for rows in (dev, test, dev, test):
        queries.rows(rows)
    assert encoded == [8000, 11_000]
