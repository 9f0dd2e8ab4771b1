"""What a plan says of the memory that grows with the queries: beside real searches and real draws of two sizes."""

import subprocess
import sys
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from test_estimate import work_of

import hardneg as hn
from hardneg.data.training_data import choose_splits
from hardneg.models.loading import load_encoder
from hardneg.models.source import ModelSource
from hardneg.negatives.mining import mine_candidates, mine_pool
from hardneg.recipes import estimate
from hardneg.recipes import microbenchmarks as timing
from hardneg.recipes.list_memory import list_bytes
from hardneg.recipes.many_devices import Devices
from hardneg.recipes.microbenchmarks import RankingCost
from hardneg.recipes.settings import Episode
from hardneg.recipes.starting_ranker import starting_ranker
from hardneg.records import Positives, Run
from worlds.tiny_world import COMMON, one_thread, tiny_collection, tiny_model  # noqa: F401

K, DIM = 400, 64

SEARCH = f"""
import sys
import numpy as np
import torch
from hardneg.process import memory
from hardneg.search.ann import FaissIndex
from hardneg.search.exact import ExactIndex
from hardneg.search.retrieve import index_run
torch.set_num_threads(1)
passages = torch.randn({K}, {DIM}, generator=torch.Generator().manual_seed(0)).half()
if sys.argv[1] == "faiss":
    import faiss
    index = FaissIndex.__new__(FaissIndex)
    index.index = faiss.IndexFlatIP({DIM})
    index.index.add(passages.float().numpy())
else:
    index = ExactIndex(passages)
index.dtype, index.nested = torch.float16, True
n = int(sys.argv[2])
vectors = passages.repeat(n // {K} + 1, 1)[:n].numpy()

def search(rows):
    index_run(index, torch.from_numpy(vectors[rows]), rows.astype(np.int32), {K}, "")

search(np.arange(500))
memory.hand_back()
before, watch = memory.highest_and_held()[1], memory.PeakWatch()
search(np.arange(n))
print(watch.end() - before)
"""


@pytest.fixture(scope="module")
def data(world):
    return choose_splits(world.collection)


def of_queries(n, n_passages=10_000, **changes):
    """The work of an experiment with so many training queries of one positive each."""
    train = Positives(np.arange(n, dtype=np.int32), np.arange(n + 1), np.arange(n, dtype=np.int32) % n_passages)
    found = SimpleNamespace(train=train, judged={}, collection=SimpleNamespace(n_passages=n_passages))
    return work_of(found, **{"depth": K, "entries": 0} | changes)


@pytest.mark.parametrize("kind", ["exact", "faiss"])
def test_a_search_takes_what_the_plan_says(kind):
    if kind == "faiss":
        pytest.importorskip("faiss")
    few, many = 8_000, 20_000
    found = [
        int(
            subprocess.run(
                [sys.executable, "-c", SEARCH, kind, str(n)], capture_output=True, text=True, check=True
            ).stdout
        )
        for n in (few, many)
    ]
    planned = [list_bytes(of_queries(n, K, faiss=kind == "faiss"), DIM) for n in (few, many)]
    assert found[1] - found[0] == pytest.approx(planned[1] - planned[0], rel=0.15)


@pytest.mark.parametrize("lists", [1, 2])
def test_drawing_takes_what_the_plan_says(lists):
    depth, n_passages, taken, planned = 100, 10_000, [], []
    for n in (4000, 8000):  # more than are drawn at a time
        work = of_queries(n, n_passages)
        positives, k = work.data.train, depth + 17
        rows = (positives.passage_rows[:, None] + 1 + np.arange(k) * 7) % n_passages
        scores = np.tile(np.linspace(1, 0, k, dtype=np.float32), n)
        run = Run(
            positives.query_rows, np.arange(n + 1) * k, rows.reshape(-1).astype(np.int32), scores, "passage", ""
        )
        keys = np.arange(n_passages, dtype=np.uint64)
        corpus = SimpleNamespace(
            collection=SimpleNamespace(text_keys=keys, copies=None, n_passages=n_passages, digest=""),
            search=lambda *_, run=run, **how: run,
            neighbours=lambda *_, run=run: run,
        )
        common, previous = {"depth": depth, "seed": 0}, None
        if lists == 2:
            how = {"sources": ["query", "lookahead"], "size": 24, "count": 0, "alpha": 0.5, "beta": 0.5, **common}
            previous = mine_pool(corpus, positives, None, episode=1, **how)
        tracemalloc.start()
        if lists == 2:
            pool = mine_pool(corpus, positives, previous, episode=2, **how)
        else:
            pool = mine_candidates(corpus, positives, "query", episode=1, **common)
        taken.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        entries = len(pool.passage_rows) // n
        planned.append(list_bytes(replace(work, depth=0, entries=entries, lists=lists, examined=False), 0))
    assert taken[1] - taken[0] == pytest.approx(planned[1] - planned[0], rel=0.15)


