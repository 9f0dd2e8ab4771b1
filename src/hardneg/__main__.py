"""``hardneg`` and ``python -m hardneg``: the command line.

Its modules take a moment to load. A signal that comes in that moment ends the command as a later one does.
"""

import os
import signal

STOPPED = b"STOPPED: stopped by a signal; run the same command again; it goes on from what is kept\n"
STATUS = 75  # of :class:`hardneg.errors.Interrupted`
DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


def stop(number: int, frame: object) -> None:
    """End the command at once: nothing was begun."""
    os.write(2, STOPPED)
    os._exit(STATUS)


def main() -> None:
    """Run the command line."""
    ours = {number: usual for number, usual in DEFAULTS.items() if signal.getsignal(number) is usual}
    for number in ours:  # the others are ignored, as nohup asks
        signal.signal(number, stop)
    from hardneg.cli import main as run

    for number, usual in ours.items():
        signal.signal(number, usual)
    run()


if __name__ == "__main__":
    main()
