"""The report of an experiment: what it says, what it escapes, and what it does without parts of the folder."""

import csv
import functools
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

import hardneg as hn
from hardneg.api import diagnose as diagnosing
from hardneg.api.audit import Sampling
from hardneg.api.diagnose import compare_opened, opened_at, report_again, report_seeds, report_training
from hardneg.callers import command_line
from hardneg.data.collection import Collection
from hardneg.data.judgements import LABELS, Judgements
from hardneg.data.training_data import choose_splits
from hardneg.diagnostics.kept import warning
from hardneg.diagnostics.seeds import pool_seeds
from hardneg.errors import HardnegError, InputError, SettingsError
from hardneg.evaluation.measures import first_relevant_rank
from hardneg.experiment.course import Course, course_of
from hardneg.experiment.folder import write_settings
from hardneg.experiment.layout import Layout
from hardneg.experiment.provenance import begun_by, remember_collection
from hardneg.experiment.states import StateRecord
from hardneg.hidden import visible
from hardneg.negatives.candidates import candidates
from hardneg.negatives.labels import answers_of
from hardneg.negatives.pool import ENTRY_ARRAYS, SOURCES, load_pool, matches, save_pool
from hardneg.report import explorer, facts_queries, facts_results, facts_time, page, pictures, scripts, shapes
from hardneg.report.charts import borders, space_chart, trajectories_chart
from hardneg.report.drawing import Drawn, draw
from hardneg.report.explorer import explorer_data
from hardneg.report.facts_audit import missing_sentence
from hardneg.report.figures import FIGURES, SECTIONS
from hardneg.report.lists import mined_pool, mined_run, part_of, without_positives
from hardneg.report.make import about, make, write
from hardneg.report.measured import training_ranks
from hardneg.report.opened import Opened
from hardneg.report.refreshed import REFRESHED
from hardneg.report.shapes import grouped, in_time, kind_of, lines, short
from hardneg.report.table import NotMeant, NotRecorded, Table
from hardneg.report.verdict import AUDIT, MINE, MINE_FIRST, verdict
from hardneg.search.runs import load_run, save_run
from hardneg.storage.artifacts import read_manifest
from hardneg.storage.lease import lease
from worlds.tiny_records import positives_of, run_of
from worlds.tiny_world import SETTINGS


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    """A finished experiment of four episodes, measured on the way too."""
    out = tmp_path_factory.mktemp("report") / "tele"
    settings = SETTINGS | {"store_dtype": "float32", "episodes": 4}
    hn.train_ance_tele(world.collection, world.model, out, device="cpu", measure_every=2, **settings)
    return out


@pytest.fixture
def copied(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "copy")


def drawn_of(folder, *names):
    """The opened experiment, and its figures by name: these, or all."""
    opened = opened_at(folder)
    return opened, {one.name: draw(one, opened) for one in FIGURES if not names or one.name in names}


@pytest.fixture(scope="module")
def finished(trained):
    """All figures of the finished experiment. Tests only read them."""
    return drawn_of(trained)


def comparison(difference, p, *, against="untrained"):
    return {
        "a": "final",
        "b": against,
        "measure": "RR@10",
        "difference": difference,
        "interval": [difference - 0.1, difference + 0.1],
        "p": p,
        "p_holm": p,
    }


def results(*rows, **more):
    means = {name: {"RR@10": 0.5} for name in ("final", "untrained", "bm25")}
    return {"test": means, "compared_on": "test", "comparisons": list(rows), **more}


# ---------------------------------------------------------------- the verdict


@pytest.mark.parametrize(
    ("difference", "p", "kind", "words"),
    [
        (0.1, 0.01, "better", "is better than the untrained model: RR@10 0.500 against 0.500"),
        (-0.1, 0.01, "worse", "is worse than the untrained model"),
        (0.1, 0.4, "unsure", "cannot be told apart from the untrained model"),
    ],
)
def test_the_verdict_is_a_sentence_with_interval_and_p(difference, p, kind, words):
    found = verdict(results(comparison(difference, p), comparison(-0.2, 0.001, against="bm25")), queries=16)
    assert found.kind == kind
    assert words in found.sentence
    assert "95 % interval" in found.sentence
    assert f"p (Holm) = {p:.3f}" in found.sentence
    assert "is worse than BM25" in found.details[0]
    assert found.advice
    assert any("fuse the model with it (hardneg fuse)" in line for line in found.advice)


@pytest.mark.parametrize(
    ("difference", "p", "word", "advice"),
    [
        (0.02, 0.4, "cannot be told apart from", "Train longer: the final model was not shown to be better than"),
        (0.02, 0.01, "is better than", None),
        (
            -0.02,
            0.01,
            "is worse than",
            "Try a lower learning rate, other negatives or more data: the final model was",
        ),
    ],
)
def test_a_gain_of_the_settings_alone_is_not_that_of_training(difference, p, word, advice):
    dev = {"untrained": 0.4, "step-100": 0.6, "last": 0.5}
    rows = comparison(0.1, 0.01), comparison(difference, p, against="untrained-as-trained")
    told = results(*rows, kept={"state": "last", "of": dev})
    told["test"]["untrained-as-trained"] = {"RR@10": 0.48}
    found = verdict(told)
    assert f"{word} the untrained model at the lengths and other settings of training: RR@10" in found.details[0]
    assert found.advice[0].startswith("Set keep=best")
    assert [line for line in found.advice if "settings of training" in line] == [
        line for line in found.advice if advice and line.startswith(advice)
    ]
    assert any(line.startswith(advice or "Set keep") for line in found.advice)


def test_the_untrained_model_with_the_settings_of_training_is_no_merit_of_training_either():
    dev = {"untrained": 0.02, "untrained-as-trained": 0.09, "step-100": 0.08, "last": 0.05}
    kept = {"state": "untrained-as-trained", "measure": "RR@10", "of": dev}
    rows = comparison(0.1, 0.01), comparison(0.0, 1.0, against="untrained-as-trained")
    found = verdict(results(*rows, kept=kept))
    assert found.kind == "same"
    assert "so the final model is the untrained one at the lengths and other settings" in found.sentence
    assert found.details[0].startswith("On test, the final model is better than the untrained model as it came: ")
    assert "training did not help" in found.advice[0]
    still = kept | {"of": {"untrained": 0.02, "untrained-as-trained": 0.09, "last": 0.09}}
    [first, *_] = verdict(results(*rows, kept=still)).advice
    assert first.startswith("Train longer: on dev, no state differs from the untrained model at the lengths")
    assert "train longer" in warning({"kept": still | {"dev": 0.09, "beats_untrained": False}})
    once = kept | {"state": "last", "of": {"untrained": 0.02, "untrained-as-trained": 0.09, "last": 0.1}}
    assert not any("may still rise" in line for line in verdict(results(*rows[:1], kept=once)).advice)


def test_the_verdict_says_among_what_dev_was_judged():
    told = results(comparison(0.1, 0.01), compared_on="dev")
    told["dev"] = told["test"]
    found = verdict(told, dev_passages=100)
    assert found.sentence.startswith("On dev (among BM25's first 100), the final model is better")
    assert any("dev_passages = none" in line for line in found.advice)
    beside = told | {"comparisons": [comparison(-0.2, 0.001, against="bm25"), *told["comparisons"]]}
    assert verdict(beside, dev_passages=100) == found  # BM25 chose the passages: no comparison with it is fair
    assert "BM25" in verdict(beside).sentence + "".join(verdict(beside).details)
    assert verdict(told).sentence.startswith("On dev, the final model")
    spread = {"RR@10": {"mean": 0.5, "std": 0.01, "values": [0.5]}}
    assert (
        "dev (among BM25's first 100) RR@10"
        in verdict({"seeds": [1, 2], "dev": {"final": spread}}, dev_passages=100).sentence
    )
    assert verdict(results(comparison(0.1, 0.01)), dev_passages=100).sentence.startswith("On test, the final")


def test_tables_name_the_passages_that_dev_was_judged_among(copied):
    record = json.loads((copied / "settings.json").read_text())
    for name in ("digest", "hardneg"):
        del record[name]
    record["result_settings"]["dev_passages"] = 50
    write_settings(copied, record)
    _, drawn = drawn_of(copied, "results", "measured")
    assert set(drawn["results"].table.column("split")) == {"test", "dev (among BM25's first 50)"}
    assert set(drawn["measured"].table.column("split")) == {"dev (among BM25's first 50)"}


def test_the_verdict_says_if_dev_chose_what_it_measures():
    """The best of many equal states is above the untrained model on the queries that chose it."""
    told = results(
        comparison(0.1, 0.01), kept={"state": "step-8", "of": {"untrained": 0.3, "step-8": 0.5, "last": 0.4}}
    )
    told["dev"] = told["test"]
    assert any("best of 3 states" in line for line in verdict(told | {"compared_on": "dev"}).advice)
    assert not any("best of" in line for line in verdict(told).advice)  # test chose nothing
    last = told["kept"] | {"state": "last"}
    assert not any("best of" in line for line in verdict(told | {"compared_on": "dev", "kept": last}).advice)


def test_a_ranker_is_judged_against_what_it_re_ranks():
    told = results(comparison(0.3, 0.001), comparison(-0.1, 0.01, against="bm25"), reranked={"first": "bm25"})
    found = verdict(told)
    assert found.kind == "worse"
    assert found.sentence.startswith("On test, the final ranker is worse than BM25")
    assert any("Do not re-rank" in line for line in found.advice)


