"""The rows of the error table that need a model, training, a process of their own, or a look at memory.

Statuses 0, 2, 3, 4, 5, 6, 7, 9 and 75 are those of real processes here; 8 stands in ``test_chaos.py``.
"""

import gzip
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import loaded
from faults.injected import LINE, Payload
from formats.samples import BEIR, files
from loaded import finish
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

pytestmark = pytest.mark.slow

SETTINGS = {
    "episodes": 1,
    "queries_per_step": 8,
    "passages_reference": "[3]",
    "steps": 4,
    "depth": 10,
    "count": 3,
    "precision": "float32",
    "checkpoint_every": 1,
    "measures": "RR@10",
}


def settings(**changed):
    return [word for name, value in (SETTINGS | changed).items() for word in ("--set", f"{name}={value}")]


# ---------------------------------------------------------------- processes


def start(*arguments, before=None):
    """``python -m hardneg`` in a process of its own; a new Python where something is to be done ``before``."""
    command = [sys.executable, "-m", "hardneg", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    if before is None:
        return loaded.Popen(command, env=environment, **pipes)
    return subprocess.Popen(command, env=environment, preexec_fn=before, **pipes)


def only_line(err):
    """The one line of a fault; what comes before it are warnings and progress."""
    assert "Traceback" not in err
    lines = err.splitlines()
    match = LINE.fullmatch(lines[-1])
    assert match, err
    assert all(not LINE.fullmatch(line) or line.startswith("WARNING") for line in lines[:-1]), err
    return match


@pytest.fixture
def refused(hardneg):
    """A command of this process that must fail: its status, and the parts of its line."""

    def run(*arguments):
        status, out, err = hardneg(*arguments)
        assert out == ""
        return status, only_line(err)

    return run


@pytest.fixture
def succeeds(hardneg):
    """A command of this process that must succeed: what it prints, as JSON, and what it says besides."""

    def run(*arguments):
        status, out, err = hardneg(*arguments, "--json")
        assert status == 0, err
        return json.loads(out), err

    return run


@pytest.fixture(scope="module")
def world(world):
    return world.collection, Path(world.model)


def changed_model(world, folder, **changes):
    """The model with some of its weights changed: name -> function."""
    shutil.copytree(world[1], folder)
    weights = load_file(folder / "model.safetensors")
    for name, change in changes.items():
        found = next(key for key in weights if key.endswith(name.replace("__", ".")))
        weights[found] = change(weights[found].clone())
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


# ---------------------------------------------------------------- each status, of a real process


MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, done.stderr, end="")
"""


def measured(*arguments):
    """Status, last line of stderr, and the most memory (bytes) of a process.

    A small process starts it, because a fork counts, too. On a slow machine lines of progress come first.
    """
    command = [sys.executable, "-m", "hardneg", *map(str, arguments)]
    done = subprocess.run([sys.executable, "-c", MEASURE, *command], capture_output=True, text=True, check=True)
    status, kibibytes, err = done.stdout.split(" ", 2)
    return int(status), err[err.rstrip().rfind("\n") + 1 :], int(kibibytes) * 1024


def test_a_line_of_100_mb_and_a_bomb_are_refused_in_bounded_memory(tmp_path):
    files(BEIR)(tmp_path / "in")
    status, _, least = measured("import", tmp_path / "in", "--to", tmp_path / "sound")
    assert status == 0
    sound = (tmp_path / "in/corpus.jsonl").read_bytes()
    with open(tmp_path / "in/corpus.jsonl", "ab") as stream:
        stream.write(b'{"_id": "long", "text": "' + b"x" * 100_000_000 + b'"}\n')
    status, err, most = measured("import", tmp_path / "in", "--to", tmp_path / "out")
    assert (status, err.startswith(f"{tmp_path}/in/corpus.jsonl:7: LONG_LINE: ")) == (3, True)
    assert most - least < 160 << 20
    record = json.dumps({"_id": "p0", "text": "a" * 100_000}).encode() + b"\n"
    with gzip.open(tmp_path / "in/corpus.jsonl.gz", "wb") as stream:
        for _ in range(2000):
            stream.write(record)
    (tmp_path / "in/corpus.jsonl").unlink()
    status, err, most = measured("import", tmp_path / "in", "--to", tmp_path / "out")
    assert (status, err.startswith(f"{tmp_path}/in/corpus.jsonl.gz: GZIP_BOMB: ")) == (3, True)
    assert most - least < 100 << 20
    assert not (tmp_path / "out").exists()
    (tmp_path / "in/corpus.jsonl.gz").unlink()
    (tmp_path / "in/corpus.jsonl").write_bytes(sound)
    assert measured("import", tmp_path / "in", "--to", tmp_path / "out")[0] == 0


def small_files():
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


def test_usage_disk_and_damage_end_processes_with_2_5_and_4(tmp_path):
    files(BEIR)(tmp_path / "in")
    status, out, err = finish(start("search", "--data", tmp_path / "in", "--bm25", "--k", "0"))
    assert (status, out, only_line(err)["code"]) == (2, "", "USAGE")
    status, out, err = finish(start("import", tmp_path / "in", "--to", tmp_path / "out", before=small_files))
    assert (status, out, only_line(err)["code"]) == (5, "", "NOT_WRITABLE")
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["in"]
    assert finish(start("import", tmp_path / "in", "--to", tmp_path / "out"))[0] == 0
    damaged = tmp_path / "out/content/queries.texts.utf8"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    status, out, err = finish(start("search", "--data", tmp_path / "out", "--bm25", "--out", tmp_path / "run"))
    fault = only_line(err)
    assert (status, out, fault["code"], fault["path"]) == (4, "", "WRONG_SIZE", str(damaged))
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- stages that follow one another


@pytest.fixture
def train(world):
    def command(out, *options, model=None, **changed):
        common = ["--data", world[0].path, "--model", model or world[1], "--threads", 1]
        return ["train", "ance-tele", *common, "--out", out, *settings(**changed), *options]

    return command


def tree(folder):
    """Every file but telemetry: name -> bytes."""
    names = ("log.txt", "timing.jsonl", ".lock")
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name not in names}


def test_another_input_or_another_setting_is_refused_and_what_is_there_unharmed(
    world, train, refused, succeeds, tmp_path
):
    results = succeeds(*train(tmp_path / "exp"))[0]
    before = tree(tmp_path / "exp")
    status, fault = refused(*train(tmp_path / "exp", steps=5, alpha=0.25))
    assert (status, fault["code"]) == (4, "SETTINGS_CHANGED")
    assert "alpha: 0.5 -> 0.25; steps: 4 -> 5" in fault[0]
    other = changed_model(world, tmp_path / "other", LayerNorm__bias=lambda bias: bias + 1)
    status, fault = refused(*train(tmp_path / "exp", model=other))
    assert (status, fault["code"]) == (4, "INPUT_CHANGED")
    assert len(set(re.findall(r"'([0-9a-f]{12}…)'", fault[0]))) == 2
    status, fault = refused(*train(tmp_path / "exp", epizodes=2))
    assert (status, fault["code"]) == (2, "UNKNOWN_SETTING")
    assert tree(tmp_path / "exp") == before
    assert succeeds(*train(tmp_path / "exp"))[0] == results


def test_embeddings_of_another_model_are_refused(world, refused, succeeds, tmp_path):
    search = ["search", "--data", world[0].path, "--threads", 1, "--embeddings", tmp_path / "emb"]
    succeeds("encode", "--data", world[0].path, "--model", world[1], "--out", tmp_path / "emb", "--threads", 1)
    other = changed_model(world, tmp_path / "other", LayerNorm__bias=lambda bias: bias + 1)
    status, fault = refused(*search, "--model", other, "--out", tmp_path / "run")
    assert (status, fault["code"]) == (4, "OTHER_MODEL")
    assert not (tmp_path / "run").exists()
    found, _ = succeeds(*search, "--model", world[1], "--out", tmp_path / "run", "--k", 1000)
    assert found["hits"] == found["queries"] * world[0].n_passages  # k > n: n hits


def test_two_in_one_directory_and_the_lock_of_a_dead_one(train, refused, succeeds, tmp_path):
    """6 while a process holds the folder; its lock is worth nothing once it is killed. Then 75, and a resume."""
    long = train(tmp_path / "exp", steps=100_000)
    first = start(*long)
    metrics = tmp_path / "exp/metrics.jsonl"
    wait_for(metrics, first)
    begun = time.monotonic()
    status, out, err = finish(start(*long))
    assert (status, out, only_line(err)["code"]) == (6, "", "IN_USE")
    assert f"process {first.pid}" in err
    assert time.monotonic() - begun < 10  # 2 s on a machine that does nothing else
    assert first.poll() is None
    first.kill()
    finish(first)
    assert (tmp_path / "exp/.lock").read_text().startswith(f"process {first.pid} ")
    done = len(metrics.read_text().splitlines())
    for number in (signal.SIGTERM, signal.SIGINT):
        again = start(*long)
        wait_for(metrics, again, lines=done + 1)
        again.send_signal(number)
        status, out, err = finish(again, timeout=300)
        assert (status, out, only_line(err)["code"]) == (75, "", "STOPPED")
        done = len(metrics.read_text().splitlines())


def wait_for(path, process, lines=1, seconds=300):
    """Wait until a file has so many lines."""
    end = time.monotonic() + seconds
    while not (path.is_file() and len(path.read_bytes().splitlines()) >= lines):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


# ---------------------------------------------------------------- numbers


def test_a_loss_that_is_not_finite_names_step_and_queries_and_spoils_no_checkpoint(train, succeeds, tmp_path):
    status, out, err = finish(
        start(*train(tmp_path / "exp", learning_rate="1e30", clip="1e30", warmup=0, steps=20))
    )
    fault = only_line(err)
    assert (status, out, fault["code"]) == (7, "", "NOT_FINITE")
    assert re.search(r"step \d+ of the retriever is not finite \(queries train-\d\d, ", fault[0])
    for path in (tmp_path / "exp").rglob("*.safetensors"):
        tensors = [tensor for tensor in load_file(path).values() if tensor.is_floating_point()]
        assert all(torch.isfinite(tensor).all() for tensor in tensors), path
    for row in map(json.loads, (tmp_path / "exp/metrics.jsonl").read_text().splitlines()):
        assert row["loss"] == row["loss"]
    assert not (tmp_path / "exp/model").exists()
    succeeds(*train(tmp_path / "again"))


def spoiled_word(world, value):
    """Word embeddings in which the first word of one passage holds ``value``."""
    from transformers import AutoTokenizer

    text = world[0].texts[7]
    word = AutoTokenizer.from_pretrained(world[1]).convert_tokens_to_ids(text.split()[0])

    def change(weights):
        weights[word, 3] = value
        return weights

    return change, {row for row in range(world[0].n_passages) if text.split()[0] in world[0].texts[row].split()}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_vector_that_is_not_finite_is_named_and_nothing_is_published(world, refused, succeeds, tmp_path, value):
    change, rows = spoiled_word(world, value)
    model = changed_model(world, tmp_path / "model", word_embeddings__weight=change)
    encode = ["encode", "--data", world[0].path, "--threads", 1, "--out", tmp_path / "emb"]
    status, fault = refused(*encode, "--model", model)
    assert (status, fault["code"]) == (7, "BAD_VECTOR")
    named = re.search(r"the vector of (p\d+) \(row (\d+)\)", fault[0])
    assert int(named[2]) in rows
    assert world[0].passage_ids[int(named[2])] == named[1]
    assert not list(tmp_path.glob("emb/**/*.npy"))
    assert not (tmp_path / "emb/manifest.json").exists()
    assert succeeds(*encode, "--model", world[1])[0]["complete"] is True


def test_a_zero_vector_ends_a_process_with_7(world, tmp_path):
    zero = {f"encoder__layer__1__output__LayerNorm__{name}": torch.zeros_like for name in ("weight", "bias")}
    model = changed_model(world, tmp_path / "model", **zero)
    search = ("search", "--data", world[0].path, "--model", model, "--out", tmp_path / "run", "--threads", 1)
    status, out, err = finish(start(*search))
    fault = only_line(err)
    assert (status, out, fault["code"]) == (7, "", "BAD_VECTOR")
    assert "the vector of p000 (row 0) is zero (120 such)" in fault[0]
    assert not (tmp_path / "run").exists()


def test_vectors_that_are_nearly_all_alike_are_warned_of_loudly_and_in_the_log(world, train, succeeds, tmp_path):
    alike = {
        "encoder__layer__1__output__LayerNorm__weight": lambda weight: weight * 1e-3,
        "encoder__layer__1__output__LayerNorm__bias": lambda bias: bias + 1,
    }
    model = changed_model(world, tmp_path / "model", **alike)
    encode = ["encode", "--data", world[0].path, "--threads", 1]
    _, err = succeeds(*encode, "--model", model, "--out", tmp_path / "emb")
    assert re.search(r"^WARNING: \S+: mean pairwise cosine 1\.0000: .*; check the model", err, re.MULTILINE)
    _, err = succeeds(*encode, "--model", world[1], "--out", tmp_path / "sound")
    assert "cosine" not in err
    succeeds(*train(tmp_path / "exp", model=model))
    assert "WARNING" in (log := (tmp_path / "exp/log.txt").read_text())
    assert "mean pairwise cosine" in log


# ---------------------------------------------------------------- trust


def test_code_of_a_local_model_is_never_run(world, tmp_path):
    shutil.copytree(world[1], tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    config["auto_map"] = {"AutoModel": "modeling.Model", "AutoConfig": "modeling.Config"}
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    (tmp_path / "model/modeling.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    search = ("search", "--data", world[0].path, "--model", tmp_path / "model", "--out", tmp_path / "run")
    status, out, err = finish(start(*search))
    fault = only_line(err)
    assert (status, out, fault["code"]) == (9, "", "REMOTE_CODE")
    assert not (tmp_path / "mark").exists()
    assert not (tmp_path / "run").exists()


def test_a_bin_needs_a_flag_and_its_payload_is_never_run(world, refused, succeeds, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(world[1], model)
    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    torch.save(weights, model / "pytorch_model.bin")
    search = ["search", "--data", world[0].path, "--model", model, "--out", tmp_path / "run", "--threads", 1]
    status, fault = refused(*search)
    assert (status, fault["code"], "--allow-bin" in fault[0]) == (9, "BIN_WEIGHTS", True)
    torch.save({**weights, "payload": Payload(tmp_path / "mark")}, model / "pytorch_model.bin")
    status, fault = refused(*search, "--allow-bin")
    assert (status, fault["code"]) == (9, "UNSAFE_PICKLE")
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(tmp_path / "mark")))
    status, fault = refused(*search, "--allow-bin")
    assert status == 9, fault[0]
    assert not (tmp_path / "mark").exists()
    assert not (tmp_path / "run").exists()
    torch.save(weights, model / "pytorch_model.bin")
    assert succeeds(*search, "--allow-bin")[0]["queries"] == 16
