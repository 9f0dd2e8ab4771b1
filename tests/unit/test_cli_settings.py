"""Options for common settings, --config, advice on other tools' names, and the commands settings and presets."""

import importlib.util
import json
import math
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import pytest
from typer.main import get_command

from hardneg.api.prepare import prepare
from hardneg.api.recipes import RECIPES, plan, settings_of
from hardneg.callers import command_line
from hardneg.cli import app
from hardneg.config import NAMED, read_presets
from hardneg.data.training_data import Splits
from hardneg.errors import Faults, HardnegError, SettingsError
from hardneg.foreign_names import OURS
from hardneg.recipes.described import PRESETS, TABLE, all_facts, described
from hardneg.recipes.usual import USUAL
from worlds.tiny_world import one_thread  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
GIVEN = {
    "lr": 3e-4,
    "steps": 7,
    "batch_size": 4,
    "n_negatives": 3,
    "max_length": 40,
    "seed": 5,
    "precision": "float32",
}
NEEDS = {"adore": {"cut": 10}}


def usual_of(recipe, **given):
    return settings_of(recipe, usual=given, **NEEDS.get(recipe, {}))


# ---------------------------------------------------------------- the options


def test_an_option_of_no_such_name_is_refused():
    with pytest.raises(Faults) as fault:
        settings_of("warmup", usual={"learning_rate": 1.0, "batch-sizes": 3, "lr": 1e-4, "--lr": 1e-3})
    assert fault.value.lines == [
        "UNKNOWN_SETTING: 'learning_rate' is no option that all recipes share; give it by name, learning_rate=...",
        "UNKNOWN_SETTING: 'batch-sizes' is no option that all recipes share; did you mean 'batch_size'?",
        "BAD_SETTING: '--lr' is given twice; leave one of them out",
    ]
    typed = settings_of("warmup", usual={"negatives": 5, "--batch-size": 3})
    assert (typed.negatives, typed.queries_per_step) == ([5], 3)


def test_a_number_of_negatives_stands_beside_other_options(world):
    given = (str(world[0].path), str(world[1]))
    both = plan("star", *given, usual={"lr": 1e-3}, negatives=2)["settings"]
    assert (both["learning_rate"], both["negatives_per_query"]) == (1e-3, 2)
    for more, said in (
        ({"negatives_per_query": 3}, "negatives_per_query is given twice, by negatives= and by name"),
        (
            {"overrides": ["negatives_per_query=3"]},
            "negatives_per_query is given twice, by negatives= and by overrides",
        ),
        ({"usual": {"n_negatives": 3}}, "'n_negatives' is given twice"),
    ):
        with pytest.raises(Faults, match=said):
            plan("star", *given, negatives=2, **more)
    with pytest.raises(SettingsError, match="BAD_SETTING: usual is 3"):
        plan("star", *given, negatives=2, usual=3)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_usual_option_gives_the_recipes_own_settings_or_is_refused(recipe):
    known = RECIPES[recipe].settings.model_fields
    for option in USUAL:
        names = option.settings_of(recipe)
        assert set(names) <= set(known), (recipe, option.flag)
        assert bool(names) != (recipe in option.instead), "a recipe without the setting says what it has"
        value = 2.0 if option.name == "epochs" else GIVEN[option.name]
        if not names:
            with command_line(), pytest.raises(Faults, match=rf"{recipe} has no {option.flag}; set \w+"):
                usual_of(recipe, **{option.name: value})
            continue
        found = usual_of(recipe, **{option.name: value})
        for name in names:
            got = getattr(found, name)
            assert (got[0] if isinstance(got, list) else got) == option.value_of(recipe, value), name


def test_help_hides_what_the_recipe_refuses(hardneg):
    said = {recipe: hardneg("train", recipe, "--help")[1] for recipe in RECIPES}
    for option in USUAL:
        hidden = {recipe for recipe, text in said.items() if f"  {option.flag} " not in text}
        assert hidden == {recipe for recipe in RECIPES if not option.settings_of(recipe)}, option.flag


def test_a_number_of_negatives_leaves_the_positive_out():
    settings = usual_of("ance-tele", n_negatives=3)
    assert (settings.passages_reference, settings.passages_paper) == ([4], [4])
    assert settings.passages_per_query(2) == 4
    assert usual_of("warmup", n_negatives=3).negatives == [3]


