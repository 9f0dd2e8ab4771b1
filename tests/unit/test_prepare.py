"""A plan accepts the same arguments as training: every recipe with every preset, on a very small world."""

import inspect
import json
import math
import re

import pytest

import hardneg as hn
from hardneg.api import prepare as preparing
from hardneg.api import train as training
from hardneg.api.recipes import RECIPES
from hardneg.api.settings import begun_at, check_seeds, recipe_settings, with_steps
from hardneg.config import read_presets
from hardneg.data.collection import Collection
from hardneg.data.training_data import DevDraw
from hardneg.errors import ArtifactError, HardnegError, SettingsError
from hardneg.experiment.folder import write_settings
from hardneg.process.progress import showing
from hardneg.recipes import estimate
from hardneg.recipes import microbenchmarks as timing
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

PRESETS = [(recipe, preset) for recipe in RECIPES for preset in (None, *read_presets(recipe))]
TITLES = {"query_length": 12, "passage_length": 16}  # the tiny model has 64 positions
NEEDED = {"adore": {"cut": 10}, "warmup": {"mixtures": ["random"]}}  # what has no default


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A collection whose questions have answers, and a model."""
    root = tmp_path_factory.mktemp("world")
    plain = tiny_collection(root / "plain")
    rows = range(plain.n_passages)
    queries = {plain.query_ids[i]: plain.query_texts[i] for i in range(plain.n_queries)}
    qrels = {}
    for split in plain.splits:
        judged = plain.qrels(split)
        ids = plain.query_ids.take(judged.query_rows)
        qrels[split] = {id_: plain.passage_ids.take(judged.positives().of(i)) for i, id_ in enumerate(ids)}
    collection = Collection.from_lists(
        [(plain.passage_ids[i], plain.titles[i], plain.texts[i]) for i in rows],
        queries,
        qrels,
        answers={id_: [text.split()[0]] for id_, text in queries.items()},
        to=root / "collection",
    )
    return collection, tiny_model(root / "model", collection)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Time little: the figures are looked at elsewhere."""
    monkeypatch.setattr(estimate, "SAMPLE", 8)
    monkeypatch.setattr(estimate, "TIMED_TOKENS", 64)
    for name, value in (("TIMED_TOKENS", 64), ("TIMED_QUERIES", 2), ("TIMED_PASSAGES", 16)):
        monkeypatch.setattr(timing, name, value)
    monkeypatch.setattr(timing, "seconds_of", lambda work: (work(), 1e-3)[1])


def words(values):
    return [word for name, value in values.items() for word in ("--set", f"{name}={json.dumps(value)}")]


def values_of(recipe, preset):
    """What a preset cannot have on so small a model, and what no preset gives."""
    given = {} if preset is None else read_presets(recipe)[preset]
    lengths = {name: length for name, length in TITLES.items() if name in RECIPES[recipe].settings.model_fields}
    lengths |= {name: 48 for name in ("max_length", "ranker_max_length") if name in given}
    lengths |= {"search_query_length": 12} if "search_query_length" in given else {}
    return lengths | {name: value for name, value in NEEDED.get(recipe, {}).items() if name not in given}


@pytest.mark.parametrize("flag", ["--dry-run", "--estimate"])
@pytest.mark.parametrize(("recipe", "preset"), PRESETS)
def test_every_recipe_plans_with_every_preset(world, tmp_path, hardneg, recipe, preset, flag):
    command = ["train", recipe, "--data", world[0].path, "--model", world[1], "--out", tmp_path / "exp"]
    command += ["--preset", preset] if preset else []
    values = values_of(recipe, preset)
    status, out, err = hardneg(*command, *words(values), flag, "--device", "cpu", "--json")
    assert status == 0, err
    plan = json.loads(out)
    assert (values | plan["settings"]) == plan["settings"]
    assert plan["episodes"][0]["steps"] > 0
    assert ("seconds" in plan) == (flag == "--estimate")
    assert not (tmp_path / "exp").exists()
    assert "splits: train 'train' (60 queries); dev 'dev' (16); test 'test' (16)\n" in err
    if flag == "--dry-run":
        options = {"preset": preset, "device": "cpu", **values}
        from_python = hn.plan(recipe, world[0], world[1], tmp_path / "exp", **options)
        assert from_python == plan


