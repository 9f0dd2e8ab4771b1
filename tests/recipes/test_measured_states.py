"""The state that is kept: measurements on the way, the best state or the untrained model, patience, and kills."""

import itertools
import json
import logging

import pytest

import hardneg as hn
from faults.power import Power
from hardneg.api.diagnose import opened_at
from hardneg.api.inputs import collection_of
from hardneg.api.judged_runs import dev_among
from hardneg.api.recipes import settings_of
from hardneg.api.reopen import experiment_data
from hardneg.cli.ending import ending_text
from hardneg.data.collection import Collection
from hardneg.data.training_data import choose_splits
from hardneg.diagnostics import best_vectors
from hardneg.diagnostics import results as ends
from hardneg.diagnostics.best_vectors import BestVectors
from hardneg.diagnostics.judge import Judge
from hardneg.diagnostics.results import note_among
from hardneg.diagnostics.search_state import bm25_judged
from hardneg.diagnostics.summary import dev_values
from hardneg.errors import ArtifactError, Faults, InputError, SettingsError
from hardneg.evaluation.measures import parse_measures
from hardneg.experiment.folder import read_settings, splits_of
from hardneg.experiment.layout import Layout
from hardneg.experiment.names import LAST, STARTED, UNTRAINED, few_of_dev
from hardneg.experiment.so_far import dev_so_far
from hardneg.experiment.states import read_states
from hardneg.models.loading import load_encoder
from hardneg.models.saving import save_encoder
from hardneg.recipes import measured_states, training_run
from hardneg.recipes.ance.recipe import RECIPE
from hardneg.recipes.measured_states import DevEvaluator
from hardneg.recipes.settings import Episode
from hardneg.search.bm25 import bm25_run
from hardneg.search.runs import load_run
from hardneg.storage.artifacts import read_manifest
from hardneg.training import stage
from worlds.tiny_world import COMMON, one_thread  # noqa: F401

SMALL = COMMON | {"queries_per_step": 16, "measures": "RR@10"}
ALL = {
    "warmup": {"mixtures": ["in_batch"], "steps": [6]},
    "ance-tele": {"episodes": 2, "steps": 6, "stop_step": 4, "passages_reference": [3], "count": 6},
    "ance": {"refresh_every": 3, "refreshes": 1, "loss": "contrastive", "in_batch": True},
    "star": {"steps": 6},
    "adore": {"steps": 6, "cut": 10},
}
RUINOUS = 0.3  # a learning rate that makes any model worse


@pytest.fixture
def train(world, tmp_path):
    """A function that trains with dev and test; returns results, and where they are."""

    def run(recipe, out="exp", *, model=None, dev="dev", test="test", cache="cache", **changes):
        results = hn.train(
            recipe,
            world.collection,
            model or world.calm,
            tmp_path / out,
            cache=tmp_path / cache,
            device="cpu",
            splits=hn.Splits("train", dev, test),
            **(SMALL | ALL[recipe] | changes),
        )
        return results, tmp_path / out

    return run


def everything(folder):
    """The bytes of every file of an experiment that may not go again, and is no telemetry."""
    passing_by = {"timing.jsonl", "log.txt", "learning_curve.png"}
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in passing_by)
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in paths if not {"checkpoint", "models"} & set(p.parts)
    }


@pytest.mark.slow
def test_two_roles_keep_the_best_state_that_mined(train):
    """The first steps help, the later ones ruin the model, so the best state is on the way."""
    rates = {"learning_rate": 0.03, "warmup": 15}  # the rate rises all the time
    changes = {"refresh_every": 3, "refreshes": 4, "mode": "async-fixed", **rates}
    results, path = train("ance", keep="best", **changes)
    of, dev = results["kept"]["of"], results["dev"]
    assert list(of) == ["untrained", "refresh-2", "refresh-3", "refresh-4", "last"]
    best = max(of, key=lambda name: of[name])
    assert best in ("refresh-2", "refresh-3", "refresh-4"), of
    assert (results["kept"]["state"], dev["final"]["RR@10"], dev[best]["RR@10"]) == (best, of[best], of[best])
    digests = {one.name: one.digest for one in read_states(path)}
    assert digests["final"] == digests[best] != digests["last"]


