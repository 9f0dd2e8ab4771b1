import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from transformers import AutoTokenizer

from calls import uncalled
from hardneg.data import tokens
from hardneg.data.tokens import TokenStore, separator, tokenize, tokenizer_digest
from hardneg.errors import ArtifactError, SettingsError
from hardneg.records import TextTemplate
from hardneg.storage.artifacts import read_manifest
from worlds.few_texts import Column, Stub
from worlds.tiny_models import tiny_bert, tiny_roberta

TITLES = ["Retrievers", "", "A title", "Short"]
TEXTS = ["dense vectors find passages", "no title here, only text!", "many words " * 40, "[SEP] inside a text"]
QUERIES = ["what finds passages?", "short", "words " * 60]


@pytest.fixture(scope="module")
def stub():
    return Stub(Column(TITLES), Column(TEXTS), Column(QUERIES))


@pytest.fixture(scope="module", params=["bert", "roberta"])
def pretrained(request, tmp_path_factory):
    make = {"bert": tiny_bert, "roberta": tiny_roberta}[request.param]
    return AutoTokenizer.from_pretrained(make(tmp_path_factory.mktemp("model"), TITLES + TEXTS + QUERIES))


def rows_of(store):
    batch = store.read(np.arange(len(store)))
    return [batch.ids[a:b].tolist() for a, b in zip(batch.offsets, batch.offsets[1:], strict=False)]


def test_queries_equal_the_tokenizers_own_output(stub, pretrained, tmp_path):
    store = tokenize(stub, TextTemplate("query", 16), pretrained.backend_tokenizer, tmp_path)
    assert rows_of(store) == pretrained(QUERIES, truncation=True, max_length=16)["input_ids"]
    assert store.lengths.tolist() == [len(row) for row in rows_of(store)]
    assert store.lengths[2] == 16
    assert rows_of(store)[2][-1] == pretrained.sep_token_id


def test_passages_are_title_separator_text(stub, pretrained, tmp_path):
    store = tokenize(stub, TextTemplate("passage", 24), pretrained.backend_tokenizer, tmp_path)
    first, sep = pretrained.cls_token_id, pretrained.sep_token_id
    for row, title, text in zip(rows_of(store), TITLES, TEXTS, strict=True):
        plain = [pretrained(part, add_special_tokens=False)["input_ids"] for part in (title, text)]
        whole = [first, *plain[0], sep, *plain[1], sep] if title else [first, *plain[1], sep]
        assert row == (whole if len(whole) <= 24 else [*whole[:23], sep])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"use_titles": False}, TEXTS),
        ({"title_join": "space"}, [f"{a} {b}" if a else b for a, b in zip(TITLES, TEXTS, strict=True)]),
        ({"use_titles": False, "prompt": "passage: "}, [f"passage: {text}" for text in TEXTS]),
    ],
)
def test_titles_and_prompts(stub, pretrained, tmp_path, change, expected):
    template = replace(TextTemplate("passage", 64), **change)
    store = tokenize(stub, template, pretrained.backend_tokenizer, tmp_path)
    assert rows_of(store) == pretrained(expected, truncation=True, max_length=64)["input_ids"]


def test_the_prompt_stands_before_the_title(stub, pretrained, tmp_path):
    template = TextTemplate("passage", 64, prompt="text: ")
    row = rows_of(tokenize(stub, template, pretrained.backend_tokenizer, tmp_path))[0]
    joined = "text: " + TITLES[0] + pretrained.sep_token + TEXTS[0]
    assert row == pretrained(joined)["input_ids"]


def test_blocks_and_progress_change_nothing(stub, pretrained, tmp_path, monkeypatch):
    template, tokenizer = TextTemplate("passage", 24), pretrained.backend_tokenizer
    whole = tokenize(stub, template, tokenizer, tmp_path / "whole")
    monkeypatch.setattr(tokens, "BLOCK", 3)
    ticks = []
    blocks = tokenize(stub, template, tokenizer, tmp_path / "blocks", progress=lambda *tick: ticks.append(tick))
    assert rows_of(blocks) == rows_of(whole)
    assert blocks.digest == whole.digest
    assert ticks == [(3, 4), (4, 4)]


