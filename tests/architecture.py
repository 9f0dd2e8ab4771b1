"""What ``docs/architecture.md`` shows, for the tests that hold the house to it."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs/architecture.md"


def floors():
    """The modules of every floor, from the ground up: a floor's name stands alone, its modules are indented."""
    (block,) = re.findall(r"^```floors\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    parts = re.findall(r"^(\w+)\n((?:  .+\n)+)", block, re.MULTILINE)
    assert "".join(f"{floor}\n{modules}" for floor, modules in parts) == block
    return {floor: modules.split() for floor, modules in parts}


def together():
    """The functions of the last table: those that call what all processes must call together."""
    table = PAGE.read_text("utf-8").partition("| function | together for |")[2]
    return re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)