def test_a_test_that_is_unsure_only_after_the_correction_says_both():
    row = comparison(0.2, 0.012) | {"p_holm": 0.087}
    found = verdict(results(row))
    assert found.kind == "unsure"
    assert "p (Holm) = 0.087, 0.012 before it was corrected for all tests of this measure)" in found.sentence
    assert "before" not in verdict(results(row | {"p_holm": 0.04})).sentence


def test_advice_follows_from_the_results():
    kept = {"state": "last", "of": {"untrained": 0.3, "episode-1": 0.6, "last": 0.5}}
    forgotten = [{"before": "untrained", "after": "episode-1", "forgotten": 0.4}]
    found = verdict(results(comparison(0.1, 0.4), kept=kept, forgetting=forgotten), queries=16).advice
    assert any("keep=best" in line and "episode-1" in line for line in found)
    assert any("with 16, only large" in line for line in found)
    assert any("40%" in line and "lower learning rate may keep" in line for line in found)
    dev = {"a": 0.1, "b": 0.2, "last": 0.3}
    rising = verdict(results(comparison(0.1, 0.01), kept={"state": "last", "of": dev}))
    assert any(line.startswith("Train longer") for line in rising.advice)
    worse = verdict(results(comparison(-0.1, 0.01)))
    assert "lower learning rate" in worse.advice[0]


@pytest.mark.parametrize(
    ("began", "last", "told"), [(0.4, 0.5, True), (0.4, 0.3, False), (0.61, 0.5, False), (None, 0.5, False)]
)
def test_what_the_settings_cost_before_training_is_not_blamed_on_training(began, last, told):
    kept = {"state": "untrained", "measure": "RR@10", "of": {"untrained": 0.6, "last": last}}
    dev = {} if began is None else {"untrained-as-trained": {"RR@10": began}}
    found = verdict(results(comparison(0.0, 1.0), kept=kept, dev=dev)).advice
    said = (
        "on dev, these settings alone took RR@10 from 0.600 to 0.400, and training then raised it to 0.500 only."
    )
    assert (said in found[0]) == told
    assert ("training did not help" in found[0]) != told
    loud = warning({"dev": dev, "kept": kept | {"dev": 0.6, "beats_untrained": False}})
    assert ("took it to 0.4000, and training raised it to 0.5000; try settings nearer" in loud) == told
    assert ("try a lower learning rate" in loud) != told


@pytest.mark.parametrize(
    ("through", "state", "told"),
    [
        ({"untrained-as-trained": 0.2, "last": 0.3}, "last", "0.500"),
        ({"untrained-as-trained": 0.2, "step-2": 0.3, "last": 0.1}, "step-2", "0.450"),
        ({"untrained-as-trained": 0.2, "last": 0.1}, "untrained-as-trained", None),
    ],
)
def test_what_the_settings_cost_is_told_where_an_index_decides_what_is_best(through, state, told):
    """The index retrieves nothing of the model as it came, so the figures are those without it."""
    dev = {"untrained": 0.6, "untrained-as-trained": 0.4, "step-2": 0.45, "final": 0.5}
    dev = {name: {"RR@10": value} for name, value in dev.items()}
    kept = {"state": state, "measure": "RR@10", "of": through}
    found = verdict(results(comparison(-0.1, 0.01), kept=kept, dev=dev)).advice
    said = f"took RR@10 from 0.600 to 0.400, and training then raised it to {told} only"
    assert any("these settings alone" in line for line in found) == any(said in line for line in found)
    assert any(said in line for line in found) == (told is not None)


@pytest.mark.parametrize(
    ("recipe", "changes", "worst", "expected"),
    [
        ("ance-tele", {}, 0, False),  # the first episode has no pool before it
        ("ance-tele", {}, 1, True),
        ("ance-tele", {"start_episode": 2}, 0, True),  # it begins with a pool that was given
        ("ance-tele", {"first": "in_batch"}, 1, False),  # nothing was mined before the second episode
        ("ance-tele", {"momentum": "accumulate"}, 1, False),  # alpha has no effect
        ("star", {}, 0, False),  # it has no alpha
    ],
)
def test_momentum_is_advised_where_there_is_some(recipe, changes, worst, expected):
    rows = [{"before": f"state-{at}", "after": f"state-{at + 1}", "forgotten": 0.1} for at in range(2)]
    rows[worst]["forgotten"] = 0.4
    momentum_from = course_of({"recipe": recipe, "settings": changes}).momentum_from
    told = results(comparison(0.1, 0.01), forgetting=rows)
    found = [line for line in verdict(told, momentum_from=momentum_from).advice if "forgetting" in line]
    assert ["alpha" in line for line in found] == [expected]


def test_a_ranker_that_still_learns_is_not_called_one_that_did_not():
    dev = {"untrained": 0.42, "step-1": 0.45, "last": 0.47}
    tests = comparison(0.1, 0.01), comparison(-0.1, 0.01, against="bm25")
    told = results(*tests, reranked={"first": "bm25"}, kept={"state": "last", "of": dev})
    advice = verdict(told).advice
    assert advice[0].startswith("Train longer, or go on from this model")
    assert advice[1].startswith("Do not re-rank with it")
    assert not any("did not help" in line for line in advice)


@pytest.mark.parametrize(
    ("state", "dev"),
    [
        ("last", {"untrained": 0.8, "step-1": 0.9, "last": 1.0}),
        ("untrained", {"untrained": 1.0, "step-1": 0.9, "last": 1.0}),
    ],
)
def test_where_dev_cannot_rise_no_training_is_advised(state, dev):
    told = results(comparison(0.0, 1.0), kept={"state": state, "of": dev})
    assert not any("Train longer" in line or "did not help" in line for line in verdict(told).advice)


def test_training_that_changed_nothing_was_too_short():
    dev = {"untrained": 0.5, "step-1": 0.5, "last": 0.5}
    told = results(comparison(0.0, 1.0), kept={"state": "untrained", "of": dev})
    assert verdict(told).advice[0] == "Train longer: on dev, no state differs from the untrained model."


@pytest.mark.parametrize(("queries", "tests", "told"), [(5, 1, "no"), (6, 1, "only large"), (6, 2, "no")])
def test_few_queries_cannot_tell_any_difference(queries, tests, told):
    """The least p of five queries is 2 / 2^5 = 0.0625; two tests of six queries have 2 * 2 / 2^6."""
    rows = [comparison(0.5, 0.0625, against=name) for name in ("untrained", "bm25")[:tests]]
    (line,) = (one for one in verdict(results(*rows), queries=queries).advice if "more queries" in one)
    assert f"with {queries}, {told} difference" in line


def test_the_advice_rounds_shares_as_charts_do():
    rows = [{"before": "untrained", "after": "last", "forgotten": 0.325, "learned": 0.125}]
    (line,) = (one for one in verdict(results(comparison(0.1, 0.01), forgetting=rows)).advice if "forg" in one)
    assert "33% of the training queries fell" in line
    assert "and 13% rose" in line
    rows[0]["learned"] = 0.145  # 14.499999999999998 % in floats, of which charts make 14%
    (line,) = (one for one in verdict(results(comparison(0.1, 0.01), forgetting=rows)).advice if "forg" in one)
    assert "and 14% rose" in line


def test_captions_say_what_counts_as_met_before():
    """New candidates are in no list of BM25's either; `other` is a class of both charts of composition."""
    says = {one.name: one.says for one in FIGURES}
    for captions in (says, {name: words["says"] for name, words in REFRESHED.items() if "says" in words}):
        assert "neither BM25's list (where it was kept) nor" in captions["new_negatives"]
        for name in ("composition", "composition_of_pools"):
            assert "`other` was first met in a pool, such as random draws." in captions[name]


def test_states_that_tie_are_not_called_better_or_too_short():
    """The last state is as good as an earlier one; or all are perfect on dev, and none can be better."""
    tie = {"untrained": 0.3, "episode-1": 0.5, "last": 0.5}
    assert verdict(results(comparison(0.1, 0.01), kept={"state": "last", "of": tie})).advice == (AUDIT,)
    perfect = {"untrained": 1.0, "step-1": 1.0, "last": 1.0}
    assert verdict(results(comparison(0.1, 0.01), kept={"state": "untrained", "of": perfect})).advice == (AUDIT,)


def test_the_untrained_model_is_not_compared_with_itself():
    """It was kept: that nothing was better on dev is known, and no more queries would tell more."""
    dev = {"untrained": 0.5, "iteration-1": 0.25, "last": 0.125}
    kept = {"state": "untrained", "measure": "RR@10", "of": dev}
    found = verdict(results(comparison(0.0, 1.0), comparison(-0.1, 0.01, against="bm25"), kept=kept), queries=16)
    told = "On dev, no state of training was better than the untrained one (RR@10 0.500, the last state 0.125)"
    assert found.sentence == f"{told}, so the final model is the untrained one."
    assert (found.kind, page.MARKS[found.kind]) == ("same", "= The model that it started from")
    assert "BM25" in found.details[0]
    assert not any("more queries" in line for line in found.advice)