def test_read_takes_rows_in_any_order_and_twice(stub, pretrained, tmp_path):
    store = tokenize(stub, TextTemplate("passage", 24), pretrained.backend_tokenizer, tmp_path)
    rows = np.array([3, 0, 3, 1], dtype=np.int32)
    batch, all_rows = store.read(rows), rows_of(store)
    assert batch.ids.dtype == np.int32
    assert batch.ids.tolist() == [token for row in rows for token in all_rows[row]]
    assert batch.lengths.tolist() == [len(all_rows[row]) for row in rows]
    assert len(store.read(np.zeros(0, np.int64))) == 0


def test_a_store_is_made_once_for_each_key(stub, pretrained, tmp_path):
    tokenizer, template = pretrained.backend_tokenizer, TextTemplate("query", 16)
    first = tokenize(stub, template, tokenizer, tmp_path)
    longer = partial(tokenize, stub, replace(template, max_length=17), tokenizer, tmp_path)
    with uncalled(tokens, "_build", control=longer):
        assert tokenize(stub, template, tokenizer, tmp_path).digest == first.digest
    tokenize(stub, TextTemplate("passage", 16), tokenizer, tmp_path)
    tokenize(replace(stub, digest="another"), template, tokenizer, tmp_path)
    assert len(list((tmp_path / "tokens").iterdir())) == 4


@pytest.mark.parametrize("template", [TextTemplate("query", 16), TextTemplate("passage", 24)])
def test_texts_that_are_cut_are_counted_beside_the_sequences(stub, pretrained, tmp_path, template):
    tokenizer = tokens.plain_tokenizer(pretrained.backend_tokenizer)
    store = tokenize(stub, template, tokenizer, tmp_path)
    assert store.cut == (store.lengths == template.max_length).sum() == 1  # no text just fits
    (path,) = (tmp_path / "tokens").iterdir()
    manifest = read_manifest(path)
    assert manifest.facts == {"cut": 1}
    assert store.digest == replace(manifest, facts={}).digest  # that of the stores made before they were counted


def test_truncation_and_padding_of_the_tokenizer_file_are_ignored(stub, pretrained, tmp_path):
    plain = tokens.plain_tokenizer(pretrained.backend_tokenizer)
    set_up = tokens.plain_tokenizer(plain)
    set_up.enable_truncation(5)
    set_up.enable_padding(length=30)
    assert tokenizer_digest(set_up) == tokenizer_digest(plain)
    for text in QUERIES:  # shorter than the padding and longer than the cut
        assert tokens.plain_tokenizer(set_up).encode(text).ids == plain.encode(text).ids
    template = TextTemplate("query", 16)
    with_settings = tokenize(stub, template, set_up, tmp_path / "a")
    assert rows_of(with_settings) == rows_of(tokenize(stub, template, plain, tmp_path / "b"))


def test_the_digest_tells_tokenizers_apart(pretrained):
    plain = tokens.plain_tokenizer(pretrained.backend_tokenizer)
    content = json.loads(plain.to_str())
    content["added_tokens"][-1]["special"] = False
    assert tokenizer_digest(type(plain).from_str(json.dumps(content))) != tokenizer_digest(plain)


def test_ids_are_narrow_while_they_fit(stub, pretrained, tmp_path, monkeypatch):
    tokenizer, template = pretrained.backend_tokenizer, TextTemplate("query", 16)
    narrow = tokenize(stub, template, tokenizer, tmp_path / "a")
    assert narrow.ids.dtype == np.uint16
    big = tokens.plain_tokenizer(tokenizer)
    big.add_tokens([f"<extra{i}>" for i in range(1 << 16)])
    wide = tokenize(stub, template, big, tmp_path / "b")
    assert wide.ids.dtype == np.uint32
    assert rows_of(wide) == rows_of(narrow)


def test_faults(stub, pretrained, tmp_path):
    tokenizer = pretrained.backend_tokenizer
    with pytest.raises(SettingsError, match="MAX_LENGTH"):
        tokenize(stub, TextTemplate("query", 2), tokenizer, tmp_path)
    bare = tokens.plain_tokenizer(tokenizer)
    content = json.loads(bare.to_str()) | {"post_processor": None}
    with pytest.raises(SettingsError, match="NO_SEPARATOR"):
        separator(type(bare).from_str(json.dumps(content)))
    tokenize(stub, TextTemplate("query", 16), tokenizer, tmp_path)
    file = next(tmp_path.glob("tokens/*/ids.npy"))
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    with pytest.raises(ArtifactError, match="CORRUPT"):
        TokenStore.open(file.parent)
