"""Run the code cells of a notebook in order, without Jupyter; ``--write`` keeps what they print in the notebook.

    python examples/run.py examples/own_data.ipynb --set STEPS=2 --set 'MODEL="my-model"'

``--set`` gives other values to names of the cell that is tagged ``parameters``. ``--page FILE`` writes the
notebook as a Markdown page of the documentation. The output of a cell that is tagged ``texts`` is not kept: it
holds texts of a collection, which are not ours to publish.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import io
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def source_of(cell: Mapping[str, Any]) -> str:
    """Join the lines of a cell."""
    return "".join(cell["source"])


def with_values(source: str, values: Mapping[str, str]) -> str:
    """Put other values into the assignments of a cell; raises ValueError for a name that it does not assign."""
    tree = ast.parse(source)
    assigned = {node.targets[0].id: node for node in tree.body if isinstance(node, ast.Assign)}  # type: ignore[attr-defined]
    if unknown := values.keys() - assigned.keys():
        raise ValueError(f"the cell of parameters does not assign {sorted(unknown)}")
    for name, text in values.items():
        assigned[name].value = ast.parse(text, mode="eval").body
    return ast.unparse(tree)


def run_cell(source: str, names: dict[str, Any]) -> str:
    """Run a cell as a notebook does, and return its output; an expression at its end is shown, too."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
            if value is not None:
                sys.stdout.write(f"{value!r}\n")
    return printed.getvalue()


def run(notebook: dict[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """Run a notebook and store the outputs in its cells. Returns the names that the cells defined."""
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, 1):
        source = source_of(cell)
        if "parameters" in cell["metadata"].get("tags", ()):
            source = with_values(source, values) if values else source
        text = run_cell(source, names)
        cell["execution_count"] = number
        lines = text.splitlines(keepends=True)
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if text else []
    return names


def to_keep(notebook: dict[str, Any]) -> dict[str, Any]:
    """The form in which a notebook is kept after a run: without texts, and with the digest of its code."""
    for cell in notebook["cells"]:
        if "texts" in cell["metadata"].get("tags", ()):
            cell["outputs"] = []
    return notebook | {"metadata": notebook.get("metadata", {}) | {"printed_by": digest_of(notebook)}}


def digest_of(notebook: Mapping[str, Any]) -> str:
    """The digest of a notebook's code; the stored outputs are current as long as it stays the same."""
    code = [source_of(cell) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256("\0".join(code).encode()).hexdigest()


def page_of(notebook: Mapping[str, Any], name: str) -> str:
    """Write a notebook as Markdown: text, code, and what the code printed."""
    parts = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            parts.append(source_of(cell))
            continue
        parts.append(f"```python\n{source_of(cell)}\n```")
        printed = "".join(line for output in cell["outputs"] for line in output.get("text", ()))
        parts += [f"```text\n{printed.rstrip()}\n```"] if printed.strip() else []
    note = f"<!-- This page is made from `examples/{name}` by `make notebooks`. Change the notebook. -->"
    title, _, rest = parts[0].partition("\n")
    return "\n\n".join((title, note, rest.strip(), *parts[1:])) + "\n"


def main(arguments: Iterable[str] | None = None) -> None:
    """Run a notebook, or write its page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="values")
    parser.add_argument("--write", action="store_true", help="keep what the cells print in the notebook")
    parser.add_argument("--page", type=Path, help="write this page from the notebook, and run nothing")
    given = parser.parse_args(None if arguments is None else list(arguments))
    notebook = json.loads(given.notebook.read_text("utf-8"))
    if given.page is not None:
        given.page.write_text(page_of(notebook, given.notebook.name), "utf-8")
        return
    run(notebook, dict(value.split("=", 1) for value in given.values))
    if given.write:
        given.notebook.write_text(json.dumps(to_keep(notebook), indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
