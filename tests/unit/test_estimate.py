"""Plans: counts by hand, times that scale with the work, and estimates that compute no more than a sample."""

from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import hardneg as hn
from hardneg.data.training_data import choose_splits
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.loading import load_encoder
from hardneg.models.saving import save_encoder
from hardneg.process.progress import size_text
from hardneg.recipes import estimate
from hardneg.recipes import microbenchmarks as timing
from hardneg.recipes.cost_model import CostModel
from hardneg.recipes.estimate import (
    SAMPLE,
    Episode,
    Sample,
    describe_work,
    disk_bytes,
    sample_side,
    take_sample,
    time_stages,
    tokens_of_step,
)
from hardneg.recipes.microbenchmarks import seconds_of, spread
from hardneg.records import TokenBatch, offsets_of
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401


@pytest.fixture(scope="module")
def world(world):
    return choose_splits(world.collection), load_encoder(world.model)


@pytest.fixture(scope="module")
def chunked(world):
    """The same encoder, that cuts documents into chunks."""
    encoder = copy(world[1])
    encoder.settings = replace(encoder.settings, chunks=3, passage_length=5)
    return encoder


def work_of(data, **changes):
    fields = {
        "episodes": [Episode(1, 60, 4, 8, 4, shared="all"), Episode(2, 60, 12, 8, 5, shared="all")],
        "states": 3,
        "depth": 20,
        "entries": 24,
        "micro_queries": None,
        "chunk_tokens": None,
        "recompute": False,
        "checkpoint_every": 5,
        "token_budget": 512,
        "store_dtype": "float16",
        "precision": "float32",
    }
    return CostModel(data, **(fields | changes))


BOTH = "31 (3 hard, 28 in-batch), then 39 (4 hard, 35 in-batch)"  # 8 queries of 4 and of 5 passages, less one


def of_shared(*kinds):
    return {"episodes": [Episode(n, 60, 8, 8, 5, shared=kind) for n, kind in enumerate(kinds, 1)]}


def batch_of(lengths):
    lengths = np.array(lengths)
    return TokenBatch(np.zeros(lengths.sum(), np.int32), offsets_of(lengths))


@pytest.mark.parametrize(
    ("changes", "batch", "negatives"),
    [
        ({}, "8 queries (in one softmax: 8)", BOTH),
        (
            {"micro_queries": 2},
            "8 queries (in one softmax: 2)",
            "7 (3 hard, 4 in-batch), then 9 (4 hard, 5 in-batch)",
        ),
        ({"micro_queries": 100}, "8 queries (in one softmax: 8)", BOTH),
        (of_shared("all", "all"), "8 queries (in one softmax: 8)", "39 (4 hard, 35 in-batch)"),
        (of_shared("none", "none"), "8 queries", "4 (4 hard, 0 in-batch)"),
        (
            of_shared("all", "none"),
            "8 queries (in one softmax: 8)",
            "39 (4 hard, 35 in-batch), then 4 (4 hard, 0 in-batch)",
        ),
        (
            of_shared("none", "hardest"),
            "8 queries (in one softmax: 8)",
            "4 (4 hard, 0 in-batch), then 5 (4 hard, 1 in-batch, the hardest of 35)",
        ),
    ],
)
def test_what_meets_in_a_softmax_is_counted(world, changes, batch, negatives):
    data, encoder = world
    facts = describe_work(work_of(data, **changes), encoder, seeds=1, measure=False)["facts"]
    assert facts["global batch"] == batch
    assert facts["negatives per query"] == negatives
    assert facts["passages"] == 120
    assert facts["training queries"] == 60
    assert facts["optimiser steps"] == 16
    assert "seeds" not in facts


def test_a_plan_lists_every_episode_and_times_nothing_unasked(world):
    data, encoder = world
    plan = describe_work(work_of(data), encoder, seeds=3, measure=False)
    first = {"episode": 1, "queries": 60, "steps": 4, "queries_per_step": 8, "passages_per_query": 4}
    assert plan["episodes"] == [first, first | {"episode": 2, "steps": 12, "passages_per_query": 5}]
    assert set(plan) == {"episodes", "facts"}
    assert plan["facts"]["seeds"] == 3


