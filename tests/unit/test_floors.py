"""The floors of the house: imports go down only, the top package is light, and the library never prints."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hardneg
from architecture import floors, together
from hardneg.recipes.catalogue import CATALOGUE

SOURCE = Path(hardneg.__file__).parent

# From the ground up, as the page shows them. A module imports from lower floors, or from modules named before it.
FLOORS = floors()
ORDER = [module for modules in FLOORS.values() for module in modules]
SHARED_READERS = {
    f"data.formats.{name}"
    for name in (
        "lines",
        "moulds",
        "faults",
        "pair_table",
        "folders",
        "arrays",
        "contexts",
        "tables",
        "column_names",
        "columns",
        "table_files",
    )
}
COLLECTIVES = {
    "group",
    "by_leader",
    "leader_first",
    "by_consensus",
    "barrier",
    "any_of",
    "together",
    "collect",
    "sum_over_all",
    "exchange",
    "begin_sum",
    "add_gradients",
    "check_told_alike",
}
HOMES = [facts.home.removeprefix("hardneg.") for facts in CATALOGUE]
ROOMS = {home.split(".")[1] for home in HOMES}  # of the recipes; what else stands there they share
BY_NAME = {"", "api.recipes"}  # import by name: public names of the stub, and recipes of the catalogue
WITHOUT_TORCH = ("ground", "data", "evaluation", "negatives")
NEEDS_TORCH = {"losses", "adversarial"}


def name_of(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {name_of(path): ast.parse(path.read_text("utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


def is_bare(tree):
    """Whether a module is no more than its docstring."""
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in tree.body)


def imports_of(tree):
    """The modules of hardneg that a module imports, wherever in it: '' is the top package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}".removeprefix("hardneg.")
                if node.module == "hardneg" or (node.module or "").startswith("hardneg."):
                    yield inner if inner in TREES else node.module.removeprefix("hardneg").removeprefix(".")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "hardneg":
                    yield alias.name.removeprefix("hardneg").removeprefix(".")


def calls_together(tree, module):
    """The functions of a module, as its classes name them, that call what all processes must call together."""

    def visit(node, path):
        for child in ast.iter_child_nodes(node):
            inner = isinstance(child, ast.ClassDef | ast.FunctionDef) and not isinstance(node, ast.FunctionDef)
            if isinstance(child, ast.Call) and ast.unparse(child.func) in COLLECTIVES:
                yield ".".join([module, *path])
            yield from visit(child, [*path, child.name] if inner else path)

    return set(visit(tree, []))


def run_python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_module_has_its_place():
    packages = [name for name, tree in TREES.items() if is_bare(tree)]
    assert sorted(ORDER) == sorted(set(TREES) - set(packages) - {""})
    assert len(ORDER) == len(set(ORDER))


@pytest.mark.parametrize("module", ORDER)
def test_imports_go_down(module):
    lower = {*ORDER[: ORDER.index(module)], ""}
    assert set(imports_of(TREES[module])) - lower == set()


def test_the_imports_are_seen_at_all():
    # or the test above could not fail
    assert set(
        imports_of(ast.parse("from hardneg import keyed_random, __version__\nimport hardneg.data.text as t"))
    ) == {
        "keyed_random",
        "",
        "data.text",
    }
    inside = "def f():\n    from hardneg.data import text\n    from hardneg.data.formats.lines import read_lines\n"
    assert set(imports_of(ast.parse(inside))) == {"data.text", "data.formats.lines"}
    assert "storage.artifacts" in set(imports_of(TREES["data.collection"]))


def test_recipes_do_not_know_each_other():
    # a recipe is a file or a package: the first part of the name
    rooms = {module: module.split(".")[1] for module in FLOORS["recipes"]}
    shared = set(rooms.values()) - ROOMS
    for module, room in rooms.items():
        known = {rooms[name] for name in imports_of(TREES[module]) if name in rooms}
        assert known <= shared | ({room} & ROOMS), module
    assert set(rooms.values()) > ROOMS


def test_formats_know_only_the_shared_readers():
    formats = {name for name in ORDER if name.startswith("data.formats.")}
    for name in formats:
        assert set(imports_of(TREES[name])) & formats <= SHARED_READERS, name


def test_recipes_of_the_catalogue_stand_on_their_floor():
    # the functions import them by name, from above
    assert len(ROOMS) == len(CATALOGUE) >= 5
    assert set(HOMES) <= set(FLOORS["recipes"])