@pytest.mark.parametrize(("others", "left"), [(["bm25"], ["bm25"]), ([], None)])
def test_the_table_of_tests_does_not_test_the_untrained_model_against_itself(others, left):
    rows = comparison(0.0, 1.0), *(comparison(-0.1, 0.01, against=other) for other in others)
    opened = SimpleNamespace(results=results(*rows, kept={"state": "untrained", "of": {"untrained": 0.5}}))
    if left is None:
        with pytest.raises(NotMeant):
            facts_results.tests_table(opened)
    else:
        assert facts_results.tests_table(opened).column("final against") == left


def test_only_an_experiment_with_negatives_is_sent_to_the_audit():
    told = results(comparison(0.1, 0.01))
    assert "hardneg audit" in verdict(told).advice[-1]
    assert verdict(told, mined=False).advice == (MINE,)
    assert verdict(told, mined=None).advice == (MINE_FIRST,)
    dev = {"a": 0.1, "b": 0.2, "last": 0.3}
    rising = results(comparison(0.1, 0.01), kept={"state": "last", "of": dev})
    assert not any("audit" in line for line in verdict(rising, mined=False).advice)


def test_seeds_and_nothing_have_a_verdict_too():
    spread = {"RR@10": {"mean": 0.5, "std": 0.01, "values": [0.5]}}
    assert "0.500 ± 0.010" in verdict({"seeds": [1, 2], "test": {"final": spread}}).sentence
    states = dict.fromkeys(("final", "untrained", "untrained-as-trained"), spread)
    said = "the untrained model at the lengths and other settings of training 0.500 ± 0.010"
    assert said in verdict({"seeds": [1, 2], "test": states}).sentence
    assert verdict({}, running="It runs.").sentence == "It runs."


# ---------------------------------------------------------------- tables and texts


def test_tables_become_csv_and_frames():
    table = Table.of([{"a": 'x,"y"\n', "b": None, "c": float("nan")}, {"a": "é", "b": 2, "c": 0.5}])
    assert list(csv.reader(table.csv().decode().splitlines(keepends=True))) == [
        ["a", "b", "c"],
        ['x,"y"\n', "", ""],
        ["é", "2", "0.5"],
    ]
    assert table.where(b=2).column("c") == [0.5]
    pandas = pytest.importorskip("pandas")
    assert isinstance(table.frame(), pandas.DataFrame)


@pytest.mark.parametrize(
    "bad", ["<script>alert(1)</script>", "</script><b>", "\u202eevil\u2066", "word" * 300_000]
)
def test_no_text_leaves_its_place(bad):
    shown = page.text(bad)
    assert "<" not in shown
    assert not set(shown) & set("\u202e\u2066")
    assert len(shown) <= 6 * page.LONGEST_TEXT
    script = page.json_script("x", {"text": bad})
    assert script.count("</script") == 1
    assert script.endswith("</script>")
    inner = script.removeprefix('<script type="application/json" id="x">').removesuffix("</script>")
    assert json.loads(inner) == {"text": bad}


def test_hidden_marks_are_shown_by_their_code():
    assert visible("a\u202eb\x00") == "a⟨U+202E⟩b⟨U+0000⟩"
    assert visible("two\nlines\tand ünïcode 漢字") == "two\nlines\tand ünïcode 漢字"
    assert visible("می\u200cخواهم 👩\u200d👧") == "می\u200cخواهم 👩\u200d👧"  # joiners are a part of words


@pytest.mark.parametrize(("value", "shown"), [(-1e-17, "0"), (-0.00001, "-1e-05"), (0.25, "0.25"), (-2.0, "-2")])
def test_no_number_is_shown_as_minus_zero(value, shown):
    assert page.cell(value) == shown


# ---------------------------------------------------------------- facts from the folder


def test_suspected_false_negatives_are_labelled_on_the_page(trained):
    page = hn.diagnose(trained, save=False).html.decode()
    suspects = hn.audit(trained)["suspects"]
    assert suspects
    assert page.count('class="pair"') == min(len(suspects), 50)
    assert "Save judgements.tsv" in page