def test_a_list_of_numbers_of_negatives_leaves_each_positive_out(tmp_path):
    found = settings_of("ance-tele", None, written(tmp_path, "negatives = [1, 7]"))
    assert (found.passages_reference, found.passages_paper) == ([2, 8], [2, 8])
    assert settings_of("warmup", None, written(tmp_path, "negatives = [3, 7]")).negatives == [3, 7]


def test_a_batch_size_holds_for_the_first_episode_too():
    assert settings_of("ance-tele", "demo").first_queries == 32
    settings = settings_of("ance-tele", "demo", usual={"batch_size": 8})
    assert (settings.queries_per_step, settings.first_queries) == (8, None)
    apart = settings_of("ance-tele", "demo", None, ["first_queries=12"], usual={"batch_size": 8})
    assert (apart.queries_per_step, apart.first_queries) == (8, 12)


def test_epochs_win_over_the_steps_and_bounds_of_a_preset():
    preset = settings_of("star", "finetune")
    assert preset.min_steps == 100
    settings = settings_of("star", "finetune", usual={"epochs": 1.0})
    assert settings.horizon(64) == 2
    bounded = settings_of("star", "finetune", None, ["min_steps=5"], usual={"epochs": 1.0})
    assert bounded.horizon(64) == 5


@pytest.mark.parametrize("length", [{"steps": 100_000}, {"epochs": 2.0}])
def test_the_length_of_training_wins_over_the_stop_of_a_preset(tmp_path, length):
    assert settings_of("star", "passage").stop_step == 50_000
    assert settings_of("star", "passage", usual=length).stop_step is None
    stopped = settings_of("star", "passage", None, ["stop_step=9"], usual=length)
    assert stopped.stop_step == 9
    (tmp_path / "own.toml").write_text("stop_step = 7\n")
    assert settings_of("star", "passage", tmp_path / "own.toml", usual=length).stop_step == 7
    assert settings_of("star", settings=stopped, usual=length).stop_step == 9
    assert settings_of("ance-tele", "demo", usual=length).stop_step == 40  # of the episodes before the last one


@pytest.mark.parametrize("queries", [100, 1000, 20_000, 500_000])
@pytest.mark.parametrize(("recipe", "first"), [("ance-tele", "first_steps"), ("ar2", "first_ranker_steps")])
def test_epochs_leave_the_lengths_that_they_do_not_set(tmp_path, recipe, first, queries):
    def first_of(*layers, **given):
        chosen = settings_of(recipe, *layers, **given).for_data(queries)
        return chosen.episode_of(queries, 1).steps if recipe == "ance-tele" else getattr(chosen, first)

    def whole_of(chosen):
        return chosen.horizon(queries) if recipe == "ance-tele" else chosen.steps

    preset = settings_of(recipe, "finetune")
    longer = settings_of(recipe, "finetune", usual={"epochs": 3.0})
    made = longer.for_data(queries)
    assert first_of("finetune") == first_of("finetune", usual={"epochs": 3.0})
    assert first_of("finetune") == first_of(settings=longer)  # settings that were made before keep their bounds
    again = made.model_dump(mode="json")
    assert first_of(settings=made) == first_of(**again) == first_of("finetune")  # as an experiment stores them
    free = 3 * math.ceil(queries / preset.queries_per_step)
    assert free <= whole_of(made) < free + 10
    unbounded = settings_of(recipe, "finetune", None, ["min_steps=none", "max_steps=none"])
    within = first_of(settings=unbounded) == first_of("finetune")
    kept = made.first_steps is None if recipe == "ance-tele" else made.first_ranker_epochs is not None
    assert kept == within  # where the bounds change nothing, an experiment is stored as before
    both = {"usual": {"epochs": 3.0}}
    assert first_of("finetune", None, ["min_steps=none", "max_steps=none"], **both) == first_of(settings=unbounded)
    (tmp_path / "own.toml").write_text('min_steps = "none"\nmax_steps = 9\n')
    assert first_of("finetune", tmp_path / "own.toml", **both) == min(first_of(settings=unbounded), 9)