@pytest.mark.parametrize("recipe", ALL)
def test_every_recipe_measures_keeps_and_stops(train, recipe):
    results, path = train(recipe, measure_every=2, keep="best", patience=5)
    kept, dev = results["kept"], results["dev"]
    assert kept["measure"] == "RR@10"
    assert "untrained" in kept["of"]
    assert "last" in kept["of"]
    assert any("step-2" in name for name in kept["of"])
    assert kept["dev"] == max(kept["of"].values()) == dev["final"]["RR@10"]
    assert kept["state"] == next(name for name, value in kept["of"].items() if value == kept["dev"])
    assert kept["beats_untrained"] == (kept["dev"] > kept["of"]["untrained"])
    assert ("last" in dev) == ("last" in results["test"]) == (kept["state"] != "last")
    assert set(results["test"]["final"]) == {"RR@10"}
    for name, value in kept["of"].items():
        assert dev.get(name, dev["final"])["RR@10"] == value
    encoder = load_encoder(str(path / "model"))
    assert encoder.digest() == read_manifest(path / "model").facts["digest"]
    if kept["state"] != "untrained":
        assert read_manifest(path / "model").inputs["step"] == str(kept["step"])


def test_measuring_changes_no_step(train):
    plain, one = train("star", "plain")
    watched, other = train("star", "watched", measure_every=2)
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    assert plain["test"] == watched["test"]
    assert list(watched["dev"]) == ["bm25", "untrained", "step-2", "step-4", "final"]
    assert list(watched["test"]) == ["bm25", "untrained", "final"]
    assert not list(other.glob("states/*/model"))
    assert watched["kept"]["state"] == "last"
    assert watched["kept"]["step"] == 6


def test_a_state_on_the_way_measures_what_its_steps_alone_do(train):
    results, _ = train("star", measure_every=2)
    short, _ = train("star", "short", steps=6, stop_step=4)
    assert results["dev"]["step-4"] == short["dev"]["final"]


def test_a_fall_keeps_an_earlier_state(train):
    """The best of a run that gets better and then worse; what is published of it."""
    results, path = train("warmup", learning_rate=RUINOUS, warmup=0, steps=[6], measure_every=1, keep="best")
    of = results["kept"]["of"]
    assert of["last"] < max(of.values())
    assert results["kept"]["state"] != "last"
    assert results["dev"]["last"]["RR@10"] == of["last"]
    assert (path / "last/model").is_dir()
    steps = {name: value for name, value in of.items() if name.startswith("step-")}
    best = max(steps, key=steps.get)
    assert [place.parent.name for place in path.glob("states/*/model")] == [best.replace("step-", "1-")]


@pytest.mark.parametrize(
    ("recipe", "liked"),
    [("ance-tele", "untrained"), ("ance-tele", "episode-1"), ("ance-tele", "last"), ("adore", "untrained")],
)
def test_the_embeddings_of_the_kept_state_stay(train, world, tmp_path, monkeypatch, recipe, liked):
    """So the model that an experiment leaves can be searched at once, also if it is not the last one."""

    def values(seen, last, measure):
        names = (last if name == LAST else name for name in dev_values(seen, last, measure))
        return {LAST if name == last else name: float(name == liked) for name in names}

    for module in (best_vectors, ends):
        monkeypatch.setattr(module, "dev_values", values)
    results, path = train(recipe, keep="best")
    assert results["kept"]["state"] == liked
    stores = [read_manifest(place).inputs["encoder"] for place in (tmp_path / "cache/embeddings").iterdir()]
    models = [load_encoder(place) for place in (world.calm, str(path / "model"))]  # the first, for others
    assert set(stores) == {one.digest(side) for one in models for side in ("query", "passage")}


