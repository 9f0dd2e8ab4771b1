"""Rankers, against sentence-transformers' ``CrossEncoder`` and transformers' own classifiers."""

import json
import re
import shutil
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    CamembertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    ErnieConfig,
    ModernBertConfig,
    MPNetConfig,
    RobertaConfig,
    XLMRobertaConfig,
    XLMRobertaTokenizer,
)

from hardneg.data.token_pairs import PairStore
from hardneg.data.tokens import tokenize
from hardneg.errors import HardnegError, NumericError, ResourceError, SettingsError
from hardneg.experiment.metrics import Metrics
from hardneg.models.cross_encoder import PairHead, RankerSettings
from hardneg.models.flat_attention import ATTENTION
from hardneg.models.loading import load_encoder
from hardneg.models.pair_scores import score_pairs
from hardneg.models.rankers import load_ranker, new_ranker, open_ranker, save_ranker
from hardneg.models.saving import save_encoder
from hardneg.models.source import ModelSource
from hardneg.models.tokenizing import pair_store
from hardneg.process import memory, progress
from hardneg.recipes.starting_ranker import as_long_as_it_takes
from hardneg.search.retriever import untimed
from hardneg.storage.artifacts import MANIFEST, read_manifest
from hardneg.training.gradient_cache import cached
from hardneg.training.loop import StepOutput
from hardneg.training.optim import linear
from hardneg.training.stage import Stage, Trainee
from worlds.few_texts import QUERIES, TEXTS, TITLES, Column, Stub
from worlds.tiny_world import one_thread  # noqa: F401

LENGTH = 96
WIDE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
COMMON = {"vocab_size": 1000, "initializer_range": 0.2, "num_labels": 1} | WIDE
OWN = COMMON | {"max_position_embeddings": LENGTH, "pad_token_id": 0}
KIN = COMMON | {"max_position_embeddings": LENGTH + 2, "pad_token_id": 1, "type_vocab_size": 1}
CONFIGS = {
    "bert": BertConfig(**OWN),
    "electra": ElectraConfig(**OWN, embedding_size=16),
    "ernie": ErnieConfig(**OWN),
    "distilbert": DistilBertConfig(
        vocab_size=1000,
        initializer_range=0.2,
        num_labels=1,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=64,
        max_position_embeddings=LENGTH,
    ),
    "deberta-v2": DebertaV2Config(**OWN),
    "modernbert": ModernBertConfig(**OWN, classifier_pooling="mean", norm_bias=True),
    "roberta": RobertaConfig(**KIN),
    "xlm-roberta": XLMRobertaConfig(**KIN),
    "camembert": CamembertConfig(**KIN),
    "mpnet": MPNetConfig(**{name: value for name, value in KIN.items() if name != "type_vocab_size"}),
}
OF_ROBERTA = ("roberta", "xlm-roberta", "camembert", "mpnet")
TYPED = ("bert", "electra", "ernie")
COMPARED = ("bert", "roberta", "electra", "distilbert", "modernbert", "deberta-v2")
PAIRS = 300


def texts(n, draw, longest):
    """Random texts of the tokenizers' words, every tenth of them empty or longer than any pair."""
    words = " ".join([*TITLES, *TEXTS[:2], *QUERIES[:2]]).split()
    lengths = draw.integers(1, longest, n)
    lengths[::20], lengths[10::20] = 0, 150
    return [" ".join(draw.choice(words, length)) for length in lengths]


def stub(seed=0):
    draw = np.random.default_rng(seed)
    queries = texts(40, draw, 20)
    queries = [" ".join(query.split()[:5]) for query in queries]  # not beyond half of a pair
    passages = texts(80, draw, 120)
    titles = ["" if row % 3 else "Short title" for row in range(80)]
    return Stub(Column(titles), Column(passages), Column(queries), f"stub-{seed}")


@pytest.fixture(scope="module")
def classifiers(bert, roberta, tmp_path_factory):
    """Makes the folder of a random classifier of one label, as transformers saves it, once for each family."""
    made = {}

    def folder(family, **changes):
        key = (family, *changes.items())
        if key not in made:
            made[key] = tmp_path_factory.mktemp(family)
            with torch.random.fork_rng():
                torch.manual_seed(5)
                config = CONFIGS[family].__class__(**(CONFIGS[family].to_dict() | changes))
                model = AutoModelForSequenceClassification.from_config(config)
                for name, parameter in model.named_parameters():
                    redraw(name, parameter)
            model.save_pretrained(made[key])
            tokenizer = AutoTokenizer.from_pretrained(roberta if family in OF_ROBERTA else bert)
            tokenizer.save_pretrained(made[key])
            told = ["token_type_ids"] * (family in TYPED)
            change(made[key] / "tokenizer_config.json", model_input_names=["input_ids", *told, "attention_mask"])
            change(made[key] / "tokenizer_config.json", model_max_length=LENGTH)
        return made[key]

    return folder


def redraw(name, parameter):
    """So that scores differ between pairs, and nothing of the head goes untested."""
    if parameter.ndim > 1:
        torch.nn.init.normal_(parameter, std=0.3)
    else:
        torch.nn.init.normal_(parameter, mean=float("norm" in name.lower() and name.endswith("weight")), std=0.2)


def change(file, **entries):
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


def stores(ranker, source, cache):
    template = ranker.template
    return [tokenize(source, side, ranker.tokenizer, cache) for side in (template.query, template.passage)]


def drawn(source, n=PAIRS):
    draw = np.random.default_rng(1)
    return draw.integers(0, len(source.query_texts), n), draw.integers(0, len(source.texts), n)


