"""Make the generated pages of the reference from the source: settings, presets, commands and the Python API.

``make reference`` writes them to ``docs/reference``. A test compares the pages with what this script would write.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

import hardneg
from hardneg.api.recipes import RECIPES
from hardneg.cli import app
from hardneg.config import is_operational, read_presets
from hardneg.recipes.described import BY_MACHINE
from hardneg.recipes.headings import GROUPS
from hardneg.recipes.meanings import Meaning, meaning_of
from hardneg.recipes.settings import Recipe, TrainingSettings

PAGES = Path(__file__).resolve().parents[1] / "docs/reference"
MADE = "<!-- This page is made by `make reference`. Change the source, not the page. -->"
WIDTH = 100  # columns of a help text
SHARED = "all recipes"

VERBS: dict[str, tuple[str, ...]] = {
    "Train": (
        "train",
        "train_warmup",
        "train_ance_tele",
        "train_ance",
        "train_star",
        "train_adore",
        "train_ar2",
        "train_ranker",
        "plan",
        "settings_of",
        "AnceTele",
        "group_loss",
        "follow",
    ),
    "Data": ("open_collection", "Collection", "Splits", "import_collection", "import_negatives"),
    "Search and serve": (
        "open_retriever",
        "open_reranker",
        "Retriever",
        "search_text",
        "search_split",
        "rerank",
        "fuse",
        "encode",
        "index",
        "load_encoder",
        "allow_code",
    ),
    "Measure and compare": ("evaluate", "compare", "diagnose", "compare_experiments"),
    "Negatives": (
        "mine",
        "score",
        "NegativePool",
        "load_pool",
        "load_run",
        "Filters",
        "pool_stats",
        "inspect",
        "audit",
        "export_pool",
    ),
    "Care": ("verify", "clean", "doctor", "HardnegError"),
}


# ---------------------------------------------------------------- settings


def default_of(recipe: Recipe, name: str) -> Any:
    """Find the default of a setting; ``...`` if it has none."""
    field = recipe.settings.model_fields[name]
    if name in BY_MACHINE:
        return BY_MACHINE[name]
    return ... if field.is_required() else field.get_default(call_default_factory=True)


def shown(value: Any) -> str:
    """Write a value as a settings file has it."""
    if value is ...:
        return "must be given"
    if value is None:
        return "none"
    return f"`{json.dumps(value, ensure_ascii=False)}`" if not isinstance(value, str) else f"`{value}`"


def choices_of(annotation: Any) -> list[str]:
    """List the words that an annotation allows."""
    if typing.get_origin(annotation) is typing.Literal:
        return [str(word) for word in typing.get_args(annotation)]
    return [word for part in typing.get_args(annotation) for word in choices_of(part)]


def bounds_of(schema: Mapping[str, Any]) -> str:
    """Describe the bounds of a number from its JSON schema."""
    for part in (schema, *schema.get("anyOf", ()), schema.get("items", {})):
        low = next((f"{word} {part[key]}" for key, word in BEGIN.items() if key in part), "")
        high = next((f"{word} {part[key]}" for key, word in END.items() if key in part), "")
        if low or high:
            return " ".join(filter(None, (low, high)))
    return ""


BEGIN = {"minimum": "from", "exclusiveMinimum": "above"}
END = {"maximum": "to", "exclusiveMaximum": "below"}


def values_of(recipe: Recipe, name: str, meaning: Meaning) -> str:
    """Describe the values of a setting: its unit and bounds, or its words."""
    field = recipe.settings.model_fields[name]
    schema = recipe.settings.model_json_schema()["properties"][name]
    if bool in (field.annotation, *typing.get_args(field.annotation)):
        return "true or false"
    words = [f"`{word}`" for word in choices_of(field.annotation)]
    unit = meaning.unit or (", ".join(words) if words else "text")
    bounds = "" if words or any(word in unit for word in ("share", "list", "from")) else bounds_of(schema)
    return ", ".join(filter(None, (unit, bounds)))


def row_of(recipe: Recipe, name: str) -> str:
    """Make a setting's row of the table."""
    meaning = meaning_of(recipe.name, name)
    mark = " †" if is_operational(recipe.settings, name) else ""
    cells = (
        f"`{name}`{mark}",
        meaning.what,
        values_of(recipe, name, meaning),
        shown(default_of(recipe, name)),
        meaning.paper,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def same_everywhere() -> set[str]:
    """Name the settings that all recipes have with one default and one meaning."""
    every = RECIPES.values()
    return {
        name
        for name in TrainingSettings.model_fields
        if len({(shown(default_of(one, name)), meaning_of(one.name, name)) for one in every}) == 1
    }


def table_of(recipe: Recipe, names: Iterable[str]) -> Iterator[str]:
    """Make the tables of the given settings, one for each group."""
    left = set(names)
    for group, members in GROUPS.items():
        rows = [row_of(recipe, name) for name in members if name in left]
        if rows:
            yield from (
                f"**{group}**",
                "",
                "| setting | meaning | values | default | from |",
                "|---|---|---|---|---|",
            )
            yield from (*rows, "")


def settings_page() -> str:
    """Make the page of every setting of every recipe."""
    shared = same_everywhere()
    first = next(iter(RECIPES.values()))
    lines = [
        "# Settings",
        "",
        "Give a setting as `--set NAME=VALUE`, in a TOML file (`--config FILE`), or as a keyword in Python."
        " [Presets](presets.md) are named sets of values. `hardneg train RECIPE --dry-run` prints all values that"
        " would be used, and where those come from that are not the default.",
        "",
        "A setting marked † does not change results, so it may change when an experiment is resumed. All others"
        " decide the result. For settings of the model, `none` keeps what the model brings; only"
        " `head=none` means no head. *From* names papers.",
        "",
        f"## {SHARED.capitalize()}",
        "",
        "These settings have the same meaning and default in every recipe. `ranker` refuses those of encoders: "
        + ", ".join(f"`{name}`" for name in RECIPES["ranker"].settings.refused)
        + ".",
        "",
        *table_of(first, shared),
    ]
    for recipe in RECIPES.values():
        own = [name for name in recipe.settings.model_fields if name not in shared]
        lines += [f"## {recipe.name}", "", recipe.facts.title, "", *table_of(recipe, own)]
    return page_of(lines)


def presets_page() -> str:
    """Make the page of the values of every preset."""
    lines = [
        "# Presets",
        "",
        "A preset is a named set of values: `hardneg train RECIPE --preset NAME`. What a preset leaves out has the"
        " default of [the setting](settings.md). `--set` and `--config` win over a preset. `demo` is for a first"
        " look, `finetune` for your own data; the others hold the numbers of papers.",
    ]
    for recipe in RECIPES.values():
        presets = read_presets(recipe.name)
        lines += ["", f"## {recipe.name}", ""]
        for name, values in presets.items():
            lines += [f"### {recipe.name}: {name}", "", "```toml"]
            lines += [f"{key} = {toml_of(value)}" for key, value in values.items()]
            lines += ["```", ""]
    return page_of(lines)


def toml_of(value: Any) -> str:
    """Write a value as TOML."""
    return json.dumps(value, ensure_ascii=False)


# ---------------------------------------------------------------- commands


def commands_below(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command that help shows."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from commands_below(command, (*path, name))
        else:
            yield (*path, name)


def helps() -> dict[str, str]:
    """Ask every command for its help, as a terminal of ``WIDTH`` columns shows it."""
    runner, terminal = CliRunner(), {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb"}
    asked = [(), *commands_below(typer.main.get_command(app))]
    said = [runner.invoke(app, [*words, "--help"], prog_name="hardneg", env=terminal) for words in asked]
    return {" ".join(("hardneg", *words)): one.output for words, one in zip(asked, said, strict=True)}


def commands_page() -> str:
    """Make the page of the help of every command."""
    lines = [
        "# Commands",
        "",
        "This page shows what each command says with `--help`. Commands that have `--json` print JSON with it."
        " [Errors](../errors.md) lists what a command may refuse, and its exit statuses.",
    ]
    for name, text in helps().items():
        plain = "\n".join(line.rstrip() for line in text.strip().splitlines())
        lines += ["", f"## {name}", "", "```text", plain, "```"]
    return page_of(lines)


# ---------------------------------------------------------------- Python

ROLE = re.compile(r":(?:class|meth|func|attr|mod|data):`~?([^`]+)`")
SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)


def markdown_of(docstring: str) -> str:
    """Turn a docstring into Markdown: sections become bold words, names become code."""
    text = ROLE.sub(lambda found: f"`{found[1].rpartition('.')[2]}`", docstring)
    text = SECTION.sub(lambda found: f"\n**{found[1]}**\n", text.replace("``", "`"))
    lines = []
    for line in text.splitlines():
        entry = re.match(r"^(\*{0,2}\w[\w, *]*) : (.*)$", line)
        lines.append(f"- `{entry[1]}`: {entry[2]}" if entry else line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def signature_of(name: str, value: Any) -> str:
    """Write the call of a function or class, with types, one argument a line where it is long."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    plain = f"hn.{name}{signature}".replace("'", "").replace("~", "")
    plain = re.sub(r"<function (\w+) at 0x\w+>", r"\1", plain)
    plain = re.sub(r"\b(?:hardneg|collections|pathlib|typing|os|numpy|torch)(?:\.\w+)*\.(\w+)", r"\1", plain)
    if len(plain) <= WIDTH:
        return plain
    arguments = ",\n    ".join(split_arguments(plain[plain.index("(") + 1 : plain.rindex(")")]))
    return f"{plain[: plain.index('(')]}(\n    {arguments},\n{plain[plain.rindex(')') :]}"


def split_arguments(text: str) -> Sequence[str]:
    """Split arguments at the commas that stand in no brackets."""
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append(text[begin:at].strip())
            begin = at + 1
    return [*parts, text[begin:].strip()]


def methods_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the documented public methods and properties that a class itself defines."""
    for name, member in vars(value).items():
        inner = getattr(member, "__func__", getattr(member, "fget", member))
        ours = not name.startswith(("_", "model_"))  # pydantic adds its own methods to a class
        if ours and callable(inner) and getattr(inner, "__doc__", None):
            yield name, inner


def entry_of(name: str) -> list[str]:
    """Make the entry of a public name."""
    value = getattr(hardneg, name)
    lines = [
        f"### {name}",
        "",
        "```text",
        signature_of(name, value),
        "```",
        "",
        markdown_of(inspect.getdoc(value) or ""),
    ]
    if inspect.isclass(value):
        methods = [(one, inspect.getdoc(inner) or "") for one, inner in methods_of(value)]
        rows = [f"- `{one}`: {markdown_of(doc.split(chr(10) * 2)[0])}".replace("\n", " ") for one, doc in methods]
        lines += ["", "Members:", "", *rows] if rows else []
    return [*lines, ""]


def api_page() -> str:
    """Make the page of every public name, with its types and its docstring."""
    public = [name for name in vars(hardneg)["__all__"] if not name.startswith("_")]
    known = {name for names in VERBS.values() for name in names}
    groups = VERBS | {"More": tuple(name for name in public if name not in known)}
    lines = [
        "# Python API",
        "",
        "`import hardneg as hn` gives these names. `import hardneg` is quick: a name is loaded when it is used."
        " Every fault is a `hn.HardnegError` with `code`, `what`, `fix`, `path` and `line`"
        " ([errors](../errors.md)). Types are shipped (`py.typed`), so editors and mypy know them."
        " In signatures, `Place` is a path, as text or `Path`; `Data` is such a path, a [name of a"
        " collection](formats.md), or an opened `hn.Collection`.",
        "",
    ]
    for group, names in groups.items():
        here = [name for name in names if name in public]
        if here:
            lines += [f"## {group}", ""]
            lines += [line for name in here for line in entry_of(name)]
    return page_of(lines)


# ---------------------------------------------------------------- all


def page_of(lines: Iterable[str]) -> str:
    """Join the lines of a page, below the note that it is made."""
    text = re.sub(r"\n{3,}", "\n\n", "\n".join((*list(lines)[:1], "", MADE, *list(lines)[1:])))
    return text.rstrip() + "\n"


GENERATED: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "presets.md": presets_page,
    "commands.md": commands_page,
    "api.md": api_page,
}


def main() -> None:
    """Write all generated pages, after all of them were made: a fault in one leaves the pages as they were."""
    pages = {name: make() for name, make in GENERATED.items()}
    PAGES.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (PAGES / name).write_text(text, "utf-8")
        sys.stdout.write(f"{PAGES / name}\n")


if __name__ == "__main__":
    main()
