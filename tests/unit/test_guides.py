"""The guides speak of commands, options, settings and names that exist."""

import ast
import itertools
import re
import shlex
from pathlib import Path

import pytest
import typer

import hardneg as hn
from hardneg.api.recipes import RECIPES
from hardneg.cli import app

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Generated pages and the records of studies aside, every page with a command or Python is held to what exists.
PAGES = sorted(
    page.relative_to(ROOT)
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    if not page.is_relative_to(DOCS / "studies")
    and page.name not in ("settings.md", "presets.md", "commands.md", "api.md", "architecture.md", "benchmarks.md")
)
TREE = typer.main.get_command(app)


def text_of(guide):
    return (DOCS / guide).read_text("utf-8")


def page_of(page):
    return (ROOT / page).read_text("utf-8")


def commands_of(text):
    """Every ``hardneg ...`` of a page, in code blocks or inline, as words."""
    joined = text.replace("\\\n", " ")
    joined = re.sub(r"\$\{\w+:-([\w-]+)\}", r"\1", joined)  # what a script takes where nothing is given
    blocks = "\n".join(re.findall(r"^```(?:sh|bash)\n(.*?)^```", joined, re.MULTILINE | re.DOTALL))
    found = re.findall(r"^(?: *|.* -m )hardneg (.+)$", blocks, re.MULTILINE)
    found += re.findall(r"`hardneg ([a-z-][^`]*)`", re.sub(r"```.*?```", "", joined, flags=re.DOTALL))
    return [shlex.split(words, comments=True) for words in found]


def settings():
    return {name for recipe in RECIPES.values() for name in recipe.settings.model_fields}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_commands_and_their_options_exist(page):
    for words in commands_of(page_of(page)):
        command = TREE
        while words and hasattr(command, "commands") and re.match(r"[a-z]", words[0]):
            command = command.commands[words.pop(0)]
        options = {name for option in command.params for name in option.opts}
        assert {word for word in words if word.startswith("--")} <= options | {"--debug"}, words
        for name, value in itertools.pairwise(words):
            assert name != "--set" or value.partition("=")[0] in settings(), value


def test_most_pages_have_commands():
    assert sum(bool(commands_of(page_of(page))) for page in PAGES) > 20


@pytest.mark.parametrize(
    "page", sorted(page.relative_to(ROOT) for page in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", page_of(page))
    assert [link for link in links if not (ROOT / page.parent / link).exists()] == []
    assert links or page.name != "README.md"


def test_the_commands_are_seen_at_all():
    text = "```sh\nhardneg mine --data D \\\n    --count 3\n```\nor `hardneg inspect POOL --random 2`"
    assert commands_of(text) == [["mine", "--data", "D", "--count", "3"], ["inspect", "POOL", "--random", "2"]]


def test_options_named_alone_exist():
    # the right columns of the tables
    options = {name for command in TREE.commands.values() for option in command.params for name in option.opts}
    options |= {o for command in TREE.commands["train"].commands.values() for p in command.params for o in p.opts}
    ours = [line.split(" | ")[-1] for line in text_of("coming-from.md").splitlines() if line.startswith("| ")]
    named = {name for cell in ours for name in re.findall(r"(?<![\w-])--[a-z0-9-]+", cell)}
    assert len(named) > 15
    assert named <= options


def test_settings_named_exist():
    ours = "\n".join(line.split(" | ")[-1] for line in text_of("coming-from.md").splitlines())
    named = set(re.findall(r"`([a-z_]+) = ", ours + text_of("coming-from.md").split("What differs")[1]))
    assert len(named) > 10
    assert named <= settings()


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_python_is_valid_and_names_exist(page):
    text = page_of(page)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        ast.parse(block)
    assert set(re.findall(r"(?<![\w.])hn\.(\w+)", text)) <= set(dir(hn))


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_toml_and_settings_named_inline_exist(page):
    named = set(re.findall(r"--set '?([a-z_]+)=", page_of(page)))
    assert named <= settings() | {"name"}


def test_the_readme_is_short_and_keeps_its_commands():
    lines = page_of("README.md").splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 100] == []
    assert {"make demo", "make test"} <= {line.split("#")[0].strip() for line in lines}


def test_the_readme_explains_its_words():
    text = " ".join(page_of("README.md").split())
    for word in ("hard negatives", "pool", "episode", "Momentum", "Lookahead", "Forgetting", "in-batch negatives"):
        assert re.search(rf"(?<!\w)\*{word}\*", text), word
    assert "do not always pay" in text


def test_every_page_stands_in_the_navigation_once():
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
    named = re.findall(r"([\w./-]+\.md)$", navigation, re.MULTILINE)
    there = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert sorted(named) == sorted(there), "add the page to mkdocs.yml"
