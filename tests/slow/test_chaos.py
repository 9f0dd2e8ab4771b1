"""Trainer, inferencer and supervisor are killed and stopped at any moment; the end is the same, byte for byte."""

import hashlib
import itertools
import json
import os
import random
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from faults.forked import Forked, fork, supervise_forks
from hardneg import cli
from hardneg.data.importing import open_data
from hardneg.models.rankers import new_ranker, save_ranker
from hardneg.models.source import ModelSource
from hardneg.negatives.pool import load_pool
from hardneg.negatives.scores import lowest_positive
from hardneg.process.signals import stop_flag
from hardneg.recipes.roles import jobs, supervision
from hardneg.records import owners
from hardneg.storage.artifacts import read_manifest
from worlds.tiny_world import tiny_collection, tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("flushes")]

EVENTS = int(os.environ.get("CHAOS_EVENTS", "30"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
WHOLE = bool(os.environ.get("CHAOS_WHOLE"))
SHARES = 8 if WHOLE else 1
SETTINGS = {
    "mode": "async-fixed",
    "refresh_every": 5,
    "refreshes": 4,
    "queries_per_step": 8,
    "depth": 20,
    "learning_rate": 1e-3,
    "token_budget": 512,
    "precision": "float32",
    "checkpoint_every": 3,
    "silent_seconds": 2.5,
    "measures": "RR@10",
}
AR2 = {
    "mode": "async-fixed",
    "iterations": 4,
    "retriever_steps": 4,
    "ranker_steps": 3,
    "first_ranker_steps": 3,
    "negatives_per_query": 3,
    "queries_per_step": 8,
    "ranker_queries_per_step": 6,
    "first_ranker_queries_per_step": 6,
    "ranker_learning_rate": 1e-3,
    "ranker_max_length": 24,
    "rerank_depth": 6,
} | {name: value for name, value in SETTINGS.items() if name not in ("mode", "refresh_every", "refreshes")}
RECIPES = {"ance": SETTINGS, "ar2": AR2}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("chaos")
    collection = tiny_collection(root / "collection")
    tiny_model(root / "model", collection)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        supervise_forks(patch)
        patch.setattr(supervision, "BACKOFF", (0.05, 0.3, 1.0, 2.0, 4.0))
        patch.setattr(supervision, "BEGIN_SECONDS", 5.0)
        patch.setenv("TOKENIZERS_PARALLELISM", "false")  # its threads do not survive a fork
        patch.setenv("HARDNEG_CACHE", str(root / "cache"))
        patch.setattr(stop_flag, "signal", None)
        yield root
    torch.set_num_threads(threads)


def command(world, out, *beside, recipe="ance", **changes):
    arguments = ["train", recipe, "--data", world / "collection", "--model", world / "model", "--out", out]
    settings = RECIPES[recipe] | changes
    if settings["mode"] == "sync":
        del settings["silent_seconds"]  # nobody waits there
    for name, value in settings.items():
        arguments += ["--set", f"{name}={value}"]
    arguments += ["--cache", world / "shared", "--threads", "1", *beside]
    return [str(argument) for argument in arguments]


class Supervisor:
    """``hardneg train`` of a recipe that has roles, in a process of its own, its stderr in a file."""

    def __init__(self, world, out, *beside, **changes):
        self.out, self.status = out, None
        arguments = command(world, out, *beside, **changes)
        with open(f"{out}.log", "ab") as log:
            self.pid, _ = fork(lambda: cli.run(arguments), stderr=log.fileno())

    def running(self):
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status is None

    def finish(self, seconds=600):
        end = time.monotonic() + seconds
        while self.running():
            assert time.monotonic() < end, f"deadlock: {self.said()[-2000:]}"
            time.sleep(0.02)
        return self.status

    def said(self):
        return Path(f"{self.out}.log").read_text()

    def role(self, name):
        """The process id of a role that holds its lease, or None."""
        try:
            pid = int(re.search(r"process (\d+)", (self.out / "roles" / name / ".lock").read_text())[1])
            os.kill(pid, 0)
            return pid
        except (OSError, TypeError):
            return None


POOLS = ("versions", "episodes/1/negatives")
TIMES = ("timing.jsonl",)


def digests(out):
    """What must not depend on what happened on the way."""
    kept = ["*model/*.safetensors", "*ranker/*.safetensors", "*.jsonl", "results.json"]
    kept += [f"{folder}/v*/{name}.npy" for folder in POOLS for name in ("passage_rows", "scores")]
    found = sorted(path for name in kept for path in out.glob(name) if path.name not in TIMES)
    assert {out / "model/model.safetensors", out / "metrics.jsonl", out / "results.json"} < {*found}
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


@pytest.fixture(scope="module")
def ends(world):
    """By recipe, what an experiment ends in that nothing disturbs."""
    done = {recipe: Supervisor(world, world / recipe, recipe=recipe) for recipe in RECIPES}
    for supervisor in done.values():
        assert supervisor.finish() == 0, supervisor.said()
    return {recipe: digests(supervisor.out) for recipe, supervisor in done.items()}


@pytest.fixture
def undisturbed(ends):
    return ends["ance"]


def is_gone(pid):
    """Whether a process is no more, or only waits to be collected."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def crawl(pid, seconds):
    """Let a process have a tenth of the time only."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.09)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)


def disturb(supervisor, kind, draw):
    """Make one event happen; True if there was somebody for it to happen to."""
    who = {"i": "inferencer", "t": "trainer"}.get(kind[0])
    pid = supervisor.pid if who is None else supervisor.role(who)
    if pid is None or is_gone(pid):
        return False
    children = [supervisor.role(role) for role in ("trainer", "inferencer")]
    if kind == "s-kill" and draw.random() < 0.3 and children[1]:
        os.kill(children[1], signal.SIGSTOP)  # a stopped role must not outlive its supervisor either
    try:
        if kind[2:] == "slow":
            crawl(pid, draw.uniform(0.5, 2.0))
        else:
            number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}[kind[2:]]
            os.kill(pid, number)
    except ProcessLookupError:
        return False
    if who is None:
        supervisor.finish(300)
        end = time.monotonic() + 60
        while any(child and not is_gone(child) for child in children):
            assert time.monotonic() < end, f"an orphan is left after {kind}"
            time.sleep(0.05)
    return True


KINDS = ("i-kill", "i-kill", "i-stop", "i-slow", "t-kill", "t-slow", "s-kill", "s-term", "t-term")


@pytest.mark.parametrize("recipe", RECIPES)
def test_whatever_happens_the_end_is_the_same(world, ends, tmp_path, recipe):
    draw, happened, number = random.Random(SEED), 0, 0
    most = EVENTS if recipe == "ance" or WHOLE else EVENTS // 2
    while happened < most:
        number += 1
        out, few = tmp_path / f"run-{number}", number % 2 == 0 and recipe == "ance"
        settings = {"recipe": recipe} | ({"keep_versions": 1} if few else {})
        supervisor, mine = Supervisor(world, out, **settings), 0
        while supervisor.running() or supervisor.status:
            if not supervisor.running():
                assert supervisor.status in (-signal.SIGKILL, 75), supervisor.said()[-3000:]
                supervisor = Supervisor(world, out, **settings)
            time.sleep(draw.uniform(0.05, 0.8))
            if mine < 12 and happened < most and supervisor.running():
                event = disturb(supervisor, draw.choice(KINDS), draw)
                mine += event
                happened += event
        assert supervisor.finish() == 0, supervisor.said()[-3000:]
        assert "Traceback" not in supervisor.said(), supervisor.said()[-3000:]
        found = digests(out)
        assert found.items() <= ends[recipe].items()
        assert len(ends[recipe]) - len(found) == (2 if few else 0)  # the two arrays of the first version


def die_at(number, role):
    """In a new process: end it without warning at its ``number``-th rename or flush, if it is this role."""
    calls = 0

    def counting(real):
        def call(*args, **named):
            nonlocal calls
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **named)

        return call

    read = jobs.read_job

    def reading(stream):
        job = read(stream)
        marker = Path(job.out) / "died"
        if job.role == role and not marker.exists():
            marker.touch()
            for name in ("fsync", "rename", "replace"):
                setattr(os, name, counting(getattr(os, name)))
        return job

    jobs.read_job = reading


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("role", ["inferencer", "trainer"])
def test_killed_at_a_publish_step_nothing_torn_is_used(world, undisturbed, tmp_path, monkeypatch, role, share):
    every = itertools.count(1 + share, SHARES)  # all steps that there are, side by side
    for number in every if WHOLE else random.Random(SEED).sample(range(1, 200), 5):
        monkeypatch.setattr(Forked, "prepare", staticmethod(lambda number=number: die_at(number, role)))
        supervisor = Supervisor(world, tmp_path / f"{role}-{number}")
        assert supervisor.finish() == 0, supervisor.said()[-3000:]
        assert digests(supervisor.out) == undisturbed
        died = "was stopped (by SIGKILL)" in supervisor.said()
        if WHOLE and not died:  # there is no step of this number
            break
        assert died