def pairs_of_texts(source, query_rows, passage_rows, join):
    passages = [
        f"{title}{join}{text}" if title else text for title, text in zip(source.titles, source.texts, strict=True)
    ]
    return [(source.query_texts[q], passages[p]) for q, p in zip(query_rows, passage_rows, strict=True)]


def scored(ranker, source, cache, rows, **options):
    return score_pairs(ranker, *stores(ranker, source, cache), *rows, **{"budget": 700} | options)


# ---------------------------------------------------------------- equal scores


@pytest.mark.parametrize("family", COMPARED)
def test_scores_are_those_of_sentence_transformers(classifiers, family, tmp_path, sentence_transformers):
    folder, source = classifiers(family), stub()
    ranker, rows = load_ranker(folder), drawn(source)
    assert ranker.settings == RankerSettings(max_length=LENGTH, activation="sigmoid", title_join="space")
    library = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    pairs = pairs_of_texts(source, *rows, " ")
    found = scored(ranker, source, tmp_path, rows)
    expected = library.predict(pairs, activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)
    assert expected.std() > 0.05
    shown = torch.sigmoid(torch.from_numpy(found)).numpy()
    np.testing.assert_allclose(shown, library.predict(pairs), atol=1e-4, rtol=0)


def retokenized(folder, place, kind):
    """A classifier with a tokenizer of another class, whose settings do not name the model's inputs."""
    shutil.copytree(folder, place)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if kind == "XLMRobertaTokenizer":
        words = sorted({word for text in [*TITLES, *TEXTS, *QUERIES] for word in text.split()})
        special = ["<s>", "<pad>", "</s>", "<unk>"]
        pieces = [(word, 0.0) for word in special] + [(f"▁{word}", -1.0) for word in [*words, ""]]
        XLMRobertaTokenizer(vocab=[*pieces, ("<mask>", 0.0)], model_max_length=LENGTH).save_pretrained(place)
        return place
    tokenizer.save_pretrained(place)
    said = json.loads((place / "tokenizer_config.json").read_text()) | {"tokenizer_class": kind}
    said.pop("model_input_names", None)
    (place / "tokenizer_config.json").write_text(json.dumps(said | {"model_max_length": LENGTH}))
    return place


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("bert", "BertTokenizer"),
        ("bert", "BertTokenizerFast"),
        ("bert", "PreTrainedTokenizerFast"),
        ("electra", "PreTrainedTokenizerFast"),
        ("bert", "XLMRobertaTokenizer"),
        ("xlm-roberta", "XLMRobertaTokenizer"),
        ("roberta", "RobertaTokenizer"),
    ],
)
def test_the_class_of_a_tokenizer_decides_about_types_in_a_ranker_of_another(
    classifiers, family, kind, tmp_path, sentence_transformers
):
    folder = retokenized(classifiers(family), tmp_path / "plain", kind)
    theirs = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    theirs.save_pretrained(str(tmp_path / "theirs"))
    ranker, source = load_ranker(tmp_path / "theirs"), stub()
    rows = drawn(source)
    pairs, identity = pairs_of_texts(source, *rows, " "), torch.nn.Identity()
    expected = theirs.predict(pairs, activation_fn=identity)
    np.testing.assert_allclose(scored(ranker, source, tmp_path, rows), expected, atol=1e-4, rtol=0)
    assert expected.std() > 0.05
    save_ranker(ranker, tmp_path / "ours")
    again = load_ranker(tmp_path / "ours")
    assert again.digest() == ranker.digest()
    np.testing.assert_array_equal(scored(again, source, tmp_path, rows), scored(ranker, source, tmp_path, rows))
    opened = sentence_transformers.CrossEncoder(str(tmp_path / "ours"), device="cpu")
    np.testing.assert_allclose(opened.predict(pairs, activation_fn=identity), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "said",
    [
        {"processing_kwargs": {"text": {"max_length": 24}}},
        {"processing_kwargs": {"text": {"max_length": 24}}, "max_seq_length": 40},
        {"max_seq_length": 24, "document_length": 8},
        {"processor_kwargs": {"model_max_length": 24}},
    ],
)
def test_pairs_are_as_long_as_the_folder_of_a_cross_encoder_says(
    classifiers, said, tmp_path, sentence_transformers
):
    sentence_transformers.CrossEncoder(str(classifiers("bert"))).save_pretrained(str(tmp_path / "theirs"))
    change(tmp_path / "theirs/sentence_bert_config.json", **said)
    ranker, source = load_ranker(tmp_path / "theirs"), stub()
    assert ranker.settings.max_length == 24
    assert load_ranker(tmp_path / "theirs", max_length=60).settings.max_length == 60
    library = sentence_transformers.CrossEncoder(str(tmp_path / "theirs"), device="cpu")
    rows = drawn(source)
    expected = library.predict(pairs_of_texts(source, *rows, " "), activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(scored(ranker, source, tmp_path, rows), expected, atol=1e-4, rtol=0)


def test_a_cross_encoder_that_gets_pairs_as_messages_is_refused(classifiers, tmp_path, sentence_transformers):
    sentence_transformers.CrossEncoder(str(classifiers("bert"))).save_pretrained(str(tmp_path / "theirs"))
    forward = {"method": "forward", "method_output_name": "logits"}
    change(tmp_path / "theirs/sentence_bert_config.json", modality_config={"text": forward, "message": forward})
    with pytest.raises(SettingsError, match=r"UNSUPPORTED_MODULE: .*Transformer that applies a chat template"):
        load_ranker(tmp_path / "theirs")


def test_rankers_that_differ_in_types_alone_have_other_identities(classifiers, tmp_path):
    said = ["input_ids", "token_type_ids", "attention_mask"]
    plain = retokenized(classifiers("bert"), tmp_path / "plain", "PreTrainedTokenizerFast")
    named = shutil.copytree(plain, tmp_path / "named")
    change(named / "tokenizer_config.json", model_input_names=said)
    given_out = "token_type_ids" in AutoTokenizer.from_pretrained(plain).model_input_names  # before transformers 5
    assert load_ranker(named).tower.takes_types
    assert load_ranker(plain).tower.takes_types == given_out
    assert (load_ranker(plain).digest() == load_ranker(named).digest()) == given_out


@pytest.mark.parametrize("family", CONFIGS)
def test_scores_and_gradients_are_those_of_a_padded_forward_and_of_one_pair_at_a_time(
    classifiers, family, tmp_path
):
    folder, source = classifiers(family), stub()
    ranker = load_ranker(folder)
    library = AutoTokenizer.from_pretrained(folder)
    plain = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    packed = ranker.tower.transformer.config._attn_implementation == ATTENTION
    assert packed == (family not in ("ernie", "mpnet", "deberta-v2"))
    rows = drawn(source, 24)
    queries, passages = zip(*pairs_of_texts(source, *rows, " "), strict=True)
    told = library(
        list(queries),
        list(passages),
        truncation="only_second",
        max_length=LENGTH,
        padding=True,
        return_tensors="pt",
    )
    assert ("token_type_ids" in told) == ranker.tower.takes_types
    weights = torch.randn(24, generator=torch.Generator().manual_seed(0))
    expected = plain(**told).logits.squeeze(-1)
    (expected * weights).sum().backward()
    store = PairStore(*stores(ranker, source, tmp_path), ranker.form, LENGTH)
    tokens = store.read(*rows)
    wanted = {name: parameter.grad for name, parameter in plain.named_parameters()}

    def gradients():
        base = plain.base_model_prefix
        names = ranker.tower.head.stored_names(base)
        for name, parameter in ranker.tower.named_parameters():
            part, rest = name.split(".", 1)
            yield f"{base}.{rest}" if part == "transformer" else names[rest], parameter.grad

    for alone in (False, True):
        ranker.zero_grad()
        parts = [tokens.take(np.array([row])) for row in range(24)] if alone else [tokens]
        found = torch.cat([ranker.score(part) for part in parts])
        (found * weights).sum().backward()
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
        got = dict(gradients())
        assert got.keys() == wanted.keys()
        for name, gradient in wanted.items():
            if gradient is None or got[name] is None:  # a padded model's empty tables
                assert gradient is None or not gradient.abs().max(), name
                continue
            scale = max(gradient.abs().max().item(), 1.0)
            torch.testing.assert_close(got[name], gradient, atol=2e-5 * scale, rtol=1e-3, msg=name)


def test_a_long_query_is_cut_to_half_of_the_pair_and_then_only_the_passage(classifiers, tmp_path):
    ranker = load_ranker(classifiers("bert"))
    source = Stub(Column(["", ""]), Column(["words " * 200, "x"]), Column(["words " * 200]), "long")
    tokens = PairStore(*stores(ranker, source, tmp_path), ranker.form, LENGTH).read(np.zeros(2, int), np.arange(2))
    half = (LENGTH - 3) // 2
    types = [tokens.types[start:end] for start, end in zip(tokens.offsets, tokens.offsets[1:], strict=False)]
    assert [(int((x == 0).sum()) - 2, int((x == 1).sum()) - 1) for x in types] == [
        (half, LENGTH - 3 - half),
        (half, 1),
    ]
    library = AutoTokenizer.from_pretrained(classifiers("bert"))
    told = library(source.query_texts[0], source.texts[0], truncation=True, max_length=LENGTH)
    assert told["input_ids"] == tokens.take(np.array([0])).ids.tolist()  # as it cuts the longer text first


# ---------------------------------------------------------------- folders


def test_a_folder_that_sentence_transformers_saved_is_read(classifiers, tmp_path, sentence_transformers):
    source, rows = stub(), drawn(stub(), 50)
    for name, function in (("identity", torch.nn.Identity()), ("sigmoid", torch.nn.Sigmoid())):
        library = sentence_transformers.CrossEncoder(
            str(classifiers("bert")), activation_fn=function, max_length=70
        )
        library.save_pretrained(str(tmp_path / name))
        ranker = load_ranker(tmp_path / name)
        assert (ranker.settings.activation, ranker.settings.max_length) == (name, 70)
        found = function(torch.from_numpy(scored(ranker, source, tmp_path, rows)))
        expected = library.predict(pairs_of_texts(source, *rows, " "))
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("entry", "activation"),
    [
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "identity"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
        ({"sentence_transformers": {"version": "4.1.0"}}, "sigmoid"),
    ],
)
def test_activations_of_older_versions_are_read(classifiers, tmp_path, entry, activation, sentence_transformers):
    folder = shutil.copytree(classifiers("bert"), tmp_path / "old")
    change(folder / "config.json", **entry)
    ranker = load_ranker(folder)
    assert ranker.settings.activation == activation
    library = sentence_transformers.CrossEncoder(str(folder))
    assert type(library.activation_fn).__name__.lower() == activation
    assert ranker.digest() == load_ranker(classifiers("bert"), activation=activation).digest()