def test_an_option_lifts_the_same_however_it_is_written():
    typed, named = (settings_of("ance-tele", "finetune", usual={name: 3.0}) for name in ("--epochs", "epochs"))
    assert typed.lifted == named.lifted == {"min_steps": 150, "max_steps": 5000}
    assert typed.for_data(100).first_steps == named.for_data(100).first_steps == 150
    again = settings_of("ance-tele", **typed.model_dump(mode="json"))
    assert (again.lifted, again == typed) == ({}, True)  # what was lifted plays no part in comparisons


def test_an_early_end_that_is_taken_away_by_name_is_gone(tmp_path):
    (tmp_path / "own.toml").write_text("stop_step = 3\n")
    for usual in ({}, {"lr": 1e-4}, {"negatives": 2}, {"steps": 9}):
        assert settings_of("star", None, tmp_path / "own.toml", usual=usual, stop_step=None).stop_step is None
        assert settings_of("star", None, tmp_path / "own.toml", usual=usual).stop_step == 3


@pytest.mark.parametrize("recipe", ["star", "ance", "ranker", "ar2"])
def test_more_epochs_than_steps_can_be_counted_are_refused(recipe):
    settings = settings_of(recipe, "finetune", usual={"epochs": 1e308})
    count = settings.for_data if recipe in ("ance", "ar2") else settings.horizon
    with pytest.raises(SettingsError, match=r"BAD_SETTING: 1e\+308 epochs are \S+ steps; give fewer epochs"):
        count(64)


def test_names_of_a_thousand_parts_are_refused_in_lines():
    deep = "a" + ".a" * 1500
    with pytest.raises(HardnegError):
        settings_of("star", None, None, [f"{deep}=1", f"{deep}=2"])


@pytest.mark.parametrize(
    ("given", "overrides", "said"),
    [
        ({"lr": 1e-4}, ["learning_rate=1e-5"], "learning_rate is given twice, by --lr and by --set"),
        ({"steps": 3, "epochs": 2.0}, [], "--steps and --epochs both say how long"),
        ({"lr": 0.0}, [], "learning_rate = 0.0; it should be greater than 0"),
        ({"precision": "fp16"}, [], 'precision = "fp16"'),
    ],
)
def test_what_contradicts_itself_is_refused_in_a_line(given, overrides, said):
    with command_line(), pytest.raises(Faults) as fault:
        settings_of("star", None, None, overrides, usual=given)
    (line,) = fault.value.lines
    assert said in line


def test_the_options_arrive(hardneg, world, tmp_path):
    where = ["--data", world[0].path, "--model", world[1], "--out", tmp_path / "e"]
    options = ["--lr", "3e-4", "--steps", 7, "--batch-size", 4, "--negatives", 3, "--max-length", 40, "--seed", 5]
    status, out, err = hardneg("train", "star", *where, *options, "--precision", "float32", "--dry-run")
    assert status == 0, err
    expected = ("learning_rate = 0.0003", "steps = 7", "queries_per_step = 4", "negatives_per_query = 3")
    assert {f"{line}  # as set" for line in (*expected, "passage_length = 40", "seed = 5")} <= set(
        out.splitlines()
    )


