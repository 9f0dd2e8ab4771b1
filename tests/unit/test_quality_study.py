"""The study of quality in equal time: its rule, its cells and its page, with contenders that train nothing."""

import importlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hardneg.api import recipes
from worlds.tiny_world import tiny_collection, tiny_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "studies"))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.fixture
def quality():
    """A module of the study by its name."""
    return lambda name: importlib.import_module(f"quality.{name}")


# ---------------------------------------------------------------- the rule


class Hand:
    """A clock that goes only when somebody trains."""

    def __init__(self, budget):
        self.budget, self.elapsed, self.notes = budget, 0.0, []

    @property
    def left(self):
        return self.budget - self.elapsed

    def note(self, **facts):
        self.notes.append(facts)


class Trainer:
    """Takes 10 seconds a run, 1 a step and 2 a measurement; is as good as a point says, if it makes many steps."""

    def __init__(self, rule, clock, quality, slow=1.0):
        self.rule, self.clock, self.quality, self.slow, self.runs = rule, clock, quality, slow, []

    def __call__(self, point, steps, looks, name):
        factor = 1.0 if name == "pace" else self.slow
        seconds = factor * (10 + steps + 2 * (looks - 1))
        self.clock.elapsed += seconds
        self.runs.append((name, point, steps, looks))
        value = self.quality(point) * (1 - 1 / (1 + steps))
        dev = {"untrained": 0.5, "last": value}
        return self.rule.Run(
            point, steps, looks, dev, "last", value, Path(name), seconds, 10 * factor, factor, 2 * factor
        )


def competed(rule, budget, quality=lambda point: 0.8, slow=1.0):
    clock = Hand(budget)
    trainer = Trainer(rule, clock, quality, slow)
    return rule.compete(trainer, clock), trainer, clock


def test_half_of_the_time_goes_to_the_grid_and_half_to_its_best_point(quality):
    rule = quality("rule")
    best = rule.GRID[2]
    result, trainer, clock = competed(rule, 1000, lambda point: 0.9 if point == best else 0.7)
    names = [name for name, *_ in trainer.runs]
    assert names == ["pace", "point-0", "point-1", "point-2", "point-3", "final"]
    steps = [made for _, _, made, _ in trainer.runs]
    assert steps[0] == rule.PACE_STEPS
    assert len(set(steps[1:5])) == 1  # equal trials
    assert steps[5] > 3 * steps[1]
    assert trainer.runs[-1][1] == best
    assert result.chosen["rate"] == best.rate
    assert result.chosen["trained"]
    assert result.model == Path("final")
    assert 0.9 * clock.budget < clock.elapsed <= clock.budget
    assert all(2 * (looks - 1) <= rule.LOOKING * (20 + made * 2) for _, _, made, looks in trainer.runs[1:])


def test_a_point_that_could_hardly_train_has_no_grid(quality):
    rule = quality("rule")
    _, trainer, clock = competed(rule, 250)
    assert [name for name, *_ in trainer.runs] == ["pace", "final"]
    assert trainer.runs[-1][1] == rule.GRID[0]
    assert clock.elapsed <= clock.budget


def test_a_machine_that_slows_down_costs_trials_and_not_the_final_run(quality):
    rule = quality("rule")
    _, trainer, clock = competed(rule, 1000, slow=3.0)
    names = [name for name, *_ in trainer.runs]
    assert names[-1] == "final"
    assert "point-3" not in names
    assert clock.elapsed <= clock.budget * 1.05


def test_the_model_before_training_is_handed_in_where_nothing_beats_it(quality):
    rule = quality("rule")
    result, *_ = competed(rule, 1000, lambda point: 0.4)
    assert result.model is None
    assert result.chosen == {"dev": 0.5, "before": 0.5, "trained": False}


# ---------------------------------------------------------------- cells


def outcome(cells, cell, values, *, seconds=None, threads=2, grid=((3e-5, 20.0),), collection="c"):
    machine = {"cpu": "a processor", "features": ["avx2"], "versions": {"torch": "2"}}
    facts = {
        "threads": threads,
        "at_a_time": 1,
        "device": "cpu",
        "precision": "float32",
        "length": 64,
        "model": "M",
    } | ({} if cell.reference else {"grid": [list(point) for point in grid]})
    chosen = {"dev": 0.7, "before": 0.6, "trained": True, "rate": 3e-5, "scale": 20.0}
    queries = cells.packed_all({name: np.asarray(values, float) for name in cells.MEASURES})
    seconds = 60 * cell.minutes if seconds is None else seconds
    runs = [] if cell.reference else [{"steps": 100}]
    stages = {"train": 0.7 * seconds}
    found = {} if cell.reference else chosen
    return cells.Outcome(cell, seconds, stages, runs, found, {**facts, "machine": machine}, queries, collection)


