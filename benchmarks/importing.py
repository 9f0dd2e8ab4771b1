"""Importing a collection in the BEIR convention: every record checked, written in the canonical form, verified.

``--passages`` gives another number of passages. The peers only read the texts, which is the least work possible.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from contest import Arrays, Contest, Run, main

PASSAGES = 500_000
QUERIES = 10_000
BLOCK = 50_000


def write(folder: Path, passages: int) -> None:
    """A corpus of texts of about 55 words, queries, and a judgement a query."""
    rng = np.random.default_rng(21)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    words = ["".join(rng.choice(letters, rng.integers(2, 11))) for _ in range(20_000)]
    stock = [
        " ".join(words[w] for w in row[:n])
        for row, n in zip(
            (rng.zipf(1.3, (4_000, 50)) % len(words)).tolist(), rng.integers(10, 51, 4_000), strict=True
        )
    ]

    def text(i: int, picks: list[int]) -> str:
        return f"{stock[picks[0]]} Number {i}, Zürich. {stock[picks[1]]}"  # no two alike, some beyond ASCII

    with open(folder / "corpus.jsonl", "w") as stream:
        for start in range(0, passages, BLOCK):
            picks = rng.integers(0, len(stock), (min(BLOCK, passages - start), 2)).tolist()
            for i, pair in enumerate(picks, start):
                record = {"_id": f"p{i}", "title": f"Title {i % 9999}", "text": text(i, pair)}
                stream.write(json.dumps(record, ensure_ascii=i % 2 == 0) + "\n")
    with open(folder / "queries.jsonl", "w") as stream:
        for i in range(QUERIES):
            stream.write(json.dumps({"_id": f"q{i}", "text": f"what is {words[i % len(words)]} {i}"}) + "\n")
    (folder / "qrels").mkdir()
    with open(folder / "qrels" / "train.tsv", "w") as stream:
        stream.write("query-id\tcorpus-id\tscore\n")
        stream.writelines(f"q{i}\tp{i * 7 % passages}\t1\n" for i in range(QUERIES))


def checked(texts: Callable[[np.ndarray], list[str]], n: int) -> Arrays:
    """The number of passages and some of the texts, as bytes."""
    some = "\n".join(texts(np.random.default_rng(0).integers(0, n, 1000)))
    return {"passages": np.array(n), "texts": np.frombuffer(some.encode(), np.uint8)}


def hardneg(size: Mapping[str, Any]) -> Run:
    from hardneg.data.collection import Collection
    from hardneg.data.importing import import_collection

    def run() -> Callable[[], Arrays]:
        to = Path(tempfile.mkdtemp(dir=size["_folder"])) / "collection"
        found: Collection = import_collection(f"beir:{size['_folder']}/beir", to)
        return lambda: checked(found.texts.take, found.n_passages)

    return run


def json_loads(size: Mapping[str, Any]) -> Run:
    def run() -> Callable[[], Arrays]:
        ids, titles, texts = [], [], []
        with open(f"{size['_folder']}/beir/corpus.jsonl") as stream:
            for line in stream:
                record = json.loads(line)
                ids.append(record["_id"])
                titles.append(record["title"])
                texts.append(record["text"])
        return lambda: checked(lambda rows: [texts[row] for row in rows], len(texts))

    return run


def datasets(size: Mapping[str, Any]) -> Run:
    from datasets import load_dataset

    def run() -> Callable[[], Arrays]:
        cache = tempfile.mkdtemp(dir=size["_folder"])
        files = f"{size['_folder']}/beir/corpus.jsonl"
        found = load_dataset("json", data_files=files, split="train", cache_dir=cache)
        return lambda: checked(lambda rows: found[rows]["text"], len(found))

    return run


def gate(found: dict[str, dict[str, np.ndarray]]) -> dict[str, int]:
    """All contenders have read the same texts."""
    for name, arrays in found.items():
        for part, values in found["hardneg"].items():
            np.testing.assert_array_equal(arrays[part], values, err_msg=f"{name} {part}")
    return {"passages": int(found["hardneg"]["passages"])}


def contest(folder: str, passages: int) -> Contest:
    contenders = {
        "hardneg": "importing:hardneg",
        "json.loads, lists": "importing:json_loads",
        "datasets load_dataset": "importing:datasets",
    }
    size = {"passages": passages, "queries": QUERIES, "_folder": folder}
    return Contest("import", contenders, size, gate, (passages, "passages/s"), repeats=3)


def hold_imports() -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--passages", type=int, default=PASSAGES)
    arguments, sys.argv[1:] = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "beir").mkdir()
        write(Path(folder) / "beir", arguments.passages)
        return main([contest(folder, arguments.passages)])


if __name__ == "__main__":
    raise SystemExit(hold_imports())
