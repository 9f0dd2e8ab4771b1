"""Queries may be longer in search than in training steps: saved with the model, and used wherever it searches."""

import dataclasses
import json

import numpy as np
import pytest

import hardneg as hn
from hardneg.data.formats.trec import read_run
from hardneg.data.tokens import tokenize
from hardneg.data.training_data import choose_splits
from hardneg.diagnostics.counted_errors import load_errors
from hardneg.diagnostics.judge import Judge
from hardneg.diagnostics.search_state import search_state
from hardneg.errors import SettingsError
from hardneg.evaluation.measures import parse_measures
from hardneg.experiment.metrics import Metrics
from hardneg.experiment.snapshot import Snapshot
from hardneg.models.loading import load_encoder
from hardneg.models.saving import save_encoder
from hardneg.models.tokenizing import token_store
from hardneg.negatives.mining import QueryScores, mine_candidates
from hardneg.process.hardware import best_precision
from hardneg.records import owners
from hardneg.search.embeddings import Embeddings
from hardneg.search.encoding import Encoding
from worlds.tiny_records import vectors_of
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

SHORT, LONG = 3, 5  # [CLS], one or three words, [SEP]


@pytest.fixture(scope="module")
def world(calm):
    """A collection whose queries have three words, and a model that is trained on one of them."""
    root, (collection, folder) = calm.root, calm
    encoder = load_encoder(folder, folder, query_length=SHORT, search_query_length=LONG)
    save_encoder(encoder, root / "untied")
    save_encoder(load_encoder(folder, query_length=SHORT, search_query_length=LONG), root / "tied")
    return root, collection, folder


@pytest.mark.parametrize("name", ["tied", "untied"])
def test_both_lengths_are_saved(world, name):
    root, _, _ = world
    encoder = load_encoder(str(root / name))
    assert (encoder.settings.query_length, encoder.settings.search_query_length) == (SHORT, LONG)
    assert encoder.template("query").max_length == SHORT
    assert encoder.search_template("query") == dataclasses.replace(encoder.template("query"), max_length=LONG)
    assert encoder.search_template("passage") == encoder.template("passage")
    query = root / name / "query" if name == "untied" else root / name
    if name == "untied":  # what another program reads is the length of search
        assert json.loads((query / "sentence_bert_config.json").read_text())["max_seq_length"] == LONG


def test_training_steps_and_search_read_one_store_but_for_the_length(world, tmp_path):
    root, collection, folder = world
    encoder = load_encoder(str(root / "tied"))
    training, searching = (
        {
            side: token_store(encoder, collection, tmp_path, side, searching=is_search)
            for side in ("query", "passage")
        }
        for is_search in (False, True)
    )
    assert training["passage"].digest == searching["passage"].digest
    assert set(training["query"].lengths.tolist()) == {SHORT}
    assert set(searching["query"].lengths.tolist()) == {LONG}
    plain = load_encoder(folder)
    stores = [token_store(plain, collection, tmp_path, "query", searching=both) for both in (False, True)]
    assert stores[0].digest == stores[1].digest


def expected_vectors(encoder, collection, length):
    template = dataclasses.replace(encoder.template("query"), max_length=length)
    store = tokenize(collection, template, encoder.tokenizer("query"), collection.path.parent / "tokens")
    with encoder.inference(best_precision("cpu")):
        return encoder.encode(store.read(np.arange(collection.n_queries)), "query").numpy()


