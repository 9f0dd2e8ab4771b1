"""BM25 over generated texts: building an index from texts, and searching it from query texts.

bm25s has its compiled backend and the same variant, constants, stopwords and stems as ours.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from contest import Arrays, Contest, Run, main

SEARCH = {"passages": 100_000, "queries": 1_000, "k": 100}
BUILD = {"passages": 50_000, "queries": 1_000, "k": 100}
WORDS = 60_000
STOPWORDS = ("the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on")


def words() -> list[str]:
    """Distinct pronounceable words, the frequent ones short, with endings that a stemmer takes off."""
    rng = np.random.default_rng(3)
    syllables = [a + b for a in "bcdfghjklmnprstvwz" for b in "aeiou"]
    endings = ["", "", "", "s", "ed", "ing", "ly", "ness"]
    found: dict[str, None] = {}
    while len(found) < WORDS:
        stem = "".join(rng.choice(syllables, 2 + (len(found) > 500) + (len(found) > 20_000)))
        found[stem + endings[rng.integers(len(endings))]] = None
    return list(found)


def texts(size: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Passages of 20 to 90 words and queries of 3 to 9, both drawn by Zipf's law, a third of each stopwords."""
    rng = np.random.default_rng(4)
    ours = words()
    weights = 1 / (np.arange(len(ours)) + 2.7)
    bounds = np.cumsum(weights) / weights.sum()

    def draw(n: int, low: int, high: int) -> list[str]:
        lengths = rng.integers(low, high, n)
        ranks = np.searchsorted(bounds, rng.random(lengths.sum())).tolist()
        stop = rng.integers(0, 3 * len(STOPWORDS), len(ranks)).tolist()
        drawn = [STOPWORDS[s] if s < len(STOPWORDS) else ours[r] for r, s in zip(ranks, stop, strict=True)]
        ends = np.cumsum([0, *lengths]).tolist()
        return [" ".join(drawn[a:b]) for a, b in pairwise(ends)]

    return draw(size["passages"], 20, 91), draw(size["queries"], 3, 10)


class Column(list[str]):
    def take(self, rows: np.ndarray) -> list[str]:
        return [self[row] for row in rows.tolist()]


def collection(passages: list[str]) -> Any:
    """A stand-in for a collection, with the attributes that our index reads."""
    return SimpleNamespace(
        digest="generated",
        language="english",
        n_passages=len(passages),
        titles=Column([""] * len(passages)),
        texts=Column(passages),
    )


# ---------------------------------------------------------------- building


def build_hardneg(size: Mapping[str, Any]) -> Run:
    """The whole way from texts to an index that is on the disk, verified and open."""
    from hardneg.search.bm25 import open_bm25, search

    passages, queries = texts(size)
    source = collection(passages)

    def run() -> Callable[[], Arrays]:
        with tempfile.TemporaryDirectory() as folder:
            index = open_bm25(source, Path(folder))
        return lambda: ranked(search(index, queries, np.arange(len(queries), dtype=np.int32), size["k"]), size)

    return run


def build_bm25s(size: Mapping[str, Any]) -> Run:
    passages, queries = texts(size)

    def run() -> Callable[[], Arrays]:
        index, tokenized = indexed(passages)
        return lambda: retrieved(index, tokenized(queries), size)

    return run


def indexed(passages: list[str]) -> tuple[Any, Callable[[list[str]], Any]]:
    """The index of bm25s, and a function that tokenises queries for it."""
    import bm25s
    import Stemmer
    from bm25s.tokenization import Tokenizer

    from hardneg.search.bm25_building import K1, B

    tokenizer = Tokenizer(stopwords="english", stemmer=Stemmer.Stemmer("english"))
    index = bm25s.BM25(method="lucene", k1=K1, b=B, backend="numba")
    quiet = {"show_progress": False}
    index.index(tokenizer.tokenize(passages, return_as="tuple", **quiet), **quiet)
    return index, lambda queries: tokenizer.tokenize(queries, update_vocab=False, **quiet)


def retrieved(index: Any, tokens: Any, size: Mapping[str, Any]) -> Arrays:
    import numba

    threads = numba.get_num_threads()
    rows, scores = index.retrieve(tokens, k=size["k"], n_threads=threads, show_progress=False)
    return {"rows": rows, "scores": scores}


def ranked(run: Any, size: Mapping[str, Any]) -> Arrays:
    """The rows and the scores of a run, [queries, k] each; -1 and 0 behind a query's last hit."""
    n, lengths = len(run), np.diff(run.offsets)
    filled = np.arange(size["k"]) < lengths[:, None]
    rows, scores = np.full((n, size["k"]), -1, np.int32), np.zeros((n, size["k"]), np.float32)
    rows[filled], scores[filled] = run.passage_rows, run.scores
    return {"rows": rows, "scores": scores}


# ---------------------------------------------------------------- searching


def search_hardneg(size: Mapping[str, Any]) -> Run:
    from hardneg.search.bm25 import open_bm25, search

    passages, queries = texts(size)
    with tempfile.TemporaryDirectory() as folder:
        index = open_bm25(collection(passages), Path(folder))
    query_rows = np.arange(len(queries), dtype=np.int32)

    def run() -> Callable[[], Arrays]:
        found = search(index, queries, query_rows, size["k"])
        return lambda: ranked(found, size)

    return run


def search_bm25s(size: Mapping[str, Any]) -> Run:
    passages, queries = texts(size)
    index, tokenized = indexed(passages)
    return lambda: retrieved(index, tokenized(queries), size)


def gate(found: dict[str, dict[str, np.ndarray]]) -> dict[str, float]:
    """Both find the same scores at each rank, and the same passages except those that tie with the last hit."""
    ours = found["hardneg"]
    differ = 0
    for name, arrays in found.items():
        np.testing.assert_allclose(arrays["scores"], ours["scores"], rtol=1e-5, atol=1e-6, err_msg=name)
        for mine, theirs, scores in zip(ours["rows"], arrays["rows"], ours["scores"], strict=True):
            safe = scores > scores[-1] * (1 + 1e-5)
            lost = np.setdiff1d(mine[safe], theirs)
            assert not len(lost), (name, lost)
            differ += len(np.setdiff1d(mine, theirs))
    return {"passages_in_ties_that_differ": differ}


def contests() -> list[Contest]:
    def between(path: str) -> dict[str, str]:
        return {"hardneg": f"bm25:{path}_hardneg", "bm25s numba": f"bm25:{path}_bm25s"}

    return [
        Contest(
            "bm25 search",
            between("search"),
            SEARCH,
            gate,
            (SEARCH["queries"], "queries/s"),
            goals={"bm25s numba": 1.0},
        ),
        Contest(
            "bm25 index",
            between("build"),
            BUILD,
            gate,
            (BUILD["passages"], "passages/s"),
            goals={"bm25s numba": 1.0},
        ),
    ]


if __name__ == "__main__":
    raise SystemExit(main(contests()))