@pytest.mark.parametrize("family", COMPARED)
def test_a_saved_ranker_is_one_of_sentence_transformers_with_equal_scores(
    classifiers, family, tmp_path, sentence_transformers, capfd
):
    source, rows = stub(), drawn(stub())
    ranker = load_ranker(classifiers(family), max_length=60, activation="identity", query_prompt="")
    save_ranker(ranker, tmp_path / "ranker", inputs={"data": "d"}, card="About it.")
    library = sentence_transformers.CrossEncoder(str(tmp_path / "ranker"), device="cpu")
    assert type(library.activation_fn) is torch.nn.Identity
    found = scored(ranker, source, tmp_path, rows)
    np.testing.assert_allclose(found, library.predict(pairs_of_texts(source, *rows, " ")), atol=1e-4, rtol=0)
    plain, report = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "ranker", output_loading_info=True
    )
    assert plain.config.num_labels == 1
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    loaded = load_ranker(str(tmp_path / "ranker"))
    assert loaded.settings == ranker.settings
    manifest = read_manifest(tmp_path / "ranker")
    assert loaded.digest() == ranker.digest() == manifest.facts["digest"]
    assert (manifest.kind, manifest.inputs) == ("ranker", {"data": "d"})
    np.testing.assert_array_equal(scored(loaded, source, tmp_path, rows), found)
    config = json.loads((tmp_path / "ranker/config.json").read_text())
    assert ATTENTION not in json.dumps(config)
    names = json.loads((tmp_path / "ranker/tokenizer_config.json").read_text())["model_input_names"]
    assert ("token_type_ids" in names) == (family in TYPED)
    assert ranker.tower.pretrained_tokenizer.model_max_length == LENGTH  # saving changes nothing
    assert "About it." in (tmp_path / "ranker/README.md").read_text()


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("limit", [LENGTH, 80])  # of the tokenizer; the model has positions for LENGTH tokens
def test_a_saved_ranker_can_be_given_longer_pairs_again(classifiers, family, limit, tmp_path):
    folder = shutil.copytree(classifiers(family), tmp_path / "theirs")
    change(folder / "tokenizer_config.json", model_max_length=limit)
    first = load_ranker(folder, max_length=40)
    save_ranker(first, tmp_path / "ranker")
    said = json.loads((tmp_path / "ranker/tokenizer_config.json").read_text())
    assert said["model_max_length"] == 40  # where CrossEncoder cuts
    again = load_ranker(tmp_path / "ranker")
    assert (again.settings.max_length, again.digest()) == (40, first.digest())
    save_ranker(again, tmp_path / "twice")
    assert load_ranker(tmp_path / "twice", max_length=limit).digest() == load_ranker(folder).digest()
    with pytest.raises(SettingsError, match=f"TOO_LONG: .* takes {limit} tokens"):
        load_ranker(tmp_path / "twice", max_length=limit + 1)
    lines = []
    longer = as_long_as_it_takes(partial(load_ranker, tmp_path / "twice"), {"max_length": 512}, lines.append)
    assert longer.settings.max_length == limit
    assert lines == [f"ranker: it takes pairs of {limit} tokens, not of 512"]
    prompt = {"max_length": 20, "query_prompt": "a " * 8}
    with pytest.raises(SettingsError, match="TOO_LONG: query_prompt"):
        as_long_as_it_takes(partial(load_ranker, tmp_path / "twice"), prompt, lines.append)
    assert len(lines) == 1