def test_a_dry_run_says_where_values_come_from(hardneg, world, tmp_path):
    (tmp_path / "c.toml").write_text("scale = 30.0\n")
    where = [
        "--data",
        world[0].path,
        "--model",
        world[1],
        "--out",
        tmp_path / "e",
        "--config",
        tmp_path / "c.toml",
    ]
    status, out, err = hardneg("train", "ance-tele", *where, "--preset", "demo", "--steps", 7, "--dry-run")
    assert status == 0, err
    told = dict(line.split(" = ", 1) for line in out.splitlines() if line[:1].isalpha())
    assert told["scale"] == f"30.0  # {tmp_path / 'c.toml'}"
    assert told["queries_per_step"] == "16  # preset demo"
    assert told["steps"] == "7  # as set"
    assert told["depth"] == "200"
    assert tomllib.loads(out)["steps"] == 7  # comments are no part of the values


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("star --learning-rate 3", "--learning-rate; did you mean --lr?"),
        ("star --num_train_epochs 3", "--num_train_epochs; did you mean --epochs?"),
        ("star --per-device-train-batch-size 3", "did you mean --batch-size?"),
        ("star --stop-step 3", "--stop-step; it is a setting: --set stop_step=..."),
        ("adore --teacher x", "--teacher; it is an option of hardneg train ance-tele, warmup, ance and star"),
        ("ar2 --retriever x", "--retriever; it is an option of hardneg train ranker"),
        ("star --presett x", "--presett; did you mean --preset?"),
        ("star --negatives pool", "; a pool is given by --pool; see"),
        ("adore --data d --model m --out e --set cut=3 --negatives 3", "adore has no --negatives; set depth"),
        ("star --data d", "Missing option '--model'; give it, or write model = ... into the file of --config"),
    ],
)
def test_a_wrong_option_is_one_line_that_says_the_right_one(hardneg, words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = hardneg("train", *words.split())
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


# ---------------------------------------------------------------- settings by name


@pytest.mark.parametrize(
    ("recipe", "key", "said"),
    [
        ("ance-tele", "batch_size", "did you mean 'queries_per_step' (option --batch-size)? it counts queries"),
        ("star", "lr", "did you mean 'learning_rate' (option --lr)?"),
        ("star", "max_seq_length", "did you mean 'passage_length' (option --max-length)?"),
        ("ranker", "max_seq_length", "did you mean 'max_length' (option --max-length)?"),
        ("star", "num_train_epochs", "did you mean 'epochs' (option --epochs)?"),
        ("ar2", "num_train_steps", "did you mean the option --steps?"),
        ("star", "temperature", "did you mean 'scale'? scale = 1 / temperature: 20 for 0.05"),
        ("star", "per_device_train_batch_size", "did you mean 'queries_per_step'"),
        ("star", "output_dir", "did you mean the option --out?"),
        ("star", "epochz", "did you mean 'epochs'?"),
    ],
)
def test_names_of_other_trainers_are_known(recipe, key, said):
    with command_line(), pytest.raises(Faults) as fault:
        settings_of(recipe, None, None, [f"{key}=3"])
    (line,) = fault.value.lines
    assert line.startswith(f"UNKNOWN_SETTING: there is no setting '{key}'; {said}")


def test_foreign_names_lead_to_what_there_is():
    settings = {name for recipe in RECIPES.values() for name in recipe.settings.model_fields}
    options = {option.flag for option in USUAL} | {"--out", "--model", "--data", "--pool"}
    options |= {"--train", "--dev", "--test", "--max-ram", "--max-vram", "--threads", "--estimate"}
    assert options <= {
        flag for one in get_command(app).commands["train"].commands["star"].params for flag in one.opts
    }
    for name, ours in OURS.items():
        assert set(ours.settings) <= settings, name
        assert ours.option in options | {""}, name
        assert ours.settings or ours.option, name


def test_a_single_value_is_a_list_of_one():
    assert settings_of("ance-tele", None, None, ["passages_reference=4", "extra=bm25"]).extra == ["bm25"]
    assert settings_of("warmup", steps=7, mixtures="nce").steps == [7]
    with pytest.raises(Faults, match="it should be a list"):
        settings_of("warmup", None, None, ["steps=[1,x"])


# ---------------------------------------------------------------- --config


def test_a_file_holds_data_model_and_out_too(hardneg, world, tmp_path):
    names = {"data": world[0].path, "model": world[1], "out": tmp_path / "e", "dev": "none"}
    lines = [f"{name} = {json.dumps(str(value))}" for name, value in names.items()]
    (tmp_path / "c.toml").write_text("\n".join([*lines, "steps = 3"]))
    status, out, err = hardneg("train", "star", "--config", tmp_path / "c.toml", "--dry-run")
    assert (status, f"steps = 3  # {tmp_path / 'c.toml'}" in out.splitlines()) == (0, True)
    assert "dev 'dev'" not in err
    status, _, err = hardneg(
        "train", "star", "--config", tmp_path / "c.toml", "--data", tmp_path / "x", "--dry-run"
    )
    assert status == 3
    assert str(tmp_path / "x") in err, "an option wins over the file"
    (tmp_path / "c.toml").write_text("data = 3")
    status, _, err = hardneg("train", "star", "--config", tmp_path / "c.toml", "--dry-run")
    assert (status, err) == (2, f"{tmp_path}/c.toml: BAD_SETTING: data = 3; give a text\n")


@pytest.mark.parametrize("name", ["data", "model", "out"])
def test_an_empty_place_in_a_file_is_not_the_current_folder(hardneg, world, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    names = {"data": str(world[0].path), "model": str(world[1]), "out": "e", name: " "}
    (tmp_path / "c.toml").write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in names.items()))
    status, _, err = hardneg("train", "star", "--config", "c.toml", "--dry-run")
    assert (status, err) == (
        2,
        f"USAGE: {name} is empty in the file of --config; give it, or leave it out there\n",
    )


