"""Results: what is measured, compared, pooled, written and drawn at the end of an experiment."""

import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hardneg.data.collection import Collection
from hardneg.data.formats.trec import read_run
from hardneg.data.training_data import choose_splits
from hardneg.diagnostics.cards import card_metadata, model_card
from hardneg.diagnostics.choice import choose
from hardneg.diagnostics.curves import draw_learning_curve, learning_curve, smooth
from hardneg.diagnostics.forgetting import forgetting
from hardneg.diagnostics.judge import Judge, evaluation_depth
from hardneg.diagnostics.measured import Measured, with_figures
from hardneg.diagnostics.results import EvaluationPlan, draw_curve, is_measured, results_of, write_runs
from hardneg.diagnostics.seeds import pool_seeds, spread
from hardneg.diagnostics.summary import compare_states, ranks_of, summarize
from hardneg.evaluation.measures import Evaluation, parse_measures
from hardneg.evaluation.significance import holm
from hardneg.experiment.folder import Experiment
from hardneg.experiment.names import few_of_dev
from hardneg.experiment.states import StateRecord
from hardneg.report.verdict import verdict
from worlds.tiny_records import run_of

RR = parse_measures("RR@10 R@1")


@pytest.fixture
def data():
    """Four passages; training queries a, b; test queries c, d (rows in the order of their ids)."""
    passages = [(f"p{i}", f"text {i}") for i in range(4)]
    queries = {"a": "1", "b": "2", "c": "3", "d": "4"}
    qrels = {"train": {"a": ["p0"], "b": ["p1"]}, "test": {"c": ["p2"], "d": ["p3"]}}
    collection = Collection.from_lists(passages, queries, qrels)
    return choose_splits(collection, dev="none")


@pytest.fixture
def runs():
    first = {"train": run_of({0: [0, 1], 1: [0, 1]}), "test": run_of({2: [2, 0], 3: [0, 1]})}
    last = {"train": run_of({0: [1, 0], 1: [1, 0]}), "test": run_of({2: [0, 2], 3: [3, 1]})}
    return {"bm25": {"test": run_of({2: [0, 1], 3: [0, 3]})}, "untrained": first, "final": last}


@pytest.fixture
def seen(data, runs):
    return judged(data, runs)


def judged(data, runs):
    """Every state with the figures of its runs."""
    judge = Judge(data, RR, Path("unused"))
    return {
        name: with_figures(Measured(StateRecord(name, "passing"), found), judge) for name, found in runs.items()
    }


# ---------------------------------------------------------------- measuring


def test_judged_queries_are_searched_as_deep_as_the_measures_need():
    assert evaluation_depth(parse_measures("RR@10")) == 100
    assert evaluation_depth(parse_measures("RR@10 R@500")) == 500
    assert evaluation_depth(parse_measures("AP RR@10")) == 1000


def test_results_hold_every_state_the_tests_and_forgetting(seen):
    results = summarize(seen, seed=0)
    assert results["test"] == {
        "bm25": {"RR@10": 0.25, "R@1": 0.0},
        "untrained": {"RR@10": 0.5, "R@1": 0.5},
        "final": {"RR@10": 0.75, "R@1": 0.5},
    }
    assert "dev" not in results
    assert results["compared_on"] == "test"
    assert [(row["a"], row["b"], row["measure"]) for row in results["comparisons"]] == [
        ("final", "untrained", "RR@10"),
        ("final", "untrained", "R@1"),
        ("final", "bm25", "RR@10"),
        ("final", "bm25", "R@1"),
    ]
    assert results["comparisons"][0]["difference"] == 0.25
    assert results["comparisons"][2]["difference"] == 0.5
    json.dumps(results, allow_nan=False)


@pytest.mark.parametrize("asked", ["all", "judged"])
def test_the_page_names_every_entry_of_the_results(seen, asked):
    page = (
        (Path(__file__).parents[2] / "docs/reference/artefacts.md").read_text().partition("## `results.json`")[2]
    )
    seen = {
        name: replace(one, record=replace(one.record, asked=asked, index={"kind": "pq"}))
        for name, one in seen.items()
    }
    results = results_of(seen, choose("last", RR[0], {}, {"last": None}), EvaluationPlan(RR, depth=10, seed=0))
    assert results["index"] == {"kind": "pq"}
    assert ("informative" in results) == (asked == "all") != ("examined" in results)
    assert {name for name in results if f"`{name}`" not in page} == set()


