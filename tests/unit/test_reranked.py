"""Measures of re-ranking: by hand, published once, and compared with the run as it is."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from calls import uncalled
from hardneg.data.collection import Collection
from hardneg.data.training_data import choose_splits
from hardneg.diagnostics.judge import Judge
from hardneg.diagnostics.measured import Measured, with_final
from hardneg.diagnostics.reranked import AS_IT_IS, RERANKED, Grades, Reranker, gains, ranking_gains
from hardneg.diagnostics.summary import dev_values
from hardneg.evaluation.measures import parse_measures
from hardneg.experiment.layout import Layout
from hardneg.experiment.states import StateRecord, read_states, states_text
from hardneg.search.runs import load_run
from worlds.tiny_records import run_of

DEV = StateRecord("bm25", "bm25")
PIPELINE = StateRecord("bm25+ranker", "reranked", of="bm25", ranker="model")


class Table:
    """A scorer that reads scores [queries, passages]."""

    def __init__(self, scores):
        self.scores = np.asarray(scores, np.float32)

    def score(self, query_rows, passage_rows, *, progress):
        return self.scores[query_rows, passage_rows]


@pytest.fixture
def judge(tmp_path):
    """Three dev queries: p1 is relevant to the first, p0 and (more so) p2 to the second, p3 to the third."""
    judged = {"a": {"p1": 1}, "b": {"p0": 1, "p2": 2}, "c": {"p3": 1}}
    qrels = {"train": {"d": {"p4": 1}}, "dev": judged}
    passages = [(f"p{i}", "", f"text {i}") for i in range(5)]
    queries = {name: f"query {name}" for name in "abcd"}
    collection = Collection.from_lists(passages, queries, qrels, to=tmp_path / "collection")
    data = choose_splits(collection)
    return Judge(data, parse_measures("RR@10 Success@1"), tmp_path / "cache")


RUN = run_of([[0, 1, 3], [2, 4, 0], [4, 1, 3]])
SCORES = [[1, 3, 9, 2, 0], [5, 0, 1, 0, 7], [0, 4, 0, 9, 1]]  # the first two of each: 1 0 | 4 2 | 1 4


def reranked_state(record, runs, reranker, judge):
    """A state whose runs are those of another one, re-ranked."""
    found = {split: reranker.run(run, None, title="") for split, run in runs.items()}
    return Measured(record, found, evaluations=judge.evaluate(found))


def test_by_hand(judge):
    before = Measured(DEV, {"dev": RUN}, evaluations=judge.evaluate({"dev": RUN}))
    after = reranked_state(PIPELINE, before.runs, Reranker(Table(SCORES), "m", 2), judge)
    assert after.runs["dev"].passage_rows.tolist() == [1, 0, 3, 4, 2, 0, 1, 4, 3]
    (split, gain), *_ = gains(before, after, judge, 2).items()
    assert split == "dev"
    assert gain.before.of("RR@10") == pytest.approx([1 / 2, 1, 1 / 3])
    assert gain.after.of("RR@10") == pytest.approx([1, 1 / 2, 1 / 3])
    assert gain.of("RR@10") == pytest.approx([1 / 2, -1 / 2, 0])
    assert gain.best.of("RR@10") == pytest.approx([1, 1, 1 / 3])
    found = gain.as_json()
    assert (found["k"], found["gained"], found["lost"]) == (
        2,
        {"RR@10": 1, "Success@1": 1},
        {"RR@10": 1, "Success@1": 1},
    )
    assert found[AS_IT_IS] == found[RERANKED] == pytest.approx({"RR@10": 11 / 18, "Success@1": 1 / 3})
    assert found["best"] == pytest.approx({"RR@10": 7 / 9, "Success@1": 2 / 3})
    tests = gain.tests(seed=0)
    assert [(row["a"], row["b"], row["measure"]) for row in tests] == [
        (RERANKED, AS_IT_IS, "RR@10"),
        (RERANKED, AS_IT_IS, "Success@1"),
    ]
    assert tests[0]["difference"] == pytest.approx(0)
    assert 0 < tests[0]["p"] <= tests[0]["p_holm"] <= 1


def test_best_orders_all_hits_that_were_reranked(judge, tmp_path):
    """A positive below the judged depth is within what is re-ranked, so ``best`` is not below ``reranked``."""
    run = replace(RUN, collection=judge.data.collection.digest)
    before = Measured(DEV, {"dev": run.cut(2)}, evaluations=judge.evaluate({"dev": run.cut(2)}))
    layout, runs = Layout(tmp_path), tmp_path / "runs-of-final"
    Reranker(Grades(judge.data.judged["dev"]), "m", 3).run(run, runs / "dev", depth=2)
    found = {"dev": load_run(runs / "dev").cut(2)}
    record = replace(PIPELINE, name="final", runs=layout.relative(runs))
    after = Measured(record, found, evaluations=judge.evaluate(found))
    gain = ranking_gains({"bm25": before, "final": after}, judge, 3, layout)["reranked"]["dev"]
    assert gain["best"] == gain["reranked"] == {"RR@10": 1, "Success@1": 1}
    lost = ranking_gains({"bm25": before, "final": replace(after, record=PIPELINE)}, judge, 3, layout)
    assert lost["reranked"]["dev"]["best"]["RR@10"] == pytest.approx(2 / 3)  # the runs are gone


def test_a_run_is_scored_once(judge, tmp_path):
    run = replace(RUN, collection=judge.data.collection.digest)
    ranker = Reranker(Table(SCORES), "m", 2)
    first = ranker.run(run, tmp_path / "dev")
    deeper = partial(Reranker(ranker.scorer, "m", 3).run, run, tmp_path / "dev")
    with uncalled(Table, "score", control=deeper):
        again = Reranker(Table(SCORES), "m", 2).run(run, tmp_path / "dev")
    for name in ("query_rows", "offsets", "passage_rows", "scores"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    other = np.asarray(SCORES) * [1, 2, 3, 4, 5]
    changed = [
        (Reranker(Table(other), "another model", 2), run),
        (Reranker(Table(other), "m", 3), run),
        (Reranker(Table(other), "m", 2), replace(run, scores=run.scores[::-1].copy())),
    ]
    for reranker, given in changed:
        ranker.run(run, tmp_path / "dev")
        found = reranker.run(given, tmp_path / "dev")
        assert np.array_equal(found.scores, reranker.run(given).scores)


def test_grades_score_what_is_judged(judge):
    grades = Grades(judge.data.judged["dev"])
    rows = np.array([0, 0, 1, 1, 2], np.int32), np.array([1, 0, 2, 0, 4], np.int32)
    assert grades.score(*rows).tolist() == [1, 0, 2, 1, 0]
    none = Grades(judge.data.judged["dev"].select(np.zeros(0, np.int64)))
    assert none.score(*rows).tolist() == [0, 0, 0, 0, 0]


def test_a_reranked_state_is_renamed_with_its_own_and_chooses_nothing(judge, tmp_path):
    evaluations = judge.evaluate({"dev": RUN})
    last = Measured(StateRecord("last", "last"), {"dev": RUN}, tmp_path / "last", evaluations=evaluations)
    record = replace(PIPELINE, name="last+ranker", of="last")
    better = reranked_state(record, last.runs, Reranker(Grades(judge.data.judged["dev"]), "m", 3), judge)
    seen = {"last": last, "last+ranker": better}
    measure = judge.measures[0]
    assert dev_values(seen, "last", measure) == {"last": last.evaluations["dev"].means["RR@10"]}
    found = with_final(seen, "last", "last", None, Layout(tmp_path))
    assert list(found) == ["final", "final+ranker"]
    assert (found["final+ranker"].record.kind, found["final+ranker"].record.of) == ("reranked", "final")


def test_records_of_before_there_were_rankers_are_read(tmp_path):
    (tmp_path / "states.jsonl").write_bytes(states_text([PIPELINE]).replace(b', "ranker": "model"', b""))
    assert read_states(tmp_path) == [replace(PIPELINE, ranker=None)]
    (tmp_path / "states.jsonl").write_bytes(states_text([PIPELINE]))
    assert read_states(tmp_path) == [PIPELINE]
