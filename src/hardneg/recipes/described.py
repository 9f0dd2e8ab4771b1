"""Descriptions of every setting and every preset of the recipes, without torch and without the settings' classes.

Types, defaults and bounds come from ``presets/described.json``, which ``make reference`` makes from the classes; a
test compares them. The meanings of the settings stand in :mod:`~hardneg.recipes.meanings`, and the order in which
they are shown in :mod:`~hardneg.recipes.headings`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from pydantic_core import PydanticUndefined

from hardneg.config import Settings, is_operational, nearest, read_preset
from hardneg.errors import SettingsError
from hardneg.recipes.headings import GROUPS
from hardneg.recipes.meanings import meaning_of

TABLE = "described.json"  # beside the presets


BY_MACHINE = {"precision": "fastest"}  # shown as the default of a setting whose default the machine decides
MINUTES = "Minutes on two CPU cores: to see that everything works."
OWN_DATA = "For your own data; keeps the best state on dev."
PRESETS: dict[str, dict[str, str]] = {
    "ance-tele": {
        "finetune": OWN_DATA + " Two episodes.",
        "msmarco": "The paper's settings for MS MARCO passages.",
        "nq": "The paper's settings for Natural Questions.",
        "triviaqa": "The paper's settings for TriviaQA.",
        "demo": "Minutes on two CPU cores: an episode with in-batch negatives, and one with mined ones.",
        "tiny": "A first look: as demo, but with fewer steps, for a few thousand passages.",
    },
    "warmup": {
        "finetune": OWN_DATA + " In-batch negatives alone: the baseline.",
        "finetune-bm25": OWN_DATA + " With three BM25 negatives besides.",
        "bm25": "ANCE's BM25 Neg, and the warm-up of ANCE and STAR.",
        "in-batch": "The other queries' positives of the step (ANCE's Rand Neg).",
        "random": "Random passages of the corpus (STAR's Rand Neg).",
        "nce": "The hardest passage of the step (ANCE's NCE Neg).",
        "dpr": "DPR: one BM25 negative and the other passages of the step.",
        "ar2-nq": "AR2's first retriever for Natural Questions.",
        "ar2-triviaqa": "AR2's first retriever for TriviaQA.",
        "ar2-msmarco": "AR2's first retriever for MS MARCO passages.",
        "bm25-in-batch": "ANCE's BM25 + Rand Neg: one BM25 negative and those of the step.",
        "bm25-to-in-batch": "ANCE's BM25 -> Rand: one after the other.",
        "bm25-to-nce": "ANCE's BM25 -> NCE Neg: one after the other.",
        "bm25-to-bm25-in-batch": "ANCE's BM25 -> BM25 + Rand: one after the other.",
        "bm25-corpus-random": "BM25 and random passages of the corpus, together.",
        "bm25-to-corpus-random": "BM25, then random passages of the corpus.",
        "bm25-to-bm25-corpus-random": "BM25, then both together.",
        "demo": MINUTES,
    },
    "ance": {
        "finetune": OWN_DATA + " Negatives are mined three times.",
        "passage": "The paper's settings for MS MARCO passages.",
        "firstp": "The paper's settings for documents: their first 512 tokens.",
        "maxp": "The paper's settings for documents: up to four chunks.",
        "nq": "The paper's settings for Natural Questions.",
        "triviaqa": "The paper's settings for TriviaQA.",
        "ance-analysis": "ANCE as Table 7 of the ANCE-Tele paper analyses it.",
        "demo": MINUTES,
    },
    "star": {
        "finetune": OWN_DATA + " One hard negative of each query.",
        "passage": "The paper's settings for MS MARCO passages.",
        "document": "The paper's settings for MS MARCO documents.",
        "demo": MINUTES,
    },
    "adore": {
        "finetune": OWN_DATA + " A last, cheap stage: the query side alone.",
        "passage": "The paper's settings for MS MARCO passages.",
        "document": "The paper's settings for MS MARCO documents.",
        "demo": MINUTES,
    },
    "ar2": {
        "finetune": OWN_DATA + " A ranker trains beside it.",
        "nq": "The paper's settings for Natural Questions.",
        "triviaqa": "The paper's settings for TriviaQA.",
        "msmarco": "The paper's settings for MS MARCO passages.",
        "irgan": "IRGAN's game by the same models, for comparison.",
        "demo": "A first look on a CPU: two models are trained, and both are measured.",
    },
    "ranker": {
        "finetune": OWN_DATA + " From an encoder.",
        "finetune-ranker": OWN_DATA + " From a ranker.",
        "demo": MINUTES,
    },
}


def facts_of(settings: type[Settings]) -> dict[str, dict[str, Any]]:
    """The facts of a class of settings, by setting, as ``presets/described.json`` has them.

    Returns
    -------
    For each setting that the class does not refuse: ``values``, the allowed values in words; ``default``;
    ``needed``, whether it has no default; ``result``, whether it decides the result, so that an experiment cannot
    go on with another value.
    """
    schema = settings.model_json_schema(mode="validation")["properties"]
    return {
        name: {
            "values": values_of(schema[name]),
            "default": BY_MACHINE.get(name, None if field.default is PydanticUndefined else field.default),
            "needed": field.is_required(),
            "result": not is_operational(settings, name),
        }
        for name, field in settings.model_fields.items()
        if name not in settings.refused
    }


NUMBERS = (
    ("minimum", "from {}"),
    ("exclusiveMinimum", "above {}"),
    ("maximum", "to {}"),
    ("exclusiveMaximum", "below {}"),
)


def values_of(schema: Mapping[str, Any]) -> str:
    """The values that a JSON schema allows, in words."""
    if "anyOf" in schema:
        return " or ".join(values_of(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array":
        return f"list of: {values_of(schema['items'])}"
    kind = {"integer": "whole number", "boolean": "true or false", "string": "text"}.get(schema["type"], "number")
    return " ".join([kind, *(text.format(f"{schema[key]:g}") for key, text in NUMBERS if key in schema)])


@functools.cache
def all_facts() -> dict[str, dict[str, dict[str, Any]]]:
    """The facts of the settings of all recipes, by recipe and setting, read without the settings' classes."""
    text = resources.files("hardneg").joinpath("presets", TABLE).read_text("utf-8")
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(text)
    return found


