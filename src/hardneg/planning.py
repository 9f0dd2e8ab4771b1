"""What an experiment would take: counted from the data, timed on a sample, said before anything runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hardneg.data.collection import Collection
from hardneg.data.tokens import token_batch
from hardneg.models.bi_encoder import BiEncoder, Precision
from hardneg.progress import clock
from hardneg.records import Side, TokenBatch

SAMPLE = 512  # texts looked at for lengths
TIMED = 64  # texts in a timed batch
BYTES = {"float16": 2, "float32": 4}


def sample_tokens(collection: Collection, encoder: BiEncoder, side: Side) -> TokenBatch:
    """Token sequences of evenly spread texts of one side."""
    n = collection.n_queries if side == "query" else collection.n_passages
    rows = np.unique(np.linspace(0, n - 1, min(n, SAMPLE)).astype(np.int64))
    if side == "query":
        return token_batch(collection.query_texts.take(rows), [], encoder.template(side), encoder.tokenizer(side))
    titles, texts = collection.titles.take(rows), collection.texts.take(rows)
    return token_batch(texts, titles, encoder.template(side), encoder.tokenizer(side))


def seconds_of(work: Callable[[], Any]) -> float:
    """Seconds of one call, after one to warm up."""
    work()
    begun = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def encode_rate(encoder: BiEncoder, tokens: TokenBatch, precision: Precision) -> float:
    """Tokens a second in inference."""
    batch = tokens.take(np.arange(min(TIMED, len(tokens))))
    with encoder.inference(precision):
        seconds = seconds_of(lambda: encoder.encode(batch, "passage"))
    return float(batch.lengths.sum()) / seconds


def train_rate(encoder: BiEncoder, tokens: TokenBatch, precision: Precision) -> float:
    """Tokens a second in training, forward and backward."""
    batch = tokens.take(np.arange(min(TIMED, len(tokens))))

    def step() -> None:
        with torch.autocast(encoder.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            encoder.encode(batch, "passage").square().sum().backward()
        encoder.zero_grad(set_to_none=True)

    encoder.train()
    return float(batch.lengths.sum()) / seconds_of(step)


def describe_work(
    collection: Collection,
    encoder: BiEncoder,
    *,
    training_queries: int,
    steps: int,
    states: int,
    queries_per_step: int,
    passages_per_query: list[int],
    in_batch: bool,
    micro_queries: int | None,
    depth: int,
    store_dtype: str,
    precision: Precision,
    measure: bool,
) -> dict[str, Any]:
    """Counts of an experiment, and with ``measure`` its time on this machine, timed on a sample.

    Parameters
    ----------
    steps : optimiser steps of all episodes.
    states : how often corpus and queries are encoded.
    passages_per_query : positive and negatives, by episode.
    micro_queries : queries whose passages meet in one softmax; None: all of a step.
    """
    most = max(passages_per_query)
    together = min(micro_queries or queries_per_step, queries_per_step)
    queries, passages = (sample_tokens(collection, encoder, side) for side in ("query", "passage"))
    weights = sum(p.numel() for p in encoder.parameters()) * 4
    stored = (collection.n_passages + collection.n_queries) * encoder.dim * BYTES[store_dtype]
    runs = states * training_queries * 2 * (depth + 16) * 8
    facts: dict[str, Any] = {
        "passages": collection.n_passages,
        "training queries": training_queries,
        "queries per step (global batch)": queries_per_step,
        "hard negatives per query": most - 1,
        "negatives per query in all": together * most - 1 if in_batch else most - 1,
        "optimiser steps": steps,
        "mean tokens (query, passage)": f"{queries.lengths.mean():.1f}, {passages.lengths.mean():.1f}",
        "disk, about": f"{(stored + runs + states * 4 * weights) / 2**30:.2f} GiB",
        "memory for weights and optimiser": f"{4 * weights / 2**30:.2f} GiB",
    }
    if not measure:
        return facts
    encoded = states * (
        collection.n_passages * passages.lengths.mean() + collection.n_queries * queries.lengths.mean()
    )
    trained = steps * queries_per_step * (queries.lengths.mean() + most * passages.lengths.mean())
    encoding = encoded / encode_rate(encoder, passages, precision)
    training = trained / train_rate(encoder, passages, precision)
    return facts | {
        "time to encode, about": f"{clock(encoding)} ({states} times the corpus and queries)",
        "time to train, about": clock(training),
        "time in all, about": clock(encoding + training),
    }
