"""The embeddings of the best state on dev so far, where an index decides and where the exact search does."""

import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from hardneg.diagnostics import best_vectors
from hardneg.diagnostics.best_vectors import BestVectors
from hardneg.diagnostics.measured import Measured
from hardneg.evaluation.measures import parse_measures
from hardneg.experiment.names import STARTED, UNTRAINED
from hardneg.experiment.snapshot import Snapshot
from hardneg.experiment.states import StateRecord

BEFORE = (UNTRAINED, STARTED)  # their weights are not in the experiment


class Bare(Snapshot):
    """A state that has nothing but a name, and embeddings: its queries, and passages that some states share."""

    def __init__(self, name, passages="shared", of=""):
        self.name, self.of, self.keeps, self.released = name, of, False, False
        self.places = {Path(f"queries of {name}"), Path(f"passages, {passages}")}

    def stores(self, *sides):
        return self.places

    def release(self, *sides):
        self.released = True


@pytest.fixture
def best(monkeypatch):
    """What keeps the vectors; ``deleted`` are the places that it deleted."""
    deleted = []
    monkeypatch.setattr(best_vectors, "discard", lambda place: deleted.append(str(place)))
    best = BestVectors(parse_measures(["RR@10"])[0])
    best.deleted = deleted
    return best


def look(best, states, values):
    """Look at each state as it comes; ``values`` has the value on dev of each by name."""
    seen = {}
    for state in states:
        record = StateRecord(state.name, "indexed" if state.of else "passing", of=state.of or None)
        place = None if state.name in BEFORE else Path(state.name)
        dev = SimpleNamespace(means={"RR@10": values[state.name]})
        seen[state.name] = Measured(record, {}, place, evaluations={"dev": dev})
        best.look(state, seen)


def with_index(state):
    return Bare(f"{state.name}/pq", of=state.name)


def test_states_are_judged_as_the_index_retrieves_them(best):
    """The exact search would choose the model as it came, then step 2, then the last state."""
    came, first, two, four = Bare(UNTRAINED, "its own"), *map(Bare, (STARTED, "step-2", "step-4"))
    last = Bare("last")
    order = [came, first, with_index(first), two, with_index(two), four, with_index(four), with_index(last), last]
    exact = {UNTRAINED: 0.9, STARTED: 0.5, "step-2": 0.8, "step-4": 0.4, "last": 0.95}
    indexed = {f"{STARTED}/pq": 0.3, "step-2/pq": 0.2, "step-4/pq": 0.4, "last/pq": 0.1}
    look(best, order, exact | indexed)
    assert best.deleted == ["passages, its own", f"queries of {UNTRAINED}", f"queries of {STARTED}"]
    assert best.best() is four
    assert [one.name for one in order if one.keeps] == [UNTRAINED, STARTED, "step-4"]
    best.settle(four, last)
    assert best.deleted[3:] == ["queries of last"]


def test_what_was_held_goes_where_another_state_is_kept(best):
    """Such as the last one, where nothing on the way could be kept."""
    came, last = Bare(UNTRAINED, "its own"), Bare("last")
    look(best, [came], {UNTRAINED: 0.9})
    best.settle(last, last)
    assert best.deleted == ["passages, its own", f"queries of {UNTRAINED}"]


def test_without_an_index_the_better_of_the_two_untrained_states_is_held(best):
    came, first, two = Bare(UNTRAINED, "its own"), Bare(STARTED), Bare("step-2")
    look(best, [came, first, two], {UNTRAINED: 0.9, STARTED: 0.6, "step-2": 0.5})
    assert (best.best() is came, best.deleted) == (True, [])
    best.settle(came, two)
    assert best.deleted == ["passages, shared", "queries of step-2"]


def test_the_state_that_training_starts_from_takes_the_place_of_the_model_as_it_came(best):
    came, first, two = Bare(UNTRAINED, "its own"), Bare(STARTED), Bare("step-2")
    look(best, [came, first, two], {UNTRAINED: 0.6, STARTED: 0.9, "step-2": 0.5})
    assert best.best() is first
    assert best.deleted == ["passages, its own", f"queries of {UNTRAINED}"]


def test_no_state_is_held_that_nobody_else_holds(best):
    """A state has a whole model, and training goes on after it."""
    one, two = Bare("step-2"), Bare("step-4")
    living = [weakref.ref(one), weakref.ref(two)]
    look(best, [one, two], {"step-2": 0.6, "step-4": 0.5})
    del one, two
    assert [state() for state in living] == [None, None]
    three = Bare("step-6", "its own")
    look(best, [three], {"step-6": 0.7})
    assert best.deleted == ["passages, shared", "queries of step-2"]


def test_states_let_go_of_embeddings_before_these_are_deleted(best, monkeypatch):
    one, two, last = Bare("step-2"), Bare("step-4"), Bare("last")
    released = []
    monkeypatch.setattr(
        best_vectors, "discard", lambda place: released.append((one.released, two.released, last.released))
    )
    look(best, [one, two, last], {"step-2": 0.5, "step-4": 0.6, "last": 0.4})
    assert released == [(True, False, False)]
    best.settle(two, last)
    assert released[1:] == [(True, True, True)]
