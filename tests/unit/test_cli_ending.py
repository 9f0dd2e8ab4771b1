"""The end of a training's output, experiments in place of models and runs, and the deletion of caches."""

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hardneg.api.inputs import model_place, run_place, source_at
from hardneg.cli import colour
from hardneg.cli.ending import ending_text
from hardneg.errors import ArtifactError
from hardneg.experiment.layout import Layout
from hardneg.experiment.names import few_of_dev
from hardneg.report.verdict import verdict
from hardneg.storage.digests import cache_root
from worlds.tiny_world import one_thread  # noqa: F401

MEANS = {"RR@10": 0.3, "nDCG@10": 0.4}
ROW = {"a": "final", "b": "untrained", "measure": "RR@10", "difference": 0.0412, "interval": [0.0204, 0.0631]}
RESULTS = {
    "test": {"bm25": MEANS, "untrained": MEANS, "final": MEANS},
    "dev": {"untrained": MEANS, "final": MEANS},
    "compared_on": "test",
    "comparisons": [
        ROW | {"p": 1e-4},
        ROW | {"b": "bm25", "difference": -0.1, "interval": [-0.2, -0.05], "p": 0.01},
    ],
    "kept": {
        "state": "step-300",
        "step": 300,
        "measure": "RR@10",
        "dev": 0.41,
        "of": {"untrained": 0.4, "step-300": 0.41, "last": 0.405},
        "beats_untrained": True,
    },
    "forgetting": [
        {"before": "untrained", "after": "final", "forgotten": 0.1, "learned": 0.2, "train_mrr_100": 0.5}
    ],
}


def test_the_verdict_comes_first_and_then_two_tables_at_most(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * (3 << 20))
    text = ending_text(RESULTS, tmp_path)
    lines = text.splitlines()
    assert lines[0] == "final beats untrained by 0.041 [0.020, 0.063], p 1e-04 (test RR@10)"
    assert lines[1] == "final loses to bm25 by 0.100 [0.050, 0.200], p 0.010 (test RR@10)"
    assert lines[2] == "best state: step-300 (dev RR@10 0.4100, untrained 0.4000)"
    assert lines[3].startswith("next: ")
    assert sum(set(line) == {"-"} for line in lines) == 2
    assert len(lines) < 25
    assert f"model: {tmp_path}/model" in lines
    clean = f"hardneg clean {tmp_path} --yes deletes them"
    assert f"disk:  3.0 MiB in {tmp_path}, 0.1 MiB of it checkpoints and caches: {clean}" in lines
    assert "less:  --set keep=last stores only the last model" in lines
    assert lines[-1] == f"more:  hardneg show {tmp_path}"


def test_the_advice_after_training_is_the_first_of_the_report(tmp_path):
    few = {"test": {"final": {"queries": 55}}}
    told = RESULTS | {"comparisons": [ROW | {"p": 0.4}], "pairwise_errors": few}
    report = verdict(told, queries=55).advice
    assert report[0].startswith("Measure on more queries: with 55")
    assert f"next: {report[0]}" in ending_text(told, tmp_path).splitlines()


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ({}, True),  # of an earlier version, which does not say what was asked for
        ({"keep": "best"}, True),
        ({"keep": "best", "state": "last"}, True),
        ({"keep": "last", "state": "last"}, False),
        ({"state": "last"}, False),
        ({"keep": "best", "of": {"untrained": 0.4}}, False),
    ],
)
def test_it_says_that_dev_chose_what_it_measures(tmp_path, kept, expected):
    said = "dev chose the best of 3 states and measures it, too"
    on_dev = RESULTS | {"compared_on": "dev", "test": {}, "dev": RESULTS["test"], "kept": RESULTS["kept"] | kept}
    assert (f"\nno test split: {said}" in ending_text(on_dev, tmp_path)) == expected
    assert any(said in line for line in verdict(on_dev).advice) == expected
    on_test = RESULTS | {"kept": RESULTS["kept"] | kept}
    assert said not in ending_text(on_test, tmp_path)
    assert not any(said in line for line in verdict(on_test).advice)


def test_a_p_value_never_hides_on_which_side_of_the_limit_it_is(tmp_path):
    for p, shown in (
        (0.0499, "0.0499"),
        (0.0502, "0.0502"),
        (0.04997, "0.04997"),
        (0.05, "0.05"),
        (0.049, "0.049"),
        (0.051, "0.051"),
        (2e-4, "2e-04"),
    ):
        results = RESULTS | {"comparisons": [ROW | {"p": p}]}
        assert f", p {shown} (" in ending_text(results, tmp_path).splitlines()[0]
        assert f"p = {shown})" in verdict(results).sentence


