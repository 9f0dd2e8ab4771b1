"""AR2 with refreshes beside training: results as in turn except for the lag, also after kills; and refusals."""

import json
import os
import random
import re
import signal
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hardneg as hn
from faults.forked import Forked, fork, supervise_forks
from hardneg import cli, settings_of
from hardneg.errors import ArtifactError, Faults, PeerError, SettingsError
from hardneg.experiment.layout import Layout
from hardneg.experiment.names import RANKER
from hardneg.process.signals import stop_flag
from hardneg.recipes.ar2.beside import Item, items_of
from hardneg.recipes.ar2.settings import Ar2
from hardneg.recipes.roles import jobs, supervision
from hardneg.storage.artifacts import is_published
from hardneg.training.stage import RETRIEVER
from processes import DIE, DIE_RANK, command_of, die_at, forked, started, wait
from worlds.tiny_world import COMMON, one_thread  # noqa: F401

SETTINGS = COMMON | {
    "iterations": 3,
    "retriever_steps": 3,
    "ranker_steps": 2,
    "first_ranker_steps": 2,
    "negatives_per_query": 3,
    "ranker_queries_per_step": 6,
    "first_ranker_queries_per_step": 6,
    "ranker_learning_rate": 1e-3,
    "ranker_max_length": 24,
    "rerank_depth": 6,
    "measures": "RR@10",
    "warmup": 1,
}
BESIDE = SETTINGS | {"mode": "async-fixed"}
ORDERS = ("ranker-first", "retriever-first")
WEIGHTS = [f"{name}/model.safetensors" for name in ("model", "ranker", "first-ranker")]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Roles are forks of this process, and one that was killed begins again soon."""
    supervise_forks(monkeypatch)
    monkeypatch.setattr(supervision, "BACKOFF", (0.05,))
    monkeypatch.setattr(stop_flag, "signal", None)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # its threads do not survive a fork


def train(world, out, settings=BESIDE, **changes):
    return hn.train_ar2(world.collection, world.model, out, device="cpu", **settings | changes)


def files_of(out):
    """The bytes of all that must not depend on how it came about."""
    found = [out / name for name in (*WEIGHTS, "metrics.jsonl", "results.json")]
    found += sorted(out.glob("episodes/1/negatives/v*/*.npy")) + sorted(out.glob("episodes/1/runs*/**/*.npy"))
    return {str(path.relative_to(out)): path.read_bytes() for path in found}


def lagging(order):
    """A function in place of ``Ar2.version_of``, where training stops for refreshes and these come late."""

    def version_of(self, model, step):
        steps = self.ranker_steps if model == RANKER else self.retriever_steps
        return max(step // steps + (model == RANKER and order == "retriever-first") - 1, 0)

    return version_of


def dying(role, module, name, count, *, once=True):
    """What a new process does first: if it is this role, it is killed at a call of a function, once or always."""

    def prepare():
        read = jobs.read_job

        def reading(stream):
            job = read(stream)
            marker = Path(job.out) / "died"
            if job.role == role and not (once and marker.exists()):
                marker.touch()
                die_at(module, name, count)
            return job

        jobs.read_job = reading

    return staticmethod(prepare)


@contextmanager
def roles_forked():
    """Within it roles are forks of this process, also for what a module shares."""
    with pytest.MonkeyPatch.context() as patch:
        supervise_forks(patch)
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        yield patch


@pytest.fixture(scope="module", params=ORDERS)
def both(request, world, tmp_path_factory):
    """An experiment in turn whose refreshes come an iteration late, and that with refreshes beside training."""
    root, order = tmp_path_factory.mktemp(request.param), request.param
    with roles_forked() as patch:
        results = train(world, root / "beside", order=order)
        patch.setattr(Ar2, "version_of", lagging(order))
        late = train(world, root / "late", SETTINGS, order=order)
    return root, order, results, late


@pytest.fixture(scope="module")
def undisturbed(world, tmp_path_factory):
    """What is left of an experiment that nothing disturbed."""
    out = tmp_path_factory.mktemp("undisturbed") / "exp"
    with roles_forked():
        train(world, out)
    return files_of(out)


# ---------------------------------------------------------------- equal


def test_it_is_training_in_turn_with_refreshes_an_iteration_late(both):
    root, order, results, late = both
    beside, in_turn = files_of(root / "beside"), files_of(root / "late")
    for name in (*WEIGHTS, "metrics.jsonl"):
        assert beside[name] == in_turn[name], name
    versions = [json.loads(line)["negative_version"] for line in beside["metrics.jsonl"].splitlines()][2:]
    ranker = {"ranker-first": (0, 0, 1), "retriever-first": (0, 1, 2)}[order]
    turns = [([ranker[k]] * 2, [max(k - 1, 0)] * 3) for k in range(3)]
    assert versions == [v for a, b in turns for v in (a + b if order == "ranker-first" else b + a)]
    assert beside.keys() <= in_turn.keys()
    made = [f"episodes/1/negatives/v000{k}" for k in range({"ranker-first": 2, "retriever-first": 3}[order])]
    assert [
        name.removesuffix("/scores.npy") for name in beside if "negatives/v" in name and "scores" in name
    ] == made
    for name in beside.keys() - {"results.json"}:
        assert beside[name] == in_turn[name], name
    assert list(results["test"]) == list(late["test"])
    for part in sorted(results.keys() | late.keys()):
        assert results[part] == late[part], part


def test_the_lag_and_the_refreshes_do_matter_here(both, world, tmp_path):
    root, order, *_ = both
    pools = [np.load(root / f"beside/episodes/1/negatives/v000{k}/scores.npy") for k in (0, 1)]
    assert pools[0].tobytes() != pools[1].tobytes()
    train(world, tmp_path / "exp", SETTINGS, order=order)
    name = "model/model.safetensors"
    assert (tmp_path / "exp" / name).read_bytes() != (root / "late" / name).read_bytes()


def test_models_that_were_published_to_mine_with_are_deleted(both):
    root, *_ = both
    assert [path.name for path in root.glob("beside/models/*") if is_published(path)] == []
    assert hn.verify(root / "beside")["whole"]


def test_a_wait_is_in_the_timing_and_the_timeline_is_drawn(both):
    root, *_ = both
    rows = [json.loads(line) for line in (root / "beside/timing.jsonl").read_text().splitlines()]
    assert "version 0 of the candidates" in [row.get("what") for row in rows if row["stage"] == "wait"]
    assert {row["stage"] for row in rows} >= {"encode", "search", "mine", "train"}
    mined = [row["version"] for row in rows if row["stage"] == "mine"]
    assert mined == [*range(len(mined))]
    assert len(mined) > 1
    assert Layout(root / "beside").timeline.is_file()


def test_settings_of_old_experiments_stay_what_they_were():
    assert "mode" not in Ar2().result_values()
    assert Ar2(mode="async-fixed").result_values()["mode"] == "async-fixed"
    assert Ar2().roles == ()
    assert list(Ar2(mode="async-fixed").roles) == ["trainer", "inferencer"]


def test_what_the_inferencer_does_and_the_versions_that_steps_draw_from():
    settings = Ar2(mode="async-fixed", iterations=3, ranker_steps=2, retriever_steps=3)
    pairs = [Item(0), Item(0, 0), Item(1), Item(1, 1), Item(0, 1), Item(2), Item(2, 2), Item(0, 2)]
    assert items_of(settings) == pairs
    assert [item.by for item in pairs if item.ranker is not None] == [
        "first-ranker",
        "ranker",
        "ranker-1",
        "ranker",
        "ranker-2",
    ]
    assert [settings.version_of(RETRIEVER, step) for step in range(9)] == [0] * 6 + [1] * 3
    assert [settings.version_of(RANKER, step) for step in range(6)] == [0] * 4 + [1] * 2
    assert settings.refreshes == 1
    other = settings.model_copy(update={"order": "retriever-first"})
    assert [other.version_of(RETRIEVER, step) for step in range(9)] == [0] * 6 + [1] * 3
    assert [other.version_of(RANKER, step) for step in range(6)] == [0, 0, 1, 1, 2, 2]
    assert other.refreshes == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{"keep": "best"}, {"rerank_depth": 0}, {"examine": "judged", "dev_passages": 2}, {"iterations": 5}],
)
def test_so_it_is_with_other_settings_also_after_a_kill(world, tmp_path, monkeypatch, caplog, changes):
    monkeypatch.setattr(Forked, "prepare", dying("trainer", "hardneg.training.stage", "save_checkpoint", 7))
    results = train(world, tmp_path / "beside", **changes)
    assert "the trainer was stopped (by SIGKILL); it is started again" in caplog.text
    monkeypatch.setattr(Ar2, "version_of", lagging("ranker-first"))
    late = train(world, tmp_path / "late", SETTINGS, **changes)
    for name in (*WEIGHTS, "metrics.jsonl"):
        assert (tmp_path / "beside" / name).read_bytes() == (tmp_path / "late" / name).read_bytes(), name
    assert results["test"] == late["test"]
    assert list(results["dev"]) == list(late["dev"])
    assert hn.verify(tmp_path / "beside")["whole"]


@pytest.mark.slow
def test_a_given_ranker_plays_from_the_start(both, world, tmp_path, monkeypatch):
    root, order, *_ = both
    ranker = {"ranker": root / "beside/first-ranker", "order": order}
    train(world, tmp_path / "exp", **ranker)
    assert not (tmp_path / "exp/first-ranker").exists()
    rows = [(path / "metrics.jsonl").read_text().splitlines() for path in (tmp_path / "exp", root / "beside")]
    assert rows[0] == rows[1][2:]


# ---------------------------------------------------------------- stopped, killed


@pytest.fixture(scope="module")
def learned(world, tmp_path_factory):
    """Settings with which the retriever learns and its first iteration is the best on dev, and the whole training.

    Processors round in different ways, so which seed leads there depends on the machine.
    """
    changes = {"order": "retriever-first", "keep": "best", "balance": 0.0, "retriever_steps": 6}
    changes |= {"learning_rate": 1e-4, "ranker_learning_rate": 1e-4}
    for seed in range(SETTINGS["seed"], SETTINGS["seed"] + 12):
        whole = tmp_path_factory.mktemp("learned") / "whole"
        kept = train(world, whole, SETTINGS, **changes, seed=seed)["kept"]
        if (kept["state"], kept["beats_untrained"]) == ("iteration-1", True):
            return changes | {"seed": seed}, whole
    pytest.fail("no seed has its best iteration first")


@pytest.mark.slow
@pytest.mark.parametrize(("call", "number"), [("rename", 20), ("rename", 40), ("fsync", 210), ("fsync", 330)])
def test_killed_in_turn_and_begun_again_the_best_iteration_is_kept(world, learned, tmp_path, call, number):
    changes, whole = learned

    def work():
        die_at("os", call, number)
        train(world, tmp_path / "exp", SETTINGS, **changes)
        return 0

    assert os.waitstatus_to_exitcode(os.waitpid(fork(work)[0], 0)[1]) == -signal.SIGKILL
    assert not (tmp_path / "exp/results.json").exists()
    train(world, tmp_path / "exp", SETTINGS, **changes)
    assert files_of(tmp_path / "exp") == files_of(whole)
    assert hn.verify(tmp_path / "exp")["whole"]


def check_whole(out, undisturbed):
    """It ended as it does undisturbed, and left nothing that only roles need."""
    found = files_of(out)
    assert found.keys() == undisturbed.keys()
    assert [name for name in found if found[name] != undisturbed[name]] == []
    assert [path for path in out.glob("models/*") if is_published(path)] == []
    assert hn.verify(out)["whole"]


KILLED = {
    "the trainer at a checkpoint in D0's warm-up": ("trainer", "hardneg.training.stage:save_checkpoint:1"),
    "the trainer within a turn": ("trainer", "hardneg.training.stage:save_checkpoint:5"),
    "the trainer before it publishes a ranker": ("trainer", "hardneg.recipes.ar2.beside:save_ranker:2"),
    "the trainer before it publishes a retriever": ("trainer", "hardneg.recipes.ar2.beside:save_encoder:1"),
    "the inferencer before the first runs": ("inferencer", "hardneg.recipes.ar2.beside:search_state:1"),
    "the inferencer at a refresh": ("inferencer", "hardneg.recipes.training_run:mine_candidates:2"),
    "the inferencer before a state's entropy": ("inferencer", "hardneg.recipes.ar2.pipeline:keep_sharpness:2"),
    "the inferencer before it deletes a model": ("inferencer", "hardneg.recipes.ar2.beside:remove:2"),
    "the inferencer at a re-ranked run": ("inferencer", "hardneg.diagnostics.reranked:save_run:3"),
}


@pytest.mark.parametrize(
    "what", [name if "refresh" in name else pytest.param(name, marks=pytest.mark.slow) for name in KILLED]
)
def test_a_role_that_is_killed_begins_again_and_nothing_changes(
    world, undisturbed, tmp_path, monkeypatch, caplog, what
):
    role, place = KILLED[what]
    monkeypatch.setattr(Forked, "prepare", dying(role, *place.split(":")))
    train(world, tmp_path / "exp")
    assert f"the {role} was stopped (by SIGKILL); it is started again" in caplog.text
    check_whole(tmp_path / "exp", undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["fsync", "rename"])
@pytest.mark.parametrize("role", ["trainer", "inferencer"])
def test_killed_wherever_it_publishes_nothing_changes(
    world, undisturbed, tmp_path, monkeypatch, caplog, role, call
):
    least = {"trainer": {"fsync": 150, "rename": 25}, "inferencer": {"fsync": 350, "rename": 60}}[role][call]
    for number in random.Random(f"{role} {call}").sample(range(1, least), int(os.environ.get("KILLS", "2"))):
        caplog.clear()
        monkeypatch.setattr(Forked, "prepare", dying(role, "os", call, number))
        train(world, tmp_path / f"{number}")
        assert f"the {role} was stopped (by SIGKILL); it is started again" in caplog.text
        check_whole(tmp_path / f"{number}", undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "after", ["episodes/1/negatives/v0000", "episodes/1/checkpoint", "episodes/1/negatives/v0001"]
)
def test_stopped_by_a_signal_and_begun_again_it_ends_in_the_same_bytes(world, undisturbed, tmp_path, after):
    out = tmp_path / "exp"
    arguments = [
        *command_of(world.collection.path, world.model, out, BESIDE, "ar2"),
        "--device=cpu",
        "--threads=1",
    ]

    def start():
        with open(tmp_path / "log", "a") as log:
            return fork(lambda: cli.run(arguments), stderr=log.fileno())[0]

    def end(pid):
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    pid, until = start(), time.monotonic() + 600
    while not any(out.glob(f"{after}/**/manifest.json")):
        assert not os.waitpid(pid, os.WNOHANG)[0], (tmp_path / "log").read_text()
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(pid, signal.SIGTERM)
    assert end(pid) == 75, (tmp_path / "log").read_text()
    assert not (out / "results.json").exists()
    assert end(start()) == 0, (tmp_path / "log").read_text()
    assert files_of(out) == undisturbed
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_roles_alone_do_the_same_without_a_supervisor(world, undisturbed, tmp_path):
    out = tmp_path / "exp"
    arguments = [
        *command_of(world.collection.path, world.model, out, BESIDE, "ar2"),
        "--device=cpu",
        "--threads=1",
    ]
    pids = [fork(lambda role=role: cli.run([*arguments, "--role", role]))[0] for role in ("trainer", "inferencer")]
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0, 0]
    assert not (out / "results.json").exists()
    train(world, out)
    assert files_of(out) == undisturbed


# ---------------------------------------------------------------- each role a group of processes

ROLES = ("trainer", "inferencer")
LOST = {
    "one that searches": ("1", "hardneg.search.parts:search_part:4"),
    "the first, before it publishes a refresh": ("0", "hardneg.recipes.training_run:save_pool:2"),
}


@pytest.fixture
def calm(world):
    """Each process draws a dropout of its own, so that groups equal one process only without it."""
    return replace(world, model=world.calm)


@pytest.fixture(scope="module")
def alone(world, tmp_path_factory):
    """The experiment whose two roles are a process each, and its results."""
    out = tmp_path_factory.mktemp("alone") / "exp"
    with roles_forked():
        return out, train(replace(world, model=world.calm), out)


def rows_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def check_equal(calm, out, alone):
    """The steps are those of one process for each role, but for rounding; the command measures what is left."""
    assert not (out / "results.json").exists()
    results = train(calm, out)
    for row, other in zip(rows_of(out), rows_of(alone[0]), strict=True):
        assert row.pop("model") == other.pop("model")
        assert row == pytest.approx(other, rel=1e-3, abs=2e-5)
    assert list(results["test"]) == list(alone[1]["test"])
    assert hn.verify(out)["whole"]


@pytest.mark.slow
def test_two_groups_train_and_mine_as_two_processes_do(calm, alone, tmp_path):
    out = tmp_path / "exp"
    arguments = command_of(calm.collection.path, calm.model, out, BESIDE, "ar2")
    groups = [started(2, [*arguments, "--role", role], tmp_path / f"log-{role}") for role in ROLES]
    statuses = [[wait(child) for child in group] for group in groups]
    assert statuses == [[0, 0], [0, 0]], [(tmp_path / f"log-{role}").read_text() for role in ROLES]
    check_equal(calm, out, alone)


@pytest.mark.slow
@pytest.mark.parametrize("what", LOST)
def test_one_that_is_lost_among_those_who_mine_costs_a_refresh_and_not_the_trainer(calm, alone, tmp_path, what):
    out, (rank, place) = tmp_path / "exp", LOST[what]
    arguments = command_of(calm.collection.path, calm.model, out, BESIDE, "ar2")

    def group(role, log, **environment):
        return started(2, [*arguments, "--role", role], tmp_path / log, **environment)

    trainer = group("trainer", "log-trainer")
    first = [wait(child) for child in group("inferencer", "log", **{DIE: place, DIE_RANK: rank})]
    assert first == ([-9, 8] if rank == "0" else [8, -9]), (tmp_path / "log").read_text()
    assert (tmp_path / "log").read_text().count("PEER_LOST") == 1
    assert all(os.waitpid(child, os.WNOHANG) == (0, 0) for child in trainer), "it waits for the refresh"
    again = [wait(child) for child in group("inferencer", "log-again")]
    assert again == [0, 0], (tmp_path / "log-again").read_text()
    assert [wait(child) for child in trainer] == [0, 0], (tmp_path / "log-trainer").read_text()
    check_equal(calm, out, alone)


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize("role", ["trainer", "inferencer"])
def test_a_role_that_dies_again_and_again_ends_it_in_one_line(world, tmp_path, monkeypatch, role):
    monkeypatch.setattr(Forked, "prepare", dying(role, "hardneg.recipes.roles.taking", "lease", 1, once=False))
    with pytest.raises(PeerError, match=rf"ROLE_FAILED: the {role} ended 6 times in a row \(by SIGKILL\)") as one:
        train(world, tmp_path / "exp")
    assert one.value.status == PeerError.status == 8
    assert "\n" not in str(one.value)
    assert not (tmp_path / "exp/results.json").exists()


def test_a_fault_of_a_role_has_its_own_status(world, tmp_path):
    with pytest.raises(PeerError, match=r"the trainer ended with exit status \d+ \(NOT_FINITE: ") as one:
        train(world, tmp_path / "exp", learning_rate=1e30)
    assert one.value.status == int(re.search(r"exit status (\d+)", str(one.value))[1]) != 8


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"iterations": 1}, "mode = async-fixed with iterations = 1: no step would draw from a refresh"),
        ({"iterations": 2}, "mode = async-fixed with iterations = 2: no step would draw from a refresh"),
        (
            {"iterations": 1, "order": "retriever-first"},
            "mode = async-fixed with iterations = 1: no step would draw from a refresh",
        ),
        ({"mode": "async"}, "mode = \"async\"; it should be 'sync' or 'async-fixed'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values, said):
    with pytest.raises(Faults, match=said) as refused:
        settings_of("ar2", **{"mode": "async-fixed"} | values)
    assert "\n" not in str(refused.value)


def test_what_makes_sense_is_not():
    settings_of("ar2", mode="async-fixed", iterations=3)
    settings_of("ar2", mode="async-fixed", iterations=2, order="retriever-first")
    settings_of("ar2", mode="async-fixed", game="irgan", balance=1.0)


def test_several_processes_do_not_watch_over_roles(world, tmp_path):
    arguments = command_of(world.collection.path, world.model, tmp_path / "exp", BESIDE, "ar2")
    assert forked(2, arguments, tmp_path / "log") == [2, 2]
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 2
    assert all(line.startswith("ONE_PROCESS: ar2 starts its roles from one process") for line in lines)
    assert all("--role trainer" in line for line in lines)
    assert not (tmp_path / "exp").exists()


def test_the_mode_of_an_experiment_stays(both, world):
    root, order, *_ = both
    with pytest.raises(ArtifactError, match=r"mode: 'async-fixed' -> 'sync'; use .*mode=.async-fixed"):
        train(world, root / "beside", SETTINGS, order=order)
    with pytest.raises(ArtifactError, match=r"mode: 'sync' -> 'async-fixed'; use .*mode=.sync"):
        train(world, root / "late", BESIDE, order=order)


def test_groups_are_for_the_mode_that_has_roles(world, tmp_path):
    with pytest.raises(SettingsError, match="leave it out, or set mode = async-fixed"):
        train(world, tmp_path / "exp", SETTINGS, trainer_devices=2)
