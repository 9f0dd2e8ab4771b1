"""Every kind of transformer that docs/how-to/choose-a-recipe.md names: read, run, saved and opened by others."""

import copy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from hardneg.models.flat_transformer import FAMILIES
from hardneg.models.loading import load_encoder
from hardneg.models.saving import save_encoder
from worlds.few_texts import TEXTS, TITLES, close, tokens_of

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
    getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**shape)).save_pretrained(folder)
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
