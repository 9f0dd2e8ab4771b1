"""The functions behind ``import hardneg`` and the command line.

Everywhere, ``data`` is a canonical collection's folder, ``[format:]SOURCE`` or an open
:class:`~hardneg.data.collection.Collection`; ``model`` is a folder, a hub name or ``package:NAME``; ``cache`` is
where derived stores live (default ``$HARDNEG_CACHE``, else ``~/.cache/hardneg``); ``device`` is ``cpu``, ``cuda``,
``cuda:1``, ... (default: CUDA where there is one). Faults are raised as :class:`~hardneg.errors.HardnegError`.
"""

from hardneg.data.collection import Collection
from hardneg.data.importing import import_collection
from hardneg.errors import HardnegError
from hardneg.integrations.following import follow
from hardneg.models.code import allow_code
from hardneg.models.loading import load_encoder
from hardneg.negatives.candidates import Filters
from hardneg.negatives.pool import NegativePool, load_pool
from hardneg.operations.cleaning import clean
from hardneg.operations.doctor import doctor
from hardneg.operations.evaluation import compare, evaluate
from hardneg.operations.exporting import export_pool
from hardneg.operations.indexing import index
from hardneg.operations.inspection import inspect, pool_stats
from hardneg.operations.keeping import verify
from hardneg.operations.pools import mine
from hardneg.operations.recipes import (
    plan,
    settings_of,
    train,
    train_adore,
    train_ance,
    train_ance_tele,
    train_star,
    train_warmup,
)
from hardneg.operations.retrieval import encode, search_split, search_text
from hardneg.operations.starting import Splits
from hardneg.recipes.ance_tele import AnceTele

__all__ = [
    "AnceTele",
    "Collection",
    "Filters",
    "HardnegError",
    "NegativePool",
    "Splits",
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
