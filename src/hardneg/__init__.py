"""hardneg: train dense retrievers with hard negatives, and see what training does to them.

Importing this loads no third-party package; each name loads what it needs when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what editors and type checkers see
    from hardneg.api import (
        AnceTele,
        Collection,
        Filters,
        HardnegError,
        NegativePool,
        Splits,
        allow_code,
        clean,
        compare,
        doctor,
        encode,
        evaluate,
        export_pool,
        follow,
        import_collection,
        index,
        inspect,
        load_encoder,
        load_pool,
        mine,
        plan,
        pool_stats,
        search_split,
        search_text,
        settings_of,
        train,
        train_adore,
        train_ance,
        train_ance_tele,
        train_star,
        train_warmup,
        verify,
    )

__version__ = "0.1.0"

_HOMES = {
    "AnceTele": "hardneg.recipes.ance_tele",
    "Collection": "hardneg.data.collection",
    "Filters": "hardneg.negatives.candidates",
    "HardnegError": "hardneg.errors",
    "NegativePool": "hardneg.negatives.pool",
    "Splits": "hardneg.operations.starting",
    "allow_code": "hardneg.models.code",
    "clean": "hardneg.operations.cleaning",
    "compare": "hardneg.operations.evaluation",
    "doctor": "hardneg.operations.doctor",
    "encode": "hardneg.operations.retrieval",
    "evaluate": "hardneg.operations.evaluation",
    "follow": "hardneg.integrations.following",
    "export_pool": "hardneg.operations.exporting",
    "import_collection": "hardneg.data.importing",
    "index": "hardneg.operations.indexing",
    "inspect": "hardneg.operations.inspection",
    "load_encoder": "hardneg.models.loading",
    "load_pool": "hardneg.negatives.pool",
    "mine": "hardneg.operations.pools",
    "plan": "hardneg.operations.recipes",
    "pool_stats": "hardneg.operations.inspection",
    "search_split": "hardneg.operations.retrieval",
    "search_text": "hardneg.operations.retrieval",
    "settings_of": "hardneg.operations.recipes",
    "train": "hardneg.operations.recipes",
    "train_adore": "hardneg.operations.recipes",
    "train_ance": "hardneg.operations.recipes",
    "train_ance_tele": "hardneg.operations.recipes",
    "train_star": "hardneg.operations.recipes",
    "train_warmup": "hardneg.operations.recipes",
    "verify": "hardneg.operations.keeping",
}

__all__ = [
    "AnceTele",
    "Collection",
    "Filters",
    "HardnegError",
    "NegativePool",
    "Splits",
    "__version__",
    "allow_code",
    "clean",
    "compare",
    "doctor",
    "encode",
    "evaluate",
    "export_pool",
    "follow",
    "import_collection",
    "index",
    "inspect",
    "load_encoder",
    "load_pool",
    "mine",
    "plan",
    "pool_stats",
    "search_split",
    "search_text",
    "settings_of",
    "train",
    "train_adore",
    "train_ance",
    "train_ance_tele",
    "train_star",
    "train_warmup",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hardneg' has no attribute '{name}'")
    if _HOMES[name] != "hardneg.errors":
        importlib.import_module("hardneg.process.system").check_system()
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
