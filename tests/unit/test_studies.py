"""The studies' harness, and the ablation's tables from experiments made by hand."""

import importlib
import itertools
import json
import sys
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import pytest

from hardneg.data.collection import Collection
from hardneg.data.formats.trec import write_run
from hardneg.operations.settings import recipe_settings
from hardneg.recipes.ance_tele import RECIPE
from hardneg.records import Run

STUDIES = Path(__file__).resolve().parents[2] / "studies"
PASSAGES = [(f"p{i}", f"text {i}") for i in range(6)]
QUERIES = {f"q{i}": f"question {i}" for i in range(4)}


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.syspath_prepend(str(STUDIES))


@pytest.fixture
def harness():
    return importlib.import_module("harness")


@pytest.fixture
def ablation():
    return importlib.import_module("ablation")


@pytest.fixture
def outcomes(ablation, harness, study):
    """Makes what is known of a study's experiments, with the command line's other words."""

    def known(*words, kept=None):
        steps = {row.result: row.steps[-1] for row in ablation.order(chosen(ablation, *words))}
        return ablation.Outcomes(study, steps, ablation.MEASURE, kept)

    return known


@pytest.fixture
def collection(tmp_path):
    qrels = {"test": {query: [f"p{i}"] for i, query in enumerate(QUERIES)}}
    return Collection.from_lists(PASSAGES, QUERIES, qrels, to=tmp_path / "collection")


@pytest.fixture
def study(harness, collection, tmp_path):
    return harness.Study(tmp_path / "study", str(tmp_path / "collection"), "M", {"queries_per_step": 8}, 1)


def chosen(ablation, *words):
    parser = ArgumentParser()
    ablation.options(parser)
    return parser.parse_args(words)


def run_with(ranks):
    """A run whose i-th query has its positive, passage i, at the i-th rank."""
    lists = []
    for query, rank in enumerate(ranks):
        others = [row for row in range(6) if row != query]
        lists.append([*others[: rank - 1], query, *others[rank - 1 :]])
    n = len(ranks)
    scores = np.tile(np.arange(6, 0, -1, dtype=np.float32), n)
    return np.arange(n, dtype=np.int32), np.arange(n + 1) * 6, np.array(lists, np.int32).reshape(-1), scores


def experiment(study, collection, name, ranks, *, forgotten=0.1):
    """A finished experiment whose final model ranks the positives so."""
    folder = study.folder / name
    rr = float(np.mean(1 / np.array(ranks)))
    run = Run(*run_with(ranks), "passage", collection.digest)
    (folder / "runs").mkdir(parents=True)
    write_run(folder / "runs/final.test.trec.gz", run, collection.query_ids, collection.passage_ids)
    states = {"bm25": 0.25, "untrained": 0.3, "episode-1": 0.4, "episode-2": 0.5, "final": rr}
    shares = [{"forgotten": forgotten * i, "learned": 0.2} for i in (1, 2, 3)]
    results = {"test": {state: {"RR@10": value} for state, value in states.items()}, "forgetting": shares}
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "settings.json").write_text(json.dumps({"result_settings": {"queries_per_step": 8, "steps": 120}}))
    (folder / "timing.jsonl").write_text(json.dumps({"stage": "train", "seconds": 3.0}) + "\n")


# ---------------------------------------------------------------- what is executed


def test_what_says_most_comes_first(ablation):
    steps = [row.result for row in ablation.order(chosen(ablation))]
    assert len(steps) == len(set(steps)) == 2 * (4 * 3 + 7)
    first = {f"{start}-{row}-seed-42" for start in ("as-is", "reinit") for row in ablation.MAIN}
    assert set(steps[:8]) == first
    assert not any(step.endswith("seed-42") for step in steps[-16:])
    assert all(step.endswith("seed-42") for step in steps[:22])


def test_rows_and_starts_are_chosen_by_name(ablation):
    words = ["--rows", "tele,q-neg", "--start", "reinit", "--seeds", "2"]
    steps = [row.result for row in ablation.order(chosen(ablation, *words))]
    assert steps == [f"reinit-{row}-seed-{seed}" for seed in (42, 43) for row in ("q-neg", "tele")]
    with pytest.raises(SystemExit):
        chosen(ablation, "--rows", "tale")


def test_every_row_is_a_valid_experiment_of_equal_steps(ablation, harness, tmp_path):
    options = chosen(ablation)
    study = harness.Study(tmp_path, "D", "M", ablation.common_of(options), 1)
    seen = set()
    for row in ablation.order(options):
        words = study.command(row.steps[-1])
        settings = recipe_settings(RECIPE, None, None, [b for a, b in itertools.pairwise(words) if a == "--set"])
        assert (settings.steps, settings.stop_step, settings.episodes) == (120, 40, 3)
        assert settings.passages_per_query(3) == 8
        assert settings.reinit_layers == (3 if row.result.startswith("reinit") else 0)
        seen.add(settings.model_dump_json())
    assert len(seen) == len(ablation.order(options))


def test_a_finished_experiment_is_not_executed_again_and_places_share_no_cache(harness, study, monkeypatch):
    script = (
        "import json, pathlib, sys, time; words = sys.argv; out = pathlib.Path(words[words.index('--out') + 1]); "
        "out.mkdir(); time.sleep(0.2); "
        "(out / 'results.json').write_text(json.dumps(words[words.index('--cache') + 1]))"
    )
    monkeypatch.setattr(harness, "PYTHON", [sys.executable, "-c", script])
    steps = [harness.Step(f"s{i}", "ance-tele", {}) for i in range(3)]
    study.execute_all([*steps, steps[0]], 2)
    caches = [study.results(step.name) for step in steps]
    assert set(caches) == {str(study.folder / "cache"), str(study.folder / "cache-1")}
    assert caches[0] != caches[1]
    monkeypatch.setattr(harness, "PYTHON", [sys.executable, "-c", "raise SystemExit(3)"])
    study.execute_all(steps, 2)  # nothing is left to do
    with pytest.raises(SystemExit, match="other failed"):
        study.execute(harness.Step("other", "ance-tele", {}))


