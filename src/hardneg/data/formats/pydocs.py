"""A collection from the docstrings of installed Python packages: real text on any machine, no download.

The first paragraph of a docstring is a query ("Return the larger of two numbers."), the rest of the docstring is
its positive passage, and the dotted name is the passage's title. Source files are parsed and never imported, so no
code of a package runs.
"""

from __future__ import annotations

import ast
import functools
import gc
import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from hashlib import sha256
from pathlib import Path

from hardneg.data.record_source import JudgementRecord, PassageRecord, QueryRecord, Source
from hardneg.errors import InputError
from hardneg.process.threads import usable_threads
from hardneg.storage.artifacts import digest_file, digest_json
from hardneg.surroundings import places_of_modules

log = logging.getLogger(__name__)

DEFAULT = ("matplotlib", "numpy", "scipy", "sklearn", "stdlib", "torch", "transformers")
SHORTEST, LONGEST = 20, 200  # characters of a query

_RULES = 1  # raised when the same source files give other pairs than before
_FILES_A_WORKER = 100  # fewer files are read sooner than a process starts

_TESTS = re.compile(r"tests?|testing|idle_test|conftest|test(?:ing)?_\w*|\w*_test")
_SECTION = (
    r"(?i:Arg(?:ument)?s?|Attributes?|Examples?|Inputs?|Keyword arg(?:ument)?s|Notes?|Outputs?|Parameters?"
    r"|Raises|References|Returns?|See also|Shapes?|Usage|Warnings?|Yields?)\s*(?::|\n\s*-{3})"
)
_FIELD = r":\w+(?: |:\s)"  # :param x: or :return:
_BREAK = re.compile(rf"\n\s*\n|\n\s*(?={_SECTION}|{_FIELD})")
_PARAMETER = r"[*`]*\w+[*`]* ?(?:\((?s:.*?)\) ?)?:\s"  # name (type): meaning
_NO_SENTENCE = re.compile(rf"{_SECTION}|{_FIELD}|{_PARAMETER}|\.\. |>>>|```")
_SIGNATURE = re.compile(r"[\w.]+ ?\(.*\)(?: ?[-=]> ?.*)?[.:]?")
_LINK = re.compile(r"\[([^][]+)\](?:\(http[^)\s]*\)|(?<=`\]))")
_ROLE = re.compile(r"(?::[\w:+-]+:)?`~?([^`<]+?)(?: <[^`>]*>)?`_{0,2}")
_RULE = re.compile(r"(?<!\S)([-=~^*#+.\"'])\1{3,}(?!\S)")
_UNSAFE = re.compile("[\x00-\x08\x0e-\x1f\x7f\ud800-\udfff]")  # not text, or not UTF-8
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case)


@dataclass(frozen=True)
class Entry:
    """One docstring: its dotted name, its module, its first paragraph and the rest."""

    name: str
    module: str
    query: str
    text: str


def records(packages: str) -> Source:
    """The collection of ``<package>,<package>,...``, or of :data:`DEFAULT` if none is named.

    The title and the id of a passage are its dotted name. Files are parsed when the first record is read.
    Raises :class:`InputError` if a package is not installed or has no Python source.
    """
    pairs = functools.cache(lambda: pair(extract(packages_of(packages))))

    def passages() -> Iterator[PassageRecord]:
        texts = {passage.name: passage.text for _, passage in pairs()}
        return (PassageRecord(name, name, text) for name, text in texts.items())

    def queries() -> Iterator[QueryRecord]:
        texts = {query.name: query.query for query, _ in pairs()}
        return (QueryRecord(f"q:{name}", text) for name, text in texts.items())

    def judgements() -> Iterator[JudgementRecord]:
        for query, passage in pairs():
            yield JudgementRecord(split_of(query.module), f"q:{query.name}", passage.name, 1)

    return Source("pydocs", passages, queries, judgements, {"pydocs": fingerprint(packages)})


# ---------------------------------------------------------------- files


def packages_of(listed: str) -> tuple[str, ...]:
    """The packages named in ``<package>,<package>,...``, sorted; by default the installed ones of ``DEFAULT``.

    scikit-learn, which hardneg itself does not need, comes with the extra ``demo``.
    """
    named = tuple(sorted({name.strip() for name in listed.split(",")} - {""}))
    return named or tuple(name for name in DEFAULT if _roots(name))


