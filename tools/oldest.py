"""Print the oldest versions that ``pyproject.toml`` allows, as constraints for pip (``make test-oldest``)."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
BOUND = re.compile(r"([A-Za-z0-9_.-]+)(?:\[.*\])?>=([0-9.]+)$")


def oldest(requirements: list[str]) -> Iterator[str]:
    """Turn lower bounds into exact versions; raises ValueError for a requirement without a lower bound."""
    for requirement in requirements:
        found = BOUND.match(requirement)
        if found is None:
            raise ValueError(f"{requirement} has no lower bound")
        yield f"{found[1]}=={found[2]}"


def main() -> None:
    """Print a line for each dependency."""
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    sys.stdout.writelines(f"{line}\n" for line in oldest(project["dependencies"]))


if __name__ == "__main__":
    main()