def test_an_estimate_is_of_all_seeds(world):
    data, encoder = world
    plan = describe_work(work_of(data), encoder, seeds=2, measure=True)
    stages = {name: value for name, value in plan["seconds"].items() if name != "total"}
    assert set(stages) == {"tokenise", "encode", "search", "train", "save and verify"}
    assert all(value > 0 for value in stages.values())
    assert plan["seconds"]["total"] == pytest.approx(sum(stages.values()))
    assert plan["bytes"]["disk"] == 2 * disk_bytes(work_of(data), encoder, take_sample(work_of(data), encoder))
    assert plan["bytes"]["memory"] > 50e6  # this process alone
    assert "time in all, about" in plan["facts"]


def test_time_is_proportional_to_steps_and_states(world, monkeypatch):
    """The clock is stopped: whatever is timed takes a second, so that what is left are counts."""
    data, encoder = world
    monkeypatch.setattr(timing, "seconds_of", lambda work: (work(), 1.0)[1])
    sample = take_sample(work_of(data), encoder)
    few, _ = time_stages(work_of(data, episodes=[Episode(1, 60, 16, 8, 5)]), encoder, sample)
    many, _ = time_stages(work_of(data, episodes=[Episode(1, 60, 1600, 8, 5)], states=300), encoder, sample)
    for stage in ("train", "encode", "search"):
        assert many[stage] == pytest.approx(100 * few[stage]), stage
    assert many["tokenise"] == few["tokenise"]  # once, however many states there are


def test_times_are_those_of_counted_work(world, monkeypatch):
    """By hand, where whatever is timed takes a second: a sample is encoded, trained on and searched for in one."""
    data, encoder = world
    monkeypatch.setattr(timing, "seconds_of", lambda work: (work(), 1.0)[1])
    work = work_of(data, episodes=[Episode(1, 60, 16, 8, 5)], states=3)
    sample = take_sample(work, encoder)
    found, _ = time_stages(work, encoder, sample)
    tokens = {"query": float(sample.queries.lengths.sum()), "passage": float(sample.passages.lengths.sum())}
    assert found["encode"] == pytest.approx(3 * (tokens["query"] + tokens["passage"]) / tokens["passage"])
    assert found["search"] == pytest.approx(3 * (2 * 60 + 16 + 16) / 64)  # of 64 queries in a second
    assert found["tokenise"] == pytest.approx(sample.seconds)  # all of them are the sample
    step = tokens_of_step(work.episodes[0], None, sample, work)
    timed = spread(sample.passages, int(step)).lengths.sum()
    assert found["train"] == pytest.approx(16 * (1 + step / timed))


def test_tokens_of_a_step_are_near_those_that_are_trained_on(world, monkeypatch, tmp_path):
    """A whole batch of an experiment holds as many tokens as the plan says, within a twentieth."""
    data, encoder = world
    steps, real = [], BiEncoder.encode_pair

    def encode_pair(self, queries, passages, *by):
        steps.append((len(queries), int(queries.lengths.sum() + passages.lengths.sum())))
        return real(self, queries, passages, *by)

    monkeypatch.setattr(BiEncoder, "encode_pair", encode_pair)
    save_encoder(encoder, tmp_path / "model")
    settings = {"episodes": 1, "steps": 16, "stop_step": 16, "queries_per_step": 8, "passages_reference": [5]}
    options = {"device": "cpu", "depth": 60, "count": 40, "precision": "float32", "token_budget": 512}
    splits = hn.Splits(dev="none", test="none")
    hn.train_ance_tele(
        data.collection, str(tmp_path / "model"), tmp_path / "exp", splits=splits, **settings, **options
    )
    work = work_of(data, episodes=[Episode(1, 60, 16, 8, 5)])
    planned = tokens_of_step(work.episodes[0], None, take_sample(work, encoder), work)
    assert len(steps) == 16
    assert planned == pytest.approx(np.mean([tokens for queries, tokens in steps if queries == 8]), rel=0.05)
    assert 16 * planned == pytest.approx(
        sum(tokens for _, tokens in steps), rel=0.2
    )  # every eighth is of 4 queries