def test_a_copy_of_the_untrained_model_is_not_tested_against_it():
    """Tests of a model against itself made the corrected p of the others twice as large."""
    values = {name: np.arange(12) / scale for name, scale in (("RR@10", 12), ("R@1", 24))}
    ours = Evaluation(np.arange(12, dtype=np.int32), values, 0, 0)
    other = replace(ours, values={name: one * 0.5 for name, one in values.items()})
    by_name = {"final": ours, "untrained": ours, "bm25": other}
    rows = compare_states(by_name, [("final", "untrained"), ("final", "bm25")], seed=0)
    assert [row["p_holm"] for row in rows[:2]] == [1.0, 1.0]
    assert [row["p_holm"] for row in rows[2:]] == [row["p"] for row in rows[2:]], "one test of each measure"
    changed = by_name | {"untrained": replace(ours, values=values | {"R@1": other.values["R@1"]})}
    rows = compare_states(changed, [("final", "untrained"), ("final", "bm25")], seed=0)
    for measure in values:
        of_it = [row for row in rows if row["measure"] == measure]
        assert [row["p_holm"] for row in of_it] == pytest.approx(holm([row["p"] for row in of_it]))


def test_another_measure_leaves_the_corrected_p_of_the_first():
    """``hardneg compare`` corrects within a measure, and so do the tests of an experiment."""
    draw = np.random.default_rng(4)
    known = {name: draw.random(30) + shift for name, shift in (("final", 0.2), ("untrained", 0.0), ("bm25", 0.1))}
    pairs = [("final", "untrained"), ("final", "bm25")]

    def corrected(*measures):
        rows = np.arange(30, dtype=np.int32)
        states = {name: Evaluation(rows, dict.fromkeys(measures, one), 0, 0) for name, one in known.items()}
        return [row["p_holm"] for row in compare_states(states, pairs, seed=0) if row["measure"] == "RR@10"]

    assert corrected("RR@10", "R@1", "R@5") == corrected("RR@10")


def test_a_query_is_forgotten_when_its_positive_fell(seen):
    # query a: rank 1 -> 2, forgotten; query b: rank 2 -> 1, learned
    row = {"episode": 1, "before": "untrained", "after": "final"}
    row |= {"forgotten": 0.5, "learned": 0.5, "train_mrr_100": 0.75}
    ranks = ranks_of(seen)
    assert list(ranks) == ["untrained", "final"]
    assert forgetting(ranks) == [row]
    assert forgetting({"final": ranks["final"]}) == []


def test_nothing_is_compared_where_nothing_judges(data, runs):
    blind = choose_splits(data.collection, dev="none", test="none")
    results = summarize(judged(blind, runs), seed=0)
    assert set(results) == {"forgetting", "pairwise_errors", "informative"}
    assert len(results["forgetting"]) == 1


def test_states_are_tested_query_by_query():
    rows = np.arange(4, dtype=np.int32)
    a = Evaluation(rows, {"RR@10": np.array([1.0, 1.0, 1.0, 1.0])}, 0, 0)
    b = Evaluation(rows, {"RR@10": np.array([0.5, 0.5, 0.5, 0.5])}, 0, 0)
    [row] = compare_states({"final": a, "bm25": b}, [("final", "bm25")], seed=0)
    assert row["difference"] == 0.5
    assert row["interval"] == [0.5, 0.5]
    assert row["p"] == row["p_holm"] == 2 / 16  # of 2^4 patterns of signs, two are as extreme


def test_p_is_corrected_within_a_measure():
    rows = np.arange(4, dtype=np.int32)
    values = {name: np.full(4, 1.0) for name in ("RR@10", "R@1")}
    a = Evaluation(rows, values, 0, 0)
    b = Evaluation(rows, {name: value / 2 for name, value in values.items()}, 0, 0)
    assert [row["p_holm"] for row in compare_states({"a": a, "b": b}, [("a", "b")], seed=0)] == [0.125, 0.125]


