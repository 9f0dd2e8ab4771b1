"""The program ``python benchmarks/quality`` runs the study, and its contenders and tests as further processes."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]


PARENT = "QUALITY_PARENT"  # variable that tells child processes the process id of the study


def die_with_parent() -> None:
    """Let this process die with the study, so that a killed study leaves no process that takes time (Linux)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if str(os.getppid()) != os.environ.get(PARENT, str(os.getppid())):
        raise SystemExit("the study has ended")


def main() -> int:
    """Be the study, a contender (``--contender ORDER``) or a test (``--exam DATA MODEL CACHE OUT DEVICE``)."""
    sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS.parent / "studies")]
    role, *words = sys.argv[1:] or ["--help"]
    if role in ("--contender", "--exam"):
        die_with_parent()  # before anything is imported, which takes seconds
    if role == "--contender":
        from quality import contender

        return contender.main(words)
    from quality import study

    return study.exam(words) if role == "--exam" else study.main(sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