def test_a_large_pool_is_audited_at_random_queries_and_the_page_says_so(trained, monkeypatch):
    whole = opened_at(trained)
    pool = list(whole.pools.values())[-1]
    n = len(pool.passage_rows)
    assert whole.kept["audit"]["queries"] == whole.kept["audit"]["of_queries"] == len(pool)
    assert "drawn at random. All counts" not in hn.diagnose(trained, save=False).html.decode()
    monkeypatch.setattr(diagnosing, "AUDITED", Sampling(most=n - 1, about=n // 2))
    report = hn.diagnose(trained, save=False)
    row = report.tables["audited"].records()[0]
    assert 0 < row["queries audited"] < row["of queries"] == len(pool)
    assert row["of entries"] == n
    assert row["negatives audited"] <= n // 2
    assert row["share"] == row["suspected"] / row["negatives audited"]
    said = f"so {row['queries audited']:,} of its {len(pool):,} queries were audited, drawn at random."
    assert said in report.html.decode()
    found = report.opened.kept["audit"]
    some = pool.select(Sampling(most=n - 1, about=n // 2).of(pool))
    asked = set(whole.data_here.collection.query_ids.take(some.query_rows))
    assert {one["query_id"] for one in found["suspects"]} <= asked
    every = hn.audit(trained, bm25=False, most=n)["suspects"]
    alone = {(one["query_id"], one["passage_id"]): one["signals"] for one in every}
    assert found["suspects"]
    for one in found["suspects"]:  # what is known of a pair does not depend on which others are looked at
        assert alone[one["query_id"], one["passage_id"]] == one["signals"]


def test_every_figure_of_a_finished_experiment_has_facts(finished, trained):
    opened, drawn = finished
    missing = {name for name, one in drawn.items() if one.table is None and one.meant}
    assert missing <= {"gradients"}
    others = {name for name, one in drawn.items() if not one.meant}
    assert {"async_gap", "iterations", "disagreement", "reranking"} <= others
    assert drawn["audit_signals"].table.column("signal") == ["text", "retriever", "both", "learned"]
    assert opened.notes == []
    assert {figure.section for figure in FIGURES} <= set(SECTIONS)
    told = json.loads((trained / "results.json").read_text())
    maps = drawn["map"].table
    assert set(maps.column("class")) == {"query", "positive", "negative"}
    assert all(-1 <= value <= 1 for value in drawn["space"].table.column("cosine with the first state"))
    table = drawn["results"].table
    found = {(row["split"], row["state"]): row["RR@10"] for row in table.records()}
    assert found[("test", "final")] == told["test"]["final"]["RR@10"]
    steps = drawn["learning_curve"].table.column("step")
    assert steps == sorted(set(steps))
    measured = drawn["measured"].table
    assert measured.column("step") == sorted(measured.column("step"))
    assert measured.column("step")[-1] == steps[-1]


def test_lists_without_positives_are_the_candidates(trained):
    opened = opened_at(trained)
    data = opened.data_here
    run = opened.run(opened.trained_states[1], "query")
    for rows in (data.train.query_rows, data.train.query_rows[::-2]):
        found = without_positives(opened, run, rows)
        some = data.train.select(matches(data.train.query_rows, rows)[0])
        same = {"text_keys": data.collection.text_keys, "copies": data.collection.copies}
        expected = candidates(part_of(run, rows), some, source="query", episode=0, depth=SETTINGS["depth"], **same)
        assert found.query_rows.tolist() == expected.query_rows.tolist()
        assert found.offsets.tolist() == expected.offsets.tolist()
        assert found.passage_rows.tolist() == expected.passage_rows.tolist()


def test_copies_and_positives_of_equal_queries_leave_room_in_lists(tmp_path):
    """The lists are the candidates that mining draws from: these passages do not count for the depth."""
    passages = {f"p{i}": f"text {i % 12}" for i in range(20)}
    train = {f"q{i}": {f"p{i}": 1, f"p{i + 6}": i % 2} for i in range(6)}
    queries = {name: f"question {int(name[1]) // 2}" for name in train}
    data = choose_splits(Collection.from_lists(passages, queries, {"train": train}, to=tmp_path / "c"), dev="none")
    depth, draw = 6, np.random.default_rng(1)
    opened = SimpleNamespace(data_here=data, cache=tmp_path, settings={"result_settings": {"depth": depth}})
    run = run_of([draw.permutation(20)[:15] for _ in range(6)])
    assert data.equal_queries is not None
    assert data.collection.copies is not None
    given = {"text_keys": data.collection.text_keys, "copies": data.collection.copies}
    contains = answers_of(data, tmp_path)
    expected = candidates(run, data.train, source="query", episode=0, depth=depth, contains=contains, **given)
    found = without_positives(opened, run)
    assert found.offsets.tolist() == expected.offsets.tolist() == [*range(0, 37, depth)]
    assert found.passage_rows.tolist() == expected.passage_rows.tolist()
    # lookahead around all positives: the lists of a query are cut one by one and then joined
    double = run_of([draw.permutation(20)[:15] for _ in range(12)], query_rows=np.repeat(np.arange(6), 2))
    every = candidates(
        double,
        data.train,
        source="lookahead",
        episode=0,
        depth=depth,
        contains=contains,
        anchors=np.zeros(12, np.int32),
        **given,
    )
    joined = without_positives(opened, double)
    assert joined.query_rows.tolist() == every.query_rows.tolist()
    for i in range(6):
        (mine, theirs) = (one.passage_rows[one.offsets[i] : one.offsets[i + 1]] for one in (joined, every))
        assert mine.tolist() == sorted(set(theirs.tolist()))
        assert len(mine) > depth


def test_lists_are_around_all_positives_if_mining_took_all(trained):
    opened = opened_at(trained)
    state, saved = opened.trained_states[1], []
    opened.whole_run = lambda _, name: saved.append(name)
    for there in (False, True):
        opened.has_run = lambda *asked, there=there: there
        mined_run(opened, state, "lookahead")
    assert saved == ["lookahead", "lookahead-all"]


def test_what_people_judged_relevant_is_no_candidate(trained):
    opened = opened_at(trained)
    data, run = opened.data_here, opened.run(opened.trained_states[1], "query")
    before = without_positives(opened, run)
    first = before.passage_rows[before.offsets[:-1]]
    labels = np.full(len(data.train), LABELS.index("relevant"), np.uint8)
    opened.data = replace(data, judgements=Judgements(data.train.query_rows, first, labels, "people"))
    after = without_positives(opened, run)
    for i, row in enumerate(first.tolist()):
        assert row not in after.passage_rows[after.offsets[i] : after.offsets[i + 1]]
    assert len(after.passage_rows) > 0


def test_swing_says_its_classes(finished):
    _, drawn = finished
    table = drawn["swing"].table
    assert table.column("class") == ["A", "B", "A", "B"]
    assert table.column("in") == ["episode 1", "episode 2"] * 2
    assert table.column("of")[:2] == ["candidates"] * 2
    pytest.importorskip("altair")
    values = drawn["swing"].spec["data"]["values"]
    assert values[1]["episodes"] == "candidates: B · episode 2 → episode 4"


def test_composition_begins_with_bm25(finished):
    _, drawn = finished
    candidates, pools = drawn["composition"].table, drawn["composition_of_pools"].table
    assert "other" not in pools.column("first in"), "every negative was drawn from a list of the report"
    for table in (candidates, pools):
        assert "BM25" in table.column("first in")
        assert "BM25" not in table.column("list")
        for name in set(table.column("list")):
            assert sum(table.where(list=name).column("share")) == pytest.approx(1)
    assert set(pools.column("list")) == {f"episode {i}" for i in (1, 2, 3, 4)}
    first = set(candidates.where(list="episode 1 query").column("first in"))
    assert first == {"BM25", "episode 1 query"}
    new = drawn["new_negatives"].table
    counted = sum(
        row["entries"] for row in candidates.where(list="episode 1 query").records() if row["first in"] != "BM25"
    )
    assert new.column("new")[0] == counted


def test_without_bm25s_lists_an_episode_is_met_first(copied):
    shutil.rmtree(copied / "bm25")
    _, drawn = drawn_of(copied, "composition")
    assert "BM25" not in drawn["composition"].table.column("first in")
    assert drawn["composition"].table.where(list="episode 1 query").column("share") == [1.0]


def test_bm25s_lists_of_some_queries_are_the_composition_of_these(copied):
    place = copied / "bm25/runs/query"
    run = load_run(place)
    some = part_of(run, run.query_rows[::3])
    save_run(some, place, inputs={}, settings={})
    _, drawn = drawn_of(copied, "composition")
    table = drawn["composition"].table
    assert 0 < sum(table.where(list="episode 1 query").column("entries")) <= 20 * len(some)


@pytest.mark.parametrize(
    ("mines", "runs", "name"),
    [
        ("episodes", "episodes/2/runs", "episode 2"),
        ("refreshes", "episodes/0/runs", "refresh 0"),  # ANCE
        ("refreshes", "episodes/1/runs", "refresh 1"),
        ("iterations", "episodes/1/runs", "refresh 0"),  # AR2
        ("iterations", "episodes/1/runs-v0001", "refresh 1"),
        ("static", "episodes/1/runs", "refresh 0"),  # ADORE with static negatives
        ("episodes", "states/40/runs", "step-40"),
    ],
)
def test_candidates_have_the_name_of_the_pool_that_was_mined_from_them(tmp_path, mines, runs, name):
    """Also if that pool is not mined yet, or gone."""
    opened = Opened(Layout(tmp_path))
    opened.__dict__["course"] = Course(mines="episodes" if mines == "static" else mines)
    if mines == "static":
        Layout(tmp_path).episode(1).version(0).mkdir(parents=True)
    assert mined_pool(opened, StateRecord("step-40", "passing", runs=runs)) == name


def test_what_was_met_first_has_a_number_and_a_source():
    assert kind_of("episode 12 lookahead") == (12, "lookahead")
    assert kind_of("refresh 0 query") == (0, "query")
    assert kind_of("step-4 query") == (4, "query")
    order = ["BM25", "episode 1 query", "episode 1 lookahead", "step-1 query", "step-8 query"]
    assert in_time(order[::-1]) == order
    assert [short("step-4 query"), short("episode 1 lookahead")] == ["Q step 4", "L1"]
    assert [kind_of(name)[1] for name in ("BM25", "other", "random")] == ["BM25", "other", "random"]
    assert kind_of("BM25") < kind_of("episode 1 query") < kind_of("other")


def test_charts_tell_their_parts_apart_without_colour():
    pytest.importorskip("altair")
    rows = [{"step": step, "value": float(step), "of": f"line {i}"} for i in range(40) for step in (1, 2)]
    chart = lines(Table.of(rows), x="step", y="value", by="of").to_dict()
    line, point = (layer["encoding"] for layer in chart["layer"])
    dashes, shapes = line["strokeDash"]["scale"], point["shape"]["scale"]
    assert dashes["domain"] == shapes["domain"] == [f"line {i}" for i in range(40)]
    looks = list(zip(map(tuple, dashes["range"]), shapes["range"], strict=True))
    assert len(set(looks)) == 40
    assert len({dash for dash, _ in looks[:10]}) == 10  # long lines have no points
    table = Table.of([{"state": "one", "a": 1.0, "b": 2.0, "c": 3.0}])
    bar = grouped(table, y="state", x=("a", "b", "c"), title="share").to_dict()["layer"][0]["encoding"]
    fills = bar["fillOpacity"]["scale"]["range"]
    assert all(before - after > 0.3 for before, after in pairwise(fills))


def test_the_legend_of_ten_queries_says_which_lines_are_equal():
    pytest.importorskip("altair")
    ranks = {"a": (0.5, 1.0), "b": (0.5, 0.25), "c": (0.5, 1.0), **{f"q{i}": (0.0, i / 10) for i in range(1, 8)}}
    rows = [
        {"query": query, "state": f"episode-{order}", "order": order, "RR@100": value}
        for query, values in ranks.items()
        for order, value in enumerate(values, 1)
    ]
    line, points = (layer["encoding"] for layer in trajectories_chart(Table.of(rows)).to_dict()["layer"])
    assert line["strokeDash"]["scale"]["domain"] == ["a", "b", "c (same as a)", *list(ranks)[3:]]
    colours, dashes = (line[name]["scale"]["range"] for name in ("color", "strokeDash"))
    assert len(set(colours)) == len(set(map(tuple, dashes))) == 10
    assert points["color"]["scale"]["range"] == colours


@pytest.mark.parametrize("label", ["BM25 23%", "BM25 100%", "Q1 100%", "L2 44%", "Q step 4 33%", "other 40%"])
def test_a_label_is_shown_only_where_it_is_narrower_than_its_part(label):
    font_manager, textpath = (pytest.importorskip(f"matplotlib.{name}") for name in ("font_manager", "textpath"))
    font = font_manager.FontProperties(family="DejaVu Sans")
    wide = textpath.TextPath((0, 0), label, size=11, prop=font).get_extents().width
    assert wide + 4 <= shapes.LETTER * len(label) + shapes.MARGIN <= wide + 30


def test_states_that_lie_together_are_told_apart_by_shape():
    pytest.importorskip("altair")
    rows = [{"state": f"episode-{i}", "uniformity": -2.0, "alignment": 1.0} for i in range(4)]
    line, points = space_chart(Table.of(rows)).to_dict()["layer"]
    assert points["encoding"]["shape"]["scale"]["domain"] == [row["state"] for row in rows]
    assert len(set(points["encoding"]["shape"]["scale"]["range"])) == 4
    assert points["encoding"]["shape"].get("legend", "shown") == "shown"
    assert line["mark"]["type"] == "line"


def test_names_of_episodes_do_not_lie_on_each_other():
    begins = {1: 1, 2: 301, 3: 309, 4: 330, 5: 400}  # of 1,000 steps; "episode 2" reaches to 409
    rows = [{"episode": max(e for e, at in begins.items() if at <= step), "step": step} for step in range(1, 1001)]
    found = borders(Table.of(rows))
    assert [row["at"] for row in found] == [300.5, 308.5, 329.5, 399.5]
    assert [row["name"] for row in found] == ["episode 2", "", "", ""]
    far = [{"episode": 1 + step // 250, "step": step} for step in range(1000)]
    assert [row["name"] for row in borders(Table.of(far))] == ["episode 2", "3", "4"]


def test_errors_of_states_are_tested_in_pairs(finished, trained):
    _, drawn = finished
    table = drawn["error_tests"].table
    pairs = list(dict.fromkeys(zip(table.column("state"), table.column("against"), strict=True)))
    assert pairs[-1] == ("final", "untrained")
    assert len(pairs) >= 4
    assert all(p <= holm <= 1 for p, holm in zip(table.column("p"), table.column("p (Holm)"), strict=True))
    told = json.loads((trained / "results.json").read_text())["pairwise_errors"]["test"]
    row = table.where(state="final", against="untrained", errors="all").records()[0]
    assert row["difference"] == pytest.approx(told["final"]["total"] - told["untrained"]["total"])


def test_states_of_an_unfinished_experiment_are_those_with_runs(copied):
    told = [one.name for one in opened_at(copied).states if one.kind != "bm25"]
    (copied / "states.jsonl").unlink()
    assert [one.name for one in opened_at(copied).states] == told


def test_an_experiment_without_results_has_the_figures_that_were_measured(finished, copied):
    _, whole = finished
    for name in ("results.json", "states.jsonl", "seal.json"):
        (copied / name).unlink()
    _, drawn = drawn_of(copied)
    at_the_end = {"comparisons", "fused", "fused_tests"}
    missing = {name for name, one in whole.items() if one.table is not None and drawn[name].table is None}
    assert missing == at_the_end
    same = (
        "forgetting",
        "trajectories",
        "forgotten_queries",
        "informative",
        "overlap",
        "pairwise_errors",
        "swing",
    )
    assert [name for name in same if drawn[name].table != whole[name].table] == []


def test_the_untrained_weights_are_not_compared_with_themselves(finished, monkeypatch):
    opened, _ = finished
    known = facts_queries.evaluations(opened)
    untrained = dict.fromkeys(("untrained", "untrained-as-trained"), known["untrained"])
    monkeypatch.setattr(facts_queries, "evaluations", lambda opened: untrained)
    with pytest.raises(NotRecorded, match="No trained state of the model has been measured"):
        facts_queries.Change(opened)
    monkeypatch.setattr(facts_queries, "evaluations", lambda opened: {**untrained, "last": known["final"]})
    assert facts_queries.Change(opened).last == "last"


def test_bm25_is_compared_with_as_soon_as_it_was_searched(finished, copied):
    _, whole = finished
    for name in ("results.json", "states.jsonl", "seal.json"):
        (copied / name).unlink()
    _, drawn = drawn_of(copied, "measured", "results", "breakdown")
    for column in ("baseline", "baseline value"):
        assert set(drawn["measured"].table.column(column)) == set(whole["measured"].table.column(column))
    assert drawn["measured"].table.column("baseline")[0] == "BM25"
    known = whole["results"].table.where(state="bm25")
    assert drawn["results"].table.where(state="bm25") == known
    assert drawn["results"].table.column("state")[0] == "bm25"
    assert drawn["breakdown"].table == whole["breakdown"].table  # BM25 is no state before training
    for name in ("untrained", "episodes", "states", "final"):  # it is at the very beginning
        shutil.rmtree(copied / name, ignore_errors=True)
    (copied / "metrics.jsonl").unlink()
    opened, drawn = drawn_of(copied, "results")
    assert drawn["results"].table == known
    assert (
        make(opened, ["hardneg"]).verdict.sentence == "This experiment is not finished: BM25 alone was measured."
    )


def test_an_experiment_cut_short_has_a_report(copied):
    for name in ("results.json", "states.jsonl", "seal.json"):
        (copied / name).unlink()
    shutil.rmtree(copied / "final")
    with (copied / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 13, "epi')
    opened, drawn = drawn_of(copied)
    assert opened.notes == []
    assert drawn["results"].table is not None
    assert "finished" in drawn["comparisons"].missing
    before, after = dict.fromkeys(drawn["error_distribution"].table.column("state"))
    assert (before, after) == ("untrained", opened.trained_states[-1].name)
    assert "not finished" in make(opened, ["hardneg"]).verdict.sentence


def test_a_collection_that_has_moved_costs_only_what_needs_it(copied):
    (copied / "places.json").write_text('{"collection": "/nowhere"}')
    opened, drawn = drawn_of(copied)
    assert len(opened.notes) == 1
    assert "NO_DATA" in opened.notes[0]
    assert drawn["results"].table is not None


def test_an_older_format_is_one_line_and_the_rest_is_drawn(copied):
    record = json.loads((copied / "settings.json").read_text())
    kept = {name: value for name, value in record.items() if name not in ("digest", "hardneg", "splits")}
    write_settings(copied, {**kept, "format": 2})
    opened, drawn = drawn_of(copied)
    assert [line for line in opened.notes if "format version 2" in line] == opened.notes
    assert len(opened.notes) == 1
    assert {name for name in ("results", "learning_curve", "cost", "pairwise_errors") if drawn[name].table} == {
        "results",
        "learning_curve",
        "cost",
        "pairwise_errors",
    }


def test_another_collection_is_one_line_and_the_rest_is_drawn(copied, tmp_path):
    other = hn.Collection.from_lists(
        [("p", "", "some text")], {"q": "text"}, {"train": {"q": ["p"]}}, to=tmp_path / "other"
    )
    (copied / "places.json").write_text(json.dumps({"collection": str(other.path)}))
    opened, drawn = drawn_of(copied)
    assert len(opened.notes) == 1
    assert "INPUT_CHANGED" in opened.notes[0]
    assert drawn["composition_of_pools"].table is not None
    assert "--data" in drawn["breakdown"].missing


def test_a_damaged_pool_is_one_line(copied):
    place = copied / "episodes/2/negatives/sources.npy"
    place.write_bytes(place.read_bytes()[:-1])
    opened, drawn = drawn_of(copied)
    assert any(str(place.parent) in line for line in opened.notes)
    assert set(drawn["momentum"].table.column("pool")) == {"episode 1", "episode 3", "episode 4"}


def test_a_pool_without_provenance_is_drawn(copied):
    for episode in (1, 2, 3, 4):
        place = copied / f"episodes/{episode}/negatives"
        pool, inputs = load_pool(place), read_manifest(place).inputs
        n = len(pool.passage_rows)
        blank = {"sources": np.full(n, SOURCES.index("file"), np.uint8), "ranks": np.zeros(n, np.int32)}
        blank |= {"scores": np.full(n, np.nan, np.float32), "anchors": np.full(n, -1, np.int32)}
        bare = replace(pool, **{name: np.array(getattr(pool, name)) for name in ENTRY_ARRAYS} | blank)
        shutil.rmtree(place)
        save_pool(bare, place, settings={}, inputs=inputs)
    opened, drawn = drawn_of(copied)
    report = make(opened, ["hardneg"])
    told = [entry for one in report.explorer["queries"] if one["split"] == "train" for entry in one["negatives"]]
    assert {entry[1].removeprefix("momentum, ") for entry in told} == {"file"}
    assert {(entry[3], entry[4]) for entry in told} == {(None, None)}  # rank and score when mined
    assert set(drawn["audit_sources"].table.column("source")) == {"file"}
    assert drawn["composition_of_pools"].table is not None
    assert opened.notes == []


def test_what_was_not_examined_is_said_in_a_line(copied):
    told = json.loads((copied / "results.json").read_text())
    kept = {name: value for name, value in told.items() if name not in ("forgetting", "informative")}
    (copied / "results.json").write_text(json.dumps({**kept, "examined": "judged"}))
    (copied / "seal.json").unlink()
    lines = [json.loads(line) for line in (copied / "states.jsonl").read_text().splitlines()]
    (copied / "states.jsonl").write_text("".join(json.dumps({**one, "asked": "judged"}) + "\n" for one in lines))
    opened, drawn = drawn_of(copied)
    for name in ("forgetting", "trajectories", "composition", "new_negatives", "swing", "overlap"):
        assert "examine = judged" in drawn[name].missing
    assert opened.notes == []
    assert drawn["breakdown"].table is not None
    assert drawn["geometry"].table.column("mean cosine"), "it is kept of such states, too"


def test_the_report_says_which_signals_its_audit_lacks(trained, copied):
    """In the words of the command, which searches with BM25 itself; kept lists of BM25 are taken."""
    assert "BM25 was not searched" not in missing_sentence(opened_at(trained))
    shutil.rmtree(copied / "bm25/runs/query")
    opened = opened_at(copied)
    said = missing_sentence(opened)
    assert "Not known: both, because BM25 was not searched." in said
    assert said.endswith(" `hardneg audit EXP` searches with BM25, too, and finds more.")
    pytest.importorskip("altair")
    html = make(opened, ["hardneg"]).html.decode()
    assert "BM25 was not searched. <code>hardneg audit EXP</code> searches with BM25, too" in html


def test_damage_is_a_note_and_the_rest_is_drawn(copied):
    (copied / "settings.json").write_text("{")
    (copied / "timing.jsonl").write_text("no json\n")
    opened, drawn = drawn_of(copied)
    assert any("settings.json" in line for line in opened.notes)
    assert drawn["results"].table is not None
    assert drawn["settings"].table is None


def test_strange_metrics_and_results_cost_a_line_each(copied):
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    lines = (copied / "metrics.jsonl").read_text().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | {"loss": None})  # a number that is not there
    (copied / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 1}', "[1]", ""]))
    told = {"test": {"final": {"RR@10": None}}, "comparisons": [{"a": 1}], "informative": 3}
    (copied / "results.json").write_text(json.dumps(told))
    report = hn.diagnose(copied, save=False, pictures=False)
    assert "there is no verdict" in report.verdict.sentence
    assert b"There is nothing" in report.html or b"<table" in report.html
    assert any(line.endswith("2 lines are not steps of a training; they are left out") for line in report.notes)
    strange = [line for line in report.notes if "a file is not as training writes it" in line]
    assert len(strange) == len(set(strange)) > 1
    assert report.tables["learning_curve"].rows[0][2] is None
    assert len(report.tables) > 25


def test_a_place_without_an_experiment_is_refused(tmp_path):
    with pytest.raises(HardnegError, match="NOT_FOUND: there is no experiment here"):
        hn.diagnose(tmp_path)


# ---------------------------------------------------------------- the page


@pytest.fixture(scope="module")
def report(trained):
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    return hn.diagnose(trained)


def own_libraries(monkeypatch):
    """``scripts.libraries`` as a process finds it that has not called it yet; it stays so for others."""
    fresh = functools.cache(scripts.libraries.__wrapped__)
    monkeypatch.setattr(scripts, "libraries", fresh)
    return fresh


@pytest.mark.slow
def test_a_report_is_made_without_torch(trained, monkeypatch):
    """It takes longer to import than the report of a small experiment to make."""
    if importlib.util.find_spec("vl_convert"):  # else there are no charts, and no bundle
        bundle = scripts.libraries()
        monkeypatch.setattr(scripts, "bundled", lambda: bundle)
        own_libraries(monkeypatch)()  # keeps the bundle in the cache, where the process finds it
    program = """
import sys
import hardneg as hn
assert hn.diagnose(sys.argv[1], pictures=False, save=False).html
heavy = ("torch", "transformers")
print([name for name in heavy if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", program, trained], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_the_bundle_of_scripts_is_made_once_and_again_where_it_is_damaged(tmp_path, monkeypatch):
    pytest.importorskip("vl_convert")
    made = []
    monkeypatch.setattr(scripts, "bundled", lambda: made.append(1) or "let x = 1 \u2028")
    monkeypatch.setenv("HARDNEG_CACHE", str(tmp_path))
    libraries = own_libraries(monkeypatch)
    for _ in range(2):
        libraries.cache_clear()
        assert libraries() == "let x = 1 \u2028"
    assert len(made) == 1
    (kept,) = (tmp_path / scripts.SCRIPTS).glob("*/bundle.js")
    kept.write_text("let x = 2 \u2028")
    libraries.cache_clear()
    assert libraries() == "let x = 1 \u2028"
    monkeypatch.setenv("HARDNEG_CACHE", "/dev/null/nowhere")  # it cannot be written
    libraries.cache_clear()
    assert libraries() == "let x = 1 \u2028"
    assert len(made) == 3


def test_the_page_is_one_file_without_addresses(report, trained):
    html = (trained / "report.html").read_text()
    assert html == report.html.decode()
    assert len(html) < 10e6
    assert "Content-Security-Policy" in html
    head = html[: html.index("</footer>")]
    assert 'src="' not in head
    assert "<link" not in head
    assert report.verdict.sentence.split(":")[0] in html
    for one in report.drawn:
        assert (f'id="{one.figure.name}"' in html) == one.meant


def test_the_page_stays_small_however_large_its_parts_are():
    """Five thousand rows of long texts in every table, and charts of 20 MB."""
    pytest.importorskip("vl_convert")
    table = Table(tuple("abcdefgh"), tuple(("<word> " * 40,) * 8 for _ in range(5000)))
    drawn = [Drawn(figure, table) for figure in FIGURES]
    for one in drawn:
        one.__dict__["spec"] = {"mark": "bar", "data": {"values": "x" * 400_000}} if one.figure.chart else {}
    drawn[0].__dict__["spec"] = {"mark": "bar", "data": {"values": []}}
    html = page.html_of(page.Page("exp", "", verdict({}), (), drawn, "hardneg diagnose exp", {}))
    assert len(html) < 10e6
    assert b'data-chart="results"' in html
    assert b"The chart is too large for the page; its numbers are in the table." in html
    assert html.count(b"data-chart=") == 1 + 2_500_000 // 400_000
    assert b"4,980 more rows are in the CSV." in html
    small = page.html_of(page.Page("exp", "", verdict({}), (), drawn[:1], "hardneg diagnose exp", {}))
    assert b"4,600 more rows are in the CSV." in small


def test_every_chart_stands_beside_its_numbers(report, trained):
    for name in report.charts:
        for kind in ("png", "svg", "csv"):
            assert (trained / "figures" / f"{name}.{kind}").stat().st_size > 50
    assert (trained / "figures/results.png").read_bytes().startswith(b"\x89PNG")
    assert hn.verify(trained)["leftovers"] == []


def test_a_report_prints_as_one_line(report, trained):
    line = f"Report of {trained} ({len(report.tables)} figures): {report.verdict.sentence}"
    assert repr(report) == line
    assert "\n" not in line


def test_a_figure_is_a_chart_and_a_frame(report):
    pandas = pytest.importorskip("pandas")
    chart, frame = report.figure("results")
    assert chart.to_dict()["mark"] or chart.to_dict()["layer"]
    assert isinstance(frame, pandas.DataFrame)
    assert frame["state"].tolist() == report.tables["results"].column("state")
    assert report.figure("settings")[0] is None
    with pytest.raises(SettingsError, match="there is no figure 'result'; did you mean 'results'"):
        report.figure("result")
    with pytest.raises(SettingsError, match="the figure 'async_gap' is empty: Negatives were not refreshed"):
        report.figure("async_gap")


def test_the_command_line_makes_the_report(report, trained, capsys):
    from hardneg.cli import run

    assert run(["diagnose", str(trained), "--no-pictures"]) == 0
    out = capsys.readouterr().out
    assert report.verdict.sentence in out
    assert str(trained / "report.html") in out


@pytest.mark.parametrize(
    ("kept", "names", "expected"),
    [
        ("untrained", ["untrained", "last", "final"], "last"),
        ("step-4", ["untrained", "last", "final"], "final"),
        ("last", ["untrained", "final"], "final"),
        ("untrained", ["untrained", "step-4"], "step-4"),
    ],
)
def test_a_kept_untrained_model_is_not_compared_with_itself(tmp_path, kept, names, expected):
    one = Opened(Layout(tmp_path), None)
    one.__dict__["results"] = {"kept": {"state": kept}}
    assert one.ended(names) == expected


# ---------------------------------------------------------------- the explorer


def test_the_explorer_shows_why_where_from_and_how_passages_moved(trained):
    opened = opened_at(trained)
    data = explorer_data(opened, suspected=[int(opened.data.train.query_rows[3])])
    assert data["states"]["train"][-1] == "final"
    assert len({(one["split"], one["id"]) for one in data["queries"]}) == len(data["queries"])
    tags = {tag for one in data["queries"] for tag in one["tags"]}
    assert tags >= {"worst", "best", "forgotten", "suspected", "random"}
    rows, ranks = training_ranks(opened)
    collection = opened.data.collection
    place = {collection.query_ids[int(row)]: i for i, row in enumerate(rows)}
    pool = opened.pools["episode 4"]
    for one in data["queries"]:
        count = len(data["states"][one["split"]])
        assert all(len(moves) == count for _, moves in one["positives"])
        if one["split"] != "train":
            assert all(hit[1:5] == ["irrelevant hit", None, None, None] for hit in one["negatives"])  # not mined
            continue
        i = place[one["id"]]
        told = [values[i] for values in ranks.values()]
        assert one["moves"] == [round(1 / value) if value else 0 for value in told]
        own = {
            collection.passage_ids[int(row)] for row in pool.passage_rows[pool.offsets[i] : pool.offsets[i + 1]]
        }
        for passage, source, episode, _, _, moves in one["negatives"]:
            assert episode <= 4
            assert ("momentum" in source) == (episode < 4) or data["passages"][passage][0] not in own
            assert len(moves) == count


@pytest.mark.parametrize(("split", "ranks"), [("train", {1: 1, 0: 2, 2: 3}), ("dev", {1: 1, 2: 2, 0: 3})])
def test_the_explorer_ranks_passages_that_tie_as_the_tables_do(split, ranks):
    """Measures break ties of dev and test by id, descending; training queries keep the order of the run."""
    run, ids = run_of([[(1, 2.0), (0, 1.0), (2, 1.0)]]), SimpleNamespace(id_rank=np.arange(3, dtype=np.int32))
    collection = SimpleNamespace(passage_ids=ids)
    given = {"opened": SimpleNamespace(data_here=SimpleNamespace(collection=collection))}
    given |= {"chosen": explorer.Chosen(split, {}), "runs": {"final": run}, "places": {"final": {0: 0}}}
    assert explorer._Maker._ranks(SimpleNamespace(**given), "final", 0) == ranks
    id_rank = None if split == "train" else ids.id_rank
    for passage, rank in ranks.items():
        assert first_relevant_rank(run, positives_of([[passage]]), 10, id_rank=id_rank).tolist() == [rank]


def test_the_explorer_stays_small(trained, monkeypatch):
    monkeypatch.setattr(explorer, "BYTES", 4000)
    data = explorer_data(opened_at(trained))
    assert 0 < len(data["queries"]) < 10
    assert explorer.cut("word" * 300_000).endswith("…")
    marks = {"text": "<&>" * 100}
    element = page.json_script("x", marks)
    assert explorer.size_of(marks) == len(element) - len(page.json_script("x", "")) + len('""')
    monkeypatch.setattr(explorer, "BYTES", 30_000)
    shown = [one["split"] for one in explorer_data(opened_at(trained))["queries"]]
    assert 0 < shown.count("test") < 16  # of which there are 16
    assert shown.count("train") > shown.count("test")


# ---------------------------------------------------------------- several experiments


def test_training_queries_are_parted_by_the_source_of_their_negatives(finished):
    opened, drawn = finished
    table = drawn["breakdown_by_source"].table
    assert set(table.column("by")) == {"most of its negatives"}
    assert set(table.column("group")) == {"query", "lookahead"}
    assert sum(table.column("queries")) == len(opened.data.train)


def test_errors_of_training_queries_are_those_of_their_lists(finished):
    opened, drawn = finished
    table, judged = drawn["training_errors"].table, drawn["pairwise_errors"].table
    assert table.column("state") == judged.where(split="test").column("state")
    run, positives = opened.run(opened.trained_states[-1], "query"), opened.data.train
    lists = [run.passage_rows[a:b].tolist() for a, b in pairwise(run.offsets)]
    known = [positives.of(i).tolist() for i in range(len(positives))]
    k = int(table.columns[2].removeprefix("first "))
    errors = []
    for found, own in zip(lists, known, strict=True):
        wrong = [at for at, one in enumerate(found) if one not in own]
        assert len(found) >= k
        places = [found.index(row) if row in found else len(found) for row in own]
        errors.append(sum(min(sum(at < place for at in wrong), k) for place in places))
    assert table.rows[-1][2] == pytest.approx(np.mean(errors))
    assert table.column("queries without errors")[-1] == np.mean([one == 0 for one in errors])


def test_static_and_dynamic_negatives_lie_over_one_another(copied, trained):
    for place, start in ((copied, 0.5), (shutil.copytree(copied, copied.parent / "static"), 0.2)):
        rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
        for at, row in enumerate(rows):
            row |= {"overlap": start, "train_rr_10": start + at / 100, "train_errors": 20 - at}
        (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (place / "seal.json").unlink(missing_ok=True)
    _, drawn = drawn_of(copied, "ranks_by_step")
    steps = drawn["ranks_by_step"].table
    assert steps.column("RR@10")[0] == 0.5
    assert steps.column("errors")[:2] == [20, 19]
    report = compare_opened([make(opened_at(place), ["hardneg"]) for place in (copied, copied.parent / "static")])
    for name in ("static_and_dynamic", "ranks_by_step", "errors_by_step"):
        assert set(report.tables[name].column("experiment")) == {"copy", "static"}


def test_static_negatives_are_compared_with_what_states_retrieve(finished, trained, monkeypatch):
    opened, drawn = finished
    table = drawn["static_and_dynamic"].table
    states = opened.trained_states
    scratch = opened.states[1].name, opened.settings["settings"]["start"]
    assert scratch == ("untrained", "scratch"), "each episode begins at the untrained model"
    for name, group in (("episode 1", states[:2]), ("episode 3", [states[0], states[3]])):
        pool = opened.pools[name]
        expected = []
        for state in group:
            run = opened.run(state, "query")
            lists = without_positives(opened, run, pool.query_rows)
            now = {
                query: set(lists.passage_rows[a:b].tolist())
                for query, (a, b) in zip(lists.query_rows.tolist(), pairwise(lists.offsets.tolist()), strict=True)
            }
            shares = [
                np.mean([passage in now[query] for passage in pool.passage_rows[a:b].tolist()])
                for query, (a, b) in zip(pool.query_rows.tolist(), pairwise(pool.offsets.tolist()), strict=True)
                if b > a
            ]
            expected.append(np.mean(shares))
        assert table.where(negatives=name).column("overlap") == pytest.approx(expected)
    steps = drawn["learning_curve"].table.column("step")
    assert max(table.column("step")) == steps[-1]
    assert table.where(negatives="episode 1").column("step")[0] == 0
    monkeypatch.setattr(facts_time, "SAMPLED", 5)
    few = draw(drawn["static_and_dynamic"].figure, opened_at(trained)).table
    assert few.column("step") == table.column("step")
    assert few.column("overlap") != table.column("overlap")


def test_a_start_from_scratch_breaks_the_lines_of_the_states(finished, copied):
    _, drawn = finished
    ends = drawn["static_and_dynamic"].table.column("step")
    for name, column in (
        ("measured", "value"),
        ("ranks_by_step", "mean RR@10"),
        ("errors_by_step", "mean errors"),
    ):
        table = drawn[name].table
        first = [table.where(episode=episode).records()[0] for episode in (1, 2, 3, 4)]
        assert [row["step"] for row in first] == ends[::2], "each line begins where its episode begins"
        assert len({row[column] for row in first}) == 1, "at the untrained model"
        assert [table.where(episode=episode).column("step")[-1] for episode in (1, 2, 3, 4)] == ends[1::2]
        if drawn[name].spec is not None:
            assert drawn[name].spec["layer"][0]["encoding"]["detail"]["field"] == "episode"
    shutil.rmtree(copied / opened_at(copied).trained_states[0].runs / "query")
    _, without = drawn_of(copied, "static_and_dynamic")
    rows, all_rows = without["static_and_dynamic"].table.rows, drawn["static_and_dynamic"].table.rows
    assert rows == all_rows[1::2], "points without a run are left out"


def test_a_start_from_the_state_before_keeps_the_lines_whole(finished, copied):
    _, drawn = finished
    opened = opened_at(copied)
    opened.settings["course"]["restarts"] = False
    found = {
        one.name: draw(one, opened).table for one in FIGURES if one.name in ("measured", "static_and_dynamic")
    }
    assert "episode" not in found["measured"].columns
    assert found["measured"].column("state").count("untrained") == 1
    before, after = drawn["static_and_dynamic"].table, found["static_and_dynamic"]
    assert after.column("step") == before.column("step")
    assert after.where(negatives="episode 1") == before.where(negatives="episode 1")
    assert after.where(negatives="episode 3").rows[0] != before.where(negatives="episode 3").rows[0]


def test_ranks_and_errors_of_training_queries_are_those_of_the_states(finished):
    opened, drawn = finished
    table = drawn["ranks_by_step"].table
    table = Table(table.columns, (table.rows[0], *table.rows[1::2]))  # without the later starts from scratch
    by_state = drawn["training_errors"].table
    assert table.column("errors") == pytest.approx(by_state.column(by_state.columns[2]))
    known = opened.data_here.train
    for state, found in zip(opened.trained_states, table.column("RR@10"), strict=True):
        run = opened.run(state, "query")
        ranks = []
        for i, query in enumerate(known.query_rows.tolist()):
            at = run.query_rows.tolist().index(query)
            hits = run.passage_rows[run.offsets[at] : run.offsets[at + 1]].tolist()[:10]
            places = [hits.index(one) + 1 for one in known.of(i).tolist() if one in hits]
            ranks.append(1 / min(places) if places else 0.0)
        assert found == pytest.approx(np.mean(ranks))


def test_where_training_queries_were_not_searched_the_page_says_so(copied):
    results = json.loads((copied / "results.json").read_text())
    opened = opened_at(copied)
    opened.__dict__["results"] = results | {"examined": "judged"}
    for state in opened.trained_states:
        shutil.rmtree(copied / state.runs / "query", ignore_errors=True)
    (figure,) = [one for one in FIGURES if one.name == "static_and_dynamic"]
    found = draw(figure, opened)
    assert found.meant
    assert "examine = judged" in found.missing


def test_experiments_stand_side_by_side(trained, copied):
    settings = json.loads((copied / "settings.json").read_text())
    report = compare_opened([make(opened_at(place), ["hardneg"]) for place in (trained, copied)])
    assert report.several.names == [str(one) for one in report.several.names]
    assert "settings" not in report.tables  # the same in both
    assert settings["recipe"] == "ance-tele"
    assert report.charts["measured"].to_dict()["layer"][0]["encoding"]["y"]["title"] == "dev RR@10"
    tests = report.tables["comparisons"]
    assert set(tests.column("a - b")) == {0.0}
    assert set(tests.column("p")) == {1.0}
    assert report.verdict.kind == "unsure"
    assert set(report.tables["measured"].column("experiment")) == set(report.several.names)
    alone, first = make(opened_at(trained), ["hardneg"]).tables, report.several.names[0]
    for name, column in (("forgetting", "forgotten"), ("cost_summary", "training s"), ("cost_summary", "steps")):
        assert set(report.tables[name].column("experiment")) == set(report.several.names)
        assert report.tables[name].where(experiment=first).column(column) == alone[name].column(column)


def test_seeds_of_one_experiment_have_a_report_each_and_one_together(trained, tmp_path, monkeypatch):
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    for seed in (1, 2):
        shutil.copytree(trained, tmp_path / f"seed-{seed}")
    told = json.loads((trained / "results.json").read_text())
    (tmp_path / "results.json").write_text(json.dumps(pool_seeds({1: told, 2: told})))
    report = hn.diagnose(tmp_path, pictures=False)
    assert report.verdict.sentence.startswith("Over 2 seeds, test RR@10: the final model")
    for place in (tmp_path, tmp_path / "seed-1", tmp_path / "seed-2"):
        assert (place / "report.html").stat().st_size > 10_000
    pooled = (tmp_path / "report.html").read_bytes()
    (tmp_path / "report.html").write_text("of before")
    monkeypatch.setenv("HARDNEG_REPORT", "1")
    report_seeds(tmp_path, opened_at(trained).data, trained / "cache")  # as training does at its end
    assert (tmp_path / "report.html").read_bytes() == pooled


def test_show_prints_verdict_and_tables(trained, capsys):
    from hardneg.cli import run

    assert run(["show", str(trained)]) == 0
    out = capsys.readouterr().out
    assert "the final model" in out
    assert "Forgotten and learned" in out
    assert max(map(len, out.splitlines())) < 400


def test_show_prints_the_same_as_json(trained, tmp_path, hardneg):
    status, out, _ = hardneg("show", trained, "--json")
    (found,) = json.loads(out)
    assert (status, found["experiment"]) == (0, str(trained))
    _, said, _ = hardneg("show", trained)
    assert found["verdict"]["sentence"] in said
    assert all(line in said for line in (*found["verdict"]["advice"], *found["notes"]))
    states = {row["state"] for row in found["tables"]["results"]}
    assert {"untrained", "final"} <= states
    shutil.copytree(trained, tmp_path / "other")
    both = json.loads(hardneg("show", trained, tmp_path / "other", "--json")[1])
    assert [one["experiment"] for one in both] == [str(trained), str(tmp_path / "other"), "side by side"]
    assert both[-1]["tables"]["results"]


def test_show_says_what_began_the_experiment(trained, copied, hardneg):
    assert "\nbegun by: hn.train_ance_tele(...) in Python\n" in hardneg("show", trained)[1]
    places = json.loads((copied / "places.json").read_text())
    (copied / "places.json").write_text(json.dumps({"collection": places["collection"]}))  # of an earlier version
    assert "begun by" not in hardneg("show", copied)[1]
    assert json.loads(hardneg("show", copied, "--json")[1])[0]["begun_by"] is None


def test_who_goes_on_with_an_experiment_did_not_begin_it(copied, world):
    (copied / "places.json").unlink()
    with command_line(["train", "star"]):
        remember_collection(copied, world.collection)
    assert begun_by(copied) is None


def test_the_first_command_is_kept(world, tmp_path):
    for words in (["train", "star", "--out", "a folder"], ["train", "star", "--out", "again"]):
        with command_line(words):
            remember_collection(tmp_path, world.collection)
    assert begun_by(tmp_path) == "hardneg train star --out 'a folder'"


def test_training_tells_how_to_get_the_report_where_its_packages_are_missing(trained, monkeypatch, caplog):
    monkeypatch.setenv("HARDNEG_REPORT", "1")
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    told = []
    monkeypatch.setattr("hardneg.api.diagnose.say", told.append)
    report_training(trained, opened_at(trained).data, trained / "cache")
    assert len(told) == 1
    assert "pip install 'hardneg[report]'" in told[0]
    assert f"hardneg diagnose {trained}" in told[0]


def test_a_report_that_a_kill_left_half_written_is_made_again(trained, tmp_path, monkeypatch):
    pytest.importorskip("vl_convert")
    shutil.copytree(trained, tmp_path / "exp")
    hn.diagnose(tmp_path / "exp", pictures=False)
    whole = {path.name for path in (tmp_path / "exp/figures").iterdir()}
    monkeypatch.setenv("HARDNEG_REPORT", "1")
    monkeypatch.setattr("hardneg.api.diagnose.write", functools.partial(write, pictures=False))
    data, cache = opened_at(tmp_path / "exp").data, trained / "cache"
    making, left = sys.modules["hardneg.report.make"], []

    def killed(path, real=making.publish_file):
        left.append(path)
        if len(left) == 3:
            raise KeyboardInterrupt
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(making, "publish_file", killed)
        with pytest.raises(KeyboardInterrupt):
            hn.diagnose(tmp_path / "exp", pictures=False)
    assert not (tmp_path / "exp/report.html").exists()
    (tmp_path / f"exp/figures/{sorted(whole)[-1]}").unlink()
    report_again(tmp_path / "exp", data, cache)
    assert {path.name for path in (tmp_path / "exp/figures").iterdir()} == whole
    page = (tmp_path / "exp/report.html").stat()
    report_again(tmp_path / "exp", data, cache)  # a report that is there stays
    assert (tmp_path / "exp/report.html").stat() == page


def test_a_fault_of_the_report_leaves_training_alone(trained, monkeypatch, caplog):
    pytest.importorskip("altair")
    monkeypatch.setenv("HARDNEG_REPORT", "1")
    monkeypatch.setattr("hardneg.api.diagnose.write", lambda *_: 1 / 0)
    report_training(trained, opened_at(trained).data, trained / "cache")
    assert "hardneg diagnose" in caplog.text


# ---------------------------------------------------------------- an experiment that is at work


def begun(folder):
    """The folder of an experiment that has made a step and measured nothing yet."""
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 7, "episode": 1, "loss": 0.5}\n')
    return folder


def test_an_experiment_that_is_executed_now_says_by_whom(tmp_path, hardneg):
    folder, us = begun(tmp_path / "exp"), f"process {os.getpid()} on {socket.gethostname()}"
    with lease(folder):
        _, out, _ = hardneg("show", folder)
        assert "being executed" in about(opened_at(folder))
    assert f"is being executed by {us}: no state was measured; the last logged step is 7." in out
    assert "again to go on" not in out
    record = {"recipe": "ance-tele", "inputs": {}, "result_settings": {}} | Course(
        several_episodes=True
    ).as_record()
    write_settings(folder, record)
    _, out, _ = hardneg("show", folder)
    assert "is not finished: no state was measured; the last logged step is 7 of episode 1." in out
    assert "Run the same command again to go on." in out


def test_what_would_end_at_the_same_fault_is_not_advised(world, tmp_path, hardneg):
    """Until a command begins anew: then the fault that ended the one before says nothing any more."""
    folder = tmp_path / "exp"
    settings = {"steps": 2, "max_score": -1e9, "examine": "judged", "device": "cpu"}
    with pytest.raises(InputError, match="NO_NEGATIVES"):
        hn.train_star(world.collection, world.model, folder, **settings)
    _, out, _ = hardneg("show", folder)
    assert "ended by: NO_NEGATIVES: none of 60 training queries has a negative" in out
    assert "again to go on" not in out
    assert not opened_at(folder).notes
    told = Layout(folder).timing
    told.write_text(told.read_text() + '{"stage": "begin", "seconds": 0.1}\n{"stage": "mine", "seconds": 0.1}\n')
    _, out, _ = hardneg("show", folder)
    assert "ended by" not in out
    assert "Run the same command again to go on." in out


def test_roles_without_a_supervisor_execute_it_too(tmp_path, hardneg):
    folder = begun(tmp_path / "exp")
    with lease(Layout(folder).role("trainer")):
        assert "is being executed by process" in hardneg("show", folder)[1]
    (folder / "metrics.jsonl").write_text("")
    with lease(folder):
        assert "is being executed by process" in (said := hardneg("show", folder)[1])
    assert "and has not measured anything yet." in said


def test_a_chart_that_cannot_be_drawn_becomes_a_note(copied, monkeypatch):
    figures = copied / "figures"
    for end in (".png", ".svg"):
        (figures / f"results{end}").write_text("old")

    def fail(place, _):
        if place.name == "results":
            raise RuntimeError("no such\nletter")
        place.with_name(f"{place.name}.png").write_text("drawn")

    monkeypatch.setattr(pictures, "usable_threads", lambda: 1)
    monkeypatch.setattr(pictures, "draw", fail)
    report = write(opened_at(copied), ["again"])
    assert report.notes == ["the chart results has no pictures (no such letter)"]
    assert report.notes[0] in (copied / "report.html").read_text()
    assert {one.name for one in figures.glob("results.*")} == {"results.csv"}
    assert (figures / "cost.png").read_text() == "drawn"


def test_no_figure_of_an_earlier_report_stays_with_other_numbers(copied, tmp_path):
    """Neither a picture that is not drawn again, nor a figure that there is no more; the user's files do."""
    figures = copied / "figures"
    figures.mkdir(exist_ok=True)
    (figures / "mine.png").write_text("the user's")
    names = [figure.name for figure in FIGURES]
    report = write(opened_at(copied), ["first"], pictures=False)
    there = set(report.tables)
    assert len(names) > len(there) > 5

    def pretend():
        for name in names:
            for end in (".png", ".svg", *([] if name in there else [".csv"])):
                (figures / f"{name}{end}").write_text("old")

    def left():
        return {path.name for path in figures.iterdir()} - {"mine.png"}

    numbers, pictures = (
        {f"{name}.csv" for name in there},
        {f"{name}.{end}" for name in there for end in ("png", "svg")},
    )
    pretend()
    opened = opened_at(copied)
    assert (opened.data is not None, opened.notes) == (True, [])
    write(opened, ["again"], pictures=False)
    assert left() == numbers | pictures  # the pictures of the same numbers
    changed = sorted(there)[0]
    (figures / f"{changed}.csv").write_text("other numbers")
    write(opened_at(copied), ["again"], pictures=False)
    assert left() == numbers | pictures - {f"{changed}.png", f"{changed}.svg"}
    pretend()
    lost = opened_at(copied)
    lost.data = None
    write(lost, ["again"], pictures=False)  # the collection cannot be read now: nothing is taken to be no more
    assert {f"{name}.csv" for name in names} <= left()
    assert (figures / "mine.png").read_text() == "the user's"
