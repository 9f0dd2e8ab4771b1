import importlib
import random
import shutil
import sys
import types
import warnings

import pytest

from calls import uncalled
from hardneg.data.formats import pydocs
from hardneg.data.formats.pydocs import Entry, extract, fingerprint, pair, records, split_of
from hardneg.errors import InputError

INIT = '''"""A package about nothing in particular.

It is here to be read.
"""
raise RuntimeError("this must never run")
'''

SHAPES = r'''"""Shapes with an area.

All lengths are in metres.
"""

if True:
    def area(side):
        """Return the area of a square.

        The area grows with
            the   square of the side: \d.
        """
        def inner():
            """A function that nobody can name.

            It is left out.
            """
else:
    def area(side):
        """Return another area altogether.

        Only the first definition of a name counts.
        """

class Circle:
    """A circle about the origin.

    Its radius is positive.
    """

    def __init__(self):
        """Make a circle of radius one.

        Dunder methods are left out.
        """

    @property
    def radius(self):
        """The distance from the centre.

        It can be set.
        """

    @radius.setter
    def radius(self, value):
        """Set the distance from the centre.

        The setter has the same name.
        """

    async def _hidden(self):
        """A private method of the circle.

        It is left out.
        """

    class Arc:
        async def draw(self):
            """Draw a part of the circle.

            A nested class has no docstring here.
            """

class _Private:
    def method(self):
        """A public method of a private class.

        It is left out.
        """
'''

