"""The cost of the experiments of the AR2 study, counted before they run.

The unit is one passage read forward; backward counts twice as much. A pair of query and passage is longer than the
passage, a query is shorter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness import Step

from hardneg.data.collection import Collection
from hardneg.data.training_data import choose_splits

PAIR, QUERY, BOTH_WAYS = 1.5, 0.25, 3
START_SECONDS = 15.0  # seconds of a process to load, check and write results
READ_SECONDS = 0.024  # seconds to read 64 tokens with MiniLM on one old core, in float32


@dataclass(frozen=True)
class Amounts:
    """The sizes of a collection: passages, training queries, queries of dev and test."""

    passages: int
    train: int
    judged: int

    @classmethod
    def of(cls, collection: Collection) -> Amounts:
        """The sizes of a collection, with the splits that experiments choose."""
        data = choose_splits(collection)
        return cls(collection.n_passages, len(data.train), sum(len(one) for one in data.judged.values()))

    @property
    def state(self) -> float:
        """The reads to encode all passages and queries with one state of a retriever."""
        return self.passages + QUERY * (self.train + self.judged)


def reads(step: Step, common: Mapping[str, object], amounts: Amounts) -> float:
    """The number of passages that an experiment reads, in forward reads; repeated reads count again."""
    of: dict[str, Any] = {**common, **step.settings}
    queries = of["queries_per_step"]
    if step.recipe == "warmup":
        return 2 * amounts.state + BOTH_WAYS * of["steps"][0] * queries * (1 + of["negatives"][0])
    if step.recipe == "ranker":
        width = 1 + of["negatives_per_query"]
        trained = BOTH_WAYS * of["steps"] * queries * width
        return amounts.state + PAIR * (trained + 2 * of["rerank"] * amounts.judged)
    if step.recipe == "ance":
        steps = (of["refreshes"] + 1) * of["refresh_every"]
        trained = BOTH_WAYS * steps * queries * (1 + of["negatives_per_query"])
        return (of["refreshes"] + 2) * amounts.state + trained
    if step.recipe == "ance-tele":
        steps = of["steps"] + (of["episodes"] - 1) * of["stop_step"]
        return (of["episodes"] + 1) * amounts.state + BOTH_WAYS * steps * queries * of["passages_reference"][0]
    return game_reads(of, amounts)


def game_reads(of: Mapping[str, Any], amounts: Amounts) -> float:
    """The reads of AR2: both turns, the refreshes, and re-ranking, twice for each iteration and twice by D⁰."""
    iterations, width = of["iterations"], 1 + of["negatives_per_query"]
    retriever = (BOTH_WAYS + PAIR) * of["retriever_steps"] * of["queries_per_step"] * width
    ranker = PAIR * BOTH_WAYS * of["ranker_steps"] * of["ranker_queries_per_step"] * width
    reranked = PAIR * of["rerank_depth"] * amounts.judged * 2 * (iterations + 1)
    return (iterations + 1) * amounts.state + iterations * (retriever + ranker) + reranked


def hours(step: Step, common: Mapping[str, object], amounts: Amounts) -> float:
    """Hours of one old core with MiniLM; longer passages take longer in proportion."""
    length = float(str(common["passage_length"])) / 64
    return (START_SECONDS + READ_SECONDS * length * reads(step, common, amounts)) / 3600
