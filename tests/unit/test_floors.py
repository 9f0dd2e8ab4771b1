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
        errors records losses keyed_random arguments storage.digests storage.os_errors storage.disk storage.lease
        storage.safe_read storage.manifest storage.artifacts config process.launch process.memory process.signals
        process.distributed process.progress process.system process.threads
    """,
    "data": """
        data.formats.lines data.formats.arrays data.ids data.formats.pairs data.formats.trec data.source
        data.checks data.formats.contexts data.formats.folders data.formats.beir data.formats.dpr
        data.formats.hub data.formats.irds data.formats.msmarco data.formats.negative_lists data.formats.pydocs
        data.formats.qa data.formats.tevatron data.formats.trec_folder data.text data.building data.collection
        data.importing data.tokens data.training_data
    """,
    "evaluation": """
        evaluation.judged evaluation.matching evaluation.measures evaluation.answers evaluation.significance
        evaluation.compare
    """,
    "models": """
        models.code models.dropout models.first_token models.packing models.capacity models.pooling
        models.encoder_settings models.bi_encoder models.pretrained models.reinit models.st_folder models.loading
        models.saving models.tokenizing models.lengths
    """,
    "search": """
        search.checks search.bm25 search.embedding_store search.runs search.topk_selection search.vectors
        search.embeddings search.proposals search.codes search.pairs search.exact search.counting search.retrieve
        search.ann search.ann_building search.retriever
    """,
    "negatives": """
        negatives.pool negatives.candidates negatives.external negatives.facts negatives.groups negatives.sources
        negatives.adopting negatives.mix negatives.mining negatives.labels
    """,
    "training": """
        training.checkpoint training.gradient_cache training.gradient_norms training.optim training.loop
        training.sharing training.batches training.objectives
    """,
    "experiment": """
        experiment.metrics experiment.names experiment.results_manifest experiment.folder experiment.provenance
        experiment.stage experiment.tensorboard
    """,
    "insight": """
        diagnostics.choice diagnostics.cards diagnostics.curves diagnostics.forgetting diagnostics.informative
        diagnostics.pairwise_errors diagnostics.search_state diagnostics.results diagnostics.seeds
        diagnostics.timeline
    """,
    "recipes": """
        recipes.adore.fixed_index recipes.adore.query_batches recipes.adore.lists recipes.ance.versions
        recipes.catalogue recipes.microbenchmarks recipes.settings recipes.adore.fixed_negatives
        recipes.ance.following recipes.ance.in_force recipes.measured_states recipes.untrained recipes.estimate
        recipes.adore.recipe recipes.ance.recipe recipes.ance_tele recipes.model_source recipes.ance.roles
        recipes.ance.supervision recipes.star recipes.warmup
    """,
    "api": """
        api.doctor api.inputs api.clean api.evaluate api.inspect api.export api.external api.overrides
        api.retrievers api.index api.mine api.search api.settings api.prepare api.train api.recipes api.verify
    """,
    "roof": """
        integrations.following integrations.mteb cli.options cli.tables cli.commands cli.exchange cli.indexing
        cli.keeping cli.retrieval cli.train cli.application cli __main__
    """,
}
ORDER = [module for modules in FLOORS.values() for module in modules.split()]
SHARED_READERS = {f"data.formats.{name}" for name in ("lines", "pairs", "folders", "arrays", "contexts")}
WITHOUT_TORCH = ("ground", "data", "evaluation", "negatives")
WITH_TORCH = ("losses", "negatives.mining", "negatives.labels")  # tensors, and what needs a model


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


def room_of(module):
    """The recipe that a module belongs to; None of what all recipes share."""
    room = module.split(".")[1]
    return room if module.count(".") == 2 or room in ("ance_tele", "star", "warmup") else None


def test_recipes_do_not_know_each_other():
    modules = FLOORS["recipes"].split()
    assert {room_of(module) for module in modules} == {None, "ance", "ance_tele", "star", "warmup", "adore"}
    for module in modules:
        for other in set(imports_of(TREES[module])) & set(modules):
            assert room_of(other) in (None, room_of(module)), f"{module} imports {other}"


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
    names = [name for floor in WITHOUT_TORCH for name in FLOORS[floor].split() if name not in WITH_TORCH]
    modules = [f"hardneg.{name}" for name in names]
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
