"""Indexes of passages behind one face: exact search of stored vectors, and what faiss approximates or compresses.

An index of faiss is an artefact: its digest is checked before faiss, which is native code, reads a byte of it.
faiss only proposes passages. A score is what it is in exact search: the dot product of the query and the vector
that the index has of the passage, added in float64 by one fixed tree and rounded to float32. So no score depends
on the batch, and kinds that keep the vectors whole give those of exact search, bit for bit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardneg.errors import ArtifactError, TrustError
from hardneg.models.bi_encoder import BiEncoder
from hardneg.process.threads import load_faiss
from hardneg.records import Float32, Int32, Int64, Run, Side, Unit, offsets_of
from hardneg.search.embedding_store import Embeddings
from hardneg.search.exact import ExactIndex, as_tensor
from hardneg.search.retrieve import dot_products, search_documents
from hardneg.search.runs import check_request
from hardneg.search.vectors import check_norms, vector_norms
from hardneg.storage.artifacts import Manifest, open_artifact, reading
from hardneg.storage.safe_read import holds_pickle

log = logging.getLogger(__name__)

KIND, FILE = "index", "index.faiss"
Kind = Literal["flat", "ivf", "hnsw", "pq", "ivfpq"]
HEADS = {"flat": b"IxFI", "ivf": b"IwFl", "hnsw": b"IHNf", "pq": b"IxPq", "ivfpq": b"IwPQ"}  # of faiss' files
PAIRS = 4096  # scored at a time: their vectors stay in the processor's cache

# What model and index must share: what it is of, for people, and what to do about it.
SHARED = {
    "dim": ("dimension", "build the index with this model"),
    "similarity": ("similarity", "build the index with this model"),
    "tokenizer": ("tokenizer", "build the index with this model"),
    "encoder": ("model", "build the index with this model"),
    "tokens": ("texts", "build the index over this collection"),
}


class PassageIndex(Protocol):
    """What searches passages, and knows the vectors that it scores."""

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Scores [Q, k] float32 and rows [Q, k] int32, best first, ties by row; -1 where there are fewer hits."""
        ...

    def vectors(self, rows: NDArray[np.integer]) -> Tensor:
        """[n, dim] float32 the vectors of these passages as the index scores them."""
        ...


class StoredIndex:
    """Exact search of stored embeddings."""

    def __init__(self, embeddings: Embeddings, device: str | torch.device = "cpu") -> None:
        self.embeddings = embeddings
        self.exact = ExactIndex(embeddings.shards, max_norm=embeddings.max_norm, device=device)

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """See :class:`PassageIndex`."""
        return self.exact.search(queries, k)

    def vectors(self, rows: NDArray[np.integer]) -> Tensor:
        """See :class:`PassageIndex`."""
        return as_tensor(self.embeddings.rows(rows)).float()


class FaissIndex:
    """An index of faiss, opened from an artefact and memory-mapped.

    Raises
    ------
    ArtifactError : it is damaged, cut short, or not what its manifest says.
    SettingsError : faiss is not installed.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.manifest = path, open_artifact(path, KIND)
        self.index = read_faiss(path / FILE, self.manifest)
        set_effort(self.index, self.manifest.settings["options"])
        self.dtype = getattr(torch, self.manifest.settings["dtype"])

    def __len__(self) -> int:
        return int(self.index.ntotal)

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """See :class:`PassageIndex`; the queries are rounded as the passages were.

        Raises
        ------
        ArtifactError, NumericError : queries of another dimension; one that is not finite, or zero.
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
        return torch.from_numpy(scores), torch.from_numpy(rows.astype(np.int32))

    def vectors(self, rows: NDArray[np.integer]) -> Tensor:
        """See :class:`PassageIndex`: as they are kept, or reconstructed from their codes."""
        return torch.from_numpy(self.index.reconstruct_batch(np.asarray(rows, np.int64)))

    def _scores(self, queries: Float32, rows: Int64) -> Float32:
        """[Q, k] scores of proposed passages; minus infinity where there is none."""
        scores = np.full(rows.shape, -np.inf, np.float32)
        which, place = np.nonzero(rows >= 0)
        for start in range(0, len(which), PAIRS):
            pairs = which[start : start + PAIRS], place[start : start + PAIRS]
            scores[pairs] = dot_products(queries[pairs[0]], self.vectors(rows[pairs]).numpy())
        return scores