def test_diagnostics_are_functions_of_what_they_are_given():
    # only these open what a state left on the disk, and publish what they found there
    opening = {
        f"diagnostics.{name}"
        for name in (
            "informative",
            "pairwise_errors",
            "search_state",
            "measured",
            "best_vectors",
            "reranked",
            "sharpness",
            "results",
        )
    }
    asks = {"search.retriever", "experiment.snapshot", "experiment.folder", "experiment.layout", "models.loading"}
    found = {module for module in FLOORS["insight"] if asks & set(imports_of(TREES[module]))}
    assert found == opening


def test_nothing_but_public_names_and_recipes_is_imported_by_name():
    # what the tests above cannot see
    for name, tree in TREES.items():
        calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
        found = [call for call in calls if call.endswith(("import_module", "__import__"))]
        assert name in BY_NAME or not found, name


@pytest.mark.parametrize("module", ORDER)
def test_the_page_names_who_calls_what_all_processes_call(module):
    named = {name for name in together() if module == max((m for m in TREES if name.startswith(f"{m}.")), key=len)}
    assert named == calls_together(TREES[module], module)


def test_the_page_names_nobody_else():
    found = [name for module in ORDER for name in calls_together(TREES[module], module)]
    assert sorted(found) == sorted(together())


def test_calls_of_all_processes_are_seen_at_all():
    text = """
class A:
    def f(self):
        def inner():
            with group():
                pass
        return inner

@group()
def g():
    pass

def h():
    member()
"""
    assert calls_together(ast.parse(text), "m") == {"m.A.f", "m.g"}
    assert "process.distributed.leader_first" in calls_together(
        TREES["process.distributed"], "process.distributed"
    )
    assert len(together()) > 20


def test_lower_floors_import_without_torch():
    modules = [f"hardneg.{name}" for floor in WITHOUT_TORCH for name in FLOORS[floor] if name not in NEEDS_TORCH]
    heavy = run_python(
        f"import importlib, json, sys\nfor name in {modules}: importlib.import_module(name)\n"
        "print(json.dumps(sorted({'torch', 'transformers', 'bm25s', 'matplotlib'} & set(sys.modules))))"
    )
    assert heavy == []


# ---------------------------------------------------------------- the top package


def test_importing_hardneg_loads_no_third_party():
    loaded, first = run_python(
        "import json, sys\nbefore = set(sys.modules)\nimport hardneg\n"
        "loaded = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(json.dumps([sorted(loaded - set(sys.stdlib_module_names)), sorted(dir(hardneg))]))"
    )
    assert loaded == ["hardneg"]
    assert first == sorted(hardneg.__all__)


@pytest.mark.parametrize("name", hardneg.__all__)
def test_every_public_name_is_there(name):
    value = getattr(hardneg, name)
    assert name == "__version__" or value.__doc__


def test_no_other_name_is_there():
    with pytest.raises(AttributeError, match="module 'hardneg' has no attribute 'trian'"):
        _ = hardneg.trian
    assert len(hardneg.__all__) == len(set(hardneg.__all__))


def test_help_is_quick_and_loads_nothing_heavy():
    command = (
        "import json, sys\nfrom hardneg.cli import run\n"
        "sys.stdout, out = sys.stderr, sys.stdout\nstatus = run(['--help'])\nsys.stdout = out\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'numpy', 'scipy', 'pydantic', 'matplotlib', 'bm25s'}\n"
        "print(json.dumps([status, sorted(heavy & set(sys.modules))]))"
    )
    assert run_python(command) == [0, []]
    times = []
    for _ in range(2):  # the second time from a warm disk
        begun = processor_seconds()  # those of the clock grow with what else the machine does
        done = subprocess.run(
            [sys.executable, "-m", "hardneg", "--help"], capture_output=True, text=True, check=True
        )
        times.append(processor_seconds() - begun)
    assert "ance-tele" in done.stdout
    assert min(times) < 1.5


def processor_seconds():
    """Seconds of processor time of all child processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


# ---------------------------------------------------------------- the house


@pytest.mark.parametrize("module", sorted(TREES))
def test_the_library_never_prints(module):
    names = [node.id for node in ast.walk(TREES[module]) if isinstance(node, ast.Name)]
    assert "print" not in names
