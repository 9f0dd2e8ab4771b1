"""How fast this machine encodes, searches and trains, timed on a sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

import numpy as np
import torch
from torch import nn

from hardneg.data.own_passages import lengths
from hardneg.data.text import TextColumn
from hardneg.data.token_pairs import PairStore
from hardneg.data.tokens import token_batch
from hardneg.data.training_data import TrainingData
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.packing import plan_batches
from hardneg.models.recomputing import recompute_layers
from hardneg.process import memory
from hardneg.process.hardware import Precision
from hardneg.records import Int64, Side, TokenBatch
from hardneg.search.bm25 import best_of_each, query_terms
from hardneg.search.bm25_sample import index_of, repeated
from hardneg.search.exact import ExactIndex
from hardneg.training.optim import optimizers

TIMED_TOKENS = 16384  # tokens that are encoded, or trained on, for a timing
TIMED_PAIRS = 32  # pairs of a query and a passage that are scored, or trained on, for a timing
TIMED_QUERIES, TIMED_PASSAGES = 64, 8192  # vectors of a search for a timing
TIMED_ON_CUDA = 1 << 17, 1024  # passages and queries of a search on CUDA, which fewer would not keep busy
TIMED_TEXTS, TIMED_WORDS = 4096, 512  # passages that BM25 indexes and queries that it searches, at most
TEXT_BYTES, WORD_BYTES = 1 << 21, 1 << 16  # the most bytes of these passages, and of these queries, about
SEARCHED = 1 << 17  # passages that are searched, most of them copies; fewer if there are fewer
POSTINGS = 1 << 23  # the most postings of all copies
MEMORY_OF_ONE = 32  # bytes of memory for a byte of these passages, and for a posting of the copies
LEAST_MEMORY = 1 << 24  # bytes that the sample may take however little is left
CPU = torch.device("cpu")

P = ParamSpec("P")
R = TypeVar("R")

_timed: ContextVar[dict[tuple[Any, ...], Any] | None] = ContextVar(
    "timed", default=None
)  # None: time anew each time


@contextmanager
def timed_once() -> Iterator[None]:
    """In the block, the same work is timed once, so that estimates of several lengths compare.

    Two models of a kind are the same work if they have as many parameters and the same settings.
    """
    before = _timed.set({} if _timed.get() is None else _timed.get())  # the block may lie in another one
    try:
        yield
    finally:
        _timed.reset(before)


def kept(work: Callable[P, R]) -> Callable[P, R]:
    """A timing that is made once in a block of :func:`timed_once`."""

    @wraps(work)
    def timed(*given: P.args, **named: P.kwargs) -> R:
        known = _timed.get()
        if known is None:
            return work(*given, **named)
        key = work.__name__, *(_key(one) for one in (*given, *named.values()))
        if key not in known:
            known[key] = work(*given, **named)
        found: R = known[key]
        return found

    return timed


def _key(one: Any) -> Any:
    """What an argument of a timing says of the work."""
    if isinstance(one, BiEncoder | CrossEncoder):
        return type(one), sum(p.numel() for p in one.parameters()), repr(one.settings)
    if isinstance(one, TokenBatch):
        return len(one), int(one.lengths.sum())
    if isinstance(one, TrainingData):
        return one.collection.digest
    if hasattr(one, "passage_length") and hasattr(one, "data"):  # the work that texts are taken for
        return _key(one.data), one.passage_length
    return one


class LexicalCost(NamedTuple):
    """The seconds that BM25 takes."""

    passage: float  # to index one
    pair: float  # to search, for each pair of a query and a passage


@dataclass(frozen=True)
class TrainingCost:
    """The seconds and bytes that training on a batch takes."""

    token: float  # seconds of a token, forward and backward
    update: float  # seconds of an optimiser step
    before: float  # bytes of memory that were held before training
    grown: float  # bytes more at the peak


class EncodingCost(NamedTuple):
    """The seconds and bytes that encoding takes."""

    token: float  # seconds of a token
    grown: float  # bytes at the peak, besides what was held before


def seconds_of(work: Callable[[], Any], *, least: float = 0.5, most: int = 8) -> float:
    """Seconds of one call: the median of the calls that fit into ``least`` seconds, after one call to warm up."""
    work()
    _wait()
    seconds: list[float] = []
    while not seconds or (sum(seconds) < least and len(seconds) < most):
        begun = time.perf_counter()
        work()
        _wait()
        seconds.append(time.perf_counter() - begun)
    return float(np.median(seconds))


def _wait() -> None:
    """Wait for all CUDA devices: that of the work need not be the current one."""
    for device in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0):
        torch.cuda.synchronize(device)


def spread(tokens: TokenBatch, most: int) -> TokenBatch:
    """Evenly spread sequences of about ``most`` tokens, at least one."""
    n = int(np.clip(most / tokens.lengths.mean(), 1, len(tokens)))
    return tokens.take(spread_rows(len(tokens), n))


def spread_rows(n: int, most: int) -> Int64:
    """At most so many evenly spread rows of ``n``."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))


