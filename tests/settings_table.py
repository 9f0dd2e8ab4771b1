"""Writes the table of all settings that help reads: ``make settings``."""

import json
from pathlib import Path

import hardneg
from hardneg.api.recipes import RECIPES
from hardneg.recipes.described import TABLE, facts_of

PLACE = Path(hardneg.__file__).parent / "presets" / TABLE


def table():
    """The text of the table, made of the settings' classes."""
    rows = {name: facts_of(recipe.settings) for name, recipe in RECIPES.items()}
    recipes = [
        f" {json.dumps(name)}: {{\n"
        + ",\n".join(f"  {json.dumps(setting)}: {json.dumps(facts)}" for setting, facts in settings.items())
        + "\n }"
        for name, settings in rows.items()
    ]
    return "{\n" + ",\n".join(recipes) + "\n}\n"


if __name__ == "__main__":
    PLACE.write_text(table(), "utf-8")