def test_async_never_waits_for_a_dead_inferencer_but_beyond_max_staleness(world, tmp_path, monkeypatch):
    def hopeless():
        read = jobs.read_job

        def reading(stream):
            job = read(stream)
            versions = Path(job.out) / "versions/v0000/manifest.json"
            if job.role == "inferencer" and versions.exists():
                os.kill(os.getpid(), signal.SIGKILL)
            return job

        jobs.read_job = reading

    # it lives for the first version only
    first = Supervisor(world, tmp_path / "free", mode="async", refreshes=1, refresh_every=4)
    while not (tmp_path / "free/versions/v0000/manifest.json").exists():
        time.sleep(0.01)
    monkeypatch.setattr(Forked, "prepare", staticmethod(hopeless))
    assert first.finish() == 0
    stale = Supervisor(world, tmp_path / "stale", mode="async", max_staleness=5, refresh_every=5, stale="stop")
    status = stale.finish()
    assert status == 8, stale.said()[-2000:]
    assert "STALE: the newest negatives are 6 steps old, at most 5 are allowed" in stale.said()
    assert "the trainer ended with exit status 8" in stale.said()


def test_a_second_trainer_is_refused(world, tmp_path):
    out = tmp_path / "exp"
    supervisor = Supervisor(world, out)
    while supervisor.role("trainer") is None:
        time.sleep(0.02)
        assert supervisor.running()
    os.kill(supervisor.role("trainer"), signal.SIGSTOP)
    pid, _ = fork(lambda: cli.run([*command(world, out), "--role", "trainer"]))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 6
    assert supervisor.finish() == 0, supervisor.said()[-3000:]


