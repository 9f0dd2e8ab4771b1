"""The study of AR2: what it executes, its parts of collections, and its page, on the tiny world."""

import importlib
import itertools
import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from hardneg.api.recipes import settings_of
from hardneg.cli import run
from hardneg.data.collection import Collection
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

STUDIES = Path(__file__).resolve().parents[2] / "studies"
MODULES = ("ar2", "ar2_cells", "ar2_cost", "ar2_part", "ar2_report", "harness", "outcomes")
SMALL = (
    "--warm-steps 2 --warm-queries 4 --first-ranker-steps 2 --iterations 2 --retriever-steps 2 --ranker-steps 1 "
    "--queries-per-step 4 --ranker-queries 4 --negatives 3 --sizes 1,3 --depth 20 --rerank-depth 4 "
    "--passage-length 16 --seeds 1 --queries 30 --dev 6 --test 8 --passages 90"
)


@pytest.fixture(scope="module")
def module():
    """By name the modules of the study. They stay imported: other studies hold the same harness."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(STUDIES))
        yield Namespace(**{name: importlib.import_module(name) for name in MODULES})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A collection's folder and a model's."""
    folder = tmp_path_factory.mktemp("world")
    collection = tiny_collection(folder / "collection")
    return Namespace(data=str(folder / "collection"), model=tiny_model(folder / "model", collection))


def chosen(module, *words):
    return module.harness.command_line("", module.ar2.options).parse_args(["--out", "none", *map(str, words)])


# ---------------------------------------------------------------- what is executed


def all_steps(module, options):
    return list({step.name: step for steps in module.ar2_cells.rounds(options) for step in steps}.values())


def test_every_step_is_a_valid_experiment_of_equal_steps(module, tmp_path):
    options = chosen(module)
    study = module.harness.Study(tmp_path, "D", "M", module.ar2.common_of(options, answers=False), 1)
    steps = all_steps(module, options)
    assert len(steps) == 3 * 12
    for step in steps:
        words = study.command(step)
        settings = settings_of(step.recipe, None, None, [b for a, b in itertools.pairwise(words) if a == "--set"])
        settings.check()
        if module.ar2_cells.cell_of(step.name)[0] not in ("g0", "d0"):
            assert module.ar2_report.steps_of(study.settings_of(step)) == 120
            assert step.needs >= {step.name.replace(module.ar2_cells.cell_of(step.name)[0], "g0", 1)}


def test_what_says_most_comes_first_and_all_of_a_seed_share_g0_and_d0(module):
    options = chosen(module, "--seeds", 2)
    first, second, third, fourth = module.ar2_cells.rounds(options)
    cells = [module.ar2_cells.cell_of(step.name) for step in first]
    assert cells[:3] == [("g0", 42), ("d0", 42), ("ar2", 42)]
    assert {seed for _, seed in cells} == {42}
    assert {"n-1", "n-3", "n-15", "irgan"} <= {module.ar2_cells.cell_of(step.name)[0] for step in second}
    assert {module.ar2_cells.cell_of(step.name)[1] for step in third + fourth} == {43}
    groups = module.ar2_cells.levels(first)
    names = [[step.name for step in group] for group in groups]
    assert names[0] == ["g0-seed-42"]
    assert names[1][0] == "d0-seed-42"
    assert names[2] == [f"{cell}-seed-42" for cell in ("ar2", "distil", "adversarial")]


def test_d0_is_trained_only_for_games(module):
    [steps] = module.ar2_cells.rounds(chosen(module, "--seeds", 1, "--only", "static,tele"))
    assert [step.name for step in steps] == ["g0-seed-42", "static-seed-42", "tele-seed-42"]


@pytest.mark.parametrize(
    ("only", "cells"),
    [
        ("1", ["ar2", "static", "ance", "tele"]),
        ("2", ["ar2", "distil", "adversarial"]),
        ("3", ["ar2", "adversarial", "irgan", "n-1", "n-3", "n-15"]),
        ("4", ["ar2"]),
        ("static,n-1", ["static", "n-1"]),
    ],
)
def test_questions_and_cells_are_chosen_by_name(module, only, cells):
    assert module.ar2_cells.wanted(chosen(module, "--only", only)) == cells