def test_the_untrained_model_is_kept_where_nothing_beats_it(train, world, tmp_path, caplog):
    good, path = train("star", "good", steps=60, learning_rate=2e-3)
    assert good["kept"]["beats_untrained"]
    model = str(path / "model")
    with caplog.at_level(logging.INFO, "hardneg"):
        results, worse = train("star", "worse", model=model, learning_rate=RUINOUS, warmup=0, keep="best")
    assert results["kept"]["state"] == "untrained"
    assert results["kept"]["step"] == 0
    assert not results["kept"]["beats_untrained"]
    assert load_encoder(str(worse / "model")).digest() == load_encoder(model).digest()
    assert results["test"]["final"] == results["test"]["untrained"] != results["test"]["last"]
    loud = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert any("NOTHING BEAT THE UNTRAINED MODEL" in line for line in loud)
    card = (worse / "model/README.md").read_text()
    assert "NOTHING BEAT THE MODEL THAT IT STARTED FROM" in card
    assert "The model that it started from, good/model, was trained before" in card
    assert "model/ is the untrained model as it came" in caplog.text
    last, _ = train("star", "last", model=model, learning_rate=RUINOUS, warmup=0)
    assert last["kept"]["state"] == "last"
    assert not last["kept"]["beats_untrained"]


def test_the_untrained_model_with_the_settings_of_training_is_kept_where_nothing_beats_it(train, world, tmp_path):
    """The model reads two words of a passage, as it came, and all of them in training, which then spoils it."""
    save_encoder(load_encoder(world.calm, passage_length=4), tmp_path / "short")
    changes = {"passage_length": 64, "learning_rate": RUINOUS, "warmup": 0, "keep": "best", "measure_every": 2}
    results, path = train("star", model=str(tmp_path / "short"), **changes)
    kept, dev = results["kept"], results["dev"]
    assert list(kept["of"]) == [UNTRAINED, STARTED, "step-2", "step-4", LAST]
    assert kept["of"] == {name: dev[name]["RR@10"] for name in kept["of"]}
    assert max(kept["of"], key=kept["of"].get) == STARTED
    assert (kept["state"], kept["step"], kept["beats_untrained"]) == (STARTED, 0, False)
    for split in ("dev", "test"):
        assert results[split]["final"] == results[split][STARTED]
    model = load_encoder(str(path / "model"))
    assert model.settings.passage_length == 64
    assert model.digest("passage") == load_encoder(world.calm).digest("passage")
    (path / "results.json").unlink()
    (path / "seal.json").unlink()
    assert train("star", model=str(tmp_path / "short"), **changes)[0] == results


@pytest.mark.parametrize("rate", [1e-9, RUINOUS])
def test_all_states_are_compared_as_the_index_retrieves_them(train, world, caplog, rate):
    """Settings change the model here, so the model as it came is another one, not searched through the index."""
    small = {"index": "pq", "subvectors": 2, "bits": 2, "steps": 4, "measure_every": 2, "learning_rate": rate}
    with caplog.at_level(logging.INFO, "hardneg"):
        results, path = train("adore", keep="best", query_length=6, warmup=0, **small)
    kept, dev = results["kept"], results["dev"]
    assert dev[UNTRAINED]["RR@10"] > dev[f"{STARTED}/pq"]["RR@10"], "compression costs more than training gains"
    assert list(kept["of"]) == [STARTED, "step-2", LAST]
    assert kept["of"] == {name: dev[f"{name}/pq"]["RR@10"] for name in kept["of"]}
    assert (kept["state"], kept["step"], kept["beats_untrained"]) == (STARTED, 0, False)
    assert dev["final/pq"] == dev[f"{STARTED}/pq"]
    assert dev["final"] == dev[STARTED]
    model = load_encoder(str(path / "model"))
    assert model.settings.query_length == 6
    assert model.digest("passage") == load_encoder(world.calm).digest("passage")
    kind = "the untrained model with the settings of training"
    assert f"model/ is {kind}: dev RR@10 {kept['dev']:.4f} (last {kept['of'][LAST]:.4f})" in caplog.text
    assert f"NOTHING BEAT THE UNTRAINED MODEL on dev (RR@10 {kept['dev']:.4f}): model/ is {kind}" in caplog.text
    card = (path / "model/README.md").read_text()
    assert "These are the weights of the untrained model" in card
    lines = ending_text(results, path).splitlines()
    value = f"RR@10 {kept['dev']:.4f}"
    assert f"best state: untrained, as trained on (dev {value})" in lines
    assert any("no state of training was better than the untrained one" in line for line in lines)
    assert opened_at(path).ended([STARTED, "step-2", LAST, "final"]) == LAST