def test_it_says_where_dev_was_judged_among_some_passages_only(tmp_path):
    on_dev = RESULTS | {"compared_on": "dev", "test": {}, "dev": RESULTS["test"]}
    some = {"dev_among": {"first": 100, "passages": 900, "of": 1000}}
    text = ending_text(on_dev | some, tmp_path)
    assert "p 1e-04 (dev (among BM25's first 100) RR@10)" in text
    assert "best state: step-300 (dev (among BM25's first 100) RR@10 0.4100" in text
    assert "\n\ndev (among BM25's first 100)\n" in text
    everything = {"dev_among": {"first": 100, "passages": 1000, "of": 1000}}
    for results in (on_dev, on_dev | everything):
        assert "among BM25's" not in ending_text(results, tmp_path)


def test_a_note_on_figures_too_high_stands_only_where_passages_were_left_out():
    on_dev = RESULTS | {"compared_on": "dev", "test": {}, "dev": RESULTS["test"]}
    among = {"first": 100, "passages": 900, "of": 1000}
    for passages, expected in ((900, 100), (1000, None)):
        results = on_dev | {"dev_among": among | {"passages": passages}}
        assert few_of_dev(results, 100) == expected
        told = " ".join(verdict(results, dev_passages=few_of_dev(results, 100)).advice)
        assert ("so its figures are too high" in told) == (expected is not None)
    assert few_of_dev(on_dev, 100) == 100, "results of before say nothing"


def test_a_test_is_sure_if_its_corrected_p_is(tmp_path):
    row = ROW | {"p": 0.025, "p_holm": 0.099}
    (line, *_) = ending_text(RESULTS | {"comparisons": [row]}, tmp_path).splitlines()
    assert line.count("is not shown to differ from") == 1
    assert "p (Holm) 0.099" in line, "the line says that its p is the corrected one"
    told = verdict(RESULTS | {"comparisons": [row]})
    assert (told.kind, "p (Holm) = 0.099" in told.sentence) == ("unsure", True)


def test_what_is_not_sure_is_not_called_better(tmp_path):
    row = ROW | {"difference": -0.001, "interval": [-0.02, 0.01], "p": 0.8}
    (line, *_) = ending_text(RESULTS | {"comparisons": [row]}, tmp_path).splitlines()
    assert (
        line
        == "final is not shown to differ from untrained (difference -0.001 [-0.020, +0.010]), p 0.800 (test RR@10)"
    )
    (line, *_) = ending_text({"forgetting": []}, tmp_path).splitlines()
    assert line == "Nothing was measured: the experiment has no dev and no test split."


def test_the_untrained_model_that_was_kept_is_not_compared_with_itself(tmp_path):
    zero = ROW | {"difference": 0.0, "interval": [0.0, 0.0], "p": 1.0}
    kept = {"state": "untrained", "step": 0, "measure": "RR@10", "dev": 0.45}
    kept |= {"of": {"untrained": 0.45, "last": 0.41}, "beats_untrained": False}
    bm25 = ROW | {"b": "bm25", "p": 1e-4}
    for rows in ([zero, bm25], [bm25, zero]):
        lines = ending_text(RESULTS | {"comparisons": rows, "kept": kept}, tmp_path).splitlines()
        assert lines[0].startswith("On dev, no state of training was better than the untrained one")
        assert lines[1].startswith("final beats bm25")
        assert lines[2] == "best state: untrained (dev RR@10 0.4500)"


def test_what_the_settings_gained_is_not_told_before_what_training_did_not(tmp_path):
    zero = ROW | {"b": "untrained-as-trained", "difference": 0.0, "interval": [0.0, 0.0], "p": 1.0}
    kept = {"state": "untrained-as-trained", "step": 0, "measure": "RR@10", "dev": 0.45}
    kept |= {"of": {"untrained": 0.2, "untrained-as-trained": 0.45, "last": 0.41}, "beats_untrained": False}
    told = RESULTS | {"comparisons": [ROW | {"p": 1e-4}, zero], "kept": kept}
    told["test"] = told["test"] | {"untrained-as-trained": MEANS}
    lines = ending_text(told, tmp_path).splitlines()
    said = "On dev, no state of training was better than the untrained one (RR@10 0.450, the last state 0.410)"
    assert lines[0].startswith(said)
    assert lines[0].endswith(
        "so the final model is the untrained one at the lengths and other settings of training."
    )
    assert lines[1].startswith("final beats untrained by 0.041")
    assert lines[2] == "best state: untrained, as trained on (dev RR@10 0.4500)"
    trained = kept | {"state": "last", "step": 6, "dev": 0.46, "of": kept["of"] | {"last": 0.46}}
    assert (
        "best state: the last, step 6 (dev RR@10 0.4600, untrained, as trained on 0.4500)"
        in ending_text(told | {"kept": trained}, tmp_path).splitlines()
    )