HIDDEN = '"""A module that is left out.\n\nNobody reads it.\n"""\n'


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that raises on import, of public, private, test and broken modules."""
    name = f"pydocs_{tmp_path.name}"
    files = {
        "__init__.py": INIT,
        "shapes.py": SHAPES,
        "_private.py": HIDDEN,
        "__main__.py": HIDDEN,
        "conftest.py": HIDDEN,
        "test_shapes.py": HIDDEN,
        "tests/__init__.py": HIDDEN,
        "_internal/public.py": HIDDEN,
        "not-a-name/module.py": HIDDEN,
        "notes.txt": HIDDEN,
        "sub/deep.py": HIDDEN.replace("left out", "deep down"),
        "broken.py": "def (:\n",
    }
    for path, text in files.items():
        place = tmp_path / "site" / name / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    (place.parent / "latin.py").write_bytes(b'"""Caf\xe9 is not UTF-8 here.\n\nIt is skipped.\n"""\n')
    monkeypatch.syspath_prepend(tmp_path / "site")
    importlib.invalidate_caches()
    return name


def test_public_docstrings_are_read_and_nothing_runs(package, caplog):
    entries = list(extract([package]))
    assert [(e.name.removeprefix(package), e.module.removeprefix(package)) for e in entries] == [
        ("", ""),
        (".shapes", ".shapes"),
        (".shapes.Circle", ".shapes"),
        (".shapes.Circle.Arc.draw", ".shapes"),
        (".shapes.Circle.radius", ".shapes"),
        (".shapes.area", ".shapes"),
        (".sub.deep", ".sub.deep"),
    ]
    texts = {e.name.removeprefix(package): (e.query, e.text) for e in entries}
    assert texts[".shapes.area"] == (
        "Return the area of a square.",
        r"The area grows with the square of the side: \d.",
    )
    assert texts[".shapes.Circle.radius"] == ("The distance from the centre.", "It can be set.")
    assert package not in sys.modules
    assert "2 of 5 source files cannot be parsed" in caplog.text  # the broken one and the Latin one


def test_warnings_of_foreign_sources_are_silent(package):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert list(extract([package]))
    assert not seen


def test_the_number_of_workers_changes_nothing(monkeypatch):
    monkeypatch.setattr(pydocs, "_FILES_A_WORKER", 10)
    packages = ["email", "json", "asyncio"]
    alone = list(extract(packages, workers=1))
    assert len(alone) > 50
    assert list(extract(reversed(packages), workers=3)) == alone
    assert [e.name for e in alone] == sorted({e.name for e in alone})


def test_a_worker_failure_is_not_swallowed(monkeypatch):
    monkeypatch.setattr(pydocs, "_FILES_A_WORKER", 1)
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(Exception, match="non-zero exit status"):
        list(extract(["json"], workers=2))


SENTENCE = "Return the sum of two numbers."


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        (f"{SENTENCE}\n\nThe rest.", (SENTENCE, "The rest.")),
        (f"{SENTENCE}\n \t\nThe\n  rest.\n\nAnd more.", (SENTENCE, "The rest. And more.")),
        ("Return the sum\nof two numbers.\n\nThe rest.", (SENTENCE, "The rest.")),
        (f"{SENTENCE}\nArgs:\n    x: one", (SENTENCE, "Args: x: one")),
        (f"{SENTENCE}\n:param x: one", (SENTENCE, ":param x: one")),
        (f"{SENTENCE}\n\nParameters\n----------\nx : int", (SENTENCE, "Parameters x : int")),
        (f"===\nTop\n====\n\n{SENTENCE}", None),
        (f"add(x, y) -> Tensor\n\n{SENTENCE}\n\nThe rest.", (SENTENCE, "The rest.")),
        (f"add(x, [y])\n\n{SENTENCE}", None),
        (SENTENCE, None),
        (f"{SENTENCE}\n\n----------", None),
        ("Return a sum of it.\n\nThe rest.", None),  # 19 characters
        ("Return a sum of this\n\nThe rest.", ("Return a sum of this", "The rest.")),  # 20
        (f"a b {'c' * 196}\n\nThe rest.", (f"a b {'c' * 196}", "The rest.")),  # 200
        (f"a b {'c' * 197}\n\nThe rest.", None),
        ("Uncharacteristically concise.\n\nThe rest.", None),
        ("Parameters\n----------\nx : the first number\n\ny : the second number", None),
        ("Args:\n  x: the first number\n\n  y: the second number", None),
        ("x (`int` of\n shape `(1,)`): The first number.\n\nThe rest.", None),
        ("`str`: Mask token to use in training.\n\nThe rest.", None),
        (".. deprecated:: 3.1 of this package\n\nThe rest.", None),
        (":param x: the first number\n\nThe rest.", None),
        (">>> add(1, 2) + add(3, 4)\n10\n\nThe rest.", None),
        ("```python\n>>> from package import add\n\n>>> add(1, 2)\n```", None),
        ("What pack.add does with numbers.\n\nThe rest.", None),
        (
            "Like :func:`~pack.sub`, [`Sum`], `this <https://a.b>`_ and [that](https://c.d).\n\nA ``b``.",
            ("Like pack.sub, Sum, this and that.", "A b."),
        ),
        ("Return\x00 the sum \ud800of two numbers.\n\nThe \x1brest.", (SENTENCE, "The rest.")),
    ],
)
def test_what_a_docstring_asks(docstring, expected):
    entry = pydocs._entry("pack.add", "pack", docstring)
    assert (entry and (entry.query, entry.text)) == expected


def test_splits_are_by_module():
    splits = [split_of(f"package.module{i}") for i in range(20_000)]
    assert splits.count("train") == pytest.approx(16_000, abs=250)
    assert splits.count("dev") == pytest.approx(2_000, abs=200)
    pinned = ("json.decoder", "email", "shutil")
    assert [split_of(name) for name in pinned] == ["train", "dev", "test"]  # on every machine


def module_of(split):
    return next(name for name in map("m{}".format, range(100)) if split_of(name) == split)


def test_equal_texts_are_one_passage():
    train, test = module_of("train"), module_of("test")
    entries = [
        Entry("a.copy", train, "Shallow copy.", "See the module."),
        Entry("a.deepcopy", train, "Deep copy.", "See the module."),  # would stand under the title a.copy
        Entry("b.copy", train, "A shallow copy.", "See the module."),
        Entry("c.copy", train, "Shallow copy.", "See the module."),  # asks the same
        Entry("d.copy", test, "Another copy.", "See the module."),  # between two splits
        Entry("e.other", test, "Shallow copy.", "Something else."),  # between two splits
        Entry("f.own", test, "Its own question.", "Something else."),
        Entry("g.copy", train, "Shallow copy.", "A second answer."),
    ]
    assert [(query.name, passage.name) for query, passage in pair(entries)] == [
        ("a.copy", "a.copy"),
        ("b.copy", "a.copy"),
        ("f.own", "f.own"),
        ("a.copy", "g.copy"),
    ]


def slow_pairs(entries):
    def kept(e):
        asked = next(f for f in entries if f.query == e.query)
        answered = next(f for f in entries if f.text == e.text)
        return split_of(asked.module) == split_of(answered.module) == split_of(e.module)

    entries_kept = [e for e in entries if kept(e)]
    passage = {e: next(f for f in entries_kept if f.text == e.text) for e in entries_kept}
    entries_kept = [
        e
        for e in entries_kept
        if e.query == passage[e].query or e.name.split(".")[-1] == passage[e].name.split(".")[-1]
    ]
    found = [(next(f for f in entries_kept if f.query == e.query), passage[e]) for e in entries_kept]
    return [p for i, p in enumerate(found) if p not in found[:i]]


def test_pairs_against_a_slow_loop():
    rng = random.Random(5)
    entries = [
        Entry(
            f"n{i:03}.{rng.choice('xyz')}",
            f"m{rng.randrange(30)}",
            f"q{rng.randrange(60)}",
            f"t{rng.randrange(60)}",
        )
        for i in range(200)
    ]
    pairs = pair(entries)
    assert pairs == slow_pairs(entries)
    assert {split_of(query.module) for query, _ in pairs} == {"train", "dev", "test"}
    for field in ("module", "query", "text"):
        homes = {(getattr(e, field), split_of(q.module)) for q, p in pairs for e in (q, p)}
        assert len(homes) == len({value for value, _ in homes})


def test_unknown_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "handmade", types.ModuleType("handmade"))
    with pytest.raises(InputError) as caught:
        records("json, nowhere_at_all,scikit-learn,os.path,sys,handmade")
    assert caught.value.code == "UNKNOWN_PACKAGE"
    assert caught.value.status == 3
    assert "handmade, nowhere_at_all, os.path, scikit-learn, sys" in str(caught.value)
    assert "pip list" in str(caught.value)


def test_the_default_list(monkeypatch):
    assert pydocs.packages_of("") == pydocs.DEFAULT
    monkeypatch.setattr(pydocs, "DEFAULT", ("nowhere_at_all", "numpy", "stdlib"))
    assert pydocs.packages_of("") == ("numpy", "stdlib")  # what is not installed is no fault where nobody named it
    assert pydocs.packages_of(" numpy,json,,numpy ") == ("json", "numpy")


def test_the_standard_library_has_no_tests_or_installed_packages():
    files = pydocs.files_of(["stdlib"])
    assert {"json", "json.decoder", "this", "xml.dom"} <= files.keys()
    assert not any("site-packages" in path.parts or "test" in path.parts for path in files.values())
    assert not any(part.startswith("_") for module in files for part in module.split("."))


def test_a_single_file_is_a_package():
    assert list(pydocs.files_of(["this"])) == ["this"]


def test_fingerprint_follows_the_sources(package, tmp_path):
    before = fingerprint(package)
    assert fingerprint(package) == before
    module = tmp_path / "site" / package / "shapes.py"
    module.write_text(SHAPES.replace("metres", "inches"))  # of equal length
    after = fingerprint(package)
    assert after != before
    (module.parent / "test_more.py").write_text(HIDDEN)
    assert fingerprint(package) == after


def test_records_hang_together():
    source = records("json,email")
    passages, queries, judgements = (
        list(stream()) for stream in (source.passages, source.queries, source.judgements)
    )
    ids = [p.id for p in passages]
    assert ids == sorted(set(ids))
    assert len({p.text for p in passages}) == len(passages) > 30
    assert all(p.title == p.id and p.text for p in passages)
    assert len({q.text for q in queries}) == len(queries)
    assert {j.passage_id for j in judgements} == set(ids)
    assert {j.query_id for j in judgements} == {q.id for q in queries}
    assert {j.grade for j in judgements} == {1}
    assert source.inputs == {"pydocs": fingerprint("email,json")}
    assert list(source.passages()) == passages


def test_opened_collections_are_cached(tmp_path):
    from hardneg.data.importing import open_data

    first = open_data("pydocs:json,email", cache=tmp_path)
    with uncalled(pydocs, "extract", control=lambda: open_data("pydocs:json", cache=tmp_path)):
        assert open_data("pydocs:email,json", cache=tmp_path).digest == first.digest
