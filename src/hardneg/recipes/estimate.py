"""An estimate, before anything runs, of what an experiment takes: counted from the data and timed on a sample."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_args

import numpy as np

from hardneg.data.tokens import token_batch
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.recomputing import recompute_layers
from hardneg.models.tokenizing import shorter
from hardneg.negatives.mining import training_depth
from hardneg.process.progress import clock, size_text
from hardneg.recipes.cost_model import Beside, CostModel, Last, judged_queries, queries_of_step
from hardneg.recipes.list_memory import BYTES, ENTRY, list_bytes
from hardneg.recipes.many_devices import ALONE, IN_ONE, overlap
from hardneg.recipes.microbenchmarks import (
    TIMED_PAIRS,
    TIMED_TOKENS,
    RankingCost,
    bm25_seconds,
    encode_seconds,
    encoding_cost,
    kept,
    ranking_cost,
    search_seconds,
    spread,
    timed_once,
    training_cost,
)
from hardneg.recipes.settings import Episode
from hardneg.recipes.untrained import Own
from hardneg.records import Side, TokenBatch
from hardneg.training.batches import micro_sizes

JUDGED = 100  # about the number of hits of a dev or test query
SAMPLE = 512  # texts that are tokenised to find their lengths and the speed of tokenising
BY_WORDS = "index and search by BM25"  # a stage
AGAIN = "a second, deeper search, where copies of positives leave a training query too few candidates"
DISK_RATE = 400e6  # bytes a second, to write or read with a digest
HIT, POSTING = 8, 8  # bytes of a hit in a run, a term of a passage in BM25's index


@dataclass(frozen=True)
class Sample:
    """Evenly spread texts of both sides, as token sequences."""

    queries: TokenBatch
    passages: TokenBatch
    seconds: float  # to tokenise them
    chunks: float = 1.0  # mean number of sequences of a passage
    read: TokenBatch | None = None  # the passages as training steps read them; None: as search does

    @property
    def in_steps(self) -> Sample:
        """The sample as training steps read it."""
        return self if self.read is None else replace(self, passages=self.read, read=None)

    def tokens(self, queries: float, passages: float) -> float:
        """The tokens of this number of queries and passages."""
        return float(queries * self.queries.lengths.mean() + passages * self.chunks * self.passages.lengths.mean())


def describe_work(
    work: CostModel, encoder: BiEncoder, *, seeds: int, measure: bool, own: Own | None = None
) -> dict[str, Any]:
    """The episodes and facts of an experiment; with ``measure`` also its time and memory, timed here on a sample.

    Parameters
    ----------
    work : with several ``devices``, time and memory are of so many devices like this one; disk is the same.
    own : the model as it came, if it is measured besides the model that training starts from.

    Returns
    -------
    ``episodes``: a table for each episode, which names its model if several are trained; ``facts``: lines for
    people. With ``measure`` also ``seconds`` of each stage and in ``total``, and ``bytes`` of ``disk`` and
    ``memory``.
    """
    sample = take_sample(work, encoder)
    facts = describe_counts(work, sample, seeds)
    if own is not None:
        facts["untrained"] = f"measured as you gave it, and {own.how}"
    several = any(one.episodes for one in work.beside)
    episodes = [
        {**({"model": name} if several else {}), **episode.as_json()} for name, episode in work.every_episode
    ]
    plan: dict[str, Any] = {"episodes": episodes, "facts": facts}
    if measure:
        stages, memory = time_stages(work, encoder, sample)
        if own is not None:
            add_own(stages, work, own)
        disk = disk_bytes(work, encoder, sample)
        for one in work.beside:
            more = add_beside(stages, work, one)
            disk, memory = disk + more.disk, memory + more.memory
        seconds = {stage: seeds * value for stage, value in stages.items()}
        total = sum(seconds.values())
        if work.devices.mining:
            begin = work.episodes[0].episode
            trained = {one.name: one.share_from(begin) for one in work.beside if one.steps}
            both = overlap(stages, work.states, sum(one.steps for one in work.episodes), trained)
            total -= seeds * both.seconds
            facts |= both.facts
        plan["seconds"] = seconds | {"total": total}
        plan["bytes"] = {"disk": seeds * disk, "memory": memory}
        facts |= {f"time to {stage}": clock(value) for stage, value in seconds.items()}
        facts["time in all, about"] = clock(plan["seconds"]["total"])
        facts |= {f"{name}, about": size_text(value) for name, value in plan["bytes"].items()}
        facts |= work.devices.facts
        if work.examined or work.mined:  # whether one is needed, only the search itself shows
            facts["not counted"] = AGAIN
    return plan


@kept
def take_sample(work: CostModel, encoder: BiEncoder) -> Sample:
    """Tokenise evenly spread texts of both sides."""
    begun = time.perf_counter()
    queries, passages = sample_side(work, encoder, "query"), sample_side(work, encoder, "passage")
    chunks, seconds = len(passages) / min(work.data.collection.n_passages, SAMPLE), time.perf_counter() - begun
    most = work.passage_length
    read = None if most is None else sample_side(work, encoder, "passage", most)
    return Sample(queries, passages, seconds, chunks, read)


def sample_side(work: CostModel, encoder: BiEncoder, side: Side, most: int | None = None) -> TokenBatch:
    """Evenly spread texts of one side as tokens; with ``most``, each is cut to so many tokens."""
    collection = work.data.collection
    n = collection.n_queries if side == "query" else collection.n_passages
    rows = np.unique(np.linspace(0, n - 1, min(n, SAMPLE)).astype(np.int64))
    texts = (collection.query_texts if side == "query" else collection.texts).take(rows)
    titles = [] if side == "query" else collection.titles.take(rows)
    return token_batch(texts, titles, shorter(encoder.template(side), most), encoder.tokenizer(side))


def describe_counts(work: CostModel, sample: Sample, seeds: int) -> dict[str, Any]:
    """The facts that are known without running anything."""
    collection, most = work.data.collection, widest(work)
    softmaxes = [in_softmax(work, one) for one in work.episodes if one.shared != "none"]
    negatives = dict.fromkeys(negatives_of(work, one) for one in work.episodes)  # each but once
    return {
        "passages": collection.n_passages,
        "training queries": len(work.data.train),
        "tokens of a query": f"{sample.queries.lengths.mean():.1f}",
        "tokens of a passage": f"{sample.tokens(0, 1):.1f}",
        **({"chunks of a passage": f"{sample.chunks:.2f}"} if sample.chunks > 1 else {}),
        "global batch": f"{queries_of_step(most)} queries"
        + (f" (in one softmax: {max(softmaxes)})" if softmaxes else ""),
        "negatives per query": ", then ".join(negatives),
        "optimiser steps": sum(one.steps for one in work.episodes),
        **{f"optimiser steps of {one.name}": one.steps for one in work.beside if one.steps},
        **({"further steps, to try learning rates": work.tried} if work.tried else {}),
        **{name: count for one in work.beside for name, count in one.facts.items()},
        **({"seeds": seeds} if seeds > 1 else {}),
    }


def in_softmax(work: CostModel, one: Episode) -> int:
    """The most queries of an episode whose passages meet in one softmax."""
    batch = queries_of_step(one)
    alone = one.passages_per_query == 1
    return max(micro_sizes(batch, work.micro_queries or max(batch, 1), alone=alone), default=0)


def negatives_of(work: CostModel, one: Episode) -> str:
    """The number of negatives of a query in an episode, for people."""
    hard, met = one.passages_per_query - 1, (in_softmax(work, one) - 1) * one.passages_per_query
    shared = {"none": 0, "all": met, "hardest": min(met, 1)}[one.shared]
    of = f", the hardest of {met}" if one.shared == "hardest" else ""
    return f"{hard + shared} ({hard} hard, {shared} in-batch{of})"


def disk_bytes(work: CostModel, encoder: BiEncoder, sample: Sample) -> float:
    """The most bytes that an experiment takes on the disk."""
    data, (model, checkpoint) = work.data, weights_of(work, encoder)
    collection, episodes = data.collection, len(work.episodes)
    checkpoints = sum(min(math.ceil(one.steps / work.checkpoint_every), 2) for one in work.episodes)
    if work.trial_steps:  # those of the best trial so far, beside the ones of the present trial
        checkpoints += min(math.ceil(work.trial_steps / work.checkpoint_every), 2)
    models = checkpoints * checkpoint + (episodes + 1 + work.models) * model
    vectors = work.sets * (sample.chunks * collection.n_passages + collection.n_queries) * encoder.dim
    searched = 2 * work.states * work.examined + work.mined
    hits = searched * len(data.train) * training_depth(collection, data.train, work.depth)
    entries = (episodes if work.pools is None else work.pools) * len(data.train) * work.entries
    tokens = sample.tokens(collection.n_queries, collection.n_passages)
    stores = BYTES[work.store_dtype] * vectors + HIT * hits + ENTRY * entries + (2 + POSTING) * tokens
    return models + stores + work.index


def weights_of(work: CostModel, encoder: BiEncoder) -> tuple[int, int]:
    """Bytes of a model, and of a checkpoint, which also has two moments of each trained parameter."""
    query, passage = (4 * sum(p.numel() for p in encoder.tower(side).parameters()) for side in get_args(Side))
    if work.query_side:
        return query + passage, 3 * query + passage
    model = query if encoder.tied else query + passage
    return model, 3 * model


def trained_bytes(work: CostModel, encoder: BiEncoder) -> float:
    """Bytes of the gradient of all trained parameters; a checkpoint has two moments of each besides the model."""
    model, checkpoint = weights_of(work, encoder)
    return (checkpoint - model) / 2


def widest(work: CostModel) -> Episode:
    """The episode whose steps have the most passages."""
    return max(work.episodes, key=lambda one: queries_of_step(one) * one.passages_per_query)


# ---------------------------------------------------------------- time


@timed_once()  # encoding is timed once for its seconds and its memory
def time_stages(work: CostModel, encoder: BiEncoder, sample: Sample) -> tuple[dict[str, float], float]:
    """Seconds of each stage of an experiment, and bytes of memory at its largest."""
    data, collection = work.data, work.data.collection
    searched: float = work.states * (2 * work.examined * len(data.train) + judged_queries(data))
    searched += work.mined * len(data.train)
    texts, indexed = collection.n_queries + collection.n_passages, round(sample.chunks * collection.n_passages)
    searched += 0 if work.query_side or data.dev is None else work.passed * len(data.dev)
    queries, corpora = work.encoded or (work.states, work.states + work.passed)
    alone = work.last if work.devices.mining else Last(0.0, 0.0, 0.0)
    tokens = sample.tokens(queries * collection.n_queries, corpora * collection.n_passages)
    k = training_depth(collection, data.train, work.depth) * (1 if sample.chunks == 1 else 2)
    a_search = indexed * search_seconds(encoder.dim, indexed, k, work.store_dtype, encoder.device)
    a_token = encode_seconds(encoder, sample.passages, work.token_budget, work.precision)
    own = sample.tokens(alone.queries * collection.n_queries, alone.corpora * collection.n_passages)
    seconds = {
        "tokenise": sample.seconds * texts / (len(sample.queries) + len(sample.passages) / sample.chunks),
        "encode": work.devices.miners.share(tokens - own) * a_token,
        "search": shared_search(work, (searched - alone.searched) * a_search),
    }
    if work.by_words:
        seconds[BY_WORDS] = 0.0  # its place among the stages
    if work.devices.mining:
        seconds[IN_ONE] = own * a_token + alone.searched * a_search
    seconds["train"], memory = time_training(work, encoder, sample)
    visits = sum(one.steps * queries_of_step(one) for one in work.episodes) * work.query_side
    seconds["train"] += shared_search(work, visits * a_search)
    add_exchange(seconds, work, sum(one.steps for one in work.trained), trained_bytes(work, encoder))
    seconds["save and verify"] = stored_bytes(work, encoder) / DISK_RATE
    add_words(seconds, work)
    return seconds, memory + weights_of(work, encoder)[0] + work.index  # the miner stays beside the trainee


def add_words(seconds: dict[str, float], work: CostModel) -> None:
    """Add the seconds in which BM25 searches, if it does, and before indexes all passages, on one machine."""
    if work.by_words:
        data = work.data
        cost = bm25_seconds(data, training_depth(data.collection, data.train, work.depth))
        taken = data.collection.n_passages * (cost.passage * (not work.indexed) + work.by_words * cost.pair)
        seconds[BY_WORDS] = taken


def shared_search(work: CostModel, seconds: float) -> float:
    """The seconds of a search that takes one device ``seconds``; only one process searches an index of faiss."""
    return seconds if work.faiss else work.devices.miners.share(seconds)


def add_exchange(seconds: dict[str, float], work: CostModel, steps: int, size: float) -> None:
    """Add the seconds that several devices take to sum ``size`` bytes of gradients in each step."""
    if work.devices.count > 1:
        before = seconds.get("exchange gradients", 0.0)
        seconds["exchange gradients"] = before + steps * work.devices.exchange_seconds(size)


class Bytes(NamedTuple):
    """The bytes that a model beside the trained one takes on the disk and in memory."""

    disk: float
    memory: float


def add_beside(seconds: dict[str, float], work: CostModel, one: Beside) -> Bytes:
    """Add the time that a model beside the retriever takes; returns its bytes on the disk and in memory.

    In memory it has its weights and, if it is trained, gradients and two moments of each parameter. Activations
    are not added, because it computes while the retriever does not.
    """
    if one.model is None:
        return Bytes(0.0, 0.0)
    model = one.model()
    weights = 4 * sum(p.numel() for p in model.parameters())
    if isinstance(model, BiEncoder):
        sample, collection = take_sample(work, model), work.data.collection
        seconds["encode"] = seconds.get("encode", 0.0) + whole_encoding(work, model, sample, get_args(Side))
        vectors = (sample.chunks * collection.n_passages + collection.n_queries) * model.dim
        return Bytes(BYTES[work.store_dtype] * vectors, weights)
    optimizer = work.optimizer if one.steps else None
    cost = ranking_cost(model, work.data, work.precision, optimizer, recompute=work.recompute)
    scored = cost.scored
    if one.scored:
        live = one.scored * scored  # of a model that is trained beside, each process scores a part of a step
        seconds[f"score by {one.name}"] = work.devices.share(live) if one.steps else live
    if one.reranked:
        last = sum(work.reranks) if work.devices.mining else 0  # pairs of the stages of the command's own process
        seconds[f"re-rank by {one.name}"] = (one.reranked - last) * scored
        if last:
            seconds[IN_ONE] += last * scored
    if not one.steps:
        return Bytes(0.0, weights)
    seconds[f"train {one.name}"] = ranker_seconds(cost, work, one.episodes)
    add_exchange(seconds, work, one.steps, weights)
    checkpoints = 3 * math.ceil(one.steps / work.checkpoint_every)
    seconds["save and verify"] += (6 * one.models + 2 * checkpoints) * weights / DISK_RATE
    return Bytes((one.models + min(checkpoints, 6)) * weights, 4 * weights)


def ranker_seconds(cost: RankingCost, work: CostModel, episodes: Sequence[Episode]) -> float:
    """Seconds of a ranker's training; as :func:`time_training` counts steps, the gradient cache and devices."""

    def of_step(one: Episode) -> float:
        pairs = work.devices.share(queries_of_step(one) * one.passages_per_query)
        cached = work.chunk_tokens is not None and pairs * cost.tokens > work.chunk_tokens
        return cost.update + pairs * cost.trained * (4 / 3 if cached else 1.0)

    return sum(one.steps * of_step(one) for one in episodes)