# ---------------------------------------------------------------- colour


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "painted"),
    [(Terminal(), {}, True), (io.StringIO(), {}, False), (Terminal(), {"NO_COLOR": "1"}, False)],
)
def test_colour_is_for_terminals_that_want_it(stream, environment, painted, monkeypatch):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (colour.painted("x", "red", stream) != "x") is painted


def test_help_and_faults_are_plain_where_no_terminal_is(hardneg):
    assert "\033" not in "".join(map(str, hardneg("--help") + hardneg("nonsense")))


def test_on_a_terminal_the_code_of_a_fault_stands_out(monkeypatch):
    from hardneg import cli

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert cli.marked("a.tsv:3: BAD_LINE: two") == "a.tsv:3: \033[31mBAD_LINE\033[0m: two"


# ---------------------------------------------------------------- quiet, completion


def test_quiet_leaves_results_and_faults_alone(hardneg, world, tmp_path, monkeypatch):
    from hardneg.process import progress

    arguments = [
        "train",
        "star",
        "--data",
        world[0].path,
        "--model",
        world[1],
        "--out",
        tmp_path / "e",
        "--dry-run",
    ]
    status, out, err = hardneg(*arguments, "--quiet")
    assert (status, err) == (0, "")
    assert "queries_per_step = 8" in out
    assert hardneg("-q", "evaluate", "nowhere")[2].count("\n") == 1
    assert not progress.enabled
    assert "splits:" in hardneg(*arguments)[2]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(hardneg, shell):
    status, out, _ = hardneg("completion", shell)
    assert status == 0
    assert "_HARDNEG_COMPLETE" in out
    assert hardneg("completion", "dos")[0] == 2


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("hardneg se", ["search", "settings"]),
        ("hardneg train ad", ["adore"]),
        ("hardneg train star --learn", []),
        ("hardneg train star --batch", ["--batch-size"]),
        ("hardneg train star --preset doc", ["document"]),
        ("hardneg train warmup --preset bm25-to-i", ["bm25-to-in-batch"]),
    ],
)
def test_a_shell_gets_the_words_that_fit(words, completed):
    """As the script asks for them: in a process of its own."""
    asked = {"_HARDNEG_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    command = [sys.executable, "-c", "from hardneg.cli import main; main()"]
    said = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, timeout=300)
    assert (said.stdout.split(), said.stderr) == (completed, "")


# ---------------------------------------------------------------- experiments for models and runs


@pytest.fixture
def experiment(world, tmp_path):
    """The folder of an experiment that ended: its model is the world's, its run holds the positives."""
    collection, model = world
    place = tmp_path / "exp"
    shutil.copytree(model, place / "model")
    (place / "settings.json").write_text(json.dumps({"inputs": {"collection": collection.digest}}))
    (place / "runs").mkdir()
    qrels = collection.qrels("test").positives()
    with gzip.open(place / "runs/final.test.trec.gz", "wt") as stream:
        for i, query in enumerate(collection.query_ids.take(qrels.query_rows)):
            [passage] = collection.passage_ids.take(qrels.of(i)[:1])
            stream.write(f"{query} Q0 {passage} 1 1.0 x\n")
    return place


def test_an_experiment_stands_for_its_model(experiment, monkeypatch):
    monkeypatch.setattr("hardneg.api.inputs.is_published", lambda place: Path(place).is_dir())
    assert Path(source_at(experiment).model) == experiment / "model"
    source = source_at("package:x", experiment, teacher=str(experiment))
    assert source.teacher == str(experiment / "model")  # a text, as a record of models holds it
    assert (source.model, Path(source.passage_model), Path(source.teacher)) == (
        "package:x",
        experiment / "model",
        experiment / "model",
    )
    assert Path(model_place(experiment, "ranker")) == experiment / "model"
    Layout(experiment).ranker.mkdir()
    assert Path(model_place(experiment, "ranker")) == experiment / "ranker"
    assert model_place(experiment / "model") == experiment / "model"


