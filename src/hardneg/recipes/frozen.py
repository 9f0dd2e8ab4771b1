"""Frozen models beside the trained one: they tell which passages are no negatives, or are teachers to distil.

They do not change during training, so a resumed experiment finds the same scores.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hardneg.data.collection import Collection
from hardneg.data.training_data import TrainingData
from hardneg.errors import SettingsError
from hardneg.experiment.layout import cache_beside
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.loading import open_encoder
from hardneg.models.source import ModelSource
from hardneg.negatives.imported_pool import import_pool
from hardneg.negatives.pool import SCORES, NegativePool, scores_in
from hardneg.negatives.scores import Guide, Score, StoredScores, guide_of, is_scored, lowest_positive
from hardneg.recipes.catalogue import RecipeFacts
from hardneg.recipes.group_settings import GroupSettings, MiningSettings
from hardneg.recipes.settings import TrainingSettings
from hardneg.search.rerank import RetrieverScorer
from hardneg.search.retriever import Retriever
from hardneg.search.scorers import maybe_ranker, scorer_at
from hardneg.training.guide_mask import GuideMask
from hardneg.training.objectives import GroupLoss, TaughtLoss

log = logging.getLogger(__name__)

COSINE = 1.01  # rounded cosines are at most so far from 0
UNKNOWN_SCALE = (
    "the pool's scores look like cosines, and it does not say its model's scale: they are distilled as they are;"
    " if a bi-encoder made them, score the pool again, or set teacher_temperature = 1/scale of that model"
)


@dataclass(frozen=True)
class FrozenModels:
    """The frozen models of an experiment, opened when they are first asked for.

    Attributes
    ----------
    settings : the settings, which say which models are needed and how embeddings are made.
    source : names the places of the models.
    starting : makes the model that training starts from.
    cache : the folder of their token stores and embeddings.
    """

    settings: MiningSettings
    source: ModelSource
    starting: Callable[[], BiEncoder]
    collection: Collection
    cache: Path

    @property
    def groups(self) -> GroupSettings | None:
        """The settings, if the recipe trains a retriever on groups; else None."""
        return self.settings if isinstance(self.settings, GroupSettings) else None

    @property
    def distills(self) -> bool:
        """Whether a teacher's scores are a part of the loss."""
        return self.groups is not None and self.groups.distill is not None

    @property
    def distills_stored(self) -> bool:
        """Whether a scored pool's own scores are distilled: all negatives are from it, and no teacher is given."""
        groups = self.groups
        return groups is not None and self.distills and not groups.unscored and self.source.teacher is None

    @cached_property
    def start(self) -> Retriever:
        """The model that training starts from, over the collection."""
        options: Any = {"encoding": self.settings.encoding, "beside": cache_beside(self.source.model)}
        return Retriever(self.starting(), self.collection, self.cache, **options)

    def _at(self, place: str) -> Guide:
        """The model at a place as a guide."""
        source = frozen_source(self.source, place)
        beside = cache_beside(source.model)
        scorer = scorer_at(source, self.collection, self.cache, self.settings.encoding, beside)
        return guide_of(scorer, self.collection)

    @cached_property
    def guide(self) -> Guide | None:
        """The model whose scores the bounds on mined negatives compare; None: the model that mines."""
        if self.settings.filter_by == "start":
            return guide_of(RetrieverScorer(self.start, as_trained=True), self.collection)
        return None if self.source.filter_by is None else self._at(self.source.filter_by)

    @cached_property
    def given_teacher(self) -> Guide | None:
        """The model that was given as the teacher; if there is none, the guide."""
        return self.guide if self.source.teacher is None else self._at(self.source.teacher)

    def teacher(self, pool: NegativePool | None) -> Score | None:
        """The teacher as a function of pairs, with scores from the pool if it has them; None: none is distilled.

        A bi-encoder's scores are multiplied by its own scale, as the student's are by its.

        Raises
        ------
        SettingsError : there is neither a teacher nor a scored pool.
        """
        if not self.distills:
            return None
        live, named = self.given_teacher, self.source.teacher is not None
        if pool is not None and pool.ranker and not (named and pool.ranker != live.digest):  # type: ignore[union-attr]
            if live is None or is_scored(pool):
                return as_logits(StoredScores(pool), self._stored_scale(pool, live))
            if not named:
                log.warning(
                    "the pool has no score for some positives: the scores of the model to filter by are distilled"
                    " instead"
                )
        if live is None:
            raise no_teacher(takes_pool=pool is not None)
        return as_logits(live.score, live.scale)

    def _stored_scale(self, pool: NegativePool, live: Guide | None) -> float:
        """The factor from a pool's stored scores to the logits of the ranker that made them."""
        if pool.ranker_scale is not None:
            return pool.ranker_scale
        if live is not None and live.digest == pool.ranker:
            return live.scale
        assert self.groups is not None
        scores = np.concatenate([scores_in(pool, name) for name in SCORES])
        if np.nanmax(np.abs(scores), initial=0.0) <= COSINE and self.groups.teacher_temperature == 1.0:
            log.warning(UNKNOWN_SCALE)
        return 1.0

    @cached_property
    def mask(self) -> GuideMask | None:
        """The mask of the columns of a step that the starting model takes for positives; None: none is masked."""
        groups = self.groups
        return None if groups is None or not groups.guide_mask else GuideMask(self.start, groups.guide_margin)

    def taught(self, loss: GroupLoss, scale: float) -> GroupLoss | TaughtLoss:
        """The loss of a step, with the teacher's term if there is one; ``scale`` is that of the model's scores."""
        return loss if self.groups is None else self.groups.distilled(loss, scale)

    def of_objective(self, pool: NegativePool | None, *, taught: bool = True) -> dict[str, Any]:
        """The arguments of :func:`~hardneg.training.objectives.group_objective` that come from the frozen models.

        Parameters
        ----------
        pool : the pool that is trained on; None: it changes during training.
        taught : whether the teacher scores the groups.
        """
        return {"mask": self.mask, "teacher": self.teacher(pool) if taught else None}

    def open_together(self) -> None:
        """Encode with the starting model on all processes together, if needed, before one process mines alone."""
        if self.settings.keeps_start:
            _ = self.start.training_queries, self.start.passages