def fingerprint(packages: str) -> str:
    """A digest of the files that :func:`records` would read; equal digests mean equal collections."""
    files = files_of(packages_of(packages))
    digests = {module: digest_file(path) for module, path in files.items()}
    return digest_json([_RULES, sys.version_info[:2], digests])


def files_of(packages: Iterable[str]) -> dict[str, Path]:
    """The source file of every public module of the packages, by dotted name (raises as :func:`records`)."""
    roots = {package: _roots(package) for package in sorted(set(packages))}
    if missing := [package for package, places in roots.items() if not places]:
        raise InputError(
            "UNKNOWN_PACKAGE",
            f"no Python source is installed for {', '.join(missing)}",
            "name top-level packages as one imports them (sklearn, not scikit-learn), or stdlib;"
            " `python -m pip list` shows what is installed",
        )
    found: dict[str, Path] = {}
    for package, places in roots.items():
        for place in places:
            for module, path in _modules("" if package == "stdlib" else package, place):
                found.setdefault(module, path)
    return found


def _roots(package: str) -> list[Path]:
    """The folders, or the only file, of a top-level package; looking its name up runs none of its code."""
    if package == "stdlib":
        return [Path(sysconfig.get_path("stdlib"))]
    try:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
    except ValueError:  # a module without a spec, such as __main__
        return []
    if spec is not None and spec.submodule_search_locations is not None:
        return [Path(place) for place in spec.submodule_search_locations]
    origin = spec.origin if spec is not None else None  # a file, "built-in" or None
    return [Path(origin)] if origin is not None and origin.endswith(".py") else []


def _modules(package: str, root: Path) -> Iterator[tuple[str, Path]]:
    """Public modules below a folder, and their files."""
    if root.is_file():
        yield package, root
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if _is_public(name))
        place = Path(folder)
        parts = (*([package] if package else []), *place.relative_to(root).parts)
        for stem, suffix in sorted(os.path.splitext(name) for name in files):
            named = (*parts, stem) if stem != "__init__" else parts
            path = place / f"{stem}.py"
            if suffix == ".py" and named and (named is parts or _is_public(stem)) and os.access(path, os.R_OK):
                yield ".".join(named), path


def _is_public(name: str) -> bool:
    """Whether a file or folder of this name can be imported, is not private and holds no tests."""
    return name.isidentifier() and not name.startswith("_") and not _TESTS.fullmatch(name)


# ---------------------------------------------------------------- docstrings


def extract(packages: Iterable[str], *, workers: int | None = None) -> Iterator[Entry]:
    """The documented public names of the packages, ascending by dotted name, each once.

    ``stdlib`` is the standard library. The number of ``workers``, processes that parse (None: as many as threads
    may work), does not change the result. Raises as :func:`records`.
    """
    files = [(module, str(path)) for module, path in files_of(packages).items()]
    workers = min(workers or usable_threads(), 1 + len(files) // _FILES_A_WORKER)
    shards = [files[i::workers] for i in range(workers)]
    if workers == 1:
        results = [_read(shards[0])]
    else:
        with ThreadPoolExecutor(workers) as pool:
            results = list(pool.map(_read_apart, shards))
    if skipped := sum(count for _, count in results):
        log.warning("pydocs: %d of %d source files cannot be parsed: left out", skipped, len(files))
    first: dict[str, Entry] = {}
    for entry in sorted((e for entries, _ in results for e in entries), key=lambda e: (e.name, e.module)):
        first.setdefault(entry.name, entry)
    yield from first.values()


def _read_apart(files: Sequence[tuple[str, str]]) -> tuple[list[Entry], int]:
    """Read files as :func:`_read` does, in another process."""
    # Not a process pool, which forks the caller with its threads or runs the caller's main module again.
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()"],
        input=json.dumps(files).encode(),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": places_of_modules()},
        check=True,
    )
    rows, skipped = json.loads(done.stdout)
    return [Entry(*row) for row in rows], skipped