def test_no_embeddings_stay_but_those_of_the_kept_state(train, tmp_path, monkeypatch):
    """The model as it came reads longer passages. It is the best one by the exact search, and cannot be kept."""
    left, settle = [], BestVectors.settle

    def settling(self, kept, last):
        settle(self, kept, last)
        left.append((set((tmp_path / "exp/cache/embeddings").iterdir()), kept.stores()))

    monkeypatch.setattr(BestVectors, "settle", settling)
    small = {"index": "pq", "subvectors": 2, "bits": 2, "steps": 4, "measure_every": 2, "learning_rate": RUINOUS}
    results, _ = train("adore", cache="exp/cache", keep="best", passage_length=6, warmup=0, **small)
    assert results["kept"]["state"] == STARTED
    ((there, kept),) = left
    assert there == kept


SCRIPT = {"untrained": 0.5, 1: 0.6, 2: 0.6, 3: 0.7, 4: 0.65, 5: 0.7, 6: 0.9}  # 4 and 5 are no better than 3


@pytest.mark.parametrize("recipe", ["star", "ance", "adore"])
def test_patience_stops_at_the_step_computed_by_hand(train, monkeypatch, recipe):
    values = iter(SCRIPT.values())
    monkeypatch.setattr(measured_states, "means_of", lambda judge, run: {str(judge.measures[0]): next(values)})
    steps = {"refresh_every": 4, "refreshes": 1} if recipe == "ance" else {"steps": 8}
    results, path = train(recipe, measure_every=1, patience=2, **steps)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert results["kept"]["step"] == 5
    assert rows[0]["lr"] == pytest.approx(COMMON["learning_rate"])  # of a warm-up of 0.1 × 8 steps
    assert rows[4]["lr"] == pytest.approx(COMMON["learning_rate"] * 4 / 7)  # of the whole schedule


def test_patience_of_one_stops_at_the_first_fall_below_the_start(train, monkeypatch):
    values = iter([0.5, 0.4])
    monkeypatch.setattr(measured_states, "means_of", lambda judge, run: {str(judge.measures[0]): next(values)})
    results, _ = train("star", measure_every=2, patience=1)
    assert results["kept"]["step"] == 2
    assert "step-2" not in results["dev"]  # it is the last


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"measure_every": 9}, ["measure_every = 9: dev is not measured during these 4 steps"]),
        (
            {"measure_every": 2, "patience": 2},
            ["patience = 2: dev is measured once during these 4 steps, so all are made"],
        ),
        ({"measure_every": 1, "patience": 3}, []),
    ],
)
def test_training_says_that_it_is_too_short_for_what_was_asked(train, monkeypatch, options, told):
    said = []
    monkeypatch.setattr(measured_states, "say", said.append)
    train("star", steps=4, **options)
    assert [line for line in said if " = " in line] == told


# In this order: what stands before one of them is not done again once the next is reached.
MOMENTS = (
    (measured_states, "save_encoder"),
    (DevEvaluator, "_record"),
    (DevEvaluator, "_forget_weights"),
    (stage, "save_checkpoint"),
    (training_run, "save_encoder"),
)


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        pytest.param("ance-tele", {}, marks=pytest.mark.slow),
        ("ance", {}),
        # dev is judged among few passages, and those of a refresh are all encoded
        ("ance", {"dev_passages": 1, "examine": "judged", "test": "none", "keep_versions": 1}),
    ],
)
def test_a_killed_run_ends_in_the_same_bytes(train, monkeypatch, recipe, changes):
    options = {"measure_every": 1, "keep": "best", "patience": 2, "learning_rate": 1e-2, **changes}
    whole, one = train(recipe, "whole", **options)
    for place, name in MOMENTS:

        def failing(*args, **named):
            raise Power

        monkeypatch.setattr(place, name, failing)
        with pytest.raises(Power):  # it is reached
            train(recipe, "killed", **options)
        monkeypatch.undo()
    killed, other = train(recipe, "killed", **options)
    assert killed == whole
    assert everything(other).keys() == everything(one).keys()
    assert everything(other) == everything(one)


