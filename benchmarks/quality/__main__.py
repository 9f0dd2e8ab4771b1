"""``python benchmarks/quality``: the study; its contenders and tests are processes of the same program."""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]


def main() -> int:
    """Be the study, a contender (``--contender ORDER``) or a test (``--exam DATA MODEL CACHE OUT``)."""
    sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS.parent / "studies")]
    role, *words = sys.argv[1:] or ["--help"]
    if role == "--contender":
        from quality import contender

        return contender.main(words)
    from quality import study

    return study.exam(words) if role == "--exam" else study.main(sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
