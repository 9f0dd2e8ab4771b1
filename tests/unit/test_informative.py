"""The share of negatives that are still near the query, against a loop and by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from hardneg.diagnostics import informative
from hardneg.diagnostics.informative import informative_share, share_of_state
from hardneg.experiment.layout import informative_of
from hardneg.experiment.snapshot import ArchivedState
from hardneg.negatives.candidates import search_depth
from hardneg.negatives.pool import save_pool
from hardneg.report.figures import FIGURES
from hardneg.search.runs import save_run
from hardneg.storage.artifacts import publish, read_manifest, remove
from worlds.tiny_records import pool_of, positives_of, run_of

KEYS = np.arange(1000, dtype=np.uint64)
COLLECTION = SimpleNamespace(text_keys=KEYS, n_passages=1000, digest="c", copies=None)
DATA = SimpleNamespace(collection=COLLECTION, no_negative=lambda queries, passages: np.zeros(len(queries), bool))


def test_by_hand(monkeypatch):
    monkeypatch.setattr(informative, "DEPTH", 2)
    positives = positives_of([[9], [8], [7]])
    run = run_of(
        [[9, 1, 2, 3], [4, 8, 5, 6], [1, 2]], collection="c"
    )  # without positives, the first two: 1 2; 4 5; 1 2
    pool = pool_of([[1, 3], [5, 4, 6, 4], []], [[9], [8], [7]], collection="c")
    assert informative_share(pool, run, positives, KEYS) == pytest.approx((1 / 2 + 3 / 4) / 2)


def test_a_run_without_more_hits_counts_those_that_it_has():
    """So says the caption of the figure: 100 hits, of which 40 positives are left out, are 60."""
    positives, run = positives_of([range(40)]), run_of([range(100)], collection="c")
    pool = pool_of([range(40, 140)], [range(40)], collection="c")
    assert informative_share(pool, run, positives, KEYS) == pytest.approx(0.6)
    (caption,) = (one.says for one in FIGURES if one.name == "informative")
    deep = next(depth for depth in range(1, 200) if search_depth(depth, positives) - 40 >= informative.DEPTH)
    assert f"below {deep} fewer than 100 hits may be left" in caption


def test_what_mining_leaves_out_takes_no_place(monkeypatch):
    """Passage 3 has the text of 2, and so is as near; query 0 is passage 1 itself."""
    monkeypatch.setattr(informative, "DEPTH", 2)
    keys, copies = KEYS.copy(), np.full(1000, -1, np.int32)
    keys[3], copies[[2, 3]] = keys[2], 2
    never = {"copies": copies, "no_negative": lambda queries, passages: (queries == 0) & (passages == 1)}
    run = run_of([[1, 2, 3, 4], [1, 2, 3, 4]], collection="c")  # the first two: 2 4; 1 2
    pool = pool_of([[3, 4], [2, 4]], [[9], [9]], collection="c")
    assert informative_share(pool, run, positives_of([[9], [9]]), keys, **never) == pytest.approx((1 + 1 / 2) / 2)


def test_equals_a_loop():
    rng = np.random.default_rng(3)
    positives = positives_of([rng.choice(1000, 2, replace=False) for _ in range(40)])
    run = run_of([rng.choice(1000, 300, replace=False) for _ in range(40)], collection="c")
    lists = [rng.choice(1000, rng.integers(0, 50)) for _ in range(40)]
    shares = []
    for i, negatives in enumerate(lists):
        near = [row for row in run.hits(i)[0].tolist() if row not in positives.of(i)][:100]
        if len(negatives):
            shares.append(np.mean([row in near for row in negatives.tolist()]))
    found = informative_share(
        pool_of(lists, [positives.of(i) for i in range(40)], collection="c"), run, positives, KEYS
    )
    assert found == pytest.approx(np.mean(shares))
    assert 0.05 < found < 0.2


def test_a_state_without_a_pool_has_none(tmp_path):
    for pool in (None, tmp_path / "no"):
        state = ArchivedState("first", tmp_path, pool=pool)
        assert share_of_state(state, run_of([[1]], collection="c"), positives_of([[1]]), DATA) is None


def test_a_share_outlives_the_pool(tmp_path):
    run, positives = run_of([[1, 2, 3]], collection="c"), positives_of([[1]])
    save_run(run, tmp_path / "runs/query", inputs={}, settings={"k": 3})
    save_pool(pool_of([[2, 7]], [[1]], collection="c"), tmp_path / "pool", settings={}, inputs={})
    state = ArchivedState("first", tmp_path / "runs", pool=tmp_path / "pool")
    assert share_of_state(state, run, positives, DATA) == 0.5
    remove(tmp_path / "pool")
    assert share_of_state(state, run, positives, DATA) == 0.5


def test_a_share_of_other_lists_is_computed_again(tmp_path, monkeypatch):
    """Before, copies and the query itself took a place among the first hits."""
    run, positives = run_of([[1, 2, 3]], collection="c"), positives_of([[1]])
    save_run(run, tmp_path / "runs/query", inputs={}, settings={"k": 3})
    save_pool(pool_of([[2, 3]], [[1]], collection="c"), tmp_path / "pool", settings={}, inputs={})
    state = ArchivedState("first", tmp_path / "runs", pool=tmp_path / "pool")
    made = {"pool": read_manifest(tmp_path / "pool").digest, "run": read_manifest(tmp_path / "runs/query").digest}
    with publish(informative_of(tmp_path / "runs"), informative.KIND, inputs=made) as draft:
        draft.facts["share"] = 0.25
    own = SimpleNamespace(collection=COLLECTION, no_negative=lambda queries, passages: passages == 3)
    old = ArchivedState("first", tmp_path / "runs", pool=tmp_path / "gone")
    assert share_of_state(old, run, positives, own) is None, "it cannot be computed again"
    assert share_of_state(state, run, positives, own) == 0.5
    monkeypatch.delattr(informative, "informative_share")  # nothing is computed twice
    assert share_of_state(state, run, positives, own) == 0.5
