"""The queries that a state is searched for: all, dev and test, or dev alone."""

import numpy as np
import pytest

from hardneg.data.training_data import choose_splits
from hardneg.diagnostics.judge import Judge
from hardneg.diagnostics.search_state import bm25_judged, keep_bm25_lists, keep_bm25_runs, search_state
from hardneg.evaluation.measures import parse_measures
from hardneg.experiment.snapshot import Snapshot
from hardneg.models.loading import load_encoder
from hardneg.search.bm25 import bm25_run
from hardneg.search.encoding import Encoding
from hardneg.search.runs import load_run
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

RUNS = {"all": ["train", "lookahead", "test", "dev"], "judged": ["test", "dev"], "dev": ["dev"]}


@pytest.fixture(scope="module")
def world(world):
    return world.collection, load_encoder(world.model), world.root / "cache"


@pytest.mark.parametrize("asked", RUNS)
def test_a_state_is_searched_for_what_it_is_asked(world, tmp_path, asked):
    collection, encoder, cache = world
    state = Snapshot(encoder, collection, "state", tmp_path, cache, encoding=Encoding(512), asked=asked)
    judge = Judge(choose_splits(collection), parse_measures("RR@10"), cache)
    runs, errors = search_state(state, judge, depth=20)
    assert list(runs) == RUNS[asked]
    assert list(errors) == [name for name in RUNS[asked] if name in ("test", "dev")]
    stored = {path.name for path in tmp_path.iterdir()}
    assert stored >= {*errors, *(f"{name}-errors" for name in errors)}
    assert ("query" in stored) == ("lookahead" in stored) == (asked == "all")


def test_bm25s_runs_are_kept_as_they_are_measured(world, tmp_path):
    collection, _, cache = world
    judge = Judge(choose_splits(collection), parse_measures("RR@10"), cache)
    runs = bm25_judged(judge)
    keep_bm25_runs(runs, judge, tmp_path)
    assert set(runs) == {"test", "dev"} == {place.name for place in tmp_path.iterdir()}
    for name, run in runs.items():
        kept = load_run(tmp_path / name)
        for part in ("query_rows", "offsets", "passage_rows", "scores"):
            np.testing.assert_array_equal(getattr(kept, part), getattr(run, part))


def test_bm25s_lists_of_training_queries_are_kept_once(world, tmp_path):
    collection, _, cache = world
    judge, place = Judge(choose_splits(collection), parse_measures("RR@10"), cache), tmp_path / "bm25"
    keep_bm25_lists(judge, place, queries=7, depth=20)
    run = load_run(place)
    assert len(run) == 7
    assert set(run.query_rows) <= set(judge.data.train.query_rows)
    whole = bm25_run(collection, run.query_rows, 100, cache)
    np.testing.assert_array_equal(run.passage_rows, whole.passage_rows)
    made = (place / "manifest.json").stat().st_mtime_ns
    keep_bm25_lists(judge, place, queries=7, depth=20)
    assert (place / "manifest.json").stat().st_mtime_ns == made
    keep_bm25_lists(judge, place, queries=1000, depth=20)
    assert len(load_run(place)) == len(judge.data.train)
    keep_bm25_lists(judge, tmp_path / "none", queries=0, depth=20)
    assert not (tmp_path / "none").exists()
