"""A group of processes on this machine; ``torchrun``'s agent, in this process, starts, watches and stops them."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence

from hardneg.errors import Interrupted
from hardneg.process.progress import note
from hardneg.process.signals import stop_flag, stops

PLACES = ("--standalone", "--local-addr=127.0.0.1", f"--log-dir={os.devnull}")  # a free port; no folders of logs


def run_group(arguments: Sequence[str], processes: int) -> int:
    """Run ``hardneg ARGUMENTS`` in so many processes that work together, and wait until all have ended.

    If one of them ends with a fault, the others are asked to stop; so are all at SIGINT, SIGTERM or SIGHUP. This
    process computes nothing.

    Returns
    -------
    The exit status: 0 if all have done their work, else that of the one that failed first (-9: killed by SIGKILL).

    Raises
    ------
    Interrupted : this process was asked to stop before the others were started (exit 75).
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    logging.disable(logging.CRITICAL)  # of the agent; what matters is said in a line
    for asked in stops():
        signal.signal(asked, signal.default_int_handler)  # until the agent listens itself
    stop_flag.check()
    told = [*PLACES, f"--nproc-per-node={processes}", "--module", "hardneg", *arguments]
    try:
        run(parse_args(told))
    except (KeyboardInterrupt, SignalException):
        return Interrupted.status
    except ChildFailedError as failed:
        number, first = failed.get_first_failure()
        if first.exitcode < 0:
            note(f"process {number} of {processes} was ended by {signal.Signals(-first.exitcode).name}")
        return int(first.exitcode)
    return 0


def end_as(status: int) -> int:
    """End this process by the signal that killed another one; returns the status of one that ended by itself."""
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status
