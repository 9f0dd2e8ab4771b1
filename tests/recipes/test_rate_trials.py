"""Learning rates that are tried: which one goes on, that nothing else changes, kills, and what is refused."""

import math
from functools import cache

import pytest

import hardneg as hn
from faults.power import Power
from hardneg.diagnostics.kept import rate_sentence
from hardneg.errors import ArtifactError, Faults, NumericError, SettingsError
from hardneg.experiment.layout import Layout
from hardneg.experiment.trials import Trial, best_of, read_trials
from hardneg.recipes import pool_stage, rate_trials, training_run
from hardneg.recipes.ance_tele import AnceTele
from hardneg.recipes.settings import Episode
from hardneg.recipes.stages import kinds_of
from hardneg.recipes.star import Star
from hardneg.recipes.warmup import RECIPE, Warmup
from hardneg.storage.artifacts import read_manifest, remove
from hardneg.training import stage
from worlds.tiny_world import COMMON, one_thread  # noqa: F401

SMALL = COMMON | {"queries_per_step": 16, "measures": "RR@10"}
ALL = {
    "warmup": {"mixtures": ["bm25+in_batch"], "negatives": [2], "steps": [8]},
    "ance-tele": {"episodes": 2, "steps": 8, "stop_step": 6, "passages_reference": [3], "count": 6},
    "star": {"steps": 8},
}
GOOD, RUINOUS, ABSURD = 3e-3, 0.3, 1e38


@pytest.fixture
def train(world, tmp_path):
    """A function that trains with dev; returns the results, and where they are."""

    def run(recipe, out, *, dev="dev", **changes):
        results = hn.train(
            recipe,
            world.collection,
            world.calm,
            tmp_path / out,
            cache=tmp_path / "cache",
            device="cpu",
            splits=hn.Splits("train", dev, "test"),
            **(SMALL | ALL[recipe] | changes),
        )
        return results, tmp_path / out

    return run


def bytes_of(folder, *names):
    return [(folder / name).read_bytes() for name in names]


def of_training(folder):
    """The bytes of what training itself left: steps, margins, and the weights of every model."""
    weights = sorted(folder.rglob("model.safetensors"))
    kept = {path.relative_to(folder): path.read_bytes() for path in weights}
    return kept, bytes_of(folder, "metrics.jsonl", "margins.tsv")


@pytest.mark.parametrize("rates", [[GOOD, RUINOUS], [RUINOUS, GOOD]], ids=["the first", "the last"])
@pytest.mark.parametrize("recipe", ALL)
def test_the_best_rate_goes_on_as_if_it_were_alone(train, recipe, rates):
    results, tried = train(recipe, "tried", learning_rate=rates)
    _, alone = train(recipe, "alone", learning_rate=GOOD)
    assert of_training(tried) == of_training(alone)
    found = results["tried"]
    assert found["learning_rate"] == GOOD
    assert found["step"] == 2  # a quarter of eight
    assert list(found["of"]) == [f"{rate:g}" for rate in rates]
    assert found["of"][f"{GOOD:g}"] > found["of"][f"{RUINOUS:g}"]


def test_the_log_says_how_each_rate_and_each_state_did(train):
    results, path = train("warmup", "tried", learning_rate=[GOOD, RUINOUS], dev_passages=2)
    log = (path / "log.txt").read_text()
    assert rate_sentence(results) in log
    for state in ("bm25", "untrained", "final"):
        dev, test = (results[split][state]["RR@10"] for split in ("dev", "test"))
        assert f": {state}: dev RR@10 {dev:.4f}, test RR@10 {test:.4f}\n" in log
    assert "dev is evaluated on" in log


def test_what_a_trial_measures_is_the_state_after_its_steps(train):
    results, _ = train("warmup", "tried", learning_rate=[GOOD, RUINOUS])
    single, _ = train("warmup", "stopped", learning_rate=RUINOUS, stop_step=2)
    assert results["tried"]["of"][f"{RUINOUS:g}"] == single["dev"]["final"]["RR@10"]