# ---------------------------------------------------------------- what training takes


def options_of(function):
    """Names and defaults of what can be given by name."""
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}


def test_plan_and_train_have_one_signature():
    assert options_of(hn.plan).keys() - options_of(hn.train).keys() == {"estimate", "devices"}
    kinds = {name: one.kind for name, one in inspect.signature(hn.train).parameters.items()}
    assert {
        name: one.kind for name, one in inspect.signature(hn.plan).parameters.items()
    } == kinds | dict.fromkeys(("estimate", "devices"), inspect.Parameter.KEYWORD_ONLY)


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "demo"},
        {"preset": "demo", "seeds": 2, "splits": hn.Splits(dev="none")},
        {"settings": "settings"},
        {"config": "config", "learning_rate": 2e-5},
        {"preset": "demo", "role": "trainer"},
        {"preset": "dmeo"},
        {"preset": "demo", "learning_rate": "fast"},
        {"preset": "demo", "learning_rat": 1.0},
        {"preset": "demo", "seeds": 0},
        {"preset": "demo", "seeds": 20260101},
        {"preset": "demo", "seeds": 2, "role": "trainer"},
        {"preset": "demo", "splits": hn.Splits(train="tain")},
        {"preset": "demo", "device": "gpu"},
        {"preset": "demo", "cache": 7},
        {"preset": 7},
    ],
    ids=str,
)
def test_what_one_takes_or_refuses_the_other_does_too(world, tmp_path, monkeypatch, options):
    (tmp_path / "settings.toml").write_text("refreshes = 2\n")
    given = {"settings": hn.settings_of("ance", "demo"), "config": tmp_path / "settings.toml"}
    options = {
        name: given.get(value, value) if isinstance(value, str) else value for name, value in options.items()
    }
    options = {"device": "cpu", **options}
    taken = []
    monkeypatch.setattr(training, "train_seeds", lambda task: taken.append(task.settings) or {})
    said = []
    for run in (lambda *given, **named: hn.plan("ance", *given, **named), hn.train_ance):
        try:
            said.append(run(world[0], world[1], tmp_path / "exp", **options))
        except HardnegError as fault:
            said.append(fault.lines)
    if isinstance(said[0], list):
        assert said[0] == said[1]
    else:
        assert said[0]["settings"] == taken[0].model_dump(mode="json")


def test_both_go_one_way(monkeypatch, world, tmp_path):
    """What :func:`prepare` refuses, both refuse: there is no other way in."""

    def refuse(*given, **named):
        raise SettingsError("HERE", "it was called", "nothing")

    assert training.prepare is preparing.prepare
    monkeypatch.setattr(training, "prepare", refuse)
    for run in (hn.plan, hn.train):
        with pytest.raises(SettingsError, match="HERE"):
            run("ance", world[0], world[1], tmp_path / "exp")