def test_roles_alone_do_the_same_without_a_supervisor(world, undisturbed, tmp_path):
    out = tmp_path / "exp"
    pids = [fork(lambda role=role: cli.run([*command(world, out), "--role", role]))[0] for role in roles_of()]
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0, 0]
    assert not (out / "results.json").exists()
    assert Supervisor(world, out).finish() == 0
    assert digests(out) == undisturbed


def roles_of():
    from hardneg.recipes.ance.recipe import RECIPE

    return list(RECIPE.roles)


# ---------------------------------------------------------------- frozen models


@pytest.fixture(scope="module")
def beside(world):
    """Frozen models by what they do: options and settings."""
    encoder = tiny_model(world / "teacher", open_data(world / "collection"), seed=5)
    save_ranker(new_ranker(ModelSource.at(world / "model"), seed=3, max_length=24), world / "ranker")
    taught = {"distill": "kl", "absolute_margin": 0.001}
    alike = {"filter_by": "start", "top": 9, "distill": "margin_mse", "guide_mask": "true"}
    return {
        "a ranker filters, a bi-encoder teaches": (
            ["--filter-by", world / "ranker", "--teacher", encoder],
            taught,
        ),
        "a bi-encoder filters, and teaches": (["--filter-by", encoder], taught),
        "the start filters, masks and teaches": ([], alike),
    }


@pytest.mark.parametrize(
    "what",
    [
        "a ranker filters, a bi-encoder teaches",
        "a bi-encoder filters, and teaches",
        "the start filters, masks and teaches",
    ],
)
def test_frozen_models_beside_trainer_and_inferencer(world, beside, tmp_path, monkeypatch, what):
    options, settings = beside[what]
    settings = settings | {"refreshes": 2}
    done = {
        mode: Supervisor(world, tmp_path / mode, *options, mode=mode, **settings)
        for mode in ("sync", "async-fixed")
    }
    for one in done.values():
        assert one.finish() == 0, one.said()[-3000:]
    rows = [
        [json.loads(line) for line in (one.out / "metrics.jsonl").read_text().splitlines()]
        for one in done.values()
    ]
    every = SETTINGS["refresh_every"]
    assert [row["loss"] for row in rows[1][:every]] == [row["loss"] for row in rows[0][:every]]
    assert len(rows[1]) == 3 * every
    versions = sorted((tmp_path / "async-fixed/versions").glob("v*"))
    pools = [load_pool(path) for path in versions]
    assert len(pools) > 1
    for path, pool in zip(versions, pools, strict=True):
        assert pool.ranker == read_manifest(path).inputs["filter_by"]
        if "top" in settings:
            assert np.diff(pool.offsets).max() <= settings["top"]
        else:
            below = lowest_positive(pool)[owners(pool.offsets)] - settings["absolute_margin"]
            assert (pool.ranker_scores <= below + 1e-6).all()
    for role, number in (("inferencer", 40), ("trainer", 60)):
        monkeypatch.setattr(Forked, "prepare", staticmethod(lambda role=role, at=number: die_at(at, role)))
        killed = Supervisor(world, tmp_path / role, *options, **settings)
        assert killed.finish() == 0, killed.said()[-3000:]
        assert "was stopped (by SIGKILL)" in killed.said()
        assert digests(killed.out) == digests(done["async-fixed"].out)
