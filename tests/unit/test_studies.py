"""The studies' harness, and the ablation's tables from experiments made by hand."""

import importlib
import itertools
import json
import shutil
import sys
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import pytest

from hardneg.api.settings import recipe_settings
from hardneg.data.collection import Collection
from hardneg.data.formats.trec import write_run
from hardneg.recipes.ance_tele import RECIPE
from hardneg.records import Run
from worlds.small_trainings import train_small
from worlds.tiny_world import tiny_model

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
def known(ablation, harness, study):
    """A study anew, as the command line's words plan it and with what a file keeps."""

    def begun(*words, kept=None):
        places = ["--out", str(study.folder), "--data", study.data, "--model", study.model, "--threads", "1"]
        places += [] if kept is None else ["--kept", str(kept)]
        options = harness.command_line("", ablation.options).parse_args([*places, *words])
        again = harness.begin(options, study.common, ablation.MEASURE)
        return again.planning(row.steps[-1] for row in ablation.order(options))

    return begun


@pytest.fixture
def outcomes(known):
    """Makes what is known of a study's experiments, with the command line's other words."""
    return lambda *words, kept=None: known(*words, kept=kept).outcomes()


@pytest.fixture
def collection(tmp_path):
    qrels = {"test": {query: [f"p{i}"] for i, query in enumerate(QUERIES)}}
    return Collection.from_lists(PASSAGES, QUERIES, qrels, to=tmp_path / "collection")


@pytest.fixture
def study(harness, collection, tmp_path):
    return harness.Study(tmp_path / "study", str(tmp_path / "collection"), "M", {"queries_per_step": 8}, 1)


