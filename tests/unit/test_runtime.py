"""Threads, device and memory of the process."""

import subprocess
import sys

import pytest

from hardneg.errors import SettingsError
from hardneg.runtime import pick_device, reuse_memory

FAULTS = """
import resource
import sys

import numpy as np

from hardneg.runtime import reuse_memory

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