def test_trials_leave_their_records_alone(train):
    _, path = train("warmup", "tried", learning_rate=[GOOD, RUINOUS])
    for one in Layout(path).trials():
        assert sorted(place.name for place in one.path.iterdir()) == ["measured", "runs"]
    assert [trial.rate for trial in read_trials(Layout(path))] == [GOOD, RUINOUS]


def test_only_the_first_mixture_tries(train, monkeypatch):
    seen = []
    monkeypatch.setattr(rate_trials.RateTrials, "make", watched(seen, rate_trials.RateTrials.make))
    mixtures = {"mixtures": ["in_batch", "bm25"], "steps": [8, 4]}
    _, tried = train("warmup", "tried", learning_rate=[RUINOUS, GOOD], **mixtures)
    _, alone = train("warmup", "alone", learning_rate=GOOD, **mixtures)
    assert seen == [1]
    assert of_training(tried) == of_training(alone)


def watched(seen, make):
    def run(self):
        seen.append(self.episode.episode)
        make(self)

    return run


def test_states_are_measured_from_the_end_of_the_trials_on(train):
    options = {"keep": "best", "measure_every": 1, "steps": [8]}
    results, _ = train("warmup", "tried", learning_rate=[GOOD, RUINOUS], trial_share=0.5, **options)
    assert [name for name in results["dev"] if name.startswith("step-")] == [
        "step-4",
        "step-5",
        "step-6",
        "step-7",
    ]


def test_trials_may_be_as_long_as_training(train):
    results, tried = train("warmup", "tried", learning_rate=[RUINOUS, GOOD], trial_share=1.0)
    _, alone = train("warmup", "alone", learning_rate=GOOD)
    assert results["tried"]["step"] == 8
    assert of_training(tried) == of_training(alone)


def test_a_rate_that_is_not_finite_loses(train, monkeypatch):
    results, tried = train("warmup", "tried", learning_rate=[ABSURD, RUINOUS])
    _, alone = train("warmup", "alone", learning_rate=RUINOUS)
    assert results["tried"]["of"][f"{ABSURD:g}"] is None
    assert of_training(tried) == of_training(alone)
    again, _ = train("warmup", "tried", learning_rate=[ABSURD, RUINOUS])
    assert again == results


def test_rates_none_of_which_is_finite_end_training_each_time_with_the_cause(train):
    for _ in range(2):
        with pytest.raises(NumericError, match=r"of step . of the retriever is not finite"):
            train("warmup", "tried", learning_rate=[ABSURD, 2 * ABSURD])


def test_weights_that_are_not_finite_after_the_last_step_lose(train):
    """No further step of the trial shows it, and no process may be the only one that finds out."""
    results, tried = train("warmup", "tried", learning_rate=[ABSURD, GOOD], trial_share=0.1)
    _, alone = train("warmup", "alone", learning_rate=GOOD)
    assert results["tried"]["step"] == 1
    assert results["tried"]["of"][f"{ABSURD:g}"] is None
    assert of_training(tried) == of_training(alone)


def test_faults_that_are_not_the_rates_end_training(train, monkeypatch):
    def failing(*_):
        raise NumericError("BAD_SCORE", "the teacher gives no number", "look at it")

    monkeypatch.setattr(rate_trials.RateTrials, "_train", failing)
    with pytest.raises(NumericError, match="the teacher gives no number"):
        train("warmup", "tried", learning_rate=[GOOD, RUINOUS])


def test_a_rate_whose_vectors_are_out_of_range_loses(train, monkeypatch):
    def failing(self, folder, rate):
        if rate == RUINOUS:
            raise NumericError(
                "BAD_VECTOR", "a number of a vector is 70000, and float16 ends at 65504", "check it"
            )
        return original(self, folder, rate)

    original = rate_trials.RateTrials._value
    monkeypatch.setattr(rate_trials.RateTrials, "_value", failing)
    results, _ = train("warmup", "tried", learning_rate=[RUINOUS, GOOD])
    assert results["tried"]["of"][f"{RUINOUS:g}"] is None
    monkeypatch.setattr(rate_trials, "world_size", lambda: 2)
    with pytest.raises(NumericError, match="float16 ends at 65504"):
        train("warmup", "several", learning_rate=[RUINOUS, GOOD])


