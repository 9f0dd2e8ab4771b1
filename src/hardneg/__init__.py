"""hardneg: train dense retrievers with hard negatives, and see what training does to them.

``import hardneg`` loads no other package; each name loads what it needs when it is first used. ``__init__.pyi``
lists the names. These arguments mean the same in all functions:

- ``data``: a canonical collection's folder, ``[format:]SOURCE``, or an open
  :class:`~hardneg.data.collection.Collection`;
- ``model``: a folder, a hub name, or ``package:NAME``;
- ``cache``: the folder of token stores and other caches (default ``$HARDNEG_CACHE``, else
  ``$XDG_CACHE_HOME/hardneg``, else ``~/.cache/hardneg``);
- ``device``: ``cpu``, ``cuda``, ``cuda:1``, ... (default: CUDA if there is one).

Faults are raised as :class:`~hardneg.errors.HardnegError`.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8"))
_HOMES = {
    name.asname: str(node.module)
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for name in node.names
    if name.asname
}
_HOMES |= {node.name: "hardneg.api.recipes" for node in _STUB.body if isinstance(node, ast.FunctionDef)}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hardneg' has no attribute '{name}'")
    if _HOMES[name] != "hardneg.errors":
        importlib.import_module("hardneg.process.system").check_system()
        importlib.import_module("hardneg.process.cpu").obey_limits()
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
