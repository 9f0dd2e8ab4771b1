"""The verdict on experiments side by side: only what was tested is called better."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from hardneg.evaluation.compare import compare_runs
from hardneg.evaluation.measures import Evaluation
from hardneg.experiment.layout import Layout
from hardneg.experiment.states import StateRecord
from hardneg.records import Qrels
from hardneg.report import side_by_side
from hardneg.report.make import Comparison
from hardneg.report.opened import Opened
from hardneg.report.side_by_side import (
    Several,
    overlaps_chart,
    overlaps_table,
    results_table,
    settings_table,
    verdict_of,
)
from hardneg.report.side_by_side import tests_table as paired_tests
from hardneg.report.table import NotRecorded, Table

QUERIES = 40
EACH = np.arange(QUERIES, dtype=np.int32)
JUDGED = Qrels(EACH, np.arange(QUERIES + 1), EACH, np.ones(QUERIES, np.int32))
STRICT = replace(JUDGED, grades=np.repeat(np.int32([0, 1]), QUERIES // 2))


def opened(place, values, collection):
    """An experiment whose final state has these values of RR@10 on test, over a collection of this digest."""
    found = Evaluation(np.arange(QUERIES, dtype=np.int32), {"RR@10": np.full(QUERIES, values)}, 0, 0)
    data = SimpleNamespace(collection=SimpleNamespace(digest=collection), judged={"test": JUDGED, "dev": JUDGED})
    one = Opened(Layout(place), data)
    one.kept["evaluations"] = {"final": {"test": found}}
    one.__dict__ |= {"states": [StateRecord("final", "final")], "settings": {}, "results": {"finished": True}}
    return one


def test_the_best_of_tested_experiments_is_named(tmp_path):
    several = Several([opened(tmp_path / "a", 0.25, "x"), opened(tmp_path / "b", 0.5, "x")])
    found = verdict_of(several)
    assert (found.kind, found.sentence) == ("better", "On test, b does best: RR@10 0.500 (a 0.250).")


def test_a_comparison_prints_as_one_line(tmp_path):
    several = Several([opened(tmp_path / "a", 0.25, "x"), opened(tmp_path / "b", 0.5, "x")])
    assert repr(Comparison(several, (), "hardneg diagnose a b")) == "Comparison of a and b: 0 figures"


def test_a_verdict_says_which_experiments_are_not_finished(tmp_path):
    whole, going = opened(tmp_path / "a", 0.25, "x"), opened(tmp_path / "b", 0.5, "x")
    going.__dict__["results"] = {}
    assert len(verdict_of(Several([whole, opened(tmp_path / "b", 0.5, "x")])).details) == 1
    [_, last] = verdict_of(Several([whole, going])).details
    assert last == "b is not finished: the state that it measured last stands for it."


def test_a_lead_of_the_start_is_not_credited_to_training(tmp_path):
    """Experiments from different models: the better final figure may have been there before."""
    one, other = opened(tmp_path / "a", 0.25, "x"), opened(tmp_path / "b", 0.5, "x")
    for each, model, start in ((one, "m", 0.125), (other, "n", 0.5)):
        queries = np.arange(QUERIES, dtype=np.int32)
        before = Evaluation(queries, {"RR@10": np.full(QUERIES, start)}, 0, 0)
        each.kept["evaluations"]["untrained"] = {"test": before}
        each.__dict__["settings"] = {"inputs": {"model": model}, "base_model": {"model": f"models/{model}"}}
    found = verdict_of(Several([one, other]))
    assert found.kind == "open"
    assert found.details[-1] == (
        "They start from different models: a began at 0.125 and gained +0.125; b began at 0.500 and gained +0.000."
    )
    rows = {row["setting"]: (row["a"], row["b"]) for row in settings_table(Several([one, other])).records()}
    assert rows["model"] == ("models/m", "models/n")
    other.settings["inputs"]["model"] = "m"
    assert verdict_of(Several([one, other])).kind == "better"


def test_what_settings_made_of_the_model_before_training_stands_beside_it(tmp_path):
    one, other = opened(tmp_path / "a", 0.25, "x"), opened(tmp_path / "b", 0.5, "x")
    values = {"untrained": 0.125, "untrained-as-trained": 0.375, "final": 0.25}
    one.results["test"] = {name: {"RR@10": value} for name, value in values.items()}
    other.results["test"] = {"final": {"RR@10": 0.5}}
    rows = results_table(Several([one, other])).records()
    assert [(row["experiment"], row["state"], row["RR@10"]) for row in rows] == [
        ("a", "untrained", 0.125),
        ("a", "untrained, as trained on", 0.375),
        ("a", "final", 0.25),
        ("b", "final", 0.5),
    ]


def test_settings_are_written_as_users_write_them(tmp_path):
    one, other = opened(tmp_path / "a", 0.25, "x"), opened(tmp_path / "b", 0.5, "x")
    given = {"in_batch": False, "distill": None, "mixtures": ["in_batch"]}
    one.__dict__["settings"], other.__dict__["settings"] = {"settings": given}, {"settings": {"in_batch": True}}
    rows = {row["setting"]: (row["a"], row["b"]) for row in settings_table(Several([one, other])).records()}
    assert rows["in_batch"] == ("false", "true")
    assert (rows["distill"], rows["mixtures"]) == (("none", "(has none)"), ('["in_batch"]', "(has none)"))


def test_a_verdict_says_which_experiments_kept_the_untrained_model(tmp_path):
    one, other = opened(tmp_path / "a", 0.25, "x"), opened(tmp_path / "b", 0.5, "x")
    other.results["kept"] = {"state": "untrained"}
    last = verdict_of(Several([one, other])).details[-1]
    assert last == "b kept the untrained model as it came, because no state of its training was better on dev."


KEPT = [  # the state that is kept, its value on test, and where training is said to have begun
    ("untrained", 0.25, "a began at 0.250 and gained +0.000"),
    ("untrained-as-trained", 0.375, "a began at 0.375 and gained +0.000"),
    ("step-20", 0.5, "a began at 0.375 and gained +0.125"),
]


@pytest.mark.parametrize(("state", "value", "said"), KEPT)
def test_training_begins_from_the_model_that_settings_changed(state, value, said, tmp_path):
    """An untrained model that is kept gained nothing, whichever of the two it is."""
    one, other = opened(tmp_path / "a", value, "x"), opened(tmp_path / "b", 0.75, "x")
    for name, start in (("untrained", 0.25), ("untrained-as-trained", 0.375)):
        one.kept["evaluations"][name] = {"test": Evaluation(EACH, {"RR@10": np.full(QUERIES, start)}, 0, 0)}
    one.results["kept"] = {"state": state}
    one.__dict__["settings"], other.__dict__["settings"] = {"inputs": {"model": "m"}}, {"inputs": {"model": "n"}}
    details = verdict_of(Several([one, other])).details
    assert details[-1] == f"They start from different models: {said}."
    changed = "a kept the untrained model with the settings of training, because" in " ".join(details)
    assert changed == (state == "untrained-as-trained")


def test_a_drawn_dev_is_compared_on_the_queries_of_the_smaller_draw(tmp_path):
    def with_dev(name, rows, values, most):
        one = opened(tmp_path / name, 0.5, "x")
        found = Evaluation(np.array(rows, np.int32), {"RR@10": np.array(values)}, 0, 0)
        one.kept["evaluations"] = {"final": {"dev": found}}
        one.__dict__ |= {"settings": {"splits": {"dev": "dev", "dev_queries": most}}, "results": {}}
        return one

    whole, some = with_dev("a", range(4), [1.0, 0.5, 0.25, 1.0], None), with_dev("b", [1, 3], [0.5, 1.0], 2)
    [row] = paired_tests(Several([whole, some])).records()
    assert (row["a - b"], row["low"], row["high"]) == (0.0, 0.0, 0.0), "of queries 1 and 3"
    names = {row["split"] for row in results_table(Several([whole, some])).records()}
    assert names == {"dev, all queries of dev", "dev, at most 2 queries of dev"}
    other = with_dev("c", [2, 5], [1.0, 0.5], 2)
    with pytest.raises(NotRecorded):
        paired_tests(Several([some, other]))


def test_devs_among_hits_of_bm25_are_compared_if_both_have_the_same_queries(tmp_path):
    def with_dev(name, rows, values):
        one = opened(tmp_path / name, 0.5, "x")
        one.kept["evaluations"] = {"final": {"dev": Evaluation(np.array(rows, np.int32), {"RR@10": values}, 0, 0)}}
        one.__dict__["settings"] = {"splits": {"dev": "dev"}, "result_settings": {"dev_passages": 20}}
        return one

    whole, same = with_dev("a", range(3), np.ones(3)), with_dev("b", range(3), np.zeros(3))
    assert [row["a - b"] for row in paired_tests(Several([whole, same])).records()] == [1.0]
    with pytest.raises(NotRecorded):  # fewer queries bring fewer passages, among which ranks are better
        paired_tests(Several([whole, with_dev("c", [0, 2], np.zeros(2))]))


def test_no_mean_is_told_where_tests_are_of_different_queries(tmp_path):
    def with_dev(name, rows):
        one = opened(tmp_path / name, 0.5, "x")
        found = Evaluation(np.array(rows, np.int32), {"RR@10": np.linspace(0, 1, len(rows))}, 0, 0)
        one.kept["evaluations"] = {"final": {"dev": found}}
        return one

    found = verdict_of(Several([with_dev("a", [0, 1]), with_dev("b", [0, 1, 2, 3]), with_dev("c", [2, 3])]))
    assert (found.kind, "different queries" in found.sentence) == ("open", True)


def test_one_seed_so_far_is_called_so(tmp_path):
    (tmp_path / "seed-42").mkdir()
    found = verdict_of(Several([opened(tmp_path / "seed-42", 0.25, "x")]))
    assert (found.kind, found.sentence) == ("open", "There is one seed so far: seed-42.")
    assert found.details == ("There is no other one yet to test it against.",)
    two = verdict_of(Several([opened(tmp_path / "seed-42", 0.25, "x"), opened(tmp_path / "seed-43", 0.5, "y")]))
    assert two.sentence == "2 experiments side by side."


def test_a_lead_that_may_be_chance_is_not_called_best(tmp_path):
    several = [opened(tmp_path / name, 0.25, "x") for name in "abc"]
    several[1].kept["evaluations"]["final"]["test"].values["RR@10"][0] = 1.0
    several[2].kept["evaluations"]["final"]["test"].values["RR@10"][:] = 0.125
    found = verdict_of(Several(several))
    assert found.kind == "unsure"
    said = "On test, b has the highest RR@10, 0.269 (a 0.250, c 0.125), but cannot be told apart from a."
    assert found.sentence == said
    many = [opened(tmp_path / name, 0.25, "x") for name in "abcd"]
    many[1].kept["evaluations"]["final"]["test"].values["RR@10"][0] = 1.0
    assert verdict_of(Several(many)).sentence.endswith("but cannot be told apart from a, c and d.")


def test_of_equal_ones_none_is_called_best(tmp_path):
    found = verdict_of(Several([opened(tmp_path / "a", 0.5, "x"), opened(tmp_path / "b", 0.5, "x")]))
    assert (found.kind, found.sentence) == ("unsure", "On test, none does best: RR@10 a 0.500, b 0.500.")


def with_measures(place, values):
    """An experiment whose final state has these values of each measure on test."""
    one = opened(place, 0.5, "x")
    found = Evaluation(np.arange(QUERIES, dtype=np.int32), values, 0, 0)
    one.kept["evaluations"] = {"final": {"test": found}}
    return one


def test_p_is_corrected_within_a_measure_as_compare_does(tmp_path):
    draw = np.random.default_rng(2)
    values = {name: draw.random(QUERIES) + at / 10 for at, name in enumerate("abc")}
    alone = Several([with_measures(tmp_path / name, {"RR@10": one}) for name, one in values.items()])
    more = {"R@100": np.ones(QUERIES), "nDCG@10": np.zeros(QUERIES)}
    beside = Several([with_measures(tmp_path / name, {"RR@10": one} | more) for name, one in values.items()])
    expected = [one.p_holm for one in compare_runs(list(values), list(values.values()), measure="RR@10", seed=0)]
    assert paired_tests(alone).column("p (Holm)") == expected
    assert paired_tests(beside).where(measure="RR@10").column("p (Holm)") == expected
    assert verdict_of(beside) == verdict_of(alone)


def test_a_p_that_is_small_before_the_correction_alone_is_told_twice(tmp_path):
    several = [opened(tmp_path / name, 0.25, "x") for name in "abc"]
    several[1].kept["evaluations"]["final"]["test"].values["RR@10"][:6] = 0.5
    found = verdict_of(Several(several))
    said = (
        "interval +0.013 to +0.069, p (Holm) = 0.094, 0.031 before it was corrected for all tests of this measure."
    )
    assert found.details[0].endswith(said)


def test_the_overlaps_of_two_pools_are_two_lines(tmp_path, monkeypatch):
    """One line for both pools jumped up and down at the step where the second pool began."""
    pools = Table(
        ("step", "overlap", "negatives"),
        ((0, 0.9, "episode 1"), (4, 0.3, "episode 1"), (4, 0.8, "episode 2"), (8, 0.2, "episode 2")),
    )
    steps = Table(("step", "overlap"), ((1, 0.5), (2, 0.25)))
    several = Several([opened(tmp_path / "a", 0.25, "x"), opened(tmp_path / "b", 0.5, "x")])
    tables = {one.path: table for one, table in zip(several.experiments, (pools, steps), strict=True)}
    monkeypatch.setattr(side_by_side, "overlap_by_step_table", lambda one: tables[one.path])
    found = overlaps_table(several)
    assert found.where(experiment="a").column("negatives") == pools.column("negatives")
    assert found.where(experiment="b").column("negatives") == [None, None]
    pytest.importorskip("altair")
    assert overlaps_chart(found).to_dict()["layer"][0]["encoding"]["detail"]["field"] == "negatives"
    tables[several.experiments[0].path] = steps
    assert overlaps_table(several).columns == ("experiment", "step", "overlap"), "steps alone"


def test_the_means_of_a_verdict_are_of_the_tested_queries(tmp_path):
    a, b = opened(tmp_path / "a", 0.5, "x"), opened(tmp_path / "b", 0.5, "x")
    a.kept["evaluations"]["final"]["test"].values["RR@10"][:20] = 0.25
    some = Evaluation(np.arange(20, dtype=np.int32), {"RR@10": np.full(20, 0.375)}, 0, 0)
    b.kept["evaluations"]["final"]["test"] = some
    assert a.kept["evaluations"]["final"]["test"].means["RR@10"] == 0.375, "over all 40 queries"
    a.kept["evaluations"]["final"]["test"].values["RR@10"][20:] = 1.0
    found = verdict_of(Several([a, b]))
    assert (found.kind, found.sentence) == ("better", "On test, b does best: RR@10 0.375 (a 0.250).")
    assert found.details[0].startswith("b is better than a: difference +0.125")


@pytest.mark.parametrize("other", [0.125, 1.0])
def test_an_experiment_over_another_collection_is_in_no_verdict(tmp_path, other):
    ours = [opened(tmp_path / "a", 0.25, "x"), opened(tmp_path / "b", 0.5, "x")]
    found = verdict_of(Several([*ours, opened(tmp_path / "c", other, "y")]))
    assert (found.kind, found.sentence) == ("better", "On test, b does best: RR@10 0.500 (a 0.250).")
    assert len(found.details) == 1


def judged_by(place, values, qrels, test):
    """An experiment that was tested on a split of this name, with these judgements."""
    one = opened(place, values, "x")
    one.data.judged["test"] = qrels
    one.__dict__ |= {"settings": {"splits": {"test": test}}, "results": {}}
    return one


def test_values_by_different_judgements_are_not_tested_against_each_other(tmp_path):
    """One collection and the same queries, but the second experiment has ``--test test.strict``."""
    one, other = judged_by(tmp_path / "a", 0.25, JUDGED, "test"), judged_by(tmp_path / "b", 0.5, STRICT, "strict")
    with pytest.raises(NotRecorded, match="same judgements"):
        paired_tests(Several([one, other]))
    assert verdict_of(Several([one, other])).sentence == "2 experiments side by side."
    names = {row["split"] for row in results_table(Several([one, other])).records()}
    assert names == {"test, all queries of test", "test, all queries of strict"}
    last = np.arange(QUERIES // 2, QUERIES, dtype=np.int32)  # of these queries both have the same judgements
    other.kept["evaluations"]["final"]["test"] = Evaluation(last, {"RR@10": np.full(len(last), 0.5)}, 0, 0)
    assert [row["a - b"] for row in paired_tests(Several([one, other])).records()] == [-0.25]


def test_the_order_of_judgements_and_the_name_of_their_split_do_not_matter(tmp_path):
    """A query with two relevant passages, whose judgements two splits have in another order."""
    two = [0, 2, *range(3, QUERIES + 2)]
    rows, grades = np.insert(EACH, 1, 7), np.ones(QUERIES + 1, np.int32)
    splits = [
        Qrels(EACH, np.array(two), rows[[*order, *range(2, QUERIES + 1)]], grades) for order in ((0, 1), (1, 0))
    ]
    several = [judged_by(tmp_path / name, 0.5, one, name) for name, one in zip("ab", splits, strict=True)]
    assert len(paired_tests(Several(several)).rows) == 1


def test_none_of_several_is_called_best_where_two_have_no_test(tmp_path):
    """Two pairs, each with judgements of its own: no test says which of all four does best."""
    ours = [judged_by(tmp_path / name, 0.25, JUDGED, "test") for name in "ab"]
    theirs = [judged_by(tmp_path / name, 1.0, STRICT, "strict") for name in "cd"]
    found = verdict_of(Several([*ours, *theirs]))
    said = "4 experiments side by side, which have different queries or judgements: see the tests."
    assert (found.kind, found.sentence) == ("open", said)
