"""Make ``src/hardneg/api/keywords.py``: every recipe's settings as typed keywords of the functions that train.

``make reference`` writes it too. A test compares the module with what this script would write.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from hardneg.api.prepare import prepare
from hardneg.api.recipes import RECIPES
from hardneg.recipes.meanings import meaning_of
from hardneg.recipes.settings import Recipe

MODULE = Path(__file__).resolve().parents[1] / "src/hardneg/api/keywords.py"
HEAD = '''"""Keywords of the functions that train, as editors and type checkers see them.

Made by ``make reference`` from the settings of the recipes. Change those, not this module.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from hardneg.api.inputs import Place
from hardneg.data.training_data import Splits
from hardneg.experiment.observers import Told
from hardneg.recipes.settings import TrainingSettings'''
WIDTH = 115
POSITIONAL = ("recipe", "data", "model", "out", "values")


def main() -> int:
    """Write the module."""
    MODULE.write_text(made(), "utf-8")
    sys.stdout.write(f"{MODULE}\n")
    return 0


def made() -> str:
    """The text of the module."""
    fields = {recipe.name: fields_of(recipe) for recipe in RECIPES.values()}
    common = dict.fromkeys(set.intersection(*({*one.items()} for one in fields.values())))
    shared = {name: text for name, text in next(iter(fields.values())).items() if (name, text) in common}
    parts = [HEAD, *class_of("Options", "TypedDict, total=False", "What an experiment is given.", options())]
    parts += class_of("Keywords", "Options, total=False", "What an experiment and every recipe take.", shared)
    for recipe in RECIPES.values():
        own = {name: text for name, text in fields[recipe.name].items() if name not in shared}
        told = f"What ``train {recipe.name}`` takes."
        parts += class_of(name_of(recipe), "Keywords, total=False", told, own, recipe)
    return "\n".join(parts) + "\n"


def name_of(recipe: Recipe) -> str:
    """The class of a recipe's keywords."""
    return f"{recipe.settings.__name__}Keywords"


def fields_of(recipe: Recipe) -> dict[str, str]:
    """The type of each setting, as text."""
    known = recipe.settings.model_fields.items()
    return {name: told(field.annotation) for name, field in known if name not in options()}


def options() -> dict[str, str]:
    """The arguments of training functions that are no settings, with their types."""
    known = inspect.signature(prepare).parameters.items()
    return {name: str(one.annotation) for name, one in known if name not in POSITIONAL}


def class_of(
    name: str, bases: str, about: str, fields: Mapping[str, str], recipe: Recipe | None = None
) -> Iterator[str]:
    """The lines of a class."""
    yield f'\n\nclass {name}({bases}):\n    """{about}"""\n'
    for field, text in fields.items():
        yield f"    {field}: {text}"
        if field not in options():
            yield from docstring(meaning_of("" if recipe is None else recipe.name, field).what)
    if not fields:
        yield "    pass"


def docstring(text: str) -> Iterator[str]:
    """The meaning of a setting as a docstring below it, where editors look for it."""
    line = f'    """{text}"""'
    if len(line) <= WIDTH:
        yield line
        return
    words, line = text.split(), '    """'
    for word in words:
        if len(line) + len(word) + 1 > WIDTH:
            yield line.rstrip()
            line = "    "
        line += word + " "
    yield line.rstrip() + '\n    """'


def told(annotation: Any) -> str:
    """A type as people write it, without bounds; a list may also be one value."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return told(inner[0])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(told(one) for one in inner))
    if origin is Literal:
        return f"Literal[{', '.join(repr(one) for one in inner)}]".replace("'", '"')
    if origin is list:
        return f"list[{told(inner[0])}]"
    return "None" if annotation is type(None) else annotation.__name__


if __name__ == "__main__":
    raise SystemExit(main())
