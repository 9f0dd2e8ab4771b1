"""The state that in-batch negatives alone trained, which a verdict compares the final model with."""

from __future__ import annotations

from pathlib import Path

from hardneg.errors import HardnegError
from hardneg.evaluation.significance import bootstrap_interval, randomization_test
from hardneg.experiment.course import course_of
from hardneg.experiment.folder import BASE, read_settings
from hardneg.experiment.layout import Layout
from hardneg.experiment.names import FINAL, UNTRAINED
from hardneg.models.source import trained_name
from hardneg.report.measured import evaluations
from hardneg.report.opened import Opened
from hardneg.report.verdict import Beside
from hardneg.storage.artifacts import read_manifest

SEED, PERMUTATIONS = 0, 100_000  # of tests


def in_batch(opened: Opened) -> Beside | None:
    """The test of the final model against the in-batch state, by the verdict's measure; None without the state.

    The in-batch state is a state of the experiment itself. It may also be the model that the experiment starts
    from, if an experiment with in-batch negatives alone trained that model.
    """
    rows = opened.results.get("comparisons")
    if not rows:
        return None
    split = str(opened.results["compared_on"])
    found = {name: of[split] for name, of in evaluations(opened).items() if split in of}
    state = state_within(opened)
    called = f"{state}, which in-batch negatives alone trained"
    if state is None and started_in_batch(opened):
        state, called = UNTRAINED, "the model it started from, which in-batch negatives alone trained"
    measure = rows[0]["measure"]
    if state is None or not {state, FINAL} <= set(found) or not kept_after(opened, state):
        return None
    known = {"a": FINAL, "b": state, "measure": measure}
    for row in rows:  # the tests of the experiment itself
        if all(row[name] == value for name, value in known.items()):
            return Beside(called, row)
    values, others = found[FINAL].of(measure), found[state].of(measure)
    low, high = bootstrap_interval(values - others, seed=SEED)
    p = randomization_test(values, others, permutations=PERMUTATIONS, seed=SEED)
    return Beside(
        called, {**known, "difference": float((values - others).mean()), "interval": [low, high], "p": p}
    )


def trained_start(opened: Opened) -> str | None:
    """Where the model lies that an experiment starts from, if hardneg trained it; else None."""
    place = opened.settings.get(BASE, {}).get("model")
    return trained_name(place) if isinstance(place, str) else None


def kept_after(opened: Opened, state: str) -> bool:
    """Whether the state that is kept came later in training than ``state``, and so saw other negatives, too."""
    kept = opened.results.get("kept", {}).get("state")
    names = [one.name for one in opened.states]
    return kept is None or kept not in names or state not in names or names.index(kept) > names.index(state)


def state_within(opened: Opened) -> str | None:
    """The name of the last state of training that in-batch negatives alone trained; None if there is none."""
    states = [one for one in opened.states if one.kind == "episode" and one.of is None]
    return next((one.name for one in reversed(states) if one.episode in opened.course.in_batch), None)


def started_in_batch(opened: Opened) -> bool:
    """Whether an experiment with in-batch negatives alone made the model that this one starts from.

    The settings of that experiment answer this, if the model still lies in its folder and has not changed;
    otherwise the answer is no.
    """
    place = opened.settings.get(BASE, {}).get("model")
    if not isinstance(place, str):
        return False
    before = Layout((model := Path(place)).parent)
    started = opened.state(UNTRAINED)
    if not before.settings.is_file() or model.name != before.model.name or started is None:
        return False
    try:
        manifest, course = read_manifest(model), course_of(read_settings(before.path))
    except HardnegError:  # it is gone, or another program's
        return False
    same = manifest.kind == "model" and manifest.facts.get("digest") == started.digest
    return same and course.only_in_batch
