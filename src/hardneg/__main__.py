"""``hardneg`` and ``python -m hardneg``: the command line.

Its modules take a moment to load. A signal that comes in that moment ends the command with one line, too.
"""

import contextlib
import os
import signal

STOPPED = b"STOPPED: stopped by a signal; run the same command again\n"
STATUS = 75  # of :class:`hardneg.errors.Interrupted`
IGNORED = signal.SIG_IGN  # as nohup asks


def stop(number: int, frame: object) -> None:
    """End the command at once: nothing was begun."""
    with contextlib.suppress(OSError):  # a stream that is closed or full
        os.write(2, STOPPED)
    os._exit(STATUS)


def main() -> None:
    """Run the command line, which sets its own handlers of signals."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not IGNORED:
            signal.signal(number, stop)
    from hardneg.cli import main as run

    run()


if __name__ == "__main__":
    main()
