"""ADORE: the query encoder is trained on what it retrieves at this very step (Zhan et al., 2021).

The document encoder and its index do not change. Every step searches with the query embeddings of that step.
LambdaRank weighs each pair of a list by how much the measure would change if the two passages were swapped. With
an index of faiss, built here by product quantisation or given, lists and passage vectors come from the index, as
at inference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from hardneg.data.tokens import TokenStore
from hardneg.data.training_data import TrainingData
from hardneg.errors import Faults, HardnegError, SettingsError, raise_all
from hardneg.experiment.names import UNTRAINED
from hardneg.experiment.snapshot import Snapshot, State
from hardneg.losses import RankMeasure, lambda_rank
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.loading import load_encoder
from hardneg.models.packing import upload
from hardneg.models.tokenizing import token_store
from hardneg.negatives.labels import no_hits
from hardneg.recipes import catalogue
from hardneg.recipes.adore.fixed_index import build_once, check_options, exact_index, with_index
from hardneg.recipes.adore.fixed_negatives import FixedNegatives
from hardneg.recipes.adore.lists import Retrieval
from hardneg.recipes.adore.query_batches import QueryBatch, QueryBatches, ranks_of
from hardneg.recipes.cost_model import CostModel, judged_queries, work_of
from hardneg.recipes.measured_states import DevEvaluator, MeasuredStage
from hardneg.recipes.settings import Episode, Recipe, TrainingSettings
from hardneg.recipes.training_run import TrainingRun
from hardneg.records import Side, TokenBatch
from hardneg.search.ann_building import DEFAULTS, choose, code_bytes
from hardneg.search.retrieve import Index
from hardneg.training.batches import no_negatives
from hardneg.training.counted_tokens import counted
from hardneg.training.loop import Objective, StepOutput
from hardneg.training.sharing import shared
from hardneg.training.stage import steps_made


class Adore(TrainingSettings):
    """Settings of the recipe; the presets hold the paper's values."""

    cut: int = Field(ge=1)  # of the measure; no default, because the published code's makes every weight 0
    measure: RankMeasure = "RR"
    weighted: bool = True  # False: RankNet, the ablation
    negatives: Literal["dynamic", "static", "random"] = "dynamic"
    refresh_every: int | None = Field(None, ge=1)  # steps after which static negatives are mined anew
    index: Literal["exact", "pq", "given"] = "exact"  # given: built before, by `hardneg index`
    subvectors: int | None = Field(None, ge=1)  # codes of a passage in the compressed index
    bits: int = Field(8, ge=1, le=12)  # of a code
    epochs: float = Field(6, gt=0)
    steps: int | None = Field(None, ge=1)  # of the whole schedule; wins over epochs

    def check(self) -> None:
        """Refuse also answers, the gradient cache, idle options, and a refresh without static negatives."""
        super().check()
        if self.labels == "answers":
            what = "adore does not support labels = answers: it uses judged positives only"
            raise SettingsError("BAD_SETTING", what, "leave labels out")
        if self.refresh_every and self.negatives != "static":
            what = f"refresh_every = {self.refresh_every} with negatives = {self.negatives}"
            raise SettingsError("BAD_SETTING", what, "set negatives = static, or leave refresh_every out")
        if self.dev_passages is not None:
            what = f"adore does not support dev_passages = {self.dev_passages}: it encodes all passages once"
            raise SettingsError("BAD_SETTING", what, "leave dev_passages out")
        if self.train_passage_length is not None:
            length = self.train_passage_length
            what = f"adore does not support train_passage_length = {length}: its steps read no passage"
            raise SettingsError("BAD_SETTING", what, "leave train_passage_length out")
        if self.gradient_cache:
            what = "gradient_cache = true: adore has no in-batch negatives to cache for"
            raise SettingsError("BAD_SETTING", what, "set micro_queries: its gradient is that of the whole step")
        self.check_kept("in adore, which keeps no margins", "pair_margins")
        if self.negatives != "dynamic":
            self.check_masked(f"with negatives = {self.negatives}")
        if not self.weighted:
            self.check_idle("with weighted = false, where no measure weighs a pair", "measure")
        options = {name: value for name, value in self.index_options.items() if value != DEFAULTS["pq"][name]}
        if options and self.index != "pq":
            idle = ", ".join(f"{name} = {value}" for name, value in options.items())
            what = f"{idle} with index = {self.index}, where nothing is compressed"
            raise SettingsError("BAD_SETTING", what, "set index = pq, or leave that out")

    def with_index(self, given: bool) -> Adore:
        """The settings of an experiment whose index is given, or not.

        Raises
        ------
        SettingsError : an index is given although another should be built, or none is although ``index`` = given.
        """
        if given and self.index == "pq":
            what = "an index is given, but index = pq builds another"
            raise SettingsError("BAD_SETTING", what, "leave one of them out")
        if not given and self.index == "given":
            what = "index = given needs an index"
            raise SettingsError("BAD_SETTING", what, "give --index FOLDER, or set index = exact or pq")
        return self.model_copy(update={"index": "given"}) if given else self

    @property
    def index_options(self) -> dict[str, int]:
        """Options of the index that is built; 0: chosen by the dimension of the vectors."""
        return {"subvectors": self.subvectors or 0, "bits": self.bits}

    def horizon(self, queries: int) -> int:
        """Steps of the schedule, all of which are made."""
        return self.steps or self.steps_in(self.epochs, queries)

    def episode_of(self, data: TrainingData) -> Episode:
        """The one episode of training on these queries; the source of negatives bounds the length of a list."""
        queries, passages = len(data.train), data.collection.n_passages
        depth = min(self.depth, passages)
        width = {"dynamic": depth, "static": 1 + depth, "random": 1 + min(depth, passages // 2)}[self.negatives]
        return Episode(1, queries, self.horizon(queries), self.queries_per_step, width)

    def refreshes(self, steps: int) -> range:
        """The steps after which static negatives are mined anew, in a training of so many steps."""
        return range(self.refresh_every, steps, self.refresh_every) if self.refresh_every else range(0)


def check(settings: Adore, data: TrainingData, encoder: BiEncoder) -> None:
    """Refuse, before anything is encoded, a model or options of the index that do not fit; all faults at once."""
    faults: list[HardnegError] = []
    if encoder.settings.chunks > 1:
        what = f"adore ranks passages of one vector each, but chunks = {encoder.settings.chunks}"
        faults.append(SettingsError("BAD_SETTING", what, "set chunks = 1 (FirstP)"))
    if settings.index == "pq":
        try:
            check_options("pq", data.collection.n_passages, encoder.dim, settings.index_options)
        except HardnegError as fault:
            faults += fault.faults if isinstance(fault, Faults) else [fault]
    raise_all(faults)


def adore(
    training: TrainingRun[Adore], base: Callable[[], BiEncoder], *, index: Index | None = None
) -> Iterator[State]:
    """Train the query side over a fixed index (Zhan et al., 2021, Section 6.2).

    Everything that is published already is reused. Yields the states of the model before training, at the steps
    that are measured, and after training. With an index of faiss, each state is also yielded as the index
    retrieves it.

    Parameters
    ----------
    index : an index that was built before, over this model's passages. It is not copied, because it may be large.
        The experiment's inputs, its results and the model's manifest name it by its digest, and a resumed
        experiment must get an index with the same digest.
    """
    settings, layout, start = training.settings, training.experiment.layout, base().untied()
    state = training.state(start, UNTRAINED, layout.episode(1).runs, step=0, kind="untrained")
    yield state
    fixed = passage_index(training, state) if index is None else index
    yield from with_index(state, fixed)
    encoder = train(training, state, fixed)
    made = steps_made(training.last_model)
    for step in (step for step in settings.measured_steps(settings.episode_of(training.data)) if step < made):
        place, name = layout.state(step), settings.name_of_step(1, step)
        kept = load_encoder(str(place.model), device=start.device)
        between = training.state(kept, name, place.runs, step=step, weights=place.model, episode=1)
        yield between
        yield from with_index(between, fixed)
        between.discard("query")
    final = training.final_state(encoder, made)
    yield from with_index(final, fixed)
    yield final


def passage_index(training: TrainingRun[Adore], state: Snapshot) -> Index:
    """The index of all passages: their exact embeddings, or a compressed index built from them."""
    settings = training.settings
    assert settings.index != "given"
    if settings.index == "exact":
        return exact_index(state)
    return build_once(state, training.experiment, "pq", settings.index_options)


def train(training: TrainingRun[Adore], state: Snapshot, index: Index) -> BiEncoder:
    """Train the query side of a state's model; the passage side is not touched."""
    settings, encoder = training.settings, state.encoder
    for parameter in encoder.tower("passage").parameters():
        parameter.requires_grad_(False)
    fixed = None
    if settings.negatives != "dynamic":
        source, every = settings.negatives, settings.refresh_every
        fixed = FixedNegatives(training, state, index, source=source, refresh_every=every)
    steps = settings.episode_of(training.data).steps
    stage = stage_of(training, encoder, index, fixed)
    for until in (*settings.refreshes(steps), steps):
        if fixed is not None and not stage.finished and stage.made < until:
            fixed.follow(stage.made)
        stage.advance(until)
    return load_encoder(str(stage.model), device=encoder.device)


def stage_of(
    training: TrainingRun[Adore], encoder: BiEncoder, index: Index, fixed: FixedNegatives | None
) -> MeasuredStage:
    """The stage that trains the query side on what it retrieves, or on ``fixed`` negatives."""
    settings, data, layout = training.settings, training.data, training.experiment.layout
    episode = settings.episode_of(data)
    inputs = training.inputs
    if settings.index == "given":  # an index that is built here follows from the other inputs
        inputs["index"] = index.digest
    retrieval = Retrieval(
        data.train,
        index,
        depth=min(settings.depth, data.collection.n_passages),
        dtype=getattr(torch, settings.store_dtype),
        known=no_negatives(data, masked=settings.mask_known_positives),
        given=None if fixed is None else fixed.of,
        own=no_hits(data, "query"),
    )
    queries = token_store(encoder, data.collection, training.experiment.cache, "query")
    retriever = training.trainee(
        encoder,
        list_objective(settings, encoder, queries, retrieval),
        QueryBatches(
            data.train,
            queries_per_step=settings.queries_per_step,
            seed=settings.seed,
            micro_queries=settings.micro_queries,
        ),
        settings.schedule_over(episode.scheduled),
        models={training.last_model: episode.steps},
        intermediate={layout.state(step).model: step for step in settings.measured_steps(episode)},
        facts=lambda step: retrieval.facts(step) | ({} if fixed is None else fixed.facts(step)),
    )
    dev = dev_evaluator_of(training, index, episode) if settings.patience else None
    return MeasuredStage(training, retriever, dev, episode=1, inputs=inputs)


def dev_evaluator_of(training: TrainingRun[Adore], index: Index, episode: Episode) -> DevEvaluator:
    """The evaluator on dev for patience; it searches the index, because passages are the same for all states."""
    return DevEvaluator(
        training,
        episode,
        runs=lambda experiment, episode, step: experiment.layout.state(step).runs,
        weights=False,  # every measured state keeps its own
        with_index=lambda state: next(with_index(state, index), state),
        lasting=lambda step: True,
    )


def list_objective(settings: Adore, encoder: BiEncoder, queries: TokenStore, retrieval: Retrieval) -> Objective:
    """Make the objective that searches with the embeddings of the step, and applies LambdaRank to the hits.

    The gradient goes to the query side alone.
    """

    def encode(tokens: TokenBatch, side: Side) -> Tensor:
        with torch.autocast(encoder.device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"):
            return encoder.encode(tokens, side)

    def objective(batch: QueryBatch) -> StepOutput:
        vectors = counted(shared(encode))(queries.read(batch.query_rows), "query")
        lists = retrieval.lists(batch, vectors.detach())
        scores = retrieval.scores(vectors.float(), lists) * encoder.settings.scale
        valid, positive = upload(lists.valid, scores.device), upload(lists.positive, scores.device)
        losses = lambda_rank(
            scores,
            positive,
            ranks_of(lists, scores.detach(), valid),
            valid,
            upload(lists.relevant, scores.device),
            measure=settings.measure,
            cut=settings.cut,
            weighted=settings.weighted,
        )
        return StepOutput(losses.sum() / batch.step_queries, once=True)

    return objective


def plan(settings: Adore, data: TrainingData, encoder: BiEncoder) -> CostModel:
    """The work that the experiment would do."""
    one, passages = settings.episode_of(data), data.collection.n_passages
    kept = len(settings.measured_steps(one))
    pools = 1 + len(settings.refreshes(one.steps)) if settings.negatives == "static" else 0
    work = work_of(
        settings,
        data,
        [one],
        states=(2 + kept) * (1 if settings.index == "exact" else 2),  # through an index, and exactly
        entries=min(settings.depth, passages),
    )
    mined = max(pools - 1, 0) if work.examined else pools  # the first is mined from a run that examines a state
    judged = judged_queries(data) / data.collection.n_queries
    queries = (2 + kept) * (1 if work.examined else judged)
    return replace(
        work,
        query_side=True,
        sets=1,  # all states share the vectors of the passages
        order=("measure", "train", "measure"),
        encoded=(queries + mined, 1),
        mined=mined,
        pools=pools,
        models=kept,
        index=size_of(settings, passages, encoder.dim),
        faiss=settings.index != "exact",
    )


def size_of(settings: Adore, n: int, dim: int) -> int:
    """Bytes of the index that is built."""
    return code_bytes(n, dim, choose("pq", n, dim, settings.index_options)) if settings.index == "pq" else 0


RECIPE = Recipe(catalogue.ADORE, Adore, adore, plan, about="ADORE (Zhan et al., 2021)", check=check)
