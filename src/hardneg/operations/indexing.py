"""Approximate and compressed indexes over stored embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hardneg.operations.opening import Place, check_new


def index(embeddings: Place, out: Place, *, kind: str = "flat", **options: int) -> dict[str, Any]:
    """Build an index over the embeddings that :func:`encode` made, and measure its recall against exact search.

    Parameters
    ----------
    kind : ``flat``, ``ivf``, ``hnsw``, ``pq`` or ``ivfpq``.
    options : of the kind, see :func:`hardneg.search.ann.build_index`.

    Returns
    -------
    ``index`` (the place), ``kind``, ``options``, ``rows``, ``dim``, ``bytes`` and ``recall``.

    Raises
    ------
    SettingsError : an option is wrong, or something is at ``out`` already.
    ArtifactError : the embeddings are damaged.
    """
    check_new(Path(out))
    from hardneg.search.ann import build_index
    from hardneg.search.embedding_store import Embeddings

    manifest = build_index(Embeddings.open(embeddings), Path(out), kind, **options)  # type: ignore[arg-type]
    return {"index": str(out), **manifest.settings, **manifest.facts}
