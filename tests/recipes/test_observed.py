"""Observing a training while it runs: its stages, and functions that are called at steps and states."""

import contextlib
import json

import pytest

from hardneg.errors import SettingsError
from hardneg.process import stages
from hardneg.process.signals import stop_flag
from hardneg.recipes import measured_states
from worlds.small_trainings import RECIPES, train_small
from worlds.tiny_world import one_thread  # noqa: F401


@pytest.fixture
def train(world):
    return lambda recipe, out, **more: train_small(recipe, world, out, **more)


@pytest.fixture
def course(monkeypatch):
    """The stages that were reached, by the place and the kind that was asked for; and the course itself."""
    seen, courses = [], []

    class Watched(stages.Course):
        def __init__(self, planned):
            super().__init__(planned)
            courses.append(self)

        def begin(self, kind, *, last=False):
            before = self.at
            super().begin(kind, last=last)
            if self.at != before:
                seen.append((self.at, kind))

    monkeypatch.setattr(stages, "Course", Watched)
    return seen, courses


def rows_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def digests(out):
    names = ["model/model.safetensors", "metrics.jsonl", "results.json"]
    return {name: (out / name).read_bytes() for name in names}


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_planned_stage_comes_in_its_turn(train, tmp_path, course, recipe, capsys):
    seen, courses = course
    steps, states = [], []
    train(recipe, tmp_path / "exp", progress=True, on_step=steps.append, on_state=states.append)
    (one,) = courses
    assert seen == list(enumerate(stage.kind for stage in one.stages))
    assert seen[-1] == (len(one.stages) - 1, "finish")
    assert one.left() == 0
    planned = {}
    for stage in one.stages:
        for kind, amount in stage.work.items():
            planned[kind] = planned.get(kind, 0) + amount.ticks * amount.each
    told = {kind for kind in planned if kind.startswith("train")}
    for kind in told:  # the first report of a turn is where its rate begins
        assert 0 < one.seen[kind][0] <= planned[kind]
    if "encode" in planned:  # a sample says how long texts are; here it has all
        assert 0.3 * planned["encode"] <= one.seen["encode"][0] <= 1.2 * planned["encode"]
    assert steps == rows_of(tmp_path / "exp")
    results = json.loads((tmp_path / "exp/results.json").read_text())
    names = {"final" if one["kind"] == "last" else one["name"] for one in states}
    assert names >= results["test"].keys() - {"bm25", "retriever"}
    assert states[0]["name"] in ("untrained", "retriever")
    assert states[-1]["path"].is_dir()
    assert states[-1]["measures"]["test"].keys() == {"RR@10", "R@100"}


@pytest.mark.parametrize("recipe", ["star", "ranker"])
def test_dev_is_said_while_training_runs_and_once(train, tmp_path, monkeypatch, capsys, recipe):
    said = []
    monkeypatch.setattr(measured_states, "say", said.append)
    train(recipe, tmp_path / "exp", progress=True, measure_every=1, steps=3)
    assert [line.split(":")[0] for line in said] == ["step-1", "step-2"]
    assert all(" dev RR@10 0." in line or " dev RR@10 1." in line for line in said)
    told = capsys.readouterr().err
    assert "step-1:" not in told
    assert "dev RR@10" in told  # of the states before and after


def test_nobody_who_looks_changes_the_results(train, tmp_path):
    train("star", tmp_path / "alone")
    train("star", tmp_path / "seen", progress=True, on_step=lambda row: row.clear(), on_state=lambda state: None)
    assert digests(tmp_path / "alone") == digests(tmp_path / "seen")


def test_a_state_on_the_way_is_told_when_it_was_measured_and_once(train, tmp_path):
    order = []
    train(
        "star",
        tmp_path / "exp",
        on_step=lambda row: order.append(row["step"]),
        on_state=lambda state: order.append(state["name"]),
    )
    assert order == ["untrained", 1, 2, "step-2", 3, 4, "final"]


@pytest.mark.parametrize("where", ["on_step", "on_state"])
def test_what_a_function_raises_stops_training_and_the_same_call_goes_on(train, tmp_path, where):
    train("star", tmp_path / "alone")

    def spoilt(told):
        if told["step"] == 2:
            raise OSError("the tracker is gone")

    with pytest.raises(OSError, match="the tracker is gone"):
        train("star", tmp_path / "exp", **{where: spoilt})
    assert stop_flag.heard is None
    assert not stop_flag
    assert list((tmp_path / "exp").rglob("checkpoint*"))
    assert not (tmp_path / "exp/results.json").exists()
    told = []
    train("star", tmp_path / "exp", on_step=told.append)
    assert digests(tmp_path / "alone") == digests(tmp_path / "exp")
    assert [row["step"] for row in told] in ([3, 4], [4])  # those after the checkpoint


def test_after_a_resume_states_are_told_in_their_order_and_the_kept_one_at_last(train, tmp_path):
    orders = []
    for place in ("alone", "exp", "exp"):
        states = []

        def seen(state, states=states, place=place):
            states.append(state)
            if place == "exp" and len(orders) == 1 and state["name"] == "step-2":
                raise OSError("the tracker is gone")

        with contextlib.suppress(OSError):
            train("star", tmp_path / place, on_state=seen, keep="best", measure_every=1, steps=4)
        orders.append(states)
    names = [[state["name"] for state in states] for states in orders]
    assert names[0] == names[2] == ["untrained", "step-1", "step-2", "step-3", "last", "final"]
    assert names[1] == ["untrained", "step-1", "step-2"]
    told = [[state["measures"] for state in states] for states in orders]
    assert told[0] == told[2]
    results = json.loads((tmp_path / "exp/results.json").read_text())
    assert told[0][-1]["test"] == {name: results["test"]["final"][name] for name in told[0][-1]["test"]}


def test_steps_of_another_process_are_not_promised(train, tmp_path):
    with pytest.raises(SettingsError, match=r"on_step with mode = async"):
        train("ance", tmp_path / "exp", mode="async", on_step=print)


def test_no_function_is_no_function(train, tmp_path):
    with pytest.raises(SettingsError, match="on_step"):
        train("star", tmp_path / "exp", on_step=3)