@pytest.mark.parametrize(("seed", "count"), [(42, 2), (100, 2), (43, 3)])
def test_a_folder_of_seeds_takes_more_but_forgets_none(tmp_path, seed, count):
    for number in (42, 43, 44):
        (tmp_path / f"exp/seed-{number}").mkdir(parents=True)
        (tmp_path / f"exp/seed-{number}/settings.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"SEVERAL_SEEDS: .*other seeds, too: 4"):
        check_seeds(tmp_path / "exp", range(seed, seed + count))
    for name in ("seed-notes.txt", "seed-7.log", "seed-9"):
        (tmp_path / "exp" / name).mkdir()  # none of them is an experiment
    check_seeds(tmp_path / "exp", range(42, 45))
    check_seeds(tmp_path / "exp", range(41, 46))


@pytest.mark.parametrize(
    ("recipe", "given", "told"),
    [
        (
            "ance",
            {"refresh_every": 500, "epochs": 1.5},
            "refresh_every = 50, not 500: it follows from epochs = 1.5",
        ),
        ("ar2", {"ranker_steps": 7}, "ranker_steps = 1, not 7: it follows from epochs = 2"),
        ("ance", {"refresh_every": 500}, None),
        ("ar2", {"first_ranker_steps": 7}, None),
        ("warmup", {"steps": [5]}, None),
        ("ance", {}, None),
    ],
)
def test_steps_that_follow_from_the_epochs_of_a_preset_are_told(world, caplog, recipe, given, told):
    with caplog.at_level("INFO", "hardneg"):
        hn.plan(recipe, *world, preset="finetune", **given)
    assert ("follows from" in caplog.text) == (told is not None)
    assert told is None or told in caplog.text


@pytest.mark.parametrize(
    ("recipe", "given", "told"),
    [
        (
            "star",
            {"usual": {"epochs": 4.0}},
            r"epochs = 4 is (\d+) steps for \d+ training queries: .* min_steps = 100",
        ),
        ("star", {"usual": {"epochs": 100_000.0}}, r"epochs = 100000 is (\d+) steps .* max_steps = 10000"),
        ("ance", {"usual": {"epochs": 4.0}}, r"epochs = 4 is (\d+) steps .* min_steps = 150"),
        ("star", {"usual": {"epochs": 150.0}}, None),
        ("star", {"epochs": 4.0}, None),
        ("star", {"usual": {"steps": 4}}, None),
        ("star", {"usual": {"epochs": 4.0}, "steps": 50}, None),
        ("ar2", {"usual": {"epochs": 4.0}}, r"epochs = 4 is (\d+) steps .* min_steps = \d+"),
    ],
)
def test_bounds_that_the_option_for_epochs_lifts_are_told(world, caplog, recipe, given, told):
    with caplog.at_level("INFO", "hardneg"):
        plan = hn.plan(recipe, *world, preset="finetune", **given)
    found = re.search(told or "lifts", caplog.text.replace(",", ""))
    assert (found is not None) == (told is not None), caplog.text
    assert found is None or plan["facts"]["optimiser steps"] == int(found[1])


def test_steps_that_are_given_replace_the_epochs_of_a_preset(tmp_path):
    ance = hn.settings_of("ance", "finetune", refresh_every=7)
    assert (ance.epochs, ance.for_data(1000).steps) == (None, 21)
    assert ance.origin_of("epochs") == "because refresh_every is given"
    ar2 = hn.settings_of("ar2", "finetune", retriever_steps=8, first_ranker_steps=9)
    made = ar2.for_data(1000)
    assert (made.retriever_steps, made.ranker_steps, made.first_ranker_steps) == (8, 500, 9)
    assert "ranker_steps = 500 by default, more than retriever_steps = 8" in " ".join(ar2.doubts)
    assert not hn.settings_of("ar2", "finetune", retriever_steps=8, ranker_steps=9).doubts
    # The other way round, and of values of one origin, epochs win in whatever order they are given.
    assert hn.settings_of("ance", "finetune", refresh_every=7, epochs=2).epochs == 2
    made = hn.settings_of("ance", settings=hn.settings_of("ance", refreshes=3), preset="finetune")
    assert "refresh_every" not in made.origin_of("epochs")  # settings made before have all values; nobody gave it
    recipe = RECIPES["ance"]
    for overrides in (["epochs=2", "refresh_every=7"], ["refresh_every=7", "epochs=2"]):
        assert recipe_settings(recipe, "finetune", overrides=overrides).epochs == 2
    config = tmp_path / "settings.toml"
    config.write_text("epochs = 2\nrefresh_every = 7")
    assert recipe_settings(recipe, "finetune", config).epochs == 2
    assert recipe_settings(recipe, "finetune", config, overrides=["refresh_every=8"]).epochs is None
    config.write_text("refresh_every = 7")
    assert recipe_settings(recipe, "finetune", config).epochs is None
    assert recipe_settings(recipe, "finetune", config, overrides=["epochs=3"]).epochs == 3


def begun_with(folder, settings):
    told = {"recipe": "any", "inputs": {}, "result_settings": settings.result_values()}
    write_settings(folder, {**told, "settings": settings.model_dump(mode="json")})
    return settings


@pytest.mark.parametrize("out", ["exp", "exp/seed-42"])
def test_an_experiment_keeps_the_steps_that_an_earlier_version_counted(tmp_path, monkeypatch, out):
    """4.15 · 60 is 249 and a little in floats, 1.1 · 100 is 110 and a little; once that was a step more."""
    given = [
        (hn.settings_of("ance", epochs=4.15, queries_per_step=1, refreshes=2), 60, {"refresh_every": (84, 83)}),
        (
            hn.settings_of("ar2", epochs=1.1, queries_per_step=1, iterations=1, retriever_steps=1, ranker_steps=3),
            100,
            {"retriever_steps": (111, 110), "ranker_steps": (333, 330)},
        ),
        (
            hn.settings_of("ar2", epochs=1, first_ranker_epochs=1.1, first_ranker_queries_per_step=1),
            100,
            {"first_ranker_steps": (111, 110)},
        ),
    ]
    for settings, queries, steps in given:
        with monkeypatch.context() as earlier:
            earlier.setattr("hardneg.recipes.epochs.ROUNDED", 0)
            then = begun_with(tmp_path / out, settings.for_data(queries))
        found = [with_steps(settings, queries, place) for place in (tmp_path / "exp", None, tmp_path / "new")]
        assert found[0].model_dump() == then.model_dump()
        assert found[1] == found[2] == settings.for_data(queries)
        assert steps == {name: tuple(getattr(one, name) for one in found[:2]) for name in steps}
    ance, ar2 = given[0][0], given[1][0]
    begun_with(tmp_path / out, ance.model_copy(update={"refresh_every": 84}))
    for other in ({"epochs": 4.0}, {"refreshes": 3}, {"epochs": None}):  # these are refused later
        changed = ance.model_copy(update=other)
        assert with_steps(changed, 60, tmp_path / "exp") == changed.for_data(60)
    begun_with(tmp_path / out, ar2.model_copy(update={"retriever_steps": 111, "ranker_steps": 222}))
    assert with_steps(ar2, 100, tmp_path / "exp") == ar2.for_data(100)


def test_a_plan_in_the_folder_of_an_experiment_of_an_earlier_version_has_its_steps(world, tmp_path, monkeypatch):
    queries = hn.plan("ance", *world)["facts"]["training queries"]
    epochs = next(
        e for e in (k / 100 for k in range(1, 999)) if math.ceil(e * queries) - 1 == round(e * queries, 9)
    )
    settings = hn.settings_of("ance", epochs=epochs, queries_per_step=1, refreshes=0)
    with monkeypatch.context() as earlier:
        earlier.setattr("hardneg.recipes.epochs.ROUNDED", 0)
        then = begun_with(tmp_path / "exp", settings.for_data(queries))
    plans = [hn.plan("ance", *world, tmp_path / out, settings=settings) for out in ("exp", "new")]
    assert [one["settings"]["refresh_every"] for one in plans] == [then.refresh_every, then.refresh_every - 1]


@pytest.mark.parametrize("column", ["negative", "source"])
def test_negatives_that_training_does_not_take_are_told(tmp_path, capsys, column):
    """Who brings triplets expects that training uses them."""
    data = tmp_path / "data.csv"
    rows = [
        f"how is part {i} of machine {i % 7} made,part {i} is cast in form {i * 3},text {i}" for i in range(20)
    ]
    data.write_text("\n".join([f"query,passage,{column}", *rows]))
    model = tiny_model(tmp_path / "model", preparing.collection_of(data, None))
    with showing(True):
        preparing.prepare(RECIPES["warmup"], data, model, None, precision="float32")
    told = f"{data}: it has negatives of its own, which are only passages here"
    assert (told in capsys.readouterr().err) == (column == "negative")


def test_training_on_holds_out_the_same_queries_and_says_when_their_order_repeats(tmp_path, caplog, monkeypatch):
    data = tmp_path / "data.csv"
    rows = [f"how is part {i} of machine {i % 7} made,part {i} is cast in form {i * 3}" for i in range(40)]
    data.write_text("\n".join(["query,passage", *rows]))
    common = {"steps": 2, "queries_per_step": 4, "measures": "RR@10", "precision": "float32"}
    first = tmp_path / "first"
    model = tiny_model(tmp_path / "model", preparing.collection_of(data, None))
    hn.train("warmup", data, model, first, mixtures="in_batch", seed=5, **common)

    def planned(recipe, model, seed, **more):
        caplog.clear()
        with caplog.at_level("INFO", "hardneg"):
            task = preparing.prepare(RECIPES[recipe], data, model, None, seed=seed, **common, **more)
        repeats = [line for line in caplog.messages if "in the same order again" in line]
        assert ("dev is held out with seed = 5, as before" in caplog.text) == (seed != 5)
        assert task.draw.seed == 5
        return [*task.data.dev.query_rows], repeats

    dev, told = planned("warmup", first, 5)
    assert told == [
        f"{first} was trained by warmup with seed = 5 on the same queries, so they come in the same order again;"
        " seed=6 gives another order"
    ]
    assert planned("warmup", first / "model", 5)[1]  # the model's folder stands for it, too
    hn.train("warmup", data, model, tmp_path / "usual", mixtures="in_batch", **common)
    for name, began in (("usual", 42), ("usual/model", 42), ("first", 5)):  # without a seed another one is taken
        caplog.clear()
        with caplog.at_level("INFO", "hardneg"):
            task = preparing.prepare(RECIPES["warmup"], data, tmp_path / name, None, **common)
        assert (task.settings.seed, task.told.seed) == ((43, 43) if began == 42 else (42, 42))
        assert ("seed = 43 takes them in another order (seed=42: in the same)" in caplog.text) == (began == 42)
        assert preparing.prepare(RECIPES["star"], data, tmp_path / name, None, **common).settings.seed == 42
    again = hn.train("warmup", data, tmp_path / "usual", tmp_path / "again", mixtures="in_batch", **common)
    assert hn.train("warmup", data, tmp_path / "usual", tmp_path / "again", mixtures="in_batch", **common) == again
    assert preparing.prepare(RECIPES["warmup"], data, tmp_path / "again", None, **common).settings.seed == 44
    kept = json.loads((tmp_path / "again/settings.json").read_text())  # as an older version began it
    kept = {name: value for name, value in kept.items() if name not in ("digest", "hardneg")}
    kept["result_settings"]["seed"] = 42
    write_settings(tmp_path / "again", kept)
    on = preparing.prepare(RECIPES["warmup"], data, tmp_path / "usual", tmp_path / "again", **common)
    assert on.settings.seed == 42
    several = {"seeds": 3, "dev_queries": 4, **common}
    caplog.clear()
    with caplog.at_level("INFO", "hardneg"):
        assert preparing.prepare(RECIPES["warmup"], data, tmp_path / "usual", None, **several).settings.seed == 43
    assert "the seeds 43 to 45 take them in another order (seed=42: in the same)" in caplog.text
    for seed in (43, 42):  # a shifted training goes on; so does one that an older version began without a shift
        (tmp_path / f"began-{seed}/seed-{seed}").mkdir(parents=True)
        kept["result_settings"]["seed"] = seed
        write_settings(tmp_path / f"began-{seed}/seed-{seed}", kept)
        on = preparing.prepare(RECIPES["warmup"], data, tmp_path / "usual", tmp_path / f"began-{seed}", **several)
        assert on.settings.seed == seed
    assert planned("warmup", first, 4, seeds=2)[1]  # the second of these seeds is 5
    assert planned("warmup", first, 6) == (dev, [])
    assert planned("star", first / "model", 6) == planned("star", first, 5) == (dev, [])
    # An experiment that an older version began with a dev of its own goes on with it.
    record = json.loads((first / "settings.json").read_text())
    record = {name: value for name, value in record.items() if name not in ("digest", "hardneg")}
    record["splits"]["seed"] = 9
    for old, seeds in (("old", 1), ("several/seed-6", 2)):
        (tmp_path / old).mkdir(parents=True)
        write_settings(tmp_path / old, record)
        out = tmp_path / old.partition("/")[0]
        assert preparing.prepare(RECIPES["star"], data, first, out, seed=6, seeds=seeds, **common).draw.seed == 9
    assert preparing.prepare(RECIPES["star"], data, first, None, **common).draw.whole_texts
    by_id = {name: value for name, value in record["splits"].items() if name not in ("measurable", "whole_texts")}
    (tmp_path / "by-id").mkdir()
    write_settings(tmp_path / "by-id", record | {"splits": by_id})  # as an older version held out queries
    on = preparing.prepare(RECIPES["star"], data, first, tmp_path / "by-id", **common)
    assert on.draw == DevDraw(9, measurable=False, whole_texts=False)
    with monkeypatch.context() as patched:  # it trained the model: no query that it learnt from is in dev
        patched.setattr(preparing, "trained_by", lambda model: begun_at(tmp_path / "by-id"))
        assert preparing.prepare(RECIPES["star"], data, first, None, **common).draw == on.draw
    # Of other data the model has seen nothing. A dev that grows has queries that the model learnt from.
    (tmp_path / "more.csv").write_text(data.read_text() + "\nwhat is new,this is new")
    more = preparing.prepare(RECIPES["star"], tmp_path / "more.csv", first, None, seed=6, **common)
    assert more.draw.seed == 6
    caplog.clear()
    preparing.prepare(RECIPES["star"], data, first, None, seed=5, dev_queries=2, **common)
    assert not caplog.records
    record["splits"] |= {"held_out": 2, "seed": 5}
    (tmp_path / "fewer").mkdir()
    write_settings(tmp_path / "fewer", record)
    with monkeypatch.context() as patched:
        patched.setattr(preparing, "trained_by", lambda model: begun_at(tmp_path / "fewer"))
        preparing.prepare(RECIPES["star"], data, first, None, seed=5, **common)
    assert (
        "the model learnt from 2 queries of dev, which has more queries than before; set dev_queries = 2"
        in caplog.text
    )
    other = preparing.prepare(RECIPES["warmup"], data, model, None, seed=6, **common)
    assert other.draw.seed == 6
    assert [*other.data.dev.query_rows] != dev  # so another seed would have measured what was trained on


@pytest.mark.parametrize("given", [{"overrides": ["filter_by=start"]}, {"overrides": ["filter_by = miner"]}])
def test_two_models_to_filter_by_are_refused(world, given):
    common = {"steps": 3, "relative_margin": 0.1}
    with pytest.raises(HardnegError, match=r"filter_by = (start|miner), but .* is given to filter by"):
        preparing.prepare(RECIPES["star"], *world, None, filter_by=world[1], **common, **given)
    for same in ("filter_by=given", 'filter_by = "given"'):
        preparing.prepare(RECIPES["star"], *world, None, filter_by=world[1], overrides=[same], **common)