def ranker_memory(
    cost: RankingCost, work: CostModel, episode: Episode, ranker: CrossEncoder, retriever: BiEncoder | None
) -> float:
    """Bytes of memory of a ranker's training at its largest, or of the search of the model that ranks first.

    A pair takes memory in proportion; gradients and the two moments of the optimiser do not grow with the pairs.

    Parameters
    ----------
    retriever : ranks first; None: BM25 does.
    """
    count = min(work.micro_queries or episode.queries_per_step, queries_of_step(episode))
    pairs = work.devices.share(count * episode.passages_per_query)
    if work.chunk_tokens is not None:
        pairs = min(pairs, max(work.chunk_tokens / cost.tokens, 1.0))
    fixed = min(3 * 4 * sum(p.numel() for p in ranker.parameters()), cost.grown)
    training = fixed + (cost.grown - fixed) * max(pairs / TIMED_PAIRS, 1.0)
    if retriever is None:
        return cost.before + max(training, list_bytes(work, 0, device=ranker.device.type))
    chunks, device = float(retriever.settings.chunks), retriever.device.type
    lists = list_bytes(work, retriever.dim, chunks=chunks, device=device)
    return cost.before + weights_of(work, retriever)[0] + max(training, lists)


def whole_encoding(work: CostModel, encoder: BiEncoder, sample: Sample, sides: Sequence[Side]) -> float:
    """Seconds to encode all texts of these sides once."""
    texts = {"query": work.data.collection.n_queries, "passage": work.data.collection.n_passages}
    tokens = sample.tokens(*(texts[side] if side in sides else 0 for side in ("query", "passage")))
    a_token = encode_seconds(encoder, sample.passages, work.token_budget, work.precision)
    return work.devices.miners.share(tokens) * a_token


