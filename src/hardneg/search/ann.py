"""Indexes of faiss, which approximate or compress, as artefacts, and the function that opens an index.

An index of faiss is an artefact: its digest is checked before faiss, which is native code, reads a byte of it.
faiss only proposes passages. A score is computed as in exact search: it is the dot product of the query and the
vector that the index has of the passage, added in float64 by one fixed tree and rounded to float32. So no score
depends on the batch, and a kind of index that keeps whole vectors gives the scores of exact search, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardneg.errors import ArtifactError, TrustError
from hardneg.models.bi_encoder import BiEncoder
from hardneg.process.progress import Tick, silent
from hardneg.process.threads import load_faiss, threads_of_faiss
from hardneg.records import Float32, Int64, Side
from hardneg.search.retrieve import Index, dot_products
from hardneg.search.runs import check_request
from hardneg.search.vectors import check_norms, vector_norms
from hardneg.storage.artifacts import Manifest, is_published, open_artifact, read_manifest, reading
from hardneg.storage.safe_read import holds_pickle

KIND, FILE = "index", "index.faiss"
Kind = Literal["flat", "ivf", "hnsw", "pq", "ivfpq"]
# The first bytes of faiss' file of each kind.
HEADS = {"flat": b"IxFI", "ivf": b"IwFl", "hnsw": b"IHNf", "pq": b"IxPq", "ivfpq": b"IwPQ"}
PAIRS = 4096  # scored at a time: their vectors stay in the processor's cache

# The facts that a model and an index must share: the word for each in a message, and the advice where they differ.
SHARED = {
    "dim": ("dimension", "build the index with this model"),
    "similarity": ("similarity", "build the index with this model"),
    "tokenizer": ("tokenizer", "build the index with this model"),
    "encoder": ("model", "build the index with this model"),
    "tokens": ("texts", "build it over this collection, with the lengths and prompts of the search"),
}


class FaissIndex:
    """An index of faiss, which is opened from its artefact and memory-mapped.

    Raises
    ------
    ArtifactError : it is damaged, cut short, or not what its manifest says.
    SettingsError : faiss is not installed.
    """

    nested = False

    def __init__(self, path: Path) -> None:
        self.path, self.manifest = path, open_artifact(path, KIND)
        self.index = read_faiss(path / FILE, self.manifest)
        set_effort(self.index, self.manifest.settings["options"])
        self.dtype = getattr(torch, self.manifest.settings["dtype"])

    def __len__(self) -> int:
        return int(self.index.ntotal)

    @property
    def digest(self) -> str:
        """See :class:`~hardneg.search.retrieve.Index`."""
        return self.manifest.digest

    def describe(self) -> dict[str, Any]:
        """See :class:`~hardneg.search.retrieve.Index`."""
        settings = self.manifest.settings
        return {"kind": settings["kind"], "options": dict(settings["options"]), "digest": self.digest}

    def made_from(self) -> dict[str, Any]:
        """See :class:`~hardneg.search.retrieve.Index`."""
        return {**self.manifest.facts, **self.manifest.inputs}

    @threads_of_faiss()
    def search(self, queries: Tensor, k: int, *, progress: Tick = silent) -> tuple[Tensor, Tensor]:
        """See :class:`~hardneg.search.retrieve.Index`; the queries are rounded as the passages were.

        Raises
        ------
        ArtifactError, NumericError : the queries have another dimension; a query is not finite, or is zero.
        """
        k = check_request(len(queries), len(self), k)
        if queries.shape[1] != self.index.d:
            what = f"queries have dimension {queries.shape[1]}, the index {self.index.d}"
            raise ArtifactError("OTHER_DIMENSION", what, "encode both with the same model", path=self.path)
        stored = queries.detach().cpu().to(self.dtype).float().contiguous()
        check_norms(vector_norms(stored), "query {}".format)
        rows = self.index.search(stored.numpy(), k)[1]
        scores = self._scores(stored.numpy(), rows)
        order = np.lexsort((rows, -scores), axis=1)
        scores, rows = np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
        progress(len(queries), len(queries))
        return torch.from_numpy(scores), torch.from_numpy(rows.astype(np.int32))

    @threads_of_faiss()
    def vectors(self, rows: NDArray[np.integer]) -> Tensor:
        """See :class:`~hardneg.search.retrieve.Index`: as they are kept, or reconstructed from their codes."""
        return torch.from_numpy(self.index.reconstruct_batch(np.asarray(rows, np.int64)))

    def _scores(self, queries: Float32, rows: Int64) -> Float32:
        """The scores [Q, k] of proposed passages ``rows`` [Q, k]; minus infinity where a row is -1."""
        scores = np.full(rows.shape, -np.inf, np.float32)
        which, place = np.nonzero(rows >= 0)
        for start in range(0, len(which), PAIRS):
            pairs = which[start : start + PAIRS], place[start : start + PAIRS]
            scores[pairs] = dot_products(queries[pairs[0]], self.vectors(rows[pairs]).numpy())
        return scores


OPENERS: dict[str, Callable[[Path], Index]] = {KIND: FaissIndex}


def open_index(path: str | Path) -> Index:
    """Open the index at ``path`` as the kind that its manifest names.

    Raises
    ------
    ArtifactError : nothing is there, or something that is no index; the index is damaged, or cut short.
    TrustError : a pickle stands in the index's place.
    SettingsError : the package that searches it is not installed.
    """
    kind = read_manifest(path).kind if is_published(path := Path(path)) else KIND
    return OPENERS.get(kind, FaissIndex)(path)  # FaissIndex refuses a folder that is no index


def read_faiss(file: Path, manifest: Manifest) -> Any:
    """Read faiss' index from a file whose digest was checked.

    Its kind, number of rows, dimension and metric must be those of the manifest, else it is refused.
    """
    kind, facts, faiss = manifest.settings["kind"], manifest.facts, load_faiss()
    fix = "build the index again"
    with reading(file), open(file, "rb") as stream:
        head = stream.read(4)
    if holds_pickle(file):
        what = "a pickle, which can run code, where an index is expected"
        raise TrustError("UNSAFE_PICKLE", what, fix, path=file)
    if head != HEADS[kind]:
        what = f"the file begins with {head!r}, an index of kind {kind} with {HEADS[kind]!r}"
        raise ArtifactError("CORRUPT", what, fix, path=file)
    mapped = faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY if "ivf" in kind else faiss.IO_FLAG_MMAP_IFC
    try:
        index = faiss.read_index(str(file), mapped)
    except RuntimeError as fault:
        what = f"faiss cannot read it ({last_line(fault):.200})"
        raise ArtifactError("CORRUPT", what, fix, path=file) from fault
    if (index.ntotal, index.d, index.metric_type) != (facts["rows"], facts["dim"], faiss.METRIC_INNER_PRODUCT):
        what = f"{index.ntotal:,} × {index.d}, the manifest says {facts['rows']:,} × {facts['dim']}"
        raise ArtifactError("CORRUPT", what, fix, path=file)
    return index


def last_line(fault: Exception) -> str:
    """The last line of faiss's message about a fault, without the place in its source."""
    return str(fault).strip().splitlines()[-1].strip() if str(fault).strip() else type(fault).__name__


