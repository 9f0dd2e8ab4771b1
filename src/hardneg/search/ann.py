"""Approximate and compressed indexes, by faiss, and the exact one, behind one face.

An index is an artefact: its digest is checked before faiss reads a byte of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardneg.artifacts import Manifest, open_artifact, publish
from hardneg.disk import foreign
from hardneg.errors import ArtifactError, InputError, SettingsError
from hardneg.records import Float32, Int32, Int64, Run, Unit, offsets_of, owners, spans
from hardneg.search.checks import check_request
from hardneg.search.embedding_store import Embeddings
from hardneg.search.exact import ExactIndex, as_tensor
from hardneg.search.retrieve import first_documents

KIND, FILE = "index", "index.faiss"
Kind = Literal["flat", "ivf", "hnsw", "pq", "ivfpq"]
DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "flat": {},
    "ivf": {"lists": 0, "probes": 0},
    "hnsw": {"links": 32, "ef_build": 200, "ef": 256},
    "pq": {"subvectors": 0, "bits": 8},
    "ivfpq": {"lists": 0, "probes": 0, "subvectors": 0, "bits": 8},
}
SAMPLED = 200  # passages whose neighbours are searched to measure recall


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
    """An index of faiss, opened from an artefact."""

    def __init__(self, path: Path) -> None:
        self.path, self.manifest = path, open_artifact(path, KIND)  # before faiss reads what it cannot judge
        faiss = load_faiss()
        self.index = faiss.read_index(str(path / FILE))
        facts, options = self.manifest.facts, self.manifest.settings["options"]
        if (self.index.d, self.index.ntotal) != (facts["dim"], facts["rows"]):
            what = f"{self.index.ntotal:,} × {self.index.d}, the manifest says {facts['rows']:,} × {facts['dim']}"
            raise ArtifactError("CORRUPT", what, "build the index again", path=path)
        set_effort(self.index, options)
        self.dtype = getattr(torch, self.manifest.settings["dtype"])

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """See :class:`PassageIndex`; the queries are rounded as the passages were."""
        k = check_request(len(queries), self.index.ntotal, k)
        rounded = queries.detach().to(self.dtype).float().cpu().numpy()
        scores, rows = self.index.search(np.ascontiguousarray(rounded), k)
        order = np.lexsort((rows, -scores), axis=1)
        scores, rows = np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
        return torch.from_numpy(scores), torch.from_numpy(rows.astype(np.int32))

    def vectors(self, rows: NDArray[np.integer]) -> Tensor:
        """See :class:`PassageIndex`: reconstructed from what is stored."""
        return torch.from_numpy(self.index.reconstruct_batch(np.asarray(rows, np.int64)))


def load_faiss() -> Any:
    """faiss, with this process's number of threads; raises :class:`SettingsError` where it is missing."""
    try:
        import faiss
    except ImportError as fault:
        what = "this needs the package faiss-cpu"
        raise SettingsError("PACKAGE_MISSING", what, "pip install faiss-cpu") from fault
    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss


# ---------------------------------------------------------------- building


def build_index(embeddings: Embeddings, out: Path, kind: Kind, **options: int) -> Manifest:
    """Build an index over stored embeddings and publish it, with its recall against exact search.

    Parameters
    ----------
    options : ``lists`` and ``probes`` (ivf, ivfpq), ``links``, ``ef_build`` and ``ef`` (hnsw), ``subvectors`` and
        ``bits`` (pq, ivfpq); 0 or none: chosen by the size of the corpus.

    Raises
    ------
    SettingsError : an option that the kind does not know, or that does not fit the vectors.
    """
    if kind not in get_args(Kind):
        raise SettingsError("BAD_SETTING", f"kind = {kind!r:.40}", f"use {', '.join(get_args(Kind))}")
    if unknown := sorted(set(options) - set(DEFAULTS[kind])):
        known = ", ".join(DEFAULTS[kind]) or "none"
        raise SettingsError("UNKNOWN_SETTING", f"{kind} has no option '{unknown[0]}'", f"its options: {known}")
    chosen = choose(kind, embeddings.n, embeddings.dim, dict(DEFAULTS[kind]) | options)
    faiss = load_faiss()
    vectors = np.ascontiguousarray(embeddings.as_matrix(), np.float32)
    index = make(faiss, kind, embeddings.dim, chosen)
    index.train(vectors)
    index.add(vectors)
    set_effort(index, chosen)
    settings = {"kind": kind, "options": chosen, "dtype": str(embeddings.shards[0].dtype)}
    inputs = {"embeddings": embeddings.digest, **embeddings.manifest.inputs}
    with publish(out, KIND, settings=settings, inputs=inputs) as draft:
        with foreign(draft / FILE) as file:
            faiss.write_index(index, str(file))
        draft.facts.update(
            rows=embeddings.n,
            dim=embeddings.dim,
            bytes=(draft / FILE).stat().st_size,
            recall={f"R@{k}": round(recall(index, embeddings, k), 4) for k in (10, 100)},
        )
    return open_artifact(out, KIND)


