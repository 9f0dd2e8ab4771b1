"""Every kind of transformer that docs/how-to/choose-a-recipe.md names: read, run, saved and opened by others."""

import copy
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from hardneg.errors import SettingsError
from hardneg.models.flat_transformer import FAMILIES, can_pack
from hardneg.models.loading import load_encoder
from hardneg.models.saving import save_encoder
from worlds.few_texts import QUERIES, TEXTS, TITLES, close, embed, tokens_of

PAGE = Path(__file__).parents[2] / "docs/how-to/choose-a-recipe.md"
SHAPE = {
    "vocab_size": 1000,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
T5 = {"vocab_size": 1000, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "pad_token_id": 0}
MARKS = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id"), 3)
ROTARY = SHAPE | MARKS
FEW_KEYS = ROTARY | {"num_key_value_heads": 2}
GEMMA = FEW_KEYS | {"head_dim": 8, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
PADDED = {
    "ALBERT": ("Albert", {**SHAPE, "embedding_size": 16}),
    "DeBERTa": ("DebertaV2", {**SHAPE, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "MPNet": ("MPNet", SHAPE),
    "T5": ("T5", T5),
    "mT5": ("MT5", T5),
    "UMT5": ("UMT5", T5),
}
FLAT = {
    "ModernBERT": ("ModernBert", ROTARY | {"local_attention": 8}),
    "NomicBERT": ("NomicBert", ROTARY),
    "EuroBERT": ("EuroBert", FEW_KEYS),
    "Gemma 3": ("Gemma3Text", GEMMA | {"use_bidirectional_attention": True}),
    "Llama": ("Llama", FEW_KEYS),
    "Mistral": ("Mistral", FEW_KEYS | {"sliding_window": 7}),
    "Qwen2": ("Qwen2", FEW_KEYS),
    "Qwen3": ("Qwen3", FEW_KEYS | {"head_dim": 16}),
}
KINDS = PADDED | FLAT
GENERATE = ("Gemma 3", "Llama", "Mistral", "Qwen2", "Qwen3")  # made to generate text: the last token is taken


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_read_trained_and_saved(name, bert, tmp_path, sentence_transformers):
    kind, shape = KINDS[name]
    if not hasattr(transformers, f"{kind}Config"):
        pytest.skip("this version of transformers does not have it")
    config = getattr(transformers, f"{kind}Config")(**shape)
    folder = shutil.copytree(bert, tmp_path / "model")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        class_ = getattr(transformers, f"{kind}EncoderModel" if "T5" in kind else f"{kind}Model")
        class_(config).save_pretrained(folder)
    assert (config.model_type in FAMILIES) == (name in FLAT)
    assert name in PAGE.read_text()
    lengths = {"query_length": 40, "passage_length": 40}
    encoder = load_encoder(
        str(folder), pooling="last" if name in GENERATE else "mean", normalize=True, title_join="space", **lengths
    )
    tokens = tokens_of(encoder, "passage", tmp_path)
    alone = [encoder.encode(tokens.take(np.array([row])), "passage") for row in range(len(tokens))]
    together = encoder.encode(tokens, "passage")
    close(together.detach(), torch.cat(alone).detach())
    torch.testing.assert_close(
        gradient(encoder, together), gradient(encoder, torch.cat(alone)), atol=1e-4, rtol=1e-3
    )
    save_encoder(encoder, tmp_path / "saved")
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    joined = [f"{title} {text}" if title else text for title, text in zip(TITLES, TEXTS, strict=True)]
    close(theirs.encode(joined), together.detach())
    assert load_encoder(str(tmp_path / "saved")).digest() == encoder.digest()


@pytest.mark.parametrize(("name", "pooling"), [("ModernBERT", "cls"), ("Qwen3", "last"), ("Gemma 3", "cls")])
def test_a_plain_folder_of_a_causal_model_is_read_at_its_last_token(name, pooling, bert, tmp_path):
    kind, shape = FLAT[name]
    folder = shutil.copytree(bert, tmp_path / "model")
    getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**shape)).save_pretrained(folder)
    assert load_encoder(str(folder)).settings.pooling == pooling
    assert load_encoder(str(folder), pooling="mean").settings.pooling == "mean"


@pytest.mark.parametrize(
    ("kind", "shape", "pooling"),
    [
        ("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}, "last"),
        ("Mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2}, "last"),
        ("OpenAIGPT", {"n_embd": 32, "n_layer": 2, "n_head": 4}, "last"),
        ("Mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, "last"),
        ("Bert", SHAPE | {"is_decoder": True}, "last"),
        ("XLM", {"emb_dim": 32, "n_layers": 2, "n_heads": 4}, "cls"),
        ("MegatronBert", SHAPE, "cls"),
        ("T5", T5, "cls"),
    ],
)
def test_a_causal_model_that_does_not_say_so_is_read_at_its_last_token(kind, shape, pooling, bert, tmp_path):
    """The first token of texts that begin alike would give them one vector."""
    folder = shutil.copytree(bert, tmp_path / "model")
    config = getattr(transformers, f"{kind}Config")(**({"vocab_size": 1000, "pad_token_id": 0} | shape))
    class_ = getattr(transformers, "T5EncoderModel" if kind == "T5" else f"{kind}Model")
    class_(config).save_pretrained(folder)
    encoder = load_encoder(str(folder), query_length=30, passage_length=30)
    assert encoder.settings.pooling == pooling
    assert len(np.unique(embed(encoder, "passage", tmp_path), axis=0)) == len(TEXTS)


def test_a_tokenizer_without_an_end_token_reads_titles_and_texts(bert, tmp_path):
    """As base models made to generate text have it: nothing can stand between a title and a text but a space."""
    folder = shutil.copytree(bert, tmp_path / "model")
    transformers.Qwen3Model(transformers.Qwen3Config(**FLAT["Qwen3"][1])).save_pretrained(folder)
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"post_processor": None}))
    encoder = load_encoder(str(folder))
    assert encoder.settings.title_join == "space"
    assert len(tokens_of(encoder, "passage", tmp_path)) == len(TEXTS)


def test_rotary_models_ignore_the_kind_of_position_that_their_configuration_names(bert, tmp_path):
    """As published ModernBERTs have it: a field of BERT's, whose value is ``sans_pos``."""
    folder = shutil.copytree(bert, tmp_path / "model")
    config = transformers.ModernBertConfig(**FLAT["ModernBERT"][1], position_embedding_type="sans_pos")
    transformers.ModernBertModel(config).save_pretrained(folder)
    assert can_pack(load_encoder(str(folder)).each_tower()[0].transformer)


@pytest.mark.parametrize("halves", [False, True])
def test_the_window_of_a_model_that_attends_both_ways_stays_as_it_is(bert, tmp_path, monkeypatch, halves):
    """It is halved where a configuration is read; the first versions of transformers 5 saved the half."""
    kind = transformers.Gemma3TextConfig
    if halves:
        monkeypatch.setattr(kind, "to_dict", transformers.PretrainedConfig.to_dict)
    folder = shutil.copytree(bert, tmp_path / "0")
    transformers.Gemma3TextModel(kind(**FLAT["Gemma 3"][1])).save_pretrained(folder)
    first = load_encoder(str(folder))
    window = first.each_tower()[0].transformer.config.sliding_window
    for number in (1, 2):
        save_encoder(load_encoder(str(tmp_path / str(number - 1))), tmp_path / str(number))
    assert load_encoder(str(tmp_path / "2")).each_tower()[0].transformer.config.sliding_window == window > 1
    assert load_encoder(str(tmp_path / "2")).digest() == first.digest()


@pytest.fixture
def published(bert, tmp_path, sentence_transformers):
    """A folder of sentence-transformers without Normalize, and what its Transformer and settings are to say."""

    def folder(limit, similarity):
        try:
            from sentence_transformers.sentence_transformer import modules
        except ImportError:  # before version 6
            from sentence_transformers import models as modules
        words = modules.Transformer(str(bert), max_seq_length=limit)
        width = json.loads((bert / "config.json").read_text())["hidden_size"]
        pooling = modules.Pooling(width, "mean")
        model = sentence_transformers.SentenceTransformer(
            modules=[words, pooling], device="cpu", similarity_fn_name=similarity
        )
        model.save(str(tmp_path / "published"))
        return tmp_path / "published", model

    return folder


@pytest.mark.parametrize(("similarity", "scale"), [("cosine", 20.0), ("dot", 1.0)])
def test_a_model_that_declares_cosine_similarity_normalises(published, tmp_path, similarity, scale):
    place, theirs = published(16, similarity)
    encoder = load_encoder(str(place))
    assert encoder.settings.normalize == (similarity == "cosine")
    assert encoder.settings.scale == scale
    vectors = encoder.encode(tokens_of(encoder, "passage", tmp_path), "passage").detach()
    joined = [f"{title} {text}" if title else text for title, text in zip(TITLES, TEXTS, strict=True)]
    given = theirs.encode(joined, convert_to_tensor=True)
    close(vectors @ vectors.T, theirs.similarity(given, given))


@pytest.mark.parametrize("similarity", ["euclidean", "dot"])
def test_a_distance_that_a_model_declares_is_told(published, similarity, caplog):
    load_encoder(str(published(16, similarity)[0]))
    told = "published declares euclidean as its similarity; here passages are ranked by products"
    assert (told in caplog.text) == (similarity == "euclidean")


def test_a_length_beyond_the_model_is_told_when_it_is_lowered(published, caplog):
    place, _ = published(16, "dot")
    file = next(place.rglob("sentence_bert_config.json"))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_seq_length": 100_000}))
    encoder = load_encoder(str(place))
    assert encoder.settings.passage_length == encoder.each_tower()[0].longest
    assert "published says 100000 tokens (max_seq_length), but its model takes" in caplog.text
    load_encoder(str(place))
    assert caplog.text.count("published says 100000 tokens") == 1  # a command reads a model more than once


@pytest.mark.parametrize(
    ("changes", "lengths"),
    [
        ({"query_length": 5}, (5, 16)),
        ({"document_length": 6}, (16, 6)),
        ({"processing_kwargs": {"text": {"max_length": 7}}, "query_length": 5}, (7, 7)),
        ({"tokenizer_args": {"model_max_length": 9}, "document_length": 6}, (9, 6)),
        ({"processor_kwargs": {"model_max_length": 9}}, (9, 9)),
    ],
)
def test_the_length_is_that_of_the_place_which_sentence_transformers_reads(
    published, sentence_transformers, changes, lengths, caplog
):
    place, _ = published(16, "dot")
    file = next(place.rglob("sentence_bert_config.json"))
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    settings = load_encoder(str(place)).settings
    assert (settings.query_length, settings.passage_length) == lengths
    assert "not applied" not in caplog.text
    theirs = sentence_transformers.SentenceTransformer(str(place), device="cpu")
    if not hasattr(theirs[0], "query_length"):
        pytest.skip("before version 6 it reads one length")
    long = " ".join(TEXTS) * 3
    for task, length in zip(("query", "document"), lengths, strict=True):
        assert theirs.preprocess([long], task=task)["input_ids"].shape[1] == length


def test_what_a_folder_sets_of_its_transformer_and_is_not_applied_is_told(published, caplog):
    place, _ = published(16, "dot")
    file = next(place.rglob("sentence_bert_config.json"))
    more = {"config_args": {"is_causal": False, "trust_remote_code": True}, "tokenizer_args": {"use_fast": True}}
    file.write_text(json.dumps(json.loads(file.read_text()) | more))
    load_encoder(str(place))
    assert "published sets is_causal of its transformer, which is not applied here" in caplog.text


@pytest.mark.parametrize(
    ("name", "more", "told"),
    [
        ("config_sentence_transformers.json", {"whiten": True}, "sets whiten of the model"),
        ("config_sentence_transformers.json", {"model_type": "SentenceTransformer", "whiten": False}, None),
        ("1_Pooling/config.json", {"skip_tokens": 1}, "sets skip_tokens of its pooling"),
        (
            "sentence_bert_config.json",
            {"transformer_task": "fill-mask"},
            "sets transformer_task of its transformer",
        ),
        ("sentence_bert_config.json", {"transformer_task": "feature-extraction", "unpad_inputs": True}, None),
        ("sentence_bert_config.json", {"model_args": {"torch_dtype": "float16"}}, None),
        ("sentence_bert_config.json", {"model_args": {"num_layers": 1}}, "sets num_layers of its transformer"),
        (
            "sentence_bert_config.json",
            {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}},
            "sets modality_config of its transformer",
        ),
    ],
)
def test_a_setting_that_is_not_read_is_told(published, caplog, name, more, told):
    place, _ = published(16, "dot")
    file = place / name
    file.write_text(json.dumps(json.loads(file.read_text()) | more))
    load_encoder(str(place))
    if told is None:
        assert "not applied here" not in caplog.text
    else:
        assert f"published {told}, which is not applied here, so its vectors may be other ones" in caplog.text


def test_a_transformer_that_gets_texts_as_messages_is_refused(published):
    """sentence-transformers then puts the chat template around every text, so its vectors are other ones."""
    place, _ = published(16, "dot")
    file = place / "sentence_bert_config.json"
    said, forward = json.loads(file.read_text()), {"method": "forward", "method_output_name": "last_hidden_state"}
    file.write_text(
        json.dumps(said | {"modality_config": {"text": forward}, "module_output_name": "token_embeddings"})
    )
    assert load_encoder(str(place)).settings.pooling == "mean"
    kinds = {"text": forward, "message": forward | {"format": "flat"}}
    file.write_text(json.dumps(said | {"modality_config": kinds, "module_output_name": "token_embeddings"}))
    told = "UNSUPPORTED_MODULE: .*Transformer that applies a chat template to every text is not supported"
    with pytest.raises(SettingsError, match=told):
        load_encoder(str(place))


def test_a_normalisation_of_other_vectors_is_refused(published):
    place, _ = published(16, "dot")
    modules = json.loads((place / "modules.json").read_text())
    kind = modules[1]["type"].rsplit(".", 2)[0] + ".normalize.Normalize"
    (place / "modules.json").write_text(json.dumps([*modules, {"idx": 2, "name": "2", "path": "2", "type": kind}]))
    (place / "2").mkdir()
    assert load_encoder(str(place)).settings.normalize
    (place / "2" / "config.json").write_text(json.dumps({"module_input_name": "token_embeddings"}))
    with pytest.raises(SettingsError, match=r"Normalize \(token_embeddings\) is not supported"):
        load_encoder(str(place))


def test_rotary_angles_are_exact_in_bfloat16(bert, tmp_path):
    """With frequencies in bfloat16, the angles of position 500 would be off by up to 0.6."""
    folder = shutil.copytree(bert, tmp_path / "model")
    transformers.Qwen3Model(transformers.Qwen3Config(**FLAT["Qwen3"][1] | {"head_dim": 128})).save_pretrained(
        folder
    )
    encoder = load_encoder(str(folder), pooling="last")
    turn = encoder.each_tower()[0].transformer.rotary_emb
    place = torch.tensor([[500]])
    exact = torch.stack(turn(torch.zeros(1, 1, 1), place))
    with encoder.inference("bfloat16"):
        assert encoder.each_tower()[0].transformer.embed_tokens.weight.dtype == torch.bfloat16
        found = torch.stack(turn(torch.zeros(1, 1, 1), place))
    torch.testing.assert_close(found, exact, atol=0, rtol=0)
    rough = copy.deepcopy(turn)
    rough.inv_freq = rough.inv_freq.bfloat16()
    assert (torch.stack(rough(torch.zeros(1, 1, 1), place)) - exact).abs().max() > 0.2


@pytest.mark.parametrize("name", FLAT)
def test_a_rotary_kind_in_bfloat16_has_about_the_vectors_of_float32(name, bert, tmp_path):
    kind, shape = FLAT[name]
    if not hasattr(transformers, f"{kind}Config"):
        pytest.skip("this version of transformers does not have it")
    folder = shutil.copytree(bert, tmp_path / "model")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**shape))
    model.save_pretrained(folder)
    encoder = load_encoder(str(folder), pooling="mean", normalize=True)
    tokens = tokens_of(encoder, "passage", tmp_path)
    with encoder.inference():
        exact = encoder.encode(tokens, "passage")
    with encoder.inference("bfloat16"):
        rough = encoder.encode(tokens, "passage")
    with torch.autocast("cpu", torch.bfloat16):
        trained = encoder.encode(tokens, "passage")
    (trained * exact).sum().backward()
    for vectors in (rough, trained):
        assert (vectors * exact).sum(1).min() > 0.99
    assert all(weight.grad.isfinite().all() for weight in encoder.parameters() if weight.grad is not None)


