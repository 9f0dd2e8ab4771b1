"""The settings that all recipes share, and the class of a recipe."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt, field_validator

from hardneg.config import WHOLE, Settings, operational
from hardneg.data.collection import Collection
from hardneg.data.training_data import DevDraw, Labels, Splits, TrainingData, choose_splits, labelled
from hardneg.errors import SettingsError
from hardneg.evaluation.measures import Measure, bases_of, parse_measures
from hardneg.experiment.course import Course
from hardneg.experiment.layout import LAST_MODEL, MODEL
from hardneg.experiment.names import name_of_step
from hardneg.models.encoder_settings import EncoderSettings, Head, TitleJoin
from hardneg.models.pooling import Pooling
from hardneg.recipes.catalogue import RecipeFacts
from hardneg.recipes.epochs import steps_of_epochs
from hardneg.search.encoding import Encoding
from hardneg.shown import as_set
from hardneg.training.optim import Optimizers, Schedule, linear, optimizers, tell_low_peak


@dataclasses.dataclass(frozen=True)
class Episode:
    """The counts of one episode of a recipe, which both its plan and its training use.

    Attributes
    ----------
    queries : the number of queries that are trained on.
    steps : the number of steps that are made.
    passages_per_query : a query's positive and its own negatives, without those of the step's other queries.
    horizon : steps of its learning-rate schedule; 0: as many as are made.
    shared : which passages of the step's other queries are negatives of a query, too.
    """

    episode: int
    queries: int
    steps: int
    queries_per_step: int
    passages_per_query: int
    horizon: int = 0
    shared: Literal["none", "all", "hardest"] = "none"

    @property
    def scheduled(self) -> int:
        """Steps of its learning-rate schedule."""
        return self.horizon or self.steps

    def as_json(self) -> dict[str, int]:
        """The episode as a plan shows it."""
        return {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if isinstance(value, int) and name != "horizon"
        }


class TrainingSettings(Settings):
    """Settings that all recipes share; each adds its own."""

    # Settings that count steps -> those that count the same in epochs, which a later layer's steps unset.
    steps_instead: ClassVar[Mapping[str, str]] = {}

    # the encoder; None keeps the model's own setting
    towers: Literal["tied", "untied"] | None = None
    pooling: Pooling | None = None
    head: Head | None = None
    normalize: bool | None = None
    dim: int | None = Field(None, ge=1)
    scale: float | None = Field(None, gt=0)
    title_join: TitleJoin | None = None
    use_titles: bool | None = None
    prompts: Literal["e5", "bge", "gte", "nomic"] | None = None  # and lengths, of a family; the four below win
    query_prompt: str | None = None
    passage_prompt: str | None = None
    query_length: int | None = Field(None, ge=3, le=8192)
    passage_length: int | None = Field(None, ge=3, le=8192)
    chunks: int | None = Field(None, ge=1, le=64)  # of a document; above 1 its best chunk gives its score (MaxP)
    max_characters: int | None = Field(None, ge=0)
    search_query_length: int | None = Field(None, ge=3, le=8192)
    train_passage_length: int | None = Field(None, ge=3, le=8192)  # in steps alone; search reads passage_length
    reinit_layers: int = Field(0, ge=0)  # top layers of the pretrained transformer that begin anew
    reinit_seed: int = Field(0, ge=0)

    # optimiser
    optimizer: Literal["adamw", "lamb"] = "adamw"
    queries_per_step: int = Field(8, ge=1)
    learning_rate: float = Field(5e-6, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    warmup: float = Field(0.1, ge=0)
    clip: float = Field(1.0, gt=0)
    micro_queries: int | None = Field(None, ge=1)  # queries of a micro-batch, for accumulation
    gradient_cache: bool = False  # instead: the whole step at once, through the memory of one chunk
    cache_tokens: int = Field(4096, ge=16)  # of a chunk
    recompute_layers: bool = operational(False)  # in the backward pass, instead of keeping what they computed
    mask_known_positives: bool = True
    # bounds on the steps that epochs give; max_steps wins over min_steps, given steps win over all
    min_steps: int | None = Field(None, ge=1)
    max_steps: int | None = Field(None, ge=1)

    # dev
    measure_every: PositiveInt | Annotated[float, Field(gt=0, lt=1)] | None = (
        None  # steps, or a share of the schedule
    )
    dev_queries: int | None = Field(None, ge=1)  # dev has at most so many queries, drawn; None: all
    # dev is judged among the first so many passages that BM25 finds for each of its queries, and their positives;
    # None: among all passages
    dev_passages: int | None = Field(None, ge=1)
    keep: Literal["best", "last"] = (
        "last"  # the state that model/ holds: best on dev by the first measure, or last
    )
    patience: int | None = Field(None, ge=1)  # measurements without improvement that end a stage of training
    examine: Literal["all", "judged"] = "all"  # judged: states are searched for dev and test, not for diagnostics

    # labels, see Labels; answers are for open-domain question answering
    labels: Literal["qrels", "answers"] = "qrels"
    use_positive_ctxs: bool = True
    require_gold: bool = False
    answer_mode: Literal["string", "regex"] = "string"

    # numbers
    depth: int = Field(200, ge=1)
    seed: int = Field(42, ge=0)
    precision: Literal["float32", "bfloat16"] = "float32"
    token_budget: int = Field(16384, ge=16)
    store_dtype: Literal["float16", "float32"] = "float16"

    # operational settings: they do not decide how the model is trained
    bm25_lists: int = operational(10_000, ge=0)  # of so many training queries are kept, for composition; 0: none
    pair_margins: int = operational(10_000, ge=0)  # of so many training queries are kept, for the audit; 0: none
    measures: str | list[str] = operational("RR@10 nDCG@10 Success@1 Success@5 Success@20 R@100")
    checkpoint_every: int = operational(200, ge=1)
    tensorboard: bool = operational(False)  # write the metrics there too; needs the extra of this name
    silent_seconds: float = operational(300.0, gt=0)  # a peer process without a sign of life for so long is dead

    @field_validator("measures")
    @classmethod
    def _one_text(cls, value: str | list[str]) -> str:
        """Join measures that are given as a list into one text, the form in which settings hold them."""
        return value if isinstance(value, str) else " ".join(value)

    def check(self) -> None:
        """Refuse combinations of settings that do not fit; raises :class:`SettingsError`."""
        parse_measures(self.measures)
        if self.patience and not self.measure_every:
            what = f"patience = {self.patience} has no effect without measure_every"
            raise SettingsError("BAD_SETTING", what, "set measure_every, or leave patience out")
        Labels(self.labels, self.use_positive_ctxs, self.require_gold, self.answer_mode).check()
        if self.gradient_cache and self.micro_queries:
            what = f"gradient_cache = true with micro_queries = {self.micro_queries}, which cuts the step in parts"
            raise SettingsError(
                "BAD_SETTING", what, "set only one of them; cache_tokens bounds the cache's memory"
            )
        if not self.gradient_cache:
            self.check_idle("with gradient_cache = false, which has no chunks", "cache_tokens")
        if not self.reinit_layers:
            self.check_idle("with reinit_layers = 0, so that no layer begins anew", "reinit_seed")
        if self.examine == "judged":
            self.check_kept("with examine = judged, which keeps no lists of training queries", "bm25_lists")
        if not self.roles:
            self.check_idle("where one process does all the work, and none waits for another", "silent_seconds")
        if self.tensorboard and importlib.util.find_spec("tensorboard") is None:
            what = "tensorboard = true, but the package tensorboard is not installed"
            raise SettingsError("PACKAGE_MISSING", what, "pip install 'hardneg[tensorboard]'")

    def check_idle(self, why: str, *names: str) -> None:
        """Refuse settings that have no effect, but by default, in a preset, or given with all others.

        A preset's value may lose its effect by a setting that the user changes; that is no fault of the user.

        Parameters
        ----------
        why : says why they have none, to go on after their names.
        """
        if idle := [name for name in names if self.is_given(name) and self.origin_of(name) != WHOLE]:
            what = f"{', '.join(f'{name} = {as_set(getattr(self, name))}' for name in idle)} {why}"
            raise SettingsError("BAD_SETTING", what, "leave it out" if len(idle) == 1 else "leave them out")

    def check_shared(self, negatives: str, queries: int) -> None:
        """Refuse steps, or parts of steps, of a single query, which has no negatives of other queries.

        Parameters
        ----------
        negatives : the setting that asks for in-batch negatives alone, with its value.
        queries : queries of a step.
        """
        alone = "a query alone has no negative, so nothing would be learnt"
        if queries == 1:
            what = f"a step has 1 query, but {negatives} takes the passages of its other queries: {alone}"
            raise SettingsError("BAD_SETTING", what, "give a step more queries, or mined negatives")
        if self.micro_queries == 1:
            what = f"micro_queries = 1, but {negatives} takes the passages of other queries of the part: {alone}"
            raise SettingsError("BAD_SETTING", what, "set gradient_cache = true instead, or more of micro_queries")

    def check_masked(self, why: str) -> None:
        """Refuse ``mask_known_positives`` = false where a step has no negatives but its queries' own.

        Parameters
        ----------
        why : says why there are no others.
        """
        self.check_idle(f"{why}: a query's own negatives never are known positives", "mask_known_positives")

    def check_kept(self, why: str, *names: str) -> None:
        """Refuse numbers of what is kept for the report where nothing of it is; 0 asks for nothing.

        Parameters
        ----------
        why : says why nothing is kept, to go on after their names.
        """
        self.check_idle(why, *filter(partial(getattr, self), names))

    def check_bounded(self) -> None:
        """Refuse bounds on steps, of a recipe whose steps are given directly where ``epochs`` are not."""
        self.check_idle("without epochs, which alone they bound", "min_steps", "max_steps")

    def check_chunks(self, chunks: int) -> None:
        """Refuse settings that do not fit documents of so many chunks; raises :class:`SettingsError`."""
        documents = f"documents of several chunks (chunks = {chunks})"
        if chunks > 1 and self.dev_passages is not None:
            what = f"dev_passages = {self.dev_passages} with {documents}"
            raise SettingsError("BAD_SETTING", what, "give --set dev_passages=none")  # a preset may have given it
        if chunks > 1 and self.train_passage_length is not None:
            what = f"train_passage_length = {self.train_passage_length} with {documents}"
            raise SettingsError("BAD_SETTING", what, "leave train_passage_length out")

    def check_dev(self, dev: bool) -> None:
        """Refuse settings that need dev if there is no dev split; raises :class:`SettingsError`."""
        instead = {
            f"keep = {self.keep}": "--set keep=last" if self.keep == "best" else "",
            f"measure_every = {self.measure_every}": "--set measure_every=none" if self.measure_every else "",
            f"learning_rate = {as_set(self.rates)}": "--lr with one rate" if len(self.rates) > 1 else "",
        }
        asking = {name: option for name, option in instead.items() if option}
        if asking and not dev:
            what = f"there is no dev split, but dev decides with {' and '.join(asking)}"
            raise SettingsError(
                "NO_DEV", what, f"give a dev split (--dev), or all of: {', '.join(asking.values())}"
            )
        if not dev:
            self.check_idle("without a dev split", "dev_queries", "dev_passages")

    def result_values(self) -> dict[str, Any]:
        """The settings that decide the result, with the first measure if a state or a rate is chosen by it."""
        values = super().result_values()
        chosen = self.keep == "best" or self.patience or len(self.rates) > 1
        return values | {"chosen_by": str(self.steering)} if chosen else values

    @property
    def judging(self) -> tuple[Measure, ...]:
        """The measures of dev and test; the first one decides."""
        return parse_measures(self.measures)

    @property
    def steering(self) -> Measure:
        """The measure that decides which state is kept, and when patience ends."""
        return self.judging[0]

    @property
    def last_model(self) -> str:
        """The folder of the model after the last step; with ``keep = best``, ``model`` is chosen only after it."""
        return MODEL if self.keep == "last" else LAST_MODEL

    @property
    def last_state(self) -> Literal["final", "last"]:
        """The name of the state after the last step: ``final``, or ``last`` if the final state is chosen later."""
        return "final" if self.keep == "last" else "last"

    def name_of_step(self, episode: int, step: int) -> str:
        """The name of the state after so many steps of an episode."""
        return name_of_step(episode, step, several=self.course.several_episodes)

    @property
    def course(self) -> Course:
        """What those who read the experiment's folder must know about its training."""
        return Course()

    @property
    def told_besides(self) -> dict[str, Any]:
        """The course of training, which is stored with the settings."""
        return self.course.as_record()

    def steps_in(self, epochs: float, queries: int, size: int | None = None) -> int:
        """The steps of so many passes over the queries, within ``min_steps`` and ``max_steps``.

        Parameters
        ----------
        size : queries of a step; None: ``queries_per_step``.
        """
        steps = steps_of_epochs(epochs, queries, size or self.queries_per_step)
        enough = max(steps, self.min_steps or 1)
        return min(enough, self.max_steps or enough)

    def steps_of_part(self, epochs: float, queries: int, parts: int) -> int:
        """The steps of each of ``parts`` equal parts of epochs: within ``max_steps`` in all, at least 1."""
        steps = math.ceil(self.steps_in(epochs, queries) / parts)
        return max(min(steps, (self.max_steps or steps * parts) // parts), 1)

    def measured_steps(self, episode: Episode) -> list[int]:
        """The steps of an episode, before its last one, after which dev is measured."""
        if self.measure_every is None:
            return []
        share = isinstance(self.measure_every, float)
        every = max(int(self.measure_every * episode.scheduled + 0.5), 1) if share else int(self.measure_every)
        tried = self.trial_steps(episode)  # the states of trials are measured where these end, and not before
        return [step for step in range(every, episode.steps, every) if step >= tried]

    @property
    def rates(self) -> list[float]:
        """The learning rates that are tried, in order; a single one is no trial."""
        return [self.learning_rate]

    def trial_steps(self, episode: Episode) -> int:
        """The steps of an episode that each of several learning rates is tried for; 0: none is tried in it."""
        return 0

    def data_of(self, collection: Collection, splits: Splits, *, draw: DevDraw) -> TrainingData:
        """The data that an experiment is trained and judged on: the splits, labelled as the settings say.

        Parameters
        ----------
        draw : how queries are held out, if there is no dev split.

        Raises
        ------
        The errors of :func:`~hardneg.data.training_data.choose_splits`, and
        InputError : labels are by answers, and the collection has no answers.
        """
        basis = bases_of(self.judging)
        names = dataclasses.asdict(splits)
        data = choose_splits(collection, **names, basis=basis, draw=draw, dev_queries=self.dev_queries)
        return labelled(data, self.model_dump(mode="json"))

    def for_data(self, queries: int) -> TrainingSettings:
        """The settings for so many training queries; some settings depend on this number."""
        return self

    def with_frozen(self, filter_by: bool, teacher: bool) -> TrainingSettings:
        """The settings of an experiment, given which frozen models it has; raises if it has no use for one."""
        for model, given in (("a model to filter by", filter_by), ("a teacher", teacher)):
            if given:
                what = f"{model} is given, for which this recipe has no use"
                raise SettingsError("BAD_SETTING", what, "leave it out")
        return self

    def check_pool(self, given: bool) -> None:
        """Refuse to begin without the negatives that the first episode needs."""
        if not given and self.first_episode > 1:
            what = f"episode {self.first_episode} is the first, but there are no negatives for it"
            raise SettingsError("NO_POOL", what, "give --pool, or begin with episode 1")

    def with_index(self, given: bool) -> TrainingSettings:
        """The settings of an experiment, given whether it has an index; raises if the recipe cannot use one."""
        if given:
            what = "an index is given, but this recipe searches with none"
            raise SettingsError("BAD_SETTING", what, "leave the index out, or train adore with it")
        return self

    @property
    def chunk_tokens(self) -> int | None:
        """Tokens of a chunk of the gradient cache; None if the cache is off."""
        return self.cache_tokens if self.gradient_cache else None

    @property
    def roles(self) -> Sequence[str]:
        """The roles that run as separate processes with these settings; empty if one process does all."""
        return ()

    @property
    def may_grow(self) -> tuple[str, ...]:
        """Integer settings that may grow on a finished experiment."""
        return ()

    @property
    def may_not_grow(self) -> Mapping[str, str]:
        """Settings that may grow beside other values of other settings -> why they may not grow beside these."""
        return {}

    @property
    def first_episode(self) -> int:
        """Number of the first episode."""
        return 1

    @property
    def keeps_start(self) -> bool:
        """Whether vectors of all texts by the model that training starts from are needed throughout training."""
        return False

    @property
    def encoder_overrides(self) -> dict[str, Any]:
        """The encoder settings that replace the model's own."""
        names = [field.name for field in dataclasses.fields(EncoderSettings)]
        return {name: getattr(self, name) for name in names if getattr(self, name, None) is not None}

    @property
    def ranker_overrides(self) -> Mapping[str, Any]:
        """The settings that replace the ranker's own, if the recipe also trains a ranker."""
        return {}

    @property
    def new_ranker_overrides(self) -> Mapping[str, Any]:
        """The settings of a new ranker: also those of texts that it reads as the retriever does."""
        return self.ranker_overrides

    def card_values(self, *, ranker_given: bool) -> dict[str, Any]:
        """The settings that a model card shows; ``ranker_given``: whether a ranker to begin with was given."""
        return self.result_values()

    @property
    def encoding(self) -> Encoding:
        """How the states of the model are encoded."""
        return Encoding(self.token_budget, self.store_dtype, self.precision)

    @property
    def of_objective(self) -> dict[str, Any]:
        """The arguments that the objectives of all models take from the settings."""
        return {
            "precision": self.precision,
            "cache_tokens": self.chunk_tokens,
            "mask_known_positives": self.mask_known_positives,
        }

    @property
    def of_retriever(self) -> dict[str, Any]:
        """The arguments that the objectives of a retriever take from the settings."""
        return {**self.of_objective, "passage_length": self.train_passage_length}

    def schedule_over(
        self, horizon: int, peak: float | None = None, *, of: str = "", made: int | None = None
    ) -> Schedule:
        """The learning rate of every step: it rises for the warm-up, and falls to 0 at ``horizon`` steps.

        The log says if it cannot rise to its highest value.

        Parameters
        ----------
        peak : the highest value; None: ``learning_rate``.
        of : the model that is trained, if there are several.
        made : the steps after which the schedule ends early or begins anew; None: all are made.
        """
        rate = self.learning_rate if peak is None else peak
        tell_low_peak(rate, warmup=self.warmup, horizon=horizon, made=made, of=of)
        return linear(rate, warmup=self.warmup, horizon=horizon)

    @property
    def make_optimizer(self) -> Optimizers:
        """The optimiser over a model's parameters."""
        return optimizers(self.optimizer, weight_decay=self.weight_decay)


def per_episode(values: Sequence[int], episode: int) -> int:
    """The value of an episode (from 1) in a list whose last value repeats."""
    return values[min(episode, len(values)) - 1]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A way to train, as the commands and the Python functions run it.

    Attributes
    ----------
    facts : its name, help and own options, as the command shows them.
    run : (training, base, **given) -> every state of the model, while its embeddings are there (of a ranker: every
        :class:`~hardneg.diagnostics.reranked.RankedState`). ``training`` is a
        :class:`~hardneg.recipes.training_run.TrainingRun`, ``base`` makes a fresh model as training starts with
        it, and ``given`` holds the pool or the index to begin with, if it takes one.
    plan : (settings, data, encoder) -> the work of an experiment, a
        :class:`~hardneg.recipes.cost_model.CostModel`. If the recipe also trains a ranker, the argument ``ranker``
        is the one to begin with; if it trains a retriever and takes a pool, ``given`` is that one.
    about : the name of the recipe in the model card, with the paper.
    roles : name of a role -> the function that does its work, if roles run as separate processes. It takes
        (training, base, patience), and ``ranker`` if the recipe takes a ranker to begin with.
    trains : the kind of model that it trains.
    check : (settings, data, encoder) -> raises before anything is done, if they do not fit together.
    others : (layout, data, source, settings of the card, results) -> publishes again the models that it trains
        besides, with cards that have the results.
    """

    facts: RecipeFacts
    settings: type[TrainingSettings]
    run: Callable[..., Iterator[Any]]
    plan: Callable[..., Any]
    about: str
    roles: Mapping[str, Callable[..., None]] = dataclasses.field(default_factory=dict)
    trains: Literal["retriever", "ranker"] = "retriever"
    check: Callable[..., None] = lambda settings, data, encoder: None
    others: Callable[..., None] = lambda layout, data, source, settings, results: None

    @property
    def name(self) -> str:
        """The name of the recipe, as in ``hardneg train NAME``."""
        return self.facts.name