def test_a_ranker_that_was_saved_without_its_limit_takes_as_many_tokens_as_positions(classifiers, tmp_path):
    save_ranker(load_ranker(classifiers("roberta"), max_length=40), tmp_path / "ranker")
    file = tmp_path / "ranker/hardneg_ranker.json"
    file.write_text(json.dumps({"settings": json.loads(file.read_text())["settings"]}))
    (tmp_path / "ranker" / MANIFEST).unlink()
    assert load_ranker(tmp_path / "ranker").settings.max_length == 40
    assert load_ranker(tmp_path / "ranker", max_length=LENGTH).settings.max_length == LENGTH


@pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2"])
@pytest.mark.parametrize("lengths", [{"passage_length": 12}, {"query_length": 5}, {"query_length": 40}])
def test_the_card_says_how_to_cut_texts_that_the_pair_has_room_for(
    classifiers, family, lengths, tmp_path, sentence_transformers
):
    source, rows = stub(), drawn(stub())
    ranker = load_ranker(classifiers(family), max_length=60, activation="identity", title_join="space", **lengths)
    save_ranker(ranker, tmp_path / "ranker")
    card = (tmp_path / "ranker/README.md").read_text()
    code = card.partition("```python\n")[2].partition("```")[0].replace("this folder", str(tmp_path / "ranker"))
    exec(code, told := {})  # what people copy
    template = ranker.template
    query, passage = template.query.max_length, template.passage.max_length
    assert f'cut("a question", {query}), cut("a title its text", {passage})' in code
    assert ("it may also cut the query" in card) == (lengths == {"query_length": 40})
    pairs = pairs_of_texts(source, *rows, " ")
    found = scored(ranker, source, tmp_path, rows)
    cut = [(told["cut"](one, query), told["cut"](other, passage)) for one, other in pairs]
    np.testing.assert_allclose(found, told["model"].predict(cut), atol=1e-4, rtol=0)
    if "query_length" not in lengths or lengths["query_length"] == 5:
        assert np.abs(found - told["model"].predict(pairs)).max() > 0.01  # so it was needed


