"""The floors and tables of ``docs/architecture.md``, for the tests that check the source against them."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs/architecture.md"


def floors():
    """The modules of every floor, from the ground up; on the page they are indented below the floor's name."""
    (block,) = re.findall(r"^```floors\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    parts = re.findall(r"^(\w+)\n((?:  .+\n)+)", block, re.MULTILINE)
    assert "".join(f"{floor}\n{modules}" for floor, modules in parts) == block
    return {floor: modules.split() for floor, modules in parts}


def together():
    """The functions of the page's last table, which call functions that all processes must call together."""
    table = PAGE.read_text("utf-8").partition("| function | together for |")[2]
    return re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)