def test_an_unknown_cell_is_refused(module):
    with pytest.raises(SystemExit, match="--only ance-tele: there are 1, 2, 3, 4, adversarial"):
        module.ar2.check(chosen(module, "--only", "ance-tele"))


def test_a_collection_that_is_absent_is_skipped_with_a_line(module, world):
    lines = []
    options = chosen(module, "--data", f"{world.data},pydocs,qa:/nowhere/wiki")
    assert module.ar2.present(options, lines.append) == [world.data, "pydocs"]
    assert lines == ["qa:/nowhere/wiki: not there, skipped"]


def test_a_kept_step_is_made_again_only_for_its_model(module, tmp_path):
    """A clone has the kept lines and no models: what is not done yet needs G⁰, what is done needs nothing."""
    options = chosen(module, "--seeds", 1, "--only", "1")
    steps = all_steps(module, options)
    study = module.harness.Study(tmp_path, "D", "M", {}, 1).planning(steps)

    def keep(*names):
        lines = [module.outcomes.Outcome(step.name, study.settings_of(step), {}) for step in steps]
        study.kept.update({one.key: one for one in lines if one.experiment in names})

    keep(*(step.name for step in steps))
    assert study.lacking(steps) == []
    study.kept.pop(("D", "static-seed-42"))
    assert [step.name for step in study.lacking(steps)] == ["g0-seed-42", "static-seed-42"]
    keep("g0-seed-42")
    (tmp_path / "g0-seed-42/model").mkdir(parents=True)
    assert [step.name for step in study.lacking(steps)] == ["static-seed-42"]


def test_a_game_is_given_d0(module, tmp_path):
    study = module.harness.Study(tmp_path, "D", "M", {}, 1)
    step = next(step for step in all_steps(module, chosen(module)) if step.name == "irgan-seed-42")
    words = study.command(step)
    assert words[words.index("--ranker") + 1] == str(tmp_path / "d0-seed-42/model")
    assert words[words.index("--model") + 1] == str(tmp_path / "g0-seed-42/model")
    assert study.settings_of(step)["given"] == {"--ranker": "d0-seed-42/model"}


def test_the_cost_of_cells_by_hand(module):
    options = chosen(module, "--seeds", 1, *SMALL.split()[:-8])
    amounts = module.ar2_cost.Amounts(passages=100, train=40, judged=20)
    common = module.ar2.common_of(options, answers=False)
    found = {
        module.ar2_cells.cell_of(step.name)[0]: module.ar2_cost.reads(step, common, amounts)
        for step in all_steps(module, options)
    }
    state = 100 + 60 / 4
    assert found["g0"] == 2 * state + 3 * 2 * 4 * 2
    assert found["d0"] == state + 1.5 * (3 * 2 * 4 * 4 + 2 * 4 * 20)
    assert found["static"] == 2 * state + 3 * 4 * 4 * 4
    assert found["ance"] == 3 * state + 3 * 4 * 4 * 4
    assert found["tele"] == 4 * state + 3 * 4 * 4 * 4
    game = 3 * state + 2 * (4.5 * 2 * 4 * 4 + 4.5 * 1 * 4 * 4)
    assert found["adversarial"] == game
    assert found["ar2"] == game + 1.5 * 4 * 20 * 6
    assert found["n-1"] < found["adversarial"]


# ---------------------------------------------------------------- parts of a collection