@pytest.mark.parametrize("name", ["tied", "untied"])
def test_encode_and_search_use_the_length_of_search(world, name, tmp_path):
    root, collection, _ = world
    model, encoder = str(root / name), load_encoder(str(root / name))
    vectors = expected_vectors(encoder, collection, LONG)
    assert not np.allclose(vectors, expected_vectors(encoder, collection, SHORT), atol=1e-3)
    options = {"device": "cpu", "cache": tmp_path / "cache"}
    hn.encode(collection, model, tmp_path / "q", side="query", dtype="float32", **options)
    np.testing.assert_allclose(vectors_of(Embeddings.open(tmp_path / "q")), vectors, atol=1e-5)

    hn.search_split(collection, tmp_path / "run.trec", model=model, split="test", k=3, **options)
    run = read_run(tmp_path / "run.trec", collection.query_ids, collection.passage_ids)
    encoding = Encoding(precision=best_precision("cpu"))
    state = Snapshot(encoder, collection, "s", tmp_path / "runs", tmp_path / "cache", encoding=encoding)
    passages = vectors_of(state.passages)
    products = vectors[run.query_rows] @ passages.T.astype(np.float32)
    best = products[np.arange(len(products)), run.passage_rows[::3]]
    np.testing.assert_allclose(best, products.max(axis=1), atol=1e-4)  # near ties may go either way
    row = int(run.query_rows[0])
    hits = hn.search_text(collection, collection.query_texts[row], model=model, k=1, **options)
    assert hits[0]["passage_id"] == collection.passage_ids[int(run.passage_rows[0])]
    assert hits[0]["score"] == pytest.approx(float(products[0].max()), abs=1e-2)


def test_a_trained_model_remembers_it(world, tmp_path):
    _, collection, folder = world
    values = {"query_length": SHORT, "search_query_length": LONG, "episodes": 1, "steps": 1, "queries_per_step": 4}
    values |= {"depth": 5, "count": 2, "passages_reference": [2], "precision": "float32", "measures": "RR@10"}
    hn.train_ance_tele(collection, folder, tmp_path / "exp", device="cpu", **values)
    settings = load_encoder(str(tmp_path / "exp/model")).settings
    assert (settings.query_length, settings.search_query_length) == (SHORT, LONG)


class Watched(Snapshot):
    """Notes, by name of the run, the longest query of the token store that it searched with."""

    def _run(self, name, *args, **options):
        self.searching = name
        return super()._run(name, *args, **options)

    def _search(self, index, vectors, query_rows, k):
        for length, queries in ((SHORT, self.training_queries), (LONG, self.queries)):
            if np.array_equal(np.asarray(vectors), queries.rows(query_rows)):
                store = self._embeddings("query", searching=length == LONG)[0]
                self.longest[self.searching] = int(store.lengths.max())
        return super()._search(index, vectors, query_rows, k)


def scores_of(encoder, collection, length, folder):
    """[queries, passages] by queries of this length."""
    state = Snapshot(encoder, collection, "s", folder / "other", folder / "cache", encoding=Encoding())
    return expected_vectors(encoder, collection, length) @ vectors_of(state.passages).T.astype(np.float32)


@pytest.mark.parametrize("name", ["tied", "untied"])
def test_queries_of_the_test_are_as_long_as_search_and_all_others_as_training(world, name, tmp_path, in_float32):
    root, collection, _ = world
    encoder, data = load_encoder(str(root / name)), choose_splits(collection)
    state = Watched(encoder, collection, "s", tmp_path / "runs", tmp_path / "cache", encoding=Encoding())
    state.longest = {}
    search_state(state, Judge(data, parse_measures("RR@10"), tmp_path / "cache"), depth=5)
    assert state.longest == {"query": SHORT, "dev": SHORT, "test": LONG}  # forgetting is that of "query"

    scores = {length: scores_of(encoder, collection, length, tmp_path) for length in (SHORT, LONG)}
    pool = mine_candidates(state, data.train, "query", episode=1, depth=5)
    expected = scores[SHORT][pool.query_rows[owners(pool.offsets)], pool.passage_rows]
    np.testing.assert_allclose(pool.scores, expected, atol=5e-2)
    some = data.train.some()
    each = scores[SHORT][some.query_rows[owners(some.offsets)], some.passage_rows]
    lowest = np.minimum.reduceat(each, some.offsets[:-1])
    margins = QueryScores.of(state, data.train, "query").positives_lowest()
    np.testing.assert_allclose(margins, lowest, atol=5e-2)
    for split, length in (("dev", SHORT), ("test", LONG)):  # the errors of a split are those of its run
        errors, positives = load_errors(tmp_path / f"runs/{split}-errors"), getattr(data, split).positives()
        expected = scores[length][positives.query_rows[owners(positives.offsets)], positives.passage_rows]
        np.testing.assert_allclose(errors.scores, expected, atol=5e-2)


