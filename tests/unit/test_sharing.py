"""A batch over several processes, played by one: shares, gathering with gradient, sums of gradients."""

import numpy as np
import pytest
import torch

from hardneg.losses import contrastive
from hardneg.models.loading import load_encoder
from hardneg.models.tokenizing import token_store
from hardneg.process import distributed
from hardneg.process.distributed import any_of, by_leader, is_leader, leader_first, member
from hardneg.training import batches, sharing
from hardneg.training.batches import GroupBatch, group_scores, masked_columns
from hardneg.training.loop import dropout_seed
from hardneg.training.sharing import deal, gather, shared
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401


@pytest.fixture(scope="module")
def world(calm):
    encoder, cache = load_encoder(calm.model, normalize=True), calm.root / "cache"
    return encoder, [token_store(encoder, calm.collection, cache, side) for side in ("query", "passage")]


class Exchange:
    """What the processes of a group send each other, when one process plays them in turn."""

    def __init__(self, monkeypatch):
        self.monkeypatch = monkeypatch

    def be(self, rank, size, others):
        """Be one of ``size`` processes, the rest of which send ``others`` [rows in all, dim]."""
        self.monkeypatch.setattr(sharing, "member", lambda: (rank, size))

        def exchange(own, sizes):
            parts = list(others.split(list(sizes)))
            assert parts[rank].shape == own.shape
            parts[rank] = own
            return parts

        self.monkeypatch.setattr(sharing, "exchange", exchange)


@pytest.fixture
def exchange(monkeypatch):
    return Exchange(monkeypatch)


# ---------------------------------------------------------------- alone


def test_alone_nothing_is_exchanged():
    assert member() == (0, 1)
    assert is_leader()
    assert by_leader(lambda x: x, 5) == 5
    assert any_of([0, 3]) == [0, 3]
    assert leader_first(lambda x: x + 1, 2) == 3

    def encode(tokens, side):
        raise AssertionError

    assert shared(encode) is encode


def test_each_process_draws_its_own_dropout_and_the_first_draws_as_if_alone(monkeypatch):
    alone = dropout_seed(3, 5)
    seeds = []
    for rank in range(3):
        monkeypatch.setattr(distributed, "_members", 3)
        monkeypatch.setenv("RANK", str(rank))
        seeds.append(dropout_seed(3, 5))
    assert seeds[0] == alone
    assert len(set(seeds)) == 3


# ---------------------------------------------------------------- shares


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 4, 37])
def test_every_sequence_is_dealt_to_one_process(count, size):
    lengths = np.random.default_rng(count).integers(3, 100, count)
    shares = deal(lengths, size)
    assert len(shares) == size
    assert sorted(np.concatenate(shares).tolist()) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    tokens = [int(lengths[share].sum()) for share in shares]
    assert max(tokens) - min(tokens) <= (lengths.max() if count else 0)


def test_gathered_rows_keep_the_gradient_of_the_own_ones(exchange):
    rows = torch.arange(10.0).reshape(5, 2)
    for rank, (own, place) in enumerate(
        [(rows[:3], slice(0, 3)), (rows[3:], slice(3, 5)), (rows[:0], slice(5, 5))]
    ):
        exchange.be(rank, 3, rows)
        own = own.clone().requires_grad_(rank != 2)
        found = gather(own, [3, 2, 0])
        assert torch.equal(found, rows)
        weights = torch.randn(5, 2)
        (found * weights).sum().backward()  # also where there is nothing of one's own
        assert torch.equal(own.grad, weights[place])


# ---------------------------------------------------------------- the step


def batch_of(queries, negatives, seed=0):
    draw = np.random.default_rng(seed)
    passages = draw.integers(0, 120, (queries, 1 + negatives)).astype(np.int32)
    return GroupBatch(draw.permutation(60)[:queries].astype(np.int32), passages, queries)


def loss_of(encoder, stores, batch, **options):
    scores = group_scores(encoder, batch, *stores, "float32", **options)
    masked = torch.from_numpy(masked_columns(batch, None, in_batch=True))
    return contrastive(scores, torch.from_numpy(batch.targets()), masked, scale=5.0).mean()


def gradient_of(encoder):
    return {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("cache_tokens", [None, 40])
@pytest.mark.parametrize(
    ("size", "queries", "negatives"),
    [(2, 8, 3), (3, 7, 2), (4, 1, 0)],  # of the last, two have nothing to encode
)
@pytest.mark.parametrize("tied", [True, False])
def test_gradients_of_all_processes_add_up_to_that_of_one(
    world, exchange, size, queries, negatives, cache_tokens, tied
):
    encoder, stores = world
    encoder = encoder if tied else encoder.untied()
    batch = batch_of(queries, negatives)
    encoder.zero_grad()
    whole = loss_of(encoder, stores, batch)
    whole.backward()
    expected = gradient_of(encoder)

    with torch.no_grad():
        q, p = encoder.encode_pair(stores[0].read(batch.query_rows), stores[1].read(batch.distinct()[0]))
    sent = {"query": q, "passage": torch.cat([q, p]) if tied else p}
    total = {}
    for rank in range(size):

        def in_turn(encode, rank=rank):
            def encode_shared(tokens, side):
                order = np.concatenate(deal(tokens.lengths, size))
                exchange.be(rank, size, sent[side][torch.from_numpy(order)])
                return shared(encode)(tokens, side)

            return encode_shared

        exchange.monkeypatch.setattr(batches, "shared", in_turn)
        encoder.zero_grad()
        loss = loss_of(encoder, stores, batch, cache_tokens=cache_tokens)
        assert loss.item() == pytest.approx(whole.item(), abs=1e-6)
        loss.backward()
        for name, gradient in gradient_of(encoder).items():
            total[name] = total.get(name, 0) + gradient
    assert total.keys() == expected.keys()
    norm = np.sqrt(sum(float(g.double().square().sum()) for g in expected.values()))
    for name, gradient in expected.items():
        assert float((total[name] - gradient).norm()) <= 2e-6 * norm + 1e-7, name