def test_a_fault_among_the_timing_is_no_stage(tmp_path):
    rows = [
        {"stage": "train", "seconds": 1.234},
        {"ended_by": "NO_NEGATIVES: none"},
        {"stage": "mine", "seconds": 2},
    ]
    (tmp_path / "timing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = importlib.import_module("outcomes").timing_of(tmp_path)
    assert found == [{"stage": "train", "seconds": 1.23}, {"stage": "mine", "seconds": 2}]


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
    assert len(steps) == len(set(steps)) == 2 * (5 * 3 + 6)
    first = {f"{start}-{row}-seed-42" for start in ("as-is", "reinit") for row in ablation.MAIN}
    assert set(steps[:8]) == first
    assert not any(step.endswith("seed-42") for step in steps[-20:])
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
    caches = [json.loads((study.folder / step.name / "results.json").read_text()) for step in steps]
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


def test_the_smallest_difference_that_seeds_show_by_hand(ablation):
    """For 3 seeds t is 4.3027 and 1.0607 (tables of Student's distribution), for 5 it is 2.7764 and 0.9410."""
    gains = np.array([0.01, 0.02, 0.03])  # their standard deviation is 0.01
    assert ablation.detectable(gains, 3) == pytest.approx(0.01 * (4.3027 + 1.0607) / 3**0.5, rel=1e-4)
    assert ablation.detectable(gains, 5) == pytest.approx(0.01 * (2.7764 + 0.9410) / 5**0.5, rel=1e-4)


def test_what_seeds_show_is_told_for_rows_with_several(ablation, study, collection, outcomes):
    for row, first in (("tele", [1, 2, 2, 4]), ("continue", [1, 1, 1, 1])):
        experiment(study, collection, f"reinit-{row}-seed-42", first)
        experiment(study, collection, f"reinit-{row}-seed-43", [1, 1, 2, 2])
    pairs = [("tele", "q-neg"), ("continue", "tele")]
    lines = ablation.detectable_table(outcomes(), "reinit", pairs).splitlines()
    assert [line for line in lines if line.startswith("| ANCE-Tele")] == lines[2:]
    assert len(lines) == 3
    # the final means differ by 1 - 0.5625 and by 0
    assert lines[2].startswith("| ANCE-Tele, continued − ANCE-Tele | 2 | +0.2188 | 0.3094 | ")


def test_outcomes_outlast_the_folders(ablation, study, collection, known, tmp_path):
    names = [f"reinit-{row}-seed-42" for row in ("q-neg", "tele")]
    experiment(study, collection, names[0], [1, 2, 3, 6])
    kept = tmp_path / "kept/ablation.jsonl"
    first = known()
    first.save(kept)
    options, before = chosen(ablation, "--start", "reinit"), first.outcomes()
    text = ablation.report(study, before, options)
    study.folder.rename(tmp_path / "elsewhere")
    assert not known().outcomes()
    again = known(kept=kept)
    after = again.outcomes()
    assert after == before
    assert after[names[0]].queries == {"test": {"final": {"RR@10": [1, 2, 3, 6]}}}
    assert after[names[0]].collection == collection.digest
    assert again.is_done(names[0])
    assert not known("--anew", kept=kept).is_done(names[0])
    assert ablation.report(study, after, options) == text
    # What comes later is added, and a choice of rows drops none of the others.
    experiment(study, collection, names[1], [1, 1, 1, 2])
    chosen_only = known("--rows", "tele", kept=kept)
    assert list(chosen_only.outcomes()) == [names[1]]
    chosen_only.save(kept)
    assert sorted(known(kept=kept).outcomes()) == sorted(names)


def test_outcomes_of_other_settings_do_not_count(study, collection, known, tmp_path):
    experiment(study, collection, "reinit-tele-seed-42", [1, 2, 3, 6])
    kept = tmp_path / "ablation.jsonl"
    known().save(kept)
    study.folder.rename(tmp_path / "elsewhere")
    assert len(known(kept=kept).outcomes()) == 1
    assert len(known("--reinit-layers", "2", kept=kept).outcomes()) == 0


def test_anew_runs_what_is_kept_but_not_what_is_finished_in_the_folder(
    harness, study, collection, known, tmp_path
):
    """So a study that is run anew goes on where it was stopped; the help says that it needs a new folder."""
    name, kept = "reinit-tele-seed-42", tmp_path / "ablation.jsonl"
    experiment(study, collection, name, [1, 2, 3, 6])
    known().save(kept)
    assert known("--anew", kept=kept).is_done(name)
    study.folder.rename(tmp_path / "elsewhere")
    assert not known("--anew", kept=kept).is_done(name)
    said = " ".join(harness.command_line("", lambda parser: None).format_help().split())
    assert "what is finished in --out stays" in said


def test_a_folder_of_other_settings_is_refused(study, collection, known):
    experiment(study, collection, "reinit-tele-seed-42", [1, 2, 3, 6])
    assert known().outcomes()["reinit-tele-seed-42"].settings["queries_per_step"] == 8
    study.common["queries_per_step"] = 16
    with pytest.raises(SystemExit, match=r"settings\.json: made with queries_per_step = 8, not 16; give another"):
        known().outcomes()


@pytest.mark.parametrize(
    ("key", "value"), [("model", "/models/other"), ("recipe", "warmup"), ("collection", "0" * 64)]
)
def test_a_folder_of_another_model_recipe_or_collection_is_refused(study, collection, known, key, value):
    """Its figures would be shown and kept as those of the model and collection that the command names."""
    name = "reinit-tele-seed-42"
    experiment(study, collection, name, [1, 2, 3, 6])
    file = study.folder / name / "settings.json"
    settings = json.loads(file.read_text())
    begun = {"recipe": "ance-tele", "model": "M", "collection": collection.digest}

    def tell(told):
        record = {"recipe": told["recipe"], "inputs": {"collection": told["collection"]}}
        file.write_text(json.dumps({**settings, **record, "base_model": {"model": told["model"]}}))

    tell(begun)
    assert list(known().outcomes()) == [name]
    tell(begun | {key: value})
    for look in (lambda: known().outcomes(), lambda: known().is_done(name)):
        with pytest.raises(SystemExit, match=rf"settings\.json: made with {key} = .*; give another --out"):
            look()


def test_a_later_step_knows_the_model_of_the_step_before_though_it_is_deleted(harness, study, collection):
    step = harness.Step("later", "warmup", {}, model="first")
    experiment(study, collection, "later", [1, 2, 3, 6])
    file = study.folder / "later/settings.json"
    for base, well in (("/elsewhere/study/first/model", True), ("/elsewhere/study/second/model", False)):
        file.write_text(json.dumps({"recipe": "warmup", "base_model": {"model": base}}))
        if well:
            assert study.planning([step]).is_done("later")
        else:
            with pytest.raises(SystemExit, match="made with model = second/model, not first/model"):
                study.planning([step]).is_done("later")


@pytest.fixture(scope="module")
def trained(world):
    """Two experiments, and one of each of these recipes that begins with the first one's model."""
    for seed, name in ((1, "first"), (2, "second")):
        train_small("warmup", world, world.root / "study" / name, seed=seed)
    for recipe in ("star", "ranker"):
        train_small(recipe, world, world.root / "study" / recipe, model=world.root / "study/first")
    return world.root / "study"


REFUSED = r"settings\.json: made with model = {} \(digest \w+\), not {} \(digest \w+\); give another --out"


@pytest.mark.parametrize("recipe", ["star", "ranker"])
def test_a_study_knows_the_trained_model_that_its_experiments_began_with(
    harness, world, trained, tmp_path, monkeypatch, recipe
):
    """All models that hardneg trains are called model, and an experiment stands for its own."""
    step = harness.Step(recipe, recipe, {})

    def is_done(model, step=step):
        return (
            harness.Study(trained, str(world.collection.path), str(model), {}, 1)
            .planning([step])
            .is_done(step.name)
        )

    copied = shutil.copytree(trained / "first/model", tmp_path / "copied")
    for same in (trained / "first", trained / "first/model", copied):
        assert is_done(same)
    for other in (trained / "second", trained / "second/model"):
        with pytest.raises(SystemExit, match=REFUSED.format("first/model", "second(/model)?")):
            is_done(other)
    later = harness.Step(recipe, recipe, {}, model="first")
    assert is_done(world.model, later)
    with pytest.raises(SystemExit, match=REFUSED.format("first/model", "second/model")):
        is_done(world.model, harness.Step(recipe, recipe, {}, model="second"))
    monkeypatch.chdir(trained)
    assert is_done("first")


def test_outcomes_of_two_trained_models_are_not_taken_for_each_other(harness, study, collection, tmp_path):
    def of(model, **options):
        step = harness.Step("only", "star", {})
        return harness.Study(tmp_path / "study", study.data, str(model), {}, 1, **options).planning([step])

    experiment(study, collection, "only", [1, 2, 3, 6])
    first = of(tmp_path / "first/model")
    first.save(tmp_path / "kept.jsonl")
    shutil.rmtree(tmp_path / "study")
    kept = importlib.import_module("outcomes").read(tmp_path / "kept.jsonl")
    assert of(tmp_path / "moved/first/model", kept=kept).is_done("only")
    assert not of(tmp_path / "second/model", kept=kept).is_done("only")


def test_the_model_at_a_place_may_have_changed(harness, world, trained, tmp_path):
    model = tiny_model(tmp_path / "base", world.collection, seed=1)
    train_small("star", world, tmp_path / "study/star", model=model)
    study = harness.Study(tmp_path / "study", str(world.collection.path), model, {}, 1)
    assert study.planning([harness.Step("star", "star", {})]).is_done("star")
    shutil.rmtree(model)
    tiny_model(tmp_path / "base", world.collection, seed=2)
    study = harness.Study(tmp_path / "study", str(world.collection.path), model, {}, 1)
    with pytest.raises(SystemExit, match=REFUSED.format("base", "base")):
        study.planning([harness.Step("star", "star", {})]).is_done("star")


@pytest.mark.parametrize(
    ("base", "model", "same"),
    [
        ("/gone/models/small", "models/small", True),
        ("models/small", "models/small", True),
        ("models/small", "/gone/models/small", True),
        ("/before/small", "/moved/small", True),
        ("/gone/EXP/model", "/gone/EXP", True),
        ("runs/EXP/model", "runs/EXP", True),
        ("/gone/EXP/model", "/moved/EXP/model", True),
        ("/gone/EXP/model", "/gone/OTHER/model", False),
        ("runs/EXP/model", "runs/OTHER", False),
        ("own/small", "other/small", False),
        ("package:small", "package:large", False),
    ],
)
@pytest.mark.parametrize("digest", [{}, {"model": "0" * 64}], ids=["no-digest", "digest"])
def test_a_model_that_is_gone_is_known_by_its_name(harness, study, collection, base, model, same, digest):
    experiment(study, collection, "only", [1, 2, 3, 6])
    file = study.folder / "only/settings.json"
    file.write_text(
        json.dumps({"recipe": "star", "settings": {}, "inputs": digest, "base_model": {"model": base}})
    )
    again = harness.Study(study.folder, study.data, model, {}, 1).planning([harness.Step("only", "star", {})])
    if same:
        assert again.is_done("only")
    else:
        with pytest.raises(SystemExit, match=r"made with model = .*, not .*; give another --out"):
            again.is_done("only")


def test_outcomes_of_two_collections_are_not_told_together(study, collection, known, tmp_path):
    experiment(study, collection, "reinit-tele-seed-42", [1, 2, 3, 6])
    kept = tmp_path / "ablation.jsonl"
    known().save(kept)
    kept.write_text(kept.read_text().replace(collection.digest, "0" * 64).replace("tele", "q-neg"))
    with pytest.raises(SystemExit, match="has changed; give --anew"):
        known(kept=kept).outcomes()


def test_a_page_does_not_lose_its_tables_to_an_empty_folder(harness, ablation, study, known, tmp_path):
    words = ["--out", str(tmp_path / "none"), "--only-report", "--data", study.data]
    options = harness.command_line("", ablation.options).parse_args(words)
    with pytest.raises(SystemExit, match=r"nothing is finished in .*none; leave --only-report out"):
        harness.keep(known(), options)


# ---------------------------------------------------------------- what is kept


@pytest.fixture
def module():
    return importlib.import_module("outcomes")


def test_a_rank_beyond_the_measure_counts_nothing(module):
    one = module.Outcome("e", {}, {}, queries={"test": {"final": {"RR@10": [1, 0, 4]}}})
    assert one.values("test", "final", "RR@10").tolist() == [1, 0, 0.25]
    assert one.values("dev", "final", "RR@10") is None


@pytest.mark.parametrize("measure", ["RR@10", "nDCG@10", "Answer@20"])
def test_values_come_back_bit_for_bit(module, measure):
    ranks = np.random.default_rng(0).integers(1, 12, 500)
    values = np.where(ranks <= 10, 1 / ranks, 0) if measure == "RR@10" else 1 / np.log2(ranks + 1)
    if measure == "Answer@20":
        values[::7] = np.nan
    line = json.dumps(module.packed(values, measure), allow_nan=False)
    np.testing.assert_array_equal(module.unpacked(json.loads(line)), values)


def test_many_lines_are_compressed_and_their_bytes_know_no_time(module, tmp_path, monkeypatch):
    ones = [
        module.Outcome(f"e{i}", {"data": "D"}, {}, timing=[{"stage": "train", "seconds": i}]) for i in range(3)
    ]
    file, packed = tmp_path / "study.jsonl", tmp_path / "study.jsonl.gz"
    module.save(file, reversed(ones))
    assert list(module.read(file).values()) == ones
    monkeypatch.setattr(module, "LARGE", 10)
    module.save(file, ones)
    assert packed.is_file()
    assert not file.exists()
    first = packed.read_bytes()
    assert first[4:8] == bytes(4)
    assert list(module.read(file).values()) == ones
    monkeypatch.setattr(module.gzip, "time", None, raising=False)
    module.save(file, ones)
    assert packed.read_bytes() == first


def test_collections_share_a_file(module, tmp_path):
    ones = [module.Outcome("tele", {"data": data}, {}) for data in ("pydocs", "qa:wiki")]
    module.save(tmp_path / "study.jsonl", ones)
    assert len(module.read(tmp_path / "study.jsonl")) == 2


def test_a_run_that_is_not_the_state_s_is_not_kept(study, collection, known):
    """A run whose mean is not the one of results.json was made by another state, or in other settings."""
    experiment(study, collection, "reinit-tele-seed-42", [1, 2, 3, 6])
    file = study.folder / "reinit-tele-seed-42/results.json"
    results = json.loads(file.read_text())
    results["test"]["final"]["RR@10"] = 0.9
    file.write_text(json.dumps(results))
    assert known().outcomes()["reinit-tele-seed-42"].queries == {}


@pytest.mark.slow
def test_the_page_is_what_its_kept_outcomes_say(harness, ablation, tmp_path):
    """Every interval and p value of the committed page comes from the lines beside it."""
    pages = Path(__file__).resolve().parents[2] / "docs/studies"
    kept, page = tmp_path / "ablation.jsonl", tmp_path / "ablation.md"
    packed = kept.with_name("ablation.jsonl.gz")
    packed.write_bytes((pages / packed.name).read_bytes())
    page.write_bytes((pages / "ablation.md").read_bytes())
    words = ["--out", str(tmp_path / "none"), "--kept", str(kept), "--report", str(page), "--only-report"]
    ablation.main(harness.command_line("", ablation.options).parse_args([*words, "--threads", "1"]))
    assert page.read_text() == (pages / "ablation.md").read_text()
    assert packed.read_bytes() == (pages / packed.name).read_bytes()


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
