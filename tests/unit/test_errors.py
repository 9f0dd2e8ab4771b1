"""Faults are one line each, and ``docs/errors.md`` lists every code of the source under its exit status."""

import ast
import functools
import pickle
import re
from functools import partial
from pathlib import Path

import pytest

import hardneg
from hardneg import errors
from hardneg.errors import Faults, HardnegError, InputError, SettingsError
from hardneg.storage.artifacts import SettingsClash

SOURCE = Path(hardneg.__file__).parent
DOCUMENT = Path(__file__).parents[2] / "docs" / "errors.md"
STATUSES = {
    "HardnegError": 70,
    "SettingsError": 2,
    "InputError": 3,
    "ArtifactError": 4,
    "ResourceError": 5,
    "BusyError": 6,
    "NumericError": 7,
    "PeerError": 8,
    "TrustError": 9,
    "Interrupted": 75,
}
CODE = re.compile(r"[A-Z][A-Z0-9_]+")


# ---------------------------------------------------------------- lines


def test_a_fault_is_one_line_with_its_place():
    assert str(HardnegError("A_CODE", "what", "fix")) == "A_CODE: what; fix"
    assert str(InputError("NUL", "a NUL", "remove it", path="a/b.tsv")) == "a/b.tsv: NUL: a NUL; remove it"
    fault = InputError("NUL", "a NUL", "remove it", path=Path("a/b.tsv"), line=7)
    assert str(fault) == "a/b.tsv:7: NUL: a NUL; remove it"
    assert fault.lines == [str(fault)]
    assert (fault.code, fault.what, fault.fix, fault.path, fault.line) == (
        "NUL",
        "a NUL",
        "remove it",
        Path("a/b.tsv"),
        7,
    )


@pytest.mark.parametrize(
    "code",
    [
        "NOT_FOUND",
        "UNKNOWN_FORMAT",
        "WRONG_KIND",
        "UNKNOWN_LANGUAGE",
        "BAD_UNICODE",
        "NOT_FOUND of an import",
        "WRONG_KIND of an import",
    ],
)
def test_docstrings_name_the_class_of_a_fault(tmp_path, code):
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text("{}")
    passages = {"1": "one", "2": "two"}
    call, *given = {
        "NOT_FOUND": (hardneg.open_collection, tmp_path / "nothing"),
        "UNKNOWN_FORMAT": (hardneg.open_collection, "foo:bar"),
        "WRONG_KIND": (hardneg.open_collection, tmp_path),
        "UNKNOWN_LANGUAGE": (partial(hardneg.Collection.from_lists, language="xx"), passages),
        "BAD_UNICODE": (hardneg.Searcher.search, None, "\ud800"),
        "NOT_FOUND of an import": (hardneg.import_collection, tmp_path / "nothing", tmp_path / "to"),
        "WRONG_KIND of an import": (hardneg.import_collection, tmp_path, tmp_path / "to"),
    }[code]
    if code == "BAD_UNICODE":
        collection = hardneg.Collection.from_lists(passages, to=tmp_path / "c")
        given[0] = hardneg.open_searcher(collection, bm25=True, cache=tmp_path / "cache")
    with pytest.raises(HardnegError, match=code.split()[0]) as caught:
        call(*given)
    documented = getattr(call, "func", call)
    assert f"{type(caught.value).__name__}\n" in documented.__doc__.replace(" :", "\n")


def test_a_line_without_a_path_names_no_line():
    assert str(InputError("NUL", "a NUL", "remove it", line=7)) == "NUL: a NUL; remove it"


