"""The collection of Python functions: what becomes a query and a passage, and that import takes it as it is."""

import importlib
from pathlib import Path

import pytest

from hardneg.api.inputs import collection_of

SOURCE = '''
"""A module."""

def shortest(path):
    """Too short."""
    return path.read_text().splitlines()[0].strip().lower()

@cached
def grown(numbers, by):
    """Return the numbers, each of them
    grown by a share.

    Not of the query.
    """
    # a comment
    return [number * (1 + by) for number in numbers]

def bare(numbers):
    """Explain at length what is not there."""

class Shelf:
    async def put(self, book):
        """Put a book on the shelf and wait until it stands."""
        await self.moved(book, "a place that is free", tries=3)

    def take(self, book):
        """Do what several functions of this module do."""
        return self.books.pop(book, None) or self.lent[book].lender

    def find(self, book):
        """Do what several functions of this module do."""
        return next(place for place, one in self.places.items() if one == book)
'''


@pytest.fixture
def code_search(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    module = importlib.import_module("code_search")
    file, copy, broken = (tmp_path / name for name in ("shelf.py", "copy.py", "broken.py"))
    file.write_text(SOURCE)
    copy.write_text(SOURCE)  # the same code again
    broken.write_text("def (")
    files = {"shelf": file, "shelf_copy": copy, "broken": broken}
    monkeypatch.setattr(module, "files_of", lambda packages: files if packages == ["books"] else {})
    return module


def test_a_docstring_asks_for_its_code(code_search, tmp_path):
    functions = code_search.functions_of(["books"])
    assert [function.name for function in functions] == [
        "shelf.grown",
        "shelf.Shelf.put",
        "shelf.Shelf.take",
        "shelf.Shelf.find",
    ]
    assert functions[0].query == "Return the numbers, each of them grown by a share."
    assert functions[0].code == "def grown(numbers, by): return [number * (1 + by) for number in numbers]"
    counts = code_search.write(functions, tmp_path / "code", dev=4)
    assert counts.pop("passages") == 4
    assert sum(counts.values()) == 2, "nobody judged the two functions that share a docstring"
    collection = collection_of(str(tmp_path / "code"))
    assert (collection.n_passages, collection.n_queries) == (4, 2)


def test_splits_are_those_of_every_machine(code_search):
    names = [f"module.function_{number}" for number in range(2000)]
    shares = [[code_search.split_of(name, dev) for name in names].count("dev") / 20 for dev in (0, 4, 25)]
    assert shares == pytest.approx([0, 4, 25], abs=2)
    tested = [{name for name in names if code_search.split_of(name, dev) == "test"} for dev in (0, 25)]
    assert tested[0] == tested[1]
    assert code_search.split_of("module.function_1", 4) == "train"