def choose(kind: str, n: int, dim: int, options: dict[str, int]) -> dict[str, int]:
    """Options with what was left open chosen, and all of them checked."""
    if "lists" in options:
        options["lists"] = options["lists"] or max(1, min(int(4 * n**0.5), n // 39))
        options["probes"] = options["probes"] or max(1, options["lists"] // 8)
    if "subvectors" in options:
        options["subvectors"] = options["subvectors"] or max(m for m in range(1, dim // 4 + 1) if dim % m == 0)
        if dim % options["subvectors"]:
            what = f"subvectors = {options['subvectors']} does not divide {dim} dimensions"
            raise SettingsError("BAD_SETTING", what, "give a divisor")
        if n < 2 ** options["bits"]:
            what = f"{n} passages are too few for codes of {options['bits']} bits"
            raise InputError("TOO_FEW", what, f"give at least {2 ** options['bits']}, or fewer bits")
    for name, value in options.items():
        if value < 1:
            raise SettingsError("BAD_SETTING", f"{name} = {value}", "give 1 or more")
    return options


def make(faiss: Any, kind: str, dim: int, options: Mapping[str, int]) -> Any:
    """An empty index; inner product, seeded."""
    product = faiss.METRIC_INNER_PRODUCT
    if kind == "flat":
        return faiss.IndexFlatIP(dim)
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(dim, options["links"], product)
        index.hnsw.efConstruction = options["ef_build"]
        return index
    if kind == "pq":
        return faiss.IndexPQ(dim, options["subvectors"], options["bits"], product)
    coarse = faiss.IndexFlatIP(dim)
    if kind == "ivf":
        index = faiss.IndexIVFFlat(coarse, dim, options["lists"], product)
    else:
        sizes = (options["lists"], options["subvectors"], options["bits"])
        index = faiss.IndexIVFPQ(coarse, dim, *sizes, product)
    index.own_fields = True
    coarse.this.disown()
    return index


def set_effort(index: Any, options: Mapping[str, int]) -> None:
    """How much of the index a search looks at; and that rows can be turned back into vectors."""
    if "probes" in options:
        index.nprobe = options["probes"]
        index.make_direct_map()
    if "ef" in options:
        index.hnsw.efSearch = options["ef"]


def recall(index: Any, embeddings: Embeddings, k: int) -> float:
    """Share of the exact top ``k`` that the index finds, over evenly spread passages as queries."""
    rows = np.unique(np.linspace(0, embeddings.n - 1, min(embeddings.n, SAMPLED)).astype(np.int64))
    queries = as_tensor(embeddings.rows(rows))
    k = min(k, embeddings.n)
    _, exact = StoredIndex(embeddings).search(queries, k)
    _, found = index.search(np.ascontiguousarray(queries.float().numpy()), k)
    return float(np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(exact.numpy(), found, strict=True)]))


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
    """The run of queries over an index; a list may be shorter than ``k``.

    Parameters
    ----------
    documents : as of :func:`hardneg.search.retrieve.search_run`; so many chunks are asked for that k documents are
        among them.
    """
    if documents is None:
        scores, rows = (part.cpu().numpy() for part in index.search(vectors, k))
        found = rows >= 0
    else:
        k = check_request(len(vectors), len(documents) - 1, k)
        deep = (k - 1) * int(spans(documents).max()) + 1
        ranked, chunks = (part.cpu().numpy() for part in index.search(vectors, deep))
        owner = np.append(owners(documents), -1).astype(np.int32)  # chunk -1, of short lists, is of document -1
        scores, rows, count = first_documents(ranked, chunks, owner, k)
        found = (rows >= 0) & (np.arange(k) < count[:, None])
    flat: tuple[Int32, Float32] = rows[found], scores[found].astype(np.float32)
    unit: Unit = "passage" if documents is None else "document"
    return Run(np.asarray(query_rows, np.int32), offsets_of(found.sum(axis=1)), *flat, unit, collection)


def check_index(index: FaissIndex, encoder: str, tokens: str) -> None:
    """Refuse an index of other passages or another model, with both values.

    Parameters
    ----------
    encoder, tokens : digests of the passage side that searches, and of the texts.
    """
    inputs = index.manifest.inputs
    for name, ours, what, fix in (
        ("encoder", encoder, "model", "build the index with this model"),
        ("tokens", tokens, "texts", "build the index over this collection"),
    ):
        if inputs.get(name) != ours:
            found = f"an index of {what} {str(inputs.get(name))[:12]}…, searched with {what} {ours[:12]}…"
            raise ArtifactError("OTHER_INDEX", found, fix, path=index.path)
