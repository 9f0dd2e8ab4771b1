"""Gradient cache: the loss and gradient of the whole batch, chunk by chunk, in the memory of one chunk."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from hardneg.data.training_data import choose_splits
from hardneg.errors import SettingsError
from hardneg.losses import contrastive
from hardneg.models.loading import load_encoder
from hardneg.models.tokenizing import token_store
from hardneg.recipes.adore.recipe import Adore
from hardneg.recipes.ance_tele import AnceTele
from hardneg.recipes.star import Star, loss_of
from hardneg.records import TokenBatch
from hardneg.training.batches import GroupBatch, KnownPositives, group_scores, masked_columns
from hardneg.training.gradient_cache import cached
from hardneg.training.loop import backward
from hardneg.training.objectives import group_loss, group_objective
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

BUDGET = 64  # tokens: about six passages


@pytest.fixture(scope="module")
def world(world):
    return *world, world.root / "cache"


def encoder_of(world, *, dropout, untied=False):
    encoder = load_encoder(world[1], normalize=True)  # small scores, or their rounding is all there is to see
    for module in encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
    encoder = encoder.untied() if untied else encoder
    return encoder.train(dropout > 0)


def batch_of(world, queries, *, negatives=3, seed=0):
    draw, train = np.random.default_rng(seed), choose_splits(world[0]).train
    chosen = np.sort(draw.permutation(len(train))[:queries])
    known = train.select(chosen)
    passages = np.column_stack([known.first(), draw.integers(0, 120, (queries, negatives))]).astype(np.int32)
    return GroupBatch(train.query_rows[chosen], passages, queries)


def stores_of(world, encoder):
    return [token_store(encoder, world[0], world[2], side) for side in ("query", "passage")]


def gradients_of(encoder):
    return {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}


def loss_and_gradients(world, encoder, batch, **options):
    """Of the contrastive loss, by the plain step or the cached one."""
    encoder.zero_grad()
    train = choose_splits(world[0]).train
    masked = masked_columns(batch, KnownPositives(train, world[0].text_keys), in_batch=True)
    scores = group_scores(encoder, batch, *stores_of(world, encoder), "float32", **options)
    loss = contrastive(scores, torch.from_numpy(batch.targets()), torch.from_numpy(masked)).mean()
    loss.backward()
    return loss.item(), gradients_of(encoder)


def check_equal(found, expected):
    assert found[0] == pytest.approx(expected[0], abs=1e-6)
    assert found[1].keys() == expected[1].keys()
    norm = np.sqrt(sum(float(gradient.double().square().sum()) for gradient in expected[1].values()))
    for name, gradient in expected[1].items():
        assert float((found[1][name] - gradient).norm()) < 1e-6 * norm, name


# ---------------------------------------------------------------- by hand


def test_by_hand():
    # vectors w·x for x = 2, 3, 5, and the loss v1·v2·v3 = 30·w³: at w = 2 its derivative is 90·w² = 360
    w, alive = torch.nn.Parameter(torch.tensor(2.0)), []

    def encode(tokens, side):
        alive.append(len(tokens))
        return (w * torch.from_numpy(tokens.ids.astype(np.float32)))[:, None]

    tokens = TokenBatch(np.array([2, 3, 5], np.int32), np.array([0, 1, 2, 3]))
    vectors = cached(encode, 2)(tokens, "query")
    assert vectors[:, 0].tolist() == [4, 6, 10]
    vectors.prod().backward()
    assert w.grad.item() == 360
    assert alive == [2, 1, 2, 1]  # each chunk once for the vectors, and once for their gradient


# ---------------------------------------------------------------- equal to the plain step


@pytest.mark.parametrize("untied", [False, True])
@pytest.mark.parametrize("budget", [16, 64, 200, 100_000])
def test_without_dropout_it_equals_the_plain_step(world, budget, untied):
    encoder = encoder_of(world, dropout=0.0, untied=untied)
    batch = batch_of(world, 9)
    plain = loss_and_gradients(world, encoder, batch)
    check_equal(loss_and_gradients(world, encoder, batch, cache_tokens=budget), plain)


class Recorder:
    """An encoder's ``encode`` that remembers what it gave."""

    def __init__(self, encoder):
        self.encoder, self.calls = encoder, []

    def __call__(self, tokens, side):
        vectors = self.encoder.encode(tokens, side)
        self.calls.append(vectors.detach().clone())
        return vectors


