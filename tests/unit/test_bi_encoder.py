"""Encoders against transformers itself, in every precision."""

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from hardneg.data.tokens import token_batch
from hardneg.errors import InputError
from hardneg.models.loading import load_encoder
from hardneg.process import hardware
from hardneg.process.hardware import best_precision, warn_if_emulated
from hardneg.records import TokenBatch
from worlds.few_texts import close, embed, tokens_of

ROUNDING = 2.0**-8  # of a value in bfloat16, at most


def plain_vectors(model, tokens, pooling):
    """The vectors of sequences that a transformers model encodes one by one, pooled in float32."""
    vectors = []
    for part in np.split(tokens.ids, tokens.offsets[1:-1]):
        with torch.no_grad():
            states = model(input_ids=torch.from_numpy(part.astype(np.int64))[None]).last_hidden_state[0].float()
        vectors.append({"cls": states[0], "mean": states.mean(0), "last": states[-1]}[pooling])
    return torch.stack(vectors)


def distances(found, expected):
    """How far each vector is from what is expected, as a share of its length."""
    found, expected = (torch.as_tensor(x) for x in (found, expected))
    return (found - expected).norm(dim=1) / expected.norm(dim=1)


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
def test_vectors_equal_plain_transformers(folders, family, pooling, tmp_path):
    encoder = load_encoder(str(folders[family]), pooling=pooling)
    tokens = tokens_of(encoder, "passage", tmp_path)
    expected = plain_vectors(AutoModel.from_pretrained(folders[family]).eval(), tokens, pooling)
    close(embed(encoder, "passage", tmp_path), expected.numpy())
    assert encoder.encode(tokens, "passage").requires_grad


def test_a_token_without_an_embedding_is_the_models_fault(copied):
    tokenizer = AutoTokenizer.from_pretrained(copied)
    tokenizer.add_tokens(["unheard-of"])
    tokenizer.save_pretrained(copied)
    encoder = load_encoder(str(copied))
    tokens = token_batch(["unheard-of"], [], encoder.template("query"), encoder.tokenizer("query"))
    size = encoder.tower("query").transformer.config.vocab_size
    with pytest.raises(InputError, match=f"BAD_MODEL: the tokenizer gives the token id {size}, but the model has"):
        encoder.encode(tokens, "query")


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
    assert (passage.max_length, passage.prompt, passage.use_titles) == (512, "p: ", False)
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
        assert (encoder.digest(), encoder.precision) == (digest, "bfloat16")
    assert encoder.training
    assert encoder.digest() == digest
    assert rough.dtype == torch.float32
    assert not rough.requires_grad
    assert 0 < distances(rough, exact).max() < 3 * ROUNDING
    with encoder.inference():
        assert np.array_equal(embed(encoder, "passage", tmp_path), exact)


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
def test_vectors_in_bfloat16_equal_those_of_plain_transformers_in_bfloat16(folders, family, pooling, tmp_path):
    encoder = load_encoder(str(folders[family]), pooling=pooling)
    tokens = tokens_of(encoder, "passage", tmp_path)
    with encoder.inference("bfloat16"):
        found = encoder.encode(tokens, "passage")
    whole, half = (
        plain_vectors(AutoModel.from_pretrained(folders[family], dtype=dtype).eval(), tokens, pooling)
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert 0 < distances(half, whole).max() < 3 * ROUNDING  # as far as bfloat16 is from float32 anyway
    assert distances(found, half).max() < 3 * ROUNDING
    assert 0 < distances(found, whole).max() < 3 * ROUNDING


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_gradients_under_autocast_are_those_of_float32_but_for_rounding(bert, tmp_path, pooling):
    encoder = load_encoder(str(bert), head="ance", pooling=pooling)
    tokens = tokens_of(encoder, "passage", tmp_path)

    def gradients(half):
        encoder.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            vectors = encoder.encode(tokens, "passage")
        assert vectors.dtype == torch.float32
        weights = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(0))
        (vectors * weights).sum().backward()
        return vectors.detach(), {name: p.grad for name, p in encoder.named_parameters()}

    (exact, wanted), (rough, found) = gradients(False), gradients(True)
    assert 0 < distances(rough, exact).max() < 3 * ROUNDING
    for name, gradient in wanted.items():
        assert gradient is not None, f"{name} has none"
        assert found[name] is not None, f"{name} has none"
        if name.endswith("key.bias"):  # softmax does not see them: what is there is rounding
            assert gradient.norm() < 1e-5
            continue
        assert torch.cosine_similarity(found[name].flatten(), gradient.flatten(), 0) > 0.99, name
        assert found[name].norm().item() == pytest.approx(gradient.norm().item(), rel=0.05), name


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
    monkeypatch.delenv("HARDNEG_PRECISION", raising=False)
    for capability, expected in (((7, 0), "float32"), ((8, 0), "bfloat16")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, capability=capability: capability)
        assert best_precision("cuda") == expected
    for flag, expected in (("amx_bf16", "bfloat16"), ("avx512_bf16", "bfloat16"), ("avx512_vnni", "float32")):
        monkeypatch.setattr(hardware, "cpu_flags", lambda flag=flag: {"avx512f", flag})
        assert best_precision("cpu") == expected


@pytest.mark.parametrize(
    ("precision", "flags", "warnings"),
    [
        ("bfloat16", {"avx512f"}, 1),
        ("bfloat16", {"amx_bf16"}, 0),
        ("bfloat16", {"avx512_bf16"}, 0),
        ("float32", {"avx512f"}, 0),
    ],
)
def test_emulated_bfloat16_is_warned_of(precision, flags, warnings, monkeypatch, caplog):
    monkeypatch.setattr(hardware, "cpu_flags", lambda: flags)
    warn_if_emulated(precision, "cpu")
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warnings
