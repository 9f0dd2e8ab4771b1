"""Loading an encoder: accepted and refused models and options."""

import json
import os
import pickle
import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertConfig, BertForMaskedLM
from transformers.utils import logging

from faults.injected import Payload
from hardneg.errors import HardnegError, InputError, SettingsError, TrustError
from hardneg.models import pretrained
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.loading import load_encoder
from hardneg.models.saving import save_encoder
from hardneg.models.source import trained_name
from hardneg.records import TokenBatch, offsets_of
from worlds.few_texts import close, embed, tokens_of


def test_a_fault_elsewhere_is_not_the_models(tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(FileNotFoundError), pretrained.usable(tmp_path / "model"):
        (tmp_path / "cache/file").open()
    with pytest.raises(InputError, match="BAD_MODEL"), pretrained.usable(tmp_path / "model"):
        (tmp_path / "model/config.json").open()


def test_defaults_of_a_plain_folder(bert, capfd):
    encoder = load_encoder(str(bert))
    assert encoder.settings == EncoderSettings(query_length=512, passage_length=512)
    assert not encoder.training
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("of_tokenizer", "of_config", "length"), [(40, 512, 40), (512, 512, 512), (10**30, 512, 512), (1000, 512, 512)]
)
def test_a_plain_folder_takes_what_its_tokenizer_and_positions_allow(copied, of_tokenizer, of_config, length):
    for file, name, value in (
        ("tokenizer_config.json", "model_max_length", of_tokenizer),
        ("config.json", "max_position_embeddings", of_config),
    ):
        (copied / file).write_text(json.dumps(json.loads((copied / file).read_text()) | {name: value}))
    settings = load_encoder(str(copied)).settings
    assert (settings.query_length, settings.passage_length) == (length, length)


def test_roberta_takes_512_tokens_of_its_514_positions(roberta, tmp_path):
    folder = shutil.copytree(roberta, tmp_path / "roberta")
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": 10**30}))
    settings = load_encoder(str(folder)).settings
    assert (settings.query_length, settings.passage_length) == (512, 512)
    with pytest.raises(SettingsError, match="TOO_LONG: passage_length = 513, the model takes 512 tokens"):
        load_encoder(str(folder), passage_length=513)


@pytest.mark.parametrize(("said", "length"), [(48, 48), (None, 512), (4096, 512)])
def test_a_sentence_transformers_folder_takes_what_it_says(bert, tmp_path, said, length):
    folder = tmp_path / "st"
    save_encoder(load_encoder(str(bert), pooling="mean"), folder)
    for name in ("hardneg.json", "manifest.json"):  # as if another had written it
        (folder / name).unlink()
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": said}))
    settings = load_encoder(str(folder)).settings
    assert (settings.query_length, settings.passage_length) == (length, length)


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
        (
            ["nobody/no-such-model"],
            {},
            "MODEL_NOT_FOUND.*no folder /.*/nobody/no-such-model, and it could not be had from .*",
        ),
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


@pytest.mark.parametrize("name", ["./model", "../model", "~/no/model", "/a/b", "models/x/y", "models/x", "a b"])
def test_what_looks_like_a_path_is_not_asked_of_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    monkeypatch.setattr(pretrained, "_from_hub", lambda *_: pytest.fail("the hub was asked"))
    with pytest.raises(SettingsError, match=r"MODEL_NOT_FOUND: .*: no such folder"):
        load_encoder(name)
    (tmp_path / "model.bin").touch()
    with pytest.raises(SettingsError, match="this is a file, but a model is a folder"):
        load_encoder(str(tmp_path / "model.bin"))


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
    with pytest.raises(TrustError, match=r"BIN_WEIGHTS.*pass allow_bin=True"):
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
    with pytest.raises(TrustError, match=r"BIN_WEIGHTS.*pass allow_bin=True"):
        load_encoder(str(folder))
    assert load_encoder(str(folder), allow_bin=True).digest() == expected


def test_a_pickle_is_never_run(copied, tmp_path):
    (copied / "model.safetensors").unlink()
    for save in (torch.save, lambda value, path: path.write_bytes(pickle.dumps(value, protocol=2))):
        save({"embeddings.word_embeddings.weight": Payload(tmp_path / "mark")}, copied / "pytorch_model.bin")
        with pytest.raises(TrustError, match="UNSAFE_PICKLE"):
            load_encoder(str(copied), allow_bin=True)
    assert not (tmp_path / "mark").exists()


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


def test_a_pipe_among_the_files_of_a_model_is_told_and_not_waited_for(copied):
    os.mkfifo(copied / "extra.json")
    with pytest.raises(InputError, match=r"extra\.json: BAD_MODEL: cannot be read \(this is no plain file\)"):
        load_encoder(str(copied))


OTHERS = [
    '{"name": "x", "version": 1, "icons": []}',
    '{"name": "x", "kind": "model"}',
    '{"files": [{"path": "model.safetensors", "sha256": "0123"}]}',
    '{"format_version": 1, "name": "x", "files": {"model.safetensors": {"sha256": "0123"}}}',
    '["kind", "files", "inputs", "facts", "settings"]',
]


