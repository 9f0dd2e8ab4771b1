"""The stages of an experiment, each with its work, taken from the counts of the experiment's cost model.

Only the work that takes most of the time is counted: tokens that are encoded, queries that are searched, optimiser
steps, and pairs that a ranker scores to be measured, alone or behind a retriever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from hardneg.process.launch import world_size
from hardneg.process.stages import Amount, Planned
from hardneg.recipes.cost_model import CostModel, judged_queries
from hardneg.recipes.estimate import Sample, tokens_of_step
from hardneg.recipes.settings import Episode

FIRST, LAST = "bm25", "finish"  # the stages that every experiment begins and ends with
MEASURE, MINE, TRAIN = "measure", "mine", "train"
RANKING = "train ranker"


def stages_of(work: CostModel, sample: Sample, *, as_it_came: bool = False) -> list[Planned]:
    """The stages of training a retriever, in order.

    Parameters
    ----------
    as_it_came : whether the model as it came is measured too, because training starts from another one.
    """
    order = kinds_of(work)
    makers = {MEASURE: measuring(work, sample, order), MINE: mining(work, order)}
    makers[TRAIN] = training(work, sample, order, TRAIN, work.trained)
    others = list(chain.from_iterable(one.episodes for one in work.beside))
    makers[RANKING] = training(work, sample, order, RANKING, others)
    seen = dict.fromkeys(order, 0)
    stages = []
    for kind, pairs in zip(order, work.reranks or [0] * len(order), strict=True):
        amounts = makers[kind](seen[kind]) | {"score": Amount(pairs)}
        stages.append(Planned(kind, {name: one for name, one in amounts.items() if one.ticks}))
        seen[kind] += 1
    like = stages[0 if work.query_side else -1]  # the model as it came mines nothing, as the last one
    before = [Planned(MEASURE, like.work)] if as_it_came else []
    return [Planned(FIRST), *before, *stages, Planned(LAST)]


def kinds_of(work: CostModel) -> list[str]:
    """The kinds of the stages between the first and the last one, in order."""
    if work.order:
        return [*work.order]
    order = [MEASURE, MINE, TRAIN] * len(work.episodes)
    trials = [TRAIN] * work.rates if work.trial_steps else []  # before the rest of the first episode
    return [*order[:2], *trials, *order[2:], MEASURE]


Maker = Callable[[int], dict[str, Amount]]  # the number of a stage among those of its kind -> its work


def measuring(work: CostModel, sample: Sample, order: Sequence[str]) -> Maker:
    """The work of measuring a state: encoding all texts, and searching for training queries, dev and test."""
    collection, n = work.data.collection, order.count(MEASURE)
    queries, corpora = work.encoded or (work.states, work.states + work.passed)
    fixed = work.query_side  # one encoding of the passages serves all states
    examined = 2 * len(work.data.train) if work.examined else 0
    searched = work.states * (examined + judged_queries(work.data)) / n

    def amounts(number: int) -> dict[str, Amount]:
        own = [*work.shares, 0.0][min(number, len(work.shares))] if work.shares else 1.0  # 0: a plan counts fewer
        share = (corpora if number == 0 else 0) if fixed else own
        tokens = own_share(sample.tokens(queries / n * collection.n_queries, share * collection.n_passages))
        return {"encode": Amount(tokens), "search": Amount(searched)}

    return amounts


def own_share(tokens: float) -> float:
    """The tokens of this process, where several encode a part each; its reports count no others."""
    return tokens / world_size()


def mining(work: CostModel, order: Sequence[str]) -> Maker:
    """The work of mining. Runs of the state that mines are not counted if they were searched to measure it."""
    searched = work.mined * len(work.data.train) / max(order.count(MINE), 1)
    return lambda number: {"search": Amount(searched)}


def training(
    work: CostModel, sample: Sample, order: Sequence[str], kind: str, episodes: Sequence[Episode]
) -> Maker:
    """The work of a turn of training: steps, and encoding passages for each state that is measured between."""
    n = max(order.count(kind), 1)
    passed = 0 if work.query_side or kind != TRAIN else work.passed
    tokens = own_share(sample.tokens(0, passed * work.among / n * work.data.collection.n_passages))

    def amounts(number: int) -> dict[str, Amount]:
        mine = [episodes[number]] if len(episodes) == n else episodes
        steps = sum(one.steps for one in mine) / (1 if len(episodes) == n else n)
        each = tokens_of_step(mine[0], None, sample, work) if mine else 1.0
        return {kind: Amount(steps, each), "encode": Amount(tokens)}

    return amounts