def test_an_experiment_is_measured_when_it_has_these_measures():
    done = {"test": {"final": {"RR@10": 0.5, "R@1": 0.5}}, "forgetting": []}
    assert is_measured(done, RR)
    assert not is_measured(None, RR)
    assert not is_measured(done, RR[:1])
    assert not is_measured(done, parse_measures("RR@10 R@1 AP"))
    assert is_measured({"forgetting": []}, RR)


# ---------------------------------------------------------------- several seeds


def test_spread_is_mean_and_sample_deviation():
    assert spread([0.25, 0.75]) == {"mean": 0.5, "std": pytest.approx(0.125**0.5), "values": [0.25, 0.75]}
    assert spread([0.25]) == {"mean": 0.25, "std": 0.0, "values": [0.25]}


def test_seeds_are_pooled_in_order_measure_by_measure():
    results = {seed: {"test": {"final": {"RR@10": value}}} for seed, value in ((43, 0.5), (42, 0.25))}
    pooled = {"seeds": [42, 43], "test": {"final": {"RR@10": spread([0.25, 0.5])}}, "forgetting": []}
    assert pool_seeds(results) == pooled


def test_what_fusing_gives_is_pooled_without_its_tests():
    def one(value):
        fused = {"method": "rrf", "rank_constant": 60, "test": {"final+bm25": {"RR@10": value}}}
        return {"test": {"final": {"RR@10": 0.5}}, "fused": {**fused, "comparisons": [{"p": 0.5}]}}

    pooled = {"method": "rrf", "rank_constant": 60, "test": {"final+bm25": {"RR@10": spread([0.25, 0.75])}}}
    assert pool_seeds({1: one(0.25), 2: one(0.75)})["fused"] == pooled
    assert "fused" not in pool_seeds({1: one(0.25), 2: {"test": {"final": {"RR@10": 0.5}}}})


def test_forgetting_is_pooled_between_states_that_all_seeds_went_through():
    def row(after, forgotten):
        return {
            "before": "untrained",
            "after": after,
            "forgotten": forgotten,
            "learned": 0.5,
            "train_mrr_100": 0.25,
        }

    results = {
        1: {"forgetting": [row("final", 0.25), row("refresh-1", 0.5)]},
        2: {"forgetting": [row("final", 0.75)]},
    }
    assert pool_seeds(results)["forgetting"] == [
        {
            "before": "untrained",
            "after": "final",
            "forgotten": spread([0.25, 0.75]),
            "learned": spread([0.5, 0.5]),
            "train_mrr_100": spread([0.25, 0.25]),
        }
    ]


# ---------------------------------------------------------------- for people


def test_runs_are_written_for_other_tools(data, seen, tmp_path):
    write_runs(tmp_path / "runs", {**seen, "episode-1": seen["final"]}, data.collection)
    names = sorted(path.name for path in (tmp_path / "runs").glob("*.trec.gz"))
    assert names == ["bm25.test.trec.gz", "final.test.trec.gz", "untrained.test.trec.gz"]
    collection = data.collection
    again = read_run(tmp_path / "runs/final.test.trec.gz", collection.query_ids, collection.passage_ids)
    assert again.passage_rows.tolist() == [0, 2, 3, 1]
    assert again.scores.tolist() == [9, 8, 9, 8]


def test_ids_with_blanks_cost_the_run_files_not_the_experiment(runs, tmp_path, caplog):
    passages = [(f"p {i}", f"text {i}") for i in range(4)]
    qrels = {"train": {"a": ["p 0"]}, "test": {"c": ["p 2"]}}
    collection = Collection.from_lists(passages, {"a": "1", "b": "2", "c": "3", "d": "4"}, qrels)
    write_runs(tmp_path / "runs", judged(choose_splits(collection, dev="none"), runs), collection)
    assert "BLANK_IN_ID" in caplog.text
    assert not list((tmp_path / "runs").glob("*"))


def test_a_card_does_not_say_that_untrained_weights_were_trained(data, seen):
    kept = {"state": "untrained", "step": 0}
    card = model_card("A retriever trained by X.", data, summarize(seen, seed=0) | {"kept": kept}, {"steps": 7})
    assert card.startswith("**These are the weights of the untrained model.**")
    assert "## Training\n" not in card


