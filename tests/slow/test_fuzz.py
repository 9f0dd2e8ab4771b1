"""A sample of the fuzzer's cases; ``make fuzz`` runs them all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]


def test_a_sample_of_mutated_inputs_is_read_or_refused_in_one_line():
    command = [sys.executable, "-m", "faults.fuzz", "--cases", "1200", "--seed", "7"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=TESTS, env=environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " cases of seed 7: 0 failed" in done.stdout.splitlines()[-1]
