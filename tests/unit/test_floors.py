"""The floors of the house: imports go down only, the top package is light, and the library never prints."""

import ast
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hardneg

SOURCE = Path(hardneg.__file__).parent

# From the ground up. A module imports from lower floors, or from modules named before it on its own.
FLOORS = {
    "ground": """
        errors records draws arguments
        storage.refusals storage.digests storage.disk storage.plain storage.lease storage.manifest
        storage.artifacts storage.sealed
        config process.system process.launch process.stopping process.distributed process.progress process.runtime
        process.memory
    """,
    "data": """
        data.source data.checks data.text data.ids data.building data.collection
        data.formats.lines data.formats.pairs data.formats.folders data.formats.arrays data.formats.contexts
        data.formats.beir data.formats.qa data.formats.msmarco data.formats.dpr data.formats.tevatron
        data.formats.trec_folder data.formats.irds data.formats.hub data.formats.pydocs data.formats.trec
        data.formats.negative_lists
        data.importing data.training_data data.tokens
    """,
    "evaluation": """
        evaluation.judged evaluation.measures evaluation.matching evaluation.answers evaluation.significance
        evaluation.compare
    """,
    "models": """
        models.code models.pooling models.dropout models.first_token models.packing models.pretrained
        models.encoder_settings models.capacity models.bi_encoder models.tokenizing models.lengths models.st_folder
        models.loading models.saving models.reinit losses
    """,
    "search": """
        search.checks search.vectors search.candidates search.proposals search.pairs search.codes search.exact
        search.embedding_store
        search.embeddings search.retrieve search.runs search.bm25 search.ann search.ann_building search.counting
    """,
    "negatives": """
        negatives.pool negatives.facts negatives.candidates negatives.sources negatives.mix negatives.groups
        negatives.adopting negatives.given
    """,
    "training": """
        training.optim training.loop training.checkpoint training.gradient_cache training.sharing
        training.batches training.query_batches training.retrieval training.refresh
    """,
    "insight": """
        experiment.names
        diagnostics.gradients experiment.metrics experiment.folder experiment.snapshot experiment.fixed_index
        experiment.mining experiment.labelling experiment.settings experiment.fixed_negatives experiment.objectives
        experiment.stage experiment.timing experiment.untrained experiment.planning
        diagnostics.forgetting diagnostics.curves diagnostics.timeline
        diagnostics.informative diagnostics.pairwise_errors
        experiment.examination experiment.passing experiment.choosing experiment.cards
        experiment.results experiment.seeds experiment.refreshing experiment.refreshed_negatives
    """,
    "recipes": "recipes.warmup recipes.ance_tele recipes.ance recipes.star recipes.adore",
    "roof": """
        integrations.mteb integrations.following integrations.tensorboard
        operations.opening operations.origin operations.states operations.inspection operations.indexing
        operations.given
        operations.pools operations.retrieval operations.evaluation operations.exporting
        operations.settings operations.starting operations.roles
        operations.supervision operations.preparing operations.overriding
        operations.training operations.recipes operations.keeping operations.cleaning operations.doctor api
        cli.tables cli.options cli.indexing cli.keeping cli.recipes cli.retrieval cli.commands cli.exchange cli
        __main__
    """,
}
ORDER = [module for modules in FLOORS.values() for module in modules.split()]
SHARED_READERS = {f"data.formats.{name}" for name in ("lines", "pairs", "folders", "arrays", "contexts")}
WITHOUT_TORCH = ("ground", "data", "evaluation", "negatives")


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


def run_python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
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
    assert set(imports_of(ast.parse("from hardneg import draws, __version__\nimport hardneg.data.text as t"))) == {
        "draws",
        "",
        "data.text",
    }
    inside = "def f():\n    from hardneg.data import text\n    from hardneg.data.formats.lines import read_lines\n"
    assert set(imports_of(ast.parse(inside))) == {"data.text", "data.formats.lines"}
    assert "storage.artifacts" in set(imports_of(TREES["data.collection"]))


def test_recipes_do_not_know_each_other():
    recipes = FLOORS["recipes"].split()
    for recipe in recipes:
        assert set(imports_of(TREES[recipe])).isdisjoint(recipes)


def test_formats_know_only_the_shared_readers():
    formats = {name for name in ORDER if name.startswith("data.formats.")}
    for name in formats:
        assert set(imports_of(TREES[name])) & formats <= SHARED_READERS, name


def test_only_the_top_package_imports_by_name():
    # what the tests above cannot see
    for name, tree in TREES.items():
        calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
        assert name == "" or not [call for call in calls if call.endswith(("import_module", "__import__"))], name


def test_lower_floors_import_without_torch():
    modules = [f"hardneg.{name}" for floor in WITHOUT_TORCH for name in FLOORS[floor].split()]
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
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "hardneg", "--help"], capture_output=True, text=True, check=True
        )
        times.append(time.perf_counter() - begun)
    assert "ance-tele" in done.stdout
    assert min(times) < 1.5


# ---------------------------------------------------------------- the house


@pytest.mark.parametrize("module", sorted(TREES))
def test_the_library_never_prints(module):
    names = [node.id for node in ast.walk(TREES[module]) if isinstance(node, ast.Name)]
    assert "print" not in names
