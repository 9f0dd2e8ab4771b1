"""Docstrings begin with a whole sentence that has a subject, and neither they nor the pages hold riddles."""

import ast
import re
from pathlib import Path

import pytest

import hardneg

SOURCE = Path(hardneg.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FEWEST = 4  # words of a first sentence
# Beginnings that leave the reader to guess what is spoken of.
PRONOUNS = re.compile(r"(?:It|They|Them|This|That|These|Those|The same|What it|What they)\b(?!-)")
# The method of a protocol, described where the protocol is.
REFERENCE = re.compile(r"See :(?:class|meth|func|attr|mod):`")
# Riddles that have stood in a docstring or on a page.
RIDDLES = ("none not whole", "made now at the latest", "says its recall")
RIDDLES_OF_DOCSTRINGS = (*RIDDLES, "the same of ", "it is kept.")


def documented(tree, prefix="", public=True):
    """The (name, line, docstring) of every public class, function and method below a node."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name, seen = prefix + node.name, public and not node.name.startswith("_")
            again = any(isinstance(one, ast.Name) and one.id == "overload" for one in node.decorator_list)
            if seen and not again:  # what it means stands in the function itself
                yield name, node.lineno, ast.get_docstring(node) or ""
            if isinstance(node, ast.ClassDef):
                yield from documented(node, f"{name}.", seen)


def first_sentence(docstring):
    """The text up to the first full stop that ends a sentence, on one line."""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<!e\.g)(?<!i\.e)(?<!al)(?<!Eq)(?<!Eqs)(?<!Fig)\.(?=\s|$)", paragraph)[0]


def riddles_in(text, riddles=RIDDLES):
    plain = " ".join(text.split()).lower()
    return [riddle for riddle in riddles if riddle in plain]


def faults_of(source):
    """What is wrong with the words of a module, a line for each fault."""
    faults = []
    for name, line, docstring in documented(ast.parse(source)):
        if REFERENCE.match(docstring):
            continue
        sentence = first_sentence(docstring)
        if len(sentence.split()) < FEWEST:
            faults.append(f"{line}: {name}: fewer than {FEWEST} words: {sentence!r}")
        elif PRONOUNS.match(sentence):
            faults.append(f"{line}: {name}: begins with a pronoun: {sentence!r}")
        faults += [f"{line}: {name}: {riddle!r}" for riddle in riddles_in(docstring, RIDDLES_OF_DOCSTRINGS)]
    return faults


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_first_sentences_have_a_subject_and_say_something(path):
    assert faults_of(path.read_text("utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_hold_no_riddles(page):
    assert riddles_in(page.read_text("utf-8")) == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_hold_no_marks_of_a_merge(page):
    marks = re.findall(r"^(?:<{7} .*|={7}|>{7} .*)$", page.read_text(), re.MULTILINE)
    assert not marks


@pytest.mark.parametrize(
    ("docstring", "fault"),
    [
        ("It is read by all of them.", "pronoun"),
        ("They, made now at the latest.", "pronoun"),
        ("The same for a run of documents.", "pronoun"),
        ("What it is made of, by name.", "pronoun"),
        ("By passage row.", "fewer"),
        ("", "fewer"),
        ("The memory of a device, or the same of a process.", "the same of"),
    ],
)
def test_a_riddle_is_found(docstring, fault):
    source = (
        f'class Store:\n    """A store of vectors by row."""\n    def read(self):\n        """{docstring}"""\n'
    )
    (found,) = [line for line in faults_of(source) if fault in line]
    assert found.startswith("3: Store.read: ")


def test_good_sentences_and_private_names_pass():
    source = '''
def read(rows):
    """Read the vectors of ``rows`` [n], e.g. of passages."""


class Index:
    """This-or-that is no pronoun of its own."""

    def _helper(self):
        """It."""


class Stored(Index):
    """An index over stored vectors."""

    def search(self):
        """See :class:`Index`."""


class _Hidden:
    """It."""

    def search(self):
        """They."""
'''
    assert faults_of(source) == []
