"""``import hardneg as hn``: light to import, documented, strict about settings, honest about what it returns."""

import inspect
import json
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import numpy as np
import pytest

import hardneg as hn
from calls import spied
from hardneg.api import train
from hardneg.api.inputs import check_file, check_folder, check_free, check_new, one_of
from hardneg.api.prepare import check_experiment, prepare
from hardneg.api.recipes import RECIPES
from hardneg.api.start import open_start
from hardneg.diagnostics.curves import draw_learning_curve
from hardneg.errors import ArtifactError, BusyError, Faults, InputError, SettingsError
from hardneg.experiment.folder import record_of, write_settings
from hardneg.negatives.pool import load_pool
from hardneg.recipes.ance_tele import AnceTele
from hardneg.storage.artifacts import lease
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

SMALL = {
    "episodes": 2,
    "queries_per_step": 8,
    "passages_reference": [3],
    "steps": 3,
    "stop_step": 2,
    "depth": 10,
    "count": 3,
    "precision": "float32",
    "measures": "RR@10 R@100",
}


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    collection, model = world
    out = tmp_path_factory.mktemp("trained") / "exp"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARDNEG_CACHE", str(out.parent / "cache"))
        patch.setattr("hardneg.diagnostics.results.draw_learning_curve", draw_learning_curve)  # no stub
        return out, hn.train_ance_tele(collection, model, out, device="cpu", **SMALL)


# ---------------------------------------------------------------- the face


def modules_after(code):
    """The modules that are loaded after running ``code`` in a fresh interpreter."""
    code = f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    return set(json.loads(done.stdout))


def test_every_public_name_is_listed_once_and_found():
    stub = Path(hn.__file__).with_suffix(".pyi").read_text()
    for name in set(hn.__all__) - {"__version__"}:
        trains = name == "train" or name.startswith("train_")
        found = stub.count(f"def {name}(") if trains else stub.count(f" as {name}\n")
        assert found == (len(RECIPES) + 1 if name == "train" else 1)  # and one for a name in a variable
    assert set(dir(hn)) == set(hn.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'trane'"):
        _ = hn.trane


@pytest.mark.parametrize("module", ["api.evaluate", "api.inspect", "api.search", "cli"])
def test_what_needs_no_model_loads_no_torch(module):
    loaded = modules_after(f"import hardneg.{module}")
    assert not {"torch", "transformers", "matplotlib"} & loaded


@pytest.mark.parametrize("name", sorted(set(hn.__all__) - {"__version__", "AnceTele", "HardnegError"}))
def test_every_function_is_documented_and_typed(name):
    value = getattr(hn, name)
    assert len(inspect.getdoc(value)) > 30
    if inspect.isfunction(value):
        hints = typing.get_type_hints(value)
        assert set(hints) == {*inspect.signature(value).parameters, "return"}


# ---------------------------------------------------------------- settings


def test_settings_are_keywords_and_later_layers_win(tmp_path):
    (tmp_path / "s.toml").write_text("steps = 7\ndepth = 50\nalpha = 0.25\n")
    settings = hn.settings_of("ance-tele", "demo", tmp_path / "s.toml", ["depth=60"], alpha=0.75)
    assert (settings.steps, settings.depth, settings.alpha) == (7, 60, 0.75)
    assert settings.queries_per_step == 16  # the preset's
    again = hn.settings_of("ance-tele", settings=settings, steps=9)
    assert again == settings.model_copy(update={"steps": 9})


def test_all_faults_of_all_layers_come_at_once():
    with pytest.raises(Faults) as caught:
        hn.settings_of("ance-tele", "dmo", None, ["nonsense", "epizodes=3"], alpha=2.0, learning_rat=1)
    assert caught.value.status == 2
    assert [line.split(";")[0] for line in caught.value.lines] == [
        "UNKNOWN_PRESET: ance-tele has no preset 'dmo'",
        "BAD_OVERRIDE: 'nonsense' is not key=value",
        "BAD_SETTING: alpha = 2.0",
        "UNKNOWN_SETTING: there is no setting 'epizodes'",
        "UNKNOWN_SETTING: there is no setting 'learning_rat'",
    ]
    assert "did you mean 'episodes'?" in caught.value.lines[3]


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"measures": "RX@10"}, "UNKNOWN_MEASURE"),
        ({"extra": ["bm25", "bm25"]}, "REPEATED_SOURCE"),
        ({"steps": 1.5}, "BAD_SETTING"),
        ({"steps": True}, "BAD_SETTING"),
        ({"alpha": float("nan")}, "BAD_SETTING"),
        ({"start_episode": 4}, "BAD_SETTING"),
    ],
)
def test_wrong_values_are_refused_also_on_top_of_settings(world, tmp_path, values, code):
    collection, model = world
    with pytest.raises(hn.HardnegError) as caught:
        hn.train_ance_tele(collection, model, tmp_path / "exp", settings=AnceTele(), **values)
    assert (caught.value.code, caught.value.status) == (code, 2)
    assert not (tmp_path / "exp").exists()