def test_lists_by_hand():
    def of(n, dim=DIM, entries=0, **how):
        return list_bytes(of_queries(n, entries=entries), dim, **how)

    k = K + 1 + 16  # one positive, and room for copies of it
    assert of(1000) == 1000 * (2 * DIM + 9 * k)
    assert of(1000, device="cuda") == 1000 * (2 * DIM + 8 * k)
    assert of(1000, dim=0, device="cuda") == 0  # BM25 searches on the CPU
    assert of(1000, chunks=2.5) == 1000 * (2 * DIM + 3 * 9 * k)
    assert of(1000, entries=1000) == 1000 * 2 * 21 * 1000
    assert list_bytes(of_queries(1000, examined=False), DIM) == 0  # nothing is searched for them


def test_an_estimate_counts_the_lists_where_they_take_more_than_training(world, data, monkeypatch):
    encoder = load_encoder(world.model)
    monkeypatch.setattr(timing, "seconds_of", lambda work: (work(), 1.0)[1])
    sample, found = estimate.take_sample(work_of(data), encoder), []
    monkeypatch.setattr(estimate, "training_cost", lambda *_: timing.TrainingCost(1.0, 1.0, 1000.0, 200.0))
    monkeypatch.setattr(estimate, "encoding_cost", lambda *_: timing.EncodingCost(1.0, 100.0))
    for lists in (150.0, 700.0):
        monkeypatch.setattr(estimate, "list_bytes", lambda *_, lists=lists, **how: lists)
        found.append(estimate.time_training(work_of(data), encoder, sample)[1])
    assert found == [1200.0, 1700.0]


# ---------------------------------------------------------------- a ranker


def test_memory_of_a_ranker_by_hand(world, data, monkeypatch):
    """32 pairs take 5000 bytes beside gradients and moments; a step has 8 times 10 pairs of 10 tokens."""
    ranker = starting_ranker(ModelSource.at(world.model), {"max_length": 24}, seed=1).model
    weights = 4 * sum(p.numel() for p in ranker.parameters())
    cost = RankingCost(3.0, 1.0, 7.0, 10.0, before=1000.0, grown=3 * weights + 5000.0)
    episode = Episode(1, 60, 16, 8, 10)
    monkeypatch.setattr(estimate, "list_bytes", lambda *_, **how: 0.0)

    def memory(retriever=None, **changes):
        return estimate.ranker_memory(cost, work_of(data, **changes), episode, ranker, retriever)

    fixed = 1000 + 3 * weights
    assert memory() == fixed + 5000 * 80 / 32
    assert memory(chunk_tokens=400) == fixed + 5000 * 40 / 32  # the gradient cache holds 40 pairs
    assert memory(micro_queries=1) == fixed + 5000  # no less than was measured
    assert memory(devices=Devices(1, 2)) == fixed + 5000 * 40 / 32
    encoder = load_encoder(world.model)
    assert memory(encoder) == memory() + 4 * sum(p.numel() for p in encoder.parameters())
    monkeypatch.setattr(estimate, "list_bytes", lambda *_, **how: 10.0**9)
    assert memory() == 1000 + 10**9


@pytest.mark.parametrize("given", [{}, {"retriever": True, "sources": ["query"]}])
def test_the_plan_of_a_ranker_says_its_memory(world, data, monkeypatch, given):
    monkeypatch.setattr(timing, "seconds_of", lambda work: (work(), 1.0)[1])
    given = given | ({"retriever": world.model} if given else {})
    options = COMMON | {"steps": 2, "max_length": 24, "device": "cpu", "estimate": True} | given
    found = hn.plan("ranker", data.collection, world.model, **options)
    assert found["bytes"]["memory"] > 50e6  # this process alone
    assert found["facts"]["memory, about"].endswith("iB")
