"""Building indexes with faiss: options and their defaults, training on a drawn sample, measured recall."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from hardneg import keyed_random
from hardneg.config import nearest
from hardneg.errors import ArtifactError, HardnegError, InputError, SettingsError, raise_all
from hardneg.process.memory import require
from hardneg.process.progress import track
from hardneg.process.threads import load_faiss, threads_of_faiss
from hardneg.records import Int64
from hardneg.search.ann import FILE, KIND, Kind, set_effort
from hardneg.search.embedding_store import Embeddings
from hardneg.search.retrieve import StoredIndex, dot_products
from hardneg.storage.artifacts import Manifest, open_artifact, publish
from hardneg.storage.disk import foreign

DEFAULTS: Mapping[str, Mapping[str, int]] = {  # 0: by the number of passages or of dimensions
    "flat": {},
    "ivf": {"lists": 0, "probes": 0},
    "hnsw": {"links": 32, "ef_build": 200, "ef": 256},
    "pq": {"subvectors": 0, "bits": 8},
    "ivfpq": {"lists": 0, "probes": 0, "subvectors": 0, "bits": 8},
}
LEAST = {"links": 2}  # faiss ends the process with one link
# Beyond these, tables or links outgrow the vectors, and lists of candidates take memory without use.
MOST = {"bits": 12, "links": 512, "ef_build": 65_536, "ef": 65_536}
A_LIST, A_CODE = 64, 256  # passages to train on, for each list and for each code
BLOCK = 65536  # passages added at a time
SAMPLED = 200  # queries that recall is measured with
DEPTHS = (10, 100)  # of recall
TRAITS = ("similarity", "tokenizer")  # facts of the vectors that an index takes over, where there are any


@threads_of_faiss()
def build_index(
    embeddings: Embeddings,
    out: Path,
    kind: str,
    options: Mapping[str, int] | None = None,
    *,
    queries: Tensor | None = None,
) -> Manifest:
    """Build an index over stored embeddings and publish it, with its recall against exact search.

    The same embeddings and options give the same bytes; k-means is seeded, its sample drawn by key.

    Parameters
    ----------
    kind : ``flat``, ``ivf``, ``hnsw``, ``pq`` or ``ivfpq``.
    options : ``lists`` and ``probes`` (ivf, ivfpq), ``links``, ``ef_build`` and ``ef`` (hnsw), ``subvectors`` and
        ``bits`` (pq, ivfpq). By default ``lists`` and ``probes`` follow the number of passages, ``subvectors``
        the dimension; the others are those of ``DEFAULTS``.
    queries : [Q, dim] to measure recall with; None: passages drawn from the embeddings stand for queries.

    Raises
    ------
    SettingsError : an option that the kind does not know, or that does not fit the vectors; faiss is missing.
    InputError : too few passages for the options.
    ArtifactError : the embeddings are those of queries.
    ResourceError : the index does not fit into the memory there is.
    """
    if (side := embeddings.manifest.settings.get("side", "passage")) != "passage":
        what = f"these are embeddings of the {side} side"
        raise ArtifactError("OTHER_TEXTS", what, "index embeddings of passages", path=embeddings.path)
    chosen = choose(kind, embeddings.n, embeddings.dim, options or {})
    require(memory_of(kind, embeddings.n, embeddings.dim, chosen), "the index")
    index = make(kind, embeddings.dim, chosen)
    fill(index, embeddings, training_size(chosen))
    set_effort(index, chosen)
    settings = {"kind": kind, "options": chosen, "dtype": str(embeddings.shards[0].dtype)}
    inputs = {"embeddings": embeddings.digest, **embeddings.manifest.inputs}
    with publish(out, KIND, settings=settings, inputs=inputs) as draft:
        with foreign(draft / FILE) as file:
            load_faiss().write_index(index, str(file))
        draft.facts.update(
            rows=embeddings.n,
            dim=embeddings.dim,
            bytes=(draft / FILE).stat().st_size,
            **{name: embeddings.manifest.facts[name] for name in TRAITS if name in embeddings.manifest.facts},
            **recall(index, embeddings, queries),
        )
    return open_artifact(out, KIND)


# ---------------------------------------------------------------- options


def choose(kind: str, n: int, dim: int, given: Mapping[str, int]) -> dict[str, int]:
    """Check the options that are ``given`` for an index over n passages, and choose those left open.

    Raises
    ------
    SettingsError, InputError : an option is wrong; Faults: several are.
    """
    if kind not in get_args(Kind):
        raise SettingsError("BAD_SETTING", f"kind = {kind!r:.40}", nearest(kind, get_args(Kind)))
    known = DEFAULTS[kind]
    options = {name: given.get(name, default) for name, default in known.items()}
    strange = [
        SettingsError(
            "UNKNOWN_SETTING", f"{kind} has no option '{name}'", f"its options: {', '.join(known) or 'none'}"
        )
        for name in sorted(set(given) - set(known))
    ]
    beyond = {
        name: fault
        for name in options
        for fault in out_of_range(name, options[name], least=LEAST.get(name, int(known[name] > 0)))
    }
    faults: list[HardnegError] = [*strange, *beyond.values()]
    if "lists" in options and not beyond.keys() & {"lists", "probes"}:
        faults += choose_lists(options, n)
    if "subvectors" in options and "subvectors" not in beyond:
        faults += choose_subvectors(options, dim)
    if "bits" in options and "bits" not in beyond:
        faults += too_few_for_codes(options["bits"], n)
    raise_all(faults)
    return options


def out_of_range(name: str, value: int, *, least: int) -> Iterator[HardnegError]:
    """Yield the fault of an option that is below ``least`` or above what any index takes."""
    if value < least:
        yield SettingsError("BAD_SETTING", f"{name} = {value}", f"give {max(least, 1)} or more")
    if value > MOST.get(name, value):
        yield SettingsError("BAD_SETTING", f"{name} = {value}", f"give {MOST[name]} or fewer")


def choose_lists(options: dict[str, int], n: int) -> Iterator[HardnegError]:
    """Put the numbers of lists and of probes into ``options`` where they are 0; yield what is wrong with them.

    There are about 4 √n lists of at least 39 passages, and a search looks at about 4 times the root of their
    number.
    """
    lists = options["lists"] = options["lists"] or max(1, min(int(4 * n**0.5), n // 39))
    probes = options["probes"] = options["probes"] or min(lists, max(8, int(4 * lists**0.5)))
    if lists > n:
        yield InputError("TOO_FEW", f"{n:,} passages are too few for {lists:,} lists", "give fewer lists")
    if probes > lists:
        yield SettingsError(
            "BAD_SETTING", f"probes = {probes}, lists = {lists}", "give at most as many probes as lists"
        )


def choose_subvectors(options: dict[str, int], dim: int) -> Iterator[HardnegError]:
    """Put the number of subvectors into ``options`` where it is 0; yield what is wrong with it.

    There is a code for every 4 dimensions, or for as few more as divide the vector evenly.
    """
    codes = options["subvectors"] = options["subvectors"] or next(
        m for m in range(max(dim // 4, 1), 0, -1) if dim % m == 0
    )
    if codes > dim or dim % codes:
        yield SettingsError(
            "BAD_SETTING",
            f"subvectors = {codes} does not divide {dim} dimensions",
            "give a divisor of the dimension",
        )


def too_few_for_codes(bits: int, n: int) -> Iterator[HardnegError]:
    """Yield a fault where there are fewer passages than codes of so many ``bits``."""
    if n < 2**bits:
        what = f"{n:,} passages are too few for codes of {bits} bits"
        yield InputError("TOO_FEW", what, f"give at least {2**bits}, or fewer bits")


def code_bytes(n: int, dim: int, options: Mapping[str, int]) -> int:
    """The bytes that n passages take as codes, their codebook included."""
    return n * -(-options["subvectors"] * options["bits"] // 8) + 4 * dim * 2 ** options["bits"]


def memory_of(kind: str, n: int, dim: int, options: Mapping[str, int]) -> int:
    """The most bytes that building takes: the index, its training sample and one block of passages."""
    code = options.get("subvectors", 0) * options.get("bits", 0) / 8
    vector = (code or 4 * dim) + 8 * ("lists" in options) + 8 * options.get("links", 0) + 16 * (kind == "hnsw")
    return int(n * vector) + 6 * dim * (min(n, training_size(options)) + min(n, BLOCK))


def training_size(options: Mapping[str, int]) -> int:
    """How many passages k-means learns from; 0 where nothing is learned."""
    return max(A_LIST * options.get("lists", 0), A_CODE * (1 << options["bits"]) if "bits" in options else 0)


# ---------------------------------------------------------------- building


def make(kind: str, dim: int, options: Mapping[str, int]) -> Any:
    """An empty faiss index for inner products. faiss seeds its k-means with a constant of its own."""
    faiss = load_faiss()
    product = faiss.METRIC_INNER_PRODUCT
    if kind == "flat":
        return faiss.IndexFlatIP(dim)
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(dim, options["links"], product)
        index.hnsw.efConstruction = options["ef_build"]
        return index
    if kind == "pq":
        return quiet(faiss.IndexPQ(dim, options["subvectors"], options["bits"], product))
    coarse = faiss.IndexFlatIP(dim)
    if kind == "ivf":
        index = faiss.IndexIVFFlat(coarse, dim, options["lists"], product)
    else:
        sizes = (options["lists"], options["subvectors"], options["bits"])
        index = faiss.IndexIVFPQ(coarse, dim, *sizes, product)
    index.own_fields = True
    coarse.this.disown()
    return quiet(index)


def quiet(index: Any) -> Any:
    """Turn off faiss' warnings on stderr that an index has few training passages; returns the index.

    The measured recall says what too few of them cost.
    """
    for part in (index, getattr(index, "pq", index)):
        if hasattr(part, "cp"):
            part.cp.min_points_per_centroid = 1
    return index


def fill(index: Any, embeddings: Embeddings, training: int) -> None:
    """Train an index on a drawn sample and add all passages, block by block."""
    if training:
        index.train(embeddings.rows(drawn(embeddings.n, training, "index/training")).astype(np.float32))
    with track("indexing", "passages") as tick:
        for shard in embeddings.shards:
            for start in range(0, len(shard), BLOCK):
                index.add(np.ascontiguousarray(shard[start : start + BLOCK], np.float32))
                tick(index.ntotal, embeddings.n)


def drawn(n: int, count: int, purpose: str) -> Int64:
    """The rows [min(count, n)] of ``count`` of n passages, drawn by key without replacement, ascending."""
    if count >= n:
        return np.arange(n)
    words = keyed_random.hash64(keyed_random.key(0, purpose), np.arange(n))
    return np.sort(np.argpartition(words, count)[:count])


def recall(index: Any, embeddings: Embeddings, queries: Tensor | None = None) -> dict[str, Any]:
    """Measure the index against exact search: ``recall``, and in ``recall_of`` how many queries of which kind.

    ``recall`` is the share of the exact top 10 and top 100 that the index finds. Among passages of equal score,
    such as copies, any counts as well as another: exact search ranks them by row, and faiss in no certain order.
    Without ``queries`` [Q, dim], passages are drawn to stand for them.
    """
    of, vectors = ("passages", embeddings.rows) if queries is None else ("queries", queries.numpy().__getitem__)
    rows = drawn(embeddings.n if queries is None else len(queries), SAMPLED, "index/recall")
    sample = torch.from_numpy(vectors(rows).astype(embeddings.shards[0].dtype))
    depth = min(max(DEPTHS), embeddings.n)
    best = StoredIndex(embeddings).search(sample, depth)[0].numpy()
    found = index.search(sample.float().numpy(), depth)[1]
    scores = np.full(found.shape, -np.inf, np.float32)  # of rows of -1, where the index found fewer
    for query, (hits, is_hit) in enumerate(
        zip(found, found >= 0, strict=True)
    ):  # one by one, to take little memory
        scores[query, is_hit] = dot_products(sample[query : query + 1].numpy(), embeddings.rows(hits[is_hit]))
    shares = {}
    for k in DEPTHS:
        least = best[:, min(k, depth) - 1, None]
        shares[f"R@{k}"] = round(float((scores[:, :k] >= least).sum(axis=1).mean()) / min(k, depth), 4)
    return {"recall": shares, "recall_of": f"{len(rows)} {of}"}
