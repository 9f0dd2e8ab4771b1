"""All benchmarks of the CPU, one script after the other; JSON lines to a file, and a summary at the end."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from contest import HERE, goal_of, tell

SCRIPTS = (
    *(
        "measures",
        "fusion",
        "tokens",
        "bm25",
        "importing",
        "search",
        "answer",
        "encode",
        "rank",
        "train",
        "iteration",
        "pairs",
        "crowded",
        "mine",
        "diagnostics",
    ),
)


def run(script: str, arguments: list[str]) -> tuple[list[dict[str, Any]], bool]:
    """Run a script; returns its outcomes and whether it ended well. Its other output goes to the terminal."""
    command = [sys.executable, str(HERE / f"{script}.py"), *arguments]
    outcomes = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                outcomes.append(json.loads(line))
            else:
                print(line, end="", flush=True)
    return outcomes, process.returncode == 0


def summary(outcomes: Iterable[dict[str, Any]]) -> Iterable[str]:
    """Yield a line for each contender; a ratio is its time divided by ours."""
    for outcome in outcomes:
        for row in outcome["contenders"]:
            verdict = ("reached" if row["reached"] else "MISSED") if "reached" in row else ""
            low, high = row["ratio_spread"]
            yield (
                f"{outcome['path']:<22}{row['name']:<36}{row['ratio']:>7.2f}x  {f'[{low:.2f}, {high:.2f}]':<18}"
                f"best {row['best_ratio']:>6.2f}x{goal_of(row):>26}  {verdict}".rstrip()
            )
        for name, why in outcome.get("absent", {}).items():
            yield f"{outcome['path']:<22}{name:<36}{why}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="*", default=SCRIPTS, help=f"of {' '.join(SCRIPTS)}; all by default")
    parser.add_argument("--out", type=Path, default=Path("bench.jsonl"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int)
    arguments = parser.parse_args()
    passed_on = ["--threads", str(arguments.threads)]
    passed_on += ["--repeats", str(arguments.repeats)] if arguments.repeats else []
    outcomes, failed = [], []
    tell(f"{', '.join(arguments.scripts)} (all {len(SCRIPTS)} take an hour and 20 GiB on two free cores)")
    with open(arguments.out, "w") as stream:
        for script in arguments.scripts:
            reported, well = run(script, passed_on)
            for line in reported:
                stream.write(json.dumps(line) + "\n")
            if not well:
                stream.write(json.dumps({"script": script, "failed": True}) + "\n")
            outcomes += [line for line in reported if "path" in line]
            failed += [] if well else [script]
    print("\n".join(summary(outcomes)))
    for script in failed:
        print(f"{script}: FAILED")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
