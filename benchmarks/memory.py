"""Exact search of memory-mapped vectors under a memory limit: same bits, flat memory, time linear in passages.

Each search runs in a process of its own, over a file of float16 vectors many times its limit.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

DIM, QUERIES, DEPTH = 768, 1024, 216
BLOCK = 10_000


def write_vectors(path: Path, n: int) -> None:
    """Vectors of length 1 around a common mean; block i does not depend on how many follow."""
    stored = np.lib.format.open_memmap(path, "w+", np.float16, (n, DIM))
    mean = np.random.default_rng(0).standard_normal(DIM, np.float32)
    for block in range(0, n, BLOCK):
        drawn = np.random.default_rng([1, block]).standard_normal((min(BLOCK, n - block), DIM), np.float32)
        drawn += mean
        stored[block : block + BLOCK] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    stored.flush()


def search(path: Path, extra: int) -> dict[str, Any]:
    """Search the file; the limit is ``extra`` bytes more than the process held before. 0 means no limit."""
    import hashlib

    import torch

    from hardneg.process.memory import limit_memory, own_memory
    from hardneg.search.exact import ExactIndex

    torch.set_num_threads(2)
    vectors = np.load(path, mmap_mode="r")
    queries = torch.from_numpy(np.array(vectors[:QUERIES])).float()
    index = ExactIndex(vectors, max_norm=1.01)
    ExactIndex(np.array(vectors[:3000])).search(queries[:2], 10)  # makes libraries allocate their buffers before
    before = own_memory()
    if extra:
        limit_memory(str(before + extra))
    start = time.perf_counter()
    scores, rows = index.search(queries, DEPTH)
    seconds = time.perf_counter() - start
    digest = hashlib.sha256(scores.numpy().tobytes() + rows.numpy().tobytes()).hexdigest()
    return {"seconds": seconds, "before": before, "digest": digest}


def measured(path: Path, extra: int) -> dict[str, Any]:
    """A search in a process of its own, its anonymous memory sampled from outside."""
    command = [sys.executable, __file__, "--search", str(path), str(extra)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        peak = 0
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                break
            found = re.search(r"RssAnon:\s+(\d+)", status)
            peak = max(peak, int(found[1]) << 10 if found else 0)
            time.sleep(0.005)
        assert process.stdout is not None
        facts = json.loads(process.stdout.read())
    return {**facts, "peak_over_base": peak - facts["before"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, nargs="+", default=[100_000, 200_000, 400_000])
    parser.add_argument("--limit", type=int, default=60, help="MiB above what the process holds at rest")
    parser.add_argument("--search", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.search:
        print(json.dumps(search(Path(arguments.search[0]), int(arguments.search[1]))))
        return 0
    limit, failed = arguments.limit << 20, False
    with tempfile.TemporaryDirectory() as folder:
        for n in arguments.passages:
            path = Path(folder) / "vectors.npy"
            write_vectors(path, n)
            bound, free = measured(path, limit), measured(path, 0)
            held = bound["peak_over_base"] <= limit
            failed |= not held or bound["digest"] != free["digest"]
            row = {
                "passages": n,
                "corpus_mib": n * DIM * 2 >> 20,
                "limit_mib": limit >> 20,
                "peak_mib": bound["peak_over_base"] >> 20,
                "unlimited_peak_mib": free["peak_over_base"] >> 20,
                "seconds": round(bound["seconds"], 2),
                "unlimited_seconds": round(free["seconds"], 2),
                "same_bits": bound["digest"] == free["digest"],
                "under_limit": held,
            }
            print(json.dumps(row), flush=True)
    per_passage = row["seconds"] / n / QUERIES
    print(f"on paper: 8.8 M passages, 503 k queries: {8.8e6 * 503e3 * per_passage / 86400:.1f} days at this rate")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
