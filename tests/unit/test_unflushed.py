"""Tests do not wait for the disk, except those about flushing."""

import os
import subprocess
import sys

import pytest

ASK = "import os; print(hasattr(os.fsync, 'real')); os.fsync(10**6)"


def asked():
    """Whether a process that a test starts passes over flushing, and what it says of a handle that is not open."""
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True)
    return done.stdout, done.stderr.splitlines()[-1]


def test_nothing_is_flushed_here_and_in_processes_that_tests_start(tmp_path):
    assert asked() == ("True\n", "OSError: [Errno 9] Bad file descriptor")
    with open(tmp_path / "a", "w") as stream:
        os.fsync(stream)
        assert os.fsync(stream.fileno()) is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fsync(10**6)
    assert os.fsync is not os.fsync.real


@pytest.mark.usefixtures("flushes")
def test_where_flushing_is_looked_at_it_is_done():
    assert asked() == ("False\n", "OSError: [Errno 9] Bad file descriptor")
    assert not hasattr(os.fsync, "real")
