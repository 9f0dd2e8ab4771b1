"""AR2 with refreshes during training: a trainer and an inferencer, each a process or a group of processes.

In mode async-fixed the trainer plays the game. After the turn of a model it publishes that model, if it is needed.
The inferencer measures the published retrievers and mines with them. When no retriever is waiting, it re-ranks
runs with the published rankers. It deletes a published model when all work with the model is done. A refresh takes
effect one iteration later than in mode sync. So mining may take as long as an iteration, and the trainer waits
only for a refresh that takes longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hardneg.diagnostics.search_state import search_state
from hardneg.errors import PeerError
from hardneg.experiment.layout import sharpness_of
from hardneg.experiment.names import BY_FIRST, RANKER
from hardneg.experiment.snapshot import ArchivedState
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.loading import load_encoder
from hardneg.models.rankers import load_ranker, save_ranker
from hardneg.models.saving import save_encoder
from hardneg.process.distributed import by_leader
from hardneg.recipes.ar2.game import Game, first_ranker
from hardneg.recipes.ar2.pipeline import Pipelines
from hardneg.recipes.ar2.refreshes import archived_state, candidates_at, refresh, runs_of, state_behind
from hardneg.recipes.ar2.settings import Ar2
from hardneg.recipes.measured_states import judge_of
from hardneg.recipes.roles.peers import (
    INFERENCER,
    POLL_SECONDS,
    TRAINER,
    Supervisor,
    heartbeat_of,
    timed_wait,
    wait_for_peer,
)
from hardneg.recipes.starting_ranker import StartingRanker
from hardneg.recipes.training_run import TrainingRun
from hardneg.storage.artifacts import is_published, remove
from hardneg.training.stage import RETRIEVER


class Item(NamedTuple):
    """A part of the inferencer's work: to measure a state and mine with it, or to re-rank its runs.

    Attributes
    ----------
    state : the iteration after which the retriever is in this state; 0: G⁰.
    ranker : the runs are re-ranked by the ranker as it is after this iteration; 0: D⁰. None: the state is measured
        and mined with.
    """

    state: int
    ranker: int | None = None

    @property
    def by(self) -> str:
        """The name of the ranker, which follows the name of the state."""
        if not self.ranker:
            return BY_FIRST
        return RANKER if self.ranker == self.state else f"{RANKER}-{self.ranker}"


DONE = Item(-1)  # stands for: no item is left


def items_of(settings: Ar2) -> list[Item]:
    """All items that the inferencer makes, in the order in which the results list them."""
    items = [Item(0), Item(0, 0)]
    for number in range(1, settings.iterations):
        items += [Item(number), Item(number, number), Item(0, number)]
    return items


class Shelf:
    """The models, states and re-ranked runs that trainer and inferencer publish for each other and for results."""

    def __init__(self, training: TrainingRun[Ar2]) -> None:
        self.training, self.settings, self.layout = training, training.settings, training.experiment.layout
        self.pipelines = Pipelines(training)

    def place(self, model: str, iteration: int) -> Path:
        """The folder in which a model after an iteration is published for the inferencer."""
        step = self.settings.after(iteration)[model]
        if model == RANKER:
            return self.layout.exported_ranker(step)
        return self.layout.state(step).model if step in self.settings.kept_steps else self.layout.exported(step)

    def is_done(self, item: Item) -> bool:
        """Whether all artefacts of an item of the inferencer's work are published."""
        runs = runs_of(self.training, item.state)
        if item.ranker is not None:
            return self.pipelines.are_published(runs, item.by)
        mined = item.state <= self.settings.refreshes
        return is_published(candidates_at(self.training, item.state) if mined else sharpness_of(runs))

    def is_spent(self, model: str, iteration: int) -> bool:
        """Whether all items that need a model after an iteration are done."""
        made = [Item(iteration)] if model == RETRIEVER else [Item(iteration, iteration), Item(0, iteration)]
        return all(map(self.is_done, made))

    def is_missing(self, model: str, iteration: int) -> bool:
        """Whether a model is needed but not published.

        The folder is checked first, because a model is deleted only after all items that need it are done.
        """
        return not is_published(self.place(model, iteration)) and not self.is_spent(model, iteration)

    def to_publish(self) -> list[dict[str, int]]:
        """The positions at which a model still has to be published."""
        return [
            {model: self.settings.after(number)[model]}
            for number in range(1, self.settings.iterations)
            for model in self.settings.turns
            if self.is_missing(model, number)
        ]

    def publish(self, game: Game, model: str, iteration: int) -> None:
        """Publish a model after its turn in an iteration, if it is needed and not there."""
        if not self.is_missing(model, iteration):
            return
        inputs = {"step": str(self.settings.after(iteration)[model])}
        if model == RANKER:
            save_ranker(game.learner, self.place(model, iteration), inputs=inputs)
        else:
            save_encoder(game.encoder, self.place(model, iteration), inputs=inputs)

    def clear(self, model: str, iteration: int) -> None:
        """Delete a model that was published for the inferencer alone, if all items that need it are done."""
        kept = model == RETRIEVER and self.settings.after(iteration)[model] in self.settings.kept_steps
        if iteration and not kept and self.is_spent(model, iteration):
            remove(self.place(model, iteration))