def test_a_file_may_name_places_in_the_home_folder(hardneg, world, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(world[0].path.parent))
    names = {"data": f"~/{world[0].path.name}", "model": str(world[1]), "out": "~nobody-of-this-name/e"}
    file = tmp_path / "c.toml"
    file.write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in names.items()))
    status, _, err = hardneg("train", "star", "--config", file, "--dry-run")
    assert status == 2
    assert err.startswith("NO_HOME: ~nobody-of-this-name/e begins")
    assert hardneg("train", "star", "--config", file, "--dry-run", "--out", tmp_path / "e")[0] == 0
    file.write_text(file.read_text().replace("~nobody-of-this-name", "~"))
    assert hardneg("train", "star", "--config", file, "--dry-run")[0] == 0


def written(tmp_path, text, name="c.toml"):
    (tmp_path / name).write_text(text)
    return tmp_path / name


def test_a_file_knows_the_options_by_their_names(tmp_path):
    file = written(tmp_path, 'lr = 1e-4\nbatch_size = 4\n"--max-length" = 30\nnegatives = 3\n')
    settings = settings_of("star", None, file)
    found = (settings.learning_rate, settings.queries_per_step, settings.passage_length)
    assert (*found, settings.negatives_per_query) == (1e-4, 4, 30, 3)
    assert settings.origin_of("learning_rate") == str(file)
    assert settings_of("ance-tele", None, file).passages_reference == [4], "as the option: without the positive"
    assert settings_of("warmup", None, file).negatives == [3], "a setting of this name is that setting"
    assert settings_of("star", None, file, usual={"lr": 1e-3}).learning_rate == 1e-3, (
        "an option wins over the file"
    )


def test_a_file_says_the_same_in_python_as_to_the_command(hardneg, world, tmp_path):
    data, model = str(world[0].path), str(world[1])
    file = written(
        tmp_path, 'preset = "demo"\nlr = 1e-4\ntrain = "test"\ndev = "none"\ntest = "dev"\nkeep = "last"\n'
    )
    words = ("--data", data, "--model", model, "--out", tmp_path / "e", "--config", file, "--dry-run", "--json")
    status, out, err = hardneg("train", "star", *words)
    assert status == 0, err
    told = plan("star", data, model, tmp_path / "e", config=file)
    assert told["settings"] == json.loads(out)["settings"]
    assert told["origins"] == json.loads(out)["origins"]
    assert told["facts"] == json.loads(out)["facts"]
    assert settings_of("star", config=file) == settings_of("star", "demo", file)
    assert settings_of("star", "finetune", file) != settings_of("star", config=file), "what the caller gives wins"
    task = prepare(RECIPES["star"], data, model, None, config=file)
    assert task.splits == Splits("test", "none", "dev")
    task = prepare(RECIPES["star"], data, model, None, config=file, splits=Splits())
    assert task.splits == Splits(), "what the caller gives wins"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('lr = "x"', 'BAD_SETTING: learning_rate = "x"; it should be a valid number'),
        ('lr = 1e-4\n"--lr" = 1e-3', "BAD_SETTING: '--lr' is given twice; leave one of them out"),
        ("lr = 1e-4\nlearning_rate = 1e-3", "BAD_SETTING: learning_rate is given twice, by --lr and by name"),
        ("per_device_train_batch_size = 3", "did you mean 'queries_per_step' (option --batch-size)?"),
        (
            "[settings]\nlearning_rate = 1e-4",
            "UNKNOWN_SETTING: 'settings' is not a setting; it is a table with learning_rate; write these by "
            "themselves, without the heading [settings]",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line(tmp_path, text, said):
    with command_line(), pytest.raises(Faults) as fault:
        settings_of("star", None, written(tmp_path, text))
    (line,) = fault.value.lines
    assert said in line


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("c.yaml", "learning_rate: 1e-4", "YAML"),
        ("c.yml", "lr", "YAML"),
        ("c.json", '{"learning_rate": 1e-4}', "JSON"),
        ("c.toml", "# comment\n\nlearning_rate: 1e-4", "YAML"),
        ("c.toml", '{"learning_rate": 1e-4}', "JSON"),
    ],
)
def test_only_toml_is_read_and_another_language_is_named(tmp_path, name, text, kind):
    with pytest.raises(HardnegError) as fault:
        settings_of("star", None, written(tmp_path, text, name))
    assert f"BAD_TOML: this is {kind}, but only TOML is read; write lines such as" in str(fault.value)


