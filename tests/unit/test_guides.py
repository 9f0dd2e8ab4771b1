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
GUIDES = ["integrations.md", "coming-from.md", "large-batches.md", "reliability.md", "distillation.md"]
TREE = typer.main.get_command(app)


def text_of(guide):
    return (DOCS / guide).read_text("utf-8")


def commands_of(text):
    """Every ``hardneg ...`` of a page, in code blocks or inline, as words."""
    joined = text.replace("\\\n", " ")
    found = re.findall(r"^hardneg (.+)$|`hardneg ([^`]+)`", joined, re.MULTILINE)
    return [shlex.split(block or inline) for block, inline in found]


def settings():
    return {name for recipe in RECIPES.values() for name in recipe.settings.model_fields}


@pytest.mark.parametrize("guide", GUIDES)
def test_commands_and_their_options_exist(guide):
    commands = commands_of(text_of(guide))
    assert commands
    for words in commands:
        command = TREE
        while words and hasattr(command, "commands") and not words[0].startswith("-"):
            command = command.commands[words.pop(0)]
        options = {name for option in command.params for name in option.opts}
        assert {word for word in words if word.startswith("--")} <= options, words
        for name, value in itertools.pairwise(words):
            assert name != "--set" or value.partition("=")[0] in settings(), value


@pytest.mark.parametrize(
    "page", sorted(page.relative_to(ROOT) for page in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", (ROOT / page).read_text("utf-8"))
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
    named = {name for cell in ours for name in re.findall(r"(?<![\w-])--[a-z-]+", cell)}
    assert len(named) > 15
    assert named <= options


def test_settings_named_exist():
    ours = "\n".join(line.split(" | ")[-1] for line in text_of("coming-from.md").splitlines())
    named = set(re.findall(r"`([a-z_]+) = ", ours + text_of("coming-from.md").split("What differs")[1]))
    assert len(named) > 10
    assert named <= settings()


@pytest.mark.parametrize("guide", GUIDES)
def test_python_is_valid_and_names_exist(guide):
    text = text_of(guide)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        ast.parse(block)
    names = set(re.findall(r"(?<![\w.])hn\.(\w+)", text))
    assert names
    assert names <= set(dir(hn))