def read_faiss(file: Path, manifest: Manifest) -> Any:
    """The index in a file whose digest was checked; of the kind, size and metric that its manifest says."""
    kind, facts, faiss = manifest.settings["kind"], manifest.facts, load_faiss()
    fix = "build the index again"
    with reading(file), open(file, "rb") as stream:
        head = stream.read(4)
    if holds_pickle(file):
        what = "a pickle, which can run code, where an index is expected"
        raise TrustError("UNSAFE_PICKLE", what, fix, path=file)
    if head != HEADS[kind]:
        what = f"the file begins with {head!r}, one of kind {kind} with {HEADS[kind]!r}"
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
    """What a fault of faiss says, without the place in its source."""
    return str(fault).strip().splitlines()[-1].strip() if str(fault).strip() else type(fault).__name__


def set_effort(index: Any, options: Mapping[str, int]) -> None:
    """How much of the index a search looks at; and that rows can be turned back into vectors."""
    if "probes" in options:
        index.nprobe = options["probes"]
        index.make_direct_map()
    if "ef" in options:
        index.hnsw.efSearch = options["ef"]


# ---------------------------------------------------------------- searching


def index_run(
    index: PassageIndex,
    vectors: Tensor,
    query_rows: Int32,
    k: int,
    collection: str,
    *,
    documents: Int64 | None = None,
) -> Run:
    """The run of queries over an index. Lists may be shorter than ``k``; how many are is said aloud.

    Parameters
    ----------
    documents : [D + 1] where the chunks of each document begin among the passages of the index: the run is of
        documents then, each with the score of the best of its chunks that were found.
    """
    unit: Unit = "passage" if documents is None else "document"
    if documents is None:
        scores, rows = (part.cpu().numpy() for part in index.search(vectors, k))
        found = rows >= 0
    else:
        scores, rows, found = search_documents(index.search, vectors, k, documents, whole=False)
    lengths = found.sum(axis=1)
    if short := int((lengths < found.shape[1]).sum()):
        log.warning(
            "%s of %s queries found fewer than %d passages (%d at least): the index looks at too few of them",
            f"{short:,}",
            f"{len(lengths):,}",
            found.shape[1],
            lengths.min(),
        )
    flat = rows[found], scores[found]
    return Run(np.asarray(query_rows, np.int32), offsets_of(lengths), *flat, unit, collection)


# ---------------------------------------------------------------- model and index


def traits(encoder: BiEncoder, side: Side) -> dict[str, str]:
    """What decides, beside their size, whether vectors can be compared; stored with them."""
    similarity = "cosine" if encoder.settings.normalize else "dot product"
    return {"similarity": similarity, "tokenizer": encoder.template(side).tokenizer}


def check_index(index: FaissIndex, encoder: BiEncoder, *, digest: str, tokens: str | None = None) -> None:
    """Refuse an index of other passages or another model, with both values.

    Parameters
    ----------
    encoder : searches with its query side; what the index was built with must be its passage side.
    digest, tokens : identities of the passage side, and of the passages' token sequences (None: not compared).
    """
    theirs = {**index.manifest.facts, **index.manifest.inputs}
    ours = {"dim": encoder.dim, **traits(encoder, "passage"), "encoder": digest, "tokens": tokens}
    for name, (what, fix) in SHARED.items():
        if (found := theirs.get(name)) is not None and ours[name] is not None and found != ours[name]:
            values = [f"{value[:12]}…" if len(value := str(one)) > 32 else value for one in (found, ours[name])]
            text = f"an index of {what} {values[0]}, searched with {what} {values[1]}"
            raise ArtifactError("OTHER_INDEX", text, fix, path=index.path)


def name_index(index: PassageIndex | None) -> dict[str, Any]:
    """Kind, options and digest of an index of faiss, by which whoever searches finds it again; {} of any other."""
    if not isinstance(index, FaissIndex):
        return {}
    settings = index.manifest.settings
    return {"kind": settings["kind"], "options": dict(settings["options"]), "digest": index.manifest.digest}
