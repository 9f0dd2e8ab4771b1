"""STAR: the loss against slow loops, every step against a slow re-implementation, resuming."""

import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from reference_star import SlowStar
from reference_tele import SlowEncoder

import hardneg as hn
from faults.power import assert_resumes
from hardneg.api.recipes import settings_of
from hardneg.data.training_data import choose_splits
from hardneg.losses import star
from hardneg.negatives.pool import load_pool
from hardneg.recipes.star import RECIPE
from worlds.tiny_world import one_thread  # noqa: F401


def ranknet(positive, negative):
    return math.log(1 + math.exp(negative - positive))


@pytest.mark.parametrize("alpha", [None, 0.0, 0.3])
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_the_loss_equals_a_loop_over_pairs(alpha, scale):
    draw, queries, hard = np.random.default_rng(5), 6, 2
    width = 1 + hard
    scores = draw.standard_normal((queries, queries * width)).astype(np.float32)
    targets = np.arange(queries) * width
    masked = draw.random(scores.shape) < 0.2
    own = np.zeros_like(masked)
    sums = {True: 0.0, False: 0.0}
    counts = {True: 0, False: 0}
    for i in range(queries):
        own[i, targets[i] + 1 : targets[i] + width] = True
        for j in range(queries * width):
            if j != targets[i] and not masked[i, j]:
                sums[bool(own[i, j])] += ranknet(scale * scores[i, targets[i]], scale * scores[i, j])
                counts[bool(own[i, j])] += 1
    if alpha is None:
        expected = (sums[True] + sums[False]) / (counts[True] + counts[False])
    else:
        expected = alpha * sums[False] / counts[False] + sums[True] / counts[True]
    found = star(*map(torch.tensor, (scores, targets, masked, own)), alpha=alpha, scale=scale)
    assert found.shape == (queries,)
    assert found.mean().item() == pytest.approx(expected, rel=1e-5)


def test_by_hand():
    # two queries, a positive and a hard negative each; the first query's mask takes the second one's positive
    scores = torch.tensor([[2.0, 1.0, 9.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    masked = torch.tensor([[False, False, True, False], [False] * 4])
    own = torch.tensor([[False, True, False, False], [False, False, False, True]])
    first = [ranknet(2, 1), ranknet(2, 0)]
    second = [ranknet(1, 0), ranknet(1, 0), ranknet(1, 1)]
    found = star(scores, torch.tensor([0, 2]), masked, own)
    assert found.mean().item() == pytest.approx(sum(first + second) / 5)
    weighed = star(scores, torch.tensor([0, 2]), masked, own, alpha=0.1)
    hard, others = (ranknet(2, 1) + ranknet(1, 1)) / 2, (ranknet(2, 0) + 2 * ranknet(1, 0)) / 3
    assert weighed.mean().item() == pytest.approx(0.1 * others + hard)


# Rates of all steps by hand: one step of warm-up, then down to 0 after the fourth.
RATES = (1e-3, 1e-3, 2e-3 / 3, 1e-3 / 3)

# Losses of all steps, recorded from this code once the slow re-implementation had given the same.
RECORDED = {"implicit": [0.64111, 0.3966, 0.27526, 0.30416], 0.2: [1.00642, 0.79091, 0.49645, 0.60044]}


@pytest.mark.parametrize("alpha", ["implicit", 0.2])
def test_steps_equal_a_slow_reimplementation(run_states, world, alpha):
    done = run_states(RECIPE, steps=4, warmup=1, alpha=alpha)
    train = choose_splits(world.collection, dev="none").train
    slow = SlowStar(world.collection, train, SlowEncoder(world.calm))
    slow.alpha = None if alpha == "implicit" else alpha
    for row, batch, rate in zip(done.metrics, done.batches, RATES, strict=True):
        loss, norm = slow.train([(batch.query_rows.tolist(), batch.passage_rows.tolist())], rate=rate)
        assert row["lr"] == pytest.approx(rate)
        assert row["loss"] == pytest.approx(loss, abs=1e-4)
        assert row["grad_norm"] == pytest.approx(norm, rel=1e-3)
    assert slow.masked > 0
    assert done.losses(1) == pytest.approx(RECORDED[alpha], abs=1e-4)


def test_the_rate_rises_and_falls_over_the_whole_schedule(run_states):
    done = run_states(RECIPE, steps=6, stop_step=5, warmup=2, learning_rate=4e-3)
    assert [row["lr"] for row in done.metrics] == pytest.approx([2e-3, 4e-3, 4e-3, 3e-3, 2e-3])


def test_negatives_are_static_and_drawn_afresh(run_states):
    done = run_states(RECIPE, steps=40)
    pool = load_pool(done.path / "episodes/1/negatives", n_passages=120)
    offered = {
        int(row): set(pool.passage_rows[a:b].tolist())
        for row, a, b in zip(pool.query_rows, pool.offsets[:-1], pool.offsets[1:], strict=True)
    }
    drawn = {}
    for batch in done.batches:
        for query, negative in zip(batch.query_rows.tolist(), batch.passage_rows[:, 1].tolist(), strict=True):
            assert negative in offered[query]
            drawn.setdefault(query, set()).add(negative)
    assert np.mean([len(found) for found in drawn.values()]) > 3.5  # of five visits
    assert done.results["states"] == ["untrained", "final"]


def test_it_resumes_to_the_same_bytes(run_states, tmp_path):
    files = ("model/model.safetensors", "metrics.jsonl")
    assert_resumes(partial(run_states, RECIPE, steps=7), tmp_path, after=4, files=files)


def test_presets_and_alpha():
    for name in ("passage", "document", "demo"):
        settings_of("star", name)
    assert settings_of("star", None, None, ["alpha=0.5"]).alpha == 0.5
    assert settings_of("star").alpha == "implicit"


def test_a_pool_spares_the_search_of_all_passages(world, tmp_path):
    """Only dev is measured, among few passages; nothing is mined."""
    common = {"splits": hn.Splits(test="none"), "device": "cpu", "steps": 2, "measures": "RR@10"}
    common |= {"examine": "judged", "dev_passages": 3, "dev_queries": 5}
    pool = tmp_path / "pool"
    hn.mine(world.collection, None, pool, sources=["random"], count=8)
    for name, negatives in (("mined", None), ("given", pool)):
        hn.train_star(world.collection, world.calm, tmp_path / name, negatives=negatives, **common)
    tokens = {}
    for name in ("mined", "given"):
        rows = [json.loads(line) for line in (tmp_path / name / "timing.jsonl").read_text().splitlines()]
        tokens[name] = [row["tokens"] for row in rows if row["stage"] == "encode" and row["side"] == "passage"]
    assert max(tokens["given"]) < max(tokens["mined"]) / 2