@pytest.mark.parametrize("prompt", ["", "read: "])
@pytest.mark.parametrize("lengths", [{}, {"passage_length": 20}])
def test_the_card_cuts_passages_after_as_many_characters(
    classifiers, prompt, lengths, tmp_path, sentence_transformers
):
    source, rows = stub(), drawn(stub())
    settings = {"max_characters": 18, "passage_prompt": prompt, "title_join": "space", "activation": "identity"}
    ranker = load_ranker(classifiers("bert"), max_length=60, **settings, **lengths)
    save_ranker(ranker, tmp_path / "ranker")
    card = (tmp_path / "ranker/README.md").read_text()
    assert "it cuts a passage, its title included, after 18 characters" in card
    code = card.partition("```python\n")[2].partition("```")[0].replace("this folder", str(tmp_path / "ranker"))
    exec(code, told := {})  # what people copy
    call = code.partition("scores = ")[2]
    pairs = pairs_of_texts(source, *rows, " ")
    calls = [
        call.replace('"a question"', repr(one)).replace('"a title its text"', repr(other)) for one, other in pairs
    ]
    given = np.concatenate([eval(one, told) for one in calls])
    found = scored(ranker, source, tmp_path, rows)
    np.testing.assert_allclose(found, given, atol=1e-4, rtol=0)
    whole = told["model"].predict([(one, prompt + other) for one, other in pairs])
    assert np.abs(found - whole).max() > 0.01  # so it was needed


