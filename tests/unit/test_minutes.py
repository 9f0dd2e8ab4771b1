"""Training for so many minutes: epochs by hand, what a begun experiment keeps, and what is refused."""

import pytest

import hardneg as hn
from hardneg.api import minutes as fitting
from hardneg.errors import SettingsError
from hardneg.experiment.folder import read_settings

TAKES = {"encode": 40.0, "search": 8.0, "train": 30.0, "total": 78.0}  # seconds
PRESETS = {"warmup": 2, "star": 2, "adore": 2, "ance": 1.5, "ance-tele": 1, "ranker": 2, "ar2": 2}  # their epochs


@pytest.fixture
def timed(monkeypatch):
    """Replace the estimate by one of known seconds; returns the tasks that it was asked for."""
    asked, real = [], fitting.planned
    monkeypatch.setattr(fitting, "perf_counter", lambda: 7.0)
    monkeypatch.setattr(
        fitting,
        "planned",
        lambda task, **given: asked.append(task) or real(task, measure=False) | {"seconds": TAKES},
    )
    return asked


def plan_of(world, recipe="warmup", **given):
    preset = given.pop("preset", "finetune-ranker" if recipe == "ranker" else "finetune")
    return hn.plan(recipe, world.collection, world.model, preset=preset, **given)


@pytest.mark.parametrize(("recipe", "epochs"), PRESETS.items())
def test_epochs_grow_with_what_is_left_for_training(world, timed, recipe, epochs):
    """Three minutes without 48 seconds are 132, and the preset's epochs take 30."""
    found = plan_of(world, recipe, minutes=3)
    expected = float(f"{epochs * 132 / 30:.3g}")
    assert found["settings"]["epochs"] == expected
    assert found["settings"]["min_steps"] is None
    if recipe == "ance-tele":
        assert found["settings"]["first_epochs"] == 4.4  # its first episode keeps its share
    free = timed[0].settings
    assert (free.min_steps, free.max_steps, free.epochs) == (None, None, epochs)


def test_the_time_of_the_estimate_counts(world, timed, monkeypatch):
    monkeypatch.setattr(fitting, "perf_counter", iter([5.0, 17.0]).__next__)
    assert plan_of(world, minutes=3)["settings"]["epochs"] == 8.0  # 120 of 180 seconds


def test_the_bound_above_holds(world, timed):
    found = plan_of(world, minutes=3, max_steps=5)
    assert [one["steps"] for one in found["episodes"]] == [5]


def test_episodes_that_mine_alone_keep_the_length_of_a_first_one(world, timed):
    settings = plan_of(world, "ance-tele", minutes=3, first="mined", first_queries=None)["settings"]
    assert settings["first_epochs"] == 1


def test_each_seed_has_the_minutes(world, timed):
    plan_of(world, minutes=3, seeds=2)
    assert timed[0].seeds == 1


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"minutes": 0}, "minutes = 0; give a number above 0, at most 527,040"),
        ({"minutes": float("nan")}, "minutes = nan; give a number above 0"),
        ({"minutes": 1e9}, "minutes = 1e+09; give a number above 0"),
        ({"minutes": 3, "epochs": 5}, "minutes = 3 with epochs, which also says how long training is; give one"),
        ({"minutes": 3, "min_steps": 5}, "minutes = 3 with min_steps, which also says"),
        ({"minutes": 3, "steps": [5]}, "minutes = 3 with steps, which also says"),
        (
            {"minutes": 3, "recipe": "ance-tele", "preset": "demo"},
            "minutes = 3, and these settings count steps; leave",
        ),
        (
            {"minutes": 3, "recipe": "ar2", "preset": None},
            "minutes = 3, and these settings count steps; leave them",
        ),
        ({"minutes": 3, "recipe": "ance", "mode": "async", "measure_every": None}, "and several processes train"),
        ({"minutes": 3, "recipe": "ance-tele", "stop_step": 7}, "minutes = 3 with stop_step, which also says"),
        ({"minutes": 0.8}, "minutes = 0.8, and all but training takes about 48s here; give more minutes"),
        ({"minutes": 0.88}, "minutes = 0.88, and all but training takes about 48s here; give more minutes"),
    ],
)
def test_what_cannot_be_is_refused(world, timed, given, fault):
    with pytest.raises(SettingsError) as refused:
        plan_of(world, **given)
    assert refused.value.code == "BAD_SETTING"
    assert fault in str(refused.value)


def test_a_tenth_of_the_time_is_enough_for_training(world, timed):
    assert plan_of(world, minutes=0.9)["settings"]["epochs"] == 0.4  # 6 of 54 seconds


def test_an_experiment_keeps_the_epochs_that_it_was_begun_with(world, timed, tmp_path, hardneg):
    command = ["train", "warmup", "--data", world.collection.path, "--model", world.model, "--preset", "finetune"]
    command += ["--minutes", "1", "--out", tmp_path / "exp"]
    status, _, said = hardneg(*command)
    assert status == 0, said
    assert "minutes = 1: epochs = 0.8; all but training takes about 48s" in said
    begun = read_settings(tmp_path / "exp")
    assert begun["settings"]["epochs"] == 0.8
    again = [*command[:-3], "2", *command[-2:]]
    status, _, said = hardneg(*again)
    assert status == 0, said
    assert "begun with epochs = 0.8, and kept so: minutes count only where an experiment begins" in said
    assert "finished already" in said
    assert len(timed) == 1
    assert read_settings(tmp_path / "exp") == begun


def test_the_estimate_is_of_what_would_be_trained(world):
    """Not replaced: with more time there are more steps, and a second estimate comes near the time.

    The times are far apart and the bounds wide, because other programs may run beside one of the two measurements.
    """
    few, many = (plan_of(world, minutes=length, estimate=True, max_steps=None) for length in (20, 2000))
    steps = [sum(one["steps"] for one in found["episodes"]) for found in (few, many)]
    assert 1 < steps[0] < steps[1]
    assert 0.05 < many["seconds"]["total"] / (2000 * 60) < 20