def as_logits(score: Score, scale: float) -> Score:
    """The scores of a function of pairs times a model's scale."""
    return score if scale == 1.0 else lambda query_rows, passage_rows: score(query_rows, passage_rows) * scale


def frozen_models(
    settings: TrainingSettings,
    source: ModelSource,
    starting: Callable[[], BiEncoder],
    data: TrainingData,
    cache: Path,
) -> FrozenModels | None:
    """The frozen models of an experiment; None for a recipe that has no use for them."""
    if not isinstance(settings, MiningSettings):
        return None
    return FrozenModels(settings, source, starting, data.collection, cache)


def frozen_source(source: ModelSource, place: str) -> ModelSource:
    """The record of a frozen model at a place, which is read with the same permissions as the trained one."""
    return dataclasses.replace(source, model=place, passage_model=None, ranker=None)


def frozen_inputs(
    facts: RecipeFacts, settings: TrainingSettings, source: ModelSource, pool: NegativePool | None
) -> dict[str, str]:
    """The digests of the given frozen models, by their use; each model is read for this and then dropped.

    Parameters
    ----------
    facts : of the recipe, so that no advice names a pool to a recipe that takes none.
    pool : the pool that training begins with; None: none is given.

    Raises
    ------
    SettingsError : a teacher should be distilled, no teacher is given, and the pool has no scores or is not the
        only source of negatives.
    """
    if isinstance(settings, GroupSettings) and settings.distill is not None:
        named = source.teacher is not None or settings.filter_by != "miner"
        if not named and (pool is None or not pool.ranker):
            raise no_teacher(takes_pool=facts.takes_pool)
        if not named and settings.unscored:
            what = "a teacher is to be distilled, but some negatives are not from the scored pool"
            alone = f"train on the scored negatives alone ({settings.given_alone})"
            raise SettingsError("NO_TEACHER", what, f"give --teacher M, or {alone}")
    places = {"filter_by": source.filter_by, "teacher": source.teacher}
    return {name: digest_at(frozen_source(source, place)) for name, place in places.items() if place is not None}


def check_stored(
    settings: TrainingSettings, teacher: str | None, pool: NegativePool | None, data: TrainingData
) -> None:
    """Refuse to distil the scores of a pool that has none for a positive.

    With labels by answers, the positives are not known yet, and nothing is refused.

    Raises
    ------
    NumericError : a query has a negative in the pool, and a positive without a score.
    """
    if pool is None or not pool.ranker or teacher is not None or data.labels.labels == "answers":
        return
    if not isinstance(settings, GroupSettings) or settings.filter_by != "miner":
        return  # the model to filter by would teach
    if settings.distill is not None and not settings.unscored:
        lowest_positive(import_pool(pool, data.train, 1, data.collection.text_keys))


def open_frozen(source: ModelSource) -> BiEncoder | CrossEncoder:
    """Open a model as a cross-encoder or a bi-encoder, whichever its folder says."""
    ranker = maybe_ranker(source)
    return open_encoder(source) if ranker is None else ranker


def digest_at(source: ModelSource) -> str:
    """The digest of a model, which is opened as a cross-encoder or a bi-encoder, whichever its folder says."""
    return open_frozen(source).digest()


def no_teacher(*, takes_pool: bool) -> SettingsError:
    """The fault that there is nothing to distil; ``takes_pool``: whether a pool could have a teacher's scores."""
    what = "distill is set, but no teacher is given, and the negatives have no scores"
    fix = "give --teacher M, or negatives that `hardneg score` made (--pool SCORED)"
    if not takes_pool:
        what, fix = "distill is set, but no teacher is given", "give --teacher M"
    return SettingsError("NO_TEACHER", what, fix)
