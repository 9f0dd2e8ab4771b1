"""ANCE-Tele: losses against recorded values and a slow re-implementation, pools against slow loops."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from executed import multiset, read_pool
from recorded import RECORDED
from reference_tele import SlowEncoder, SlowTele

from hardneg.data.training_data import choose_splits
from hardneg.experiment.margins import read_margins
from hardneg.negatives.facts import entries_of
from hardneg.negatives.pool import load_pool
from hardneg.search.runs import load_run
from reference_candidates import slow_candidates
from worlds.tiny_world import SETTINGS, one_thread, tiny_model  # noqa: F401

STEPS = {1: 4, 2: 4, 3: 12}
N, DEPTH = SETTINGS["count"], SETTINGS["depth"]


@pytest.fixture(scope="module")
def train(world):
    return choose_splits(world.collection).train


# ---------------------------------------------------------------- losses


def test_the_losses_of_every_step(whole):
    for episode, recorded in enumerate(RECORDED, 1):
        assert whole.losses(episode) == pytest.approx(recorded, abs=1e-4)


def words_of(world, side, row):
    """The tokens of a text: its words, since the tiny tokenizer knows them all, and the special ones."""
    data = world.collection
    if side == "query":
        return len(data.query_texts[row].split()) + 2
    title, text = data.titles[row], data.texts[row]
    return len(text.split()) + 2 + (len(title.split()) + 1 if title else 0)


@pytest.mark.parametrize("changes", [{}, {"micro_queries": 3}, {"gradient_cache": True, "cache_tokens": 60}])
def test_the_tokens_of_steps_are_in_the_timing_and_nowhere_else(train_only, world, changes):
    run = train_only(**changes)
    rows = [json.loads(line) for line in (run.path / "timing.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["stage"] == "train"]
    expected = 0
    for batch in run.batches:
        expected += sum(words_of(world, "query", row) for row in batch.query_rows.tolist())
        expected += sum(words_of(world, "passage", row) for row in set(batch.passage_rows.ravel().tolist()))
    assert sum(row["steps"] for row in trained) == sum(STEPS.values()) == len(run.metrics)
    assert sum(row["tokens"] for row in trained) == expected
    assert all(row["own_peak_mib"] <= row["peak_mib"] for row in rows)
    assert not any("tokens" in row for row in run.metrics)  # metrics have a digest, which cost must not change


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"micro_queries": 3},
        {"gradient_cache": True, "cache_tokens": 60},
        {"normalize": True, "scale": 20.0},
    ],
)
def test_the_margins_are_those_of_a_slow_loop(train_only, world, changes):
    run = train_only(episodes=1, steps=1, stop_step=1, warmup=0.5, pair_margins=1000, **changes)
    found = read_margins(run.path / "margins.tsv")
    encoder = SlowEncoder(world.calm, normalize=changes.get("normalize", False))
    collection, scale, wanted = world.collection, changes.get("scale", 1.0), []
    for batch in run.batches:
        for query, passages in zip(batch.query_rows.tolist(), batch.passage_rows.tolist(), strict=True):
            one = encoder.encode(collection.query_texts[query])
            titles, texts = collection.titles.take(passages), collection.texts.take(passages)
            scores = [
                scale * (one @ encoder.encode(*filter(None, pair))).item()
                for pair in zip(titles, texts, strict=True)
            ]
            wanted += [(query, row, scores[0] - score) for row, score in zip(passages, scores, strict=True)][1:]
    assert len(wanted) == 24
    assert found.query_rows.tolist() == [query for query, _, _ in wanted]
    assert found.passage_rows.tolist() == [passage for _, passage, _ in wanted]
    assert found.margins.tolist() == pytest.approx([margin for _, _, margin in wanted], abs=2e-4)


def parts_of(batch):
    return [(part.query_rows.tolist(), part.passage_rows.tolist()) for part in batch.micro()]


def steps_of(batches, per_step):
    """The micro-batches of each step."""
    parts = [(batch.query_rows.tolist(), batch.passage_rows.tolist()) for batch in batches]
    return [parts[i : i + per_step] for i in range(0, len(parts), per_step)]


VARIANTS = {
    "as it is": ({}, {}),
    "without in-batch": ({"in_batch": False}, {"in_batch": False}),
    "as published": ({"mask_known_positives": False}, {"mask": False}),
    "accumulated": ({"micro_queries": 3}, {}),
    "scaled and normalised": ({"normalize": True, "scale": 20.0, "pooling": "mean"}, {"scale": 20.0}),
    "decayed and clipped": ({"weight_decay": 0.3, "clip": 0.25}, {}),
    "untied": ({"towers": "untied"}, {}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_steps_equal_a_slow_reimplementation(train_only, world, train, name, tmp_path):
    changes, slow_changes = VARIANTS[name]
    second = None
    if name == "untied":
        second = tiny_model(tmp_path / "second", world.collection, dropout=0.0, seed=1)
    done = train_only(
        passage_model=second,
        **({"episodes": 1, "steps": 3, "stop_step": 1, "warmup": 0.5} | changes),
    )
    options = {key: changes[key] for key in ("pooling", "normalize") if key in changes}
    passage = SlowEncoder(second, **options) if second else None
    slow = SlowTele(world.collection, train, SlowEncoder(world.calm, **options), passage, **slow_changes)
    step_options = {key: changes[key] for key in ("clip", "weight_decay") if key in changes}
    steps = steps_of(done.batches, math.ceil(8 / changes.get("micro_queries", 8)))
    assert len(steps) == len(done.metrics) == 3
    for row, parts, rate in zip(done.metrics, steps, (0.5e-3, 1e-3, 1e-3), strict=True):
        loss, norm = slow.train(parts, rate=rate, **step_options)
        assert row["lr"] == pytest.approx(rate)
        assert row["loss"] == pytest.approx(loss, abs=1e-5 if row["step"] == 1 else 1e-4)
        assert row["grad_norm"] == pytest.approx(norm, rel=1e-3)
    assert (slow.masked > 0) == (name not in ("without in-batch", "as published"))


def test_every_episode_starts_from_the_pretrained_weights(whole, world, train):
    slow = SlowTele(world.collection, train, SlowEncoder(world.calm))
    for episode, first in ((1, 0), (2, 4), (3, 8)):
        loss = slow.loss(parts_of(whole.batches[first])).item()
        assert whole.losses(episode)[0] == pytest.approx(loss, abs=1e-5)


def test_or_from_the_model_of_the_episode_before(train_only, world, train):
    done = train_only(start="continue", steps=4, stop_step=2)
    for episode, first, model in ((1, 0, world.calm), (2, 2, "episodes/1/model"), (3, 4, "episodes/2/model")):
        slow = SlowTele(world.collection, train, SlowEncoder(done.path / model))
        loss = slow.loss(parts_of(done.batches[first])).item()
        assert done.losses(episode)[0] == pytest.approx(loss, abs=1e-5)


# ---------------------------------------------------------------- groups and schedule


def test_early_episodes_stop_and_the_schedule_does_not_know(whole):
    for episode, steps in STEPS.items():
        rows = [row for row in whole.metrics if row["episode"] == episode]
        assert [row["step"] for row in rows] == list(range(1, steps + 1))
        assert [row["queries"] for row in rows] == [8, 8, 8, 8, 8, 8, 8, 4, 8, 8, 8, 8][:steps]
        for row in rows:  # a horizon of 12, one step of warm-up
            expected = 1e-3 if row["step"] == 1 else 1e-3 * (12 - (row["step"] - 1)) / 11
            assert row["lr"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"steps": None, "epochs": 0.6, "stop_fraction": 0.5}, (3, 5)),  # 0.6 of 8 steps is 5, half of it 3
        ({"steps": 5, "stop_step": 2, "stop_fraction": 0.9}, (2, 5)),
        ({"steps": 2, "stop_step": 9}, (2, 2)),
        ({"steps": 3, "stop_fraction": 0.01}, (1, 3)),
    ],
)
def test_steps_of_the_schedule_and_of_the_early_stop(train_only, changes, steps):
    done = train_only(**({"episodes": 2} | changes))
    assert (len(done.losses(1)), len(done.losses(2))) == steps


def test_groups_hold_one_positive_and_entries_of_the_pool(whole, train):
    place = {int(row): i for i, row in enumerate(train.query_rows)}
    first = 0
    for episode, steps in STEPS.items():
        batches, size = whole.batches[first : first + steps], SETTINGS["passages_reference"][episode - 1]
        first += steps
        pool = whole.pool(episode)
        drawn, positives = {}, {}
        for epoch in (batches[:8], batches[8:]):
            seen = [int(row) for batch in epoch for row in batch.query_rows]
            assert len(set(seen)) == len(seen), "every query once an epoch"
            for batch in epoch:
                assert batch.passage_rows.shape[1] == size
                for query, (positive, *negatives) in zip(
                    batch.query_rows.tolist(), batch.passage_rows.tolist(), strict=True
                ):
                    assert positive in train.of(place[query])
                    positives.setdefault(query, []).append(positive)
                    drawn.setdefault(query, []).extend(negatives)
        for query, rows in drawn.items():  # no entry twice before all were there
            assert multiset(rows) <= multiset(entry["passage_rows"] for entry in pool[place[query]])
        both = [
            found for query, found in positives.items() if len(found) == 2 and len(train.of(place[query])) == 2
        ]
        assert all(a != b for a, b in both), "positives take turns"
        assert both or episode < 3


def test_the_first_positive_only(train_only, train):
    done = train_only(positives="first", episodes=1, steps=16)
    first = dict(zip(train.query_rows.tolist(), train.first().tolist(), strict=True))
    for batch in done.batches:
        assert batch.passage_rows[:, 0].tolist() == [first[row] for row in batch.query_rows.tolist()]


@pytest.mark.parametrize(
    ("changes", "widths"),
    [
        ({"passages_reference": [4, 6]}, [4, 6, 6]),
        ({"group_sizes": "paper", "passages_paper": [5]}, [5, 5, 5]),
        ({"passages_reference": [1, 2, 3]}, [1, 2, 3]),
    ],
)
def test_group_sizes_by_episode(train_only, changes, widths):
    done = train_only(steps=1, **changes)
    assert [batch.passage_rows.shape[1] for batch in done.batches] == widths
    assert np.isfinite([row["loss"] for row in done.metrics]).all()


# ---------------------------------------------------------------- pools


def counts_of(pool, episode):
    """How many entries of each part every query has: query, lookahead, momentum, bm25, random."""
    found = []
    for entries in pool:
        new = [entry["sources"] for entry in entries if entry["episodes"] == episode]
        old = len(entries) - len(new)
        found.append((new.count("query"), new.count("lookahead"), old, new.count("bm25"), new.count("random")))
    return found


MIXES = {  # settings -> parts by episode; n = 6, so the new part is 12
    "the paper's": ({}, [(6, 6, 0), (6, 6, 12), (6, 6, 12)]),
    "Q-Neg": ({"alpha": 0.0, "beta": 0.0}, [(12, 0, 0)] * 3),
    "Q-Neg + momentum": ({"beta": 0.0}, [(12, 0, 0), (12, 0, 12), (12, 0, 12)]),
    "Q-Neg + lookahead": ({"alpha": 0.0}, [(6, 6, 0)] * 3),
    "little momentum": ({"alpha": 0.3}, [(6, 6, 0), (6, 6, 5), (6, 6, 5)]),  # 12 · 3/7 = 5.1
    "much momentum": ({"alpha": 0.7}, [(6, 6, 0), (2, 3, 12), (3, 4, 17)]),  # 28 wanted; 12 · 3/7, 17 · 3/7 = 7.3
    "little lookahead": ({"beta": 0.2}, [(10, 2, 0), (10, 2, 12), (10, 2, 12)]),
    "as the reference code": ({"momentum": "accumulate"}, [(6, 6, 0), (6, 6, 12), (6, 6, 24)]),
    "nothing to fill up with": ({"depth": 4}, [(4, 4, 0), (4, 4, 8), (4, 4, 12)]),
}


@pytest.mark.parametrize("name", MIXES)
def test_the_mix_of_every_episode(train_only, whole, name):
    changes, expected = MIXES[name]
    done = whole if not changes else train_only(steps=2, **changes)
    for episode, parts in enumerate(expected, 1):
        assert counts_of(done.pool(episode), episode) == [(*parts, 0, 0)] * 60


@pytest.mark.parametrize("episode", [1, 2, 3])
def test_new_entries_are_candidates_of_the_stored_runs(whole, world, train, episode):
    pool = whole.pool(episode)
    for source in ("query", "lookahead"):
        run = whole.run(f"episodes/{episode}/runs/{source}")
        for i, entries in enumerate(pool):
            positives = train.of(i).tolist()
            new = [e for e in entries if e["sources"] == source and e["episodes"] == episode]
            drawn = [(e["passage_rows"], e["ranks"], e["scores"]) for e in new]
            assert set(drawn) <= set(slow_candidates(world.collection, run[i], positives, DEPTH))
            assert len(set(drawn)) == len(drawn) == N
            assert {e["anchors"] for e in new} == ({positives[0]} if source == "lookahead" else {-1})


def test_draws_reach_all_depths_and_both_sources_overlap(whole):
    entries = [entry for query in whole.pool(1) for entry in query]
    assert {entry["ranks"] for entry in entries} >= set(range(3, 19))
    overlaps = sum(len(rows) - len(set(rows)) for rows in ([e["passage_rows"] for e in q] for q in whole.pool(1)))
    assert overlaps > 40, "overlaps are kept"


@pytest.mark.parametrize("episode", [2, 3])
def test_momentum_entries_are_those_of_the_pool_before_with_their_provenance(whole, episode):
    for before, now in zip(whole.pool(episode - 1), whole.pool(episode), strict=True):
        old = [entry for entry in now if entry["episodes"] < episode]
        assert multiset(old) <= multiset(before)
    kept = [entry["episodes"] for query in whole.pool(3) for entry in query if entry["episodes"] < 3]
    assert set(kept) == {1, 2}, "two episodes back are still there"


def test_extra_sources_draw_n_each_beside_the_mix(train_only, world, train):
    done = train_only(extra=["bm25", "random"], steps=2)
    for episode in (1, 2, 3):
        for i, parts in enumerate(counts_of(done.pool(episode), episode)):
            assert parts[:3] == (6, 6, 0 if episode == 1 else 12)
            assert parts[3] <= N
            assert parts[4] == N
            rows = [entry["passage_rows"] for entry in done.pool(episode)[i]]
            assert not set(rows) & set(train.of(i).tolist())
    lexical = [entry for query in done.pool(1) for entry in query if entry["sources"] == "bm25"]
    assert len(lexical) > 5 * 60
    assert all(entry["scores"] > 0 and entry["ranks"] > 0 for entry in lexical)


def test_dedup_keeps_the_first_of_each_passage(train_only, whole):
    done = train_only(dedup=True, steps=2)
    for episode in (1, 2, 3):
        for entries in done.pool(episode):
            rows = [entry["passage_rows"] for entry in entries]
            assert len(set(rows)) == len(rows)
    for kept, every in zip(done.pool(1), whole.pool(1), strict=True):
        assert {entry["passage_rows"] for entry in kept} == {entry["passage_rows"] for entry in every}
        firsts = {}
        for entry in every:
            firsts.setdefault(entry["passage_rows"], entry)
        assert kept == list(firsts.values())


def test_lookahead_around_all_positives(train_only, train):
    done = train_only(lookahead="all", episodes=1, steps=1)
    anchors = [
        {entry["anchors"] for entry in entries if entry["sources"] == "lookahead"} for entries in done.pool(1)
    ]
    assert all(found <= set(train.of(i).tolist()) for i, found in enumerate(anchors))
    assert sum(len(found) == 2 for found in anchors) > 10
    assert counts_of(done.pool(1), 1) == [(6, 6, 0, 0, 0)] * 60
    lists = load_run(done.path / "episodes/1/runs/lookahead-all")  # the report reads it
    assert len(lists) == len(train.passage_rows)


# ---------------------------------------------------------------- runs and what is measured on them

STATES = {
    "untrained": "episodes/1/runs",
    "episode-1": "episodes/2/runs",
    "episode-2": "episodes/3/runs",
    "final": "final/runs",
}


@pytest.mark.parametrize("folder", STATES.values())
def test_every_state_keeps_deep_runs_of_the_training_queries(whole, train, folder):
    for name in ("query", "lookahead"):
        assert [len(hits) for hits in whole.run(f"{folder}/{name}")] == [100] * 60
        rows = np.load(whole.path / folder / name / "query_rows.npy")
        assert rows.tolist() == train.query_rows.tolist()


def slow_reciprocal(hits, positives, depth):
    for rank, (row, _) in enumerate(hits[:depth], 1):
        if row in positives:
            return 1 / rank
    return 0.0


def test_forgetting_equals_a_slow_loop(whole, train):
    ranks = []
    for folder in STATES.values():
        run = whole.run(f"{folder}/query")
        ranks.append([slow_reciprocal(run[i], train.of(i).tolist(), 100) for i in range(60)])
    found = whole.results["forgetting"]
    assert [row["episode"] for row in found] == [1, 2, 3]
    for row, (before, after) in zip(found, pairwise(ranks), strict=True):
        assert row["forgotten"] == sum(b > a for b, a in zip(before, after, strict=True)) / 60
        assert row["learned"] == sum(b < a for b, a in zip(before, after, strict=True)) / 60
        assert row["train_mrr_100"] == pytest.approx(sum(after) / 60)
    assert all(0 < row["forgotten"] < 1 for row in found)


def test_results_have_the_documented_form_and_equal_a_slow_loop(whole, world):
    results = whole.results
    for split in ("test", "dev"):
        assert list(results[split]) == ["bm25", *STATES]
        qrels = world.collection.qrels(split)
        positives = qrels.positives()
        for state, folder in STATES.items():
            hits = whole.run(f"{folder}/{split}")
            run = [sorted(found, key=lambda hit: (-hit[1], -hit[0])) for found in hits]  # trec_eval's ties
            slow = [slow_reciprocal(run[i], positives.of(i).tolist(), 10) for i in range(16)]
            assert set(results[split][state]) == {"RR@10", "R@100"}
            assert results[split][state]["RR@10"] == pytest.approx(sum(slow) / 16)
    assert [(row["a"], row["b"], row["measure"]) for row in results["comparisons"]] == [
        ("final", other, measure) for other in ("untrained", "bm25") for measure in ("RR@10", "R@100")
    ]
    for row in results["comparisons"]:
        a, b = (results["test"][row[side]][row["measure"]] for side in "ab")
        assert row["difference"] == pytest.approx(a - b)
        assert 0 < row["p"] <= 1


def test_a_pool_that_is_loaded_is_what_its_files_hold(whole, train):
    path = whole.path / "episodes/3/negatives"
    assert np.load(path / "positive_rows.npy").tolist() == train.passage_rows.tolist()
    loaded, raw = load_pool(path, n_passages=120), read_pool(path)
    assert loaded.query_rows.tolist() == train.query_rows.tolist()
    assert [loaded.positives.of(i).tolist() for i in range(60)] == [train.of(i).tolist() for i in range(60)]
    for i, entries in enumerate(raw):
        assert len(entries) == 24
        expected = [{name.removesuffix("s"): value for name, value in entry.items()} for entry in entries]
        for entry in expected:
            entry |= {"anchor": None if entry["anchor"] < 0 else entry["anchor"], "momentum": entry["episode"] < 3}
            entry["ranker_score"] = None  # no ranker scored it
        assert [entry._asdict() for entry in entries_of(loaded, i)] == expected
