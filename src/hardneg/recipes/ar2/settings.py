"""Settings of AR2, and the turns that the two models take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from hardneg.adversarial import Game, Weighting
from hardneg.diagnostics.judge import evaluation_depth
from hardneg.errors import SettingsError
from hardneg.evaluation.measures import parse_measures
from hardneg.experiment.course import Course
from hardneg.experiment.names import RANKER
from hardneg.negatives.mix import nearest
from hardneg.recipes.group_settings import MiningSettings
from hardneg.recipes.roles.peers import INFERENCER, TRAINER
from hardneg.recipes.settings import Episode
from hardneg.training.stage import RETRIEVER

PUBLISHED_BALANCE = 0.5  # λ of the published code
FIRST_RANKER = 0  # the episode in which D⁰ is trained
EPISODE = 1  # the episode of all iterations

OF_TEXTS = ("use_titles", "title_join", "chunks", "max_characters")  # how both models read passages


class Ar2(MiningSettings):
    """Settings of the recipe; the presets hold the paper's values."""

    steps_instead: ClassVar[Mapping[str, str]] = {
        "retriever_steps": "epochs",
        "first_ranker_steps": "first_ranker_epochs",
    }

    # the game
    iterations: int = Field(10, ge=1)
    order: Literal["ranker-first", "retriever-first"] = "ranker-first"  # the code's; the other is Algorithm 1's
    mode: Literal["sync", "async-fixed"] = "sync"  # async-fixed: training goes on during a refresh
    game: Game = "ar2"  # irgan: the minimax game of Eq. 3, for comparison (Table 5)
    weighting: Weighting = "p_theta"  # of Eq. 10; reference: as the published code has it
    balance: float = Field(0.5, ge=0, le=1)  # λ: 0 distillation alone, 1 the adversarial loss alone
    temperature: float = Field(1.0, gt=0)  # of the ranker's scores in distillation
    negatives_per_query: int = Field(15, ge=1)  # n, drawn from the candidates
    depth: int = Field(100, ge=1)  # candidates of a query: the top of the retriever's list without D+
    positives: Literal["rotate", "first"] = "rotate"

    rerank_depth: int = Field(100, ge=0)  # hits of dev and test that the ranker is measured by; 0: it is not

    # How often the retriever goes through the training queries, in all iterations. retriever_steps follows from
    # it, within min_steps and max_steps, and ranker_steps keeps its ratio to that. None: both are taken as given.
    epochs: float | None = Field(None, gt=0)

    # the retriever's steps; its learning rate and queries of a step are settings of every recipe
    retriever_steps: int = Field(1500, ge=1)  # of an iteration

    # the ranker's steps
    ranker_steps: int = Field(500, ge=1)  # of an iteration
    ranker_learning_rate: float = Field(1e-6, gt=0)
    ranker_queries_per_step: int = Field(64, ge=1)
    ranker_micro_queries: int | None = Field(None, ge=1)
    ranker_max_length: int | None = Field(None, ge=8, le=8192)  # tokens of a pair; None: what the ranker brings
    ranker_query_length: int | None = Field(None, ge=3, le=8192)  # of its query

    # D⁰, where no ranker is given: a new head on the retriever's model, warmed up on the first candidates
    first_ranker_epochs: float | None = Field(None, gt=0)  # first_ranker_steps follows, within the same bounds
    first_ranker_steps: int = Field(2000, ge=1)
    first_ranker_learning_rate: float = Field(1e-5, gt=0)
    first_ranker_queries_per_step: int = Field(64, ge=1)

    def check(self) -> None:
        """Refuse also lists that are too short, measurements within a turn, and settings without effect."""
        if self.measure_every or self.patience:
            name = "measure_every" if self.measure_every else "patience"
            what = f"{name} = {getattr(self, name)}: ar2 measures after every iteration, and makes all iterations"
            raise SettingsError(
                "BAD_SETTING", what, "leave it out; retriever_steps and iterations say how long it is"
            )
        super().check()
        self.check_draws("negatives_per_query", self.negatives_per_query, ("depth", "top"))
        self.check_used()
        if self.rerank_depth > (depth := evaluation_depth(parse_measures(self.measures))):
            what = f"rerank_depth = {self.rerank_depth}, but dev and test are searched {depth} deep"
            raise SettingsError("BAD_SETTING", what, "lower it, or measure deeper")
        if self.game == "irgan" and self.weighting == "reference":
            what = "weighting = reference with game = irgan, which has one weighting alone"
            raise SettingsError("BAD_SETTING", what, "leave one of them out")
        if self.lag and not self.refreshes:
            what = f"mode = async-fixed with iterations = {self.iterations}: no step would draw from a refresh"
            raise SettingsError("BAD_SETTING", what, "have more iterations, or set mode = sync")
        if self.gradient_cache and self.ranker_micro_queries:
            what = f"gradient_cache = true with ranker_micro_queries = {self.ranker_micro_queries}"
            raise SettingsError(
                "BAD_SETTING", what, "set only one of them; cache_tokens bounds the cache's memory"
            )

    def check_used(self) -> None:
        """Refuse also settings that others leave without effect."""
        self.check_masked("in ar2, which has no in-batch negatives")
        self.check_kept("in ar2, which keeps no margins", "pair_margins")
        if self.balance == 1:
            self.check_idle("with balance = 1, where nothing is distilled", "temperature")
        if self.balance == 0:
            self.check_idle("with balance = 0, where all is distilled", "weighting")
        if self.epochs is None and self.first_ranker_epochs is None:
            self.check_bounded()

    @property
    def of_first_ranker(self) -> list[str]:
        """The settings that only the first ranker's training reads."""
        names = [name for name in type(self).model_fields if name.startswith("first_ranker_")]
        bounds = ["min_steps", "max_steps"] if self.epochs is None else []  # then they bound this training alone
        return [*names, *bounds]

    @property
    def first_ranker_given(self) -> list[str]:
        """The settings that only the first ranker's training reads and that are set, but not by a preset."""
        follows = "first_ranker_steps" if self.first_ranker_epochs is not None else ""
        return [name for name in self.of_first_ranker if self.is_given(name) and name != follows]

    def card_values(self, *, ranker_given: bool) -> dict[str, Any]:
        """The settings that a model card shows: without those of the first ranker if it was not trained."""
        idle = self.of_first_ranker if ranker_given else []
        return {
            name: value
            for name, value in super().card_values(ranker_given=ranker_given).items()
            if name not in idle
        }

    @property
    def doubts(self) -> list[str]:
        """The effects of these settings that are easily missed, a line for each."""
        found, share = [], self.balance
        irgan = self.game == "irgan"
        by_candidates = irgan or self.weighting == "p_theta"
        if self.negatives_per_query == 1 and by_candidates and share:
            loss = "IRGAN's loss" if irgan else "weighting = p_theta"
            left = "distillation alone trains the retriever" if share < 1 else "the retriever is not trained"
            found.append(
                f"negatives_per_query = 1: by {loss} a single candidate has weight 1 whatever its score is, so the"
                f" adversarial part has no gradient, and {left}; set 2 or more"
            )
        if share == 1 and by_candidates and not irgan:
            found.append(
                "balance = 1: by weighting = p_theta alone the positive gets no gradient, so nothing lifts it"
                " above the candidates; set a lower balance, or weighting = reference"
            )
        if irgan and share < 1:
            mixed = "mixes distillation in" if share else "trains the retriever by distillation alone"
            found.append(f"game = irgan with balance = {share:g} {mixed}; for IRGAN's own game set balance = 1")
        if self.weighting == "reference" and self.queries_per_step != 8 and 0 < share < 1:
            weight = self.queries_per_step / 8
            there = share * weight / (share * weight + 1 - share)
            same = f"{1 / (1 + weight):.3g}"  # what means the published one here
            if f"{share:.3g}" != same:
                found.append(
                    f"weighting = reference sums over a step: with queries_per_step = {self.queries_per_step},"
                    f" balance = {share:g} means what {there:.3g} does in the published code, which has 8 queries"
                    f" in a step; its {PUBLISHED_BALANCE:g} is balance = {same} here"
                )
        return [*found, *self.unbalanced]

    @property
    def unbalanced(self) -> list[str]:
        """A line if the retriever's steps are given, and the ranker makes more by default or by a preset."""
        if not self.is_told("retriever_steps") or self.is_told("ranker_steps") or self.epochs is not None:
            return []
        told = f"ranker_steps = {self.ranker_steps} {self.origin_of('ranker_steps')}, more than retriever_steps ="
        why = f"{told} {self.retriever_steps}; in the paper the ranker makes a third as many as the retriever"
        return [why] if self.ranker_steps > self.retriever_steps else []

    def result_values(self) -> dict[str, Any]:
        """The settings that decide the result; without ``mode = sync``, as when there was no such setting yet."""
        values = super().result_values()
        return {name: value for name, value in values.items() if (name, value) != ("mode", "sync")}

    @property
    def course(self) -> Course:
        """Iterations in which the retriever and the ranker train in turn."""
        return Course(mines="iterations")

    @property
    def roles(self) -> Sequence[str]:
        """Trainer and inferencer; empty if one process does the work of both."""
        return () if self.mode == "sync" else (TRAINER, INFERENCER)

    @property
    def lag(self) -> int:
        """The iterations by which a refresh takes effect later than in mode sync."""
        return int(self.mode == "async-fixed")

    @property
    def ranker_overrides(self) -> Mapping[str, Any]:
        """The settings that replace the ranker's own."""
        values = {"max_length": self.ranker_max_length, "query_length": self.ranker_query_length}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def new_ranker_overrides(self) -> Mapping[str, Any]:
        """The settings of a new ranker, which reads titles and documents as these settings say."""
        values = {name: getattr(self, name) for name in OF_TEXTS}
        told = {name: value for name, value in values.items() if value is not None}
        return {**self.ranker_overrides, **told}

    def for_data(self, queries: int) -> Ar2:
        """The settings with epochs turned into steps."""
        found: dict[str, int | None] = {}
        if self.epochs is not None:
            own = self.steps_of_part(self.epochs, queries, self.iterations)
            turns = max(int(nearest(own * self.ranker_steps / self.retriever_steps)), 1)
            found |= {"retriever_steps": own, "ranker_steps": turns}
        if self.first_ranker_epochs is not None:
            told = (self.first_ranker_epochs, queries, self.first_ranker_queries_per_step)
            found["first_ranker_steps"] = first = self.model_copy(update=self.lifted).steps_in(*told)
            if self.lifted and first != self.steps_in(*told):
                found["first_ranker_epochs"] = None  # they would give other steps without the bounds
        return self.model_copy(update=found) if found else self

    # ------------------------------------------------------------ turns

    @property
    def steps(self) -> int:
        """Steps of the retriever, of all iterations."""
        return self.iterations * self.retriever_steps

    @property
    def steps_of_ranker(self) -> int:
        """Steps of the ranker, of all iterations."""
        return self.iterations * self.ranker_steps

    @property
    def refreshes(self) -> int:
        """The number of refreshes after the first candidates from which a step draws.

        The last iteration has such a refresh only if the ranker has the second turn and the mode is sync.
        """
        return max(self.iterations - (self.order == "ranker-first") - self.lag, 0)

    @property
    def turns(self) -> tuple[str, str]:
        """The models of an iteration, in the order of their turns."""
        return (RANKER, RETRIEVER) if self.order == "ranker-first" else (RETRIEVER, RANKER)

    def version_of(self, model: str, step: int) -> int:
        """The refresh from whose candidates a step (from 0) of a model draws; the retriever G^k makes refresh k.

        In mode async-fixed each refresh takes effect an iteration later, so that making it may take an iteration.
        """
        if model == RANKER:
            number = step // self.ranker_steps + (self.order == "retriever-first")
        else:
            number = step // self.retriever_steps
        return max(number - self.lag, 0)

    def at_refresh(self, version: int) -> dict[str, int]:
        """The steps of both models after which a refresh is made."""
        ranker = version - (self.order == "retriever-first")
        return {RANKER: max(ranker, 0) * self.ranker_steps, RETRIEVER: version * self.retriever_steps}

    def after(self, iteration: int) -> dict[str, int]:
        """The steps of both models after so many iterations."""
        return {RANKER: iteration * self.ranker_steps, RETRIEVER: iteration * self.retriever_steps}

    @property
    def kept_steps(self) -> list[int]:
        """The steps of the retriever after which its weights are kept, because any iteration may be the best."""
        steps = range(self.retriever_steps, self.steps, self.retriever_steps)
        return [*steps] if self.keep == "best" else []

    # ------------------------------------------------------------ what a plan counts

    def episodes_of(self, queries: int) -> tuple[Episode, Episode]:
        """The training of the retriever and of the ranker, with so many queries."""
        width = 1 + self.negatives_per_query
        own = Episode(EPISODE, queries, self.steps, self.queries_per_step, width)
        return own, Episode(EPISODE, queries, self.steps_of_ranker, self.ranker_queries_per_step, width)

    def first_episode_of(self, queries: int) -> Episode:
        """The training of D⁰, with so many queries."""
        width = 1 + self.negatives_per_query
        return Episode(FIRST_RANKER, queries, self.first_ranker_steps, self.first_ranker_queries_per_step, width)

    def stages(self, *, new_ranker: bool) -> tuple[str, ...]:
        """The kinds of the stages of training, in order; ``new_ranker``: whether it is warmed up first."""
        own, other = "train", "train ranker"
        ranker_first = self.order == "ranker-first"
        turn = (other, own, "measure", "mine") if ranker_first else (own, "measure", "mine", other)
        end = (other, own) if ranker_first else (own, "mine", other)
        first = ("measure", "mine", *([other] if new_ranker else []))
        return (*first, *(turn * (self.iterations - 1)), *end, "measure")

    def reranks(self, *, new_ranker: bool) -> tuple[int, ...]:
        """How often dev and test are re-ranked in each of these stages: after every iteration."""
        first = (0, 0, 1) if new_ranker else (0, 1)
        end = (0, 3) if self.order == "ranker-first" else (0, 0, 3)
        return (*first, *((0, 0, 0, 2) * (self.iterations - 1)), *end, 0)

    @property
    def pipelines(self) -> int:
        """How often dev and test are re-ranked: twice an iteration, and by D⁰ for G⁰ and for the last G."""
        return 2 * self.iterations + 2