def test_settings_are_found_wrong_before_a_model_is_looked_for(world, tmp_path):
    with pytest.raises(Faults, match="there is no setting 'epochz'; did you mean 'epochs'"):
        hn.train_ance_tele(world[0], "nowhere/at/all", tmp_path / "exp", epochz=3)


def test_a_query_longer_than_the_model_takes_is_refused_before_training(world, tmp_path):
    collection, model = world
    with pytest.raises(SettingsError, match="search_query_length = 65, the model takes 64"):
        hn.plan("ance-tele", collection, model, settings=hn.settings_of("ance-tele", search_query_length=65))


# ---------------------------------------------------------------- training


def test_training_returns_and_keeps_its_results(world, trained):
    out, results = trained
    assert json.loads((out / "results.json").read_text()) == results
    assert list(results["test"]) == list(results["dev"]) == ["bm25", "untrained", "episode-1", "final"]
    assert list(results["test"]["final"]) == ["RR@10", "R@100"]
    assert [row["episode"] for row in results["forgetting"]] == [1, 2]
    assert hn.load_encoder(str(out / "model")).dim == 64


def test_runs_and_a_curve_are_left_for_people(world, trained):
    collection, _ = world
    out, results = trained
    assert (out / "learning_curve.png").stat().st_size > 5000
    for state in ("bm25", "untrained", "final"):
        found = hn.evaluate(out / f"runs/{state}.test.trec.gz", data=collection, measures="RR@10 R@100")
        assert found["measures"] == pytest.approx(results["test"][state])


def test_the_model_card_tells_how_it_was_made_and_how_good_it_is(world, trained):
    out, results = trained
    card = (out / "model/README.md").read_text()
    assert f"| final | {results['test']['final']['RR@10']:.4f} |" in card
    assert "from model." in card  # the pretrained model's name, not where it lies
    assert str(world[1]) not in card
    assert "steps = 3" in card.splitlines()


def test_a_finished_experiment_is_not_touched(world, trained):
    collection, model = world
    out, results = trained
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert hn.train_ance_tele(collection, model, out, device="cpu", **SMALL) == results
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    changed = {path.name for path in after if before.get(path) != after[path]}
    assert changed <= {"settings.json", ".lock"}


def test_other_measures_are_measured_without_training_again(world, trained):
    collection, model = world
    out, results = trained
    weights = (out / "model/model.safetensors").read_bytes()
    steps = (out / "metrics.jsonl").read_text()
    again = hn.train_ance_tele(collection, model, out, device="cpu", **SMALL | {"measures": ["AP"]})
    assert list(again["test"]["final"]) == ["AP"]
    assert (out / "model/model.safetensors").read_bytes() == weights
    assert (out / "metrics.jsonl").read_text() == steps
    assert hn.train_ance_tele(collection, model, out, device="cpu", **SMALL) == results