def test_runs_of_queries_of_another_length_are_not_taken_for_these(world, tmp_path):
    root, collection, _ = world
    rows = np.arange(6, dtype=np.int32)

    def state():
        encoder = load_encoder(str(root / "tied"))
        return Snapshot(encoder, collection, "s", tmp_path / "runs", tmp_path / "cache", encoding=Encoding())

    long, short = state().search("run", rows, 5), state().search("run", rows, 5, as_trained=True)
    assert not np.array_equal(long.scores, short.scores)
    again = state()
    assert np.array_equal(again.search("run", rows, 5, as_trained=True).scores, short.scores)
    assert "training_queries" not in again.__dict__  # what stands there serves
    _ = again.queries, again.training_queries
    places = [again._embeddings("query", searching=both)[1] for both in (True, False)]
    assert all(place.exists() for place in places)
    again.discard("query")
    assert not any(place.exists() for place in places)


@pytest.mark.parametrize("frozen", [{"teacher": "itself"}, {"filter_by": "start"}, {"filter_by": "itself"}])
def test_a_frozen_model_reads_what_training_steps_read(world, tmp_path, frozen, in_float32):
    """A model that teaches itself has nothing to learn; with longer queries the loss was 0.24 here."""
    root, collection, _ = world
    model = str(root / "tied")
    named = {option: model if place == "itself" else place for option, place in frozen.items()}
    bound = {"max_score": 1e9} if "filter_by" in frozen else {}
    values = {"steps": 1, "queries_per_step": 4, "depth": 5, "negatives_per_query": 3}
    values |= {"precision": "float32", "store_dtype": "float32", "measures": "RR@10", "device": "cpu"}
    taught = {"distill": "kl", "distill_weight": 1.0, **bound, **named}
    hn.train("star", collection, model, tmp_path / "exp", **values, **taught)
    [step] = Metrics(tmp_path / "exp/metrics.jsonl").read()
    assert step["loss"] == pytest.approx(0, abs=1e-5)


def test_a_pool_is_scored_as_training_reads_and_a_run_as_search_does(world, tmp_path, in_float32):
    root, collection, _ = world
    model, options = str(root / "tied"), {"device": "cpu", "cache": tmp_path / "cache"}
    scores = {length: scores_of(load_encoder(model), collection, length, tmp_path) for length in (SHORT, LONG)}
    hn.mine(collection, None, tmp_path / "pool", sources=["bm25"], count=3, **options)
    pool = hn.score(tmp_path / "pool", tmp_path / "scored", data=collection, ranker=model, **options)
    pairs = pool.query_rows[owners(pool.offsets)], pool.passage_rows
    np.testing.assert_allclose(pool.ranker_scores, scores[SHORT][pairs], atol=5e-2)
    assert not np.allclose(scores[SHORT][pairs], scores[LONG][pairs], atol=0.1)

    hn.search_split(collection, tmp_path / "run.trec", bm25=True, split="test", k=3, cache=tmp_path / "cache")
    hn.rerank(tmp_path / "run.trec", tmp_path / "better.trec", data=collection, ranker=model, **options)
    run = read_run(tmp_path / "better.trec", collection.query_ids, collection.passage_ids)
    expected = scores[LONG][run.query_rows[owners(run.offsets)], run.passage_rows]
    np.testing.assert_allclose(run.scores, expected, atol=5e-2)


def test_triviaqa_trains_mines_and_develops_by_32_and_is_tested_by_64():
    settings = hn.settings_of("ance-tele", "triviaqa")
    assert (settings.query_length, settings.search_query_length) == (32, 64)


def test_no_longer_than_the_model_takes(world):
    _, _, folder = world
    with pytest.raises(SettingsError, match="search_query_length = 65, the model takes 64"):
        load_encoder(folder, search_query_length=65)
    with pytest.raises(SettingsError, match="search_query_length = 0"):
        load_encoder(folder, search_query_length=0)
