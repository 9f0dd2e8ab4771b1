"""Training for so many minutes: epochs by hand, what a begun experiment keeps, and what is refused."""

from types import SimpleNamespace

import pytest

import hardneg as hn
from hardneg.api import minutes as fitting
from hardneg.errors import SettingsError
from hardneg.experiment.folder import read_settings

FIXED = {"encode": 40.0, "search": 8.0}  # seconds, whatever the length
A_STEP = 0.01  # seconds
RECIPES = ("warmup", "star", "adore", "ance", "ance-tele", "ranker", "ar2")


def steps_of(plan):
    return sum(one["steps"] for one in plan["episodes"])


@pytest.fixture
def timed(monkeypatch):
    """Replace the estimate by one of known speeds; returns the tasks that it was asked for, and other speeds."""
    asked, beside, real = [], {}, fitting.planner
    monkeypatch.setattr(fitting, "perf_counter", lambda: 7.0)

    def planner(task, **given):
        asked.append(task)
        plan = real(task, **given)

        def known(settings, measure):
            found = plan(settings, measure=False)
            seconds = FIXED | {"train": A_STEP * steps_of(found)}
            seconds |= {name: step * steps_of(found) for name, step in beside.items()}
            return found | {"seconds": seconds | {"total": sum(seconds.values())}}

        return known

    monkeypatch.setattr(fitting, "planner", planner)
    return SimpleNamespace(asked=asked, beside=beside)


def plan_of(world, recipe="warmup", **given):
    preset = given.pop("preset", "finetune-ranker" if recipe == "ranker" else "finetune")
    return hn.plan(recipe, world.collection, world.model, preset=preset, **given)


@pytest.mark.parametrize("recipe", RECIPES)
def test_epochs_grow_with_what_is_left_for_training(world, timed, recipe):
    """Three minutes without 48 seconds are 132, or 13,200 steps."""
    found = plan_of(world, recipe, minutes=3, max_steps=None)
    assert 0.97 * 13_200 < steps_of(found) <= 13_200
    assert found["settings"]["min_steps"] is None
    assert found["origins"]["epochs"] == "to fit 3 minutes"
    if recipe == "ance-tele":  # its first episode keeps its share
        assert found["settings"]["first_epochs"] == pytest.approx(found["settings"]["epochs"], rel=0.01)


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_grows_with_the_steps_counts(world, timed, recipe):
    """Scores of a ranker or a teacher, states that are measured every so many steps, and checkpoints."""
    timed.beside["score by the ranker"] = 0.02
    assert 0.97 * 4_400 < steps_of(plan_of(world, recipe, minutes=3, max_steps=None)) <= 4_400


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_few_steps_fit_too(world, timed, recipe):
    """Each part of training has at least one step; so for a short time the steps are no multiple of the epochs."""
    timed.beside["score by the ranker"] = 5.0
    few = steps_of(plan_of(world, recipe, minutes=3, max_steps=None))
    assert 18 <= few <= 26


@pytest.mark.parametrize(("recipe", "given"), [("warmup", {"measure_every": 5}), ("ar2", {})])
def test_an_estimate_of_the_epochs_comes_to_the_minutes(world, recipe, given):
    found = plan_of(world, recipe, minutes=10, estimate=True, max_steps=None, **given)
    assert 0.9 * 600 < found["seconds"]["total"] <= 600


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_epochs_that_are_found_are_those_of_the_same_training_without_minutes(world, timed, recipe):
    """The epochs of the preset make a few steps here; nothing of these steps may stay."""
    found = plan_of(world, recipe, minutes=3, max_steps=None)
    lengths = {name: found["settings"][name] for name in fitting.LENGTHS if found["settings"].get(name)}
    again = plan_of(world, recipe, max_steps=None, min_steps=None, **lengths)
    assert again["settings"] == found["settings"]
    assert again["episodes"] == found["episodes"]


def test_the_time_of_the_estimate_counts(world, timed, monkeypatch):
    monkeypatch.setattr(fitting, "perf_counter", iter([5.0, 17.0]).__next__)
    assert 0.97 * 12_000 < steps_of(plan_of(world, minutes=3, max_steps=None)) <= 12_000


def test_the_bound_above_holds(world, timed):
    found = plan_of(world, minutes=3, max_steps=5)
    assert [one["steps"] for one in found["episodes"]] == [5]


def test_a_line_says_that_the_bound_ends_training_before(world, timed, caplog, hardneg):
    command = ["train", "warmup", "--data", world.collection.path, "--model", world.model, "--preset", "finetune"]
    command += ["--out", world.root / "none", "--minutes", "3", "--dry-run"]
    status, _, said = hardneg(*command, "--set", "max_steps=10000")
    assert status == 0, said
    assert "; max_steps = 10,000 ends it before" in said
    status, _, said = hardneg(*command)
    assert status == 0, said
    assert "max_steps" not in said