@pytest.mark.parametrize("family", ["bert", "roberta"])  # the second has tokens for blanks
def test_titles_that_are_joined_as_the_card_says_give_equal_scores(
    classifiers, family, tmp_path, sentence_transformers
):
    source, rows = stub(), drawn(stub())
    ranker = load_ranker(classifiers(family), max_length=60, activation="identity", title_join="sep")
    save_ranker(ranker, tmp_path / "ranker")
    join = re.search("a title(.*?)its text", (tmp_path / "ranker/README.md").read_text())[1]
    library = sentence_transformers.CrossEncoder(str(tmp_path / "ranker"), device="cpu")
    expected = library.predict(pairs_of_texts(source, *rows, join))
    np.testing.assert_allclose(scored(ranker, source, tmp_path, rows), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("lengths", [{}, {"passage_length": 12}])
def test_the_card_gives_scores_before_the_activation(classifiers, lengths, tmp_path, sentence_transformers):
    ranker = load_ranker(classifiers("bert"), max_length=60, activation="sigmoid", **lengths)
    save_ranker(ranker, tmp_path / "ranker")
    card = (tmp_path / "ranker/README.md").read_text()
    assert "names a sigmoid, which `predict` applies by default" in card
    code = card.partition("```python\n")[2].partition("```")[0].replace("this folder", str(tmp_path / "ranker"))
    exec(code, told := {})  # what people copy
    library = sentence_transformers.CrossEncoder(str(tmp_path / "ranker"), device="cpu")
    by_default = library.predict([("a question", "a title its text")])
    np.testing.assert_allclose(1 / (1 + np.exp(-told["scores"])), by_default, atol=1e-5, rtol=0)


def test_the_card_cuts_no_text_where_only_the_pair_is_cut(classifiers, tmp_path):
    for number, (lengths, cuts) in enumerate(
        [({}, False), ({"passage_length": 59}, False), ({"passage_length": 58}, True), ({"chunks": 2}, True)]
    ):
        ranker = load_ranker(classifiers("bert"), max_length=60, **lengths)
        save_ranker(ranker, tmp_path / str(number))
        card = (tmp_path / str(number) / "README.md").read_text()
        assert ("def cut(" in card) == cuts, lengths
        assert ("this ranker reads up to 2" in card) == ("chunks" in lengths)


def test_a_ranker_of_several_files_is_read(classifiers, tmp_path):
    whole = load_ranker(classifiers("bert"))
    folder = shutil.copytree(classifiers("bert"), tmp_path / "parts")
    AutoModelForSequenceClassification.from_pretrained(folder).save_pretrained(folder, max_shard_size="100KB")
    (folder / "model.safetensors").unlink()
    assert (folder / "model.safetensors.index.json").is_file()
    assert load_ranker(folder).digest() == whole.digest()


def test_the_digest_is_of_weights_head_settings_and_kind(classifiers, bert):
    digests = [load_ranker(classifiers("bert")).digest() for _ in range(2)]
    digests += [load_ranker(classifiers("bert"), max_length=50).digest(), load_encoder(bert).digest()]
    ranker = load_ranker(classifiers("bert"))
    with torch.no_grad():
        ranker.tower.head.out.bias += 1e-3
    digests.append(ranker.digest())
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4
    with ranker.inference("bfloat16"):
        assert ranker.digest() == digests[-1]


# ---------------------------------------------------------------- new rankers


def test_a_new_ranker_has_a_drawn_head_and_says_so(bert, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(progress, "enabled", True)
    source = ModelSource.at(bert)
    first, again, other = (new_ranker(source, seed=seed, max_length=80) for seed in (1, 1, 2))
    line = capfd.readouterr().err.splitlines()[0]
    assert line == f"ranker: {bert.name} with a new head, drawn from seed 1: it must be trained"
    assert first.digest() == again.digest() != other.digest()
    encoder = load_encoder(bert)
    for name, weight in encoder.tower("query").transformer.state_dict().items():
        assert torch.equal(weight, first.tower.transformer.state_dict()[name])
    head = first.tower.head
    assert not head.out.bias.any()
    assert 0.05 < head.dense.weight.std() < 0.2
    save_ranker(first, tmp_path / "ranker")
    assert load_ranker(tmp_path / "ranker").digest() == first.digest()


def test_a_new_ranker_keeps_the_pooler_that_a_bert_brings(bert, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(progress, "enabled", True)
    folder = shutil.copytree(bert, tmp_path / "pooled")
    state = load_file(folder / "model.safetensors")
    state |= {"pooler.dense.weight": torch.eye(64), "pooler.dense.bias": torch.ones(64)}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    ranker = new_ranker(ModelSource.at(folder), seed=1)
    assert torch.equal(ranker.tower.head.dense.weight, torch.eye(64))
    assert torch.equal(ranker.tower.head.dense.bias, torch.ones(64))
    assert "with a new head after its own pooler" in capfd.readouterr().err


def test_a_new_ranker_begins_with_any_bi_encoder(bert, tmp_path):
    plain = new_ranker(ModelSource.at(bert), seed=3).digest()
    encoder = load_encoder(bert, pooling="mean")
    save_encoder(encoder, tmp_path / "tied")
    save_encoder(encoder.untied(), tmp_path / "untied")
    for name in ("tied", "untied"):
        assert new_ranker(ModelSource.at(tmp_path / name), seed=3).digest() == plain


# ---------------------------------------------------------------- refused


def test_rankers_and_bi_encoders_are_not_taken_for_each_other(classifiers, bert, tmp_path, sentence_transformers):
    ranker, encoder = load_ranker(classifiers("bert")), load_encoder(bert)
    save_ranker(ranker, tmp_path / "ours")
    save_encoder(encoder, tmp_path / "bi")
    save_encoder(encoder.untied(), tmp_path / "two")
    library = sentence_transformers.CrossEncoder(str(classifiers("bert")))
    library.save_pretrained(str(tmp_path / "theirs"))
    bare = shutil.copytree(tmp_path / "bi", tmp_path / "bare")
    (bare / "manifest.json").unlink()
    two = shutil.copytree(tmp_path / "two", tmp_path / "two-bare")
    (two / "manifest.json").unlink()
    for folder in (tmp_path / "ours", tmp_path / "theirs", classifiers("bert")):
        with pytest.raises(
            SettingsError, match=r"IS_A_RANKER: this is a ranker, .*; give a bi-encoder"
        ) as refused:
            load_encoder(folder)
        assert len(refused.value.lines) == 1
        with pytest.raises(SettingsError, match="IS_A_RANKER"):
            new_ranker(ModelSource.at(folder), seed=0)
    for folder, what in (
        (tmp_path / "bi", "bi-encoder"),
        (tmp_path / "two", "bi-encoder"),
        (bare, "bi-encoder"),
        (two, "bi-encoder of two towers"),
        (bert, "without a classification head"),
    ):
        with pytest.raises(SettingsError, match=f"NOT_A_RANKER: this is a .*{what}"):
            load_ranker(folder)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
@pytest.mark.parametrize("saved_by", ["transformers", "CrossEncoder"])
def test_a_classifier_of_several_labels_makes_no_vectors_and_may_begin_a_ranker(
    classifiers, family, saved_by, tmp_path, sentence_transformers
):
    folder = classifiers(family, num_labels=2, id2label=None, label2id=None)
    if saved_by == "CrossEncoder":
        sentence_transformers.CrossEncoder(str(folder)).save_pretrained(str(tmp_path / "theirs"))
        folder = tmp_path / "theirs"
    what = (
        "IS_A_RANKER: this is a classifier of 2 labels: its vectors .*; give a bi-encoder, or an encoder without"
    )
    with pytest.raises(SettingsError, match=what) as refused:
        load_encoder(folder)
    assert "use it as a ranker" not in str(refused.value)
    with pytest.raises(
        SettingsError, match="NOT_A_RANKER: this is a classifier of 2 labels; give a cross-encoder"
    ):
        load_ranker(folder)
    told = []
    ranker = new_ranker(ModelSource.at(folder), seed=1, tell=told.append)
    assert [line.endswith("; its own head of 2 labels is left out") for line in told] == [True]
    save_ranker(ranker, tmp_path / "ours")
    assert load_ranker(tmp_path / "ours").digest() == ranker.digest()


def test_an_encoder_whose_settings_name_a_head_that_it_lacks_is_one(bert, tmp_path):
    folder = shutil.copytree(bert, tmp_path / "encoder")
    change(folder / "config.json", architectures=["BertForSequenceClassification"])
    assert load_encoder(folder).dim == load_encoder(bert).dim


def test_what_is_no_ranker_of_one_label_is_refused(classifiers, tmp_path):
    with pytest.raises(SettingsError, match="NOT_A_RANKER: this is a classifier of 3 labels"):
        load_ranker(classifiers("bert", num_labels=3, id2label=None, label2id=None))
    folder = shutil.copytree(classifiers("bert"), tmp_path / "tanh")
    change(folder / "config.json", sentence_transformers={"activation_fn": "torch.nn.modules.activation.Tanh"})
    with pytest.raises(
        SettingsError, match=r"UNSUPPORTED_MODULE: the activation torch.nn.modules.activation.Tanh"
    ):
        load_ranker(folder)
    change(folder / "config.json", sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"})
    state = load_file(folder / "model.safetensors")
    state.pop("bert.pooler.dense.bias")
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        HardnegError, match=r"MISSING_WEIGHTS: 1 weights of the head are missing, first bert.pooler"
    ):
        load_ranker(folder)
    save_file(state | {"bert.pooler.dense.bias": torch.ones(3)}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(HardnegError, match="BAD_MODEL"):
        load_ranker(folder)


@pytest.mark.parametrize("family", ["nystromformer"])
def test_a_type_without_a_known_head_is_refused(family, bert, tmp_path):
    folder = shutil.copytree(bert, tmp_path / family)
    from transformers import NystromformerConfig, NystromformerModel

    NystromformerModel(NystromformerConfig(**OWN)).save_pretrained(folder)
    with pytest.raises(
        SettingsError, match="UNSUPPORTED_MODEL: no classification head is known for a model of type"
    ):
        new_ranker(ModelSource.at(folder), seed=0)


def test_a_classifier_that_pools_in_an_unknown_way_is_refused():
    """Newer versions of transformers refuse the file themselves; older ones leave it to those who compute."""
    config = SimpleNamespace(model_type="modernbert", hidden_size=32, classifier_pooling="late")
    told = "UNSUPPORTED_MODEL: the model's classifier_pooling is 'late'.*choose a model with one of cls, mean"
    with pytest.raises(SettingsError, match=told):
        PairHead(config)


def test_other_modules_of_sentence_transformers_are_refused(classifiers, tmp_path, sentence_transformers):
    sentence_transformers.CrossEncoder(str(classifiers("bert"))).save_pretrained(str(tmp_path / "ce"))
    file = tmp_path / "ce/modules.json"
    modules = json.loads(file.read_text())
    score = modules[0] | {"idx": 1, "name": "1", "path": "1_LogitScore"}
    score["type"] = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
    file.write_text(json.dumps([*modules, score]))
    with pytest.raises(SettingsError, match="UNSUPPORTED_MODULE: Transformer → LogitScore in a CrossEncoder"):
        load_ranker(tmp_path / "ce")


@pytest.mark.parametrize(("default", "warned"), [("ask", True), (None, False), ("gone", False)])
def test_a_default_prompt_is_warned_of(classifiers, tmp_path, sentence_transformers, caplog, default, warned):
    sentence_transformers.CrossEncoder(str(classifiers("bert"))).save_pretrained(str(tmp_path / "ce"))
    file = tmp_path / "ce/config_sentence_transformers.json"
    prompts = {"prompts": {"ask": "Relevant? "}, "default_prompt_name": default}
    file.write_text(json.dumps(json.loads(file.read_text()) | prompts))
    load_ranker(tmp_path / "ce")
    told = "CrossEncoder puts its default prompt 'Relevant? ' before the texts; hardneg does not, so scores differ"
    assert (told in caplog.text) == warned


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"max_length": LENGTH + 1}, f"TOO_LONG: .* takes {LENGTH} tokens; set it to at most {LENGTH}"),
        ({"max_length": 20, "query_length": 30}, "MAX_LENGTH"),
        (
            {"max_length": 20, "query_prompt": "a " * 8},
            "TOO_LONG: query_prompt takes .* tokens, but the query's length is 10: no text would be left",
        ),
        (
            {"passage_length": 9, "passage_prompt": "a " * 8},
            "TOO_LONG: passage_prompt takes .* tokens, but the passage's length is 9: no text would be left",
        ),
        ({"max_length": 0}, "BAD_SETTING: max_length = 0"),
        ({"activation": "tanh"}, "BAD_SETTING: activation = 'tanh'"),
        ({"max_lenght": 3}, "UNKNOWN_SETTING: a ranker has no setting 'max_lenght'; did you mean max_length"),
    ],
)
def test_impossible_settings_are_refused(classifiers, settings, line):
    with pytest.raises(SettingsError, match=line):
        load_ranker(classifiers("bert"), **settings)


