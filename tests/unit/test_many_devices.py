"""Estimates for several devices: what is divided, what is not, and what they send each other, by hand."""

import json
from dataclasses import replace

import pytest
import torch
from test_estimate import work_of

from hardneg.data.training_data import choose_splits
from hardneg.errors import SettingsError
from hardneg.models.loading import load_encoder
from hardneg.recipes import estimate
from hardneg.recipes import microbenchmarks as timing
from hardneg.recipes.cost_model import Beside
from hardneg.recipes.estimate import add_beside, describe_work, take_sample, time_stages, tokens_of_step
from hardneg.recipes.many_devices import BETWEEN, IN_ONE, WITHIN, Devices, overlap, parse_devices
from hardneg.recipes.microbenchmarks import RankingCost, spread
from hardneg.recipes.settings import Episode
from hardneg.recipes.untrained import Own
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401


@pytest.mark.parametrize(("text", "machines", "each"), [("1", 1, 1), ("8", 1, 8), ("2x8", 2, 8), ("1x3", 1, 3)])
def test_devices_are_named_by_a_number_or_by_two(text, machines, each):
    assert parse_devices(text) == Devices(machines, each)


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("6+2", Devices(1, 6, 2)),
        ("8@25", Devices(1, 8, 0, 25e9)),
        ("2x8@0.5", Devices(2, 8, 0, 5e8)),
        ("1+1@10", Devices(1, 1, 1, 1e10)),
    ],
)
def test_a_group_that_mines_and_a_rate_stand_behind_the_number(text, devices):
    assert parse_devices(text) == devices


def test_a_given_rate_takes_the_place_of_the_assumed_ones():
    assert Devices(1, 2, given=5e9).exchange_seconds(10e9) == 2
    assert Devices(2, 1, given=5e9).exchange_seconds(10e9) == 2


def test_two_groups_overlap_but_for_the_first_version_and_the_last_measurement():
    stages = {"encode": 20.0, "search": 10.0, "train": 90.0, "exchange gradients": 10.0, "tokenise": 5.0}
    assert overlap(stages, states=4, steps=50) == (20.0, 10.0, 5.0)  # two versions beside 100 seconds of training
    assert overlap({**stages, "encode": 350.0}, states=4, steps=50) == (100.0, 120.0, 60.0)
    assert overlap({**stages, IN_ONE: 99.0}, states=4, steps=50) == (20.0, 10.0, 5.0)  # after both groups
    assert overlap(stages, states=2, steps=50).seconds == 0
    more = {**stages, "train the ranker": 60.0, "score by the ranker": 40.0, "re-rank by the ranker": 60.0}
    both = overlap(more, states=4, steps=50, trained={"the ranker": 1.0})
    assert both == (60.0, 30.0, 7.5)  # two versions beside 200 seconds of training
    half = overlap(more, states=4, steps=50, trained={"the ranker": 0.5})  # as much is done before
    assert half == (60.0, 30.0, 50 * 30 / 170)
    assert half.facts["saved, as both groups work at the same time, about"] == "1m00s"
    assert overlap(more, states=9, steps=50, trained={"the ranker": 1.0}).version == pytest.approx(90 / 8)
    assert overlap(more, states=4, steps=50) == (20.0, 10.0, 5.0)


@pytest.mark.parametrize(
    "text",
    [
        "6+",
        "+2",
        "6+0",
        "2x3+2",
        "8@",
        "8@0",
        "8@0.0",
        "8@-1",
        "8@x",
        "",
        "0",
        "x",
        "8x",
        "x8",
        "-1",
        "2x0",
        "1.5",
        "2x8x4",
        "cuda",
        "٣",
        "9" * 30,
        "True",
    ],
)
def test_what_is_no_number_of_devices_is_refused(text):
    with pytest.raises(SettingsError) as raised:
        parse_devices(text)
    assert (raised.value.code, raised.value.status) == ("BAD_DEVICES", 2)


def test_gradients_take_the_time_of_a_ring():
    assert Devices(1, 1).exchange_seconds(WITHIN) == 0
    assert Devices(1, 2).exchange_seconds(WITHIN) == 1  # each sends a half, twice
    assert Devices(1, 8).exchange_seconds(WITHIN) == pytest.approx(2 * 7 / 8)
    assert Devices(2, 4).exchange_seconds(BETWEEN) == pytest.approx(2 * 7 / 8)


