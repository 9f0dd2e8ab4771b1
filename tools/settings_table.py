"""Make the table of all settings, which ``hardneg settings`` reads instead of loading the classes of settings.

``make reference`` writes it. A test compares it with what this script would write.
"""

from __future__ import annotations

import json
from pathlib import Path

import hardneg
from hardneg.api.recipes import RECIPES
from hardneg.recipes.described import TABLE, facts_of
from hardneg.recipes.meanings import meaning_of

PLACE = Path(hardneg.__file__).parent / "presets" / TABLE


def table() -> str:
    """Write the table: a line for each setting of each recipe; raises for a setting that has no meaning.

    `make reference` begins with this table, so a missing meaning is told before anything is written.
    """
    recipes = []
    for name, recipe in RECIPES.items():
        for one in recipe.settings.model_fields:
            meaning_of(name, one)
        rows = [f"  {json.dumps(one)}: {json.dumps(facts)}" for one, facts in facts_of(recipe.settings).items()]
        recipes.append(f" {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n }")
    return "{\n" + ",\n".join(recipes) + "\n}\n"


if __name__ == "__main__":
    PLACE.write_text(table(), "utf-8")
