"""A question is answered without transformers where the model was read before, and with the same bits."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hardneg.api.retrievers import retriever_for
from hardneg.data.tokens import token_batch
from hardneg.errors import InputError
from hardneg.models.loading import open_encoder
from hardneg.models.plain_bert import PlainBert
from hardneg.models.remembered import KIND
from hardneg.models.saving import save_encoder
from hardneg.models.source import ModelSource
from hardneg.storage.artifacts import verify
from worlds.tiny_models import tiny_roberta
from worlds.tiny_world import tiny_model

SLOW = {"transformers", "scipy", "sympy", "faiss", "bm25s", "matplotlib", "numba", "pandas", "sklearn"}
SLOW |= {"torch._dynamo", "torch.distributed.tensor", "huggingface_hub", "rich"}


def loaded_by(*words):
    """The slow modules that a command loads in a process of its own."""
    code = (
        "import sys, json\nfrom hardneg.cli import run\n"
        "out, sys.stdout = sys.stdout, sys.stderr\n"
        f"status = run({list(map(str, words))})\nsys.stdout = out\n"
        f"print(json.dumps([status, sorted({SLOW} & set(sys.modules))]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    return json.loads(done.stdout)


def encoded(encoder, texts, side="passage"):
    tokens = token_batch(texts, [], encoder.search_template(side), encoder.tokenizer(side))
    with encoder.inference(encoder.precision):
        return encoder.encode(tokens, side).numpy()


def opened(folder, cache):
    return open_encoder(ModelSource.at(folder, device="cpu"), recalled=cache)


def is_plain(encoder):
    return isinstance(encoder.tower("query").transformer, PlainBert)


@pytest.mark.slow
def test_a_search_loads_no_transformers_where_it_answered_before(world, tmp_path):
    words = ["search", "--data", world.collection.path, "--model", world.model, "--cache", tmp_path / "cache"]
    words += ["--query", "bade bafi"]
    first, again = loaded_by(*words), loaded_by(*words)
    assert first[0] == again[0] == 0
    assert "transformers" in first[1]  # the test would see it
    assert again[1] == []


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("computed", ["float32", "bfloat16"])
def test_vectors_and_identities_have_the_same_bits(world, tmp_path, pooling, computed):
    source = ModelSource.at(world.model, device="cpu")
    texts = world.collection.texts.take(np.arange(40))
    read, first, again = (
        open_encoder(source, pooling=pooling, recalled=cache) for cache in (None, tmp_path, tmp_path)
    )
    assert [is_plain(one) for one in (read, first, again)] == [False, False, True]
    assert read.digest() == again.digest()
    assert read.digest("passage") == again.digest("passage")
    assert read.tower("query").takes_types == again.tower("query").takes_types
    assert read.tower("query").longest == again.tower("query").longest
    vectors = []
    for encoder in (read, again):
        with encoder.inference(computed):
            vectors.append(encoded(encoder, texts))
    assert vectors[0].tobytes() == vectors[1].tobytes()


def test_a_retriever_answers_alike(world, tmp_path):
    source = ModelSource.at(world.model, device="cpu")
    runs = [
        retriever_for(source, world.collection, tmp_path / "cache").search_texts(["bade bafi bago"], 10)
        for _ in range(2)
    ]
    assert runs[0].scores.tobytes() == runs[1].scores.tobytes()
    assert runs[0].passage_rows.tolist() == runs[1].passage_rows.tolist()


def test_the_folders_that_hardneg_and_sentence_transformers_write_are_remembered(world, tmp_path):
    encoder = open_encoder(ModelSource.at(world.model, device="cpu"), normalize=True, query_length=12)
    save_encoder(encoder, tmp_path / "saved")
    first, again = (opened(tmp_path / "saved", tmp_path / "cache") for _ in range(2))
    assert not is_plain(first)
    assert is_plain(again)
    assert again.settings == first.settings
    assert again.digest() == first.digest() == encoder.digest()


def test_a_model_with_more_than_ten_labels_has_one_identity(world, tmp_path):
    """Transformers numbers labels, and keys of JSON are strings: sorted as these, 10 comes before 2."""
    folder = tiny_model(tmp_path / "model", world.collection)
    config = tmp_path / "model" / "config.json"
    labels = {"id2label": {str(number): f"L{number}" for number in range(12)}}
    config.write_text(json.dumps(json.loads(config.read_text()) | labels))
    read, first, again = (opened(folder, cache) for cache in (None, tmp_path / "cache", tmp_path / "cache"))
    assert [is_plain(one) for one in (read, first, again)] == [False, False, True]
    assert read.digest() == first.digest() == again.digest()


def test_weights_are_those_of_the_folder_now(world, tmp_path):
    folder = tiny_model(tmp_path / "model", world.collection)
    opened(folder, tmp_path / "cache")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    weights["embeddings.LayerNorm.bias"] += 1
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    again = opened(folder, tmp_path / "cache")
    assert is_plain(again)
    assert again.digest() == opened(folder, None).digest()


def test_other_settings_or_a_damaged_record_are_read_anew(world, tmp_path):
    folder = tiny_model(tmp_path / "model", world.collection)
    opened(folder, tmp_path / "cache")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"layer_norm_eps": 1e-5}))
    other = opened(folder, tmp_path / "cache")
    assert not is_plain(other)
    assert other.tower("query").transformer.config.layer_norm_eps == 1e-5
    records = sorted((tmp_path / "cache" / KIND).iterdir())
    assert len(records) == 2
    for record in records:
        verify(record)
        (record / "config.json").write_text("{}")
    assert not is_plain(opened(folder, tmp_path / "cache"))


def test_a_lost_weight_is_told_as_ever(world, tmp_path):
    folder = tiny_model(tmp_path / "model", world.collection)
    opened(folder, tmp_path / "cache")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    del weights["embeddings.LayerNorm.bias"]
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="MISSING_WEIGHTS"):
        opened(folder, tmp_path / "cache")


def test_another_kind_of_model_is_not_remembered(world, tmp_path):
    texts = world.collection.texts.take(np.arange(20))
    folder = tiny_roberta(tmp_path / "roberta", texts)
    for _ in range(2):
        assert not is_plain(opened(folder, tmp_path / "cache"))
    assert not (tmp_path / "cache" / KIND).exists()


def test_it_cannot_be_trained(world, tmp_path):
    for _ in range(2):
        encoder = opened(world.model, tmp_path / "cache")
    tokens = token_batch(["bade"], [], encoder.search_template("query"), encoder.tokenizer("query"))
    encoder.train()
    with pytest.raises(AssertionError, match="no dropout"):
        encoder.encode(tokens, "query")
    assert not any(weight.requires_grad for weight in encoder.parameters())


def test_types_are_read(world, tmp_path):
    source = ModelSource.at(world.model, device="cpu")
    read, plain = (
        [open_encoder(source, recalled=cache) for _ in range(2)][1].tower("query").transformer
        for cache in (None, tmp_path)
    )
    from hardneg.models.flat_transformer import hidden_states
    from hardneg.models.packing import lay_out

    layout = lay_out(np.array([5, 3]), torch.device("cpu"))
    ids, types = torch.arange(8) + 5, torch.tensor([0, 0, 1, 1, 1, 0, 1, 1]).int()
    with torch.no_grad():
        ours, theirs = (hidden_states(model.eval(), ids, layout, types) for model in (plain, read))
    assert torch.equal(ours, theirs)
