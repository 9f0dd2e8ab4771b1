"""A collection of Python functions, from the source files of installed packages: real code on any machine.

The first paragraph of a function's docstring is a query, and its code without the docstring is the positive
passage. Python normalises the code, so comments are gone. Source files are parsed and never imported.

    python benchmarks/code_search.py stdlib,numpy,scipy build/code

writes a folder in BEIR's form. A hash of their names makes 8 % of the queries test, 4 %
(or as many as --dev says) dev, and the rest train.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hardneg.data.formats.pydocs import files_of

SHORTEST, LONGEST = 20, 200  # characters of a query
LEAST, MOST = 60, 2000  # characters of a passage; longer ones are cut
TEST = 8  # percent of the queries


@dataclass(frozen=True)
class Function:
    """A documented function: its dotted name, the first paragraph of its docstring, and its code."""

    name: str
    query: str
    code: str


def functions_of(packages: list[str]) -> list[Function]:
    """The documented functions and methods, in order of modules and lines; equal names or codes stand once."""
    found: list[Function] = []
    names, codes = set[str](), set[str]()
    for module, path in sorted(files_of(packages).items()):
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # templates and the like
            continue
        for function in functions_in(tree, module):
            if function.code not in codes and function.name not in names:
                codes.add(function.code)
                names.add(function.name)
                found.append(function)
    return found


def functions_in(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[Function]:
    """The documented functions of a module or class whose docstring and code are long enough."""
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield from functions_in(child, f"{prefix}.{child.name}")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(child)
            if docstring is None or len(child.body) == 1:
                continue
            query = " ".join(docstring.split("\n\n")[0].split())
            child.body, child.decorator_list = child.body[1:], []
            code = " ".join(ast.unparse(child).split())
            if SHORTEST <= len(query) <= LONGEST and len(code) >= LEAST:
                yield Function(f"{prefix}.{child.name}", query, code)


def split_of(name: str, dev: int) -> str:
    """The split of the query of a function, always the same on every machine; ``dev`` percent are dev."""
    drawn = int(hashlib.sha256(name.encode()).hexdigest(), 16) % 100
    return "test" if drawn < TEST else "dev" if drawn < TEST + dev else "train"


def write(functions: list[Function], folder: Path, dev: int) -> dict[str, int]:
    """Write a collection; returns how many passages and queries it has.

    A query that several functions share would have positives that nobody judged, so only their passages stay.
    """
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    askers = Counter(function.query for function in functions)
    asked = [function for function in functions if askers[function.query] == 1]
    passages = [{"_id": f.name, "title": "", "text": f.code[:MOST]} for f in functions]
    queries = [{"_id": f"q:{f.name}", "text": f.query} for f in asked]
    for name, rows in (("corpus", passages), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    counts = {"passages": len(passages)}
    for split in ("train", "dev", "test"):
        judged = [f"q:{f.name}\t{f.name}\t1\n" for f in asked if split_of(f.name, dev) == split]
        counts[split] = len(judged)
        if judged:
            (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", help="stdlib, and packages as they are imported, with commas between them")
    parser.add_argument("folder", type=Path, help="where the collection is written")
    parser.add_argument("--dev", type=int, default=4, help="percent of the queries (default: 4)")
    given = parser.parse_args()
    print(write(functions_of(given.packages.split(",")), given.folder, given.dev))