def test_nothing_is_divided_into_less_than_a_piece():
    assert Devices(1, 4).share(100.0) == 25
    assert Devices(1, 4).share(100.0, 40.0) == 40
    assert Devices(1, 4).share(30.0, 40.0) == 30
    assert Devices().share(100.0, 40.0) == 100


@pytest.fixture
def counted(world, monkeypatch):
    """Whatever is timed takes a second, so that what is left are counts."""
    monkeypatch.setattr(timing, "seconds_of", lambda work: (work(), 1.0)[1])
    return choose_splits(world.collection), load_encoder(world.model)


def stages(counted, devices, **changes):
    data, encoder = counted
    work = work_of(data, episodes=[Episode(1, 60, 16, 8, 5)], devices=devices, **changes)
    return time_stages(work, encoder, replace(take_sample(work, encoder), seconds=7.0))[0]


def test_steps_encoding_and_search_are_divided_and_the_rest_is_not(counted):
    one, four = (stages(counted, Devices(1, count)) for count in (1, 4))
    for stage in ("encode", "search"):
        assert four[stage] == pytest.approx(one[stage] / 4), stage
    for stage in ("tokenise", "save and verify"):
        assert four[stage] == one[stage], stage
    data, encoder = counted
    sample = take_sample(work_of(data), encoder)
    step = tokens_of_step(Episode(1, 60, 16, 8, 5), None, sample, work_of(data)) / 4
    timed = float(spread(sample.passages, int(step)).lengths.sum())
    assert four["train"] == pytest.approx(16 * (1 + step / timed))  # each makes the whole update
    size = 4 * sum(p.numel() for p in encoder.parameters())
    assert four["exchange gradients"] == pytest.approx(16 * 2 * 3 / 4 * size / WITHIN)
    assert "exchange gradients" not in one


def test_a_text_is_the_least_that_a_device_has_of_a_step(counted):
    many, more = (stages(counted, Devices(1, count))["train"] for count in (500, 5000))
    assert many == more
    assert many > 16


def test_an_index_of_faiss_is_searched_by_one(counted):
    found = [stages(counted, devices, faiss=True)["search"] for devices in (Devices(), Devices(1, 4))]
    assert found[0] == found[1]


def test_a_step_is_scored_in_parts_by_the_ranker_that_is_trained_and_whole_by_a_teacher(counted, monkeypatch):
    monkeypatch.setattr(estimate, "ranking_cost", lambda *_, **__: RankingCost(1.0, 1.0, 0.0, 0.0))
    model, trained = torch.nn.Linear(2, 2), [Episode(1, 60, 16, 8, 5)]
    for episodes, scored in ((trained, 80 / 4), ([], 80)):
        seconds = {"save and verify": 0.0}
        work = work_of(counted[0], devices=Devices(1, 4))
        add_beside(seconds, work, Beside("the ranker", lambda: model, 80, episodes, reranked=40))
        assert seconds["score by the ranker"] == scored
        assert seconds["re-rank by the ranker"] == 40


def test_a_group_that_mines_encodes_and_searches_beside_training(counted):
    data, encoder = counted
    one, groups = (
        describe_work(
            work_of(data, episodes=[Episode(1, 60, 16, 8, 5)], devices=devices), encoder, seeds=2, measure=True
        )
        for devices in (Devices(1, 3), Devices(1, 3, 2))
    )
    apart, alone = groups["seconds"], one["seconds"]
    assert apart["train"] == alone["train"]
    a_state = {stage: alone[stage] * 3 / 3 for stage in ("encode", "search")}  # one of three states, by one device
    assert apart["encode"] == pytest.approx(2 * a_state["encode"] / 2)  # two states by two devices
    assert apart["search"] == pytest.approx(2 * a_state["search"] / 2)
    assert apart[IN_ONE] == pytest.approx(sum(a_state.values()))  # the final one
    assert IN_ONE not in alone
    version = (apart["encode"] + apart["search"]) / 2 / 2  # two seeds of two states that mine
    stages = sum(value for stage, value in apart.items() if stage != "total")
    beside = min(version, (apart["train"] + apart["exchange gradients"]) / 2)
    assert apart["total"] == pytest.approx(stages - 2 * beside)
    assert groups["facts"]["devices"].startswith("3 train and 2 mine")
    assert "training steps" in groups["facts"]["a version of the negatives takes, about"]
    assert "a version of the negatives takes, about" not in one["facts"]