def spread_texts(columns: Sequence[TextColumn], most: int, size: int) -> Int64:
    """The rows of at most ``most`` evenly spread texts, of about ``size`` bytes at most, at least one.

    Parameters
    ----------
    columns : the parts of each text.
    """
    n = len(columns[0])
    rows = spread_rows(n, most)
    mean = max(sum(float(lengths(column, rows).mean()) for column in columns), 1.0)
    return spread_rows(n, int(np.clip(size / mean, 1, len(rows))))


def encode_seconds(encoder: BiEncoder, tokens: TokenBatch, token_budget: int, precision: Precision) -> float:
    """The seconds that inference takes for each token."""
    return encoding_cost(encoder, tokens, token_budget, precision).token


@kept
def encoding_cost(encoder: BiEncoder, tokens: TokenBatch, token_budget: int, precision: Precision) -> EncodingCost:
    """What inference takes, on a sample."""
    chosen = spread(tokens, TIMED_TOKENS)
    batches = [chosen.take(rows) for rows in plan_batches(chosen.lengths, token_budget)]
    with MemoryRise(encoder.device) as rise, encoder.inference(precision):
        seconds = seconds_of(lambda: [encoder.encode(batch, "passage") for batch in batches])
    return EncodingCost(seconds / float(chosen.lengths.sum()), rise.grown)


@kept
def search_seconds(dim: int, n: int, k: int, dtype: str, device: torch.device = CPU) -> float:
    """The seconds of exact search for each pair of a query and a passage, with random vectors on a device."""
    draw = torch.Generator().manual_seed(0)
    most, asked = TIMED_ON_CUDA if device.type == "cuda" else (TIMED_PASSAGES, TIMED_QUERIES)
    passages = torch.randn(min(n, most), dim, generator=draw).to(device, getattr(torch, dtype))
    queries = torch.randn(asked, dim, generator=draw).to(passages.dtype)
    index = ExactIndex(passages, device=device)
    return seconds_of(lambda: index.search(queries, k)) / (len(queries) * len(passages))