def serve() -> None:
    """The work of another process: reads files named on stdin and writes their entries to stdout."""
    gc.disable()  # looking for garbage among millions of tree nodes takes as long as parsing, and finds none
    entries, skipped = _read(json.load(sys.stdin))
    json.dump(([astuple(entry) for entry in entries], skipped), sys.stdout)


def _read(files: Sequence[tuple[str, str]]) -> tuple[list[Entry], int]:
    """The entries of these modules, in source order, and how many files cannot be parsed."""
    entries: list[Entry] = []
    skipped = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's sources
        for module, path in files:
            try:
                tree = ast.parse(Path(path).read_bytes())
                documented = [(module, ast.get_docstring(tree)), *_members(tree, module)]
            except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
                skipped += 1
                continue
            entries += filter(None, (_entry(name, module, text) for name, text in documented if text))
    return entries, skipped


def _members(node: ast.AST, prefix: str) -> Iterator[tuple[str, str | None]]:
    """Dotted name and docstring of public classes, functions and methods below a node, in source order."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _DEFINITIONS):
            if child.name.startswith("_"):
                continue
            yield f"{prefix}.{child.name}", ast.get_docstring(child)
            if isinstance(child, ast.ClassDef):
                yield from _members(child, f"{prefix}.{child.name}")
        elif isinstance(child, _BLOCKS):
            yield from _members(child, prefix)


def _entry(name: str, module: str, docstring: str) -> Entry | None:
    """The docstring as an entry; None if its first paragraph does not make a query."""
    head, rest = _cut(docstring)
    if _SIGNATURE.fullmatch(" ".join(head.split())):  # the paragraph only repeats name and arguments
        head, rest = _cut(rest)
    query, text = _plain(head), _plain(rest)
    if not text or not SHORTEST <= len(query) <= LONGEST or query.count(" ") < 2:
        return None
    if _NO_SENTENCE.match(head) or ("." in name and name in query):
        return None
    return Entry(name, module, query, text)


def _cut(docstring: str) -> tuple[str, str]:
    """Split a docstring into its first paragraph and the rest."""
    head, *rest = _BREAK.split(docstring.strip(), maxsplit=1)
    return head, rest[0] if rest else ""


def _plain(text: str) -> str:
    """A text on one line, without the markup of names and links, underlines, and characters that are not text."""
    text = _ROLE.sub(r"\1", _LINK.sub(r"\1", _UNSAFE.sub(" ", text))).replace("`", "")
    return " ".join(_RULE.sub(" ", text).split())


# ---------------------------------------------------------------- pairs


def split_of(module: str) -> str:
    """The split of all entries of a module: train, dev or test (80 : 10 : 10), by a hash of the module's name."""
    tenth = int.from_bytes(sha256(module.encode()).digest()[:8], "little") % 10
    return {8: "dev", 9: "test"}.get(tenth, "train")


def pair(entries: Iterable[Entry]) -> list[tuple[Entry, Entry]]:
    """The pairs (query, positive): each part is the first entry with its words.

    Equal texts are one passage, and equal queries one query. A query or text belongs to the split where it first
    occurs; an entry whose query and text belong to two splits is left out. An entry is also left out if its text
    first occurs under another name: a passage titled ``copy`` does not answer a query about ``deepcopy``, even if
    both have one text. It stays if it has the same query as that name, or is another class's member of that name.
    """
    entries = list(entries)
    splits: dict[tuple[str, str], str] = {}
    for entry in entries:
        splits.setdefault(("query", entry.query), split_of(entry.module))
        splits.setdefault(("text", entry.text), split_of(entry.module))
    queries: dict[str, Entry] = {}
    passages: dict[str, Entry] = {}
    pairs = {}
    for entry in entries:
        if not split_of(entry.module) == splits["query", entry.query] == splits["text", entry.text]:
            continue
        passage = passages.setdefault(entry.text, entry)
        if entry.query == passage.query or _last(entry.name) == _last(passage.name):
            query = queries.setdefault(entry.query, entry)
            pairs[query.name, passage.name] = (query, passage)
    return list(pairs.values())


def _last(name: str) -> str:
    return name.rpartition(".")[2]