def test_the_command_itself_measures_the_model_as_it_came_and_re_ranks_with_the_last_one(counted, monkeypatch):
    monkeypatch.setattr(estimate, "ranking_cost", lambda *_, **__: RankingCost(1.0, 1.0, 0.0, 0.0))
    data, encoder = counted
    ranker = torch.nn.Linear(2, 2)
    beside = [Beside("the ranker", lambda: ranker, 0, [Episode(1, 60, 16, 8, 5)], reranked=40)]
    own = Own(lambda: encoder, ("query", "passage"), "with other lengths")
    one, groups = (
        describe_work(
            work_of(data, devices=devices, reranks=(0, 0, 30), beside=beside),
            encoder,
            seeds=1,
            measure=True,
            own=own,
        )["seconds"]
        for devices in (Devices(), Devices(1, 1, 2))
    )
    assert one["re-rank by the ranker"] == 40
    assert groups["re-rank by the ranker"] == 10
    both = sum(one[stage] - 2 * groups[stage] for stage in ("encode", "search"))
    assert groups[IN_ONE] == pytest.approx(both + 30)


def test_a_final_state_that_is_judged_alone_encodes_and_searches_less(world):
    data = choose_splits(world.collection)
    judged = sum(map(len, (split for split in (data.dev, data.test) if split is not None)))
    whole, alone = work_of(data), work_of(data, examined=False, shares=[1.0, 0.5, 0.25])
    assert whole.last == (1.0, 1.0, 2 * len(data.train) + judged)
    assert alone.last == (judged / world.collection.n_queries, 0.25, judged)


def test_what_is_assumed_is_said(counted):
    data, encoder = counted
    facts = describe_work(work_of(data, devices=Devices(2, 8)), encoder, seeds=1, measure=True)["facts"]
    assert facts["devices"].startswith("16 on 2 machines, each as fast as this one")
    assert "gradients are sent at 1.25 GB/s" in facts["assumed"]
    assert "time to exchange gradients" in facts
    alone = describe_work(work_of(data), encoder, seeds=1, measure=True)["facts"]
    assert not {"devices", "assumed", "time to exchange gradients"} & set(alone)


@pytest.mark.parametrize("recipe", ["warmup", "ranker"])
def test_the_command_estimates_for_several(world, hardneg, tmp_path, recipe):
    command = ["train", recipe, "--data", world.collection.path, "--model", world.model, "--out", tmp_path / "exp"]
    command += ["--device", "cpu", "--json", "--devices", "2x4"]
    status, out, said = hardneg(*command, "--estimate")
    assert status == 0, said
    plan = json.loads(out)
    assert plan["seconds"]["exchange gradients"] > 0
    assert plan["facts"]["devices"].startswith("8 on 2 machines")
    for words, line in (
        (command, "USAGE: devices = 2x4 without an estimate"),
        ([*command[:-1], "x"], "BAD_DEVICES"),
    ):
        status, _, said = hardneg(*words)
        assert (status, said.count("\n")) == (2, 1), said
        assert line in said
    assert not (tmp_path / "exp").exists()


def test_only_asynchronous_modes_are_estimated_with_a_group_that_mines(world, hardneg, tmp_path):
    shared = [
        "--data",
        world.collection.path,
        "--model",
        world.model,
        "--out",
        tmp_path / "exp",
        "--device",
        "cpu",
    ]
    asked = [*shared, "--json", "--estimate", "--devices", "2+1"]
    for words in (["warmup"], ["ranker"], ["ance"], ["ance", "--set", "mode=sync"], ["ar2"]):
        status, _, said = hardneg("train", *words, *asked)
        assert status == 2
        assert "BAD_DEVICES: devices = 2+1 has a group that mines" in said
    for words in (["ance", "--set", "mode=async"], ["ar2", "--set", "mode=async-fixed"]):
        status, out, said = hardneg("train", *words, *asked)
        assert status == 0, said
        found = json.loads(out)
        assert found["facts"]["devices"].startswith("2 train and 1 mine")
        assert "a version of the negatives takes, about" in found["facts"]
        stages = sum(value for stage, value in found["seconds"].items() if stage != "total")
        assert found["seconds"]["total"] < stages