@kept
def bm25_seconds(data: TrainingData, k: int) -> LexicalCost:
    """The seconds in which BM25 indexes a passage, and searches one for a query, in memory.

    The sample is smaller where there is little memory; a limit of memory never refuses it.
    """
    collection, most = data.collection, max(memory.spare(), LEAST_MEMORY) // MEMORY_OF_ONE
    rows = spread_texts([collection.titles, collection.texts], TIMED_TEXTS, min(TEXT_BYTES, most))
    asked = spread_texts([collection.query_texts], TIMED_WORDS, WORD_BYTES)
    parts = zip(collection.titles.take(rows), collection.texts.take(rows), strict=True)
    texts, queries = [" ".join(both) for both in parts], collection.query_texts.take(asked)
    index_of(texts[:1], collection.language)  # loads what makes the terms
    begun = time.perf_counter()
    once = index_of(texts, collection.language)
    indexed = time.perf_counter() - begun
    # Copies of them are searched, so that what a query takes by itself counts little.
    needed, fitting = -(-SEARCHED // len(rows)), min(POSTINGS, most) // max(len(once.rows), 1)
    copies = min(needed, fitting, collection.n_passages // len(rows))
    index = repeated(once, max(copies, 1))
    searched = seconds_of(lambda: [*best_of_each(index, query_terms(index, queries), min(k, index.n))])
    return LexicalCost(indexed / len(rows), searched / (len(asked) * index.n))


@kept
def training_cost(
    encoder: BiEncoder, batch: TokenBatch, side: Side, precision: Precision, optimizer: str
) -> TrainingCost:
    """Train on a batch at learning rate 0, which leaves the weights of the encoder as they were."""

    def forward_backward() -> None:
        with torch.autocast(encoder.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            encoder.encode(batch, side).square().sum().backward()

    encoder.train()
    with MemoryRise(encoder.device) as rise:
        token = seconds_of(forward_backward) / float(batch.lengths.sum())
        update = update_seconds(encoder, optimizer)
    cost = TrainingCost(token, update, rise.before, rise.grown)
    encoder.zero_grad(set_to_none=True)
    encoder.eval()
    return cost


def update_seconds(model: nn.Module, optimizer: str) -> float:
    """The seconds of an update at learning rate 0 from the gradients that a model has; no weight changes."""
    return seconds_of(optimizers(optimizer, weight_decay=0.0)(model).step)


class MemoryRise:
    """How far the work of a block raises memory: that of the device if it is a GPU, else that of this process.

    What this process took before, and gave back, does not count: it may have trained something else.

    Attributes
    ----------
    before : the bytes that are held when the block begins.
    grown : the bytes at the peak, besides these.
    """

    before = grown = 0.0

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __enter__(self) -> Self:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self.before = float(torch.cuda.memory_allocated(self.device))
        else:
            memory.hand_back()
            self.before, self.watch = float(memory.highest_and_held()[1]), memory.PeakWatch()
        return self

    def __exit__(self, *fault: object) -> None:
        on_device = self.device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(self.device) if on_device else self.watch.end()
        self.grown = max(peak - self.before, 0.0)


class RankingCost(NamedTuple):
    """The seconds and bytes that a ranker takes, and the tokens of a pair."""

    trained: float  # seconds of a pair, forward and backward
    scored: float  # seconds to score a pair
    update: float  # seconds of an optimiser step
    tokens: float  # mean of the pairs
    before: float = 0.0  # bytes of memory that were held before training
    grown: float = 0.0  # bytes more at the peak, with a batch of :data:`TIMED_PAIRS` pairs


@kept
def ranking_cost(
    ranker: CrossEncoder,
    data: TrainingData,
    precision: Precision,
    optimizer: str | None = None,
    *,
    recompute: bool = False,
) -> RankingCost:
    """What scoring takes a ranker, and what training it takes; the ranker does not change.

    Parameters
    ----------
    optimizer : its name; None: training is not timed.
    recompute : whether the backward pass computes layers again.
    """
    collection, draw = data.collection, np.random.default_rng(0)
    rows = [draw.integers(0, n, TIMED_PAIRS) for n in (collection.n_queries, collection.n_passages)]
    template = ranker.template
    queries = token_batch(collection.query_texts.take(rows[0]), [], template.query, ranker.tokenizer)
    texts = collection.texts.take(rows[1]), collection.titles.take(rows[1])
    passages = token_batch(*texts, template.passage, ranker.tokenizer)
    pairs = PairStore(queries, passages, ranker.form, ranker.settings.max_length)
    places = np.arange(TIMED_PAIRS)
    batch = pairs.read(places, places)

    def forward_backward() -> None:
        with torch.autocast(ranker.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            ranker.score(batch).sum().backward()

    with ranker.inference(precision):
        scored = seconds_of(lambda: ranker.score(batch)) / TIMED_PAIRS
    tokens = float(batch.lengths.mean())
    if optimizer is None:
        return RankingCost(0.0, scored, 0.0, tokens)
    if recompute:
        recompute_layers(ranker)
    ranker.train()
    with MemoryRise(ranker.device) as rise:
        trained = seconds_of(forward_backward) / TIMED_PAIRS
        update = update_seconds(ranker, optimizer)
    cost = RankingCost(trained, scored, update, tokens, rise.before, rise.grown)
    ranker.zero_grad(set_to_none=True)
    ranker.eval()
    return cost
