"""The page of the study of depth is what its kept outcomes say, by the commands that it shows."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/studies"


@pytest.fixture
def depth(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "studies"))
    return importlib.import_module("depth")


@pytest.fixture
def commands():
    """What each command of the page gives the study, by the collection."""
    found = {}
    for line in re.findall(r"^make study-depth.*", (PAGES / "depth.md").read_text("utf-8"), re.MULTILINE):
        data = re.search(r"DATA=(\S+)", line)
        name = data.group(1).replace("FOLDER/", "") if data else "pydocs"
        found[name] = re.search(r"OPTIONS='([^']+)'", line).group(1).replace("FOLDER/", "").split()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pydocs", "qa:wiki_openqa", "code"])
def test_the_page_is_what_its_kept_outcomes_say(depth, commands, tmp_path, name):
    kept, page = tmp_path / "depth.jsonl", tmp_path / "depth.md"
    kept.with_name("depth.jsonl.gz").write_bytes((PAGES / "depth.jsonl.gz").read_bytes())
    page.write_bytes((PAGES / "depth.md").read_bytes())
    given = ["--data", name, "--out", str(tmp_path / "none"), "--kept", str(kept), "--report", str(page)]
    harness = importlib.import_module("harness")
    words = [*given, *commands[name], "--threads", "1", "--only-report"]
    depth.main(harness.command_line("", depth.options).parse_args(words))
    assert page.read_text("utf-8") == (PAGES / "depth.md").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "kept"),
    [
        ("depth-64.md", "depth-64.jsonl.gz"),
        ("depth-new.md", "depth-new.jsonl.gz"),
        ("depth-later.md", "depth-later.jsonl"),
    ],
)
def test_a_page_with_a_control_of_other_queries_is_what_its_kept_outcomes_say(depth, tmp_path, page, kept):
    said = (PAGES / page).read_text("utf-8")
    block = re.search(r"```bash\n(.*?)```", said, re.DOTALL).group(1).replace("\\\n", " ")
    commands = [line.split("studies/depth.py ")[1] for line in block.splitlines() if "studies/depth.py " in line]
    assert len(commands) == said.count("written by studies/depth.py")
    for name in (page, kept):
        (tmp_path / name).write_bytes((PAGES / name).read_bytes())
    harness = importlib.import_module("harness")
    for command in commands:
        words = command.replace("FOLDER/", "").replace("docs/studies", str(tmp_path)).split()
        depth.main(harness.command_line("", depth.options).parse_args([*words, "--only-report"]))
    assert (tmp_path / page).read_text("utf-8") == said
