"""The keywords of what trains: the module is what the settings of the recipes make of it."""

import importlib.util
import os
import subprocess
import sys
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


@pytest.mark.slow
def test_a_wrong_keyword_is_an_error_of_mypy(tmp_path):
    place = tmp_path / "snippet.py"
    place.write_text(
        "import hardneg as hn\n"
        'hn.train("star", "d", "m", "o", learning_rate=1e-5, on_step=print, progress=False)\n'
        'hn.train("star", "d", "m", "o", learning_rat=1e-5)\n'
        'hn.train("star", "d", "m", "o", learning_rate="high")\n'
        'hn.train_adore("d", "m", "o", episodes=3)\n'
    )
    words = [sys.executable, "-m", "mypy", str(place)]
    environment = os.environ | {"MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    faults = [line for line in done.stdout.splitlines() if "snippet.py" in line and ": error:" in line]
    lines = {line.partition("snippet.py:")[2].partition(":")[0] for line in faults}
    assert lines == {"3", "4", "5"}, done.stdout