def test_what_a_recipe_or_a_role_cannot_take_is_refused(world, tmp_path):
    collection, model = world
    with pytest.raises(SettingsError, match="ance mines its own negatives"):
        hn.train_ance(collection, model, tmp_path / "exp", negatives=tmp_path, device="cpu")
    with pytest.raises(SettingsError, match="one role cannot serve 2 seeds"):
        hn.train_ance(collection, model, tmp_path / "exp", seeds=2, role="trainer", device="cpu")
    assert not (tmp_path / "exp/results.json").exists()


def judged(file, label):
    file.write_text(f"query-id\tpassage-id\tlabel\ntrain-00\tp003\t{label}\n")
    return file


def test_a_role_keeps_judgements_only_in_an_experiment_that_has_them(world, tmp_path):
    out, options = tmp_path / "exp", {"mode": "async", "device": "cpu"}
    task = prepare(RECIPES["ance"], *world, out, **options)
    begun = record_of("ance", task.settings, open_start(task, compare_texts=False).inputs, task.data, task.source)
    write_settings(out, begun)
    given = judged(tmp_path / "judgements.tsv", "relevant")
    with pytest.raises(ArtifactError, match=r"INPUT_CHANGED: .*: judgements: none -> '"):
        hn.train_ance(*world, out, role="trainer", judgements=given, **options)
    assert [path.name for path in out.iterdir()] == ["settings.json"]
    judged(out / "judgements.tsv", "relevant")  # as somebody puts it there
    with pytest.raises(ArtifactError, match=r"exp/judgements.tsv: INPUT_CHANGED: these are not the judgements"):
        hn.train_ance(*world, out, role="trainer", **options)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("recipe", ["star", "ance"])
def test_a_new_experiment_is_not_trained_with_other_judgements_than_its_folder_has(world, tmp_path, recipe, given):
    (out := tmp_path / "exp").mkdir()
    kept = judged(out / "judgements.tsv", "positive").read_text()
    options = {"role": "trainer", "mode": "async"} if recipe == "ance" else {}
    if given:
        options["judgements"] = judged(tmp_path / "judgements.tsv", "relevant")
    with pytest.raises(ArtifactError, match=r"exp/judgements.tsv: INPUT_CHANGED: these are not the judgements"):
        hn.train(recipe, *world, out, device="cpu", **options)
    assert not (out / "settings.json").exists()
    assert (out / "judgements.tsv").read_text() == kept


def test_seeds_are_pooled_also_without_dev(world, tmp_path):
    collection, model = world
    splits = hn.Splits(dev="none")
    changes = SMALL | {"episodes": 1, "seed": 5}
    with spied(train, "open_start") as opened, spied(train, "report_seeds") as reported:
        pooled = hn.train_ance_tele(
            collection, model, tmp_path / "exp", seeds=2, splits=splits, device="cpu", **changes
        )
    assert len(reported) == 1
    assert len(opened) == 1  # no seed changes what both start from
    assert pooled["seeds"] == [5, 6]
    alone = hn.train_ance_tele(
        collection, model, tmp_path / "six", splits=splits, device="cpu", **changes | {"seed": 6}
    )
    assert alone == json.loads((tmp_path / "exp/seed-6/results.json").read_text())
    singles = [json.loads((tmp_path / f"exp/seed-{seed}/results.json").read_text()) for seed in (5, 6)]
    values = [single["test"]["final"]["RR@10"] for single in singles]
    assert pooled["test"]["final"]["RR@10"]["values"] == values
    assert pooled["test"]["final"]["RR@10"]["mean"] == pytest.approx(np.mean(values))
    assert json.loads((tmp_path / "exp/results.json").read_text()) == pooled
    assert hn.verify(tmp_path / "exp")["whole"]
    with pytest.raises(ArtifactError, match="SEVERAL_SEEDS"):
        hn.train_ance_tele(collection, model, tmp_path / "exp", splits=splits, device="cpu", **changes)
    with pytest.raises(SettingsError, match="give one of them, such as"):
        hn.inspect(tmp_path / "exp", collection)
    with pytest.raises(ArtifactError, match=r"SEVERAL_SEEDS.*name one of them"):
        hn.evaluate(tmp_path / "exp")