def test_a_rate_that_has_lost_leaves_no_checkpoint(train, monkeypatch):
    seen = []

    def watching(self, place, rate, fault):
        made = original(self, place, rate, fault)
        seen.append([one.checkpoints.is_dir() for one in self.layout.trials() if one.record.exists()])
        return made

    original = rate_trials.RateTrials._made
    monkeypatch.setattr(rate_trials.RateTrials, "_made", watching)
    train("warmup", "tried", learning_rate=[GOOD, RUINOUS, 2 * RUINOUS])
    assert [sum(there) for there in seen] == [1, 2, 2]


def test_further_episodes_do_not_try_again(train):
    options = {"keep": "last", "learning_rate": [RUINOUS, GOOD], "trial_share": 1.0}
    first, path = train("ance-tele", "grown", episodes=1, **options)
    assert first["tried"]["step"] == 6  # the early stop, where the model is kept
    before = [(one.record / "manifest.json").read_bytes() for one in Layout(path).trials()]
    grown, _ = train("ance-tele", "grown", episodes=2, **options)
    assert grown["tried"] == first["tried"]
    assert [(one.record / "manifest.json").read_bytes() for one in Layout(path).trials()] == before
    _, alone = train("ance-tele", "alone", **(options | {"learning_rate": GOOD, "trial_share": 0.25}), episodes=2)
    assert bytes_of(path / "model", "model.safetensors") == bytes_of(alone / "model", "model.safetensors")


def test_equal_values_leave_it_at_the_first(train):
    trials = [Trial(3e-5, 0, 4, "RR@10", 0.5), Trial(1e-4, 1, 4, "RR@10", 0.5), Trial(1e-3, 2, 4, "RR@10", None)]
    assert best_of(trials).rate == 3e-5
    assert best_of(reversed(trials)).rate == 1e-4
    assert best_of(trials[2:]) is None


def test_the_rates_of_several_seeds_are_told():
    def told(**rates):
        return rate_sentence(
            {"seeds": [1], "tried": {seed[1:]: {"learning_rate": of} for seed, of in rates.items()}}
        )

    assert told(s1=1e-4, s2=3e-5, s3=1e-4) == (
        "learning rate 0.0001 with seeds 1, 3 was the best on dev, 3e-05 with seed 2"
    )
    assert told(s1=1e-4, s2=1e-4) == "learning rate 0.0001 was the best on dev with every seed"
    assert rate_sentence({"seeds": [1]}) is None


MOMENTS = [  # the first two happen once for each rate
    (rate_trials.RateTrials, "_value", 1),
    (rate_trials.RateTrials, "_value", 2),
    (rate_trials.RateTrials, "_record", 1),
    (rate_trials.RateTrials, "_record", 2),
    (rate_trials.RateTrials, "_go_on_from", 1),
    (rate_trials, "move", 1),
    (pool_stage, "MeasuredStage", 1),
]


@pytest.fixture(scope="module")
def unbroken(world, tmp_path_factory):
    """A function that trains ``warmup`` without a kill, once for all tests that ask for the same."""
    folder = tmp_path_factory.mktemp("unbroken")

    @cache
    def run(**options):
        out = folder / str(len(list(folder.iterdir())))
        told = SMALL | ALL["warmup"] | options | {"learning_rate": [RUINOUS, GOOD]}
        splits = hn.Splits("train", "dev", "test")
        results = hn.train("warmup", world.collection, world.calm, out, device="cpu", splits=splits, **told)
        return results, of_training(out)

    return run


