"""Flat batches must equal every sequence alone, and a plain padded forward of the same model."""

import copy
import itertools
import math
from typing import ClassVar

import numpy as np
import pytest
import torch
import transformers
from transformers import (
    AutoModel,
    BertConfig,
    CamembertConfig,
    DistilBertConfig,
    ElectraConfig,
    MPNetConfig,
    RobertaConfig,
    XLMRobertaConfig,
)

from hardneg.models import flat_attention as attention
from hardneg.models import flat_transformer, packing
from hardneg.models.flat_attention import Reach, flat_attention
from hardneg.models.flat_transformer import can_pack, first_states, hidden_states, is_causal, use_flat_attention
from hardneg.models.packing import lay_out, padded_together, plan_batches
from hardneg.models.pooling import pool
from hardneg.records import offsets_of

CPU = torch.device("cpu")
MAX_LENGTH = 64
LENGTHS = np.array([64, 64, 40, 17, 17, 17, 9, 3, 3])  # longest first; the model's limit and bare specials
SHAPE = {"vocab_size": 100, "initializer_range": 0.3}
WIDE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
SMALL = SHAPE | WIDE
FAMILIES = {
    "bert": BertConfig(**SMALL, max_position_embeddings=MAX_LENGTH),
    "electra": ElectraConfig(**SMALL, embedding_size=16, max_position_embeddings=MAX_LENGTH),
    "distilbert": DistilBertConfig(
        **SHAPE, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=MAX_LENGTH
    ),
    "roberta": RobertaConfig(**SMALL, max_position_embeddings=MAX_LENGTH + 2, pad_token_id=1),
    "xlm-roberta": XLMRobertaConfig(**SMALL, max_position_embeddings=MAX_LENGTH + 2, pad_token_id=1),
    "camembert": CamembertConfig(**SMALL, max_position_embeddings=MAX_LENGTH + 2, pad_token_id=1),
}
MARKS = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id"), 3)
ROTARY = SMALL | MARKS | {"max_position_embeddings": MAX_LENGTH, "pad_token_id": 0}
FEW_KEYS = ROTARY | {"num_key_value_heads": 2}
GEMMA = FEW_KEYS | {"head_dim": 8, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
KINDS = {  # with rotary positions: the class of the configuration, and what it gets
    "modernbert": ("ModernBert", ROTARY | {"local_attention": 8}),
    "nomic_bert": ("NomicBert", ROTARY),
    "eurobert": ("EuroBert", FEW_KEYS),
    "llama": ("Llama", FEW_KEYS),
    "mistral": ("Mistral", FEW_KEYS | {"sliding_window": 7}),
    "qwen2": ("Qwen2", FEW_KEYS | {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen3": ("Qwen3", FEW_KEYS | {"head_dim": 16}),
    "gemma3_text": ("Gemma3Text", GEMMA),
    "gemma3_text, both ways": ("Gemma3Text", GEMMA | {"use_bidirectional_attention": True}),
}
FAMILIES |= {  # older versions of transformers lack some
    name: getattr(transformers, f"{kind}Config")(**shape)
    for name, (kind, shape) in KINDS.items()
    if hasattr(transformers, f"{kind}Config")
}
UNPACKED = {"mpnet": MPNetConfig(**SMALL, max_position_embeddings=MAX_LENGTH + 2, pad_token_id=1)}


@pytest.fixture(scope="module", params=[*FAMILIES, *UNPACKED])
def models(request):
    """The same weights twice: as transformers runs them, and flat where it can be."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        plain = AutoModel.from_config((FAMILIES | UNPACKED)[request.param], attn_implementation="eager").eval()
    flat = copy.deepcopy(plain)
    assert can_pack(flat) == (request.param in FAMILIES)
    if can_pack(flat):
        use_flat_attention(flat)
    return plain, flat


@pytest.fixture(scope="module")
def ids():
    return torch.from_numpy(np.random.default_rng(5).integers(5, 100, LENGTHS.sum()).astype(np.int32))


def alone(model, ids):
    """Each sequence by itself, without a mask."""
    parts = ids.long().split(LENGTHS.tolist())
    return torch.cat([model(input_ids=part[None]).last_hidden_state[0] for part in parts])


def padded(model, ids):
    """One padded batch, as everybody does it."""
    real = torch.arange(MAX_LENGTH) < torch.from_numpy(LENGTHS)[:, None]
    table = torch.full(real.shape, model.config.pad_token_id)
    table[real] = ids.long()
    return model(input_ids=table, attention_mask=real.long()).last_hidden_state[real]


def gradients(model, states, pooling):
    vectors = pool(states, torch.from_numpy(offsets_of(LENGTHS)), pooling)
    target = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(2))
    model.zero_grad()
    (vectors * target).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("reference", [alone, padded])
def test_states_equal_the_plain_model(models, ids, reference):
    plain, flat = models
    with torch.no_grad():
        expected = reference(plain, ids)
        found = hidden_states(flat, ids, lay_out(LENGTHS, CPU))
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)
    assert expected.std() > 0.1


def test_a_padding_token_in_a_text_counts_as_in_the_plain_model(models, ids):
    """Tokenizers read a literal `<pad>` as this token; RoBERTa and its kin do not count it."""
    plain, flat = models
    within = ids.clone()
    within[[0, 5, 6, 63, 64, 70, -1]] = plain.config.pad_token_id
    starts = torch.from_numpy(offsets_of(LENGTHS)[:-1])
    with torch.no_grad():
        expected = padded(plain, within)
        found = hidden_states(flat, within, lay_out(LENGTHS, CPU))
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)
        first = first_states(flat, within, lay_out(LENGTHS, CPU))
    torch.testing.assert_close(first, expected[starts], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_gradients_equal_the_plain_model(models, ids, pooling):
    plain, flat = models
    expected = gradients(plain, alone(plain, ids), pooling)
    found = gradients(flat, hidden_states(flat, ids, lay_out(LENGTHS, CPU)), pooling)
    assert found.keys() == expected.keys()
    assert_gradients_equal(found, expected)


def test_models_with_windows_attend_in_blocks(models, ids, monkeypatch):
    plain, flat = models
    lengths, attend = [], attention._attend_in_blocks
    monkeypatch.setattr(
        attention, "_attend_in_blocks", lambda q, *others: lengths.append(q.shape[-2]) or attend(q, *others)
    )
    monkeypatch.setattr(attention, "BLOCK", 3)
    states = hidden_states(flat, ids, lay_out(LENGTHS, CPU))
    torch.testing.assert_close(states, alone(plain, ids), atol=2e-5, rtol=1e-5)
    assert_gradients_equal(gradients(flat, states, "mean"), gradients(plain, alone(plain, ids), "mean"))
    windowed = flat.config.model_type in ("modernbert", "mistral", "qwen2", "gemma3_text")
    assert set(lengths) == ({64, 40} if windowed else set())


def assert_gradients_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(found[name], gradient, atol=1e-5 * max(scale, 1.0), rtol=1e-4, msg=name)
    assert max(gradient.abs().max() for gradient in expected.values()) > 0.1


def first_vectors(model, ids):
    vectors = first_states(model, ids, lay_out(LENGTHS, CPU))
    target = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(2))
    model.zero_grad()
    (vectors * target).sum().backward()
    return vectors.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_first_tokens_alone_equal_the_plain_model(models, ids):
    plain, flat = models
    vectors, found = first_vectors(flat, ids)
    starts = torch.from_numpy(offsets_of(LENGTHS)[:-1])
    with torch.no_grad():
        torch.testing.assert_close(vectors, alone(plain, ids)[starts], atol=2e-5, rtol=1e-5)
    assert_gradients_equal(found, gradients(plain, alone(plain, ids), "cls"))


def test_the_last_layer_finishes_first_tokens_only(ids):
    flat = AutoModel.from_config(FAMILIES["bert"]).eval()
    use_flat_attention(flat)
    use_flat_attention(flat)  # twice is once
    widths = []
    for layer in flat.encoder.layer:
        layer.intermediate.register_forward_hook(lambda _, inputs, __: widths.append(inputs[0].shape[1]))
    layout = lay_out(LENGTHS, CPU)
    first_states(copy.deepcopy(flat), ids, layout)
    first_states(flat, ids, layout)
    hidden_states(flat, ids, layout)  # whole again
    tokens, n = LENGTHS.sum(), len(LENGTHS)
    assert widths == [tokens, n, tokens, n, tokens, tokens]


def test_a_failed_forward_leaves_the_model_whole(ids):
    flat = AutoModel.from_config(FAMILIES["bert"]).eval()
    use_flat_attention(flat)
    layout = lay_out(LENGTHS, CPU)
    with pytest.raises(IndexError):
        first_states(flat, ids + 1000, layout)
    assert hidden_states(flat, ids, layout).shape == (LENGTHS.sum(), 32)


def test_attention_stays_inside_a_sequence(models, ids):
    _, flat = models
    layout = lay_out(LENGTHS, CPU)
    owner = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    with torch.no_grad():
        before = hidden_states(flat, ids, layout)
        for changed in (0, 4, 8):
            mine = torch.from_numpy(owner == changed)
            other = torch.where(mine, (ids - 4) % 95 + 5, ids).to(ids.dtype)
            after = hidden_states(flat, other, layout)
            torch.testing.assert_close(after[~mine], before[~mine], atol=1e-6, rtol=0)
            assert (after[mine] - before[mine]).abs().max() > 0.1


def test_padded_fallback_equals_flat(ids):
    plain = AutoModel.from_config(FAMILIES["roberta"]).eval()
    flat = copy.deepcopy(plain)
    use_flat_attention(flat)
    with torch.no_grad():
        states = [hidden_states(model, ids, lay_out(LENGTHS, CPU)) for model in (plain, flat)]
    torch.testing.assert_close(*states, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("free", [1, 40, 10**6])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_sequences_padded_together_have_the_states_and_gradients_of_each_alone(monkeypatch, ids, free, pooling):
    monkeypatch.setattr(flat_transformer, "FREE", {"cpu": free})
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = AutoModel.from_config(UNPACKED["mpnet"], attn_implementation="eager").eval()
    widths = []
    hook = model.register_forward_pre_hook(
        lambda _, args, told: widths.append(told["input_ids"].shape), with_kwargs=True
    )
    states = hidden_states(model, ids, lay_out(LENGTHS, CPU))
    hook.remove()
    expected = {1: [(2, 64), (1, 40), (3, 17), (1, 9), (2, 3)], 40: [(3, 64), (6, 17)]}
    assert [tuple(shape) for shape in widths] == expected.get(free, [(9, 64)])
    found, plain = gradients(model, states, pooling), gradients(model, alone(model, ids), pooling)
    torch.testing.assert_close(states, alone(model, ids), atol=2e-5, rtol=1e-5)
    assert found.keys() == plain.keys()
    for name in found:
        torch.testing.assert_close(found[name], plain[name], atol=2e-4, rtol=1e-4)


def cut_costs(groups, free):
    """The cost of every way to cut a batch into calls, by trying all of them."""
    for size in range(len(groups)):
        for inner in itertools.combinations(range(1, len(groups)), size):
            ends = [0, *inner, len(groups)]
            parts = [groups[a:b] for a, b in itertools.pairwise(ends)]
            yield sum(sum(count for count, _ in part) * part[0][1] + free for part in parts)


@pytest.mark.parametrize("free", [0, 3, 50, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_no_other_cut_into_padded_calls_costs_less(free, seed):
    draw = np.random.default_rng(seed)
    lengths = -np.sort(-draw.choice(np.arange(1, 60), 8, replace=False))
    groups = [*zip(draw.integers(1, 9, 8).tolist(), lengths.tolist(), strict=True)]
    calls = padded_together(groups, free)
    every = np.repeat(lengths, [count for count, _ in groups])
    assert [place for call in calls for place in range(len(every))[call.sequences]] == [*range(len(every))]
    assert [place for call in calls for place in range(every.sum())[call.tokens]] == [*range(every.sum())]
    assert all(every[call.sequences].sum() == call.tokens.stop - call.tokens.start for call in calls)
    assert all(every[call.sequences].max() == call.longest for call in calls)
    cost = sum(len(every[call.sequences]) * call.longest + free for call in calls)
    assert cost == min(cut_costs(groups, free))


def test_a_padded_call_has_no_more_sequences_than_a_grid_takes(monkeypatch):
    monkeypatch.setattr(packing, "SEQUENCES", 5)
    calls = padded_together([(4, 9), (5, 8), (1, 7), (3, 7)], 10**6)
    assert [call.sequences for call in calls] == [slice(0, 4), slice(4, 9), slice(9, 13)]


def test_queries_are_not_padded_to_the_length_of_passages():
    lengths = np.array([256] * 32 + [16] * 32)
    calls = padded_together(lay_out(lengths, CPU).groups, flat_transformer.FREE["cpu"])
    assert sum(len(lengths[call.sequences]) * call.longest for call in calls) == lengths.sum()


@pytest.mark.parametrize(
    ("family", "name", "value"),
    [
        ("bert", "position_embedding_type", "relative_key"),
        ("bert", "is_decoder", True),
        ("gemma3_text", "attn_logit_softcapping", 30.0),
        ("qwen3", "is_causal", False),  # then transformers lets all tokens see each other
        ("gemma3_text, both ways", "is_causal", True),
        ("qwen3", "rope_parameters", {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}),
        ("modernbert", "rope_parameters", {"full_attention": {"rope_type": "longrope"}, "sliding_attention": {}}),
    ],
)
def test_what_attends_in_an_unusual_way_is_not_packed(family, name, value):
    model = AutoModel.from_config(FAMILIES[family])
    assert can_pack(model)
    model.config = copy.deepcopy(model.config)
    setattr(model.config, name, value)
    assert not can_pack(model)


@pytest.mark.parametrize("family", [*FAMILIES])
def test_a_configuration_that_repeats_what_the_layers_say_is_packed(family):
    model = AutoModel.from_config(FAMILIES[family])
    causal = family in ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
    assert is_causal(model) == causal
    model.config.is_causal = causal
    assert can_pack(model)
    assert is_causal(model) == causal
    model.config.is_causal = not causal
    assert is_causal(model) != causal


def test_a_model_that_generates_text_keeps_no_keys(monkeypatch, ids):
    kept = []
    monkeypatch.setattr(transformers.DynamicCache, "__init__", lambda *_, **__: kept.append(1))
    model = AutoModel.from_config(FAMILIES["qwen3"], attn_implementation="eager")
    assert model.config.use_cache
    hidden_states(model, ids, lay_out(LENGTHS, CPU))
    use_flat_attention(model)
    hidden_states(model, ids, lay_out(LENGTHS, CPU))
    assert not kept


# ---------------------------------------------------------------- attention


REACHES = [
    Reach(),
    Reach(causal=True),
    Reach(window=5),
    Reach(causal=True, window=5),
    Reach(True, 40),
    Reach(False, 1),
]


def reaches(reach, i, j):
    """Whether token i attends to token j."""
    if reach.causal and j > i:
        return False
    return reach.window is None or abs(i - j) < reach.window


def slow_attention(query, key, value, scaling, reach=None):
    """Attention of one head and one sequence, token by token; all are [L, d]."""
    rows = []
    for i, q in enumerate(query):
        near = [j for j in range(len(key)) if reaches(reach or Reach(), i, j)]
        weights = torch.exp(torch.stack([q @ key[j] for j in near]) * scaling)
        rows.append((weights[:, None] * value[near]).sum(0) / weights.sum())
    return torch.stack(rows)


class Module(torch.nn.Module):
    """What transformers hands to an attention function besides tensors: the layer, which says if it is causal."""

    def __init__(self, is_causal):
        super().__init__()
        self.is_causal = is_causal


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("group", [packing.GROUP, 600])
def test_attention_equals_a_loop(monkeypatch, gradient, group, reach):
    monkeypatch.setattr(packing, "GROUP", group)  # small enough that three sequences of 17 are two groups
    total, heads, size, scaling = LENGTHS.sum(), 2, 4, 0.7
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, heads, total, size, generator=generator) for _ in range(3))
    layout = lay_out(LENGTHS, CPU)
    assert sum(count * length for count, length in layout.groups) == total
    told = {"layout": layout, "scaling": scaling, "sliding_window": reach.window}
    found, _ = flat_attention(Module(reach.causal), q.requires_grad_(gradient), k, v, None, **told)
    offsets = offsets_of(LENGTHS)
    for head in range(heads):
        for a, b in itertools.pairwise(offsets):
            expected = slow_attention(*(x[0, head, a:b] for x in (q, k, v)), scaling, reach)
            torch.testing.assert_close(found[0, a:b, head], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("gradient", [False, True])
def test_a_key_serves_several_heads_of_the_query(gradient):
    layout = lay_out(LENGTHS, CPU)
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, heads, LENGTHS.sum(), 4, generator=generator) for heads in (6, 2, 2))
    found, _ = flat_attention(None, q.requires_grad_(gradient), k, v, None, layout=layout, scaling=0.5)
    for head in range(6):
        one = [x[:, [place]] for x, place in ((q, head), (k, head // 3), (v, head // 3))]
        expected, _ = flat_attention(None, *one, None, layout=layout, scaling=0.5)
        torch.testing.assert_close(found[:, :, [head]], expected, atol=1e-6, rtol=1e-5)


def test_reach_by_hand():
    assert Reach().mask(3, CPU) is None
    assert Reach(window=3).mask(3, CPU) is None
    assert Reach(causal=True, window=3).mask(3, CPU).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert Reach(causal=True, window=2).mask(3, CPU).tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    assert Reach(window=2).mask(4, CPU).tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    sides = [reach.sides for reach in REACHES]
    assert sides == [(-1, -1), (-1, 0), (4, 4), (4, 0), (39, 0), (0, 0)]


NEAR = [Reach(window=5), Reach(causal=True, window=5), Reach(False, 1), Reach(True, 1), Reach(False, 10)]
KERNELS = {"float32": (torch.float32, 5e-6), "float64": (torch.float64, 1e-12), "bfloat16": (torch.bfloat16, 0.03)}


@pytest.mark.parametrize("reach", NEAR)
@pytest.mark.parametrize("length", [69, 70, 71, 100])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("precision", [*KERNELS])
def test_attention_in_blocks_equals_attention_to_all_keys_under_a_mask(
    monkeypatch, reach, length, fused, precision
):
    monkeypatch.setattr(attention, "BLOCK", 7)  # which leaves blocks that are not full
    monkeypatch.setattr(attention, "LONG", 0 if fused else 1 << 40)  # in float32 blocks are fused always
    assert reach.block(length) == max(reach.sides[0], 7)
    kind, most = KERNELS[precision]
    drawn = torch.randn(4, 2, 3, length, 4, generator=torch.Generator().manual_seed(1)).to(kind)
    q, k, v = (x.clone().requires_grad_() for x in drawn[:3])
    found = attention._attend(q, k, v, 0.7, 0.0, reach)
    exact = [x.double().requires_grad_() for x in drawn[:3]]
    expected = attention._weighted(*exact, 0.7, 0.0, reach.mask(length, CPU))
    assert found.dtype == kind
    torch.testing.assert_close(found.double(), expected, atol=most, rtol=most)
    gradients = torch.autograd.grad((found * drawn[3]).sum(), (q, k, v))
    wanted = torch.autograd.grad((expected * drawn[3].double()).sum(), exact)
    for one, other in zip(gradients, wanted, strict=True):
        assert (one.double() - other).norm() <= most * (other.norm() + wanted[-1].norm())
    with torch.no_grad():
        again = attention._attend(q, k, v, 0.7, 0.0, reach)
    torch.testing.assert_close(again.double(), expected, atol=most, rtol=most)


def test_blocks_by_hand():
    assert Reach().block(10_000) is None
    assert Reach(causal=True).block(10_000) is None
    assert [Reach(window=65).block(length) for length in (65, 479, 480, 8192)] == [None, None, 64, 64]
    assert [Reach(causal=True, window=65).block(length) for length in (319, 320)] == [None, 64]
    assert [Reach(window=257).block(length) for length in (1919, 1920)] == [None, 256]
    assert [Reach(causal, 0).block(8192) for causal in (False, True)] == [None, None]
    mask = attention._block_mask(Reach(window=2), 5, 3, CPU)  # keys -1..3 and 2..6, of which -1, 5 and 6 are none
    assert mask[0].tolist() == [[0, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert mask[1].tolist() == [
        [1, 1, 1, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 1, 1, 1],
    ]  # the last query fills the block


def test_dropout_in_blocks_drops_weights_of_each_query_alone(monkeypatch):
    """Of five equal weights each query keeps some, whatever its neighbours, which reach the same keys, keep."""
    monkeypatch.setattr(attention, "BLOCK", 4)
    reach, q, v = Reach(window=3), torch.zeros(1, 1, 64, 1), torch.ones(1, 1, 64, 1)
    assert reach.block(64) == 4
    draws = torch.stack([attention._attend(q, q, v, 1.0, 0.5, reach)[0, 0, 2:-2, 0] for _ in range(2000)])
    apart = draws - 1  # a dropped weight counts 0, a kept one 2 / 5: the mean is 1, the variance 1 / 5
    assert abs(apart.mean()) < 0.01
    assert abs(apart.square().mean() - 0.2) < 0.01
    assert abs((apart[:, 1:] * apart[:, :-1]).mean()) < 0.01


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("most", [packing.SEQUENCES, 4, 1])
def test_varlen_gets_the_layout_the_scale_and_the_reach(monkeypatch, most, reach):
    """The fast kernel needs CUDA; here a slow one stands in for it and checks what it is given."""
    from torch.nn.attention import varlen

    calls = []

    def slow_varlen(query, key, value, bounds_q, bounds_k, longest_q, longest_k, window_size=(-1, -1)):
        before, after = window_size
        told = Reach(before != after, None if before == -1 else before + 1)
        calls.append(np.diff(bounds_q).tolist())
        assert longest_q == longest_k == max(calls[-1])
        assert bounds_q[-1] == len(query) == len(key) == len(value)
        spans = list(zip(bounds_q.tolist(), bounds_k.tolist()[1:], strict=False))
        scale = 1 / math.sqrt(query.shape[-1])
        heads = [
            [slow_attention(query[a:b, h], key[a:b, h], value[a:b, h], scale, told) for a, b in spans]
            for h in range(query.shape[1])
        ]
        return torch.stack([torch.cat(head) for head in heads], 1)

    monkeypatch.setattr(varlen, "varlen_attn", slow_varlen)
    monkeypatch.setattr(packing, "SEQUENCES", most)
    layout = lay_out(LENGTHS, CPU)
    q, k, v = torch.randn(3, LENGTHS.sum(), 2, 4, generator=torch.Generator().manual_seed(1))
    for scaling in (0.5, 0.3):
        expected = attention._by_length(q, k, v, layout, scaling, 0.0, reach)
        found = attention._varlen(q, k, v, layout, scaling, reach)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert [length for call in calls for length in call] == LENGTHS.tolist() * 2
    assert max(map(len, calls)) == min(most, len(LENGTHS))


@pytest.mark.parametrize(("size", "fast"), [(8, True), (64, True), (26, False), (4, False), (264, False)])
def test_heads_that_varlen_does_not_take_are_attended_by_length(monkeypatch, size, fast):
    """On CUDA ``varlen_attn`` refuses heads above 256, and those of no multiple of 8, such as TinyBERT's 26."""
    called = []
    monkeypatch.setattr(attention, "has_half_kernels", lambda device: True)
    monkeypatch.setattr(attention, "_varlen", lambda q, *_: called.append(q.shape[-1]) or q)
    q, k, v = torch.randn(3, 1, 2, LENGTHS.sum(), size, generator=torch.Generator().manual_seed(1)).bfloat16()
    flat_attention(None, q, k, v, None, layout=lay_out(LENGTHS, CPU), scaling=0.5)
    assert called == ([size] if fast else [])


@pytest.mark.parametrize("kernels", [False, True])
def test_queries_and_keys_that_were_turned_in_float32_get_the_precision_of_the_values(monkeypatch, kernels):
    """As under autocast, where a bfloat16 projection times float32 cosines is float32."""
    given = []
    monkeypatch.setattr(attention, "has_half_kernels", lambda device: kernels)
    name = "_varlen" if kernels else "_by_length"
    monkeypatch.setattr(attention, name, lambda *a: given.append({x.dtype for x in a[:3]}) or a[2])
    q, k, v = torch.randn(3, 1, 2, LENGTHS.sum(), 8)
    flat_attention(None, q, k, v.bfloat16(), None, layout=lay_out(LENGTHS, CPU), scaling=0.5)
    assert given == [{torch.bfloat16}]


class Watched(torch.autograd.Function):
    """Stands in for ``varlen_attn``, and notes whether torch was told to be deterministic in its backward pass."""

    told: ClassVar[list[bool]] = []

    @staticmethod
    def forward(ctx, query, key, value):
        return query + key + value

    @staticmethod
    def backward(ctx, gradient):
        Watched.told.append(torch.are_deterministic_algorithms_enabled())
        return gradient, gradient, gradient


@pytest.mark.parametrize("most", [packing.SEQUENCES, 4])
def test_the_gradient_of_varlen_is_added_in_a_fixed_order_and_nothing_else_is_bound_by_that(monkeypatch, most):
    from torch.nn.attention import varlen

    monkeypatch.setattr(varlen, "varlen_attn", lambda q, k, v, *_: Watched.apply(q, k, v))
    monkeypatch.setattr(packing, "SEQUENCES", most)
    monkeypatch.setattr(Watched, "told", [])
    layout = lay_out(LENGTHS, CPU)
    q, k, v = torch.randn(3, LENGTHS.sum(), 2, 4)
    outside = []
    q.requires_grad_().register_hook(lambda _: outside.append(torch.are_deterministic_algorithms_enabled()))
    attention._varlen(q, k, v, layout, 0.5).sum().backward()
    assert Watched.told == [True] * len(layout.calls)
    assert outside == [False]
    assert not torch.are_deterministic_algorithms_enabled()
    with torch.no_grad():
        attention._varlen(q, k, v, layout, 0.5)


@pytest.mark.parametrize("reach", [Reach(), Reach(causal=True), Reach(True, 5), Reach(False, 5)])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("long", [1 << 18, 20 * 20])
def test_half_precision_attends_within_its_rounding_by_products_and_by_the_kernel(monkeypatch, fused, long, reach):
    """Which of the two is faster depends on the processor; both are tried. Long sequences go to the kernel."""
    by_kernel, kernel = [], torch.nn.functional.scaled_dot_product_attention

    def counted(query, *others, **named):
        by_kernel.append(query.shape[-2])
        return kernel(query, *others, **named)

    monkeypatch.setattr(attention, "fuses_half_attention", lambda device: fused)
    monkeypatch.setattr(attention, "LONG", long)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    layout = lay_out(LENGTHS, CPU)
    q, k, v = torch.randn(3, LENGTHS.sum(), 2, 4, generator=torch.Generator().manual_seed(1)).bfloat16()
    found = attention._by_length(q, k, v, layout, 0.5, 0.0, reach)
    spans = list(itertools.pairwise(offsets_of(LENGTHS).tolist()))
    exact = torch.stack(
        [
            torch.cat(
                [
                    slow_attention(q[a:b, h].float(), k[a:b, h].float(), v[a:b, h].float(), 0.5, reach)
                    for a, b in spans
                ]
            )
            for h in range(2)
        ],
        1,
    )
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact, atol=0.02, rtol=0.02)
    expected = {64, 40, 17, 9, 3} if fused else {length for length in (64, 40) if length**2 > long}
    assert set(by_kernel) == expected


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("half", [False, True])
def test_long_sequences_have_the_gradients_of_short_ones(monkeypatch, half, reach):
    """They go to the fused kernel, which keeps no weights; what is compared is the other way."""
    drawn = torch.randn(4, LENGTHS.sum(), 2, 8, generator=torch.Generator().manual_seed(2))
    drawn = drawn.bfloat16() if half else drawn
    layout, found = lay_out(LENGTHS, CPU), []
    for long in (packing.GROUP, 0):
        monkeypatch.setattr(attention, "LONG", long)
        inputs = [x.clone().requires_grad_() for x in drawn[:3]]
        out = attention._by_length(*inputs, layout, 0.5, 0.0, reach)
        out.backward(drawn[3])
        found.append([out, *(x.grad for x in inputs)])
    for one, other in zip(*found, strict=True):
        most = (0.02 if half else 1e-5) * other.float().norm() + 1e-5
        assert (one - other).float().norm() <= most


@pytest.mark.parametrize("length", [5, 120])
def test_gradients_of_attention_in_half_precision_lie_within_its_rounding(length):
    """Against a slow loop in float64."""
    drawn = torch.randn(4, 2 * length, 2, 8, generator=torch.Generator().manual_seed(2))
    halves = [x.bfloat16() for x in drawn]
    inputs = [x.clone().requires_grad_() for x in halves[:3]]
    found = attention._by_length(*inputs, lay_out(np.array([length] * 2), CPU), 0.5, 0.0)
    found.backward(halves[3])
    exact = [x.double().requires_grad_() for x in halves[:3]]
    for start, head in itertools.product((0, length), range(2)):
        q, k, v, gradient = (x[start : start + length, head] for x in (*exact, halves[3].double()))
        slow_attention(q, k, v, 0.5).backward(gradient)
    for mine, theirs in zip(inputs, exact, strict=True):
        error = (mine.grad.double() - theirs.grad).norm() / theirs.grad.norm()
        assert error < 0.01, error


@pytest.mark.parametrize("most", [1, 2, 4])
def test_no_more_sequences_are_attended_together_than_a_kernel_takes(models, ids, monkeypatch, most):
    """Above 65,535 CUDA's attention fails; with fewer at a time, states and gradients are the same."""
    _, flat = models
    seen, attend = [], attention._attend
    monkeypatch.setattr(attention, "_attend", lambda q, *others: seen.append(len(q)) or attend(q, *others))
    hook = flat.register_forward_pre_hook(
        lambda _, inputs, named: seen.append(len(named["input_ids"])), with_kwargs=True
    )
    whole = hidden_states(flat, ids, lay_out(LENGTHS, CPU))
    expected = gradients(flat, whole, "mean")
    assert max(seen) > 2  # three sequences are of 17 tokens
    seen.clear()
    monkeypatch.setattr(packing, "SEQUENCES", most)
    found = hidden_states(flat, ids, lay_out(LENGTHS, CPU))
    hook.remove()
    assert max(seen) == min(most, 3 if can_pack(flat) else most)
    torch.testing.assert_close(found, whole, atol=2e-5, rtol=1e-5)
    assert_gradients_equal(gradients(flat, found, "mean"), expected)


def test_the_most_that_a_kernel_takes():
    for device, lengths in (("cpu", [3] * 70_000), ("cpu", [1] * 140_000), ("meta", [3] * 70_000)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(packing, "upload", lambda array, device: torch.from_numpy(array))
            layout = lay_out(np.array(lengths), torch.device(device))
        assert max(count for count, _ in layout.groups) <= 65_535
        assert sum(count for count, _ in layout.groups) == len(lengths)
        assert layout.calls[0].sequences == slice(0, 65_535)


def test_attention_dropout_only_in_training(ids):
    model = AutoModel.from_config(
        BertConfig(**SMALL, max_position_embeddings=MAX_LENGTH, hidden_dropout_prob=0.0)
    ).eval()
    use_flat_attention(model)
    layout = lay_out(LENGTHS, CPU)
    still = [hidden_states(model, ids, layout) for _ in range(2)]
    assert torch.equal(*still)
    model.train()
    moving = [hidden_states(model, ids, layout) for _ in range(2)]
    assert not torch.allclose(*moving)
    torch.manual_seed(7)
    first = hidden_states(model, ids, layout)
    torch.manual_seed(7)
    with torch.no_grad():  # gradient caching runs twice: without gradient, then with the same draws
        torch.testing.assert_close(hidden_states(model, ids, layout), first, atol=1e-6, rtol=0)


# ---------------------------------------------------------------- plans


def test_plan_by_hand():
    plan = plan_batches(np.array([3, 9, 2, 30, 5, 3]), 12)
    assert [batch.tolist() for batch in plan] == [[3], [1], [4, 0, 5], [2]]
    plan = plan_batches(np.array([3, 9, 2, 30, 5, 3]), 12, window=3)
    assert [batch.tolist() for batch in plan] == [[1, 0], [2], [3], [4, 5]]
    assert plan_batches(np.zeros(0, np.int64), 12) == []


def slow_plan(lengths, budget, window):
    plan = []
    for start in range(0, len(lengths), window):
        part = range(start, min(start + window, len(lengths)))
        batch, used = [], 0
        for position in sorted(part, key=lambda i: (-lengths[i], i)):
            if batch and used + lengths[position] > budget:
                plan.append(batch)
                batch, used = [], 0
            batch.append(position)
            used += lengths[position]
        plan.append(batch)
    return plan


@pytest.mark.parametrize(("budget", "window"), [(256, 100), (64, 1000), (10, 7), (5000, 64)])
def test_plan_equals_a_loop(budget, window):
    lengths = np.random.default_rng(0).integers(1, 120, 777).astype(np.int32)
    plan = plan_batches(lengths, budget, window=window)
    assert [batch.tolist() for batch in plan] == slow_plan(lengths.tolist(), budget, window)
    assert np.array_equal(np.sort(np.concatenate(plan)), np.arange(len(lengths)))
    assert all(len(batch) == 1 or lengths[batch].sum() <= budget for batch in plan)
