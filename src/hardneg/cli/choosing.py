"""The commands ``hardneg settings`` and ``hardneg presets``: what there is to choose, without data and torch."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from hardneg.cli.colour import painted
from hardneg.cli.options import JsonOption, option, show_result
from hardneg.recipes.usual import USUAL

MOST_COLUMNS, LONGEST_VALUE = 120, 12
GAP = "  "
NOTES = {"Model": " (none: as the model itself says)"}  # what a reader of the heading must know
RecipeArgument = Annotated[str, typer.Argument(help="A recipe, such as star.", metavar="RECIPE")]


def settings(
    recipe: RecipeArgument,
    preset: Annotated[
        str | None, option(help="Show the values of this preset beside the defaults.", metavar="NAME")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List every setting of a recipe, with its meaning.

    If a setting has an option of its own, the option stands after the meaning. --set NAME=VALUE sets any.
    """
    from hardneg.recipes.described import described

    rows = described(recipe, preset)
    show_result(rows, as_json, lambda found: settings_text(recipe, preset, found))


def presets(
    recipe: Annotated[str | None, typer.Argument(help="A recipe (default: all).", metavar="[RECIPE]")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the presets, and what each is for."""
    from hardneg.recipes.described import presets_of

    show_result(presets_of(recipe), as_json, presets_text)


def known_setting(recipe: str | None, name: str) -> str | None:
    """How to give a setting that was typed as an option; None: the recipe has no such setting."""
    from hardneg.recipes.described import all_facts

    if name not in all_facts().get(recipe or "", {}):
        return None
    flag = options_of(recipe or "").get(name)
    return f"did you mean {flag}?" if flag else f"it is a setting: --set {name}=..."


def recipes_with(flag: str, recipe: str | None) -> str:
    """The other recipes that have an option, for people; "" if none has, or if the command trains no recipe."""
    from hardneg.recipes.catalogue import CATALOGUE
    from hardneg.shown import listed

    if recipe not in {facts.name for facts in CATALOGUE}:
        return ""
    found = [facts.name for facts in CATALOGUE if flag in {option.typed for option in facts.options}]
    return listed(found)


def options_of(recipe: str) -> dict[str, str]:
    """The flag of the option for what everyone sets, by each setting that this option gives the recipe."""
    return {name: option.flag for option in USUAL for name in option.settings_of(recipe)}


def settings_text(recipe: str, preset: str | None, rows: Sequence[Mapping[str, Any]]) -> str:
    """Settings under their headings, as a table that fits the terminal."""
    flags = options_of(recipe)
    heads = ["setting", "default", *([] if preset is None else [preset])]
    cells = [cells_of(row) for row in rows]
    widths = [max(len(head), *(len(cell[i]) for cell in cells)) for i, head in enumerate(heads)]
    columns = min(shutil.get_terminal_size((100, 24)).columns, MOST_COLUMNS)
    room = max(columns - sum(widths) - len(GAP) * len(widths), 30)
    lines, heading = [row_of(heads, widths) + GAP + "meaning"], None
    for row, cell in zip(rows, cells, strict=True):
        if row["heading"] != heading:
            heading = row["heading"]
            lines += ["", painted(heading, "bold") + NOTES.get(heading, "")]
        first = row_of(cell, widths)
        told = textwrap.wrap(meaning_text(row, flags.get(row["name"])), room)
        lines += [(" " * len(first) if i else first) + GAP + text for i, text in enumerate(told)]
    return "\n".join(lines)


def cells_of(row: Mapping[str, Any]) -> list[str]:
    """The name of a setting, its default, and its value in the preset if one is shown."""
    default = "needed" if row["needed"] else value_text(row["default"])
    return [row["name"], default, *([value_text(row["preset"])] if "preset" in row else [])]


def row_of(cells: Sequence[str], widths: Sequence[int]) -> str:
    """One line of cells in columns."""
    return GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))


def meaning_text(row: Mapping[str, Any], flag: str | None) -> str:
    """What a setting means, its unit, where it comes from, and the option that sets it."""
    told = "; ".join(fact for fact in (row["unit"], row["source"], flag) if fact)
    return f"{row['meaning']} ({told})" if told else str(row["meaning"])


def value_text(value: Any) -> str:
    """A value as ``--set`` takes it, cut where it is long."""
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def presets_text(found: Mapping[str, Mapping[str, str]]) -> str:
    """Presets by recipe, each with what it is for."""
    width = max(len(name) for presets in found.values() for name in presets)
    parts = []
    for recipe, presets in found.items():
        parts.append(
            "\n".join([painted(recipe, "bold"), *(f"  {name:{width}}  {text}" for name, text in presets.items())])
        )
    return "\n\n".join(parts)