def test_a_setting_is_set_once(tmp_path):
    with command_line(), pytest.raises(Faults, match="BAD_SETTING: clip is given 2 times by --set; give it once"):
        settings_of("star", None, None, ["clip=1", "seed=3", "clip=2"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train star --lr abc", '--lr = "abc"; it should be a valid number'),
        ("train star --epochs x", '--epochs = "x"; it should be a valid number'),
        ("train star --batch-size 0", '--batch-size = "0"; it should be greater than or equal to 1'),
        (
            "train star --negatives pool",
            '--negatives = "pool"; it should be a valid integer; a pool is given by --pool',
        ),
        ("train star --reinit-layers x", '--reinit-layers = "x"; it should be a valid integer'),
        ("search --k x", '--k = "x"; it should be a valid integer'),
    ],
)
def test_a_wrong_value_of_an_option_is_told_as_one_of_a_setting(hardneg, words, said):
    status, _, err = hardneg(*words.split())
    assert (status, err.count("\n"), err.startswith(f"USAGE: {said}; see hardneg ")) == (2, 1, True), err


def test_a_setting_of_several_kinds_is_told_once():
    with pytest.raises(Faults) as fault:
        settings_of("star", None, None, ["measure_every=1.5", "patience=0"])
    assert fault.value.lines == [
        "BAD_SETTING: measure_every = 1.5; it should be a valid integer, or be less than 1",
        "BAD_SETTING: patience = 0; it should be greater than or equal to 1",
    ]


# ---------------------------------------------------------------- hardneg settings, hardneg presets


