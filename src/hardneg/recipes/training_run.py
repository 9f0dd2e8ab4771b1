"""A training run: settings, data and experiment of a recipe, and the states, pools and stages made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import nn

from hardneg.data.training_data import TrainingData
from hardneg.experiment.folder import Experiment
from hardneg.experiment.margins import MarginLog, report_queries
from hardneg.experiment.metrics import Metrics
from hardneg.experiment.names import UNTRAINED, Kind
from hardneg.experiment.snapshot import ArchivedState, Snapshot
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.recomputing import recompute_layers
from hardneg.models.saving import save_encoder
from hardneg.negatives.candidates import ALL, Contains, Filters
from hardneg.negatives.imported_pool import import_pool
from hardneg.negatives.labels import answers_of, with_pool_positives
from hardneg.negatives.mining import Corpus, mine_candidates
from hardneg.negatives.pool import KIND as POOL
from hardneg.negatives.pool import NegativePool, open_pool, save_pool
from hardneg.negatives.scores import Guide
from hardneg.process import stages
from hardneg.process.distributed import by_leader, leader_first
from hardneg.recipes.frozen import FrozenModels
from hardneg.recipes.settings import TrainingSettings
from hardneg.records import Positives
from hardneg.storage.artifacts import is_current
from hardneg.training.loop import Batch, Objective
from hardneg.training.objectives import GroupLoss, group_objective
from hardneg.training.optim import Schedule
from hardneg.training.stage import RETRIEVER, Save, Stage, Trainee

S = TypeVar("S", bound=TrainingSettings)


@dataclass(frozen=True)
class TrainingRun(Generic[S]):
    """The settings, data and experiment that a recipe runs with.

    Attributes
    ----------
    settings : the settings of the recipe.
    data : training queries, and the judgements of dev and test.
    experiment : the folder in which all results are published.
    frozen : frozen models that filter negatives or teach; None: the recipe has no use for them.
    """

    settings: S
    data: TrainingData
    experiment: Experiment
    frozen: FrozenModels | None = None

    @property
    def guide(self) -> Guide | None:
        """The frozen model whose scores the bounds on mined negatives compare; None: the model that mines."""
        return None if self.frozen is None else self.frozen.guide

    @property
    def filters(self) -> Filters:
        """The bounds on negatives; a recipe without such settings has none."""
        return getattr(self.settings, "filters", ALL)

    def searches_for(self, *, mined: bool) -> bool:
        """Whether an episode needs a search: if its negatives are mined, or the model finds the positives."""
        return mined or self.data.by_answers

    @property
    def guide_inputs(self) -> dict[str, str]:
        """The digest of the guide, as an input of the negatives that are mined with it."""
        return {} if self.guide is None else {"filter_by": self.guide.digest}

    @property
    def last_model(self) -> Path:
        """The folder of the model after the last step."""
        return self.experiment / self.settings.last_model

    @property
    def inputs(self) -> dict[str, str]:
        """Digests of the data, as inputs of everything that is made from them."""
        return {"collection": self.data.collection.digest, "splits": self.data.digest}

    @cached_property
    def margins(self) -> MarginLog:
        """The log in which the margins of training groups are kept."""
        rows = report_queries(self.data.train.query_rows, self.settings.pair_margins)
        return MarginLog(self.experiment.layout.margins, rows)

    # ------------------------------------------------------------ states

    def state(self, encoder: BiEncoder, name: str, runs: Path, **facts: Any) -> Snapshot:
        """A state of the model, whose runs are kept in ``runs``.

        Embeddings of the pretrained model stay in a shared cache, because other experiments start from it, too.

        Parameters
        ----------
        facts : other parameters of :class:`~hardneg.experiment.snapshot.Snapshot`.
        """
        experiment, keeps_start = self.experiment, self.settings.keeps_start
        return Snapshot(
            encoder,
            self.data.collection,
            name,
            runs,
            experiment.cache,
            encoding=self.settings.encoding,
            beside=experiment.beside,
            timed=experiment.timed,
            keeps=name == UNTRAINED and (experiment.shares_cache or keeps_start),
            asked=self.settings.examine,
            sparing=self.settings.examine == "judged",
            **facts,
        )

    def state_of_episode(self, encoder: BiEncoder, episode: int, episodes: int, *, mines: bool = True) -> Snapshot:
        """The state that ``episode`` of all ``episodes`` begins with; past the last episode, the final state.

        Parameters
        ----------
        mines : whether the negatives of the episode are mined with it.
        """
        layout = self.experiment.layout
        built_on = layout.episode(episode - 1)
        before = None if episode == self.settings.first_episode else built_on.negatives
        if episode > episodes:
            return self.final_state(encoder, pool=before, episode=episode - 1)
        runs = layout.episode(episode).runs
        if before is None:
            return self.state(encoder, UNTRAINED, runs, kind="untrained", mines=mines)
        facts: dict[str, Any] = {"pool": before, "weights": built_on.model, "episode": episode - 1, "mines": mines}
        return self.state(encoder, f"episode-{episode - 1}", runs, kind="episode", **facts)

    def final_state(
        self, encoder: BiEncoder, step: int | None = None, pool: Path | None = None, *, episode: int = 1
    ) -> Snapshot:
        """The state after the last step, which belongs to ``episode``."""
        name: Kind = self.settings.last_state
        runs = self.experiment.layout.runs_of(name)
        facts = {"step": step, "pool": pool, "episode": episode, "mines": False}
        return self.state(encoder, name, runs, weights=self.last_model, kind=name, **facts)

    def measured_states(self, episode: int, *, after: int = 0, before: int) -> Iterator[ArchivedState]:
        """Yield the states of an episode that were measured between two steps, in order.

        Parameters
        ----------
        after, before : only states between these steps, both excluded.
        """
        layout = self.experiment.layout
        for place in by_leader(layout.measured_states):
            if place[0] == episode and after < place[1] < before:
                there = layout.state(place[1], episode)
                yield ArchivedState(
                    self.settings.name_of_step(*place),
                    there.runs,
                    step=place[1],
                    asked="dev",
                    weights=there.model,
                    episode=episode,
                )

    # ------------------------------------------------------------ negatives

    def pool(
        self,
        episode: int,
        inputs: Mapping[str, str],
        mine: Callable[[Contains | None], NegativePool],
        *,
        path: Path | None = None,
        miner: Snapshot | None = None,
        **settings: Any,
    ) -> NegativePool:
        """The negatives of an episode: rank 0 mines and publishes them unless they are published; all read them.

        Parameters
        ----------
        inputs : digests of all that the negatives are mined from.
        mine : makes the pool. Its argument tells whether a passage contains an answer of a query; None: only qrels
            decide.
        path : the folder of the pool; None: the folder of the episode.
        miner : a state that mines among only a part of the passages; all processes embed this part first.
        settings : entries of the manifest that extend or replace the settings of the recipe.
        """
        stages.begin("mine")
        place = path or self.experiment.layout.episode(episode).negatives
        if self.frozen is not None:
            self.frozen.open_together()
        given = {**inputs, **self.guide_inputs}
        if miner is not None and by_leader(lambda: not is_current(place, POOL, given)):
            miner.open_together(as_trained=True)
        return leader_first(self._pool, place, episode, given, mine, settings)

    def _pool(
        self,
        path: Path,
        episode: int,
        inputs: Mapping[str, str],
        mine: Callable[[Contains | None], NegativePool],
        settings: Mapping[str, Any],
    ) -> NegativePool:
        if not is_current(path, POOL, inputs):
            told = {name: settings[name] for name in ("version",) if name in settings}
            with self.experiment.timed("mine", episode=episode, mined=0, **told) as facts:
                pool = mine(answers_of(self.data, self.experiment.cache))
                facts["mined"] = pool.mined
            save_pool(pool, path, settings=self.settings.result_values() | dict(settings), inputs=inputs)
        return self.read_pool(path)

    def mined(
        self,
        corpus: Snapshot | Corpus,
        positives: Positives,
        contains: Contains | None,
        source: str = "query",
        *,
        episode: int = 1,
        count: int | None = None,
    ) -> NegativePool:
        """The top ``depth`` hits of a source for the queries of ``positives``, without D+ and within the bounds.

        Parameters
        ----------
        source : ``query`` is the search of a state, which ``corpus`` then is.
        count : entries to draw for a query; ``random`` needs it. None: all hits stay.
        """
        return mine_candidates(
            corpus,
            positives,
            source,
            episode=episode,
            depth=self.settings.depth,
            count=count,
            seed=self.settings.seed,
            filters=self.filters,
            guide=self.guide,
            contains=contains,
        )

    def given_pool(
        self,
        given: NegativePool,
        positives: Positives,
        contains: Contains | None,
        *,
        episode: int = 1,
        by_answers: bool = False,
    ) -> NegativePool:
        """A pool from elsewhere for the queries of ``positives``, without D+; a guide keeps what its bounds allow.

        Scores that are distilled stay in it. ``by_answers`` is used as in
        :func:`~hardneg.negatives.imported_pool.import_pool`.
        """
        keys = self.data.collection.text_keys
        pool = import_pool(given, positives, episode, keys, contains, by_answers=by_answers)
        if self.guide is None or self.filters == ALL:
            return pool
        keeps = self.frozen is not None and self.frozen.distills_stored
        return self.guide.filtered(pool, self.filters, keeps=keeps)

    def read_pool(self, path: Path) -> NegativePool:
        """A pool of this collection, checked."""
        return open_pool(path, self.data.collection)

    # ------------------------------------------------------------ training

    def objective(
        self,
        encoder: BiEncoder,
        loss: GroupLoss,
        *,
        in_batch: bool,
        pool: NegativePool | None = None,
        taught: bool = True,
    ) -> Objective:
        """The objective of a step over training groups; see :func:`~hardneg.training.objectives.group_objective`.

        Parameters
        ----------
        in_batch : whether the passages of a step's other queries are negatives of a query.
        pool : the pool whose positives are trained on; None: the positives of the data are.
        taught : whether the teacher, if there is one, scores the groups. Groups of one passage teach nothing.
        """
        frozen = self.frozen
        beside = {} if frozen is None else frozen.of_objective(pool, taught=taught)
        return group_objective(
            self.data if pool is None else with_pool_positives(self.data, pool),
            encoder,
            self.experiment.cache,
            frozen.taught(loss, encoder.settings.scale) if frozen is not None and taught else loss,
            in_batch=in_batch,
            see=self.margins.see,
            **self.settings.of_retriever,
            **beside,
        )

    def trainee(
        self,
        model: nn.Module,
        objective: Objective,
        batches: Callable[[int], Batch],
        schedule: Schedule,
        models: Mapping[Path, int],
        *,
        name: str = RETRIEVER,
        save: Save | None = None,
        **more: Any,
    ) -> Trainee:
        """A model with all that a stage needs to train it; it is the retriever unless ``name`` names another.

        Parameters
        ----------
        models : folder -> number of steps after which the model is saved there.
        save : publishes the model; None: publishes a bi-encoder.
        more : ``intermediate``, ``facts``, ``kind`` and ``title``, as
            :class:`~hardneg.training.stage.Trainee` takes them.
        """
        settings = self.settings
        if settings.recompute_layers:
            recompute_layers(model)
        return Trainee(
            name,
            model,
            objective,
            batches,
            schedule,
            save or save_encoder,
            models=models,
            optimizer=settings.make_optimizer,
            clip=settings.clip,
            margins=self.margins if name == RETRIEVER else None,
            **more,
        )

    def stage(
        self,
        trainees: Sequence[Trainee],
        *,
        episode: int,
        inputs: Mapping[str, str],
        before: Sequence[Mapping[str, int]] = (),
        folder: Path | None = None,
        rows: Metrics | None = None,
    ) -> Stage:
        """The stage of an episode; see :class:`~hardneg.training.stage.Stage`.

        Parameters
        ----------
        folder, rows : where its checkpoints and metrics are kept; None: where those of the episode are.
        """
        experiment, settings = self.experiment, self.settings
        return Stage(
            trainees,
            folder or experiment.layout.episode(episode).checkpoints,
            rows or experiment.metrics,
            episode=episode,
            seed=settings.seed,
            inputs=inputs,
            before=before,
            timed=experiment.timed,
            query_id=lambda row: self.data.collection.query_ids[row],
            checkpoint_every=settings.checkpoint_every,
        )
