"""The share of negatives that are still near the query, against a loop and by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from hardneg.diagnostics import informative
from hardneg.diagnostics.informative import informative_share, share_of_state
from hardneg.experiment.snapshot import ArchivedState
from hardneg.negatives.pool import ENTRY_ARRAYS, NegativePool, save_pool
from hardneg.records import Positives, Run, offsets_of
from hardneg.search.runs import save_run
from hardneg.storage.artifacts import remove


def run_of(lists):
    rows = np.concatenate([*lists, []]).astype(np.int32)
    lengths = np.array([len(found) for found in lists])
    return Run(
        np.arange(len(lists), dtype=np.int32),
        offsets_of(lengths),
        rows,
        -np.arange(len(rows), dtype=np.float32),
        "passage",
        "c",
    )


def pool_of(lists, positives):
    n = sum(map(len, lists))
    entries = {name: np.zeros(n, np.uint8 if name == "sources" else np.int32) for name in ENTRY_ARRAYS}
    entries |= {"passage_rows": np.concatenate([*lists, []]).astype(np.int32), "scores": np.zeros(n, np.float32)}
    return NegativePool(
        query_rows=np.arange(len(lists), dtype=np.int32),
        positive_offsets=positives.offsets,
        positive_rows=positives.passage_rows,
        offsets=offsets_of(np.array([len(found) for found in lists])),
        **entries,
        episode=1,
        collection="c",
    )


def positives_of(lists):
    rows = np.concatenate(lists).astype(np.int32)
    return Positives(np.arange(len(lists), dtype=np.int32), offsets_of(np.array([*map(len, lists)])), rows)


KEYS = np.arange(1000, dtype=np.uint64)
DATA = SimpleNamespace(collection=SimpleNamespace(text_keys=KEYS, n_passages=1000, digest="c"))


def test_by_hand(monkeypatch):
    monkeypatch.setattr(informative, "DEPTH", 2)
    positives = positives_of([[9], [8], [7]])
    run = run_of([[9, 1, 2, 3], [4, 8, 5, 6], [1, 2]])  # without positives, the first two: 1 2; 4 5; 1 2
    pool = pool_of([[1, 3], [5, 4, 6, 4], []], positives)
    assert informative_share(pool, run, DATA, positives) == pytest.approx((1 / 2 + 3 / 4) / 2)


def test_equals_a_loop():
    rng = np.random.default_rng(3)
    positives = positives_of([rng.choice(1000, 2, replace=False) for _ in range(40)])
    run = run_of([rng.choice(1000, 300, replace=False) for _ in range(40)])
    lists = [rng.choice(1000, rng.integers(0, 50)) for _ in range(40)]
    shares = []
    for i, negatives in enumerate(lists):
        near = [row for row in run.hits(i)[0].tolist() if row not in positives.of(i)][:100]
        if len(negatives):
            shares.append(np.mean([row in near for row in negatives.tolist()]))
    found = informative_share(pool_of(lists, positives), run, DATA, positives)
    assert found == pytest.approx(np.mean(shares))
    assert 0.05 < found < 0.2


def test_a_state_without_a_pool_has_none(tmp_path):
    for pool in (None, tmp_path / "no"):
        state = ArchivedState("first", tmp_path, trained_on=pool)
        assert share_of_state(state, run_of([[1]]), DATA, positives_of([[1]])) is None


def test_a_share_outlives_the_pool(tmp_path):
    run, positives = run_of([[1, 2, 3]]), positives_of([[1]])
    save_run(run, tmp_path / "runs/query", inputs={}, settings={"k": 3})
    save_pool(pool_of([np.array([2, 7])], positives), tmp_path / "pool", settings={}, inputs={})
    state = ArchivedState("first", tmp_path / "runs", trained_on=tmp_path / "pool")
    assert share_of_state(state, run, DATA, positives) == 0.5
    remove(tmp_path / "pool")
    assert share_of_state(state, run, DATA, positives) == 0.5
