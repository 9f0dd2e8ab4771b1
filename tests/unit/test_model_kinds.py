"""Every kind of transformer that docs/how-to/choose-a-recipe.md names: read, run, saved and opened by others."""

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
NO_MARKS = {"bos_token_id": None, "eos_token_id": None, "cls_token_id": None, "sep_token_id": None}
KINDS = {
    "ALBERT": ("Albert", {**SHAPE, "embedding_size": 16}),
    "DeBERTa": ("DebertaV2", {**SHAPE, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "ModernBERT": ("ModernBert", {**SHAPE, "local_attention": 8, **NO_MARKS}),
    "MPNet": ("MPNet", SHAPE),
    "T5": ("T5", T5),
    "mT5": ("MT5", T5),
    "UMT5": ("UMT5", T5),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_that_runs_padded_is_read_trained_and_saved(name, bert, tmp_path, sentence_transformers):
    kind, shape = KINDS[name]
    config = getattr(transformers, f"{kind}Config")(**shape)
    folder = shutil.copytree(bert, tmp_path / "model")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        class_ = getattr(transformers, f"{kind}EncoderModel" if "T5" in kind else f"{kind}Model")
        class_(config).save_pretrained(folder)
    assert config.model_type not in FAMILIES
    assert name in PAGE.read_text()
    lengths = {"query_length": 40, "passage_length": 40}
    encoder = load_encoder(str(folder), pooling="mean", normalize=True, title_join="space", **lengths)
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


def gradient(encoder, vectors):
    """The gradient of a loss over these vectors, of all weights in a row."""
    encoder.zero_grad()
    target = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(1))
    (vectors * target).sum().backward()
    return torch.cat([weight.grad.flatten() for weight in encoder.parameters() if weight.grad is not None])


def test_the_kinds_that_run_without_padding_are_named():
    names = ("BERT", "DistilBERT", "ELECTRA", "RoBERTa", "XLM-RoBERTa", "CamemBERT")
    assert sorted(name.lower() for name in names) == sorted(FAMILIES)
    row = next(line for line in PAGE.read_text().splitlines() if "| without padding" in line)
    assert all(name in row for name in names)
