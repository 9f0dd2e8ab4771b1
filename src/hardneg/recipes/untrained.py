"""The pretrained model as it came, beside what training starts from where settings make that another one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

from hardneg.data.training_data import TrainingData
from hardneg.experiment.folder import Experiment
from hardneg.experiment.names import STARTED, UNTRAINED
from hardneg.experiment.snapshot import Snapshot, State
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.lengths import Cut, count_cut, sample_cut
from hardneg.recipes.training_run import TrainingRun
from hardneg.records import Side

SIDES: tuple[Side, Side] = ("passage", "query")
OF_TEXTS = ("query_length", "passage_length", "search_query_length")  # said in tokens
UNSEEN = ("scale",)  # changes no ranking
LOOKED_AT = 512  # texts of a side, where nothing is to be written


@dataclasses.dataclass(frozen=True)
class Own:
    """The pretrained model as it came, where training starts from something else.

    Attributes
    ----------
    load : makes it.
    sides : those whose vectors differ.
    how : what differs, for people: ``at 64/32 tokens, with head = 'ance'``.
    """

    load: Callable[[], BiEncoder]
    sides: tuple[Side, ...]
    how: str


def own_model(own: BiEncoder, start: BiEncoder, load: Callable[[], BiEncoder], *, reinit: int = 0) -> Own | None:
    """What the model as it came is to be measured for; None where ``start`` retrieves no differently.

    Parameters
    ----------
    load : makes ``own`` again, when it is needed.
    reinit : top layers of ``start`` that begin anew.
    """
    sides = tuple(side for side in SIDES if not embeds_alike(own, start, side))
    return Own(load, sides, difference(own.settings, start.settings, reinit)) if sides else None


def embeds_alike(a: BiEncoder, b: BiEncoder, side: Side) -> bool:
    """Whether two models make the same vectors of a side's texts in search."""
    return a.search_template(side) == b.search_template(side) and a.digest(side) == b.digest(side)


def difference(own: EncoderSettings, start: EncoderSettings, reinit: int = 0) -> str:
    """How ``start`` differs from the model's own settings, for people."""
    before, now = dataclasses.asdict(own), dataclasses.asdict(start)
    changed = [name for name in now if before[name] != now[name]]
    parts = []
    if any(name in OF_TEXTS for name in changed):
        parts.append(f"at {now['passage_length']}/{now['search_query_length'] or now['query_length']} tokens")
    others = [f"{name} = {now[name]!r}" for name in changed if name not in OF_TEXTS + UNSEEN]
    others += [f"{reinit} layers begun anew"] if reinit else []
    return ", ".join([*parts, *([f"with {', '.join(others)}"] if others else [])]) or "as trained on"


def from_own(own: Own | None, training: TrainingRun, states: Callable[[], Iterable[State]]) -> Iterator[State]:
    """The states of a recipe; before them, if it is another, the model as it came, which dev and test alone judge.

    Then what training starts from bears the name of what it is. ``states`` is called when the first is asked for.
    """
    data = training.data
    parts: list[Callable[[], Iterable[State]]] = [states if own is None else lambda: map(started, states())]
    if own is not None and (data.dev is not None or data.test is not None):
        parts.insert(0, partial(state_as_it_came, own, training))
    return chain.from_iterable(part() for part in parts)


def started(state: State) -> State:
    """A state of a recipe which does not start from the model as it came: its first one says so."""
    if state.name == UNTRAINED:
        state.name, state.kind = STARTED, "untrained-as-trained"
    return state


def state_as_it_came(own: Own, training: TrainingRun) -> Iterator[Snapshot]:
    """The model as it came; it leaves the embeddings of the side that training starts from too."""
    runs = training.experiment.layout.runs_of(UNTRAINED)
    state = training.state(own.load(), UNTRAINED, runs, kind="untrained")
    state.asked = "judged"
    yield state
    state.discard(*own.sides)


# ---------------------------------------------------------------- what is cut


def own_length(own: EncoderSettings, side: Side) -> int:
    """Tokens that the model takes as it came."""
    return own.passage_length if side == "passage" else own.query_length


def cuts_of(encoder: BiEncoder, own: EncoderSettings, data: TrainingData, experiment: Experiment) -> list[Cut]:
    """What the lengths in force cut of passages and queries, counted."""
    return [count_cut(encoder, data.collection, experiment.cache, side, own_length(own, side)) for side in SIDES]


def cuts_of_sample(encoder: BiEncoder, own: EncoderSettings, data: TrainingData) -> list[Cut]:
    """How many texts of each side are cut, estimated from some of them, for a plan."""
    return [sample_cut(encoder, data.collection, side, own_length(own, side), most=LOOKED_AT) for side in SIDES]


def lengths_of(cuts: Iterable[Cut]) -> dict[str, Mapping[str, Any]]:
    """The entry ``lengths`` of ``results.json``, by side."""
    return {cut.side: cut.as_json() for cut in cuts}
