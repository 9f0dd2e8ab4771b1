"""Tokenising by words gives the ids, lengths and counts that the tokenizer gives for whole texts."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from hardneg.data import tokens, words
from hardneg.data.tokens import cut_texts, plain_tokenizer, special_around, token_batch
from hardneg.data.words import WordTokenizer, parts_at_blanks
from hardneg.records import TextTemplate
from worlds.tiny_models import tiny_roberta

PIECES = ["a", "b", "c", "d", "é", "ß", "中", "文", "##a", "##b", "##c", "##d", ".", ",", "ab", "##cd", "[", "]"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIGNS = [
    *"abcdABCDéÉßİΣς",
    " ",
    "  ",
    " ",
    "\t",
    "\n",
    "\r",
    "\u00a0",
    "\u3000",
    "\u200b",
    "\u0301",
    " \u0301",
    "\u0000",
]
SIGNS += [
    "\x1c",
    "\x85",
    "\u2028",
    "\ufeff",
    "中文",
    "한국",
    "😀",
    "\u0303",
    "ﬁ",
    "Å",
    ".",
    ",",
    "-",
    "'",
    "##",
    "[",
    "]",
]
SIGNS += ["[SEP]", "[MASK]", " [SEP] ", "[sep]", "a" * 120, "<new>", "x<new>y", "New", "naïve", "क्षि", "\ud7a3"]


def tokenizer_of(normalizer, pre_tokenizer):
    vocabulary = {piece: i for i, piece in enumerate([*SPECIAL, *PIECES])}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizer
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.add_special_tokens([AddedToken(SPECIAL[4], lstrip=True), *SPECIAL[:4]])
    made.add_tokens([AddedToken("<new>", single_word=True), AddedToken("New", normalized=True)])
    return made


def texts_at_random(n, seed):
    draw = random.Random(seed)
    return ["", " ", "\n", *("".join(draw.choices(SIGNS, k=draw.randrange(40))) for _ in range(n))]


@pytest.mark.parametrize(
    "normalizer",
    [
        None,
        normalizers.BertNormalizer(lowercase=True),
        normalizers.BertNormalizer(lowercase=False, strip_accents=True),
        normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, lowercase=True),
    ],
)
@pytest.mark.parametrize(
    "pre_tokenizer",
    ["BertPreTokenizer", "WhitespaceSplit", "Whitespace"],
)
def test_ids_are_those_of_whole_texts(monkeypatch, normalizer, pre_tokenizer):
    tokenizer, some = tokenizer_of(normalizer, getattr(pre_tokenizers, pre_tokenizer)()), texts_at_random(150, 1)
    assert parts_at_blanks(tokenizer)
    for length, chunks in ((4, 1), (9, 1), (9, 3), (500, 1), (500, 2)):
        template = TextTemplate("passage", length, chunks=chunks, title_join="sep")
        found = []
        for enough, known in ((10**9, 0), (1, 50), (1, 1 << 18)):
            monkeypatch.setattr(tokens, "ENOUGH", enough)
            monkeypatch.setattr(words, "KNOWN", known)
            monkeypatch.setattr(tokens, "BLOCK", 64)
            batch = token_batch(some, some[::-1], template, tokenizer)
            found.append((batch, cut_texts(some, some[::-1], template, tokenizer)))
        for batch, cut in found[1:]:
            np.testing.assert_array_equal(batch.offsets, found[0][0].offsets)
            np.testing.assert_array_equal(batch.ids, found[0][0].ids)
            np.testing.assert_array_equal(cut, found[0][1])


def test_stores_are_the_same(world, tmp_path, monkeypatch):
    from hardneg.models.loading import load_encoder

    encoder = load_encoder(world.model)
    digests = set()
    for enough in (1, 10**9):
        monkeypatch.setattr(tokens, "ENOUGH", enough)
        for chunks in (1, 2):
            template = replace(encoder.template("passage"), max_length=6, chunks=chunks)
            store = tokens.tokenize(
                world.collection, template, encoder.tokenizer("passage"), tmp_path / str(enough)
            )
            digests.add((chunks, store.digest, store.cut, store.ids.tobytes(), store.ids.dtype))
    assert len(digests) == 2


def test_a_piece_is_tokenised_once():
    tokenizer = plain_tokenizer(tokenizer_of(None, pre_tokenizers.WhitespaceSplit()))
    by_words = WordTokenizer(tokenizer, special_around(tokenizer))
    by_words.sequences(["ab cd", "ab  ab"], 9, 1)
    assert list(by_words.places) == ["ab", "cd", ""]
    before = by_words.ids
    found = by_words.sequences(["cd ab", ""], 9, 1)
    assert by_words.ids is before
    assert found.lengths.tolist()[1] == 2
    assert found.ids[-2:].tolist() == [2, 3]


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Punctuation", "behavior": "Isolated"}},
    ],
)
def test_other_tokenizers_see_whole_texts(change):
    said = json.loads(tokenizer_of(None, pre_tokenizers.WhitespaceSplit()).to_str())
    assert not parts_at_blanks(Tokenizer.from_str(json.dumps(said | change)))


def test_added_tokens_with_blanks_and_byte_pairs_see_whole_texts(tmp_path):
    tokenizer = tokenizer_of(None, pre_tokenizers.WhitespaceSplit())
    tokenizer.add_tokens(["two words"])
    assert not parts_at_blanks(tokenizer)
    folder = tiny_roberta(tmp_path / "roberta", ["some text to train on"])
    assert not parts_at_blanks(Tokenizer.from_file(str(folder / "tokenizer.json")))
