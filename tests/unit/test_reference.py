"""The generated pages of the reference are what the source says, and every setting has a meaning."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from hardneg.api.recipes import RECIPES
from hardneg.recipes.headings import GROUPS
from hardneg.recipes.meanings import MEANINGS, meaning_of

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = [(name, setting) for name, recipe in RECIPES.items() for setting in recipe.settings.model_fields]


@pytest.fixture(scope="module")
def reference():
    return script("reference")


def script(name):
    """A script of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tools/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_setting_has_a_meaning_and_a_place():
    without = [f"{recipe}.{name}" for recipe, name in SETTINGS if not {name, f"{recipe}.{name}"} & MEANINGS.keys()]
    assert without == [], "add them to MEANINGS in hardneg/recipes/meanings.py"
    grouped = [name for names in GROUPS.values() for name in names]
    assert {name for _, name in SETTINGS} == set(grouped), "mend GROUPS in hardneg/recipes/headings.py"
    assert len(grouped) == len(set(grouped))


def test_no_meaning_is_left_over():
    used = {f"{recipe}.{name}" if f"{recipe}.{name}" in MEANINGS else name for recipe, name in SETTINGS}
    assert set(MEANINGS) == used


def test_meanings_are_sentences():
    for name, meaning in MEANINGS.items():
        assert meaning.what.endswith("."), name
        assert len(meaning.what.split()) >= 3, name
        assert "|" not in meaning.what, name


def test_the_meaning_of_a_recipe_wins():
    assert (
        "Momentum" in meaning_of("ance-tele", "alpha").what or "momentum" in meaning_of("ance-tele", "alpha").what
    )
    assert "in-batch" in meaning_of("star", "alpha").what
    assert meaning_of("star", "seed") == meaning_of("ance", "seed") == MEANINGS["seed"]


def test_a_setting_without_a_meaning_is_told_before_anything_is_written(reference, tmp_path, monkeypatch):
    told = "setting loss of recipe warmup has no meaning: add it to meanings.py"
    for name in ("loss", "warmup.loss"):
        monkeypatch.delitem(MEANINGS, name, raising=False)
    monkeypatch.setattr(reference, "PAGES", tmp_path / "pages")
    monkeypatch.setattr(reference, "GENERATED", {"a.md": lambda: "# A\n", "settings.md": reference.settings_page})
    with pytest.raises(LookupError, match=told):
        reference.main()
    assert not (tmp_path / "pages").exists()
    with pytest.raises(LookupError, match=told):  # make reference begins with it
        script("settings_table").table()
    with pytest.raises(LookupError, match="setting gone of all recipes has no meaning"):
        meaning_of("", "gone")


@pytest.mark.parametrize("page", ["settings.md", "presets.md", "commands.md", "api.md"])
def test_pages_are_up_to_date(reference, page):
    assert set(reference.GENERATED) == {"settings.md", "presets.md", "commands.md", "api.md"}
    there = (ROOT / "docs/reference" / page).read_text("utf-8")
    assert there == reference.GENERATED[page](), "run `make reference`"


def test_every_setting_stands_under_its_recipe_or_under_all(reference):
    parts = reference.settings_page().split("\n## ")
    rows = {part.split("\n")[0]: part for part in parts}
    for recipe, name in SETTINGS:
        cell = f"| `{name}`"
        found = [title for title in (recipe, "All recipes") if cell in rows[title]]
        assert len(found) == 1, (recipe, name, found)


def test_the_script_writes_all_pages(reference, tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "PAGES", tmp_path)
    monkeypatch.setattr(reference, "GENERATED", {"one.md": lambda: "# One\n"})
    reference.main()
    assert (tmp_path / "one.md").read_text() == "# One\n"


def test_docstrings_become_markdown(reference):
    made = reference.markdown_of(
        "Read it.\n\nParameters\n----------\nrows : which, see :func:`~a.b.read`.\n\nReturns ``x``."
    )
    assert made == "Read it.\n\n**Parameters**\n\n- `rows`: which, see `read`.\n\nReturns `x`."


def test_arguments_are_split_outside_brackets(reference):
    assert reference.split_arguments("a: dict[str, int], b: int = f(1, 2)") == [
        "a: dict[str, int]",
        "b: int = f(1, 2)",
    ]


def test_the_command_line_stays_quick_to_import():
    # the tables of headings and meanings are plain data, so that help may use them
    script = "import sys, hardneg.recipes.headings, hardneg.recipes.meanings"
    script += "; print('torch' in sys.modules, 'pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