def add_own(seconds: dict[str, float], work: CostModel, own: Own) -> None:
    """Add the seconds to encode and search with the model as it came, for the queries of dev and test alone."""
    if not work.devices.mining:
        add_search(seconds, work, own.load(), judged_queries(work.data), JUDGED, sides=own.sides)
        return
    took: dict[str, float] = {}  # in the process of the command, as the final state
    in_one = replace(work, devices=ALONE)
    add_search(took, in_one, own.load(), judged_queries(work.data), JUDGED, sides=own.sides)
    seconds[IN_ONE] += sum(took.values())


def add_search(
    seconds: dict[str, float], work: CostModel, encoder: BiEncoder, queries: int, k: int, *, sides: Sequence[Side]
) -> None:
    """Add the seconds to encode these sides by another model, and to search so many queries with it, k deep."""
    sample, whole = take_sample(work, encoder), work.data.collection.n_passages
    indexed = round(sample.chunks * whole)
    a_search = indexed * search_seconds(encoder.dim, indexed, k, work.store_dtype, encoder.device)
    seconds["encode"] = seconds.get("encode", 0.0) + whole_encoding(work, encoder, sample, sides)
    seconds["search"] = seconds.get("search", 0.0) + shared_search(work, queries * a_search)


def stored_bytes(work: CostModel, encoder: BiEncoder) -> float:
    """Bytes that are written and read for checkpoints and models; models are also verified and digested."""
    model, checkpoint = weights_of(work, encoder)
    checkpoints = sum(math.ceil(one.steps / work.checkpoint_every) for one in work.trained)
    return 2 * checkpoint * checkpoints + 6 * model * (len(work.episodes) + work.models)