def test_an_experiment_takes_no_folder_of_another_kind(world, trained, tmp_path):
    with pytest.raises(ArtifactError, match="EXISTS") as caught:
        check_experiment(world[0].path, 1)
    assert caught.value.status == 2
    with pytest.raises(ArtifactError, match="ONE_SEED"):
        check_experiment(trained[0], 2)
    for name in ("cache", ".lock"):  # what an experiment leaves that was stopped at its very beginning
        (tmp_path / "begun").mkdir(exist_ok=True)
        (tmp_path / "begun" / name).touch()
    check_experiment(tmp_path / "begun", 1)
    check_experiment(tmp_path / "new", 1)
    assert not (tmp_path / "new").exists()


def test_nothing_new_lies_in_an_artefact_which_may_be_replaced_as_a_whole(world, tmp_path):
    inside = world[0].path / "exp"
    line = r"EXISTS: this place lies in a collection, .*; give a path outside of it"
    with pytest.raises(SettingsError, match=line):
        hn.train_star(*world, inside, device="cpu")
    with pytest.raises(SettingsError, match=line):
        hn.encode(*world, inside, device="cpu")
    assert not inside.exists()
    inside = shutil.copytree(world[0].path, tmp_path / "collection") / "exp"
    inside.mkdir()
    write_settings(inside, {})  # one that was begun by an earlier version goes on
    check_experiment(inside, 1)


def test_a_plan_checks_and_writes_nothing(world, tmp_path):
    collection, model = world
    settings = hn.settings_of("ance-tele", **SMALL)
    plan = hn.plan("ance-tele", collection, model, tmp_path / "exp", settings=settings)
    assert plan["settings"]["steps"] == 3
    assert [row["steps"] for row in plan["episodes"]] == [2, 3]
    assert {plan["origins"][name] for name in SMALL} == {"as set"}
    assert not (tmp_path / "exp").exists()
    for name, given, unused in (
        ("warmup", {"steps": [3]}, {"epochs", "min_steps", "max_steps"}),
        ("warmup", {}, set()),
        ("ance-tele", {"steps": 3}, {"epochs"}),  # the bounds hold for the first episode
        ("ance-tele", {"steps": 3, "first_steps": 2}, {"epochs", "first_epochs", "min_steps", "max_steps"}),
    ):
        told = hn.plan(name, collection, model, preset="finetune", **given)["origins"]
        assert {one for one, said in told.items() if said.endswith(", and not used: steps are given")} == {
            one for one in unused if one in told
        }
        assert not unused or unused & {*told}
    with pytest.raises(SettingsError, match="UNKNOWN_SPLIT"):
        hn.plan("ance-tele", collection, model, settings=settings, splits=hn.Splits(train="tain"))
    with pytest.raises(ArtifactError, match="WRONG_KIND"):
        hn.plan("ance-tele", collection, model, settings=settings, negatives=collection.path)
    with pytest.raises(SettingsError, match="MODEL_NOT_FOUND"):
        hn.plan("ance-tele", collection, "nowhere/at/all", settings=settings)


def test_a_mined_pool_can_begin_an_experiment(world, tmp_path):
    collection, model = world
    pool = hn.mine(collection, None, tmp_path / "pool", sources=["bm25"], depth=10, count=4)
    hn.train_ance_tele(
        collection, model, tmp_path / "exp", negatives=tmp_path / "pool", device="cpu", **SMALL | {"episodes": 1}
    )
    used = load_pool(tmp_path / "exp/episodes/1/negatives")
    assert used.passage_rows.tolist() == pool.passage_rows.tolist()