def test_a_part_has_the_positives_of_its_queries_and_is_drawn_once(module, world, tmp_path):
    whole, size = Collection.open(world.data), module.ar2_part.Size(queries=30, dev=6, test=8, passages=90)
    place = module.ar2_part.part_of(world.data, size, tmp_path)
    assert Path(place).name == "collection-q30-d6-t8-p90"
    part = Collection.open(place)
    assert part.n_passages == 90
    for split, count in (("train", 30), ("dev", 6), ("test", 8)):
        ours, all_of_them = part.qrels(split), whole.qrels(split)
        assert len(ours) == count
        found = module.ar2_part.judgements(part, ours)
        known = module.ar2_part.judgements(whole, all_of_them)
        assert all(known[query] == grades for query, grades in found.items())
    again = module.ar2_part.part_of(world.data, size, tmp_path / "again")
    assert Collection.open(again).digest == part.digest
    assert module.ar2_part.part_of(world.data, module.ar2_part.Size(), tmp_path) == world.data


def test_a_part_keeps_answers(module, tmp_path):
    qrels = {split: {f"{split}{i}": [f"p{i}"] for i in range(4)} for split in ("train", "dev", "test")}
    queries = {query: "what is it" for judged in qrels.values() for query in judged}
    answers = {query: [f"answer {query}"] for query in queries}
    passages = [(f"p{i}", f"text {i}") for i in range(9)]
    Collection.from_lists(passages, queries, qrels, answers=answers, to=tmp_path / "whole")
    place = module.ar2_part.part_of(str(tmp_path / "whole"), module.ar2_part.Size(queries=2), tmp_path)
    part = Collection.open(place)
    assert part.n_queries == 10
    assert {part.query_ids[row]: part.answers(row) for row in range(10)} == {
        query: answers[query] for query in part.query_ids.take(np.arange(10))
    }


# ---------------------------------------------------------------- figures


def test_every_measure_follows_from_the_rank_of_the_first_positive(module):
    queries = {"test": {"final": {"RR@100": [1, 3, 0, 100, 11, 5]}}}
    one = module.outcomes.Outcome("ar2-seed-42", {}, {}, queries=queries)
    values = module.ar2_report.values_of
    assert values(one, "final", "R@1").tolist() == [1, 0, 0, 0, 0, 0]
    assert values(one, "final", "R@3").tolist() == [1, 1, 0, 0, 0, 0]
    assert values(one, "final", "R@5").tolist() == [1, 1, 0, 0, 0, 1]
    assert values(one, "final", "R@100").tolist() == [1, 1, 0, 1, 1, 1]
    assert values(one, "final", "RR@10").tolist() == [1, 1 / 3, 0, 0, 0, 0.2]
    assert values(one, "untrained", "R@1") is None
    answered = {"Answer@5": {"values": [0.0, 1.0, None], "at": [1, 1, 2, 0, 0, 0]}}
    queries["test"]["final"] |= answered
    np.testing.assert_array_equal(values(one, "final", "R@5"), [1, 1, np.nan, 0, 0, 0])


def outcome(module, cell, seed, ranks, **settings):
    shared = {"data": "D", "model": "M", "precision": "float32", "passage_length": 64, "learning_rate": 1e-5}
    game = {"refreshes": 1, "refresh_every": 5} if cell in ("static", "ance") else {}
    return module.outcomes.Outcome(
        f"{cell}-seed-{seed}",
        shared | game | settings,
        {},
        queries={"test": {"final": {"RR@100": ranks}}},
    )


def test_differences_are_of_the_seeds_that_both_have_and_sentences_say_how_many(module):
    report = module.ar2_report
    good, bad = [1] * 40, [2] * 40
    ones = [outcome(module, "ance", seed, good) for seed in (42, 43)] + [outcome(module, "static", 42, bad)]
    told = report.Told({one.experiment: one for one in ones})
    text = report.tests_table(told, [("ANCE − static", ("ance", "final"), ("static", "final"))])
    assert "| ANCE − static | 1 | +1.0000" in text
    assert text.splitlines()[-1].startswith("- ANCE − static, RR@10 (one seed): the first is higher (+0.5000")
    text = report.tests_table(told, [("ANCE − AR2", ("ance", "final"), ("ar2", "final"))])
    assert text.splitlines()[2] == "| ANCE − AR2 | 0 | not run | not run | not run |"