def test_a_damaged_ranker_of_ours_is_refused(classifiers, tmp_path):
    save_ranker(load_ranker(classifiers("bert")), tmp_path / "ranker")
    (tmp_path / "ranker/config.json").write_text("{}")
    with pytest.raises(HardnegError, match="WRONG_SIZE"):
        load_ranker(tmp_path / "ranker")


def test_the_record_of_models_names_the_ranker(classifiers, bert):
    source = ModelSource.at(bert, ranker=str(classifiers("bert")))
    assert open_ranker(source).digest() == load_ranker(classifiers("bert")).digest()


# ---------------------------------------------------------------- many pairs


def test_many_pairs_come_in_order_whatever_the_budget(classifiers, tmp_path, monkeypatch):
    monkeypatch.setattr("hardneg.models.pair_scores.WINDOW", 64)
    ranker, source = load_ranker(classifiers("bert")), stub()
    rows, ticks = drawn(source), []
    found = scored(ranker, source, tmp_path, rows, progress=lambda *tick: ticks.append(tick))
    assert {64, 128, 192, 256, 300} < {done for done, _ in ticks}  # each window's end, and its batches
    assert ticks == sorted(ticks)
    assert {total for _, total in ticks} == {300}
    np.testing.assert_array_equal(found, scored(ranker, source, tmp_path, rows))
    for budget in (1, 5000):
        np.testing.assert_allclose(found, scored(ranker, source, tmp_path, rows, budget=budget), atol=2e-5)
    turned = [row[::-1] for row in rows]
    np.testing.assert_allclose(found[::-1], scored(ranker, source, tmp_path, turned), atol=2e-5)
    assert scored(ranker, source, tmp_path, [row[:0] for row in rows]).shape == (0,)
    assert not ranker.training


