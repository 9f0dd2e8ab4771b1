"""The work of the frozen models of an experiment, for its estimate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.source import ModelSource
from hardneg.negatives.pool import NegativePool
from hardneg.recipes.cost_model import Beside, CostModel, queries_of_step
from hardneg.recipes.frozen import frozen_source, open_frozen
from hardneg.recipes.group_settings import GroupSettings, MiningSettings
from hardneg.recipes.microbenchmarks import kept
from hardneg.recipes.settings import TrainingSettings


def frozen_work(
    settings: TrainingSettings, work: CostModel, source: ModelSource, pool: NegativePool | None, digest: str | None
) -> list[Beside]:
    """The counted work of the frozen models of an experiment; a model that filters and teaches is one entry.

    Parameters
    ----------
    pool : the pool that training begins with; None: none is given.
    digest : the digest of the given teacher; None: none is given.
    """
    if not isinstance(settings, MiningSettings):
        return []
    train, counts = work.data.train, dict[str | None, tuple[str, int]]()
    if settings.bounds and settings.filter_by != "miner":
        pairs = work.mined_pools * (len(train) * work.compared + len(train.passage_rows))
        counts[source.filter_by] = "the guide", pairs
    if isinstance(settings, GroupSettings) and settings.distill is not None:
        place = source.teacher or source.filter_by
        name, pairs = counts.get(place, ("the teacher", 0))
        stored = pool is not None and pool.ranker and digest in (None, pool.ranker) and not settings.unscored
        taught = [one for one in work.episodes if one.passages_per_query > 1]  # groups of one passage are not
        live = sum(one.steps * queries_of_step(one) * one.passages_per_query for one in taught)
        counts[place] = name, pairs + (0 if stored else live)
    return [Beside(name, model_at(source, place), pairs) for place, (name, pairs) in counts.items() if pairs]


def model_at(source: ModelSource, place: str | None) -> Callable[[], BiEncoder | CrossEncoder] | None:
    """The function that opens the frozen model at a place; None: it is the model that training starts from."""
    return None if place is None else partial(kept(open_frozen), frozen_source(source, place))