@pytest.mark.parametrize("attention", [0.0, 0.1])
def test_with_dropout_both_forward_passes_of_a_chunk_agree_exactly(world, attention):
    encoder = encoder_of(world, dropout=0.1)
    for layer in encoder.towers[0].transformer.encoder.layer:
        layer.attention.self.dropout.p = attention
    tokens = stores_of(world, encoder)[1].read(np.arange(30))
    encode = Recorder(encoder)
    torch.manual_seed(3)
    vectors = cached(encode, BUDGET)(tokens, "passage")
    count = len(encode.calls)
    assert count > 3
    vectors.square().sum().backward()
    first, second = encode.calls[:count], encode.calls[count:]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    encoder.eval()
    assert not torch.equal(vectors, encoder.encode(tokens, "passage")), "dropout is on"


def test_with_dropout_the_gradient_is_that_of_the_vectors_it_gave(world):
    encoder = encoder_of(world, dropout=0.1)
    tokens = stores_of(world, encoder)[1].read(np.arange(30))
    weights = torch.randn(30, encoder.dim, generator=torch.Generator().manual_seed(1))
    graphs = []

    def keeping(part, side):  # the first pass, with the graph that the cache lets go
        graphs.append(encoder.encode(part, side))
        return graphs[-1]

    torch.manual_seed(3)
    vectors = cached(keeping, BUDGET)(tokens, "passage")
    count = len(graphs)
    (vectors * weights).sum().tanh().backward()
    found = {name: gradient.clone() for name, gradient in gradients_of(encoder).items()}
    encoder.zero_grad()
    places = [[int((vectors == row).all(1).nonzero()) for row in part] for part in graphs[:count]]
    slow = sum((part * weights[place]).sum() for part, place in zip(graphs[:count], places, strict=True))
    slow.tanh().backward()
    for name, gradient in gradients_of(encoder).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-6)


def test_the_same_seed_draws_the_same_and_chunks_draw_their_own(world):
    encoder = encoder_of(world, dropout=0.1)
    tokens = stores_of(world, encoder)[1].read(np.full(40, 7))  # one passage again and again

    def vectors(seed):
        torch.manual_seed(seed)
        return cached(encoder.encode, 40)(tokens, "passage").detach()

    assert torch.equal(vectors(1), vectors(1))
    assert not torch.equal(vectors(1), vectors(2))
    assert len(torch.unique(vectors(1), dim=0)) == 40


def test_a_single_chunk_is_encoded_once(world):
    encoder = encoder_of(world, dropout=0.1)
    encode = Recorder(encoder)
    cached(encode, 10_000)(stores_of(world, encoder)[1].read(np.arange(8)), "passage").sum().backward()
    assert len(encode.calls) == 1
    assert gradients_of(encoder)


# ---------------------------------------------------------------- as a setting


def objective_of(world, encoder, loss=None, in_batch=True, **changes):
    settings = AnceTele(precision="float32", **changes)
    loss = loss or group_loss("contrastive", scale=1.0)
    options = settings.of_objective
    return group_objective(choose_splits(world[0]), encoder, world[2], loss, in_batch=in_batch, **options)


