"""The scripts for clusters, run unchanged with stand-ins for the commands of the cluster."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from processes import free_port
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "examples" / "cluster"
SRUN = """#!/bin/bash
for node in $(seq "$SLURM_NNODES"); do "$@" & started+=($!); done
for one in "${started[@]}"; do wait "$one" || status=$?; done
exit "${status:-0}"
"""
SCONTROL = """#!/bin/bash
[ "$*" = "show hostnames $SLURM_JOB_NODELIST" ] && seq 100000 | sed s/.*/localhost/
"""


@pytest.fixture
def cluster(tmp_path, world):
    """Runs a script with more in its environment, and returns what it said."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    path = os.pathsep.join((str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
    known = {"PATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    known |= {"DATA": str(world.collection.path), "M": str(world.model)}

    def run(command, **environment):
        done = subprocess.run(
            ["bash", *map(str, command)],
            env=os.environ | known | environment,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    return run


def test_two_machines_train_by_the_script(cluster, tmp_path):
    slurm = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7"}
    slurm |= {"SLURM_GPUS_PER_NODE": "a100:1", "PORT": free_port(), "EXP": str(tmp_path / "exp")}
    few = ["--set", "min_steps=2", "--set", "max_steps=2", "--test", "none"]
    cluster([CLUSTER / "train.sbatch", *few], RECIPE="warmup", **slurm)
    rows = [json.loads(line) for line in (tmp_path / "exp" / "timing.jsonl").read_text().splitlines()]
    assert {row["processes"] for row in rows if row["stage"] == "begin"} == {2}
    assert json.loads((tmp_path / "exp" / "results.json").read_text())["kept"]


def test_a_job_array_encodes_a_collection(cluster, tmp_path, hardneg, world):
    vectors = tmp_path / "vectors"
    for task in ("0", "1"):
        array = {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_COUNT": "2"}
        cluster([CLUSTER / "encode.sbatch"], EMB=str(vectors), **array)
    assert_searched(hardneg, world, vectors)


def test_the_command_of_the_kubernetes_job_encodes_a_collection(cluster, tmp_path, hardneg, world):
    spec = yaml.safe_load((CLUSTER / "encode.yaml").read_text())["spec"]
    assert spec["completionMode"] == "Indexed"
    (container,) = spec["template"]["spec"]["containers"]
    given = {one["name"]: one["value"] for one in container["env"]}
    assert int(given["PARTS"]) == spec["completions"]
    assert container["command"] == ["bash", "-c"]
    for index in ("0", "1"):
        job = {"JOB_COMPLETION_INDEX": index, "PARTS": "2", "EMB": str(tmp_path / "vectors")}
        cluster(["-c", *container["args"]], **job)
    assert_searched(hardneg, world, tmp_path / "vectors")


def assert_searched(hardneg, world, vectors):
    """The joined vectors answer."""
    command = ["search", "--data", world.collection.path, "--model", world.model, "--embeddings", vectors]
    status, _, said = hardneg(*command, "--split", "test", "--out", vectors.parent / "run.trec", "--device", "cpu")
    assert status == 0, said
    assert (vectors.parent / "run.trec").read_text().strip()


@pytest.mark.parametrize("name", ["train.sbatch", "encode.sbatch"])
def test_the_page_shows_the_scripts_as_they_are(name):
    assert (CLUSTER / name).read_text() in (ROOT / "docs" / "large-scale.md").read_text()
