"""Exact top-200 of 1, 32 and 1 024 queries over 200 000 vectors of 768 dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from contest import Contest, NotHere, Run, main, told_threads

if TYPE_CHECKING:
    from hardneg.search.proposals import Precision

SIZE = {"passages": 200_000, "dim": 768, "k": 200}
SEARCHES = {1: 10, 32: 3, 1024: 1}  # of one timed run


def vectors(size: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Queries and passages, as encoders make them: a common mean, clusters, length 1; exact in float16."""
    draw = np.random.default_rng(0)
    n, dim = size["passages"], size["dim"]
    topics = draw.standard_normal((500, dim), np.float32)
    mean = draw.standard_normal(dim).astype(np.float32)

    def some(count: int) -> np.ndarray:
        found = draw.standard_normal((count, dim), np.float32)
        found += mean + 1.2 * topics[draw.integers(0, len(topics), count)]
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        return found.astype(np.float16)

    return some(size["queries"] * size["searches"]), some(n)


def run_of(search: Any, queries: Any, size: Mapping[str, Any]) -> Run:
    def run() -> dict[str, np.ndarray]:
        parts = [search(part) for part in np.split(queries, size["searches"])]
        return {"rows": np.concatenate(parts)}

    return run


def hardneg(size: Mapping[str, Any], dtype: type = np.float16, precision: Precision = "auto") -> Run:
    import torch

    from hardneg.process.cpu import reuse_memory
    from hardneg.search.codes import REPAID
    from hardneg.search.exact import ExactIndex

    reuse_memory()
    queries, passages = vectors(size)
    index = ExactIndex(passages.astype(dtype, copy=False), precision=precision)
    k, queries = size["k"], queries.astype(dtype)
    search = lambda part: index.search(torch.from_numpy(part), k)[1].numpy()  # noqa: E731
    for _ in range(REPAID):  # after small searches an index keeps its passages in bytes, too, as in use
        search(queries[:1])
    return run_of(search, queries, size)


def hardneg_float32(size: Mapping[str, Any]) -> Run:
    return hardneg(size, np.float32)


def hardneg_plain(size: Mapping[str, Any]) -> Run:
    """Search with proposals in float32: without codes, and without bfloat16 on processors with AMX."""
    return hardneg(size, np.float32, precision="float32")


def hardneg_old(size: Mapping[str, Any]) -> Run:
    """Search as on a processor without instructions for bytes, where a compiled loop multiplies them."""
    from hardneg.process import cpu
    from hardneg.search.byte_products import loop

    if loop() is None:
        raise NotHere("numba is not installed")
    cpu.has_byte_kernels = lambda: False
    return hardneg(size, np.float32)


def faiss(size: Mapping[str, Any]) -> Run:
    import faiss

    faiss.omp_set_num_threads(told_threads())
    queries, passages = vectors(size)
    index = faiss.IndexFlatIP(size["dim"])
    index.add(passages.astype(np.float32))
    return run_of(lambda part: index.search(part, size["k"])[1], queries.astype(np.float32), size)


def matmul(size: Mapping[str, Any]) -> Run:
    import torch

    queries, passages = vectors(size)
    table = torch.from_numpy(passages.astype(np.float32))

    def search(part: np.ndarray) -> np.ndarray:
        scores, best = torch.from_numpy(part), []
        for start in range(0, len(table), 16384):
            found = (scores @ table[start : start + 16384].T).topk(size["k"])
            best.append((found.values, found.indices + start))
        values, rows = (torch.cat(parts, 1) for parts in zip(*best, strict=True))
        return rows.gather(1, values.topk(size["k"]).indices).numpy()

    return run_of(search, queries.astype(np.float32), size)


def gate(size: Mapping[str, Any], found: dict[str, dict[str, np.ndarray]]) -> dict[str, float]:
    """Our passages are those of the reference in the same order; peers may differ where float32 rounds."""
    queries, passages = vectors(size)
    asked = queries[:4].astype(np.float64)
    scores = np.concatenate(
        [asked @ part.astype(np.float64).T for part in np.array_split(passages, 10)], axis=1
    ).astype(np.float32)
    shared = {}
    for name, arrays in found.items():
        rows = arrays["rows"][: len(asked)]
        wanted = np.stack([np.lexsort((np.arange(len(row)), -row))[: size["k"]] for row in scores])
        shared[name] = float(np.mean([np.isin(a, b).mean() for a, b in zip(rows, wanted, strict=True)]))
        if name.startswith("hardneg"):
            assert np.array_equal(rows, wanted), name
        assert shared[name] > 0.99, (name, shared[name])
    return {"shared_with_float64": round(min(shared.values()), 4)}


def contests() -> list[Contest]:
    contenders = {
        "hardneg float32 store": "search:hardneg_float32",  # what the peers search
        "hardneg float16 store": "search:hardneg",  # our default: half the memory
        "hardneg, proposals in float32": "search:hardneg_plain",  # as its first searches
        "hardneg, bytes in a loop": "search:hardneg_old",  # with numba
        "faiss IndexFlatIP": "search:faiss",
        "torch matmul + topk": "search:matmul",
    }
    found = []
    for queries, goal in ((1, 2.0), (32, 3.0), (1024, 0.95)):
        size = {**SIZE, "queries": queries, "searches": SEARCHES[queries]}
        some = {name: place for name, place in contenders.items() if queries == 1 or not name.endswith("loop")}
        work = (queries * SEARCHES[queries], "queries/s")
        goals = {"faiss IndexFlatIP": goal}
        found.append(Contest(f"search-{queries}", some, size, partial(gate, size), work, goals=goals))
    return found


if __name__ == "__main__":
    raise SystemExit(main(contests()))
