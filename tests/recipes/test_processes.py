"""Recipes by several processes: the same losses, gradients and pools as by one; stopped, failing, resumed."""

import importlib
import json
import os
import re
import shutil
import signal
import time
from dataclasses import dataclass

import numpy as np
import pytest
from recorded import RECORDED
from safetensors.numpy import load_file, save_file

import hardneg as hn
from hardneg.experiment.provenance import begun_by
from hardneg.models.rankers import new_ranker, save_ranker
from hardneg.models.source import ModelSource
from hardneg.negatives.pool import load_pool
from hardneg.storage.artifacts import is_published, read_manifest
from hardneg.training.checkpoint import checkpoints
from processes import DIE, FAIL, arrays_of, command_of, finish, forked, launch, run, together, torchrun, wait
from worlds.tiny_world import COMMON, SETTINGS

pytestmark = pytest.mark.slow

POOLS = ("episodes/*/negatives", "episodes/*/negatives/v*", "versions/v*")
WHOLE = SETTINGS | {"store_dtype": "float32"}
LONG = WHOLE | {"episodes": 1, "steps": 60, "stop_step": 50, "checkpoint_every": 1000, "measures": "RR@10"}


def metrics_of(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def weights_of(path):
    """The final weights but for the biases of keys: their gradient is 0, and what moves them is its rounding."""
    found = load_file(path / "model/model.safetensors")
    return np.concatenate([found[name].ravel() for name in sorted(found) if not name.endswith("key.bias")])


def pools_of(path):
    """Every pool that was mined."""
    found = [folder for place in POOLS for folder in path.glob(place) if is_published(folder)]
    return {folder.relative_to(path): arrays_of(folder) for folder in found}


def first_swap(pools, others):
    """The first version of ANCE's negatives whose lists differ in their order; none: one behind the last."""
    versions = sorted(place for place in pools if place.parent.name == "versions")
    equal = [np.array_equal(pools[one]["passage_rows"], others[one]["passage_rows"]) for one in versions]
    return ([*equal, False]).index(False) if versions else np.inf


def check_equal_training(path, one, rel=1e-4):
    """Losses and norms of every step, pools, and final weights.

    Weights that differ in their last bits may swap near ties in a pool. Who trains on such a version of ANCE's
    negatives draws others, and is not compared; the first version is mined by equal weights.
    """
    pools, others = pools_of(path), pools_of(one)
    assert pools.keys() == others.keys() != set()
    swapped = first_swap(pools, others)
    assert swapped > 0
    found, expected = metrics_of(path), metrics_of(one)
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        assert row.keys() == other.keys()
        assert row.pop("model") == other.pop("model")
        if row.get("negative_version", 0) < swapped:
            assert row == pytest.approx(other, rel=rel, abs=2e-5)
    for place in sorted(pools)[: None if swapped == np.inf else swapped + 1]:
        pool, other = pools[place], others[place]
        scores = pool.pop("scores"), other.pop("scores")
        for name, values in other.items():
            assert values.shape == pool[name].shape
            assert np.count_nonzero(values != pool[name]) <= 0.005 * values.size, (place, name)
        np.testing.assert_allclose(*scores, rtol=1e-4)
    if swapped >= len(pools):
        weights, others = weights_of(path), weights_of(one)
        assert np.linalg.norm(weights - others) < 1e-4 * np.linalg.norm(others)


# ---------------------------------------------------------------- alike


def test_processes_that_were_told_different_things_train_nothing(world, tmp_path):
    """Where each machine has its own command, one may have another rate, seed or model."""
    other = tmp_path / "other"
    shutil.copytree(world.model, other)
    weights = load_file(other / "model.safetensors")
    save_file({name: 2 * value for name, value in weights.items()}, other / "model.safetensors")

    for number, (model, changed, said) in enumerate(
        [
            (world.model, {"learning_rate": 0.05}, "learning_rate = 0.05"),
            (world.model, {"seed": 8}, "seed = 8"),
            (world.model, {"steps": 3}, "steps = 3"),
            (other, {}, "model = "),
        ]
    ):
        out, log = tmp_path / f"{number}", tmp_path / f"log-{number}"

        def work(rank, out=out, model=model, changed=changed):
            own = (model, WHOLE | changed) if rank else (world.model, WHOLE)
            return run(command_of(world.collection.path, own[0], out, own[1]))

        assert together(2, work, log) == [2, 2], log.read_text()
        assert f"RANKS_DIFFER: process 1 has {said}" in log.read_text(), log.read_text()
        assert not (out / "metrics.jsonl").exists()


# ---------------------------------------------------------------- equal


@pytest.fixture(scope="module")
def two(world, tmp_path_factory):
    """The experiment of three episodes, by two processes."""
    root = tmp_path_factory.mktemp("two")
    arguments = command_of(world.collection.path, world.calm, root / "exp", WHOLE)
    finish(2, arguments, root / "log")
    return root / "exp", arguments


def test_two_processes_give_the_recorded_losses(two):
    rows = metrics_of(two[0])
    for episode, recorded in enumerate(RECORDED, 1):
        losses = [row["loss"] for row in rows if row["episode"] == episode]
        assert losses == pytest.approx(recorded, abs=1e-4)


def test_two_processes_train_as_one_does(two, whole):
    path, _ = two
    check_equal_training(path, whole.path)
    assert json.loads((path / "results.json").read_text())["test"] == whole.results["test"]
    assert begun_by(path).endswith(" (in 2 processes)")


def test_encoding_was_shared_and_only_the_first_process_wrote(two, whole):
    path, _ = two
    stores = [read_manifest(store) for store in (path / "cache/embeddings").iterdir()]
    assert {manifest.facts["shards"] for manifest in stores} == {6, 8}  # of 92 queries and 120 passages
    assert hn.verify(path)["whole"]
    assert not list(path.rglob(".tmp-*"))
    stages = [(p / "timing.jsonl").read_text().splitlines() for p in (path, whole.path)]
    assert len(stages[0]) == len(stages[1])


def test_a_finished_one_is_left_alone(two, tmp_path):
    path, arguments = two
    times = {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.is_file() and file.name != ".lock"}
    finish(2, arguments, tmp_path / "log")
    written = {"settings.json"}  # it says by which version
    assert [f.name for f in times if f.stat().st_mtime_ns != times[f] and f.name not in written] == []


@pytest.mark.slow
def test_four_processes_some_without_a_text_and_gradient_cache(world, train_only, tmp_path):
    # Steps of 59 queries and of one, whose three texts are fewer than the processes; chunks of a few texts.
    changes = {"episodes": 1, "queries_per_step": 59, "passages_reference": [2], "steps": 4, "stop_step": 2}
    one = train_only(**changes)
    settings = WHOLE | changes | {"gradient_cache": True, "cache_tokens": 64}
    finish(4, command_of(world.collection.path, world.calm, tmp_path / "exp", settings), tmp_path / "log")
    assert [row["queries"] for row in metrics_of(tmp_path / "exp")] == [59, 1, 59, 1]
    check_equal_training(tmp_path / "exp", one.path)


OTHERS = {
    "warmup": {"mixtures": ["bm25+in_batch", "nce"], "steps": [4, 3], "negatives": [2], "warmup": 2},
    "ance": {"refresh_every": 4, "refreshes": 2, "warmup": 2},
    "star": {"steps": 8, "warmup": 2},
    "ranker": {"steps": 8, "warmup": 2, "max_length": 24, "negatives_per_query": 2, "rerank": 6},
    "ar2": {
        "iterations": 2,
        "order": "retriever-first",
        "retriever_steps": 3,
        "ranker_steps": 2,
        "first_ranker_steps": 3,
        "negatives_per_query": 3,
        "ranker_queries_per_step": 6,
        "first_ranker_queries_per_step": 6,
        "ranker_max_length": 24,
        "rerank_depth": 5,
        "warmup": 1,
    },
}


def short(world, recipe, out):
    """The command that trains another recipe without dropout."""
    settings = COMMON | {"measures": "RR@10"} | OTHERS[recipe]
    return command_of(world.collection.path, world.calm, out, settings, recipe)


@pytest.fixture(scope="module")
def alone(world, tmp_path_factory):
    """A function that trains a recipe by one process, once, and gives the experiment."""
    root = tmp_path_factory.mktemp("alone")

    def run(recipe):
        if not (root / recipe).is_dir():
            finish(1, short(world, recipe, root / recipe), root / "log")
        return root / recipe

    return run


@pytest.mark.slow
@pytest.mark.parametrize("recipe", OTHERS)
def test_every_recipe_trains_as_by_one_process(world, alone, tmp_path, recipe):
    finish(2, short(world, recipe, tmp_path / "exp"), tmp_path / "log")
    # Of small losses, the order in which gradients are added up shows: the last step of warmup has one of 0.3.
    check_equal_training(tmp_path / "exp", alone(recipe), rel=5e-4 if recipe == "warmup" else 1e-4)


def test_two_processes_read_the_vectors_of_the_experiment_that_they_start_from(world, tmp_path):
    """And write nothing there; a copy of its model, which has none, is trained as well."""
    finish(1, short(world, "warmup", tmp_path / "first"), tmp_path / "log")
    before = {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "first/cache").rglob("*"))}
    shutil.copytree(tmp_path / "first/model", tmp_path / "copy")
    settings = COMMON | {"measures": "RR@10"} | OTHERS["star"]
    encoded = {}
    for name, model, count in (("beside", "first/model", 2), ("alone", "copy", 1)):
        out = tmp_path / name
        finish(count, command_of(world.collection.path, tmp_path / model, out, settings, "star"), tmp_path / "log")
        rows = [json.loads(line) for line in (out / "timing.jsonl").read_text().splitlines()]
        encoded[name] = sum(row["stage"] == "encode" and row["side"] == "passage" for row in rows)
    check_equal_training(tmp_path / "beside", tmp_path / "alone")
    assert before == {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "first/cache").rglob("*"))}
    assert encoded == {"beside": 1, "alone": 2}  # of the last state, and of the first one too


