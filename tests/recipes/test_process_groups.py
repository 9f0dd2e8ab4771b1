"""Several processes where a step searches the corpus (ADORE), and where each role of ANCE is a group."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import torch.distributed  # before processes are forked: it takes seconds
from safetensors.numpy import load_file

import hardneg as hn
from faults.forked import fork
from hardneg import cli
from hardneg.storage.artifacts import is_published, read_manifest
from processes import DIE, DIE_RANK, arrays_of, command_of, finish, forked, started, together, wait
from worlds.tiny_world import COMMON

assert torch.distributed.is_available()
pytestmark = pytest.mark.slow

ADORE = COMMON | {"cut": 10, "steps": 8, "warmup": 1, "depth": 12, "store_dtype": "float32", "measures": "RR@10"}
VARIANTS = {
    "dynamic": {},
    "in micro-batches, with patience": {"micro_queries": 5, "measure_every": 2, "patience": 9},
    "static": {"negatives": "static", "refresh_every": 3},
    "random": {"negatives": "random"},
    "compressed": {"index": "pq", "subvectors": 16, "bits": 4},
}


def without_torchruns_own(said):
    """Without the exceptions that torchrun raises at a signal where Python can only print and ignore them."""
    return re.sub(r"Exception ignored in: .*\n\S* ?Traceback", "", said)


def rows_of(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def weights_of(path):
    """The final weights but for the biases of keys, whose gradient is 0 but for rounding."""
    found = {}
    for file in sorted(path.glob("model/**/model.safetensors")):
        found |= {f"{file.parent.name}/{name}": value for name, value in load_file(file).items()}
    return np.concatenate([found[name].ravel() for name in sorted(found) if not name.endswith("key.bias")])


@pytest.mark.parametrize("what", VARIANTS)
def test_adore_trains_as_by_one_process(world, calm, tmp_path, what):
    for count in (1, 3 if what == "dynamic" else 2):
        arguments = command_of(
            calm.collection.path, calm.model, tmp_path / str(count), ADORE | VARIANTS[what], "adore"
        )
        finish(count, arguments, tmp_path / "log")
    one, several = tmp_path / "1", tmp_path / str(count)
    found, expected = rows_of(several), rows_of(one)
    assert len(found) == len(expected) == 8
    same = 0
    for row, other in zip(found, expected, strict=True):
        assert row.keys() == other.keys()
        assert row.pop("model") == other.pop("model")
        same += row.pop("retrieved") == other.pop("retrieved")  # rounding may swap near ties
        assert row == pytest.approx(other, rel=1e-4, abs=2e-5)
    assert same >= 7
    assert found[0]["loss"] == pytest.approx(expected[0]["loss"], abs=1e-6)
    weights, others = weights_of(several), weights_of(one)
    assert np.linalg.norm(weights - others) < 1e-4 * np.linalg.norm(others)
    assert hn.verify(several)["whole"]


# ---------------------------------------------------------------- one group after another


MEET = """
import os, time
from hardneg.process.distributed import by_leader, group
for turn in range(6):
    time.sleep(0.5 * int(os.environ["RANK"]))
    with group():
        assert by_leader(lambda: turn) == turn