# ---------------------------------------------------------------- what is written


def test_tables_are_made_from_what_is_there(ablation, study, collection, outcomes):
    experiment(study, collection, "reinit-q-neg-seed-42", [1, 2, 2, 4])
    experiment(study, collection, "reinit-q-neg-seed-43", [1, 2, 2, 2])
    experiment(study, collection, "reinit-tele-seed-42", [1, 1, 1, 2], forgotten=0.05)
    text = ablation.report(
        study, outcomes(), chosen(ablation, "--start", "reinit", "--rows", "q-neg,tele,momentum")
    )
    lines = text.splitlines()
    quality, tests, forgetting = (
        [line for line in lines if line.startswith(f"| {title} |")]
        for title in ("Q-Neg", "ANCE-Tele", "Q-Neg + momentum")
    )
    assert quality[0].startswith("| Q-Neg | 2 | 0.4000 ± 0.0000 | 0.5000 ± 0.0000 | 0.5938 ± 0.0442 | [")
    assert "0.1000 ± 0.0000 | 0.2000 ± 0.0000 | 0.3000 ± 0.0000 | 0.2000" in quality[1]
    assert tests[0].startswith("| ANCE-Tele | 1 | 0.4000 | 0.5000 | 0.8750 | [")
    # on the seed that both have: +0, +1/2, +1/2 and +1/4; of the 8 patterns of three signs two are as extreme
    assert tests[1].startswith("| ANCE-Tele | 42 | +0.3125 | [")
    assert tests[1].endswith("| 0.25 | 0.25 |")
    assert "0.0500 | 0.1000 | 0.1500" in tests[2]
    assert all(line.count("not run") >= 4 for line in forgetting)
    assert len(forgetting) == 3
    assert "3 experiments took 3 s of training" in text
    assert "no training: 0.3000; BM25: 0.2500" in text
    assert str(study.folder) not in text


def test_several_seeds_are_averaged_by_query(ablation, study, collection, outcomes):
    experiment(study, collection, "reinit-tele-seed-42", [1, 2, 2, 4])
    experiment(study, collection, "reinit-tele-seed-43", [1, 1, 2, 2])
    assert ablation.seeds_done(outcomes(), "reinit", "tele") == [42, 43]
    means = ablation.mean_values(outcomes(), "reinit", "tele", [42, 43])
    assert means == pytest.approx([1, 0.75, 0.5, 0.375])


def test_outcomes_outlast_the_folders(ablation, study, collection, outcomes, tmp_path):
    names = [f"reinit-{row}-seed-42" for row in ("q-neg", "tele")]
    experiment(study, collection, names[0], [1, 2, 3, 6])
    kept = tmp_path / "kept/ablation.jsonl"
    before = outcomes()
    before.save(kept)
    options = chosen(ablation, "--start", "reinit")
    text = ablation.report(study, before, options)
    study.folder.rename(tmp_path / "elsewhere")
    assert not outcomes()
    after = outcomes(kept=kept)
    assert after[names[0]] == before[names[0]]
    assert after[names[0]].ranks == [1, 2, 3, 6]
    assert after.is_kept(names[0])
    assert ablation.report(study, after, options) == text
    # What comes later is added, and a choice of rows drops none of the others.
    experiment(study, collection, names[1], [1, 1, 1, 2])
    chosen_only = outcomes("--rows", "tele", kept=kept)
    assert list(chosen_only) == [names[1]]
    assert not chosen_only.is_kept(names[1])
    chosen_only.save(kept)
    assert sorted(outcomes(kept=kept)) == names


def test_outcomes_of_other_settings_do_not_count(ablation, study, collection, outcomes, tmp_path):
    experiment(study, collection, "reinit-tele-seed-42", [1, 2, 3, 6])
    kept = tmp_path / "ablation.jsonl"
    outcomes().save(kept)
    study.folder.rename(tmp_path / "elsewhere")
    assert len(outcomes(kept=kept)) == 1
    assert len(outcomes("--reinit-layers", "2", kept=kept)) == 0


def test_a_folder_of_other_settings_is_refused(ablation, harness, study, collection, outcomes):
    experiment(study, collection, "reinit-tele-seed-42", [1, 2, 3, 6])
    assert outcomes()["reinit-tele-seed-42"].settings["queries_per_step"] == 8
    study.common["queries_per_step"] = 16
    with pytest.raises(SystemExit, match=r"settings\.json: made with queries_per_step = 8, not 16; give another"):
        outcomes()["reinit-tele-seed-42"]


def test_a_rank_beyond_the_measure_counts_nothing(harness):
    module = importlib.import_module("outcomes")
    one = module.Outcome("e", {}, {}, [], 1, {}, [1, 0, 4])
    assert one.values.tolist() == [1, 0, 0.25]


def test_what_people_wrote_around_the_tables_stays(ablation, tmp_path):
    page = tmp_path / "docs/ablation.md"
    ablation.write(page, "FIRST")
    page.write_text(page.read_text() + "\n## Reading it\n")
    ablation.write(page, "SECOND")
    text = page.read_text()
    assert text.startswith(ablation.HEADING)
    assert "SECOND" in text
    assert "FIRST" not in text
    assert text.endswith("## Reading it\n")
