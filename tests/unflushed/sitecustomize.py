"""Nothing that tests run waits for the disk: ``os.fsync`` checks its handle and flushes nothing.

Waiting was about half of the fast suite's time. What flushing guards from is a loss of power alone: a process that
is killed leaves what it wrote. ``tests/conftest.py`` imports this file and puts its folder first on PYTHONPATH, so
every Python that a test starts does the same at its beginning. The fixture ``flushes`` undoes both, for tests that
are about flushing.
"""

import os


def unflushed(handle):
    """``os.fsync`` for the hasty: a handle that is not open is refused as by the real one."""
    os.fstat(handle if isinstance(handle, int) else handle.fileno())


if not hasattr(os.fsync, "real"):  # a process that a test starts comes here once, conftest in it a second time
    unflushed.real = os.fsync
    os.fsync = unflushed
