"""The notebooks run from the first cell to the last at small size, and the tutorial is made from them."""

import csv
import importlib.util
import json
from pathlib import Path

import pytest

from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PAGES = {"own_data.ipynb": "own-data.md", "forgotten.ipynb": "forgotten.md"}


@pytest.fixture(scope="module")
def runner():
    spec = importlib.util.spec_from_file_location("run_notebook", EXAMPLES / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder to run in, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARDNEG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HARDNEG_REPORT", "0")
    monkeypatch.setenv("HARDNEG_PRECISION", "float32")
    return tmp_path


def opened(name):
    return json.loads((EXAMPLES / name).read_text("utf-8"))


def printed(notebook):
    return "".join(line for cell in notebook["cells"] for out in cell.get("outputs", ()) for line in out["text"])


def pairs_of(collection, path):
    """The collection's judged pairs as a table of questions and texts."""
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["anchor", "positive"])
        for split in ("train", "dev", "test"):
            judged = collection.qrels(split)
            first = judged.passage_rows[judged.offsets[:-1]]
            for query, passage in zip(judged.query_rows.tolist(), first.tolist(), strict=True):
                table.writerow([collection.query_texts[query], collection.texts[passage]])


def test_own_data(runner, place):
    collection = tiny_collection(place / "collection")
    pairs_of(collection, place / "own.csv")
    model = tiny_model(place / "start", collection)
    notebook = opened("own_data.ipynb")
    names = runner.run(notebook, {"MODEL": repr(model), "STEPS": "3"})
    assert (place / "own-experiment/model/config.json").exists()
    assert {"bm25", "untrained", "final"} <= names["results"]["test"].keys()
    assert "92 pairs" in printed(notebook)
    assert "final" in printed(notebook)


def test_what_was_forgotten(runner, place):
    pytest.importorskip("altair", reason="the report's packages are not installed")
    collection = tiny_collection(place / "collection")
    model = tiny_model(place / "start", collection)
    notebook = opened("forgotten.ipynb")
    values = {"MODEL": repr(model), "DATA": repr(str(place / "collection")), "STEPS": "3"}
    names = runner.run(notebook, values)
    assert len(names["results"]["forgetting"]) == 3
    assert names["fallen"]
    assert "forgotten" in printed(notebook)
    assert " - " in printed(notebook)


@pytest.mark.parametrize("name", PAGES)
def test_the_pages_are_made_from_the_notebooks(runner, name):
    there = (ROOT / "docs/tutorial" / PAGES[name]).read_text("utf-8")
    assert there == runner.page_of(opened(name), name), "run `make notebooks`"


@pytest.mark.parametrize("name", PAGES)
def test_notebooks_are_whole(name):
    notebook = opened(name)
    assert notebook["nbformat"] == 4
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert sum("parameters" in cell["metadata"].get("tags", ()) for cell in code) == 1


@pytest.mark.parametrize("name", PAGES)
def test_what_is_printed_is_what_the_code_prints_now_and_no_texts_of_others(runner, name):
    notebook = opened(name)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not [cell for cell in cells if "texts" in cell["metadata"].get("tags", ()) and cell["outputs"]]
    if any(cell["outputs"] for cell in cells):
        assert notebook["metadata"]["printed_by"] == runner.digest_of(notebook), "run `make notebooks`"


def test_texts_of_a_collection_are_not_kept(runner, tmp_path):
    tagged = {"metadata": {"tags": ["texts"]}, "source": ["print('theirs')"]}
    plain = {"metadata": {}, "source": ["print('ours')"]}
    cells = [{"cell_type": "code", "outputs": [], "execution_count": None, **cell} for cell in (tagged, plain)]
    place = tmp_path / "n.ipynb"
    place.write_text(json.dumps({"cells": cells, "nbformat": 4, "metadata": {}}))
    runner.main([str(place), "--write"])
    kept = json.loads(place.read_text())
    assert printed(kept) == "ours\n"
    assert kept["metadata"]["printed_by"] == runner.digest_of(kept)


def test_only_parameters_get_other_values(runner):
    assert runner.with_values("A = 1\nB = 'x'", {"B": "2"}) == "A = 1\nB = 2"
    with pytest.raises(ValueError, match="does not assign"):
        runner.with_values("A = 1", {"C": "2"})


def test_the_last_expression_of_a_cell_is_shown(runner):
    assert runner.run_cell("x = 2\nx + 1", {}) == "3\n"
    assert runner.run_cell("print('a')\nNone", {}) == "a\n"


def test_a_notebook_becomes_a_page(runner, tmp_path):
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": ["# A title\n", "\n", "Text."]},
        {"cell_type": "code", "metadata": {}, "source": ["print(1)"], "outputs": [], "execution_count": None},
    ]
    place = tmp_path / "n.ipynb"
    place.write_text(json.dumps({"cells": cells, "nbformat": 4}))
    runner.main([str(place), "--write"])
    runner.main([str(place), "--page", str(tmp_path / "n.md")])
    page = (tmp_path / "n.md").read_text()
    assert page.startswith("# A title\n\n<!-- This page is made from `examples/n.ipynb`")
    assert page.endswith("Text.\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n")
