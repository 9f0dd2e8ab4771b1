"""The keywords of the functions that train: the module matches the settings of the recipes."""

import importlib.util
import typing
from pathlib import Path

import pytest

import hardneg as hn
from hardneg.api import keywords
from hardneg.api.keywords import Options
from hardneg.api.recipes import RECIPES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("keywords_tool", ROOT / "tools/keywords.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_module_is_what_the_script_makes(tool):
    assert tool.MODULE.read_text() == tool.made(), "run `make reference`"


@pytest.mark.parametrize("name", RECIPES)
def test_every_setting_and_every_option_is_a_keyword(tool, name):
    recipe = RECIPES[name]
    known = typing.get_type_hints(getattr(keywords, tool.name_of(recipe)))
    assert set(known) == set(recipe.settings.model_fields) | set(tool.options())


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "int"),
        (int | None, "int | None"),
        (list[typing.Annotated[int, "from 1"]], "list[int]"),
        (typing.Annotated[int, 1] | typing.Annotated[float, 2] | None, "int | float | None"),
        (typing.Literal["a", "b"] | None, 'Literal["a", "b"] | None'),
    ],
)
def test_a_type_is_written_as_one_writes_it(tool, annotation, text):
    assert tool.told(annotation) == text


def test_the_docstring_of_train_names_all_that_it_takes_but_settings():
    told = hn.train.__doc__
    for name in [*Options.__annotations__, *RECIPES]:
        assert f"``{name}``" in told, name
    assert "prepare" not in told  # it stands alone
