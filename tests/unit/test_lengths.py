"""How many texts are cut, against counting tokens one text at a time."""

from dataclasses import replace

import numpy as np
import pytest

from calls import uncalled
from hardneg.data import tokens
from hardneg.data.tokens import TokenStore
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.lengths import Cut, draw, lengths_of, percent
from hardneg.models.loading import load_encoder
from hardneg.storage.artifacts import MANIFEST, read_manifest
from hardneg.storage.disk import write_json
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

OWN = EncoderSettings(query_length=64, passage_length=64)


@pytest.fixture(scope="module")
def world(world):
    return *world, world.root / "cache"


def length_of(encoder, side):
    return {one.template.side: one for one in lengths_of(encoder, OWN)}[side]


def tokens_of(collection, encoder, side, row):
    """Tokens of a whole text, special ones included."""
    if side == "query":
        return len(encoder.tokenizer(side).encode(collection.query_texts.take([row])[0]))
    title, text = collection.titles.take([row])[0], collection.texts.take([row])[0]
    return len(encoder.tokenizer(side).encode(f"{title} [SEP] {text}" if title else text))


@pytest.mark.parametrize("passage_length", [5, 9, 10, 11, 12, 13, 14])
def test_what_is_cut_is_counted_text_by_text(world, passage_length):
    collection, model, cache = world
    encoder = load_encoder(model, passage_length=passage_length, query_length=5)
    for side, n, length in (
        ("passage", collection.n_passages, passage_length),
        ("query", collection.n_queries, 5),
    ):
        cut = sum(tokens_of(collection, encoder, side, row) > length for row in range(n))
        found = length_of(encoder, side).count_cut(collection, cache)
        for one in (found, length_of(encoder, side).sample_cut(collection, n)):
            assert (one.length, one.own, one.texts, one.cut, one.exact) == (length, 64, n, cut, True)


@pytest.mark.parametrize("chunks", [2, 3])
def test_of_a_document_what_goes_beyond_its_last_chunk_is_cut(world, chunks):
    collection, model, cache = world
    encoder = load_encoder(model, chunks=chunks, passage_length=6)  # four words a chunk
    words = [tokens_of(collection, encoder, "passage", row) - 2 for row in range(collection.n_passages)]
    found = length_of(encoder, "passage").count_cut(collection, cache)
    assert found.cut == sum(count > 4 * chunks for count in words)
    assert f"at {chunks} chunks of 6 tokens" in str(found)


def test_of_many_texts_some_are_drawn_and_it_is_said(world):
    collection, model, cache = world
    length = length_of(
        load_encoder(model, passage_length=10), "passage"
    )  # eight words, two special tokens: some fit
    whole, found = length.count_cut(collection, cache), length.sample_cut(collection, 100)
    assert found == length.sample_cut(collection, 100)
    assert not found.exact
    assert abs(found.cut - whole.cut) < 10
    assert str(found).endswith("(the model takes 64), by a sample of 100")
    assert found.as_json()["drawn"] == 100


@pytest.mark.parametrize(("cut", "said"), [(3, "under 1 % of"), (500, "about 50 % of"), (999, "over 99 % of")])
def test_an_estimate_is_told_in_words_that_fit(cut, said):
    found = Cut("query", 64, 64, texts=1000, cut=cut, exact=False, drawn=512)
    assert found.told.startswith(said)


def test_a_store_of_an_older_version_is_kept_and_its_cut_texts_are_estimated(world, tmp_path):
    collection, model, _ = world
    length = length_of(load_encoder(model, passage_length=10), "passage")
    whole = length.count_cut(collection, tmp_path)
    (path,) = (tmp_path / "tokens").iterdir()
    write_json(path / MANIFEST, replace(read_manifest(path), facts={}).as_json())
    with uncalled(tokens, "_build", control=lambda: length.count_cut(collection, tmp_path / "another")):
        found = length.count_cut(collection, tmp_path)
    assert found == length.sample_cut(collection)
    assert (found.cut, found.exact) == (whole.cut, True)  # of few texts all are drawn
    assert TokenStore.open(path).cut is None


def test_a_drawn_part_is_spread_and_the_same_every_time():
    rows = np.arange(1000) * 2
    drawn = draw(rows, 100)
    assert drawn.tolist() == draw(rows, 100).tolist() == sorted(set(drawn.tolist()))
    assert 800 < drawn.mean() < 1200
    assert draw(rows, 1000) is rows


def test_what_people_read():
    cut = Cut("passage", 64, 256, 15775, 5837)
    assert str(cut) == "passages: 37 % of 15,775 are cut at 64 tokens (the model takes 256)"
    assert str(Cut("query", 32, 32, 10, 0)) == "queries: none is cut at 32 tokens"
    assert [percent(share) for share in (1e-9, 0.01, 0.5, 0.99, 0.999, 1.0)] == [
        "under 1 %",
        "1 %",
        "50 %",
        "99 %",
        "over 99 %",
        "100 %",
    ]