@pytest.fixture(scope="module")
def frozen_ranker(world):
    place = world.root / "ranker-beside"
    if not place.exists():
        save_ranker(new_ranker(ModelSource.at(world.calm), seed=3, max_length=24), place)
    return place


FROZEN = {
    "a ranker teaches": ("star", "ranker", [], {"distill": "kl"}),
    "a bi-encoder teaches, and the start masks": (
        "warmup",
        "encoder",
        [],
        {"distill": "margin_mse", "guide_mask": True},
    ),
    "a bi-encoder filters, and its kept scores teach": ("star", None, ["encoder"], {"distill": "kl", "top": 9}),
    "a bi-encoder filters and teaches": ("ance", None, ["encoder"], {"distill": "kl", "absolute_margin": 0.001}),
    "a ranker filters, and refreshes are filtered": ("ance", None, ["ranker"], {"absolute_margin": 0.001}),
    "a bi-encoder filters, a ranker teaches": ("ance", "ranker", ["encoder"], {"distill": "kl", "top": 6}),
    "the start filters and teaches": ("star", None, [], {"filter_by": "start", "top": 9, "distill": "kl"}),
    "a bi-encoder filters what two models play with": ("ar2", None, ["encoder"], {"top": 8}),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", FROZEN)
def test_frozen_models_beside_two_processes_do_as_beside_one(world, frozen_ranker, tmp_path, what):
    recipe, teacher, filters, settings = FROZEN[what]
    place = {"ranker": str(frozen_ranker), "encoder": world.model}
    beside = ["--teacher", place[teacher]] if teacher else []
    beside += ["--filter-by", place[filters[0]]] if filters else []
    common = COMMON | {"measures": "RR@10"} | OTHERS[recipe] | settings
    for count in (1, 2):
        arguments = command_of(world.collection.path, world.calm, tmp_path / str(count), common, recipe)
        finish(count, [*arguments, *beside], tmp_path / "log")
    check_equal_training(tmp_path / "2", tmp_path / "1")
    pools = [folder for place in POOLS for folder in (tmp_path / "2").glob(place) if is_published(folder)]
    assert all(load_pool(pool).ranker for pool in pools) == bool(filters or "filter_by" in settings)


@pytest.mark.slow
def test_two_processes_try_learning_rates_as_one_does(world, tmp_path):
    rates = {"learning_rate": [0.3, 3e-3], "mixtures": ["bm25+in_batch"], "steps": [8], "measures": "RR@10"}
    for count in (1, 2):
        arguments = command_of(world.collection.path, world.calm, tmp_path / str(count), COMMON | rates, "warmup")
        finish(count, arguments, tmp_path / "log")
    one, two = tmp_path / "1", tmp_path / "2"
    check_equal_training(two, one)
    tried, expected = (json.loads((path / "results.json").read_text())["tried"] for path in (two, one))
    assert tried["learning_rate"] == expected["learning_rate"] == 3e-3
    assert tried["of"] == pytest.approx(expected["of"], abs=0.05)


@pytest.mark.slow
def test_four_processes_train_a_retriever_and_a_ranker_as_one_does(world, alone, tmp_path):
    finish(4, short(world, "ar2", tmp_path / "exp"), tmp_path / "log")
    check_equal_training(tmp_path / "exp", alone("ar2"))
    assert hn.verify(tmp_path / "exp")["whole"]


# ---------------------------------------------------------------- stopped, failing


@dataclass
class Long:
    """An experiment with dropout, long enough to be stopped."""

    arguments: list
    path: object


def long_in(world, folder):
    return Long(command_of(world.collection.path, world.model, folder / "exp", LONG), folder / "exp")


@pytest.fixture(scope="module")
def straight(world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    straight = long_in(world, folder)
    finish(2, straight.arguments, folder / "log")
    return straight


def check_same_bytes(path, straight):
    assert (path / "metrics.jsonl").read_bytes() == (straight.path / "metrics.jsonl").read_bytes()
    assert (path / "results.json").read_bytes() == (straight.path / "results.json").read_bytes()
    for name in ("model", "episodes/1/model", "episodes/1/negatives"):
        assert read_manifest(path / name).digest == read_manifest(straight.path / name).digest


def wait_for_steps(path, count, process):
    end = time.monotonic() + 300
    while not (path / "metrics.jsonl").is_file() or len(metrics_of(path)) < count:
        assert process.poll() is None, "it ended too soon"
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


@pytest.mark.slow
def test_stopped_by_a_signal_all_stop_at_one_step_and_resume(world, straight, tmp_path):
    stopped = long_in(world, tmp_path)
    process = torchrun(2, stopped.arguments, tmp_path / "log")
    wait_for_steps(stopped.path, 10, process)
    process.send_signal(signal.SIGTERM)
    begun = time.monotonic()
    assert process.wait(120) != 0
    assert time.monotonic() - begun < 30
    said = (tmp_path / "log").read_text()
    assert said.count("STOPPED: stopped by SIGTERM") == 2, said
    (checkpoint,) = checkpoints(stopped.path / "episodes/1/checkpoint")
    made = int(checkpoint.name.removeprefix("step-"))
    assert 10 <= made < 60
    assert len(metrics_of(stopped.path)) == made
    finish(2, stopped.arguments, tmp_path / "log")
    check_same_bytes(stopped.path, straight)


HELD = {  # where rank 0 is when the signal comes, while it measures a state between two steps
    "search": "hardneg.search.parts:PartIndex.keys",
    "encode": "hardneg.search.embeddings:_encode_shard",
}


def held_while_it_measures(arguments, what, flag):
    """What a process does: rank 0 waits for a signal while it measures the first state between two steps."""

    def work(rank):
        from hardneg.process.signals import stop_flag
        from hardneg.recipes.measured_states import DevEvaluator

        module, _, name = HELD[what].partition(":")
        owner, measuring = importlib.import_module(module), []
        *within, name = name.split(".")
        for one in within:
            owner = getattr(owner, one)

        def evaluate(self, encoder, made, do=DevEvaluator.evaluate):
            measuring.append(made)
            do(self, encoder, made)
            measuring.clear()

        do_it = getattr(owner, name)

        def held(*args):
            if measuring:
                flag.touch()
                while stop_flag.heard is None:
                    time.sleep(0.02)
            return do_it(*args)

        DevEvaluator.evaluate = evaluate
        if rank == 0:
            setattr(owner, name, held)
        return run(arguments)

    return work


@pytest.mark.parametrize("who", [(0, 1), (0,)])
@pytest.mark.parametrize("what", HELD)
def test_stopped_while_a_state_is_measured_between_two_steps_they_end_and_go_on(
    world, straight, tmp_path, what, who
):
    settings = LONG | {"measure_every": 20}
    arguments = command_of(world.collection.path, world.model, tmp_path / "exp", settings)
    flag = tmp_path / "flag"
    children = launch(2, held_while_it_measures(arguments, what, flag), tmp_path / "log")
    end = time.monotonic() + 120
    while not flag.exists():
        assert time.monotonic() < end, (tmp_path / "log").read_text()
        time.sleep(0.02)
    for rank in who:
        os.kill(children[rank], signal.SIGTERM)
    statuses = [wait(child, 60) for child in children]
    assert statuses == ([75, 75] if who == (0, 1) else [75, 8]), (tmp_path / "log").read_text()
    assert [one.name for one in checkpoints(tmp_path / "exp/episodes/1/checkpoint")] == ["step-0000020"]
    finish(2, arguments, tmp_path / "log")
    assert (tmp_path / "exp/metrics.jsonl").read_bytes() == (straight.path / "metrics.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "rank", "how", "status"),
    [("star", 0, "fault", 3), ("star", 1, "kill", -9), ("ance", 0, "kill", -9)],
)
def test_one_that_ends_ends_the_others_and_one_process_finishes(
    world, alone, tmp_path, monkeypatch, recipe, rank, how, status
):
    arguments = short(world, recipe, tmp_path / "exp")
    monkeypatch.setenv(FAIL, f"{rank}:5:{how}")
    statuses = forked(2, arguments, tmp_path / "log")
    assert (statuses[rank], statuses[1 - rank]) == (status, 8)
    said = (tmp_path / "log").read_text()
    assert said.count("PEER_LOST: another process of this command is gone") == 1
    assert said.count("A_FAULT") == (how == "fault")
    assert "Traceback" not in said
    assert checkpoints(tmp_path / "exp/episodes/1/checkpoint")[-1].name == "step-0000004"
    monkeypatch.delenv(FAIL)
    finish(1, arguments, tmp_path / "log")
    check_equal_training(tmp_path / "exp", alone(recipe))


BETWEEN = {
    "the sample of vectors": "hardneg.diagnostics.search_state:keep_sample:2",
    "the pairwise errors": "hardneg.diagnostics.search_state:errors_of_state:2",
    "the entropy": "hardneg.recipes.ar2.pipeline:keep_sharpness:2",
    "the entropy of the last state": "hardneg.recipes.ar2.pipeline:keep_sharpness:3",
    "the candidates": "hardneg.recipes.training_run:mine_candidates:2",
    "the re-ranked runs": "hardneg.diagnostics.reranked:save_run:3",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", BETWEEN)
def test_killed_between_a_states_runs_and_what_follows_two_processes_go_on(
    world, alone, tmp_path, monkeypatch, what
):
    arguments = short(world, "ar2", tmp_path / "exp")
    monkeypatch.setenv(DIE, BETWEEN[what])
    assert forked(2, arguments, tmp_path / "log") == [-signal.SIGKILL, 8]
    monkeypatch.delenv(DIE)
    finish(2, arguments, tmp_path / "log")
    check_equal_training(tmp_path / "exp", alone("ar2"))
    assert hn.verify(tmp_path / "exp")["whole"]


def check_killed_pair(world, tmp_path, monkeypatch, recipe, settings, *, die):
    """Two processes without a test split, one killed at ``die``, then both begun again, train as one does."""
    arguments = {
        count: [
            *command_of(world.collection.path, world.calm, tmp_path / count, settings, recipe),
            "--test",
            "none",
        ]
        for count in ("one", "two")
    }
    finish(1, arguments["one"], tmp_path / "log")
    monkeypatch.setenv(DIE, die)
    assert forked(2, arguments["two"], tmp_path / "log") == [-signal.SIGKILL, 8]
    monkeypatch.delenv(DIE)
    finish(2, arguments["two"], tmp_path / "log")
    check_equal_training(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
def test_dev_among_some_passages_by_two_processes_one_killed_before_the_last_entropy(world, tmp_path, monkeypatch):
    settings = COMMON | {"measures": "RR@10"} | OTHERS["ar2"]
    settings |= {"dev_passages": 2, "keep": "best", "examine": "judged"}
    check_killed_pair(
        world, tmp_path, monkeypatch, "ar2", settings, die="hardneg.recipes.ar2.pipeline:keep_sharpness:3"
    )
    one, two = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two"))
    for state, found in one["dev"].items():  # equal texts tie, or nearly do: shards decide their last bits
        assert two["dev"][state] == pytest.approx(found, abs=5e-3), state
    assert two["entropy"]["dev"] == pytest.approx(one["entropy"]["dev"], abs=1e-4)


@pytest.mark.slow
def test_mining_among_some_passages_by_two_processes_one_killed_before_the_pool(world, tmp_path, monkeypatch):
    settings = COMMON | {"measures": "RR@10", "store_dtype": "float32", "steps": 6, "queries_per_step": 4}
    settings |= {"mine_passages": 2, "dev_passages": 2, "keep": "best", "examine": "judged", "depth": 5}
    check_killed_pair(
        world, tmp_path, monkeypatch, "star", settings, die="hardneg.recipes.training_run:save_pool:1"
    )
    assert hn.verify(tmp_path / "two")["whole"]


@pytest.mark.slow
def test_under_torchrun_a_killed_process_is_named_and_the_rest_is_resumed(world, straight, tmp_path):
    killed = long_in(world, tmp_path)
    killed.arguments[:] = [re.sub(r"(?<=--set=checkpoint_every=)\d+", "7", one) for one in killed.arguments]
    assert "--set=checkpoint_every=7" in killed.arguments
    process = torchrun(2, killed.arguments, tmp_path / "log", **{FAIL: "1:17:kill"})
    assert process.wait(300) == 1  # the launcher's own
    said = (tmp_path / "log").read_text()
    assert "exitcode  : -9" in said.split("Root Cause")[1]
    assert said.count("STOPPED: stopped by SIGTERM") == 1, said  # the launcher has asked the other
    assert said.count("Traceback") == 1, said  # the launcher's
    assert checkpoints(killed.path / "episodes/1/checkpoint")[-1].name == "step-0000014"
    finish(2, killed.arguments, tmp_path / "log")
    check_same_bytes(killed.path, straight)


@pytest.mark.slow
def test_under_torchrun_all_processes_are_started_again_and_go_on_from_the_checkpoint(world, straight, tmp_path):
    """The launcher's store still has what the processes before them wrote, while these meet in it."""
    killed = long_in(world, tmp_path)
    killed.arguments[:] = [re.sub(r"(?<=--set=checkpoint_every=)\d+", "7", one) for one in killed.arguments]
    again = {"PET_STANDALONE": "1", "PET_MAX_RESTARTS": "1"}
    process = torchrun(2, killed.arguments, tmp_path / "log", **again, **{FAIL: "1:17:kill"})
    status, said = process.wait(300), (tmp_path / "log").read_text()
    assert status == 0, said
    assert "NOT_TOGETHER" not in said
    check_same_bytes(killed.path, straight)