def test_an_experiment_without_a_model_says_so(tmp_path):
    (tmp_path / "settings.json").write_text("{}")
    told = rf"NOT_FINISHED: this experiment has no model yet; .*\(hardneg show {tmp_path} says how far it came\)"
    with pytest.raises(ArtifactError, match=told):
        model_place(tmp_path)
    (tmp_path / "several/seed-1").mkdir(parents=True)
    (tmp_path / "several/seed-1/settings.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"SEVERAL_SEEDS.*seed-1"):
        model_place(tmp_path / "several")


def test_an_experiment_stands_for_the_run_of_its_final_model(hardneg, world, experiment, monkeypatch):
    monkeypatch.setattr("hardneg.api.inputs.is_published", lambda place: Path(place).name == "model")
    assert run_place(experiment, "test") == experiment / "runs/final.test.trec.gz"
    with pytest.raises(ArtifactError, match=r"NO_RUN.*give --split test, or"):
        run_place(experiment, "dev")
    status, out, err = hardneg("evaluate", experiment, "--data", world[0].path, "--measures", "RR@10", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["measures"] == {"RR@10": 1.0}
    runs = [experiment, experiment / "runs/final.test.trec.gz"]
    status, out, _ = hardneg("compare", *runs, "--data", world[0].path, "--measures", "RR@10", "--json")
    assert json.loads(out)[0]["ties"] == 16


# ---------------------------------------------------------------- the cache


def test_the_cache_is_listed_and_emptied(hardneg, world, tmp_path):
    status, _, _ = hardneg("search", "--data", world[0].path, "--bm25", "--k", 3, "--out", tmp_path / "run.trec")
    assert status == 0
    status, out, _ = hardneg("clean", "--cache", "--json")
    found = json.loads(out)
    assert (status, found["deleted"], found["cache"]) == (0, False, str(cache_root()))
    assert {one["kind"] for one in found["items"]} >= {"bm25"}
    assert all(Path(one["path"]).exists() for one in found["items"])
    assert "can be deleted with --yes" in hardneg("clean", "--cache")[1]
    assert json.loads(hardneg("clean", "--cache", "--yes", "--json")[1])["deleted"]
    assert not any(Path(one["path"]).exists() for one in found["items"])
    assert hardneg("clean", "--cache")[1] == "nothing to delete\n"
    assert hardneg("clean")[0] == hardneg("clean", "--cache", tmp_path)[0] == 2


def test_what_is_not_hardnegs_stays_in_the_cache(hardneg, tmp_path, monkeypatch):
    """Neither a file of somebody else nor what a link leads to is deleted."""
    monkeypatch.setenv("HARDNEG_CACHE", str(tmp_path / "cache"))
    others = tmp_path / "others"
    for folder in (tmp_path / "cache/collections", others / ("a" * 32)):
        folder.mkdir(parents=True)
    (tmp_path / "cache/collections/notes.txt").write_text("mine")
    (tmp_path / "cache/collections" / ("b" * 32)).symlink_to(others)
    (tmp_path / "cache/tokens").symlink_to(others)
    assert hardneg("clean", "--cache", "--yes")[1] == "nothing to delete\n"
    assert (tmp_path / "cache/collections/notes.txt").read_text() == "mine"
    assert (others / ("a" * 32)).is_dir()


def test_the_cache_lies_where_xdg_says(monkeypatch, tmp_path):
    assert cache_root() == tmp_path / "cache"  # $HARDNEG_CACHE of all tests
    monkeypatch.delenv("HARDNEG_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg/hardneg"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_root() == Path.home() / ".cache/hardneg"


def test_a_last_state_that_is_kept_anyway_is_not_called_the_best(tmp_path):
    kept = {"state": "last", "step": 3, "measure": "RR@10", "dev": 0.41, "of": {"untrained": 0.45, "last": 0.41}}
    text = ending_text(RESULTS | {"kept": kept}, tmp_path)
    assert "\nkept state: the last, step 3 (dev RR@10 0.4100, untrained 0.4500)\n" in text
    assert "keep=last" not in text  # it is that already
    better = kept | {"dev": 0.45, "of": {"untrained": 0.41, "last": 0.45}}
    assert "\nbest state: the last, step 3 (" in ending_text(RESULTS | {"kept": better}, tmp_path)