def time_training(work: CostModel, encoder: BiEncoder, sample: Sample) -> tuple[float, float]:
    """Seconds of all optimiser steps, and bytes of memory at their largest.

    Micro-batches of more than ``TIMED_TOKENS`` tokens are timed on a part of them. The gradient cache adds a
    second forward pass, which takes half the time of a backward pass. Several devices share the texts of a step;
    each of them makes the whole update.
    """
    side: Side = "query" if work.query_side else "passage"
    text = sample.tokens(1, 0) if work.query_side else sample.in_steps.tokens(0, 1)
    whole = work.devices.share(tokens_of_step(widest(work), work.micro_queries, sample, work), text)
    micro = min(whole, work.chunk_tokens or whole)
    passes = 4 / 3 if micro < whole else 1.0
    tokens = sample.queries if work.query_side else sample.in_steps.passages
    if work.recompute:
        recompute_layers(encoder)
    timed = spread(tokens, int(min(micro, TIMED_TOKENS)))
    cost = training_cost(encoder, timed, side, work.precision, work.optimizer)
    seconds = sum(
        one.steps
        * (cost.update + passes * cost.token * work.devices.share(tokens_of_step(one, None, sample, work), text))
        for one in work.trained
    )
    encoding = encoding_cost(encoder, sample.passages, work.token_budget, work.precision)
    lists = list_bytes(work, encoder.dim, chunks=sample.chunks, device=encoder.device.type)
    return seconds, cost.before + max(cost.grown * max(micro / TIMED_TOKENS, 1.0), encoding.grown, lists)


def tokens_of_step(episode: Episode, queries: int | None, sample: Sample, work: CostModel) -> float:
    """Tokens of a step, or of so many of its ``queries``; a passage that is drawn twice is encoded once.

    If only the query side is trained, passages are not encoded.
    """
    sample = sample.in_steps
    count = min(queries or episode.queries_per_step, queries_of_step(episode))
    if work.query_side:
        return sample.tokens(count, 0)
    n = work.data.collection.n_passages
    distinct = n * (1 - (1 - 1 / n) ** (count * episode.passages_per_query))
    return sample.tokens(count, distinct)