def test_the_gradient_cache_is_a_third_pass_over_chunks(world, monkeypatch):
    data, encoder = world
    sample, batches = take_sample(work_of(data), encoder), []
    monkeypatch.setattr(estimate, "spread", lambda tokens, most: batches.append(most) or spread(tokens, most))
    monkeypatch.setattr(timing, "seconds_of", lambda work: (work(), 1.0)[1])
    seconds = []
    for chunk in (None, 100_000, 64):
        found, _ = estimate.time_training(work_of(data, chunk_tokens=chunk), encoder, sample)
        seconds.append(found - 16)  # of 16 updates, a second each
    assert batches == [batches[0], batches[0], 64]
    tokens = [float(spread(sample.passages, most).lengths.sum()) for most in batches]
    assert seconds[1] == seconds[0]
    assert seconds[2] == pytest.approx(seconds[0] * tokens[0] / tokens[2] * 4 / 3)


@pytest.mark.parametrize(
    ("changes", "told"), [({}, True), ({"examined": False, "mined": 1}, True), ({"examined": False}, False)]
)
def test_an_estimate_says_that_it_counts_no_second_search(world, monkeypatch, changes, told):
    """Only where training queries are searched can one be needed."""
    data, encoder = world
    monkeypatch.setattr(timing, "seconds_of", lambda work: (work(), 1.0)[1])
    facts = describe_work(work_of(data, **changes), encoder, seeds=1, measure=True)["facts"]
    assert ("not counted" in facts) is told


def test_an_estimate_leaves_the_model_as_it_was(world):
    data, encoder = world
    before, training = encoder.digest(), encoder.training
    describe_work(work_of(data), encoder, seeds=1, measure=True)
    assert encoder.digest() == before
    assert encoder.training is training
    assert all(p.grad is None for p in encoder.parameters())


def test_what_the_process_took_before_is_no_memory_of_an_estimate(world):
    """A second estimate, or one after a training, would else show the peak of the first."""
    data, encoder = world
    first = describe_work(work_of(data), encoder, seeds=1, measure=True)["bytes"]["memory"]
    held = b"1" * (5 * 10**8)
    del held
    second = describe_work(work_of(data), encoder, seeds=1, measure=True)["bytes"]["memory"]
    assert second < first + 2e8


def test_memory_is_the_higher_of_encoding_and_training(world, monkeypatch):
    data, encoder = world
    sample, found = take_sample(work_of(data), encoder), []
    monkeypatch.setattr(estimate, "list_bytes", lambda *_, **how: 0.0)
    for encoding, training in [(300.0, 200.0), (100.0, 200.0)]:
        cost = timing.TrainingCost(1.0, 1.0, 1000.0, training)
        monkeypatch.setattr(estimate, "training_cost", lambda *_, cost=cost: cost)
        spent = timing.EncodingCost(1.0, encoding)
        monkeypatch.setattr(estimate, "encoding_cost", lambda *_, spent=spent: spent)
        found.append(estimate.time_training(work_of(data), encoder, sample)[1])
    assert found == [1300.0, 1200.0]


def test_disk_by_hand(world):
    data, encoder = world
    work = work_of(data)
    sample = Sample(batch_of([5, 7]), batch_of([10, 12]), 0.0)
    weights = 4 * sum(p.numel() for p in encoder.parameters())
    # episode 1 leaves a checkpoint of 4 steps, episode 2 the newest two of three; a model each, and the final one
    models = (3 * (1 + 2) + 3) * weights
    vectors = (120 + 92) * 64 * 2
    runs = 8 * 3 * 2 * 60 * 100  # 3 states, queries and lookahead, 100 hits
    pools = 21 * 2 * 60 * 24
    tokens = (2 + 8) * (92 * 6 + 120 * 11)
    assert disk_bytes(work, encoder, sample) == models + vectors + runs + pools + tokens