# ---------------------------------------------------------------- the trainer


def be_trainer(
    training: TrainingRun[Ar2], base: Callable[[], BiEncoder], patience: float, *, ranker: StartingRanker
) -> None:
    """Train as the trainer does: D⁰, if its head is new, and all turns of the game.

    An inferencer without a sign of life for ``patience`` seconds is given up.
    """
    settings, experiment, shelf = training.settings, training.experiment, Shelf(training)
    wait = timed_wait(experiment, wait_for_peer(heartbeat_of(experiment, INFERENCER), patience))

    def wait_for(version: int) -> None:
        path = candidates_at(training, version)
        by_leader(wait, lambda: is_published(path) or None, f"version {version} of the candidates")

    wait_for(0)
    game = Game(training, base(), first_ranker(training, ranker), by_leader(shelf.to_publish))
    for number in range(1, settings.iterations + 1):
        for model in settings.turns:
            if not game.is_over(model, number):
                wait_for(settings.version_of(model, settings.after(number)[model] - 1))
            game.advance(model, number)
            if number < settings.iterations and game.stands_after(model, number):
                by_leader(shelf.publish, game, model, number)


# ---------------------------------------------------------------- the inferencer


def infer(
    training: TrainingRun[Ar2], base: Callable[[], BiEncoder], patience: float, *, ranker: StartingRanker
) -> None:
    """Do the inferencer's work until all of it is done.

    A trainer without a sign of life for ``patience`` seconds is given up.
    """
    inferencer = Inferencer(training, base, ranker)
    wait = wait_for_peer(heartbeat_of(training.experiment, TRAINER), patience)
    by_leader(inferencer.tidy)
    while (item := by_leader(wait, inferencer.next_item, "a model of the trainer's")) != DONE:
        inferencer.make(item)