@pytest.mark.parametrize(
    ("place", "name", "count"), [MOMENTS[0], *(pytest.param(*one, marks=pytest.mark.slow) for one in MOMENTS[1:])]
)
def test_a_killed_trial_goes_on(train, unbroken, monkeypatch, place, name, count):
    options = {"keep": "best", "measure_every": 2}
    whole, kept = unbroken(**options)
    original, calls = getattr(place, name), []

    def failing(*args, **named):
        calls.append(1)
        if len(calls) == count:
            raise Power
        return original(*args, **named)

    monkeypatch.setattr(place, name, failing)
    with pytest.raises(Power):
        train("warmup", "killed", learning_rate=[RUINOUS, GOOD], **options)
    monkeypatch.undo()
    killed, other = train("warmup", "killed", learning_rate=[RUINOUS, GOOD], **options)
    assert killed == whole
    assert of_training(other) == kept


@pytest.mark.parametrize("step", [1, *(pytest.param(step, marks=pytest.mark.slow) for step in (2, 3, 4))])
def test_a_kill_in_a_step_of_a_trial_goes_on_there(train, unbroken, monkeypatch, step):
    """Two rates are tried for four steps each, with a checkpoint after every second one."""
    options = {"learning_rate": [RUINOUS, GOOD], "trial_share": 0.5}
    whole, kept = unbroken(trial_share=0.5)
    for rate in (1, 2):
        steps = []

        def failing(name, index, batch, steps=steps, rate=rate):
            steps.append(index)
            if steps.count(0) == rate and index == step - 1:
                raise Power

        monkeypatch.setattr(stage.Stage, "watch", staticmethod(failing))
        with pytest.raises(Power):
            train("warmup", f"killed-{rate}", **options)
        monkeypatch.undo()
        seen = []
        monkeypatch.setattr(
            stage.Stage, "watch", staticmethod(lambda name, index, batch, seen=seen: seen.append(index))
        )
        killed, other = train("warmup", f"killed-{rate}", **options)
        monkeypatch.undo()
        assert killed == whole
        assert of_training(other) == kept
        assert seen[0] == (step - 1) // 2 * 2  # no step before the last checkpoint is made again


def test_training_goes_on_from_the_trial(train, monkeypatch):
    """The steps of the best trial are not made again, whichever place it has."""
    seen = []
    monkeypatch.setattr(stage.Stage, "watch", staticmethod(lambda name, index, batch: seen.append(index)))
    train("warmup", "tried", learning_rate=[GOOD, RUINOUS])
    assert seen == [0, 1, 0, 1, *range(2, 8)]


def test_without_the_checkpoint_of_the_trial_its_steps_are_made_again(train, monkeypatch):
    whole, one = train("warmup", "whole", learning_rate=[GOOD, RUINOUS])
    monkeypatch.setattr(rate_trials, "latest_checkpoint", lambda *args: None)
    again, other = train("warmup", "again", learning_rate=[GOOD, RUINOUS])
    assert again == whole
    assert of_training(other) == of_training(one)


def test_a_lost_model_is_made_again_at_the_chosen_rate(train):
    rates = [RUINOUS, GOOD]
    whole, path = train("warmup", "tried", learning_rate=rates)
    before = of_training(path)
    remove(path / "model")
    again, _ = train("warmup", "tried", learning_rate=rates)
    assert again == whole
    assert of_training(path) == before


def test_trials_that_are_gone_are_told_where_a_later_episode_needs_them(train):
    options = {"learning_rate": [GOOD, RUINOUS], "mixtures": ["in_batch", "bm25"], "steps": [8, 4]}
    _, path = train("warmup", "tried", **options)
    training = training_run.TrainingRun(
        Warmup(**options), None, type("Folder", (), {"layout": Layout(path), "path": path})
    )
    second = Episode(2, 16, 4, 16, 3)
    assert rate_trials.chosen_rate(training, second, None, None, {}) == GOOD
    remove(path / "trials")
    with pytest.raises(ArtifactError, match="the trials of its learning rates are gone"):
        rate_trials.chosen_rate(training, second, None, None, {})