def test_a_card_says_that_dev_chose_what_it_measures(data, seen):
    results = summarize(seen, seed=0)
    of = {"untrained": 0.5, "step-2": 0.75, "last": 0.7}
    kept = {"keep": "best", "state": "step-2", "step": 2, "measure": "RR@10", "dev": 0.75, "of": of}
    said = "There is no test split: dev chose the best of 3 states and measures it, too"
    on_dev = {**results, "compared_on": "dev", "dev": results["test"], "kept": kept}
    del on_dev["test"]
    assert said in model_card("A retriever.", data, on_dev, {})
    assert said not in model_card("A retriever.", data, results | {"kept": kept}, {})
    assert said not in model_card("A retriever.", data, on_dev | {"kept": kept | {"keep": "last"}}, {})


def test_a_model_card_has_data_results_and_settings(data, seen):
    results = summarize(seen, seed=0)
    card = model_card("A retriever.", data, results, {"steps": 7, "dim": None, "towers": "tied"})
    lines = card.splitlines()
    assert lines[0] == "A retriever."
    assert f"2 queries over 4 passages (collection `{data.collection.digest[:12]}`)" in card
    assert lines[lines.index("## Results on test") + 2 :][:5] == [
        "|  | RR@10 | R@1 |",
        "| --- | --- | --- |",
        "| bm25 | 0.2500 | 0.0000 |",
        "| untrained | 0.5000 | 0.5000 |",
        "| final | 0.7500 | 0.5000 |",
    ]
    assert lines[-4:] == ["```toml", "steps = 7", 'towers = "tied"', "```"]


def test_the_head_of_a_card_says_what_hubs_read(data, seen):
    results = summarize(seen, seed=0)
    head = card_metadata(data, results, "someone/a-model")
    assert head["base_model"] == "someone/a-model"
    assert head["model-index"][0]["name"] == "a-model trained with hardneg"
    (found,) = head["model-index"][0]["results"]
    assert found["dataset"]["split"] == "test"
    assert [(m["type"], m["value"]) for m in found["metrics"]] == [("RR@10", 0.75), ("R@1", 0.5)]
    without = card_metadata(data, results, None)
    assert "base_model" not in without
    assert without["model-index"][0]["name"] == "model trained with hardneg"


def metrics(*episodes):
    """Logged steps: for each episode, its losses."""
    return [
        {"episode": episode, "step": step, "model": "retriever", "loss": loss}
        for episode, losses in enumerate(episodes, 1)
        for step, loss in enumerate(losses, 1)
    ]


def test_steps_count_on_from_episode_to_episode():
    curve = learning_curve(metrics([3.0, 2.0], [2.5, 2.0, 1.0]), {})
    assert curve.steps.tolist() == [1, 2, 3, 4, 5]
    assert curve.losses.tolist() == [3.0, 2.0, 2.5, 2.0, 1.0]
    assert curve.borders == (0, 2, 5)
    assert curve.episodes == (1, 2)


def test_steps_that_no_later_episode_builds_on_are_left_out():
    curve = learning_curve(metrics([3.0, 2.0, 9.0, 9.0], [1.0]), {1: 2})
    assert curve.losses.tolist() == [3.0, 2.0, 1.0]
    assert curve.borders == (0, 2, 3)


def test_an_experiment_without_steps_has_an_empty_curve():
    curve = learning_curve([], {})
    assert curve.borders == (0,)
    assert len(curve.steps) == 0


