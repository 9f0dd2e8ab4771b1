"""hardneg: train dense retrievers with hard negatives, and see what training does to them.

Importing this loads no third-party package; each name loads what it needs when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Collection": "hardneg.data.collection",
    "Filters": "hardneg.negatives.candidates",
    "NegativePool": "hardneg.negatives.pool",
    "Splits": "hardneg.api",
    "compare": "hardneg.api",
    "encode": "hardneg.api",
    "evaluate": "hardneg.api",
    "import_collection": "hardneg.data.importing",
    "inspect": "hardneg.api",
    "load_encoder": "hardneg.models.loading",
    "load_pool": "hardneg.negatives.pool",
    "mine": "hardneg.api",
    "search": "hardneg.api",
    "search_text": "hardneg.api",
    "tele_settings": "hardneg.api",
    "train_ance_tele": "hardneg.api",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hardneg' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