def test_mining_from_an_unknown_source_is_refused(world, tmp_path):
    with pytest.raises(SettingsError, match="UNKNOWN_SOURCE: there is no source 'bn25'; did you mean 'bm25'"):
        hn.mine(world[0], None, tmp_path / "pool", sources=["bn25"])


def test_a_pool_without_a_training_query_is_refused(world, tmp_path):
    collection, model = world
    hn.mine(collection, None, tmp_path / "pool", split="test", sources=["bm25"], depth=10, count=4)
    with pytest.raises(
        InputError, match=r"pool: NO_NEGATIVES: this pool of \d+ queries has no negative of the \d+"
    ):
        hn.plan("ance-tele", collection, model, negatives=tmp_path / "pool", device="cpu", **SMALL)


# ---------------------------------------------------------------- places and words


def test_places_are_checked_before_anything_is_computed(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for place in ("file", "file/below", "file/far/below"):
        with pytest.raises(SettingsError, match="NOT_A_FOLDER"):
            check_folder(tmp_path / place)
    for place in ("file", "dangling"):
        with pytest.raises(ArtifactError, match="EXISTS"):
            check_new(tmp_path / place)
    with pytest.raises(SettingsError, match="NOT_A_FILE"):
        check_file(tmp_path)
    check_file(tmp_path / "file")
    check_folder(tmp_path / "new/far/below")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "file"]


def test_words_are_checked_and_the_nearest_is_named():
    assert one_of("--dtype", "float16", ("float16", "float32")) == "float16"
    with pytest.raises(SettingsError, match="did you mean 'float16'"):
        one_of("--dtype", "float61", ("float16", "float32"))


def test_an_experiment_in_use_is_found_at_once(tmp_path):
    check_free(tmp_path)
    with lease(tmp_path), pytest.raises(BusyError):
        check_free(tmp_path)
    check_free(tmp_path)


@pytest.mark.parametrize(
    ("recipe", "number", "name", "value"),
    [
        ("warmup", 2, "negatives", [2]),
        ("warmup", [1, 3], "negatives", [1, 3]),
        ("star", 2, "negatives_per_query", 2),
        ("ance-tele", 2, "passages_reference", [3]),
    ],
)
def test_a_number_of_negatives_is_no_pool(world, recipe, number, name, value):
    more = {"mixtures": ["bm25", "bm25"]} if recipe == "warmup" else {}
    task = prepare(RECIPES[recipe], *world, None, negatives=number, **more)
    assert getattr(task.settings, name) == value
    assert task.given.pool is None


def test_a_number_of_negatives_where_there_are_none_is_refused(world):
    with pytest.raises(Faults, match="BAD_SETTING: adore has no negatives;"):
        prepare(RECIPES["adore"], *world, None, negatives=2)


def test_a_single_passage_or_a_single_query_is_said(tmp_path, world):
    texts = [("p1", "", "one text"), ("p2", "", "another text")]
    one = hn.Collection.from_lists(texts[:1], {"q1": "a", "q2": "b"}, {"train": {"q1": ["p1"], "q2": ["p1"]}})
    with pytest.raises(InputError, match="NO_NEGATIVES: the collection has a single passage"):
        prepare(RECIPES["warmup"], one, world[1], None, mixtures=["in_batch"])
    two = hn.Collection.from_lists(texts, {"q1": "a"}, {"train": {"q1": ["p1"]}})
    with pytest.raises(SettingsError, match=r"keep|dev"):  # a preset that chooses by dev has none to choose by
        prepare(RECIPES["warmup"], two, world[1], None, preset="finetune")
    task = prepare(RECIPES["warmup"], two, world[1], None, mixtures=["in_batch"])
    assert task.data.dev is None
    assert "dev none: there is only one training query, and none can be held out" in task.data.chosen
