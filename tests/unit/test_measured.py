"""What was measured of states: the choice among them, and the one that becomes the final state."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hardneg.data.collection import Collection
from hardneg.data.training_data import choose_splits
from hardneg.diagnostics.choice import choose
from hardneg.diagnostics.judge import Judge
from hardneg.diagnostics.measured import Measured, with_figures, with_final
from hardneg.diagnostics.results import EvaluationPlan, choose_state
from hardneg.diagnostics.summary import dev_values, ranks_of, summarize
from hardneg.errors import InputError
from hardneg.evaluation.measures import Evaluation, parse_measures
from hardneg.experiment.layout import Layout
from hardneg.experiment.states import StateRecord
from worlds.tiny_records import run_of

RR = parse_measures("RR@10")
PAGE = Path(__file__).resolve().parents[2] / "docs/ar2.md"


def scored(value):
    """An evaluation of one query."""
    return Evaluation(np.zeros(1, np.int32), {"RR@10": np.array([value])}, 0, 0)


def measured(name, kind="episode", *, dev=None, of=None, place=None, **figures):
    evaluations = {} if dev is None else {"dev": scored(dev)}
    return Measured(StateRecord(name, kind, of=of), {"dev": object()}, place, evaluations=evaluations, **figures)


def seen_of(*states):
    return {one.record.name: one for one in states}


@pytest.fixture
def seen(tmp_path):
    """BM25, the model as it came, one state on the way, and the last one; of it what an index retrieves."""
    return seen_of(
        measured("bm25", "bm25", dev=0.9),
        measured("untrained", "untrained", dev=0.2, ranks=np.array([0.5])),
        measured("step-2", "passing", dev=0.6, place=tmp_path / "2"),
        measured("gone", "passing", dev=0.8),
        measured("last", "last", dev=0.5, place=tmp_path / "last", ranks=np.array([1.0]), informative=0.25),
        measured("last/flat", "indexed", dev=0.4, of="last", ranks=np.array([0.1])),
    )


def test_what_can_be_kept_is_measured_as_its_index_retrieves_it(seen):
    assert dev_values(seen, "last", RR[0]) == {"untrained": 0.2, "step-2": 0.6, "last": 0.4}
    assert dev_values(seen_of(measured("untrained"), measured("last")), "last", RR[0]) == {}


def test_where_settings_changed_the_model_what_the_index_retrieves_of_the_start_is_compared(seen):
    started = measured("untrained-as-trained", "untrained-as-trained", dev=0.1)
    through = measured("untrained-as-trained/flat", "indexed", dev=0.05, of="untrained-as-trained")
    exact = dev_values({**seen, **seen_of(started)}, "last", RR[0])
    assert exact == {"untrained": 0.2, "step-2": 0.6, "last": 0.4, "untrained-as-trained": 0.1}
    dev = dev_values({**seen, **seen_of(started, through)}, "last", RR[0])
    assert dev == {"step-2": 0.6, "last": 0.4, "untrained-as-trained": 0.05}
    better = replace(seen["last/flat"], evaluations={"dev": scored(0.15)})  # than the start, not than as it came
    places = dict.fromkeys(dev)
    dev = dev_values({**seen, **seen_of(started, through, better)}, "last", RR[0])
    assert choose("last", RR[0], dev, places).beats_untrained


@pytest.mark.parametrize(
    ("came", "began", "trained", "kept"),
    [
        (0.02, 0.09, 0.05, "untrained-as-trained"),
        (0.09, 0.02, 0.05, "untrained"),
        (0.09, 0.09, 0.05, "untrained"),
        (0.02, 0.03, 0.05, "step-2"),
    ],
)
def test_training_is_compared_with_the_better_one_of_the_model_as_it_came_and_as_trained_on(
    tmp_path, came, began, trained, kept
):
    from hardneg.diagnostics.kept import sentence, warning
    from hardneg.storage.artifacts import publish

    with publish(tmp_path / "2", "model", inputs={"step": "2"}):
        pass
    states = seen_of(
        measured("untrained", "untrained", dev=came),
        measured("untrained-as-trained", "untrained-as-trained", dev=began),
        measured("step-2", "passing", dev=trained, place=tmp_path / "2"),
        measured("last", "last", dev=0.04, place=tmp_path / "2"),
    )
    choice = choose_state(states, "last", EvaluationPlan(RR, depth=5, seed=0, keep="best"))
    assert choice.dev == {"untrained": came, "untrained-as-trained": began, "step-2": trained, "last": 0.04}
    assert (choice.state, choice.beats_untrained) == (kept, kept == "step-2")
    found = {"kept": choice.as_json()}
    assert ("NOTHING BEAT THE UNTRAINED MODEL" in str(warning(found))) == (kept != "step-2")
    assert (f"untrained-as-trained {began:.4f}" in sentence(found["kept"])) == (kept != "untrained-as-trained")
    last = choose_state(states, "last", EvaluationPlan(RR, depth=5, seed=0, keep="last"))
    assert last.beats_untrained == (max(came, began) < 0.04)
    if kept == "untrained-as-trained":
        loud = warning({"kept": last.as_json()})
        assert "NOT BETTER THAN THE UNTRAINED ONE on dev (RR@10 0.0400, untrained-as-trained 0.0900)" in loud


def test_the_state_after_the_last_step_is_called_last_in_the_choice(seen):
    final = replace(seen.pop("last"), record=StateRecord("final", "last"))
    assert list(dev_values({**seen, "final": final}, "final", RR[0])) == ["untrained", "step-2", "last"]


def test_without_dev_the_last_state_is_kept(tmp_path):
    from hardneg.storage.artifacts import publish

    with publish(tmp_path / "last", "model", inputs={"step": "7"}):
        pass
    states = seen_of(measured("untrained"), measured("final", place=tmp_path / "last"))
    choice = choose_state(states, "final", EvaluationPlan(RR, depth=5, seed=0))
    assert (choice.state, choice.step, choice.measure) == ("last", 7, None)


def test_the_last_state_is_renamed_with_what_an_index_retrieves_of_it(seen, tmp_path):
    found = with_final(seen, "last", "last", None, Layout(tmp_path))
    assert list(found) == ["bm25", "untrained", "step-2", "gone", "final", "final/flat"]
    kinds = {name: (one.record.kind, one.record.of, one.record.model) for name, one in found.items()}
    assert kinds["final"] == ("final", None, "model")
    assert kinds["final/flat"] == ("indexed", "final", "model")
    assert found["final"].informative == 0.25
    assert list(ranks_of(found)) == ["untrained", "final"]


def test_another_state_also_stays_under_its_own_name(seen, tmp_path):
    again = measured("final", "final", dev=0.7)
    found = with_final(seen, "last", "step-2", again, Layout(tmp_path))
    assert list(found) == [*seen, "final"]
    assert found["final"].evaluations["dev"].means == {"RR@10": 0.7}
    assert found["step-2"].evaluations["dev"].means == {"RR@10": 0.6}
    record = found["final"].record
    assert (record.name, record.kind, record.asked) == ("final", "final", "judged")
    assert (record.model, record.runs) == ("model", Layout(tmp_path).relative(Layout(tmp_path).runs_of("final")))
    assert list(ranks_of(found)) == ["untrained", "last"]


def test_of_another_state_only_what_a_kept_ranker_reranked_is_repeated_as_final(tmp_path):
    def reranked(name, of, ranker=None):
        return replace(measured(name), record=StateRecord(name, "reranked", of=of, ranker=ranker))

    states = seen_of(
        measured("untrained", "untrained", dev=0.6),
        reranked("untrained/ranker-1", "untrained"),
        measured("iteration-1", dev=0.5, place=tmp_path / "1"),
        reranked("iteration-1/ranker", "iteration-1"),
        measured("last", "last", dev=0.4, place=tmp_path / "last"),
        reranked("untrained/ranker", "untrained", "ranker"),
        reranked("last/ranker", "last", "ranker"),
    )
    for kept, more in (("untrained", ["final", "final/ranker"]), ("iteration-1", ["final"])):
        assert list(with_final(states, "last", kept, None, Layout(tmp_path))) == [*states, *more]


def rows_on_the_page():
    """state that is kept → (rows of the final state, rows of the last iteration), as docs/ar2.md has them."""
    table = PAGE.read_text("utf-8").partition("| state that is kept |")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    return {kept: [re.findall("`([^`]+)`", cell) for cell in others] for kept, *others in cells}


@pytest.mark.parametrize(
    ("kept", "chosen", "changed"),
    [
        ("the last iteration", "last", False),
        ("an earlier iteration k", "iteration-1", False),
        ("G⁰", "untrained", False),
        ("G⁰", "untrained-as-trained", True),
        ("the model as it came, changed by settings", "untrained", True),
    ],
)
def test_the_page_of_ar2_names_the_rows_of_the_state_that_is_kept(kept, chosen, changed, tmp_path):
    def reranked(of, by, ranker=None):
        return replace(measured(f"{of}/{by}"), record=StateRecord(f"{of}/{by}", "reranked", of=of, ranker=ranker))

    start = "untrained-as-trained" if changed else "untrained"
    for given in (False, True):
        first = None if given else "first-ranker"
        states = seen_of(
            measured("untrained", "untrained", dev=0.6),
            measured(start, start, dev=0.6),
            reranked(start, "first-ranker", first),
            measured("iteration-1", dev=0.5, place=tmp_path / "1"),
            reranked("iteration-1", "ranker"),
            reranked(start, "ranker-1"),
            reranked("last", "first-ranker", first),
            reranked(start, "ranker", "ranker"),
            reranked("last", "ranker", "ranker"),
            measured("last", "last", dev=0.4, place=tmp_path / "last"),
        )
        found = with_final(states, "last", chosen, None, Layout(tmp_path))
        final, last = rows_on_the_page()[kept]
        if given and kept == "G⁰":  # the page says so below the table
            final.remove("final/first-ranker")
        assert {name for name in found if name.startswith("final")} == set(final)
        assert {name for name in found if name.startswith("last")} == set(last)
        assert {f"{start}/first-ranker", f"{start}/ranker", "iteration-1/ranker"} <= set(found)


def test_a_state_that_is_kept_needs_no_second_look_at_its_negatives(seen, tmp_path):
    chosen = {**seen, "step-2": replace(seen["step-2"], informative=0.5)}
    found = with_final(chosen, "last", "step-2", measured("final"), Layout(tmp_path))
    assert found["final"].informative == 0.5


def test_all_that_is_scored_is_scored_once(monkeypatch):
    from hardneg.diagnostics import judge as module

    collection = Collection.from_lists(
        [("p0", "a"), ("p1", "b")], {"a": "1", "c": "3"}, {"train": {"a": ["p0"]}, "test": {"c": ["p1"]}}
    )
    judge, calls, score = Judge(choose_splits(collection, dev="none"), RR, None), [], module.evaluate_with_answers
    monkeypatch.setattr(
        module, "evaluate_with_answers", lambda *args, **named: calls.append(1) or score(*args, **named)
    )
    runs = {"train": run_of({0: [1, 0]}), "test": run_of({1: [0, 1]})}
    states = {
        name: with_figures(Measured(StateRecord(name, "passing"), runs), judge)
        for name in ("bm25", "untrained", "final")
    }
    results = summarize(states, seed=0)
    assert dev_values(states, "final", RR[0]) == {}
    assert results["test"]["final"] == {"RR@10": 0.5}
    assert results["forgetting"][0]["train_mrr_100"] == 0.5
    assert len(calls) == 3


def test_a_judge_needs_the_answers_that_its_measures_look_for():
    collection = Collection.from_lists([("p0", "a")], {"a": "1"}, {"train": {"a": ["p0"]}})
    with pytest.raises(InputError, match="NO_ANSWERS"):
        Judge(choose_splits(collection, dev="none", test="none"), parse_measures("Answer@5"), None)