def test_a_presets_bound_above_gives_way(world, timed):
    found = plan_of(world, minutes=3)
    assert found["settings"]["max_steps"] is None
    assert steps_of(found) == steps_of(plan_of(world, minutes=3, max_steps=None)) > 10_000


def test_episodes_that_mine_alone_keep_the_length_of_a_first_one(world, timed):
    settings = plan_of(world, "ance-tele", minutes=3, first="mined", first_queries=None)["settings"]
    assert settings["first_epochs"] == 1


def test_each_seed_has_the_minutes(world, timed):
    plan_of(world, minutes=3, seeds=2)
    assert timed.asked[0].seeds == 1


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"minutes": 0}, "minutes = 0; give a number above 0, at most 527,040"),
        ({"minutes": float("nan")}, "minutes = nan; give a number above 0"),
        ({"minutes": 1e9}, "minutes = 1e+09; give a number above 0"),
        ({"minutes": 3, "epochs": 5}, "minutes = 3 with epochs, which also says how long training is; give one"),
        ({"minutes": 3, "epochs": 3}, "minutes = 3 with epochs"),  # which is so by default, too
        ({"minutes": 3, "usual": {"epochs": 3}}, "minutes = 3 with epochs"),
        ({"minutes": 3, "min_steps": 5}, "minutes = 3 with min_steps, which also says"),
        ({"minutes": 3, "steps": [5]}, "minutes = 3 with steps, which also says"),
        (
            {"minutes": 3, "recipe": "ance-tele", "preset": "demo"},
            "minutes = 3, but these settings count steps; leave",
        ),
        (
            {"minutes": 3, "recipe": "ar2", "preset": None},
            "minutes = 3, but these settings count steps; leave them",
        ),
        ({"minutes": 3, "recipe": "ance", "mode": "async", "measure_every": None}, "but several processes train"),
        ({"minutes": 3, "recipe": "ance-tele", "stop_step": 7}, "minutes = 3 with stop_step, which also says"),
        (
            {"minutes": 0.8},
            "minutes = 0.8 is too short: all but training takes about 48s here; give at least about 1",
        ),
        (
            {"minutes": 0.88},
            "minutes = 0.88 is too short: all but training takes about 48s here; give at least about 1",
        ),
    ],
)
def test_what_cannot_be_is_refused(world, timed, given, fault):
    with pytest.raises(SettingsError) as refused:
        plan_of(world, **given)
    assert refused.value.code == "BAD_SETTING"
    assert fault in str(refused.value)


def test_a_tenth_of_the_time_is_enough_for_training(world, timed):
    assert 0.97 * 600 < steps_of(plan_of(world, minutes=0.9)) <= 600  # 6 of 54 seconds


def test_an_experiment_keeps_the_epochs_that_it_was_begun_with(world, timed, tmp_path, hardneg):
    timed.beside["score by the teacher"] = 3.0  # three steps
    command = ["train", "warmup", "--data", world.collection.path, "--model", world.model, "--preset", "finetune"]
    command += ["--minutes", "1", "--out", tmp_path / "exp"]
    status, _, said = hardneg(*command)
    assert status == 0, said
    begun = read_settings(tmp_path / "exp")
    epochs = begun["settings"]["epochs"]
    assert 1 < epochs <= 1.5
    assert f"minutes = 1: epochs = {epochs:g}; all but training takes about" in said
    assert said.index("minutes = 1: measuring the speed of this machine first takes") < said.index(
        "minutes = 1: epochs"
    )
    again = [*command[:-3], "2", *command[-2:]]
    status, _, said = hardneg(*again)
    assert status == 0, said
    assert f"begun with epochs = {epochs:g}, and kept so: minutes count only where an experiment begins" in said
    assert "finished already" in said
    assert len(timed.asked) == 1
    assert read_settings(tmp_path / "exp") == begun
    status, _, said = hardneg(*command, "--set", "max_steps=7")
    assert status != 0
    assert "SETTINGS_CHANGED" in said
    assert "max_steps" in said


def test_the_estimate_is_of_what_would_be_trained(world):
    """Not replaced: with more time there are more steps, and a second estimate comes near the time.

    The times are far apart and the bounds wide, because other programs may run beside one of the two measurements.
    """
    few, many = (plan_of(world, minutes=length, estimate=True, max_steps=None) for length in (20, 2000))
    steps = [sum(one["steps"] for one in found["episodes"]) for found in (few, many)]
    assert 1 < steps[0] < steps[1]
    assert 0.05 < many["seconds"]["total"] / (2000 * 60) < 20