def described(recipe: str, preset: str | None = None) -> list[dict[str, Any]]:
    """Every setting of a recipe, in the order of the headings.

    Returns
    -------
    For each setting ``name``, ``heading``, ``values``, ``default``, ``preset`` (the value in the preset; only if a
    preset is named), ``needed``, ``result``, ``meaning``, ``unit`` and ``source``.

    Raises
    ------
    SettingsError : there is no such recipe or preset.
    """
    recipes = all_facts()
    if recipe not in recipes:
        raise SettingsError("UNKNOWN_RECIPE", f"no recipe is called {recipe!r:.60}", nearest(recipe, recipes))
    values = {} if preset is None else read_preset(recipe, preset)
    rows = []
    for heading, names in GROUPS.items():
        for name in names:
            if (facts := recipes[recipe].get(name)) is None:
                continue
            meaning = meaning_of(recipe, name)
            told = {"meaning": meaning.what.replace("`", ""), "unit": meaning.unit, "source": meaning.paper}
            in_preset = {} if preset is None else {"preset": values.get(name, facts["default"])}
            rows.append({"name": name, "heading": heading, **facts, **in_preset, **told})
    return rows


def presets_of(recipe: str | None = None) -> dict[str, dict[str, str]]:
    """What each preset is for, by recipe and preset; raises :class:`SettingsError` for an unknown recipe."""
    if recipe is None:
        return PRESETS
    if recipe not in PRESETS:
        raise SettingsError("UNKNOWN_RECIPE", f"no recipe is called {recipe!r:.60}", nearest(recipe, PRESETS))
    return {recipe: PRESETS[recipe]}