def test_killed_after_the_last_measurement_it_keeps_no_weights_but_the_best(train, monkeypatch):
    options = {"steps": 6, "measure_every": 2, "keep": "best", "learning_rate": 3e-4}
    whole, one = train("star", "whole", **options)
    dev = whole["kept"]["of"]
    assert dev["step-4"] > dev["step-2"]  # so the measurement after step 4 deletes the weights of step 2
    calls = itertools.count(1)

    def failing(self, forget=DevEvaluator._forget_weights):
        if next(calls) == 2:
            raise Power
        forget(self)

    monkeypatch.setattr(DevEvaluator, "_forget_weights", failing)
    with pytest.raises(Power):
        train("star", "killed", **options)
    monkeypatch.undo()
    killed, other = train("star", "killed", **options)
    assert (killed, everything(other)) == (whole, everything(one))


def test_dev_must_be_there(train):
    for changes in ({"keep": "best"}, {"measure_every": 2}):
        with pytest.raises(SettingsError, match="NO_DEV") as caught:
            train("star", dev="none", **changes)
        assert len(caught.value.lines) == 1
        assert "splits=hn.Splits(dev=...)" in str(caught.value)


def test_settings_that_contradict_each_other_are_refused():
    for recipe, changes in (("star", {"patience": 2}), ("ance", {"mode": "async", "measure_every": 5})):
        with pytest.raises((Faults, SettingsError), match="measure"):
            settings_of(recipe, **changes)


def test_another_first_measure_is_another_experiment(train):
    train("star", keep="best")
    with pytest.raises(ArtifactError, match="chosen_by"):
        train("star", keep="best", measures="nDCG@10 RR@10")


def test_shares_of_the_schedule_and_bounds_of_steps():
    settings = settings_of("star", measure_every=0.25, epochs=2.0, queries_per_step=10, min_steps=8, max_steps=40)
    assert [settings.horizon(queries) for queries in (20, 100, 1000)] == [8, 20, 40]
    assert settings_of("star", min_steps=8, max_steps=4).horizon(1000) == 4
    whole, stopped = Episode(1, 100, 20, 10, 2), Episode(1, 100, 12, 10, 2, horizon=20)
    assert settings.measured_steps(whole) == [5, 10, 15]
    assert settings.measured_steps(stopped) == [5, 10]
    assert settings_of("star", measure_every=3).measured_steps(Episode(1, 100, 8, 10, 2, horizon=20)) == [3, 6]
    assert settings_of("star").measured_steps(whole) == []
    ance = settings_of("ance", epochs=2.0, queries_per_step=10, refreshes=3, min_steps=8)
    assert [ance.for_data(queries).steps for queries in (20, 100, 101)] == [8, 20, 24]


# ---------------------------------------------------------------- dev among some passages


def dev_rows(run):
    """The passages that a run of the dev queries ranks."""
    return set(load_run(run).passage_rows.tolist())


@pytest.mark.parametrize("recipe", [name for name in ALL if name != "adore"])
def test_dev_may_be_judged_among_the_same_few_passages_in_every_state(train, world, recipe):
    results, path = train(recipe, measure_every=2, keep="best", dev_passages=3)
    judge = Judge(experiment_data(path), parse_measures("RR@10"), path.parent / "cache", dev_passages=3)
    chosen = set(judge.judged_among["dev"].tolist())
    assert len(chosen) < judge.data.collection.n_passages
    runs = sorted(path.rglob("runs/**/dev"))
    assert len(runs) > 2
    for run in runs:
        assert dev_rows(run) <= chosen, run
    assert {"untrained", "final", "bm25"} <= results["dev"].keys()
    again, _ = train(recipe, "again", measure_every=2, keep="best", dev_passages=3)
    assert again["kept"] == results["kept"]


def test_a_look_at_dev_encodes_these_passages_alone(train):
    def encoded(out):
        rows = map(json.loads, (out / "timing.jsonl").read_text().splitlines())
        return [row["tokens"] for row in rows if row["stage"] == "encode" and row["side"] == "passage"]

    _, whole = train("warmup", "whole", measure_every=2, keep="best")
    _, some = train("warmup", "some", measure_every=2, keep="best", dev_passages=1)
    looks = [tokens for tokens in encoded(some) if tokens]  # the first and the last state are in the cache, whole
    assert len(looks) == 2, "after steps 2 and 4"
    assert max(looks) < min(encoded(whole)) / 2