def set_effort(index: Any, options: Mapping[str, int]) -> None:
    """Set how much of faiss' ``index`` a search visits.

    ``probes`` is the number of lists, ``ef`` that of candidates in a graph. An index of lists also gets a map from
    rows to their vectors.
    """
    if "probes" in options:
        index.nprobe = options["probes"]
        index.make_direct_map()
    if "ef" in options:
        index.hnsw.efSearch = options["ef"]


# ---------------------------------------------------------------- model and index


def traits(encoder: BiEncoder, side: Side) -> dict[str, str]:
    """The similarity and the tokenizer of an encoder, which embeddings store as facts.

    Vectors can only be compared where both are equal; their dimension is stored anyway.
    """
    similarity = "cosine" if encoder.settings.normalize else "dot product"
    return {"similarity": similarity, "tokenizer": encoder.template(side).tokenizer}


def check_index(
    index: Index, encoder: BiEncoder, *, digest: str, tokens: Callable[[], str] | str | None = None
) -> None:
    """Refuse an index of other passages or of another model; the fault says both values.

    Parameters
    ----------
    encoder : its query side searches; the index must have been built with its passage side.
    digest, tokens : identities of the passage side, and of the passages' token sequences (None: not compared). If
        ``tokens`` is a function, it is called last, since it may tokenise the passages.
    """
    ours = {"dim": encoder.dim, **traits(encoder, "passage"), "encoder": digest}
    theirs = index.made_from()
    for name, (what, fix) in SHARED.items():
        wanted = ours.get(name)
        if name == "tokens":
            wanted = tokens() if callable(tokens) else tokens
        if (found := theirs.get(name)) is not None and wanted is not None and found != wanted:
            values = [f"{value[:12]}…" if len(value := str(one)) > 32 else value for one in (found, wanted)]
            text = f"the index is of {what} {values[0]}, the search of {what} {values[1]}"
            raise ArtifactError("OTHER_INDEX", text, fix, path=index.path)