def test_the_table_of_settings_is_what_the_classes_say():
    spec = importlib.util.spec_from_file_location("settings_table", ROOT / "tools/settings_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    there = resources.files("hardneg").joinpath("presets", TABLE).read_text("utf-8")
    assert there == module.table(), "run `make reference`"


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_setting_is_listed_once(recipe):
    rows = described(recipe)
    assert sorted(row["name"] for row in rows) == sorted(all_facts()[recipe])
    assert all(row["meaning"].endswith(".") and "preset" not in row for row in rows)


def test_settings_of_encoders_are_not_listed_for_a_ranker(hardneg):
    refused = set(RECIPES["ranker"].settings.refused)
    assert {"pooling", "dev_passages"} < refused <= set(RECIPES["ranker"].settings.model_fields)
    assert not refused & {row["name"] for row in described("ranker")}
    for name in refused:
        assert name in {row["name"] for row in described("star")}
    rows = {row["name"]: row for row in described("ranker")}
    assert rows["filter_by"]["values"] == "miner, given"
    with pytest.raises(Faults, match=r"filter_by = \"start\"; it should be 'miner' or 'given'"):
        settings_of("ranker", filter_by="start", top=3)


def test_settings_show_the_values_of_a_preset(hardneg):
    status, out, err = hardneg("settings", "star", "--preset", "finetune", "--json")
    assert (status, err) == (0, "")
    row = next(row for row in json.loads(out) if row["name"] == "queries_per_step")
    assert (row["default"], row["preset"], row["unit"], row["result"]) == (8, 32, "queries", True)
    row = next(row for row in json.loads(out) if row["name"] == "precision")
    assert (row["default"], row["preset"]) == ("fastest", "fastest")  # the machine decides, not the class
    status, out, _ = hardneg("settings", "star", "--preset", "finetune")
    assert "\nModel (none: as the model itself says)\n" in out
    assert max(map(len, out.splitlines())) <= 100
    assert "queries; --batch-size" in " ".join(out.split())
    assert hardneg("settings", "str")[2].startswith(
        "UNKNOWN_RECIPE: no recipe is called 'str'; did you mean 'star'?"
    )
    assert "did you mean 'demo'?" in hardneg("settings", "star", "--preset", "demoo")[2]


def test_presets_are_all_described(hardneg):
    assert {recipe: set(presets) for recipe, presets in PRESETS.items()} == {
        recipe: set(read_presets(recipe)) for recipe in RECIPES
    }
    status, out, _ = hardneg("presets", "star")
    assert status == 0
    assert out.splitlines()[0] == "star"
    assert out.splitlines()[1].startswith("  finetune")
    assert max(map(len, hardneg("presets")[1].splitlines())) <= 120


@pytest.mark.parametrize("words", [["settings", "ance"], ["presets"], ["--help"], ["train", "star", "--lr", "x"]])
def test_what_needs_no_model_loads_no_torch(words):
    heavy = "{'torch', 'transformers', 'tokenizers', 'scipy', 'matplotlib', 'bm25s', 'rich'}"
    code = f"import sys\nfrom hardneg.cli import run\nrun({words})\nprint(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.splitlines()[-1] == "[]"


# ---------------------------------------------------------------- options among settings


def misplaced(hardneg, recipe, *words):
    """The faults of a training command that is refused for its settings, before anything is opened."""
    status, _, err = hardneg("train", recipe, "--data", "d", "--model", "m", "--out", "e", *words)
    assert status == 2
    return err.splitlines()


def options_beside(recipe):
    """The options of a recipe's command that are neither settings nor give one, by their names in a file."""
    command = get_command(app).commands["train"].commands[recipe]
    named = {one.opts[0].lstrip("-").replace("-", "_"): one.opts[0] for one in command.params}
    out = {
        *RECIPES[recipe].settings.model_fields,
        *(option.flag.lstrip("-").replace("-", "_") for option in USUAL),
    }
    return {name: flag for name, flag in named.items() if name not in {*out, *NAMED, "help"}}


@pytest.mark.parametrize("recipe", ["star", "ance", "ar2", "ranker"])
def test_an_option_in_a_file_or_among_settings_is_named(recipe, hardneg, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    there = options_beside(recipe)
    assert {"seeds", "device", "max_ram", "dry_run", "judgements"} <= set(there)
    said = [f"UNKNOWN_SETTING: '{name}' is no setting; give it by the option {there[name]}" for name in there]
    file = written(tmp_path, "\n".join(f"{name} = 2" for name in there))
    assert misplaced(hardneg, recipe, "--config", file) == [f"{file}: {line}" for line in said]
    assert misplaced(hardneg, recipe, *(word for name in there for word in ("--set", f"{name}=2"))) == said


def test_a_misplaced_option_hides_no_other_fault(tmp_path):
    file = written(tmp_path, '"--max-ram" = "8G"\nseeds = 2\nlearning_rat = 1e-4\n')
    with command_line(), pytest.raises(Faults) as fault:
        settings_of("star", None, file, beside={"seeds": "the option --seeds", "max_ram": "the option --max-ram"})
    assert fault.value.lines == [
        f"{file}: UNKNOWN_SETTING: '--max-ram' is no setting; give it by the option --max-ram",
        f"{file}: UNKNOWN_SETTING: 'seeds' is no setting; give it by the option --seeds",
        "UNKNOWN_SETTING: there is no setting 'learning_rat'; did you mean 'learning_rate'?",
    ]


def test_in_python_it_is_an_argument(tmp_path):
    file = written(tmp_path, "seeds = 2")
    with pytest.raises(
        Faults, match=r"c.toml: UNKNOWN_SETTING: 'seeds' is no setting; give it by the argument seeds"
    ):
        plan("star", "d", "m", tmp_path / "e", config=file)