@pytest.mark.parametrize(
    ("recipe", "changes", "whole"),
    [("warmup", {"mixtures": ["in_batch"]}, 0), ("star", {}, 1), ("ance-tele", {"first": "in_batch"}, 1)],
)
def test_without_a_test_only_a_state_that_mines_encodes_the_corpus(train, recipe, changes, whole):
    options = {"keep": "best", "dev_passages": 1, "examine": "judged", "test": "none", **changes}
    results, out = train(recipe, **options)
    rows = map(json.loads, (out / "timing.jsonl").read_text().splitlines())
    tokens = [row["tokens"] for row in rows if row["stage"] == "encode" and row["side"] == "passage"]
    assert sum(one > max(tokens) / 2 for one in tokens if max(tokens) > 2 * min(filter(None, tokens))) == whole
    assert {"untrained", "final"} <= results["dev"].keys()


@pytest.mark.parametrize("measure_every", [3, 2, None])
def test_a_state_that_mines_at_a_refresh_is_encoded_once(train, measure_every):
    """Dev is measured first, with the vectors that are then mined with; the plan counts as many passages."""
    options = {"dev_passages": 1, "examine": "judged", "test": "none", "keep": "best", "refreshes": 2}
    results, out = train("ance", measure_every=measure_every, **options)
    rows = [json.loads(line) for line in (out / "timing.jsonl").read_text().splitlines()]
    tokens = [row["tokens"] for row in rows if row["stage"] == "encode" and row["side"] == "passage"]
    whole, looks = max(tokens), {3: 1, 2: 4, None: 1}[measure_every]  # the final state is one of them
    assert tokens.count(whole) == 3
    assert sum(0 < one < whole for one in tokens) == looks
    assert all(f"refresh-{i}" in results["kept"]["of"] for i in (1, 2))
    del options["test"]
    settings = RECIPE.settings(**SMALL, **(ALL["ance"] | options), measure_every=measure_every)
    planned = RECIPE.plan(settings, experiment_data(out), None)
    assert planned.encoded[1] == pytest.approx(3 + looks * planned.among)


def test_the_passages_that_judge_dev_are_those_of_bm25_and_the_positives(world, tmp_path):
    collection = collection_of(world.collection)
    data = choose_splits(collection, train="train", dev="dev", test="test")
    found = Judge(data, parse_measures("RR@10"), tmp_path, dev_passages=2).judged_among
    run = bm25_run(collection, data.dev.query_rows, 2, tmp_path)
    assert found.keys() == {"dev"}
    positives = data.dev.positives().passage_rows.tolist()
    assert found["dev"].tolist() == sorted({*run.passage_rows.tolist(), *positives})
    assert Judge(data, parse_measures("RR@10"), tmp_path).judged_among == {}


def test_bm25_searches_as_deep_among_the_passages_that_judge_dev_as_a_model_does(world, tmp_path, monkeypatch):
    collection = collection_of(world.collection)
    data = choose_splits(collection, train="train", dev="dev", test="test")
    judge = Judge(data, parse_measures("RR@10"), tmp_path, dev_passages=1)
    monkeypatch.setattr(Judge, "depth_of", lambda *_: 3)
    run = bm25_judged(judge)["dev"]
    whole = bm25_run(collection, data.dev.query_rows, collection.n_passages, tmp_path)
    for query in range(len(run.query_rows)):
        found = [row for row in whole.hits(query)[0].tolist() if row in judge.judged_among["dev"]]
        assert run.hits(query)[0].tolist() == found[:3]
    assert bm25_judged(judge)["test"].passage_rows.tolist() == whole_test(judge).passage_rows.tolist()


def whole_test(judge):
    """BM25's run of the test queries among all passages."""
    return bm25_run(
        judge.data.collection, judge.data.judged["test"].query_rows, judge.depth_of("test"), judge.cache
    )