class Inferencer:
    """Mines, measures and re-ranks with the models that the trainer publishes.

    Parameters
    ----------
    base : makes G⁰.
    ranker : D⁰, or what it is trained from.
    """

    def __init__(self, training: TrainingRun[Ar2], base: Callable[[], BiEncoder], ranker: StartingRanker) -> None:
        self.training, self.settings, self.base, self.start = training, training.settings, base, ranker
        self.device = ranker.model.device
        self.judge = judge_of(training.settings, training.data, training.experiment.cache)
        self.shelf = Shelf(training)
        items = items_of(training.settings)
        self.left = sorted(items, key=lambda item: item.ranker is not None)  # the trainer waits only for states

    def next_item(self) -> Item | None:
        """The first item that is not done and whose models are there; None: not yet; ``DONE``: all are done."""
        self.left = [item for item in self.left if not self.shelf.is_done(item)]
        return next(filter(self.is_ready, self.left), None) if self.left else DONE

    def is_ready(self, item: Item) -> bool:
        """Whether all that an item is made from is there."""
        if item.ranker is None:
            return not item.state or is_published(self.shelf.place(RETRIEVER, item.state))
        place = self.shelf.place(RANKER, item.ranker) if item.ranker else self.shelf.layout.first_ranker
        given = not item.ranker and not self.start.is_new
        return self.shelf.is_done(Item(item.state)) and (given or is_published(place))

    def make(self, item: Item) -> None:
        """Make an item, together with all processes of the group; then delete models that are no longer needed."""
        if item.ranker is None:
            self.measure(item.state)
            by_leader(self.shelf.clear, RETRIEVER, item.state)
            return
        base, ranker = archived_state(self.training, item.state), partial(self.ranker, item.ranker)
        for _ in self.shelf.pipelines.of(base, item.by, ranker):
            pass
        by_leader(self.shelf.clear, RANKER, item.ranker)

    def measure(self, number: int) -> None:
        """Search with a state and publish its measurements; mine with it, if steps draw from that refresh."""
        state = state_behind(self.training, self.retriever(number), number)
        search_state(state, self.judge, depth=self.settings.depth)  # before the embeddings are deleted
        self.shelf.pipelines.keep_sharpness(state)
        if number <= self.settings.refreshes:
            refresh(self.training, state, number)
        state.discard()

    def retriever(self, number: int) -> BiEncoder:
        """The retriever after an iteration."""
        if not number:
            return self.base()
        return load_encoder(str(self.shelf.place(RETRIEVER, number)), device=self.device)

    def ranker(self, number: int) -> CrossEncoder:
        """The ranker after an iteration."""
        if number:
            return load_ranker(self.shelf.place(RANKER, number), device=self.device)
        return (
            load_ranker(self.shelf.layout.first_ranker, device=self.device)
            if self.start.is_new
            else self.start.model
        )

    def tidy(self) -> None:
        """Delete the models and embeddings that an inferencer left because it was killed."""
        for number in range(1, self.settings.iterations):
            self.shelf.clear(RANKER, number)
        measured = [number for number in range(self.settings.iterations) if self.shelf.is_done(Item(number))]
        if measured and (not measured[-1] or is_published(self.shelf.place(RETRIEVER, measured[-1]))):
            state_behind(self.training, self.retriever(measured[-1]), measured[-1]).discard()
            self.shelf.clear(RETRIEVER, measured[-1])


# ---------------------------------------------------------------- the results


def states_beside(
    training: TrainingRun[Ar2], working: Supervisor, ranker: StartingRanker
) -> Generator[Any, None, ArchivedState]:
    """Yield every state and pipeline but the final ones when it is published; returns the state of G⁰.

    Raises
    ------
    PeerError : a role failed, or both ended before their work was done.
    """
    shelf, items = Shelf(training), items_of(training.settings)
    place = shelf.layout.first_ranker if ranker.is_new else None
    states: dict[int, ArchivedState] = {}
    for done, item in enumerate(items):
        while not shelf.is_done(item):
            watch(working, done, partial(shelf.is_done, item))
        base = states.setdefault(item.state, archived_state(training, item.state))
        if item.ranker is None:
            yield base
        else:
            yield from shelf.pipelines.of(base, item.by, _made, None if item.ranker else place, passing=True)
    models = (training.last_model, shelf.layout.ranker)
    while not all(map(is_published, models)):
        watch(working, len(items), lambda: all(map(is_published, models)))
    while working(len(items), both=True):
        time.sleep(POLL_SECONDS)
    return states[0]


def watch(working: Supervisor, done: int, is_there: Callable[[], bool]) -> None:
    """Watch over both processes for a moment; raises if they ended and ``is_there`` is still false."""
    if working(done, both=True):
        time.sleep(POLL_SECONDS)
    elif not is_there():
        raise PeerError("NO_FINAL_MODEL", "training ended without a model", "look at the log, run it again")


def _made() -> CrossEncoder:
    raise AssertionError("the inferencer has re-ranked these runs")