def test_p_values_are_corrected_over_the_whole_table(module):
    report = module.ar2_report
    draw = np.random.default_rng(0)
    ones = [outcome(module, cell, 42, draw.integers(1, 9, 60).tolist()) for cell in ("ance", "static", "tele")]
    told = report.Told({one.experiment: one for one in ones})
    places = [("a", ("ance", "final"), ("static", "final")), ("b", ("tele", "final"), ("static", "final"))]
    lines = report.tests_table(told, places).splitlines()[2:4]
    raw = [report.compared(told, a, b, [42], measure)["p"] for _, a, b in places for measure in report.TESTED]
    shown = [cell.rpartition("p ")[2].split(" → ") for line in lines for cell in line.split("|")[3:6]]
    corrected = importlib.import_module("hardneg.evaluation.significance").holm(raw)
    assert [(float(p), float(q)) for p, q in shown] == [
        (float(f"{p:.2g}"), float(f"{q:.2g}")) for p, q in zip(raw, corrected, strict=True)
    ]


def test_the_page_says_whether_d0_is_ahead(module):
    ones = [outcome(module, "d0", seed, [1, by]) for seed, by in ((42, 1), (43, 4))]
    for one in ones:
        one.queries["test"]["retriever"] = {"RR@100": [1, 2]}
    [line] = module.ar2_report.readiness(module.ar2_report.Told({one.experiment: one for one in ones}))
    assert line.startswith(
        "D⁰ orders the same hits better than G⁰ with 1 of 2 seeds: test RR@10 is 0.7500 ± 0.0000 by"
    )
    assert line.endswith("0.8125 ± 0.2652 by D⁰. With the other seeds the retriever learns from a worse ranker.")
    assert module.ar2_report.readiness(module.ar2_report.Told({})) == []


