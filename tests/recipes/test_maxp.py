"""Recipes on documents of several chunks: steps against a slow re-implementation, what is mined, and resuming."""

from functools import partial

import pytest
import torch
from reference_pairs import SlowPairs, nll
from reference_star import SlowStar
from reference_tele import SlowEncoder, SlowTele

from faults.power import assert_resumes
from hardneg.data.training_data import choose_splits
from hardneg.errors import SettingsError
from hardneg.models.loading import load_encoder
from hardneg.recipes import ance_tele, star, warmup
from hardneg.recipes.adore import recipe as adore
from hardneg.recipes.ance import recipe as ance
from hardneg.training import gradient_cache
from worlds.tiny_world import one_thread, tiny_model  # noqa: F401

LENGTH, CHUNKS = 5, 3  # most documents have more words than that leaves room for


class SlowDocuments(SlowTele):
    """A document is a list of vectors, one a chunk; its score is the highest."""

    def encode_passage(self, row):
        tokenizer, title = self.passage.tokenizer, self.collection.titles.take([row])[0]
        cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
        ids = [*tokenizer.encode(title, add_special_tokens=False), sep] if title else []
        ids += tokenizer.encode(self.text(row), add_special_tokens=False)
        pieces = [ids[i : i + LENGTH - 2] for i in range(0, len(ids), LENGTH - 2)][:CHUNKS]
        return [self.passage.encode_ids([cls, *piece, sep]) for piece in pieces]

    def score(self, vector, passage):
        scores = [vector @ chunk for chunk in passage]
        return max(scores, key=torch.Tensor.item)


class SlowDocumentPairs(SlowDocuments, SlowPairs):
    """The same, with a loss of pairs."""


class SlowDocumentStar(SlowDocuments, SlowStar):
    """The same, with STAR's."""


@pytest.fixture(scope="module")
def documents(world):
    """The encoder that cuts, and what it is to every recipe."""
    return load_encoder(world.calm, chunks=CHUNKS, passage_length=LENGTH)


@pytest.fixture(scope="module")
def second(world, tmp_path_factory):
    """The folder of another model, for the passages of an untied encoder."""
    return tiny_model(tmp_path_factory.mktemp("second") / "model", world.collection, dropout=0.0, seed=1)


CACHE = {"gradient_cache": True, "cache_tokens": 40}  # fewer than a step's documents have
TELE = {"episodes": 1, "steps": 3, "count": 6, "passages_reference": [4], "warmup": 1}
STAR = {"steps": 3, "warmup": 1, "negatives_per_query": 2}
RECIPES = {
    "ance-tele": (ance_tele.RECIPE, SlowDocuments, TELE),
    "ance-tele, cached": (ance_tele.RECIPE, SlowDocuments, TELE | CACHE),
    "ance": (ance.RECIPE, SlowDocumentPairs, {"refresh_every": 2, "refreshes": 1, "warmup": 1}),
    "warmup": (
        warmup.RECIPE,
        SlowDocuments,
        {"mixtures": ["bm25+in_batch"], "steps": [3], "warmup": 1},
    ),
    "star": (star.RECIPE, SlowDocumentStar, STAR),
    "star, weighed": (star.RECIPE, SlowDocumentStar, STAR | {"alpha": 0.2}),
    "star, untied and cached": (star.RECIPE, SlowDocumentStar, STAR | CACHE),
}


def count_chunks_of_the_cache(monkeypatch):
    """A list that grows by the number of chunks of each batch that goes through the gradient cache."""
    counts, plan = [], gradient_cache.plan_batches

    def counted(*arguments):
        found = plan(*arguments)
        counts.append(len(found))
        return found

    monkeypatch.setattr(gradient_cache, "plan_batches", counted)
    return counts


@pytest.mark.parametrize("name", RECIPES)
def test_steps_equal_a_slow_reimplementation(run_states, world, documents, second, name, monkeypatch):
    recipe, kind, settings = RECIPES[name]
    rates = (1e-3, 1e-3, 2e-3 / 3, 1e-3 / 3) if name == "ance" else (1e-3, 1e-3, 1e-3 / 2)  # by hand
    other = second if "untied" in name else None
    base = load_encoder(world.calm, other, chunks=CHUNKS, passage_length=LENGTH) if other else documents
    pieces = count_chunks_of_the_cache(monkeypatch)
    done = run_states(recipe, base=base, **settings)
    train = choose_splits(world.collection, dev="none").train
    towers = [SlowEncoder(folder) for folder in (world.calm, *([other] if other else []))]
    slow = kind(world.collection, train, *towers, in_batch=name != "ance")
    slow.pair, slow.alpha = nll, settings.get("alpha")
    for row, batch, rate in zip(done.metrics, done.batches, rates, strict=True):
        loss, norm = slow.train([(batch.query_rows.tolist(), batch.passage_rows.tolist())], rate=rate)
        assert row["lr"] == pytest.approx(rate)
        assert row["loss"] == pytest.approx(loss, abs=2e-4)
        assert row["grad_norm"] == pytest.approx(norm, rel=2e-3)
    assert (max(pieces, default=0) > 3) == ("cached" in name)


def test_it_resumes_to_the_same_bytes(run_states, documents, tmp_path):
    settings = {"refresh_every": 4, "refreshes": 1, "warmup": 2}
    files = ("model/model.safetensors", "metrics.jsonl", "versions/v0001/passage_rows.npy")
    execute = partial(run_states, ance.RECIPE, base=documents, **settings)
    assert_resumes(execute, tmp_path, after=6, files=files)


def test_adore_refuses_documents_of_several_vectors(world, documents):
    data = choose_splits(world.collection, dev="none")
    with pytest.raises(SettingsError, match="chunks = 3"):
        adore.RECIPE.check(adore.Adore(cut=10, steps=1), data, documents)