LOSSES = {
    "contrastive": (group_loss("contrastive", scale=5.0), True),
    "nce": (group_loss("pairwise_nll", scale=5.0, only_hardest=True), True),
    "pairwise_nll": (group_loss("pairwise_nll", scale=5.0), False),
    "hinge": (group_loss("hinge", scale=5.0), False),
    "bce": (group_loss("bce", scale=5.0), False),
    "star": (loss_of(Star(negatives_per_query=3), 5.0), True),
    "star, alpha": (loss_of(Star(negatives_per_query=3, alpha=0.1), 5.0), True),
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_of_a_recipe_is_that_of_the_plain_step(world, name):
    loss, in_batch = LOSSES[name]
    encoder, batch, found = encoder_of(world, dropout=0.0), batch_of(world, 9), []
    for changes in ({}, {"gradient_cache": True, "cache_tokens": BUDGET}):
        encoder.zero_grad()
        total = backward(objective_of(world, encoder, loss, in_batch, **changes), batch)[0].item()
        found.append((total, gradients_of(encoder)))
    plain, cached = found
    check_equal(cached, plain)


def test_in_batch_negatives_run_over_the_whole_step_as_micro_batches_do_not(world):
    encoder = encoder_of(world, dropout=0.0)
    batch = batch_of(world, 8)
    parted = GroupBatch(batch.query_rows, batch.passage_rows, 8, micro_queries=2)
    whole = backward(objective_of(world, encoder), batch)[0].item()
    cached = backward(objective_of(world, encoder, gradient_cache=True, cache_tokens=BUDGET), batch)[0].item()
    assert cached == pytest.approx(whole, abs=1e-6)
    assert backward(objective_of(world, encoder), parted)[0].item() < whole - 0.1  # fewer negatives


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        (AnceTele(gradient_cache=True, micro_queries=2), "gradient_cache = true with micro_queries = 2"),
        (
            Adore(gradient_cache=True, cut=10),
            "gradient_cache = true: adore has no in-batch negatives to cache for",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(settings, found):
    with pytest.raises(SettingsError, match=found) as fault:
        settings.check()
    assert fault.value.code == "BAD_SETTING"


def test_known_positives_are_masked_across_chunks(world):
    encoder = encoder_of(world, dropout=0.0)
    train = choose_splits(world[0]).train
    two = next(i for i in range(len(train)) if len(train.of(i)) == 2)
    other = next(i for i in range(len(train)) if i != two)
    passages = np.array([[train.of(two)[0], 3], [train.of(other)[0], train.of(two)[1]]], np.int32)
    batch = GroupBatch(train.query_rows[[two, other]], passages, 2)  # the second query brings the first's positive
    losses = []
    for mask in (True, False):
        for changes in ({}, {"gradient_cache": True, "cache_tokens": 16}):  # every text is a chunk of its own
            objective = objective_of(world, encoder, mask_known_positives=mask, **changes)
            losses.append(backward(objective, batch)[0].item())
    masked, masked_cached, unmasked, unmasked_cached = losses
    assert masked_cached == pytest.approx(masked, abs=1e-6)
    assert unmasked_cached == pytest.approx(unmasked, abs=1e-6)
    assert unmasked > masked + 1e-3


def test_norms_by_source_are_those_of_the_plain_step(world):
    encoder = encoder_of(world, dropout=0.0)
    batch = batch_of(world, 6)
    batch = GroupBatch(batch.query_rows, batch.passage_rows, 6, None, np.tile([2, 3, 3], (6, 1)).astype(np.uint8))
    found = []
    for changes in ({}, {"gradient_cache": True, "cache_tokens": BUDGET}):
        encoder.zero_grad()
        found.append(backward(objective_of(world, encoder, **changes), batch)[1])
    assert len(found[0]) == 3
    assert {k: float(v) for k, v in found[1].items()} == pytest.approx({k: float(v) for k, v in found[0].items()})


# ---------------------------------------------------------------- memory


class Saved:
    """Counts the bytes that are kept for backward passes."""

    def __init__(self):
        self.now = self.most = 0

    def pack(self, tensor):
        self.now += tensor.nbytes
        self.most = max(self.most, self.now)
        return Kept(self, tensor)

    @staticmethod
    def unpack(kept):
        return kept.tensor


class Kept:
    def __init__(self, saved, tensor):
        self.saved, self.tensor = saved, tensor.detach()  # the tensor itself would hold its own graph

    def __del__(self):
        self.saved.now -= self.tensor.nbytes


def peak(world, encoder, queries, **options):
    saved = Saved()
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
        loss_and_gradients(world, encoder, batch_of(world, queries), **options)
    return saved.most


def test_memory_does_not_grow_with_the_batch(world):
    encoder = encoder_of(world, dropout=0.1)
    plain = [peak(world, encoder, queries) for queries in (4, 16)]
    flat = [peak(world, encoder, queries, cache_tokens=BUDGET) for queries in (4, 16)]
    assert plain[1] > 3 * plain[0]
    assert flat[1] < 1.2 * flat[0]
    assert flat[1] < plain[1] / 5


def test_repeated_steps_leave_nothing_behind(world):
    encoder = encoder_of(world, dropout=0.1)
    other = deepcopy(encoder)
    for seed in range(3):
        torch.manual_seed(seed)
        found = loss_and_gradients(world, encoder, batch_of(world, 5, seed=seed), cache_tokens=BUDGET)
        torch.manual_seed(seed)
        alone = loss_and_gradients(world, other, batch_of(world, 5, seed=seed), cache_tokens=BUDGET)
        check_equal(found, alone)
