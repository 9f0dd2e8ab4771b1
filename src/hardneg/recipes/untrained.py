"""The pretrained model as it came, which is measured too if the settings change the model before training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain

from hardneg.experiment.names import STARTED, UNTRAINED
from hardneg.experiment.snapshot import Snapshot, State
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.lengths import SIDES
from hardneg.recipes.training_run import TrainingRun
from hardneg.records import Side

OF_TEXTS = ("query_length", "passage_length", "search_query_length")  # settings that are lengths in tokens
UNSEEN = ("scale",)  # settings that change no ranking


@dataclasses.dataclass(frozen=True)
class Own:
    """The pretrained model as it came, if training starts from a changed model.

    Attributes
    ----------
    load : makes the pretrained model.
    sides : the sides whose vectors differ between the two models.
    how : the changes, for people: ``with passages of 64 and queries of 32 tokens, head = 'ance'``.
    """

    load: Callable[[], BiEncoder]
    sides: tuple[Side, ...]
    how: str


def own_model(
    own: EncoderSettings, start: EncoderSettings, load: Callable[[], BiEncoder], *, reinit: int = 0
) -> Own | None:
    """The model as it came, if it is worth measuring; None if training starts from a model with the same vectors.

    Parameters
    ----------
    own, start : settings of the model as it came, and of the model that training starts from.
    load : makes the model as it came.
    reinit : the number of top layers that begin with random weights.
    """
    sides = tuple(side for side in SIDES if reinit or not own.embeds_as(start, side))
    return Own(load, sides, difference(own, start, reinit)) if sides else None


def difference(own: EncoderSettings, start: EncoderSettings, reinit: int = 0) -> str:
    """A text for people that says how ``start`` differs from the model's own settings."""
    before, now = dataclasses.asdict(own), dataclasses.asdict(start)
    changed = [name for name in now if before[name] != now[name]]
    new = []
    if any(name in OF_TEXTS for name in changed):
        queries = now["search_query_length"] or now["query_length"]
        new.append(f"passages of {now['passage_length']} and queries of {queries} tokens")
    new += [f"{name} = {now[name]!r}" for name in changed if name not in OF_TEXTS + UNSEEN]
    new += [f"{reinit} layers begun anew"] if reinit else []
    return f"with {', '.join(new)}" if new else "as trained on"


def from_own(own: Own | None, training: TrainingRun, states: Callable[[], Iterable[State]]) -> Iterator[State]:
    """The states of a recipe; with ``own``, the model as it came comes first, measured on dev and test alone.

    The state that training starts from then has another name. ``states`` is called when its first state is asked
    for.
    """
    data = training.data
    parts: list[Callable[[], Iterable[State]]] = [states if own is None else lambda: map(started, states())]
    if own is not None and (data.dev is not None or data.test is not None):
        parts.insert(0, partial(state_as_it_came, own, training))
    return chain.from_iterable(part() for part in parts)


def started(state: State) -> State:
    """A state of a recipe that starts from a changed model; the untrained state gets a name that says so."""
    if state.name == UNTRAINED:
        state.name, state.kind = STARTED, "untrained-as-trained"
    return state


def state_as_it_came(own: Own, training: TrainingRun) -> Iterator[Snapshot]:
    """Yield the model as it came. Afterwards only embeddings that training's first state shares are left."""
    runs = training.experiment.layout.runs_of(UNTRAINED)
    state = training.state(own.load(), UNTRAINED, runs, kind="untrained", mines=False)
    state.asked = "judged"
    yield state
    state.discard(*own.sides)
