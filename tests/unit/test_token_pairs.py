"""Pairs put together from token stores, against what the tokenizer itself makes of two texts."""

from itertools import chain

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hardneg.data.token_pairs import PairForm, PairStore, PairTemplate
from hardneg.data.tokens import joined_passages, separator, token_batch, tokenize
from hardneg.errors import SettingsError
from hardneg.models.loading import load_encoder
from hardneg.models.tokenizing import pair_store, token_store
from hardneg.records import TextTemplate
from worlds.few_texts import QUERIES, STUB, TEXTS, TITLES, Column, Stub

LENGTH, QUERY_LENGTH, PAIRS = 40, 24, 400
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    *sorted({*" ".join(TITLES + TEXTS + QUERIES).split()}),
    "É",
    "naïve",
    "x-y",
    "[SEP]",
    "</s>",
    "\n",
    "  ",
    "日本語",
    "🙂",
]
START_END = {"special_tokens": [("[CLS]", 2), ("[SEP]", 3)]}


def templated(tokenizer, **template):
    """The same tokenizer with another post-processor."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.post_processor = processors.TemplateProcessing(**template, **START_END)
    return PreTrainedTokenizerFast(tokenizer_object=copy)


def pieces():
    """Words that begin with a mark of their space, and two separators between texts, as in XLM-RoBERTa."""
    words = [*SPECIAL, *(mark + word for word in WORDS for mark in ("\u2581", ""))]
    copy = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    copy.normalizer = normalizers.NFKC()
    copy.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    copy.add_special_tokens(["[CLS]", "[SEP]"])
    double = {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] [SEP] $B [SEP]"}
    return templated(copy, **double)


@pytest.fixture(params=["bert", "roberta", "pieces", "typed", "end only", "start only", "bare"])
def library(request, folders):
    """A tokenizer as transformers has it."""
    if request.param in folders:
        return AutoTokenizer.from_pretrained(folders[request.param])
    bert = AutoTokenizer.from_pretrained(folders["bert"]).backend_tokenizer
    if request.param == "pieces":
        return pieces()
    forms = {
        "typed": ("[CLS]:2 $A:0 [SEP]:0", "[CLS]:2 $A:0 [SEP]:0 $B:1 [SEP]:1"),  # as XLNet types its ends
        "end only": ("$A [SEP]", "$A [SEP] $B [SEP]"),
        "start only": ("[CLS] $A", "[CLS] $A [CLS] [SEP] $B:1"),
        "bare": ("$A", "$A $B"),
    }
    single, pair = forms[request.param]
    return templated(bert, single=single, pair=pair)


def random_texts(draw, count, most):
    return [" ".join(draw.choice(WORDS, draw.integers(0, most + 1))) for _ in range(count)]


@pytest.fixture
def world(library):
    """Random queries that fit, titles and texts that often do not."""
    draw = np.random.default_rng(3)
    special = library.backend_tokenizer.num_special_tokens_to_add(False)
    queries = [
        text
        for text in random_texts(draw, 300, 6)
        if len(library(text, add_special_tokens=False).input_ids) <= QUERY_LENGTH - special
    ]
    titles = [text if i % 3 else "" for i, text in enumerate(random_texts(draw, PAIRS, 3))]
    return Stub(Column(titles), Column(random_texts(draw, PAIRS, 60)), Column(queries))


def stored(world, library, cache, *, use_titles=True, length=LENGTH, **of_passages):
    """The pairs of a world, and their template."""
    tokenizer = library.backend_tokenizer
    form = PairForm.of(tokenizer)
    join = "sep" if sum(form.around) and form.around[1] else "space"
    template = PairTemplate.whole(
        TextTemplate("query", QUERY_LENGTH),
        TextTemplate("passage", 1, use_titles=use_titles, title_join=join, **of_passages),
        form,
        length,
    )
    template.check(form)
    stores = (tokenize(world, side, tokenizer, cache) for side in (template.query, template.passage))
    return PairStore(*stores, form, length), template


def test_pairs_are_what_the_tokenizer_makes_of_two_texts(library, world, tmp_path):
    pairs, template = stored(world, library, tmp_path)
    draw = np.random.default_rng(4)
    query_rows = draw.integers(0, len(world.query_texts), PAIRS)
    passage_rows = draw.permutation(PAIRS)
    found = pairs.read(query_rows, passage_rows)
    join = separator(library.backend_tokenizer) if template.passage.title_join == "sep" else " "
    titles = [title.replace("\n", join) for title in world.titles]
    texts = joined_passages(titles, world.texts, join)
    expected = library(
        world.query_texts.take(query_rows),
        [texts[row] for row in passage_rows],
        truncation="only_second",
        max_length=LENGTH,
        return_token_type_ids=True,
    )
    assert found.lengths.tolist() == list(map(len, expected.input_ids))
    assert found.ids.tolist() == list(chain.from_iterable(expected.input_ids))
    types = list(chain.from_iterable(expected.token_type_ids))
    assert (found.types is None) == (not any(types))
    assert [0] * len(types) == types if found.types is None else found.types.tolist() == types
    assert np.array_equal(pairs.lengths(query_rows, passage_rows), found.lengths)
    cut = found.lengths == LENGTH
    assert 50 < cut.sum() < PAIRS - 50  # passages that are cut, and passages that are not


def test_texts_of_no_collection_make_the_same_pairs(library, world, tmp_path):
    pairs, template = stored(world, library, tmp_path)
    tokenizer = library.backend_tokenizer
    queries = token_batch(world.query_texts[:5], [], template.query, tokenizer)
    passages = token_batch(world.texts[:5], world.titles[:5], template.passage, tokenizer)
    rows = np.arange(5)
    found, expected = PairStore(queries, passages, pairs.form, LENGTH).read(rows, rows), pairs.read(rows, rows)
    assert np.array_equal(found.ids, expected.ids)
    assert np.array_equal(found.offsets, expected.offsets)


def test_a_long_query_is_cut_by_its_own_length_and_the_passage_by_what_is_left(bert, tmp_path):
    library = AutoTokenizer.from_pretrained(bert)
    pairs, _ = stored(STUB, library, tmp_path, use_titles=False, length=30)
    found = pairs.read(np.array([2, 1]), np.array([2, 2]))
    query, short = (library(QUERIES[i], add_special_tokens=False).input_ids[: QUERY_LENGTH - 2] for i in (2, 1))
    text = library(TEXTS[2], add_special_tokens=False).input_ids
    assert len(query) == QUERY_LENGTH - 2
    assert found.ids[:30].tolist() == [2, *query, 3, *text[:5], 3]
    assert found.ids[30:].tolist() == [2, *short, 3, *text[: 27 - len(short)], 3]
    assert found.types[:30].tolist() == [0] * 24 + [1] * 6
    assert len(pairs.read(np.zeros(0, int), np.zeros(0, int))) == 0


def test_take_keeps_the_types_of_each_token(bert, tmp_path):
    pairs, _ = stored(STUB, AutoTokenizer.from_pretrained(bert), tmp_path)
    whole = pairs.read(np.array([0, 1, 2]), np.array([3, 1, 0]))
    found, expected = whole.take(np.array([2, 0])), pairs.read(np.array([2, 0]), np.array([0, 3]))
    for name in ("ids", "offsets", "types"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name


def test_every_chunk_of_a_document_stands_beside_the_query(bert, tmp_path):
    library = AutoTokenizer.from_pretrained(bert)
    pairs, _ = stored(STUB, library, tmp_path, chunks=3)
    rows = np.array([2, 3])
    found, dealt = pairs.read_documents(np.array([0, 1]), rows)
    sequences = pairs.passages.first
    assert np.diff(dealt).tolist() == [3, 1] == (sequences[rows + 1] - sequences[rows]).tolist()
    chunks = np.arange(sequences[2], sequences[4])
    assert np.array_equal(found.ids, pairs.read(np.array([0, 0, 0, 1]), chunks).ids)
    whole, none = stored(STUB, library, tmp_path)[0].read_documents(np.array([0, 1]), rows)
    assert none is None
    assert len(whole) == 2


def test_prompts_are_those_of_the_stores(bert, tmp_path):
    library = AutoTokenizer.from_pretrained(bert)
    pairs, _ = stored(STUB, library, tmp_path, use_titles=False, prompt="find: ")
    found = pairs.read(np.array([1]), np.array([0])).ids.tolist()
    expected = library(QUERIES[1], "find: " + TEXTS[0], truncation="only_second", max_length=LENGTH).input_ids
    assert found == expected


def test_the_stores_of_a_bi_encoder_serve_for_pairs_as_they_are(bert, tmp_path):
    """No text is tokenised a second time for a second model with the same tokenizer and templates."""
    encoder = load_encoder(bert, query_length=16, passage_length=64)
    own = [token_store(encoder, STUB, tmp_path, side) for side in ("query", "passage")]
    before = sorted(tmp_path.rglob("*.npy"))
    template = PairTemplate(encoder.template("query"), encoder.template("passage"), 79)
    pairs = pair_store(encoder.tower("query"), template, STUB, tmp_path)
    assert [pairs.queries.digest, pairs.passages.digest] == [store.digest for store in own]
    assert sorted(tmp_path.rglob("*.npy")) == before
    assert pairs.lengths(np.array([2]), np.array([2])).tolist() == [79]  # all that both stores have


@pytest.mark.parametrize("pair", ["$B [SEP] $A", "$A $B"])
def test_a_tokenizer_without_a_form_for_pairs_is_refused(bert, pair):
    library = templated(AutoTokenizer.from_pretrained(bert).backend_tokenizer, single="[CLS] $A [SEP]", pair=pair)
    with pytest.raises(SettingsError, match="NO_PAIRS"):
        PairForm.of(library.backend_tokenizer)


def test_a_query_leaves_room_for_a_passage_or_is_refused(bert, tmp_path):
    encoder = load_encoder(bert, query_length=16)
    tower, query, passage = encoder.tower("query"), encoder.template("query"), encoder.template("passage")
    form = PairForm.of(tower.tokenizer)
    assert (form.special, form.around) == (3, (1, 1))
    PairTemplate(query, passage, 18).check(form)  # 14 tokens of the query, 3 special ones, one of the passage
    with pytest.raises(SettingsError, match=r"MAX_LENGTH: pairs of 17 .* of 16; set the pairs' length to 18"):
        pair_store(tower, PairTemplate(query, passage, 17), STUB, tmp_path)