def test_a_document_scores_as_its_best_sequence(classifiers, tmp_path):
    ranker, source = load_ranker(classifiers("bert"), chunks=3, max_length=60), stub()
    queries, passages = stores(ranker, source, tmp_path)
    assert passages.first is not None
    rows = drawn(source)
    found = score_pairs(ranker, queries, passages, *rows, budget=700)
    store, several = PairStore(queries, passages, ranker.form, 60), 0
    assert store.lengths(np.zeros(len(passages), int), np.arange(len(passages))).max() <= 60
    for query, passage, score in zip(*rows, found, strict=True):
        sequences = np.arange(passages.first[passage], passages.first[passage + 1])
        with torch.no_grad():
            each = ranker.score(store.read(np.full(len(sequences), query), sequences))
        assert abs(each.max().item() - score) < 2e-5
        several += len(sequences) > 1
    assert several > 50


def test_chunks_lose_nothing_beside_the_longest_query(classifiers):
    ranker = load_ranker(classifiers("bert"), chunks=3, max_length=60)
    template, around = ranker.template, sum(ranker.form.around)
    assert template.query.max_length - around + template.passage.max_length - around + ranker.form.special == 60


def test_bfloat16_is_near_and_leaves_the_weights(classifiers, tmp_path):
    ranker, source = load_ranker(classifiers("bert")), stub()
    rows, before = drawn(source, 60), ranker.digest()
    exact, near = (scored(ranker, source, tmp_path, rows, precision=kind) for kind in ("float32", "bfloat16"))
    assert 0 < np.abs(exact - near).max() < 0.2
    assert ranker.digest() == before
    with ranker.inference("bfloat16"):
        np.testing.assert_array_equal(near, scored(ranker, source, tmp_path, rows))


def test_a_score_that_is_no_number_is_refused(classifiers, tmp_path):
    ranker, source = load_ranker(classifiers("bert")), stub()
    with torch.no_grad():
        ranker.tower.head.out.bias.fill_(float("nan"))
    rows = [np.array([3, 4]), np.array([5, 6])]
    with pytest.raises(NumericError, match="BAD_SCORE: the ranker's score of query row 3, passage row 5 is nan"):
        scored(ranker, source, tmp_path, rows)
    with pytest.raises(NumericError, match="of q3 and p5 is"):
        scored(ranker, source, tmp_path, rows, named=lambda q, p: f"q{q} and p{p}")


def test_what_does_not_fit_is_refused_before_anything_is_scored(classifiers, tmp_path):
    ranker, source = load_ranker(classifiers("bert")), stub()
    memory.limit_memory(f"{(memory.own_memory() >> 20) + 100}M")
    try:
        scored(ranker, source, tmp_path, drawn(source))
        with pytest.raises(ResourceError, match=r"MEMORY_TOO_SMALL: scoring pairs needs .* give --max-ram"):
            scored(ranker, source, tmp_path, drawn(source), budget=10**7)
    finally:
        memory.limit_memory()


def test_the_pairs_of_a_collection_are_those_of_the_stores(classifiers, tmp_path):
    ranker, source = load_ranker(classifiers("roberta")), stub()
    made = pair_store(ranker.tower, ranker.template, source, tmp_path)
    rows = drawn(source, 20)
    own = PairStore(*stores(ranker, source, tmp_path), ranker.form, ranker.settings.max_length).read(*rows)
    assert made.read(*rows).ids.tolist() == own.ids.tolist()


# ---------------------------------------------------------------- trained


@dataclass
class Rows:
    query_rows: list

    def micro(self):
        return [self]


def trained(folder, bert, source, cache, *, until):
    """A ranker that learns, in a stage, to prefer the first of four passages."""
    folder.mkdir(exist_ok=True)
    ranker = new_ranker(ModelSource.at(bert), seed=1, max_length=80)
    pairs = pair_store(ranker.tower, ranker.template, source, cache)

    def step(part):
        tokens = pairs.read(np.repeat(part.query_rows, 4), np.tile(np.arange(4), 5))
        scores = cached(lambda tokens, side: ranker.score(tokens)[:, None], 300)(tokens, "passage").view(5, 4)
        return StepOutput(torch.nn.functional.cross_entropy(scores, torch.zeros(5, dtype=torch.long)))

    rate = linear(2e-3, warmup=1, horizon=20)
    models = {folder / "ranker": 6}
    trainee = Trainee(
        "ranker", ranker, step, lambda step: Rows(list(range(5))), rate, save_ranker, models, kind="ranker"
    )
    stage = Stage(
        [trainee],
        folder / "checkpoint",
        Metrics(folder / "metrics.jsonl"),
        episode=1,
        seed=3,
        inputs={"pairs": pairs.queries.digest},
        timed=untimed,
        checkpoint_every=2,
    )
    stage.advance("ranker", until)
    return ranker


def test_a_ranker_trains_in_a_stage_goes_on_and_is_published_once(bert, tmp_path):
    source = stub()
    whole = trained(tmp_path / "whole", bert, source, tmp_path, until=6)
    losses = [row["loss"] for row in Metrics(tmp_path / "whole/metrics.jsonl").read()]
    assert losses[-1] < losses[0] - 0.2
    trained(tmp_path / "run", bert, source, tmp_path, until=3)
    assert trained(tmp_path / "run", bert, source, tmp_path, until=6).digest() == whole.digest()
    loaded = load_ranker(tmp_path / "run/ranker")
    assert loaded.digest() == whole.digest()
    assert not loaded.training
    before = (tmp_path / "run/ranker/manifest.json").stat().st_mtime_ns
    trained(tmp_path / "run", bert, source, tmp_path, until=6)
    assert (tmp_path / "run/ranker/manifest.json").stat().st_mtime_ns == before