@pytest.fixture
def known(quality):
    """Two peers and ours on 40 queries: ours is better than the plain one, and as good as the best."""
    cells = quality("cells")
    draw = np.random.default_rng(0)
    ranks = draw.integers(2, 9, 40)
    values = {"untrained": 1 / (ranks + 1), "bm25": 1 / (ranks + 2), "st-in-batch": 1 / ranks}
    values |= {"st-mined": 1 / (ranks - 1), "hardneg-warmup": 1 / (ranks - 1)}
    found = cells.all_cells(["D"], ["full"], ["as-is"], [10.0], list(values)[2:], [1, 2])
    return {cell: outcome(cells, cell, values[cell.contender]) for cell in found}


def test_contenders_of_a_comparison_stand_together(quality):
    cells = quality("cells")
    found = cells.all_cells(["A", "B"], ["full", "2000"], ["as-is", "anew"], [30, 10], ["x", "y"], [1, 2])
    assert len({cell.name for cell in found}) == len(found) == 2 + 4 + 2 * 2 * 2 * 2 * 2 * 2
    assert [cell.contender for cell in found[:6]] == ["bm25"] * 2 + ["untrained"] * 4
    trained = found[6:]
    assert [cell.contender for cell in trained] == ["x", "y"] * (len(trained) // 2)
    assert {cell.seed for cell in trained[: len(trained) // 2]} == {1}
    assert cells.hours(trained[:4]) == pytest.approx(4 * 660 / 3600)


def test_outcomes_are_kept_as_they_were(quality, known, tmp_path, monkeypatch):
    cells = quality("cells")
    for one in known.values():
        cells.write(tmp_path, one)
    assert cells.read_cells(tmp_path) == known
    for large in (10**9, 0):
        monkeypatch.setattr(cells, "LARGE", large)
        cells.save_kept(tmp_path / "kept.jsonl", known.values())
        assert cells.read_kept(tmp_path / "kept.jsonl") == known
        assert len(list(tmp_path.glob("kept*"))) == 1


def test_a_cell_that_took_too_long_is_known(quality, known):
    cells = quality("cells")
    one = next(one for cell, one in known.items() if not cell.reference)
    assert not one.over
    assert outcome(cells, one.cell, [1.0], seconds=640).over


# ---------------------------------------------------------------- the page


def test_the_page_says_who_is_better(quality, known, tmp_path):
    page = quality("page")
    page.write(tmp_path / "page.md", known.values())
    text = (tmp_path / "page.md").read_text()
    assert "| hardneg-warmup | better 0, worse 0, open 1 | better 1, worse 0, open 0 | better 1, worse 0" in text
    assert "st-mined (best peer) | 1, 2 | +0.0000" in text
    assert "D, all training queries, the model as it is, 10 minutes" in text
    assert text.count("hardneg-warmup | 1, 2 |") == 1
    page.write(tmp_path / "page.md", known.values())
    assert (tmp_path / "page.md").read_text() == text  # made again, the same


def test_holm_counts_all_tests_of_the_page(quality, known):
    page = quality("page")
    groups = page.groups_of(known)
    tests, of_fused = page.all_tests(known, groups)
    assert (len(tests), of_fused) == (3, [])
    smallest = min(tests, key=lambda one: one.test["p"])
    assert smallest.holm == pytest.approx(3 * smallest.test["p"])
    fused = {cell: replace(one, fused={"queries": one.queries, "weight": 0.0}) for cell, one in known.items()}
    tests, of_fused = page.all_tests(fused, groups)
    assert (len(tests), len(of_fused)) == (3, 12)
    assert [one.contender.endswith(", fused") for one in (*tests, *of_fused)] == [False] * 3 + [True] * 12
    smallest = min((*tests, *of_fused), key=lambda one: one.test["p"])
    assert smallest.holm == pytest.approx(15 * smallest.test["p"])
    text = page.tables(fused)
    assert all(f"| {one.test['p']:.2g} | {one.holm:.2g} |" in text for one in (*tests, *of_fused))


def test_fused_runs_are_compared_with_what_they_are_made_of(quality, known, tmp_path):
    cells, page = quality("cells"), quality("page")
    assert "Fused" not in page.tables(known)
    best = cells.packed_all({name: np.ones(40) for name in cells.MEASURES})
    late = {
        cell: replace(one, fused={"queries": best, "weight": 0.4})
        for cell, one in known.items()
        if cell.contender in ("untrained", "hardneg-warmup")
        or (cell.contender == "st-in-batch" and cell.seed == 2)
    }
    tests = quality("fused").tests_of_fusion(known | late, page.groups_of(known))
    assert [(one.contender, one.against, one.seeds) for one in tests] == [
        ("untrained, fused", "the model alone", [0]),
        ("untrained, fused", "BM25 alone", [0]),
        ("st-in-batch, fused", "the model alone", [2]),
        ("st-in-batch, fused", "BM25 alone", [2]),
        ("st-in-batch, fused", "untrained, fused", [2]),
        ("hardneg-warmup, fused", "the model alone", [1, 2]),
        ("hardneg-warmup, fused", "BM25 alone", [1, 2]),
        ("hardneg-warmup, fused", "untrained, fused", [1, 2]),
        ("hardneg-warmup, fused", "st-in-batch, fused", [2]),
    ]
    ours = known[next(cell for cell in known if cell.contender == "hardneg-warmup")]
    assert tests[5].test["difference"] == pytest.approx(1 - ours.values("nDCG@10").mean())
    assert tests[8].test["difference"] == 0
    text = page.tables(known | late)
    assert (
        "| hardneg-warmup | 1, 2 | 1.0000 ± 0.0000 | 1.0000 ± 0.0000 | 1.0000 ± 0.0000 | 0.4000 ± 0.0000 |" in text
    )
    assert "| untrained |  | 1.0000 |" in text
    assert "st-mined, fused" not in text  # whose cells are older


def test_unlike_cells_are_not_compared(quality, known):
    cells, page = quality("cells"), quality("page")
    for change in ({"threads": 4}, {"grid": [[1e-4, 20.0]]}, {"collection": "another"}):
        unlike = {
            cell: outcome(cells, cell, one.values("RR@10"), **change) if cell.contender == "st-mined" else one
            for cell, one in known.items()
        }
        with pytest.raises(SystemExit, match="run its cells anew"):
            page.tables(unlike)


def test_a_page_of_nothing_says_so(quality, tmp_path):
    page = quality("page")
    page.write(tmp_path / "page.md", [])
    assert page.EMPTY in (tmp_path / "page.md").read_text()


# ---------------------------------------------------------------- material and the command line


def test_all_train_choose_and_are_judged_by_the_same_queries(quality, tmp_path):
    material = quality("material")
    collection = tiny_collection(tmp_path / "whole")
    splits = [material.splits_of(collection, "20", seed) for seed in (1, 1, 2)]
    assert splits[0] == splits[1]
    assert splits[0]["train"] != splits[2]["train"]
    assert [len(splits[0][name]) for name in ("train", "dev", "test")] == [20, 16, 16]
    assert splits[0]["dev"] == splits[2]["dev"]
    place = material.collection_folder(str(tmp_path / "whole"), "20", 1, tmp_path / "data")
    pairs, corpus, dev = quality("peers").texts_of(str(place))
    assert {query for query, _ in pairs} == set(
        collection.query_texts.take(collection.query_ids.rows(sorted(splits[0]["train"])))
    )
    assert len(corpus) == 120
    assert len(dev[0]) == 16


def test_a_folder_holds_the_models_of_several_commands(quality, tmp_path):
    """Else the cells of another model would train and test the first one."""
    pytest.importorskip("sentence_transformers")
    collection = tiny_collection(tmp_path / "whole")
    sources = [tiny_model(tmp_path / name / "bert", collection, seed=seed) for seed, name in enumerate("ab")]
    made = [
        quality("material").base_folder(source, "as-is", 16, tmp_path / "models")
        for source in (*sources, sources[0])
    ]
    assert made[0] == made[2] != made[1]
    assert all(place.name.startswith("as-is-16-bert-") for place in made)
    for source, place in zip(sources, made, strict=False):
        was, now = (load_file(Path(folder) / "model.safetensors") for folder in (source, place))
        assert all((was[name] == now[name]).all() for name in was)


def test_what_is_missing_is_listed_and_estimated(quality, known, tmp_path, capsys):
    cells, study = quality("cells"), quality("study")
    words = ["--out", str(tmp_path), "--data", "D", "--sizes", "full", "--starts", "as-is", "--minutes", "10"]
    words += ["--seeds", "1,2", "--contenders", "st-in-batch,st-mined,hardneg-warmup"]
    words += ["--threads", "2", "--precision", "float32", "--model", "M", "--grid", "3e-5:20"]
    for cell, one in known.items():
        if cell.seed < 2:
            cells.write(tmp_path, one)
    assert study.main([*words, "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["done"] * 5 + ["missing"] * 3
    assert lines[-1] == "3 of 8 cells are missing: about 0.6 hours, 1 at a time"
    assert study.main([*words, "--estimate", "--only", "*st-*seed-2"]) == 0
    assert capsys.readouterr().out == "2 of 2 cells are missing: about 0.4 hours, 1 at a time\n"
    with pytest.raises(SystemExit, match="no contender is called somebody"):
        study.main([*words, "--contenders", "somebody"])


@pytest.fixture
def asked(quality, known, tmp_path):
    """Makes the outcomes of a command line in its folder, and the words of it."""
    words = ["--data", "D", "--sizes", "full", "--starts", "as-is", "--minutes", "10", "--seeds", "1,2"]
    words += ["--contenders", "st-in-batch,st-mined,hardneg-warmup", "--model", "M", "--threads", "1"]
    words += ["--precision", "float32", "--grid", "3e-5:20", "--kept", str(tmp_path / "kept.jsonl")]
    study, cells = quality("study"), quality("cells")

    def made(folder, *more):
        parsed = study.command_line().parse_args([*words, *more, "--out", str(folder), "--only-report"])
        made_by = study.study_of(parsed)
        for cell, one in known.items():
            cells.write(folder, replace(one, facts={**one.facts, **made_by.conditions(cell)}))

    return made, words


CHANGES = ["length 256", "grid 9e-1:1", "precision bfloat16", "model other", "batch 8", "dev 7", "threads 2"]


@pytest.mark.parametrize("change", CHANGES)
def test_cells_of_other_options_are_refused_and_change_nothing_that_is_kept(
    quality, asked, tmp_path, capsys, change
):
    """Two pages that share a folder would show and keep each other's figures."""
    study, (make, words) = quality("study"), asked
    option, value = change.split()
    make(tmp_path / "a", f"--{option}", value)
    make(tmp_path / "b")
    own = [*words, "--out", str(tmp_path / "b")]
    assert study.main([*own, "--only-report"]) == 0
    kept = (tmp_path / "kept.jsonl").read_bytes()
    capsys.readouterr()
    assert study.main([*own, "--list"]) == 0
    assert "0 of 8 cells are missing" in capsys.readouterr().out
    for words_of, place in (
        ([*words, "--out", str(tmp_path / "a"), "--only-report"], "another --out"),
        ([*words, "--out", str(tmp_path / "a"), "--anew"], "another --out"),
        ([*own, f"--{option}", value, "--list"], "another --out"),
        ([*words, "--out", str(tmp_path / "none"), f"--{option}", value, "--estimate"], "another --kept"),
        ([*words, "--out", str(tmp_path / "none"), f"--{option}", value], "another --kept"),
        ([*words, "--out", str(tmp_path / "none"), f"--{option}", value, "--only-report"], "another --kept"),
        ([*words, "--out", str(tmp_path / "a"), f"--{option}", value, "--only-report"], "another --kept"),
    ):
        with pytest.raises(SystemExit, match=rf"was made with {option} = .*, not .*{place}"):
            study.main(words_of)
    assert (tmp_path / "kept.jsonl").read_bytes() == kept


def test_only_anew_replaces_what_is_kept(quality, asked, tmp_path, capsys):
    cells, study, (make, words) = quality("cells"), quality("study"), asked
    make(tmp_path / "a")
    assert study.main([*words, "--out", str(tmp_path / "a"), "--only-report"]) == 0
    kept = cells.read_kept(tmp_path / "kept.jsonl")
    for one in kept.values():
        cells.write(tmp_path / "a", replace(one, seconds=1.0))
    assert study.main([*words, "--out", str(tmp_path / "a"), "--only-report"]) == 0
    assert cells.read_kept(tmp_path / "kept.jsonl") == kept
    assert study.main([*words, "--out", str(tmp_path / "a"), "--only-report", "--anew"]) == 0
    assert {one.seconds for one in cells.read_kept(tmp_path / "kept.jsonl").values()} == {1.0}
    for folder, missing in (("a", 0), ("none", 8)):  # what is kept is run again, what lies in the folder stays
        assert study.main([*words, "--out", str(tmp_path / folder), "--anew", "--list"]) == 0
        assert f"{missing} of 8 cells are missing" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["length 256", "grid 1e-4:20"])
@pytest.mark.parametrize(
    "some", [["--anew", "--only", "*seed-1*"], ["--only-report", "--contenders", "hardneg-star"]], ids=str
)
def test_what_is_kept_is_not_mixed_with_cells_of_other_options(
    quality, asked, known, tmp_path, monkeypatch, some, option
):
    """A part of a group is run with another option, or a contender is added to it: then nothing is written."""
    cells, study, (make, words) = quality("cells"), quality("study"), asked
    make(tmp_path / "a")
    assert study.main([*words, "--out", str(tmp_path / "a"), "--only-report"]) == 0
    kept = (tmp_path / "kept.jsonl").read_bytes()
    other = [*words, "--out", str(tmp_path / "b"), "--report", str(tmp_path / "page.md"), *some]
    other += [f"--{option.split()[0]}", option.split()[1]]
    made_by = study.study_of(study.command_line().parse_args(other))

    def run_all(self, missing):
        for cell in missing:
            one = replace(next(iter(known.values())), cell=cell)
            cells.write(self.folder, replace(one, facts={**one.facts, **made_by.conditions(cell)}))
        return True

    if "--only-report" in some:
        run_all(made_by, study.cells_of(study.command_line().parse_args(other)))
    monkeypatch.setattr(study.Study, "run_all", run_all)
    with pytest.raises(SystemExit, match=f"was made with {option.split()[0]} = .*another --kept"):
        study.main(other)
    assert (tmp_path / "kept.jsonl").read_bytes() == kept
    assert not (tmp_path / "page.md").exists()


@pytest.mark.parametrize(
    ("contender", "points", "grid", "possible"),
    [
        ("hardneg-warmup", [3e-5, 3e-5], "3e-5:20", True),
        ("hardneg-warmup", [3e-5, 3e-5], "1e-4:20", False),
        ("hardneg-warmup", [3e-5, 3e-5], "3e-5:50", False),
        ("st-mined", [3e-5], "1e-4:20", False),  # the pace run took all of its time
        ("st-mined", [3e-5], "1e-4:20,3e-5:20", False),  # its pace run would be at the first point
        ("st-mined", [3e-5, 1e-4, 1e-4], "3e-5:20,1e-4:20", True),
        ("st-in-batch-1e-4", [1e-4, 1e-4], "3e-5:20", True),  # it has a rate of its own
        ("st-in-batch-1e-4", [1e-4, 1e-4], "3e-5:50", False),
        ("hardneg-warmup-5e-5", [5e-5, 5e-5], "3e-5:20", True),
        ("hardneg-warmup-5e-5", [3e-5, 3e-5], "3e-5:20", False),
        ("hardneg-rates", [3e-5, 1e-4], "3e-5:20", True),
        ("hardneg-rates", [1e-4, 3e-5], "3e-5:20", False),
    ],
)
def test_an_outcome_without_a_grid_tells_by_its_runs_whether_it_could_come_of_one(
    quality, known, contender, points, grid, possible
):
    one = next(one for cell, one in known.items() if not cell.reference)
    runs = [{"point": {"rate": rate, "scale": 20.0}} for rate in points]
    one = replace(one, cell=replace(one.cell, contender=contender), runs=runs, facts={})
    asked = {"grid": [list(point) for point in quality("study").points(grid)]}
    assert quality("contender").may_come_of(one, asked["grid"]) == possible
    told = quality("study").facts_of(one, asked)
    assert ("grid" in told) != possible
    recorded = replace(one, facts={"grid": [[1.0, 1.0]]})
    assert quality("study").facts_of(recorded, asked) == recorded.facts


@pytest.mark.parametrize("part", ["", "-256", "-bfloat16", "-amx", "-part", "-rate", "-trials"])
def test_a_kept_page_refuses_another_scale_though_its_outcomes_tell_no_grid(quality, tmp_path, part):
    study = quality("study")
    text = (ROOT / f"docs/studies/quality{part}.md").read_text()
    _, data, options = re.findall(r"^make study-quality STUDY=(\S+)(?: DATA=(\S+))? OPTIONS='(.+)'$", text, re.M)[
        0
    ]
    data = re.sub(r"FOLDER/", "", data or "pydocs").replace("FOLDER", "wiki_openqa")
    words = ["--out", str(tmp_path), "--data", data, *options.replace("docs/", f"{ROOT}/docs/").split()]
    with pytest.raises(
        SystemExit, match=r"was made with grid = \[\[.*, not \[\[0\.0001, 50\.0\]\]; .*another --kept"
    ):
        study.main([*words, "--grid", "1e-4:50", "--list"])


def test_all_cells_of_a_group_may_be_replaced_by_those_of_other_options(quality, asked, tmp_path):
    cells, study, (make, words) = quality("cells"), quality("study"), asked
    make(tmp_path / "a")
    make(tmp_path / "b", "--length", "256")
    assert study.main([*words, "--seeds", "1,2,3", "--out", str(tmp_path / "a"), "--only-report"]) == 0
    other = [
        *words,
        "--seeds",
        "1,2,3",
        "--length",
        "256",
        "--anew",
        "--only-report",
        "--out",
        str(tmp_path / "b"),
    ]
    assert study.main(other) == 0
    assert {one.facts["length"] for one in cells.read_kept(tmp_path / "kept.jsonl").values()} == {256}


def test_a_collection_that_has_changed_leaves_what_is_kept(quality, asked, tmp_path):
    """The page is made before anything is written."""
    cells, study, (make, words) = quality("cells"), quality("study"), asked
    make(tmp_path / "a")
    assert study.main([*words, "--out", str(tmp_path / "a"), "--only-report"]) == 0
    kept = (tmp_path / "kept.jsonl").read_bytes()
    for cell, one in cells.read_cells(tmp_path / "a").items():
        if cell.contender == "hardneg-warmup":
            cells.write(tmp_path / "a", replace(one, collection="another"))
    with pytest.raises(SystemExit, match="the collection has changed since"):
        study.main([*words, "--out", str(tmp_path / "a"), "--only-report", "--anew"])
    assert (tmp_path / "kept.jsonl").read_bytes() == kept


def test_a_page_that_is_made_again_leaves_the_kept_file_as_it_is(quality, asked, tmp_path):
    """Old lines lack fields that were added later."""
    study, (make, words) = quality("study"), asked
    make(tmp_path / "a")
    assert study.main([*words, "--out", str(tmp_path / "a"), "--only-report"]) == 0
    file = tmp_path / "kept.jsonl"
    old = file.read_text().replace('"fused": {}, ', "")
    file.write_text(old)
    assert study.main([*words, "--out", str(tmp_path / "none"), "--only-report"]) == 0
    assert file.read_text() == old


def test_cells_that_nobody_asked_for_are_not_kept(quality, asked, tmp_path):
    cells, study, (make, words) = quality("cells"), quality("study"), asked
    make(tmp_path / "a")
    assert study.main([*words, "--out", str(tmp_path / "a"), "--only-report", "--seeds", "2"]) == 0
    assert {cell.seed for cell in cells.read_kept(tmp_path / "kept.jsonl")} == {0, 2}


@pytest.mark.parametrize("part", ["", "-256", "-bfloat16", "-amx", "-part", "-rate", "-trials"])
def test_the_commands_of_a_page_are_those_of_its_cells(quality, tmp_path, capsys, part):
    """Each has a folder of the page's own, and all of their cells that are kept were made as they say."""
    cells, study = quality("cells"), quality("study")
    text = (ROOT / f"docs/studies/quality{part}.md").read_text()
    commands = re.findall(r"^make study-quality STUDY=(\S+)(?: DATA=(\S+))? OPTIONS='(.+)'$", text, re.M)
    assert len(commands) == text.count("\nmake study-quality")
    asked = set()
    for folder, data, options in commands:
        assert folder == f"runs/quality{part or '-64'}"
        data = re.sub(r"FOLDER/", "", data or "pydocs").replace("FOLDER", "wiki_openqa")
        words = ["--out", str(tmp_path), "--data", data]
        words += options.replace("docs/", f"{ROOT}/docs/").split()
        assert study.main([*words, "--list"]) == 0
        asked.update(line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("done"))
    assert asked == {cell.name for cell in cells.read_kept(ROOT / f"docs/studies/quality{part}.jsonl")}


def test_jobs_share_no_processor(quality, monkeypatch):
    study = quality("study")
    monkeypatch.setattr(study, "processors", lambda: [2, 3, 6, 7])
    assert study.processors_of(1, None) == [[2, 3, 6, 7]]
    assert study.processors_of(2, None) == [[2, 3], [6, 7]]
    with pytest.raises(SystemExit, match="need 6 processors"):
        study.processors_of(3, 2)


def test_what_a_run_of_hardneg_took_is_read_from_its_timing(quality, tmp_path):
    ours, rule, clock = quality("ours"), quality("rule"), quality("clock")
    rows = [
        {"stage": "encode", "begun": 0.0, "seconds": 4.0, "side": "passage"},
        {"stage": "train", "begun": 10.0, "seconds": 5.0, "episode": 1, "first_step": 0, "steps": 10},
        {"stage": "encode", "begun": 15.0, "seconds": 4.0, "side": "passage"},
        {"stage": "train", "begun": 20.0, "seconds": 5.0, "episode": 1, "first_step": 10, "steps": 10},
        {"stage": "mine", "begun": 32.0, "seconds": 1.0, "episode": 2},
        {"stage": "train", "begun": 34.0, "seconds": 5.0, "episode": 2, "first_step": 0, "steps": 10},
    ]
    kept = {"of": {"untrained": 0.9, "step-10": 0.7, "last": 0.8}}
    time = clock.Clock(0.0, 60.0, tmp_path / "log")
    found = {"kept": kept, "timing": rows, "grows": False}
    run = ours.told([found], tmp_path, rule.GRID[0], 45.0, time)
    assert (run.steps, run.looks, run.step, run.look) == (30, 2, 0.5, 5.0)
    assert run.fixed == 45 - 15 - 5
    assert (run.best, run.value) == ("last", 0.8)  # the best of what was trained
    assert time.stages == {"encode": 8.0, "train": 15.0, "mine": 1.0, "everything else": 21.0}


def test_mining_for_the_queries_of_the_schedule_alone_is_a_part_of_each_step(quality, tmp_path):
    ours, rule, clock = quality("ours"), quality("rule"), quality("clock")
    rows = [
        {"stage": "encode", "begun": 10.5, "seconds": 4.0, "side": "passage"},
        {"stage": "search", "begun": 14.5, "seconds": 1.0},
        {"stage": "mine", "begun": 10.0, "seconds": 6.0, "episode": 1},
        {"stage": "train", "begun": 20.0, "seconds": 6.0, "episode": 1, "first_step": 0, "steps": 3},
    ]
    found, time = (
        {"kept": {"of": {"untrained": 0.5, "last": 0.6}}, "timing": rows},
        clock.Clock(0.0, 60.0, tmp_path),
    )
    grown = ours.told([found | {"grows": True}], tmp_path, rule.GRID[0], 30.0, time, 2.0)
    fixed = ours.told(
        [found | {"grows": False}], tmp_path, rule.GRID[0], 30.0, clock.Clock(0.0, 60.0, tmp_path), 2.0
    )
    assert (grown.step, grown.fixed) == ((6 + 6) / 2 / 3, 30 - 6)
    assert (fixed.step, fixed.fixed) == (6 / 2 / 3, 30 - 3)
    assert time.stages["mine"] == pytest.approx(0.5), "of its 6 seconds 5 are those of an encoding and a search"
    assert sum(time.stages.values()) == pytest.approx(30)


def test_the_pace_run_tries_no_rates(quality, tmp_path, monkeypatch):
    """Its six steps are too few for trials, and a step of a trial takes as long as any other."""
    ours, rule, clock = quality("ours"), quality("rule"), quality("clock")
    time = clock.Clock(0.0, 60.0, tmp_path)
    order = {"contender": "hardneg-rates", "folder": str(tmp_path), "base": "B", "threads": 1}
    one, seen = ours.Ours(order, time), []
    found = {"kept": {"of": {"untrained": 0.5, "last": 0.6}}, "timing": [], "grows": False}
    monkeypatch.setattr(one, "_stage", lambda stage, *_: seen.append(stage) or found)
    for name in (rule.PACE, "final"):
        one.train(rule.GRID[0], 50, 2, name)
    assert [(dict(stage.settings), stage.schedules) for stage in seen] == [
        ({}, 1.0),
        ({"learning_rate": list(rule.RATES)}, 1.25),
    ]
    assert ours.paced(ours.CONTENDERS["hardneg-tele"][0]) == ours.CONTENDERS["hardneg-tele"][0]


@pytest.mark.parametrize(
    ("contender", "tried", "rate"),
    [
        ("hardneg-warmup", {}, 3e-5),
        ("hardneg-warmup-5e-5", {}, 5e-5),
        ("hardneg-rates", {"learning_rate": 1e-4}, 1e-4),
    ],
)
def test_the_rate_that_is_kept_is_that_of_the_training(quality, tmp_path, monkeypatch, contender, tried, rate):
    """The grid's, the contender's own, or the one that its trials chose."""
    ours, rule, clock, given = quality("ours"), quality("rule"), quality("clock"), []
    order = {"contender": contender, "folder": str(tmp_path), "threads": 1, "data": "D", "seed": 1}
    order |= {"precision": "float32", "device": "cpu", "dev_passages": 6}
    one = ours.Ours(order, clock.Clock(0.0, 60.0, tmp_path))
    results = {"kept": {}} | ({"tried": tried} if tried else {})
    monkeypatch.setattr(recipes, "train", lambda *_, **told: given.append(told) or results)
    monkeypatch.setattr(ours, "timing_of", lambda out: [])
    found = one._stage(ours.CONTENDERS[contender][0], "B", tmp_path, rule.Point(3e-5, 20.0), 50, 2)
    assert found["rate"] == rate
    assert given[0]["learning_rate"] == (list(rule.RATES) if tried else rate)


def test_a_later_stage_begins_with_the_best_of_the_one_before(quality):
    stages = [{"untrained": 0.5, "last": 0.6}, {"untrained": 0.6, "last": 0.7}]
    assert quality("ours").dev_of(stages) == {"untrained": 0.5, "last": 0.6, "stage-2-last": 0.7}


def test_every_contender_of_ours_is_a_valid_experiment(quality):
    from hardneg.api.recipes import recipe_named, settings_of

    for stages in quality("ours").CONTENDERS.values():
        assert sum(stage.share for stage in stages) == pytest.approx(1)
        for stage in stages:
            values = {"min_steps": 40, "max_steps": 40, "measure_every": 20, "precision": "float32"}
            settings = settings_of(stage.recipe, "finetune", **values, **stage.settings)
            assert isinstance(settings, recipe_named(stage.recipe).settings)


def test_a_contender_that_is_named_for_mined_negatives_mines_in_its_last_stage(quality):
    from hardneg.api.recipes import settings_of

    for name, stages in quality("ours").CONTENDERS.items():
        if stages[-1].recipe == "ance-tele":
            settings = settings_of("ance-tele", "finetune", **stages[-1].settings)
            assert settings.has_negatives(settings.episodes) == ("tele" in name), name


KEPT = ["", "-bfloat16", "-amx", "-part", "-rate", "-trials"]


@pytest.mark.parametrize("part", ["-256", *(pytest.param(part, marks=pytest.mark.slow) for part in KEPT)])
def test_the_kept_page_is_that_of_the_kept_outcomes(quality, tmp_path, part):
    """What is committed is what the command makes."""
    name = f"quality{part}"
    cells, page = quality("cells"), quality("page")
    there = (ROOT / f"docs/studies/{name}.md").read_text()
    (tmp_path / "page.md").write_text(there)
    page.write(tmp_path / "page.md", cells.read_kept(ROOT / f"docs/studies/{name}.jsonl").values())
    assert (tmp_path / "page.md").read_text() == there
    assert there.startswith(page.HEADING)


def test_the_program_says_what_it_can_do():
    words = [sys.executable, str(ROOT / "benchmarks/quality"), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "--estimate" in done.stdout


def test_an_order_is_read_as_it_was_written(quality, tmp_path, monkeypatch):
    """A contender's process hands in the model that the rule chose."""
    contender, rule = quality("contender"), quality("rule")
    (tmp_path / "base").mkdir()
    (tmp_path / "base/weights").write_text("base")
    order = {"contender": "hardneg-warmup", "base": str(tmp_path / "base"), "folder": str(tmp_path), "begun": 0}
    order |= {"budget": 60, "threads": 1, "grid": [[1e-3, 20.0]], "data": "D", "seed": 1, "precision": "float32"}
    order["clock"] = "wall"
    (tmp_path / "order.json").write_text(json.dumps(order))
    monkeypatch.setattr(contender, "set_threads", lambda threads: None)
    seen = []

    def compete(train, clock, grid):
        seen.extend(grid)
        return rule.Result(None, {"dev": 0.5}, [])

    monkeypatch.setattr(contender, "compete", compete)
    contender.serve(tmp_path / "order.json")
    assert seen == [rule.Point(1e-3, 20.0)]
    assert (tmp_path / "model/weights").read_text() == "base"
    assert json.loads((tmp_path / "result.json").read_text())["chosen"] == {"dev": 0.5}
