"""What others see of training while it runs: stages, and functions that are told of steps and states."""

import json

import pytest

import hardneg as hn
from hardneg.errors import SettingsError
from hardneg.process import stages
from hardneg.process.signals import stop_flag
from worlds.tiny_world import COMMON, one_thread  # noqa: F401

SMALL = COMMON | {"measures": "RR@10 R@100", "device": "cpu"}
TELE = {"episodes": 2, "passages_reference": [4], "steps": 6, "stop_step": 3, "count": 6, "checkpoint_every": 2}
RECIPES = {
    "ance-tele": TELE,
    "warmup": {"mixtures": ["bm25", "in_batch"], "steps": 3, "count": 6},
    "star": {"steps": 4, "measure_every": 2},
    "adore": {"steps": 3, "cut": 10},
    "ance": {"refreshes": 1, "refresh_every": 3, "negatives_per_query": 2},
    "ar2": {
        "iterations": 2,
        "retriever_steps": 2,
        "ranker_steps": 2,
        "first_ranker_steps": 2,
        "negatives_per_query": 3,
        "ranker_queries_per_step": 4,
        "first_ranker_queries_per_step": 4,
        "rerank_depth": 10,
    },
    "ranker": {"steps": 3, "negatives_per_query": 3, "rerank": 10, "count": 6},
}


@pytest.fixture
def train(world):
    def run(recipe, out, **more):
        values = SMALL | RECIPES[recipe] | more
        values = {name: value for name, value in values.items() if recipe != "ranker" or name != "store_dtype"}
        return hn.train(recipe, world.collection, world.model, out, **values)

    return run


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


def test_steps_of_another_process_are_not_promised(train, tmp_path):
    with pytest.raises(SettingsError, match=r"on_step with mode = async"):
        train("ance", tmp_path / "exp", mode="async", on_step=print)


def test_no_function_is_no_function(train, tmp_path):
    with pytest.raises(SettingsError, match="on_step"):
        train("star", tmp_path / "exp", on_step=3)