@pytest.mark.parametrize("manifest", OTHERS)
def test_a_manifest_of_another_program_is_passed_over(bert, copied, manifest):
    (copied / "manifest.json").write_text(manifest)
    assert trained_name(copied) is None
    assert load_encoder(str(copied)).digest("passage") == load_encoder(str(bert)).digest("passage")


DAMAGED = [
    lambda text: "",
    lambda text: text[:-20],
    lambda text: text.replace("model", "mo"),
    lambda text: text.replace('"files"', '"fi1es"'),
    lambda text: text.replace('"inputs": {', '"inputs": 3, "x": {'),
]


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_manifest_of_ours_is_no_other_programs(bert, tmp_path, damage):
    save_encoder(load_encoder(str(bert)), tmp_path / "model")
    manifest = tmp_path / "model" / "manifest.json"
    manifest.write_text(damage(manifest.read_text()))
    with pytest.raises(HardnegError, match=r"BAD_MANIFEST|CORRUPT"):
        load_encoder(str(tmp_path / "model"))


def test_an_adapter_is_refused_whether_its_library_is_there_or_not(copied):
    (copied / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "somebody/model"}))
    with pytest.raises(SettingsError, match=r"UNSUPPORTED_MODEL: it has an adapter \(LoRA\)") as fault:
        load_encoder(str(copied))
    assert str(copied) in str(fault.value)


def test_a_folder_that_holds_a_model_names_it(copied, tmp_path):
    (tmp_path / "exp").mkdir()
    copied.rename(tmp_path / "exp/model")
    (tmp_path / "exp/config.json").write_text((tmp_path / "exp/model/config.json").read_text())
    with pytest.raises(InputError, match=r"NO_WEIGHTS: .*; name the folder .*/exp/model$"):
        load_encoder(str(tmp_path / "exp"))


def test_a_model_of_the_hub_without_weights_may_have_them_as_bin(copied, tmp_path):
    """Files that are not asked for are not fetched, so nobody here knows."""
    folder = tmp_path / "hub/models--somebody--model/snapshots/0123"
    folder.parent.mkdir(parents=True)
    copied.rename(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"NO_WEIGHTS: .*; if the hub has .* only as .bin, pass allow_bin=True"):
        load_encoder(str(folder))
    with pytest.raises(InputError, match=r"NO_WEIGHTS: .*; get the model folder again"):
        load_encoder(str(folder), allow_bin=True)


def test_a_folder_that_is_no_encoder(copied):
    (copied / "config.json").write_text(json.dumps({"model_type": "bart"}))
    with pytest.raises(HardnegError, match="UNSUPPORTED_MODEL: a model of type bart"):
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
    assert encoder.settings.passage_length == 510, "the padding's position and the one before it are no token's"
    tokens = tokens_of(encoder, "passage", tmp_path)
    with torch.no_grad():
        together = encoder.encode(tokens, "passage")
        one_by_one = [encoder.encode(tokens.take(np.array([row])), "passage") for row in range(len(tokens))]
    close(together, torch.cat(one_by_one))


def test_of_a_whole_t5_the_encoder_is_read(tmp_path, bert):
    from transformers import T5Config, T5EncoderModel, T5ForConditionalGeneration

    folder = shutil.copytree(bert, tmp_path / "t5")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shape = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 1000}
        whole = T5ForConditionalGeneration(T5Config(**shape, pad_token_id=0, n_positions=300))
        whole.save_pretrained(folder)
    encoder = load_encoder(str(folder), pooling="mean")
    assert type(encoder.towers[0].transformer) is T5EncoderModel
    assert encoder.settings.passage_length == 300
    read, stored = encoder.towers[0].transformer.encoder.state_dict(), whole.encoder.state_dict()
    assert read.keys() == stored.keys()
    assert all(torch.equal(read[name], stored[name]) for name in read)


def test_offsets_need_not_be_sorted(bert):
    lengths = np.array([3, 40, 3, 128, 17])
    ids = np.random.default_rng(0).integers(5, 90, lengths.sum()).astype(np.int32)
    tokens = TokenBatch(ids, offsets_of(lengths))
    encoder: BiEncoder = load_encoder(str(bert), pooling="mean")
    with torch.no_grad():
        together = encoder.encode(tokens, "passage")
        one_by_one = [encoder.encode(tokens.take(np.array([row])), "passage") for row in range(5)]
    close(together, torch.cat(one_by_one))


def test_threads_that_load_at_once_leave_the_reports_of_transformers_as_they_were():
    """The one that began first ends first, so it must not decide what the other puts back."""
    begun, over = Event(), Event()
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()

    def load():
        with pretrained.quiet():
            begun.set()
            over.wait()

    with ThreadPoolExecutor(1) as other:
        with pretrained.quiet():
            loading = other.submit(load)
            begun.wait()
        between = logging.get_verbosity(), logging.is_progress_bar_enabled()
        over.set()
        loading.result()
    assert between == (logging.ERROR, False)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_weights_that_are_no_pickle_leave_the_filters_of_warnings_alone():
    before = list(warnings.filters)
    with pretrained.refusing_pickles(Path("model.safetensors")):
        assert warnings.filters == before