def test_a_d0_that_is_behind_is_told_at_once(module, tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(module.ar2, "say", lines.append)
    study = module.harness.Study(tmp_path, "D", "M", {}, 1)
    steps = [module.ar2_cells.first_ranker(chosen(module), seed) for seed in (42, 43)]
    for step, after in zip(steps, (0.4, 0.6), strict=True):
        results = {"dev": {"retriever": {"RR@10": 0.5}, "final": {"RR@10": after}}}
        study.found[step.name] = module.outcomes.Outcome(step.name, {}, results)
    module.ar2.tell_rankers(study, [*steps, module.ar2_cells.warm_up(chosen(module), 42)])
    assert lines[0].endswith("it is not ahead; train it longer (--first-ranker-steps)")
    assert lines[1] == "d0-seed-43: dev RR@10 0.5000 by G⁰, 0.6000 by D⁰ on the same hits"


def test_cells_that_were_not_trained_alike_make_no_page(module):
    check = module.ar2_report.check_alike
    first = outcome(module, "ance", 42, [1])
    check([first, outcome(module, "static", 42, [1])])
    with pytest.raises(SystemExit, match="D: static-seed-42 has steps = 12, ance-seed-42 10; make one anew"):
        check([first, outcome(module, "static", 42, [1], refresh_every=6)])
    with pytest.raises(SystemExit, match=r"static-seed-42 has learning_rate = 0\.1, ance"):
        check([first, outcome(module, "static", 42, [1], learning_rate=0.1)])


# ---------------------------------------------------------------- the whole, once


@pytest.fixture(scope="module")
def told(module, world, tmp_path_factory):
    """The study of one seed with two cells, executed in this process: its folder, page and kept lines."""
    folder = tmp_path_factory.mktemp("study")
    executed = []

    def execute(study, step, place=0):
        if not study.is_done(step.name):
            executed.append(step.name)
            assert run(study.command(step, place)) == 0

    def tell(*more, out="out"):
        places = ["--out", folder / out, "--data", world.data, "--model", world.model]
        places += ["--kept", folder / "kept.jsonl", "--report", folder / "page.md"]
        options = chosen(module, *places, *SMALL.split(), *more)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HARDNEG_REPORT", "0")
            patch.setattr(module.harness.Study, "execute", execute)
            patch.setattr(
                module.harness.Study, "execute_all", lambda study, steps, _: [execute(study, one) for one in steps]
            )
            module.ar2.main(options)
        return (folder / "page.md").read_text()

    text = tell("--only", "ar2,static")
    return Namespace(text=text, tell=tell, folder=folder, executed=executed)


def test_the_page_has_every_part_and_says_what_did_not_run(module, told):
    assert sorted(told.executed) == [f"{cell}-seed-42" for cell in ("ar2", "d0", "g0", "static")]
    text = told.text
    assert "AR2 − static negatives, RR@10 (one seed): " in text
    assert "D⁰ orders the same hits better than G⁰ with " in text
    assert "| AR2 − ANCE | 0 | not run | not run | not run |" in text
    grid = [line for line in text.splitlines() if line.startswith(("| G⁰, ", "| G, "))]
    assert len(grid) == 6
    assert "not run" not in "".join(grid)
    iterations = text.split("ranker on G⁰'s hits")[1].splitlines()[2:5]
    assert [line.split(" | ")[0] for line in iterations] == ["| 0", "| 1", "| 2"]
    assert "not run" not in "".join(iterations)
    assert str(told.folder) not in text
    assert "nan" not in text


def test_kept_figures_are_those_of_the_experiments(module, told):
    [file] = told.folder.glob("kept.jsonl*")
    kept = {one.experiment: one for one in module.outcomes.read(told.folder / "kept.jsonl").values()}
    assert file.name == "kept.jsonl"
    results = json.loads((told.folder / "out/collection-q30-d6-t8-p90/ar2-seed-42/results.json").read_text())
    states = set(results["test"])
    assert states == set(kept["ar2-seed-42"].queries["test"])
    for state in states:
        for measure in ("RR@10", "Success@5"):
            ours = measure.replace("Success", "R")
            values = module.ar2_report.values_of(kept["ar2-seed-42"], state, ours)
            assert values.mean() == pytest.approx(results["test"][state][measure], abs=1e-12)
    assert kept["ar2-seed-42"].results["entropy"] == results["entropy"]
    models = {row.get("model") for row in kept["ar2-seed-42"].timing if row["stage"] == "train"}
    assert models == {"ranker", "retriever"}
    reranked = [row for row in kept["ar2-seed-42"].timing if row["stage"] == "rerank"]
    assert len(reranked) == 2 * 2 * (1 + 2)  # dev and test; hits of G⁰ and of an iteration; by D⁰ and by D twice


def test_the_page_is_made_again_from_what_is_kept(told):
    assert told.tell("--only-report", out="none") == told.text


def test_the_list_says_what_is_done_and_what_the_rest_takes(module, told, monkeypatch):
    lines = []
    monkeypatch.setattr(module.ar2, "say", lambda text: lines.extend(text.splitlines()))
    told.tell("--list", "--only", "1")
    states = dict(line.removeprefix("collection-q30-d6-t8-p90 ").split(": ", 1) for line in lines)
    assert [states[f"{cell}-seed-42"] for cell in ("g0", "d0", "ar2", "static")] == ["done"] * 4
    assert states["ance-seed-42"] == "to do, 0.0 hours"
    assert lines[-1] == "collection-q30-d6-t8-p90: 2 to do, about 0.0 hours of an old core"


@pytest.mark.slow
def test_the_committed_page_is_what_its_kept_outcomes_say(module, tmp_path):
    pages = STUDIES.parent / "docs/studies"
    kept = [file for name in ("ar2.jsonl", "ar2.jsonl.gz") if (file := pages / name).is_file()]
    if not kept:
        pytest.skip("nothing was run yet")
    for file in (*kept, pages / "ar2.md"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    places = ["--out", tmp_path / "none", "--kept", tmp_path / "ar2.jsonl", "--report", tmp_path / "ar2.md"]
    module.ar2.main(chosen(module, *places, "--only-report"))
    assert (tmp_path / "ar2.md").read_text() == (pages / "ar2.md").read_text()


def test_what_is_done_is_not_executed_again(told):
    before = list(told.executed)
    told.tell("--only", "ar2,static")
    assert told.executed == before