def gradient(encoder, vectors):
    """The gradient of a loss over these vectors, of all weights in a row."""
    encoder.zero_grad()
    target = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(1))
    (vectors * target).sum().backward()
    return torch.cat([weight.grad.flatten() for weight in encoder.parameters() if weight.grad is not None])


def test_the_kinds_that_run_without_padding_are_named():
    names = ("BERT", "DistilBERT", "ELECTRA", "RoBERTa", "XLM-RoBERTa", "CamemBERT", *FLAT)
    types = {"nomicbert": "nomic_bert", "gemma 3": "gemma3_text"}
    assert sorted(types.get(name.lower(), name.lower()) for name in names) == sorted(FAMILIES)
    rows = " ".join(line for line in PAGE.read_text().splitlines() if "| without padding" in line)
    assert all(name in rows for name in names)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("FNet", {}),
        ("ConvBert", {}),
        ("MobileBert", {"embedding_size": 32, "intra_bottleneck_size": 32, "num_feedforward_networks": 1}),
        ("Nystromformer", {}),
    ],
)
def test_a_kind_that_reads_padding_gets_none(kind, shape, bert, tmp_path):
    folder = shutil.copytree(bert, tmp_path / "model")
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**SHAPE | shape))
    model.get_input_embeddings().weight.data[0] = 0.3  # that of the padding, as TensorFlow trains it
    model.save_pretrained(folder)
    encoder = load_encoder(str(folder), pooling="mean", title_join="space", query_length=40, passage_length=40)
    tokens = tokens_of(encoder, "passage", tmp_path)
    tokens = tokens.take(np.array([3, 0, 1, 2, 0]))
    with torch.no_grad():
        alone = [encoder.encode(tokens.take(np.array([row])), "passage") for row in range(len(tokens))]
        close(encoder.encode(tokens, "passage"), torch.cat(alone))