def test_where_dev_would_need_half_of_the_passages_it_is_judged_among_all(train, world, tmp_path, monkeypatch):
    data = choose_splits(collection_of(world.collection), train="train", dev="dev", test="test")
    some = len(Judge(data, parse_measures("RR@10"), tmp_path, dev_passages=2).judged_among["dev"])
    share = some / data.collection.n_passages
    monkeypatch.setattr("hardneg.diagnostics.judge.MOST", share + 1e-9)
    assert Judge(data, parse_measures("RR@10"), tmp_path, dev_passages=2).judged_among
    monkeypatch.setattr("hardneg.diagnostics.judge.MOST", share)
    assert Judge(data, parse_measures("RR@10"), tmp_path, dev_passages=2).judged_among == {}
    monkeypatch.setattr("hardneg.diagnostics.judge.MOST", 0.5)
    said = []
    monkeypatch.setattr("hardneg.diagnostics.results.say", said.append)
    results, out = train("warmup", "many", measure_every=2, keep="best", dev_passages=100)
    assert results["dev_among"] == {"first": 100, "passages": 120, "of": 120}
    assert dev_of_unfinished(out) == (results["dev_among"], None, None)
    assert few_of_dev(results, 100) is None
    assert not any("evaluated on" in line for line in said)


def test_training_says_among_which_passages_dev_is_judged(train, monkeypatch):
    said = []
    monkeypatch.setattr("hardneg.diagnostics.results.say", said.append)
    results, out = train("warmup", "few", measure_every=2, keep="best", dev_passages=1)
    passages = results["dev_among"]["passages"]
    assert f"dev is evaluated on {passages} of 120 passages" in said[0]
    among, shown, compared = dev_of_unfinished(out)
    assert (among, shown, compared[0]) == (results["dev_among"], 1, 1)


def dev_of_unfinished(out):
    """What the folder says of dev before there are results: as the report reads it, and as evaluate does."""
    kept = splits_of(read_settings(out), out)
    (out / "results.json").rename(out / "later.json")
    found = dev_so_far(Layout(out))["dev_among"], opened_at(out).dev_passages, dev_among(out, kept)
    (out / "later.json").rename(out / "results.json")
    return found


@pytest.mark.parametrize(("language", "warned"), [(None, True), ("chinese", False)])
def test_training_warns_if_bm25_finds_nothing_for_dev(tmp_path, caplog, language, warned):
    texts = {str(i): chr(0x4E00 + i) * 2 + "数据库系统" for i in range(12)}
    asked = {"q1": texts["1"][:2], "q2": texts["2"][:2]}
    judged = {"train": {"q1": ["1"]}, "dev": {"q1": ["1"], "q2": ["2"]}}
    c = Collection.from_lists(texts, asked, judged, language=language or "english", to=tmp_path / "c")
    note_among(Judge(choose_splits(c, dev="dev"), parse_measures("RR@10"), tmp_path, dev_passages=1))
    assert ("BM25 finds nothing for 2 of 2 dev queries" in caplog.text) == warned


def test_an_experiment_is_evaluated_on_the_queries_that_it_held_out(train, world, tmp_path):
    whole = collection_of(world.collection)
    judged = whole.qrels("train").positives()
    ids, names = whole.passage_ids.take, whole.query_ids.take(judged.query_rows)
    qrels = {name: list(ids(judged.of(i))) for i, name in enumerate(names)}
    texts = dict(zip(names, whole.query_texts.take(judged.query_rows), strict=True))
    passages = zip(whole.passage_ids, whole.titles, whole.texts, strict=True)
    collection = hn.Collection.from_lists(list(passages), texts, {"train": qrels}, to=tmp_path / "alone")
    out = tmp_path / "exp"
    options = {"cache": tmp_path / "cache", "device": "cpu", **SMALL, **ALL["warmup"]}
    results = hn.train("warmup", collection.path, world.calm, out, **options)
    found = hn.evaluate(out, split="dev", measures="RR@10")
    assert found["measures"]["RR@10"] == pytest.approx(results["dev"]["final"]["RR@10"])
    with pytest.raises(ArtifactError, match=r"NO_RUN: .* on split 'test'; give split=.dev., or "):
        hn.evaluate(out)
    fewer = tmp_path / "fewer"
    hn.train("warmup", collection.path, world.calm, fewer, **(options | {"dev_queries": 2}))
    least = hn.compare([out, fewer], split="dev", measures="RR@10")
    assert {row["wins"] + row["ties"] + row["losses"] for row in least} == {2}, "a part of those of the other"
    other = tmp_path / "other"  # what one of them did not search would count as 0
    hn.train("warmup", collection.path, world.calm, other, **(options | {"seed": options.get("seed", 42) + 1}))
    with pytest.raises(
        InputError, match=r"other: NO_OVERLAP: its dev has other queries than that of .* with one seed"
    ):
        hn.compare([out, other], split="dev")
    assert {row["difference"] for row in hn.compare([out, out], split="dev")} == {0}
    bm25, fused = tmp_path / "bm25.trec", tmp_path / "fused.trec"  # weights are tuned on these queries, too
    hn.search_split(collection, bm25, split="train", bm25=True, k=50, cache=tmp_path / "cache")
    tuning = {"method": "linear", "data": collection, "tune": "dev"}
    tuned = hn.fuse([out, bm25], fused, split="dev", **tuning)["tuned"]
    assert tuned["split"] == "dev"
    assert tuned["RR@10"] >= results["dev"]["final"]["RR@10"]
    with pytest.raises(SettingsError, match="UNKNOWN_SPLIT: tune = 'dev'"):
        hn.fuse([bm25, bm25], fused, **tuning)


