"""Threads, device and memory of the process."""

import subprocess
import sys
import time

import pytest

import hardneg
from hardneg.errors import SettingsError
from hardneg.process import runtime
from hardneg.process.runtime import pick_device, reuse_memory, wait_asleep_if_crowded

FAULTS = """
import resource
import sys

import numpy as np

from hardneg.process.runtime import reuse_memory

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


def test_threads_sleep_only_where_others_run(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(runtime, "_others_run", lambda: False)
    assert not wait_asleep_if_crowded()
    assert "GOMP_SPINCOUNT" not in runtime.os.environ
    monkeypatch.setattr(runtime, "_others_run", lambda: True)
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")  # what the user says
    assert not wait_asleep_if_crowded()
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setitem(sys.modules, "torch", object())  # too late
    assert not wait_asleep_if_crowded()
    monkeypatch.delitem(sys.modules, "torch")
    assert wait_asleep_if_crowded()
    assert runtime.os.environ["GOMP_SPINCOUNT"] == "0"
    monkeypatch.delenv("GOMP_SPINCOUNT")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what runs")
def test_others_that_run_are_seen():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            time.sleep(0.2)
            assert any(runtime._others_run() for _ in range(5))
        finally:
            other.kill()


def test_commands_do_it_before_torch_is_loaded():
    program = """
import sys
from hardneg.process import runtime
runtime._others_run = lambda: True
from hardneg.cli.options import begin
begin()
assert runtime.os.environ["GOMP_SPINCOUNT"] == "0"
assert "torch" not in sys.modules
"""
    environment = {key: value for key, value in runtime.os.environ.items() if key != "GOMP_SPINCOUNT"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_are_refused_in_one_line(monkeypatch, capsys, system):
    from hardneg import cli

    monkeypatch.setattr(sys, "platform", system)
    assert cli.run(["doctor"]) == 2
    said = capsys.readouterr().err.splitlines()
    fix = "use it on Linux, in a container, or under WSL"
    assert said == [f"NOT_LINUX: hardneg runs on Linux only, and this is '{system}'; {fix}"]
    with pytest.raises(hardneg.HardnegError, match="NOT_LINUX"):
        _ = hardneg.train