@pytest.mark.parametrize(
    ("kind", "shape", "width"),
    [
        ("GPTNeo", {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]]}, 32),
        ("XLNet", {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}, 32),
        ("OPT", {"hidden_size": 32, "num_attention_heads": 4, "ffn_dim": 48, "word_embed_proj_dim": 16}, 16),
    ],
)
def test_a_kind_with_unusual_sizes_is_read(kind, shape, width, bert, tmp_path):
    """No inner width, no last position, and a projection after the last layer."""
    folder = shutil.copytree(bert, tmp_path / "model")
    config = getattr(transformers, f"{kind}Config")(vocab_size=1000, pad_token_id=0, **shape)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(folder)
    encoder = load_encoder(str(folder), query_length=40)
    assert encoder.dim == width
    assert encoder.settings.passage_length == 512
    assert embed(encoder, "query", tmp_path).shape == (len(QUERIES), width)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("Rwkv", {"hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 8, "rescale_every": 2}),
        ("BigBird", SHAPE | {"attention_type": "block_sparse", "block_size": 4}),
    ],
)
def test_to_ask_a_model_whether_it_is_causal_does_not_change_it(kind, shape, bert, tmp_path):
    folder = shutil.copytree(bert, tmp_path / "model")
    config = getattr(transformers, f"{kind}Config")(**{"vocab_size": 1000} | shape)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(folder)
    state = torch.random.get_rng_state()
    encoder = load_encoder(str(folder), query_length=40, passage_length=40)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert encoder.settings.pooling == ("last" if kind == "Rwkv" else "cls")
    stored = load_file(folder / "model.safetensors")
    transformer = next(iter(encoder.each_tower())).transformer
    held = transformer.state_dict()
    assert set(held) & set(stored)
    assert all(torch.equal(stored[name], held[name]) for name in set(held) & set(stored))
    assert getattr(transformer, "attention_type", "block_sparse") == "block_sparse"