def test_an_experiment_with_a_test_of_another_name_is_judged_by_that(train, world, tmp_path):
    """As on MS MARCO, whose split ``test`` has no judgements: training is tested on ``dev``."""
    collection = collection_of(world.collection)
    options = {
        "cache": tmp_path / "cache",
        "device": "cpu",
        **SMALL,
        **ALL["warmup"],
        "splits": hn.Splits(dev="none", test="dev"),
    }
    options = {name: value for name, value in options.items() if name not in ("measure_every", "keep", "patience")}
    out = tmp_path / "exp"
    results = hn.train("warmup", collection.path, world.calm, out, **options)
    mean = pytest.approx(results["test"]["final"]["RR@10"])
    assert hn.evaluate(out, measures="RR@10")["measures"]["RR@10"] == mean
    (row,) = hn.compare([out, out], measures="RR@10")
    assert row["ties"] == len(collection.qrels("dev"))
    with pytest.raises(ArtifactError, match=r"NO_RUN: .* on split 'dev'; give split=.test., or "):
        hn.evaluate(out, split="dev")
    other = tmp_path / "other"
    hn.train("warmup", collection.path, world.calm, other, **options | {"splits": hn.Splits(dev="none")})
    with pytest.raises(
        InputError, match=r"other: NO_OVERLAP: it was tested on the split 'test', and .*exp on 'dev'"
    ):
        hn.compare([out, other])


def test_dev_is_judged_on_drawn_queries_and_compared_on_the_smallest_draw(train, world):
    results, few = train("warmup", "few", test="none", measure_every=2, dev_queries=5)
    _, more = train("warmup", "more", test="none", dev_queries=9)
    _, every = train("warmup", "every", test="none")
    drawn = {out: experiment_data(out).dev.query_rows.tolist() for out in (few, more, every)}
    assert [len(rows) for rows in drawn.values()] == [5, 9, 16]
    assert {*drawn[few]} < {*drawn[more]} < {*drawn[every]}
    for run in few.rglob("runs/**/dev"):
        assert load_run(run).query_rows.tolist() == drawn[few]
    found = hn.evaluate(few, split="dev", measures="RR@10")
    assert found["measures"]["RR@10"] == pytest.approx(results["dev"]["final"]["RR@10"])
    compared = hn.compare([every, more, few], split="dev", measures="RR@10")
    assert {row["wins"] + row["ties"] + row["losses"] for row in compared} == {5}


def test_dev_passages_are_refused_where_they_would_be_ignored(train):
    with pytest.raises(Faults, match="adore does not support dev_passages = 5: it encodes"):
        train("adore", dev_passages=5)
    with pytest.raises(SettingsError, match="dev_passages = 5 with documents of several chunks") as fault:
        train("warmup", dev_passages=5, chunks=2)
    assert fault.value.fix == "give dev_passages=None"


def test_what_a_preset_gave_is_taken_back_by_none():
    with pytest.raises(SettingsError, match=r"dev_passages = 20 with .*; give --set dev_passages=none$"):
        settings_of("warmup", preset="finetune").check_chunks(4)
    settings_of("warmup", preset="finetune", dev_passages=None).check_chunks(4)
