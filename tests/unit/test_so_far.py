"""The states of an experiment that is not finished are those that it will have: of every recipe."""

from collections import Counter

import pytest

import hardneg as hn
from hardneg.api.audit import _runs_of
from hardneg.experiment.folder import read_settings
from hardneg.experiment.layout import Layout
from hardneg.experiment.metrics import Metrics
from hardneg.experiment.so_far import _Reader, states_so_far
from hardneg.experiment.states import read_states
from hardneg.recipes.ar2.settings import Ar2
from hardneg.training.stage import RETRIEVER
from worlds.tiny_world import COMMON, SETTINGS, one_thread  # noqa: F401

TELE = {name: value for name, value in SETTINGS.items() if name not in COMMON}
GAME = {
    "iterations": 2,
    "retriever_steps": 4,
    "ranker_steps": 3,
    "first_ranker_steps": 4,
    "negatives_per_query": 3,
    "ranker_queries_per_step": 6,
    "first_ranker_queries_per_step": 6,
    "rerank_depth": 8,
    "warmup": 1,
}
CASES = {
    "ance-tele": (
        hn.train_ance_tele,
        TELE | {"episodes": 2, "measure_every": 2, "keep": "best", "query_length": 8},
    ),
    "warmup": (
        hn.train_warmup,
        {"mixtures": ["in_batch"], "epochs": 0.5, "measure_every": 2, "examine": "judged"},
    ),
    "adore": (
        hn.train_adore,
        {"steps": 4, "cut": 10, "measure_every": 2, "index": "pq", "subvectors": 4, "bits": 4},
    ),
    "ance": (hn.train_ance, {"refresh_every": 4, "refreshes": 2, "measure_every": 2}),
    "ar2": (hn.train_ar2, GAME | {"query_length": 8}),
    "ranker": (
        hn.train_ranker,
        {"max_length": 24, "negatives_per_query": 3, "steps": 6, "count": 10, "rerank": 8, "measure_every": 2},
    ),
}
FIELDS = ("name", "kind", "of", "episode", "step", "runs", "asked", "pool")


def told(records):
    """The records by name; which state is kept as the final one is not known until the end."""
    kept = any(one.name == "last" for one in records)
    shown = [one for one in records if one.kind != "bm25" and not (kept and one.name == "final")]
    return {one.name: {name: getattr(one, name) for name in FIELDS} for one in shown}


@pytest.mark.parametrize("mode", ["sync", "async-fixed"])
def test_an_iteration_so_far_names_the_candidates_that_its_steps_drew_from(tmp_path, mode):
    game = Ar2(iterations=5, retriever_steps=3, ranker_steps=2, mode=mode)
    states = _Reader(Layout(tmp_path), game.course, game.model_dump(), [])
    used = [game.version_of(RETRIEVER, 3 * k) for k in range(5)]
    assert [states._candidates_of(k + 1) for k in range(5)] == used
    assert used == ([0, 1, 2, 3, 4] if mode == "sync" else [0, 0, 1, 2, 3])


@pytest.mark.parametrize("case", CASES)
def test_states_so_far_are_those_of_the_finished_experiment(world, tmp_path, case):
    train, settings = CASES[case]
    out = tmp_path / "exp"
    train(world.collection, world.model, out, device="cpu", **COMMON | {"measures": "RR@10 R@5"} | settings)
    finished = read_states(out)
    layout = Layout(out)
    settings, rows = read_settings(out), Metrics(layout.metrics).read()
    found = states_so_far(layout, settings, rows)
    assert told(found) == told(finished)
    assert settings.pop("course")  # which experiments of earlier versions lack
    assert states_so_far(layout, settings, rows) == found
    searched = Counter(one.runs for one in finished)  # the final state may share the runs of the state that it is
    of_training = [
        one.name
        for one in finished
        if one.kind not in ("bm25", "indexed", "reranked") and not (one.name == "final" and searched[one.runs] > 1)
    ]
    assert [one.name for one in found if one.of is None] == of_training
    listed = [runs for _, runs in _runs_of(layout)]
    layout.states.unlink()
    assert [runs for _, runs in _runs_of(layout)] == [*dict.fromkeys(listed)]  # what an audit looks at meanwhile
