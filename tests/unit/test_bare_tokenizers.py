"""Tokenizers without special or padding tokens, or that split special ones, against sentence-transformers."""

import copy
import json
import shutil

import pytest
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from hardneg.data.tokens import ENOUGH, token_batch
from hardneg.errors import InputError, SettingsError
from hardneg.models.loading import load_encoder, open_encoder
from hardneg.models.plain_bert import PlainBert
from hardneg.models.rankers import new_ranker
from hardneg.models.saving import save_encoder
from hardneg.models.source import ModelSource
from worlds.few_texts import QUERIES, TEXTS, close, embed, tokens_of


@pytest.fixture
def bare(roberta, tmp_path):
    """A model whose tokenizer puts nothing around texts and has no padding token, like those of many decoders."""
    tokenizer = AutoTokenizer.from_pretrained(roberta).backend_tokenizer
    plain = type(tokenizer).from_str(tokenizer.to_str())
    plain.post_processor = None
    wrapped = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="</s>", model_max_length=512)
    AutoModel.from_pretrained(roberta, add_pooling_layer=False).save_pretrained(tmp_path / "bare")
    wrapped.save_pretrained(tmp_path / "bare")
    return tmp_path / "bare"


def test_a_text_without_a_token_is_refused(bare, tmp_path):
    encoder = load_encoder(bare, pooling="mean", title_join="space", query_length=64, passage_length=64)
    template, tokenizer = encoder.search_template("query"), encoder.tokenizer("query")
    with pytest.raises(InputError, match="a text has no token") as fault:
        encoder.encode(token_batch(["some", "", "more"], [], template, tokenizer), "query")
    assert fault.value.code == "NO_TOKENS"
    assert len(tokens_of(encoder, "passage", tmp_path)) == len(TEXTS)


def test_a_model_without_a_padding_token_is_saved_with_one(bare, tmp_path, sentence_transformers):
    encoder = load_encoder(bare, pooling="mean", title_join="space", query_length=64, passage_length=64)
    assert encoder.tower("query").pretrained_tokenizer.pad_token is None
    save_encoder(encoder, tmp_path / "saved")
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    close(theirs.encode_query(QUERIES), embed(encoder, "query", tmp_path))
    assert load_encoder(tmp_path / "saved").digest() == encoder.digest()
    assert encoder.tower("query").pretrained_tokenizer.pad_token is None


# ---------------------------------------------------------------- two lengths in one folder


def test_the_card_says_how_to_cut_each_side(bert, tmp_path, sentence_transformers):
    encoder = load_encoder(str(bert), pooling="mean", query_length=8, passage_length=40, use_titles=False)
    save_encoder(encoder, tmp_path / "model")
    card = (tmp_path / "model/README.md").read_text()
    code = (
        card.partition("```python\n")[2].partition("queries =")[0].replace("this folder", str(tmp_path / "model"))
    )
    said = {}
    exec(code, said)
    close(said["query_model"].encode_query(QUERIES), embed(encoder, "query", tmp_path))
    close(said["passage_model"].encode_document(TEXTS), embed(encoder, "passage", tmp_path))


# ---------------------------------------------------------------- special tokens that stand in texts


def test_special_tokens_in_texts_are_words_where_the_tokenizer_says_so(bert, tmp_path, sentence_transformers):
    """As sentence-transformers reads them; copies, other threads and remembered models read them alike."""
    folder = shutil.copytree(bert, tmp_path / "model")
    usual = load_encoder(folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"split_special_tokens": True}))
    text = "find [SEP] passages [MASK] here"
    source = ModelSource.at(folder, device="cpu")
    encoder, *others = (open_encoder(source, recalled=cache) for cache in (None, tmp_path, tmp_path))
    assert encoder.settings.title_join == "space"
    save_encoder(encoder, tmp_path / "saved")
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    expected = theirs.tokenizer(text)["input_ids"]
    assert expected != usual.tokenizer("query").encode(text).ids
    for one in (encoder, *others, copy.deepcopy(encoder), load_encoder(tmp_path / "saved")):
        for texts in ([text], [text] * ENOUGH):
            found = token_batch(texts, [], one.search_template("query"), one.tokenizer("query"))
            assert found.ids[: found.offsets[1]].tolist() == expected
        assert one.digest() == encoder.digest() != usual.digest()
    assert isinstance(others[1].tower("query").transformer, PlainBert)


def test_no_title_is_joined_by_a_separator_that_would_be_read_as_a_word(bert, tmp_path):
    folder = shutil.copytree(bert, tmp_path / "model")
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"split_special_tokens": True}))
    with pytest.raises(SettingsError, match=r"NO_SEPARATOR: .* \(split_special_tokens\)"):
        tokens_of(load_encoder(folder, title_join="sep"), "passage", tmp_path)
    save_encoder(load_encoder(folder, title_join="sep", use_titles=False), tmp_path / "saved")
    assert new_ranker(ModelSource.at(folder), seed=0).settings.title_join == "space"
    assert new_ranker(ModelSource.at(bert), seed=0).settings.title_join == "sep"
