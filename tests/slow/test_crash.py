"""A seeded sample of the points at which `make crash` stops every command."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("flushes")]

TESTS = Path(__file__).parents[1]
SAMPLE = 60


def test_wherever_a_command_is_stopped_the_same_command_ends_in_the_same_bytes():
    words = [sys.executable, "-m", "faults.crash", "--sample", SAMPLE, "--seed", "5"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=600, cwd=TESTS)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = re.findall(r"^(\w+): \d+ points, (\d+) cases", done.stdout, re.MULTILINE)
    assert [command for command, _ in cases] == ["import", "encode", "mine", "train", "index", "search", "export"]
    assert sum(int(count) for _, count in cases) == SAMPLE


MUTANT = """
from faults import crash
from hardneg.storage import disk
sync = disk.sync
disk.sync = lambda path: None if path.is_file() else sync(path)
cuts = {(point, "power") for point in range(200)}
lines, faults = crash.check(["import"], 1, only=cuts)
assert any("torn" in str(wrong) for wrong in faults.values()), lines
"""


def test_a_write_that_is_not_flushed_is_found():
    done = subprocess.run([sys.executable, "-c", MUTANT], capture_output=True, text=True, timeout=600, cwd=TESTS)
    assert done.returncode == 0, done.stderr[-2000:]
