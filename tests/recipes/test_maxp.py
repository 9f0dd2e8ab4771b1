"""Recipes on documents of several chunks: steps against a slow re-implementation, what is mined, and resuming."""

import pytest
import torch
from slow_pairs import SlowPairs, nll
from slow_tele import SlowEncoder, SlowTele

from hardneg.data.training_data import choose_splits
from hardneg.errors import SettingsError
from hardneg.experiment import stage
from hardneg.models.loading import load_encoder
from hardneg.recipes import adore, ance, ance_tele, warmup
from tiny_world import one_thread  # noqa: F401

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


@pytest.fixture(scope="module")
def documents(world):
    """The encoder that cuts, and what it is to every recipe."""
    return load_encoder(world.calm, chunks=CHUNKS, passage_length=LENGTH)


# Recipe, settings, and the rates of all steps by hand: one step of warm-up, then down to 0 after the last.
RECIPES = {
    "ance_tele": (
        ance_tele.RECIPE,
        {"episodes": 1, "steps": 3, "count": 6, "passages_reference": [4], "warmup": 1},
        (1e-3, 1e-3, 1e-3 / 2),
    ),
    "ance": (ance.RECIPE, {"refresh_every": 2, "refreshes": 1, "warmup": 1}, (1e-3, 1e-3, 2e-3 / 3, 1e-3 / 3)),
    "warmup": (
        warmup.RECIPE,
        {"mixtures": ["bm25+in_batch"], "steps": [3], "warmup": 1},
        (1e-3, 1e-3, 1e-3 / 2),
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_steps_equal_a_slow_reimplementation(run_states, world, documents, name):
    recipe, settings, rates = RECIPES[name]
    done = run_states(recipe, base=documents, **settings)
    train = choose_splits(world.collection, dev="none").train
    kind = SlowDocumentPairs if name == "ance" else SlowDocuments
    slow = kind(world.collection, train, SlowEncoder(world.calm), in_batch=name != "ance")
    slow.pair = nll
    for row, batch, rate in zip(done.metrics, done.batches, rates, strict=True):
        loss, norm = slow.train([(batch.query_rows.tolist(), batch.passage_rows.tolist())], rate=rate)
        assert row["lr"] == pytest.approx(rate)
        assert row["loss"] == pytest.approx(loss, abs=2e-4)
        assert row["grad_norm"] == pytest.approx(norm, rel=2e-3)


def test_it_resumes_to_the_same_bytes(run_states, documents, tmp_path, monkeypatch):
    class Power(BaseException):
        pass

    settings = {"refresh_every": 4, "refreshes": 1, "warmup": 2}
    whole = run_states(ance.RECIPE, base=documents, **settings)
    real = stage.save_checkpoint

    def failing(folder, step, *args, **named):
        real(folder, step, *args, **named)
        if step == 6:
            raise Power

    monkeypatch.setattr(stage, "save_checkpoint", failing)
    with pytest.raises(Power):
        run_states(ance.RECIPE, path=tmp_path, base=documents, **settings)
    monkeypatch.undo()
    run_states(ance.RECIPE, path=tmp_path, base=documents, **settings)
    for name in ("model/model.safetensors", "metrics.jsonl", "versions/v0001/passage_rows.npy"):
        assert (tmp_path / name).read_bytes() == (whole.path / name).read_bytes()


def test_adore_refuses_documents_of_several_vectors(world, documents):
    data = choose_splits(world.collection, dev="none")
    with pytest.raises(SettingsError, match="chunks = 3"):
        adore.RECIPE.check(adore.Adore(cut=10, steps=1), data, documents)