def test_chunks_are_what_is_encoded_stored_and_trained_on(world, chunked):
    data, _ = world
    collection, work = data.collection, work_of(data)
    texts = collection.texts.take(np.arange(120)), collection.titles.take(np.arange(120))
    words = [
        len(text.split()) + (1 + len(title.split()) if title else 0) for text, title in zip(*texts, strict=True)
    ]
    chunks = [min(-(-count // 3), 3) for count in words]  # two of five tokens are special
    tokens = [min(count, 9) + 2 * pieces for count, pieces in zip(words, chunks, strict=True)]
    sample = take_sample(work, chunked)
    assert sample.chunks == pytest.approx(np.mean(chunks))
    assert sample.tokens(0, 1) == pytest.approx(np.mean(tokens))
    facts = describe_work(work, chunked, seeds=1, measure=False)["facts"]
    assert facts["tokens of a passage"] == f"{np.mean(tokens):.1f}"
    assert facts["chunks of a passage"] == f"{np.mean(chunks):.2f}"
    plain = replace(sample, chunks=1.0)
    more = sum(chunks) - 120
    expected = 2 * 64 * more + 10 * (sample.tokens(0, 120) - plain.tokens(0, 120))
    assert disk_bytes(work, chunked, sample) - disk_bytes(work, chunked, plain) == pytest.approx(expected)


def test_a_passage_drawn_twice_is_encoded_once(world):
    data, _ = world
    sample = Sample(batch_of([5, 7]), batch_of([10, 12]), 0.0)
    draw = np.random.default_rng(0)
    distinct = np.mean([len(np.unique(draw.integers(0, 120, 8 * 5))) for _ in range(4000)])
    found = tokens_of_step(Episode(1, 60, 1, 8, 5), None, sample, work_of(data))
    assert found == pytest.approx(8 * 6 + distinct * 11, rel=0.01)
    micro = tokens_of_step(Episode(1, 60, 1, 8, 5), 1, sample, work_of(data))
    assert 6 + 4.8 * 11 < micro < 6 + 5 * 11
    small = tokens_of_step(Episode(1, 3, 1, 8, 5), None, sample, work_of(data))
    assert small < 3 * 6 + 15 * 11


def test_a_sample_is_evenly_spread():
    tokens = batch_of(range(1, 101))
    chosen = spread(tokens, 505)  # ten of mean length
    assert len(chosen) == 10
    assert chosen.lengths[0] == 1
    assert chosen.lengths[-1] == 100
    assert len(spread(batch_of([500]), 10)) == 1
    assert len(spread(tokens, 10**9)) == 100


def test_no_more_than_a_sample_is_read(world, chunked, monkeypatch):
    data, encoder = world
    texts, read = type(data.collection.texts), []
    take = texts.take
    monkeypatch.setattr(texts, "take", lambda store, rows: read.append(list(rows)) or take(store, rows))
    monkeypatch.setattr(estimate, "SAMPLE", 32)
    sample = take_sample(work_of(data), encoder)
    assert len(sample.queries) == len(sample.passages) == 32 < data.collection.n_queries
    assert max(map(len, read)) == 32
    spread_out = [i * 119 // 31 for i in range(32)]  # of 120 passages, the first and the last among them
    assert read.count(spread_out) == 2  # texts and titles
    assert sample.seconds > 0
    assert take_sample(work_of(data), chunked).chunks * 32 == len(sample_side(work_of(data), chunked, "passage"))


def test_what_a_sample_has_room_for_is_read_whole(world):
    data, encoder = world
    assert len(take_sample(work_of(data), encoder).passages) == data.collection.n_passages == 120 < SAMPLE


def test_a_sample_is_hundreds_of_texts():
    assert 256 <= SAMPLE <= 4096


def test_seconds_are_of_one_call_after_a_warm_up():
    calls = []
    seconds = seconds_of(lambda: calls.append(1), least=10.0, most=5)
    assert len(calls) == 6
    assert 0 <= seconds < 0.1


@pytest.mark.parametrize(("count", "shown"), [(0, "0.1 MiB"), (3 * 2**20, "3.0 MiB"), (5 * 2**29, "2.5 GiB")])
def test_sizes_for_people(count, shown):
    assert size_text(count) == shown


# ---------------------------------------------------------------- on CUDA, which is pretended here


def test_a_timing_waits_for_every_device_also_after_the_call_that_warms_up(monkeypatch):
    """Otherwise what is left of that call counts, and on ``cuda:1`` only the time to issue the work."""
    said = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=0: said.append(device))
    seconds_of(lambda: said.append("work"), least=0.0, most=1)
    assert said == ["work", 0, 1] * 2


def test_a_search_is_timed_where_it_will_run(monkeypatch):
    found = []

    class Index:
        def __init__(self, passages, device):
            found.append((passages.device, torch.device(device), len(passages)))

        def search(self, queries, k):
            return len(queries)

    monkeypatch.setattr(timing, "ExactIndex", Index)
    elsewhere = torch.device("meta")
    timing.search_seconds(4, 100, 10, "float16", elsewhere)
    assert found == [(elsewhere, elsewhere, 100)]
