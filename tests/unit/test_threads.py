"""Threads, device and memory of the process."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hardneg
from hardneg.errors import SettingsError
from hardneg.process import control_groups, cpu, threads
from hardneg.process.cpu import reuse_memory, spin_briefly
from hardneg.process.threads import pick_device

FAULTS = """
import resource
import sys

import numpy as np

from hardneg.process.cpu import reuse_memory

if sys.argv[1] == "reuse":
    assert reuse_memory()
for _ in range(20):
    np.ones(1 << 23)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    np.ones(1 << 23)
sys.stdout.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before))
"""


def faults(mode):
    return int(subprocess.run([sys.executable, "-c", FAULTS, mode], capture_output=True, check=True).stdout)


@pytest.mark.skipif(not reuse_memory(), reason="another C library than glibc")
def test_large_buffers_are_not_mapped_anew():
    assert faults("reuse") * 10 < faults("plain")


def test_an_unknown_device_is_refused_by_name():
    assert pick_device("cpu") == "cpu"
    with pytest.raises(SettingsError, match="NO_DEVICE: there is no device 'gpu'"):
        pick_device("gpu")


def test_each_process_of_a_machine_takes_a_device_of_its_own(monkeypatch):
    """Two processes on one device would end in NCCL's words, or halve the speed without a word."""
    monkeypatch.setattr(threads, "_cuda_devices", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert [pick_device(one) for one in (None, "cuda", "cuda:1", "cpu")] == ["cuda:1", "cuda:1", "cuda:1", "cpu"]
    with pytest.raises(SettingsError, match="BAD_SETTING: 2 processes of this machine on the device cuda:0 alone"):
        pick_device("cuda:0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert [pick_device(one) for one in (None, "cuda", "cuda:1", "cpu")] == ["cuda", "cuda", "cuda:1", "cpu"]


def test_threads_spin_briefly_and_not_at_all_where_others_run(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")  # what the user says
    assert spin_briefly() is None
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setitem(sys.modules, "torch", object())  # too late
    assert spin_briefly() is None
    monkeypatch.delitem(sys.modules, "torch")
    assert "GOMP_SPINCOUNT" not in threads.os.environ
    for others, looks in ((True, 0), (False, cpu.BRIEF)):
        monkeypatch.setattr(cpu, "_others_run", lambda others=others: others)
        assert spin_briefly() == looks
        assert threads.os.environ["GOMP_SPINCOUNT"] == str(looks)
        assert spin_briefly() is None  # the environment says it now
        monkeypatch.delenv("GOMP_SPINCOUNT")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what runs")
def test_others_that_run_are_seen():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            time.sleep(0.2)
            assert any(cpu._others_run() for _ in range(5))
        finally:
            other.kill()


@pytest.mark.parametrize(
    "first",
    ["from hardneg.cli.options import begin; begin()", "import hardneg; hardneg.doctor"],
    ids=["command", "library"],
)
def test_it_is_done_before_torch_is_loaded(first):
    program = f"""
import sys
from hardneg.process import cpu
cpu._others_run = lambda: False
{first}
assert cpu.os.environ["GOMP_SPINCOUNT"] == str(cpu.BRIEF)
assert "torch" not in sys.modules
"""
    told = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}  # left as it is where the environment says it
    environment = {key: value for key, value in threads.os.environ.items() if key not in told}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_are_refused_in_one_line(monkeypatch, capsys, system):
    from hardneg import cli

    monkeypatch.setattr(sys, "platform", system)
    assert cli.run(["doctor"]) == 2
    said = capsys.readouterr().err.splitlines()
    fix = "use it on Linux, in a container, or under WSL"
    assert said == [f"NOT_LINUX: hardneg runs on Linux only, but this is '{system}'; {fix}"]
    with pytest.raises(hardneg.HardnegError, match="NOT_LINUX"):
        _ = hardneg.train


# ---------------------------------------------------------------- how many threads


THREADS = """
import json, sys
import hardneg as hn
from hardneg.process import threads
default = threads.default_threads()
told = hn.doctor()["processor"]["threads"]
works = threads.set_threads(int(sys.argv[1]) if len(sys.argv) > 1 else None)
import torch
rayon = int(threads.os.environ["RAYON_NUM_THREADS"])
print(json.dumps([default, told, works, torch.get_num_threads(), threads.usable_threads(), rayon]))
"""


def threads_of(*arguments, before="", **environment):
    """What a process of its own says: the default, the doctor, torch, what works beside it, the tokenizers."""
    names = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "LOCAL_WORLD_SIZE")
    kept = {key: value for key, value in threads.os.environ.items() if key not in names}
    command = [sys.executable, "-c", before + THREADS, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, env=kept | environment)
    return json.loads(done.stdout)


ONE_CPU = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
SIX_CPUS = "import os; os.sched_getaffinity = lambda pid: set(range(6))\n"
QUOTA = "from hardneg.process import threads; threads.cpu_quota = lambda: 2.5\n"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what a process may use")
def test_the_affinity_of_the_process_is_obeyed():
    assert threads_of(before=ONE_CPU, OMP_NUM_THREADS="2") == [1] * 6


@pytest.mark.parametrize(
    ("before", "environment", "expected"),
    [(SIX_CPUS, {"OMP_NUM_THREADS": "1"}, 1), (SIX_CPUS + QUOTA, {"LOCAL_WORLD_SIZE": "1"}, 2)],
)
def test_all_say_the_same_number(before, environment, expected):
    assert threads_of(before=before, **environment) == [expected] * 6


def test_the_option_wins_over_the_environment():
    found = threads_of("3", before=SIX_CPUS, OMP_NUM_THREADS="1", RAYON_NUM_THREADS="5")
    assert found == [1, 1, 3, 3, 3, 3]


FROM_PYTHON = """
import hardneg as hn
hn.Filters
{said}
hn.load_encoder
import torch
print(torch.get_num_threads())
"""
ANY_FEW = "from hardneg.process import threads; threads.usable_cpus = lambda: 1\n"
TORCH = "import torch; torch.set_num_threads({n}); from hardneg.process import threads\n"


@pytest.mark.parametrize(
    ("before", "said", "expected"),
    [
        (ANY_FEW, "", 1),  # torch is loaded later
        (TORCH.format(n=6) + SIX_CPUS + ANY_FEW, "", 1),  # six are those that torch takes by itself
        (TORCH.format(n=3) + SIX_CPUS + ANY_FEW, "", 3),  # three are the user's
        (ANY_FEW, "import torch; torch.set_num_threads(2)", 2),
        (SIX_CPUS + TORCH.format(n=1) + ANY_FEW.replace("1", "4"), "", 1),  # nothing is ever raised
    ],
)
def test_python_obeys_limits_and_what_the_user_told_torch(before, said, expected):
    kept = {key: value for key, value in os.environ.items() if key not in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")}
    program = before + FROM_PYTHON.format(said=said)
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=kept)
    assert int(done.stdout) == expected


def test_python_takes_no_more_threads_than_openmp_was_told():
    assert usual_threads_of("99") == {99}
    assert usual_threads_of("all") == usual_threads_of(None)


def usual_threads_of(told):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        if told is not None:
            patch.setenv("OMP_NUM_THREADS", told)
        return threads.usual_threads()


@pytest.mark.parametrize(
    ("told", "processes", "quota", "expected"),
    [
        (None, 1, None, 6),
        ("1", 1, None, 1),
        ("3,1", 1, None, 3),  # for nested parallel parts
        ("all", 1, None, 6),  # OpenMP passes it over
        ("0", 1, None, 6),
        ("99", 1, None, 6),
        (None, 3, None, 2),
        ("1", 3, None, 1),
        (None, 9, None, 1),
        ("4", 1, 2.5, 2),
        (None, 1, 0.5, 1),
    ],
)
def test_the_default_is_what_the_environment_says(monkeypatch, told, processes, quota, expected):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if told is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", told)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    monkeypatch.setattr(threads, "cpu_quota", lambda: quota)
    assert threads.default_threads() == expected


def test_quotas_of_control_groups(monkeypatch, tmp_path):
    monkeypatch.setattr(control_groups, "CGROUP", tmp_path)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    groups = ["0::/slice/unit", "5:cpu,cpuacct:/unit", "1:name=systemd:/unit"]
    real = Path.read_text

    def read_text(self, *arguments, **named):
        found = str(self) == "/proc/self/cgroup"
        return "\n".join(groups) + "\n" if found else real(self, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", read_text)
    assert (threads.cpu_quota(), threads.usable_cpus()) == (None, 8)
    (tmp_path / "slice/unit").mkdir(parents=True)
    (tmp_path / "slice/unit/cpu.max").write_text("max 100000\n")
    assert (threads.cpu_quota(), threads.usable_cpus()) == (None, 8)
    (tmp_path / "slice/cpu.max").write_text("350000 100000\n")  # of the group above
    assert (threads.cpu_quota(), threads.usable_cpus()) == (3.5, 3)
    (tmp_path / "cpu,cpuacct/unit").mkdir(parents=True)
    (tmp_path / "cpu,cpuacct/unit/cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu,cpuacct/unit/cpu.cfs_period_us").write_text("100000\n")
    assert threads.cpu_quota() == 3.5
    (tmp_path / "cpu,cpuacct/unit/cpu.cfs_quota_us").write_text("50000\n")
    assert (threads.cpu_quota(), threads.usable_cpus()) == (0.5, 1)