@pytest.mark.parametrize(
    "space", ["\n", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
)
def test_whatever_is_in_it_a_fault_stays_one_line(space):
    fault = InputError("A", f"found 'a{space}{space}b'", f"do{space}this", path=f"odd{space}name", line=1)
    assert str(fault) == "odd name:1: A: found 'a b'; do this"
    assert len(str(fault).splitlines()) == 1


def test_several_faults_are_a_line_each_and_share_the_first_ones_status():
    nested = Faults([SettingsError("B", "b", "c"), SettingsError("C", "c", "d")])
    faults = Faults([SettingsError("A", "a", "b", path="x.toml"), nested])
    assert faults.lines == str(faults).split("\n") == ["x.toml: A: a; b", "B: b; c", "C: c; d"]
    assert (faults.status, faults.code, faults.path) == (2, "A", "x.toml")
    assert Faults([InputError("A", "a", "b")]).status == 3


@pytest.mark.parametrize("kind", [SettingsClash, Faults, HardnegError])
def test_a_fault_comes_through_another_process_as_it_is(kind):
    fault = InputError("BAD_LINE", "no tab", "write one", path="q.tsv", line=3)
    fault = {SettingsClash: lambda: SettingsClash(Path("x")), Faults: lambda: Faults([fault, fault])}.get(
        kind, lambda: fault
    )()
    again = pickle.loads(pickle.dumps(fault))
    assert (type(again), again.status, again.lines, again.args) == (
        type(fault),
        fault.status,
        fault.lines,
        fault.args,
    )


def test_every_kind_of_fault_has_its_exit_status():
    kinds = {kind.__name__: kind.status for kind in vars(errors).values() if is_fault(kind) and kind is not Faults}
    assert kinds == STATUSES


# ---------------------------------------------------------------- the codes of the source


def is_fault(value):
    return isinstance(value, type) and issubclass(value, HardnegError)


@functools.cache
def trees():
    """The modules of the source by their names."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(("hardneg", *path.relative_to(SOURCE).with_suffix("").parts))
        found[name.removesuffix(".__init__")] = ast.parse(path.read_text("utf-8"))
    return found


@functools.cache
def nodes(tree):
    """All nodes of a tree, top down."""
    return list(ast.walk(tree))


def own_kinds(tree, kinds):
    """The fault classes that a module defines: name -> exit status, its own or that of the class above."""
    for node in nodes(tree):
        if isinstance(node, ast.ClassDef) and (above := {ast.unparse(base) for base in node.bases} & set(kinds)):
            own = [ast.literal_eval(line.value) for line in node.body if ast.unparse(line).startswith("status = ")]
            yield node.name, (own or [kinds[above.pop()]])[0]


def constants(node):
    """The codes that an expression can be."""
    found = [
        each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]
    return [text for text in found if CODE.fullmatch(text)]


def functions_around(tree):
    """For each call, the innermost function it stands in (a later walk is a deeper one)."""
    return {
        call: function
        for function in nodes(tree)
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
    }


def called(call):
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def calls(tree, names):
    return [node for node in nodes(tree) if isinstance(node, ast.Call) and called(node) in names]


def own_codes(tree, kinds):
    """(code, exit status) of the fault classes that give their own code to the class above."""
    for kind in nodes(tree):
        if isinstance(kind, ast.ClassDef) and kind.name in kinds:
            for call in calls(kind, {"__init__"}):
                yield from ((code, kinds[kind.name]) for code in constants(call.args[0]))


def forwarded(tree):
    """Calls whose code stands nowhere in them: the function around, and which of its arguments is the code."""
    if unseen := [call for call in calls(tree, STATUSES) if not constants(call.args[0])]:
        inside = functions_around(tree)
        for call in unseen:
            function = inside[call]
            names = [argument.arg for argument in function.args.args if argument.arg != "self"]
            code = ast.unparse(call.args[0])
            yield call, function.name, names.index(code) if code in names else None


def codes_of_source():
    """All (code, exit status) that the source can raise, and the calls whose code is passed on unseen."""
    modules = trees()
    kinds = dict(STATUSES)
    for tree in modules.values():
        kinds |= dict(own_kinds(tree, kinds))
    found, functions, unseen = set(), {}, []
    for tree in modules.values():
        found |= set(own_codes(tree, kinds))
        found |= {(code, kinds[called(call)]) for call in calls(tree, kinds) for code in constants(call.args[0])}
        for call, function, place in forwarded(tree):
            if place is None:
                unseen.append(ast.unparse(call))
            else:
                functions[function] = (place, kinds[called(call)])
    for tree in modules.values():
        for call in calls(tree, functions):
            place, status = functions[called(call)]
            found |= {(code, status) for argument in call.args[place : place + 1] for code in constants(argument)}
    return found, unseen


def codes_of_the_command_line():
    """(code, exit status) of the lines that the command line itself writes."""
    found = set()
    for name, tree in trees().items():
        if name.startswith("hardneg.cli"):
            for node in nodes(tree):
                if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                    line, status = (ast.unparse(part) for part in node.value.elts)
                    line = "'USAGE: '" if "usage_line" in line else line
                    found |= {(code, int(status)) for code in re.findall(r"\b([A-Z_]{3,}): ", line)}
    return found


def codes_of_the_document():
    found, status = [], None
    for line in DOCUMENT.read_text("utf-8").splitlines():
        if heading := re.match(r"## Exit (\d+)", line):
            status = int(heading[1])
        elif row := re.match(r"\| `(\w+)` \|", line):
            found.append((row[1], status, line))
    return found


def test_every_code_of_the_source_is_documented_under_its_status_and_no_other():
    found, unseen = codes_of_source()
    assert len(found) > 100
    documented = {(code, status) for code, status, _ in codes_of_the_document()}
    assert documented == found | codes_of_the_command_line()
    # a fault that is raised again with a better place says nothing new
    assert [call for call in unseen if "(fault.code, " not in call] == []


def test_the_command_lines_own_codes_are_seen():
    assert codes_of_the_command_line() >= {("USAGE", 2), ("OUT_OF_MEMORY", 5), ("BUG", 70), ("STOPPED", 75)}


def test_the_document_is_in_order_and_says_what_to_do():
    rows = codes_of_the_document()
    assert [(status, code) for code, status, _ in rows] == sorted((status, code) for code, status, _ in rows)
    for code, _, line in rows:
        _, name, meaning, fix, _ = (cell.strip() for cell in line.split("|"))
        assert name == f"`{code}`"
        assert len(meaning) > 10, line
        assert len(fix) > 10, line


def test_the_document_lists_every_exit_status():
    table = DOCUMENT.read_text("utf-8").split("## Exit", 1)[0]
    listed = [int(status) for status in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)]
    assert listed == [0, 2, 3, 4, 5, 6, 7, 8, 9, 70, 75]
