"""Tokenizers without special or padding tokens, and two lengths in one folder, against sentence-transformers."""

import pytest
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from hardneg.data.tokens import token_batch
from hardneg.errors import InputError
from hardneg.models.loading import load_encoder
from hardneg.models.saving import save_encoder
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