def test_a_kind_of_several_classes_is_refused(bert, tmp_path):
    folder = shutil.copytree(bert, tmp_path / "model")
    config = transformers.FunnelConfig(
        vocab_size=1000, block_sizes=[1], d_model=32, n_head=4, d_head=8, d_inner=48
    )
    transformers.FunnelModel(config).save_pretrained(folder)
    with pytest.raises(SettingsError, match="UNSUPPORTED_MODEL: models of type funnel are of several classes"):
        load_encoder(str(folder))


@pytest.mark.parametrize("side", ["Question", "Context"])
def test_an_encoder_of_dpr_is_read_as_its_bert(side, bert, tmp_path):
    folder = shutil.copytree(bert, tmp_path / "model")
    theirs = getattr(transformers, f"DPR{side}Encoder")(transformers.DPRConfig(**SHAPE)).eval()
    theirs.save_pretrained(folder)
    said = json.loads((folder / "tokenizer_config.json").read_text())
    said["tokenizer_class"] = f"DPR{side}EncoderTokenizer"
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    encoder = load_encoder(str(folder), title_join="space", query_length=40)
    assert encoder.settings.pooling == "cls"
    for text, vector in zip(QUERIES, embed(encoder, "query", tmp_path), strict=True):
        ids = torch.tensor([encoder.tokenizer("query").encode(text).ids])
        expected = theirs(torch.cat([ids[:, :39], ids[:, -1:]], 1) if ids.shape[1] > 40 else ids).pooler_output
        np.testing.assert_allclose(vector, expected[0].detach(), atol=1e-5)
    save_encoder(encoder, tmp_path / "saved")
    assert load_encoder(str(tmp_path / "saved")).digest() == encoder.digest()


def test_other_models_of_dpr_are_refused(bert, tmp_path):
    for number, model in enumerate(
        (
            transformers.DPRReader(transformers.DPRConfig(**SHAPE)),
            transformers.DPRQuestionEncoder(transformers.DPRConfig(**SHAPE, projection_dim=8)),
        )
    ):
        folder = shutil.copytree(bert, tmp_path / str(number))
        model.save_pretrained(folder)
        with pytest.raises(SettingsError, match="UNSUPPORTED_MODEL: DPR's reader and its encoders with"):
            load_encoder(str(folder))
