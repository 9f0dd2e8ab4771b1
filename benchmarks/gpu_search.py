"""Exact search and mining on the device, on generated vectors that lie there."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gpu_world import World, goal, race
from torch import Tensor

from hardneg.negatives.sources import sample_source
from hardneg.records import Positives, Run, offsets_of
from hardneg.search.exact import ExactIndex
from hardneg.search.proposals import Precision

CHUNK = 65536


def vectors_like_real(world: World, n: int, *, seed: int) -> Tensor:
    """Vectors [n, width] as encoders make them: a common mean, clusters, length 1; float16."""
    shared = torch.Generator(world.device).manual_seed(0)
    draw = torch.Generator(world.device).manual_seed(seed)
    kinds: dict[str, Any] = {"device": world.device, "dtype": torch.float32}
    mean, topics = (torch.randn(m, world.size.width, generator=shared, **kinds) for m in (1, 500))
    out = torch.empty(n, world.size.width, device=world.device, dtype=torch.float16)
    for part in out.split(1 << 18):
        topic = torch.randint(len(topics), (len(part),), generator=draw, device=world.device)
        found = torch.randn(part.shape, generator=draw, **kinds) + mean + 1.2 * topics[topic]
        part.copy_(F.normalize(found, dim=-1))
    return out


def table(world: World, most: int) -> Tensor:
    """As many vectors as fit into memory together with a float32 copy and the scores of a chunk."""
    free = torch.cuda.mem_get_info(world.device)[0] if world.device.type == "cuda" else 1 << 30
    return vectors_like_real(world, min(most, int(0.7 * free) // (6 * world.size.width)), seed=1)


def chunked(queries: Tensor, passages: Tensor, k: int, product: Callable[..., Tensor]) -> Tensor:
    """Compute scores chunk by chunk; if k > 0, keep the k best of each chunk and merge them at the end."""
    best, scores = [], queries
    for start in range(0, len(passages), CHUNK):
        scores = product(queries, passages[start : start + CHUNK].T)
        if k:
            found = scores.topk(min(k, scores.shape[1]))
            best.append((found.values, found.indices + start))
    if not k:
        return scores
    values, rows = (torch.cat(parts, 1) for parts in zip(*best, strict=True))
    return rows.gather(1, values.topk(k).indices)


def search(world: World) -> dict[str, Any]:
    """Exact top-k, compared with the matrix products alone and with products and a top-k of every chunk.

    The ceiling is the rate of the fastest product of the stored numbers: float16 with sums in float32.
    """
    size, passages = world.size, table(world, world.size.vectors)
    queries = vectors_like_real(world, size.searched, seed=2)
    index = ExactIndex(passages, device=world.device)
    ours = lambda: index.search(queries, size.k)[1]  # noqa: E731
    kinds = {"float32": (queries.float(), passages.float(), torch.mm)}
    if world.device.type == "cuda":
        kinds["float16"] = (queries, passages, partial(torch.mm, out_dtype=torch.float32))
    runs: dict[str, Callable[[], Any]] = {"hardneg": ours}
    others: dict[str, tuple[Tensor, Precision]] = {
        "hardneg, proposals in float32": (passages, "float32"),
        "hardneg, float32 store": (kinds["float32"][1], "auto"),
    }
    for name, (stored, precision) in others.items():
        other = ExactIndex(stored, device=world.device, precision=precision, max_norm=index.max_norm)
        runs[name] = partial(other.search, queries, size.k)
        assert all(map(torch.equal, runs[name](), index.search(queries, size.k))), name
    for name, (q, p, product) in kinds.items():
        runs[f"matmul {name}"] = partial(chunked, q, p, 0, product)
        runs[f"matmul + topk {name}"] = partial(chunked, q, p, size.k, product)
    shared = overlap(ours()[:256], runs["matmul + topk float32"]()[:256])
    assert shared > 0.99, shared
    rows = race(world, runs)
    for fact in rows.values():
        fact["queries_per_s"] = 1e3 * size.searched / fact["ms"]
    shares = {name: rows[f"matmul {name}"]["ratio"] for name in kinds}
    return {
        "queries": size.searched,
        "passages": len(passages),
        "shared_with_matmul": shared,
        "goals": {"share_of_matmul": goal(min(shares.values()), 0.7)},
        "share_of_matmul": shares,
        **rows,
    }


def overlap(found: Tensor, wanted: Tensor) -> float:
    """Mean share of the rows of ``wanted`` [Q, k] that ``found`` has."""
    pairs = zip(found.cpu().numpy(), wanted.cpu().numpy(), strict=True)
    return float(np.mean([np.isin(a, b).mean() for a, b in pairs]))


def mine(world: World) -> dict[str, Any]:
    """From query vectors to a pool of negatives: search, lists on the host, known positives left out, a draw."""
    size, passages = world.size, table(world, world.size.vectors // 4)
    queries = vectors_like_real(world, size.mined, seed=3)
    rows = np.arange(size.mined, dtype=np.int32)
    judged = np.random.default_rng(0).integers(0, len(passages), size.mined).astype(np.int32)
    positives = Positives(rows, offsets_of(np.ones(size.mined, np.int64)), judged)
    begin = time.perf_counter()
    found = ExactIndex(passages, device=world.device).search(queries, size.k)
    scores, hits = (part.cpu().numpy().reshape(-1) for part in found)
    searched = time.perf_counter()
    run = Run(rows, offsets_of(np.full(len(rows), size.k)), hits, scores)
    pool = sample_source(run, positives, source="query", episode=1, depth=size.k, count=size.k // 2, seed=0)
    end = time.perf_counter()
    return {
        "queries": size.mined,
        "passages": len(passages),
        "negatives": len(pool.passage_rows),
        "search_s": searched - begin,
        "draw_s": end - searched,
        "queries_per_s": size.mined / (end - begin),
    }
