"""Tests that need a CUDA device: its kernels compute the same as the CPU's, and no training step waits for it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from hardneg.data.tokens import TokenStore
from hardneg.losses import contrastive
from hardneg.models import flat_attention, packing
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.tower import Tower
from hardneg.records import TokenBatch, offsets_of
from hardneg.search.embeddings import encode_store
from hardneg.search.exact import ExactIndex
from hardneg.search.proposals import SLACK, Product, loss, products_of
from hardneg.search.retrieve import search_documents
from hardneg.search.vectors import vector_norms
from hardneg.training.batches import GroupBatch, group_scores, masked_columns
from hardneg.training.checkpoint import latest_checkpoint, restore, save_checkpoint
from hardneg.training.loop import NotFinite, StepOutput, train_steps
from hardneg.training.optim import adamw, linear
from worlds.tiny_models import SHAPE
from worlds.tiny_records import vectors_of

DEVICE = "cuda"
VOCABULARY = 200

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def encoder_on(device, *, dropout=0.0, pooling="cls"):
    """The same tiny random BERT on any device."""
    torch.manual_seed(0)
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    model = BertModel(BertConfig(vocab_size=VOCABULARY, **SHAPE, **rates), add_pooling_layer=False)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, "w0"))
    tower = Tower(model, PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0"))
    return BiEncoder(EncoderSettings(pooling=pooling, scale=5.0), tower).to(device).eval()


def stores(longest=100, chunks=1):
    """Random queries and 64 passages, or as many documents of several chunks; the last is the longest."""
    found = []
    for seed, n, most in ((0, 12, 20), (1, 64 * chunks, longest)):
        draw = np.random.default_rng(seed)
        lengths = draw.integers(3, most + 1, n)
        lengths[-1] = most
        offsets = offsets_of(lengths)
        found.append(TokenStore(draw.integers(1, VOCABULARY, offsets[-1]).astype(np.uint16), offsets, str(seed)))
    if chunks > 1:
        found[1] = replace(found[1], first=np.arange(65) * chunks)
    return found


def far(found, wanted):
    """Relative distance."""
    found, wanted = found.detach().cpu().double(), wanted.detach().cpu().double()
    return float((found - wanted).norm() / wanted.norm())


# ---------------------------------------------------------------- encoding


def vectors_and_gradient(encoder, tokens, *, half=False, alone=False):
    target = torch.randn(len(tokens), encoder.dim, generator=torch.Generator().manual_seed(2)).to(encoder.device)
    rows = np.arange(len(tokens))
    with torch.autocast(encoder.device.type, torch.bfloat16, enabled=half):
        vectors = torch.cat(
            [encoder.encode(tokens.take(r), "passage") for r in (rows[:, None] if alone else [rows])]
        )
    encoder.zero_grad()
    (vectors * target).sum().backward()
    return vectors, torch.cat([p.grad.flatten() for p in encoder.parameters() if p.grad is not None])


@pytest.fixture
def fast(monkeypatch):
    """Counts calls of the kernel for sequences of different lengths."""
    calls, kernel = [], flat_attention._varlen
    monkeypatch.setattr(flat_attention, "_varlen", lambda *a: calls.append(a[0].dtype) or kernel(*a))
    return calls


@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.parametrize(("half", "most"), [(False, 1e-4), (True, 5e-2)])
def test_packed_equals_one_by_one(fast, pooling, half, most):
    encoder, tokens = encoder_on(DEVICE, pooling=pooling), stores()[1].read(np.arange(20))
    found = vectors_and_gradient(encoder, tokens, half=half)
    assert fast == ([torch.bfloat16] * 2 if half else [])
    for wanted in (
        vectors_and_gradient(encoder, tokens, half=half, alone=True),
        vectors_and_gradient(encoder, tokens),
        vectors_and_gradient(encoder_on("cpu", pooling=pooling), tokens),
    ):
        for mine, other in zip(found, wanted, strict=True):
            assert 0 <= far(mine, other) < most


class Layer(torch.nn.Module):
    """What tells the attention function whether it is causal."""

    def __init__(self, is_causal):
        super().__init__()
        self.is_causal = is_causal


@pytest.mark.parametrize("keys", [3, 1])  # heads of keys and values
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (True, 5), (False, 5)])
@pytest.mark.parametrize("scaling", [0.25, 0.3])  # the kernel's own for 16 dimensions, and another
def test_the_fast_kernel_equals_plain_attention(scaling, causal, window, keys):
    lengths = np.array([130, 70, 17, 17, 1])
    told = {"layout": packing.lay_out(lengths, torch.device(DEVICE)), "scaling": scaling, "sliding_window": window}
    draw = torch.Generator().manual_seed(1)
    shapes = [(1, heads, lengths.sum(), 16) for heads in (3, keys, keys)]
    inputs = [torch.randn(shape, generator=draw).to(DEVICE) for shape in shapes]
    target = torch.randn(1, lengths.sum(), 3, 16, generator=draw).to(DEVICE)
    results = []
    for dtype in (torch.bfloat16, torch.float32):
        q, k, v = (x.to(dtype).requires_grad_() for x in inputs)
        out, _ = flat_attention.flat_attention(Layer(causal), q, k, v, None, **told)
        (out.float() * target).sum().backward()
        results.append([out, q.grad, k.grad, v.grad])
    for mine, other in zip(*results, strict=True):
        assert 0 <= far(mine, other) < 2e-2


@pytest.mark.parametrize(("half", "most"), [(False, 1e-3), (True, 5e-2)])
def test_more_texts_than_a_kernel_takes_equal_the_cpus(half, most):
    """70,000 texts of three tokens in one batch: an attention call takes no more than 65,535."""
    n = 70_000
    draw = np.random.default_rng(7)
    tokens = TokenBatch(draw.integers(1, VOCABULARY, 3 * n).astype(np.int32), 3 * np.arange(n + 1))
    found = vectors_and_gradient(encoder_on(DEVICE), tokens, half=half)
    wanted = vectors_and_gradient(encoder_on("cpu"), tokens)
    for mine, other in zip(found, wanted, strict=True):
        assert 0 <= far(mine, other) < most
    assert far(found[0][-100:], wanted[0][-100:]) < most


def test_stores_equal_the_cpus(tmp_path):
    tokens = stores()[1]
    found = {}
    for name, device in (("cpu", "cpu"), ("device", DEVICE), ("again", DEVICE)):
        options = {"side": "passage", "budget": 500, "shard_rows": 20, "dtype": "float32"}
        found[name] = vectors_of(encode_store(encoder_on(device), tokens, tmp_path / name, **options))
    np.testing.assert_allclose(found["device"], found["cpu"], atol=1e-5, rtol=1e-5)
    np.testing.assert_array_equal(found["again"], found["device"])


def test_half_inference_gives_the_weights_back():
    encoder, tokens = encoder_on(DEVICE), stores()[1].read(np.arange(20))
    before = encoder.digest()
    with encoder.inference("float32"):
        whole = encoder.encode(tokens, "passage")
    with encoder.inference("bfloat16"):
        half = encoder.encode(tokens, "passage")
    assert half.dtype == torch.float32
    assert 0 < far(half, whole) < 5e-2
    assert encoder.digest() == before


# ---------------------------------------------------------------- search


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("resident", [False, True])
def test_search_gives_the_cpus_bits(dtype, resident):
    draw = torch.Generator().manual_seed(0)
    passages = torch.nn.functional.normalize(torch.randn(5000, 48, generator=draw) + 1, dim=1).to(dtype)
    passages[1000:2000] = passages[:1000]  # ties
    queries = torch.cat([passages[:40].float(), torch.randn(30, 48, generator=draw)])
    wanted = ExactIndex(passages).search(queries, 150)
    shards = [part.to(DEVICE) if resident else part.numpy() for part in passages.split(1700)]
    precisions = ["float32", "float64", "bfloat16", *(["float16"] if dtype == torch.float16 else [])]
    for options in ({}, {"tile": 16, "chunk": 700}, *({"precision": name} for name in precisions)):
        found = ExactIndex(shards, device=DEVICE, **options).search(queries.to(DEVICE), 150)
        for mine, other in zip(found, wanted, strict=True):
            assert mine.device.type == DEVICE
            assert torch.equal(mine.cpu().view(torch.int32), other.view(torch.int32)), options


@pytest.mark.parametrize(
    ("name", "dtype"), [("float16", "float16"), ("bfloat16", "float16"), ("bfloat16", "float32")]
)
@pytest.mark.parametrize("scale", [1, 60, 2.0**-12])  # 60: scores that float16 could not hold; 2^-12: subnormals
def test_the_bound_of_half_precision_holds(name, dtype, scale):
    """Tensor cores against float64, and the sums of equal signs, where cutting off adds up."""
    product, draw = products_of(torch.device(DEVICE))[name], torch.Generator().manual_seed(3)
    for dim in (16, 769, 4096):
        vectors = [torch.randn(n, dim, generator=draw).abs() * scale for n in (64, 3000)]
        vectors[1][::2] *= torch.randn(1500, dim, generator=draw).sign()
        queries, passages = (v.to(DEVICE, getattr(torch, dtype)) for v in vectors)
        norms, max_norm = vector_norms(queries) * SLACK, float(vector_norms(passages).max()) * SLACK
        max_loss = float(loss(passages, torch.bfloat16).max()) if product.is_rounding else 0.0
        scores = torch.empty(len(queries), len(passages), device=DEVICE)
        with product.leave():
            product.multiply(product.operand(queries), product.operand(passages), scores)
        error = (scores.double() - queries.double() @ passages.double().T).abs()
        assert (error <= product.margin(queries, norms, max_norm, max_loss)[:, None] / 2).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_many_queries_are_proposed_for_in_half_precision(monkeypatch, dtype):
    used, multiply = [], Product.multiply
    monkeypatch.setattr(Product, "multiply", lambda self, *a: used.append(self.rounded) or multiply(self, *a))
    draw = torch.Generator().manual_seed(4)
    passages = torch.randn(40_000, 64, generator=draw).to(dtype)
    queries = torch.randn(300, 64, generator=draw)
    found = ExactIndex(passages, device=DEVICE).search(queries.to(DEVICE), 20)
    half = torch.cuda.get_device_capability()[0] >= 8
    assert set(used) == {(torch.float16 if dtype == torch.float16 else torch.bfloat16) if half else torch.float32}
    wanted = ExactIndex(passages).search(queries, 20)
    assert all(torch.equal(mine.cpu(), other) for mine, other in zip(found, wanted, strict=True))


def test_documents_are_the_cpus():
    draw = np.random.default_rng(0)
    documents = offsets_of(draw.integers(1, 6, 900))
    chunks = torch.tensor(draw.standard_normal((documents[-1], 48)), dtype=torch.float16)
    chunks[documents[5] : documents[6]] = 3.0  # one document at the head of many lists
    queries = torch.tensor(draw.standard_normal((30, 48)) + 0.5, dtype=torch.float32)
    wanted = search_documents(ExactIndex(chunks).search, queries, 40, documents, whole=True)
    found = search_documents(
        ExactIndex(chunks.to(DEVICE), device=DEVICE).search, queries, 40, documents, whole=True
    )
    for mine, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, other)


# ---------------------------------------------------------------- training


def upload(array, device):
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def groups(step):
    draw = np.random.default_rng(step)
    return GroupBatch(draw.permutation(12)[:4].astype(np.int32), draw.integers(0, 64, (4, 6)).astype(np.int32), 4)


def steps_of(
    encoder,
    optimizer,
    start,
    stop,
    *,
    precision="bfloat16",
    longest=100,
    chunks=1,
    factor=lambda part: 1.0,
    **options,
):
    """Steps of contrastive training on random texts; ``factor`` of a batch can make its loss not finite."""
    queries, passages = stores(longest, chunks)

    def loss(part):
        scores = group_scores(encoder, part, queries, passages, precision)
        masked, targets = masked_columns(part, None, in_batch=True), part.targets()
        targets, masked = (upload(array, encoder.device) for array in (targets, masked))
        losses = contrastive(scores, targets, masked, scale=5.0)
        return StepOutput(losses.sum() / part.step_queries * factor(part))

    schedule = linear(1e-3, warmup=2, horizon=100)
    return train_steps(encoder, loss, groups, optimizer, schedule, start=start, stop=stop, seed=4, **options)


def weights_of(encoder):
    return torch.cat([p.detach().flatten().cpu() for p in encoder.parameters()])


def trained(device, steps, **options):
    encoder = encoder_on(device)
    made = list(steps_of(encoder, adamw(encoder), 0, steps, **options))
    return np.array([[float(step.loss), float(step.grad_norm)] for step in made]), weights_of(encoder)


@pytest.mark.parametrize("chunks", [1, 3])
def test_training_equals_the_cpus(chunks):
    found, mine = trained(DEVICE, 5, precision="float32", chunks=chunks)
    wanted, other = trained("cpu", 5, precision="float32", chunks=chunks)
    np.testing.assert_allclose(found, wanted, rtol=1e-3)
    start = weights_of(encoder_on("cpu"))
    assert far(mine - start, other - start) < 2e-2


def test_training_in_half_precision_stays_near():
    found, _ = trained(DEVICE, 5)
    wanted, _ = trained(DEVICE, 5, precision="float32")
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, wanted, rtol=5e-2)


def test_weights_freeze_at_a_step_that_is_not_finite():
    sound, _ = trained(DEVICE, 2)
    encoder = encoder_on(DEVICE)
    poisoned = groups(2).query_rows
    factor = lambda part: np.inf if np.array_equal(part.query_rows, poisoned) else 1.0  # noqa: E731
    bad = steps_of(encoder, adamw(encoder), 0, 20, factor=factor)
    made = []
    with pytest.raises(NotFinite) as fault:
        made.extend(bad)
    assert fault.value.step == 2
    reference = encoder_on(DEVICE)
    assert len(list(steps_of(reference, adamw(reference), 0, 2))) == len(sound)
    assert torch.equal(weights_of(encoder), weights_of(reference))


@pytest.mark.parametrize("longest", [100, 250])  # above 128 tokens the fast kernel's gradient is added in parts
def test_resumed_training_is_the_same_bit_for_bit(tmp_path, longest):
    whole, half = encoder_on(DEVICE, dropout=0.1), encoder_on(DEVICE, dropout=0.1)
    losses = [float(s.loss) for s in steps_of(whole, adamw(whole), 0, 6, longest=longest)]
    optimizer = adamw(half)
    list(steps_of(half, optimizer, 0, 3, longest=longest))
    save_checkpoint(tmp_path, {"net": 3}, {"net": half}, {"net": optimizer}, inputs={})
    resumed = encoder_on(DEVICE, dropout=0.1)
    optimizer = adamw(resumed)
    assert restore(latest_checkpoint(tmp_path, {}), {"net": resumed}, {"net": optimizer}) == {"net": 3}
    assert [float(s.loss) for s in steps_of(resumed, optimizer, 3, 6, longest=longest)] == losses[3:]
    assert torch.equal(weights_of(resumed), weights_of(whole))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize(("precision", "chunks"), [("float32", 1), ("bfloat16", 1), ("bfloat16", 3)])
def test_no_step_waits_for_the_device(pooling, precision, chunks):
    encoder = encoder_on(DEVICE, dropout=0.1, pooling=pooling)
    steps = steps_of(encoder, adamw(encoder), 0, 20, precision=precision, chunks=chunks, check_every=100)
    for _ in range(3):
        next(steps)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(4):
            next(steps)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(list(steps)) == 13