"""


def test_processes_of_torchrun_meet_again_and_again(tmp_path):
    (tmp_path / "meet.py").write_text(MEET)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", tmp_path / "meet.py"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_python_mines_searches_and_trains_twice_by_two_processes(calm, tmp_path):
    def both(place):
        common = {"cache": tmp_path / place / "cache", "device": "cpu"}
        hn.mine(calm.collection, calm.model, tmp_path / place / "pool", depth=12, count=4, **common)
        run = tmp_path / place / "test.trec"
        hn.search_split(calm.collection, run, model=calm.model, k=20, **common)
        for recipe, values in (("star", {"steps": 3}), ("adore", {"steps": 3, "cut": 10})):
            out = tmp_path / place / recipe
            hn.train(recipe, calm.collection, calm.model, out, **common, **COMMON | values)
        return 0

    (tmp_path / "two").mkdir()
    (tmp_path / "one").mkdir()
    assert together(2, lambda rank: both("two"), tmp_path / "log") == [0, 0], (tmp_path / "log").read_text()
    assert together(1, lambda rank: both("one"), tmp_path / "log") == [0]
    assert (tmp_path / "two/test.trec").read_bytes() == (tmp_path / "one/test.trec").read_bytes()
    pools = [arrays_of(tmp_path / place / "pool") for place in ("two", "one")]
    assert all(np.array_equal(pools[0][name], pools[1][name]) for name in pools[1] if "scores" not in name)
    for recipe in ("star", "adore"):
        found, expected = rows_of(tmp_path / "two" / recipe), rows_of(tmp_path / "one" / recipe)
        assert [row["loss"] for row in found] == pytest.approx([row["loss"] for row in expected], abs=2e-5)


# ---------------------------------------------------------------- a trainer group and an inferencer group

ANCE = COMMON | {"mode": "async-fixed", "refresh_every": 4, "refreshes": 3, "warmup": 2, "measures": "RR@10"}
ROLES = ("trainer", "inferencer")


def ance(calm, out, **changes):
    return command_of(calm.collection.path, calm.model, out, ANCE | changes, "ance")


def role(name, count, arguments, log, **environment):
    return started(count, [*arguments, "--role", name], f"{log}-{name}", **environment)


def statuses(children):
    return [wait(child) for child in children]


def pools_of(path):
    return {
        folder.name: {file.stem: np.load(file) for file in sorted(folder.glob("*.npy"))}
        for folder in path.glob("versions/v*")
        if is_published(folder)
    }


def check_equal(path, one):
    found, expected = rows_of(path), rows_of(one)
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        assert row.pop("model") == other.pop("model")
        assert row == pytest.approx(other, rel=1e-4, abs=2e-5)
    pools, others = pools_of(path), pools_of(one)
    assert pools.keys() == others.keys() != set()
    for name, pool in pools.items():
        for array, values in others[name].items():
            if array != "scores":
                assert np.count_nonzero(values != pool[array]) <= 0.005 * values.size, (name, array)


@pytest.fixture(scope="module")
def each_alone(calm, tmp_path_factory):
    """The experiment whose two roles are a process each."""
    root = tmp_path_factory.mktemp("alone")
    arguments = ance(calm, root / "exp")
    groups = [role(name, 1, arguments, root / "log") for name in ROLES]
    assert [statuses(group) for group in groups] == [[0], [0]]
    return root / "exp"


def test_two_groups_train_and_mine_as_two_processes_do(calm, each_alone, tmp_path):
    arguments = ance(calm, tmp_path / "exp")
    groups = [role("trainer", 2, arguments, tmp_path / "log"), role("inferencer", 3, arguments, tmp_path / "log")]
    assert [statuses(group) for group in groups] == [[0, 0], [0, 0, 0]], said(tmp_path)
    check_equal(tmp_path / "exp", each_alone)
    assert not (tmp_path / "exp/results.json").exists()
    finish(1, arguments, tmp_path / "log")  # measures, and writes the results
    assert hn.verify(tmp_path / "exp")["whole"]


LOST = {
    "one that searches": ("1", "hardneg.search.parts:search_part:5"),
    "the first, before it publishes": ("0", "hardneg.recipes.ance.recipe:publish_version:2"),
}


@pytest.mark.parametrize("what", LOST)
def test_one_that_is_lost_among_those_who_mine_costs_a_version_and_not_the_trainer(
    calm, each_alone, tmp_path, what
):
    arguments = ance(calm, tmp_path / "exp")
    rank, place = LOST[what]
    trainer = role("trainer", 2, arguments, tmp_path / "log")
    first = statuses(role("inferencer", 2, arguments, tmp_path / "log", **{DIE: place, DIE_RANK: rank}))
    assert first == ([-9, 8] if rank == "0" else [8, -9]), said(tmp_path)
    assert said(tmp_path).count("PEER_LOST") == 1
    assert all(os.waitpid(child, os.WNOHANG) == (0, 0) for child in trainer), "it waits for the version"
    assert statuses(role("inferencer", 2, arguments, tmp_path / "again")) == [0, 0]
    assert statuses(trainer) == [0, 0], said(tmp_path)
    check_equal(tmp_path / "exp", each_alone)


def test_where_any_version_serves_the_trainer_goes_on_without_those_who_mine(calm, tmp_path):
    arguments = ance(calm, tmp_path / "exp", mode="async", refresh_every=2, refreshes=5)
    trainer = role("trainer", 2, arguments, tmp_path / "log")
    die = {DIE: "hardneg.recipes.ance.recipe:publish_version:2", DIE_RANK: "0"}
    assert statuses(role("inferencer", 2, arguments, tmp_path / "log", **die)) == [-9, 8]
    assert statuses(trainer) == [0, 0], said(tmp_path)
    assert len(rows_of(tmp_path / "exp")) == 12
    assert is_published(tmp_path / "exp/versions/v0000")


def test_a_trainer_group_that_is_stopped_stops_at_one_step_and_resumes(calm, each_alone, tmp_path):
    arguments = ance(calm, tmp_path / "exp")
    trainer = role("trainer", 2, arguments, tmp_path / "log")
    end = time.monotonic() + 600
    while not (tmp_path / "exp/roles/trainer").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(2)  # it waits for the first version, which nobody mines yet
    for child in trainer:
        os.kill(child, signal.SIGTERM)
    assert statuses(trainer) == [75, 75], said(tmp_path)
    groups = [role(name, 2, arguments, tmp_path / "log") for name in ROLES]
    assert [statuses(group) for group in groups] == [[0, 0], [0, 0]], said(tmp_path)
    check_equal(tmp_path / "exp", each_alone)


def test_several_processes_do_not_watch_over_roles(calm, tmp_path):
    assert forked(2, ance(calm, tmp_path / "exp"), tmp_path / "log") == [2, 2]
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 2
    assert all(line.startswith("ONE_PROCESS: ance starts its roles from one process") for line in lines)
    assert all("--role trainer" in line for line in lines)
    assert not (tmp_path / "exp").exists()


# ---------------------------------------------------------------- both groups by one command


class Command:
    """``hardneg train`` that starts a group for each role, in a process of its own."""

    def __init__(self, arguments, log, trainer, inferencer):
        counts = [f"--trainer-devices={trainer}", f"--inferencer-devices={inferencer}"]
        self.log = log
        with open(log, "a") as stream:
            whole = [*arguments, *counts, "--device=cpu", "--threads=1", "--json"]
            self.pid, _ = fork(lambda: cli.run(whole), stderr=stream.fileno())

    def until(self, ready):
        """Wait for something while it works; returns that."""
        end = time.monotonic() + 600
        while not (found := ready()):
            assert os.waitpid(self.pid, os.WNOHANG) == (0, 0), self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.05)
        return found

    def members(self, role):
        """The processes of a role's group that are there now, by their rank."""
        found = {}
        for one in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error, KeyError, ValueError):  # it ends, or begins
                told = one.environ()
                if json.loads(told["HARDNEG_JOB"])["role"] == role:
                    found[int(told["RANK"])] = one.pid
        return found