@pytest.mark.parametrize("width", [1, 2, 3, 10])
def test_smoothing_is_a_mean_over_a_window(width):
    values = np.random.default_rng(0).random(7)
    slow = [np.mean([values[j] for j in range(7) if i - width // 2 <= j < i + (width + 1) // 2]) for i in range(7)]
    assert smooth(values, width) == pytest.approx(slow)


def png_size(path):
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", data[16:24])


@pytest.mark.parametrize(
    ("lines", "baseline"),
    [
        ([[(0, 0.4), (2, 0.5), (5, 0.6)]], ("BM25", 0.45)),
        ([[(0, 0.4), (2, 0.5)], [(2, 0.4), (5, 0.6)]], None),
        ([[(0, 0.0), (2, 0.0), (5, 0.0)]], None),
        ([[]], None),
    ],
)
def test_a_curve_is_a_picture(tmp_path, lines, baseline):
    curve = learning_curve(metrics([3.0, 2.0], [2.5, 2.0, 1.0]), {})
    draw_learning_curve(tmp_path / "c.png", curve, lines, label="dev RR@10", baseline=baseline)
    assert png_size(tmp_path / "c.png") == (1350, 675)
    again = tmp_path / "again.png"
    draw_learning_curve(again, curve, lines, label="dev RR@10", baseline=baseline)
    assert again.read_bytes() == (tmp_path / "c.png").read_bytes()


def test_the_curve_shows_the_measure_of_every_state_at_its_step(tmp_path, monkeypatch):
    from hardneg.diagnostics import results as module
    from hardneg.storage.artifacts import publish

    experiment = Experiment(tmp_path, tmp_path / "cache")
    experiment.metrics.append(metrics([3.0, 2.0, 9.0], [2.5, 2.0]))
    with publish(experiment / "episodes/1/model", "model", inputs={"step": "2"}):
        pass
    drawn = {}
    monkeypatch.setattr(module, "draw_learning_curve", lambda *args, **named: drawn.update(args=args, **named))
    found = {
        "bm25": {"RR@10": 0.3},
        "untrained": {"RR@10": 0.4},
        "episode-1": {"RR@10": 0.5},
        "final": {"RR@10": 0.6},
    }
    records = {
        "bm25": StateRecord("bm25", "bm25"),
        "untrained": StateRecord("untrained", "untrained"),
        "episode-1": StateRecord("episode-1", "episode", episode=1, step=2),
        "final": StateRecord("final", "final", episode=2, step=2),
    }
    draw_curve(experiment, {"test": found}, RR[0], records)
    path, curve, lines = drawn["args"]
    assert path == tmp_path / "learning_curve.png"
    assert curve.borders == (0, 2, 4)
    assert lines == [[(0, 0.4), (2, 0.5), (4, 0.6)]]
    assert (drawn["label"], drawn["baseline"]) == ("test RR@10", ("BM25", 0.3))
    draw_curve(experiment, {"test": found}, RR[0], records, restarts=True)
    assert drawn["args"][2] == [[(0, 0.4), (2, 0.5)], [(2, 0.4), (4, 0.6)]]


def test_states_of_one_long_run_stand_at_their_steps(tmp_path, monkeypatch):
    from hardneg.diagnostics import results as module

    experiment, drawn = Experiment(tmp_path, tmp_path / "cache"), {}
    experiment.metrics.append(metrics([3.0, 2.0, 1.0]))
    monkeypatch.setattr(module, "draw_learning_curve", lambda *args, **named: drawn.update(args=args))
    found = {state: {"RR@10": 0.5} for state in ("bm25", "untrained", "refresh-1", "final")}
    steps = {"bm25": 0, "untrained": 0, "refresh-1": 2, "final": 3}
    records = {name: StateRecord(name, "version", episode=1, step=step) for name, step in steps.items()}
    draw_curve(experiment, {"test": found}, RR[0], records)
    assert drawn["args"][2] == [[(0, 0.5), (2, 0.5), (3, 0.5)]]


def test_over_seeds_the_verdict_says_among_what_dev_was_judged():
    def one(value):
        states = {"final": {"RR@10": value}, "untrained": {"RR@10": 0.2}, "bm25": {"RR@10": 0.5}}
        return {"dev": states, "dev_among": {"first": 20, "passages": 900, "of": 5000}}

    pooled = pool_seeds({1: one(0.6), 2: one(0.8)})
    assert pooled["dev_among"] == {"first": 20, "passages": 900, "of": 5000}
    said = verdict(pooled, dev_passages=few_of_dev(pooled, None))
    assert "dev (among BM25's first 20) RR@10" in said.sentence
    assert "BM25 0.5" not in said.sentence
    assert "figures are too high" in said.advice[0]