def test_what_is_refused(train):
    with pytest.raises((Faults, SettingsError), match="a rate stands twice"):
        train("warmup", "tried", learning_rate=[GOOD, GOOD])
    with pytest.raises((Faults, SettingsError), match=r"dev decides with learning_rate = .*; .*one rate"):
        train("warmup", "tried", dev="none", learning_rate=[GOOD, RUINOUS])
    with pytest.raises(
        (Faults, SettingsError), match=r"trial_share = 0.5 with one learning rate, which is not tried"
    ):
        train("warmup", "tried", learning_rate=GOOD, trial_share=0.5)
    with pytest.raises((Faults, SettingsError), match="learning_rate"):
        train("warmup", "tried", learning_rate=[])
    with pytest.raises((Faults, SettingsError), match="learning_rate"):
        train("warmup", "tried", learning_rate=[GOOD, 0.0])
    with pytest.raises((Faults, SettingsError), match="learning_rate"):
        hn.train_adore("nowhere", "nothing", "nothing", learning_rate=[GOOD, RUINOUS])


def test_one_rate_is_no_trial():
    """A list of one is that rate, and an experiment that was begun with a number goes on."""
    one, listed = Star(learning_rate=GOOD), Star(learning_rate=[GOOD])
    assert one.rates == listed.rates == [GOOD]
    assert one.result_values() == listed.result_values()
    assert "trial_share" not in one.result_values()
    assert one.result_values()["learning_rate"] == GOOD


def test_a_trial_is_a_share_of_the_schedule():
    many = Star(learning_rate=[GOOD, RUINOUS])
    steps = [
        (many.trial_steps(Episode(1, 100, made, 8, 2, whole))) for made, whole in ((8, 8), (1, 8), (9, 10), (1, 1))
    ]
    assert steps == [2, 1, 3, 1]
    assert many.trial_steps(Episode(2, 100, 8, 8, 2)) == 0
    assert Star(learning_rate=GOOD).trial_steps(Episode(1, 100, 8, 8, 2)) == 0


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"episodes": 1}, 4),  # the model at the early stop is kept, for a next episode
        ({"episodes": 2}, 4),
        ({"episodes": 1, "stop_step": 30}, 10),
        ({"episodes": 1, "first": "in_batch", "first_steps": 40}, 10),
    ],
)
def test_trials_of_ance_tele_go_no_further_than_the_first_model_that_is_kept(settings, steps):
    many = AnceTele(learning_rate=[GOOD, RUINOUS], steps=40, **settings)
    assert many.trial_steps(many.episode_of(100, 1)) == steps


def test_the_estimate_counts_trials(world):
    data = world_data(world)
    one = RECIPE.plan(
        Warmup(mixtures=["in_batch"], steps=[40], queries_per_step=8, learning_rate=GOOD), data, None
    )
    rates = [GOOD, RUINOUS, 0.1]
    many = RECIPE.plan(
        Warmup(mixtures=["in_batch"], steps=[40], queries_per_step=8, learning_rate=rates), data, None
    )
    assert (one.tried, many.tried) == (0, 2 * 10)  # the steps of the best one count as training
    assert many.passed == one.passed + 3
    assert sum(episode.steps for episode in many.trained) == sum(episode.steps for episode in one.trained) + 20
    assert [episode.steps for episode in many.episodes] == [40]
    assert [episode.steps for episode in many.trained] == [10, 10, 10, 30]  # the trials, and the rest
    assert kinds_of(many) == ["measure", "mine", "train", "train", "train", "train", "measure"]
    assert kinds_of(one) == ["measure", "mine", "train", "measure"]


def world_data(world):
    from hardneg.api.inputs import collection_of
    from hardneg.data.training_data import DevDraw, choose_splits

    return choose_splits(collection_of(world.collection), train="train", dev="dev", test="test", draw=DevDraw(1))


def test_the_record_names_what_it_was_made_from(train):
    _, path = train("warmup", "tried", learning_rate=[GOOD, RUINOUS])
    manifest = read_manifest(Layout(path).trial(GOOD).record)
    assert set(manifest.inputs) == {"start", "pool", "step"}
    assert manifest.inputs["pool"] == read_manifest(Layout(path).episode(1).negatives).digest
    assert math.isclose(manifest.facts["rate"], GOOD)