def is_held(place):
    return (place / ".lock").exists() and "process" in (place / ".lock").read_text()


def test_one_command_starts_both_groups_stops_all_and_resumes(calm, each_alone, tmp_path):
    arguments, exp = ance(calm, tmp_path / "exp"), tmp_path / "exp"
    command = Command(arguments, tmp_path / "log", 2, 1)
    command.until(lambda: is_published(exp / "versions/v0000") and len(command.members("trainer")) == 2)
    children = psutil.Process(command.pid).children(recursive=True)
    os.kill(command.pid, signal.SIGINT)
    assert wait(command.pid) == 75, command.log.read_text()
    assert psutil.wait_procs(children, timeout=5)[1] == []
    assert "Traceback" not in without_torchruns_own(command.log.read_text())
    assert not (exp / "results.json").exists()
    command = Command(arguments, tmp_path / "log", 2, 1)
    assert wait(command.pid) == 0, command.log.read_text()
    check_equal(exp, each_alone)
    assert "devices" not in (exp / "settings.json").read_text()
    assert hn.verify(exp)["whole"]


def test_one_command_starts_those_who_mine_again_where_one_is_lost(calm, each_alone, tmp_path):
    exp = tmp_path / "exp"
    command = Command(ance(calm, exp), tmp_path / "log", 1, 2)
    command.until(lambda: is_held(exp / "roles/inferencer") and is_held(exp / "roles/trainer"))
    os.kill(command.members("inferencer")[1], signal.SIGKILL)
    assert wait(command.pid) == 0, command.log.read_text()
    check_equal(exp, each_alone)
    said = command.log.read_text()
    assert "inferencer: process 1 of 2 was ended by SIGKILL" in said
    assert "the inferencer was stopped (by SIGKILL); it is started again" in said
    assert "the trainer was stopped" not in said
    assert "Traceback" not in without_torchruns_own(said)


def said(folder):
    return "\n".join(f"{file.name}: {file.read_text()}" for file in sorted(folder.glob("*-*")))


# ---------------------------------------------------------------- commands


def test_search_and_mine_by_several_processes_give_the_files_of_one(calm, tmp_path):
    asked = ["--data", str(calm.collection.path), "--model", calm.model]
    for count in (1, 3):
        place = tmp_path / str(count)
        beside = [*asked, "--cache", str(place / "cache")]
        place.mkdir()
        finish(count, ["search", *beside, "--k=50", f"--out={place}/run.trec"], tmp_path / "log")
        finish(count, ["mine", *beside, "--depth=20", "--count=5", f"--out={place}/pool"], tmp_path / "log")
    assert (tmp_path / "1/run.trec").read_bytes() == (tmp_path / "3/run.trec").read_bytes()
    pools = [{file.name: file.read_bytes() for file in (tmp_path / n / "pool").glob("*.npy")} for n in "13"]
    assert pools[0] == pools[1] != {}
    stores = [read_manifest(store) for store in (tmp_path / "3/cache/embeddings").iterdir()]
    assert min(manifest.facts["shards"] for manifest in stores) > 3, "there was something to share"
