"""Groups of processes as roles: who may have them, what each is told, and how one that leads a group ends."""

import json
import signal
import sys
import time
from types import SimpleNamespace

import pytest
import torch

import hardneg as hn
from faults.forked import fork
from hardneg.api import prepare
from hardneg.api.recipes import RECIPES
from hardneg.errors import ResourceError, SettingsError
from hardneg.experiment.folder import Experiment
from hardneg.process import memory, progress, threads
from hardneg.process.memory import limit_memory, limit_of, require
from hardneg.process.torchrun import end_as
from hardneg.recipes.roles import jobs, supervision, taking
from hardneg.recipes.roles.jobs import Job, jobs_of
from hardneg.recipes.roles.peers import heartbeat_of
from hardneg.storage.lease import Observer
from processes import wait

ROLES = ("trainer", "inferencer")


def groups(recipe="ance", *, role=None, trainer=2, inferencer=None, device="cpu", **changes):
    settings = hn.settings_of(recipe, **({"mode": "async"} if recipe == "ance" else {}) | changes)
    counts = dict(zip(ROLES, (trainer, inferencer), strict=True))
    return prepare.role_groups(RECIPES[recipe], settings, role, counts, device)


def test_a_group_that_is_not_counted_is_one_process():
    assert groups(trainer=6, inferencer=2) == {"trainer": 6, "inferencer": 2}
    assert groups() == {"trainer": 2, "inferencer": 1}
    assert groups(trainer=None, inferencer=3, mode="async-fixed") == {"trainer": 1, "inferencer": 3}
    assert groups(trainer=None) == {}
    assert groups("star", trainer=None) == {}


@pytest.mark.parametrize(
    ("recipe", "changes", "line"),
    [
        (
            "ar2",
            {},
            "ar2 has no role 'trainer' with these settings: one process mines and trains in turn; leave it out,",
        ),
        (
            "star",
            {},
            "star has no role 'trainer' with these settings: one process mines and trains in turn; leave it out",
        ),
        ("ance", {"mode": "sync"}, "ance has no role 'trainer' with these settings"),
    ],
)
def test_roles_that_the_settings_lack_are_refused_before_any_work(recipe, changes, line):
    with pytest.raises(SettingsError) as refused:
        prepare.check_processes(RECIPES[recipe], hn.settings_of(recipe, **changes), "trainer")
    assert str(refused.value).startswith(f"NO_ROLE: {line}")
    with pytest.raises(SettingsError, match="ance has no role 'boss'; use trainer, inferencer"):
        prepare.check_processes(RECIPES["ance"], hn.settings_of("ance", mode="async"), "boss")
    prepare.check_processes(RECIPES["ance"], hn.settings_of("ance", mode="async"), "trainer")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"recipe": "star"}, "BAD_SETTING: trainer_devices = 2, but star mines and trains in turn; leave it out"),
        (
            {"mode": "sync"},
            "BAD_SETTING: trainer_devices = 2, but ance with mode = sync mines and trains in turn; leave it out, "
            "or set mode = async",
        ),
        (
            {"role": "trainer"},
            "BAD_SETTING: trainer_devices = 2 with role = trainer, which is one group by itself; "
            "give torchrun that number, or leave the role out",
        ),
        ({"inferencer": 0}, "BAD_SETTING: inferencer_devices = 0; give 1 or more"),
        (
            {"inferencer": 2, "device": "cuda"},
            "NO_DEVICE: trainer_devices = 2, inferencer_devices = 2 need 4 CUDA devices, "
            "but there are 3; ask for fewer, or for the device cpu",
        ),
        (
            {"device": "cuda:1"},
            "BAD_SETTING: trainer_devices = 2 on the device cuda:1 alone; say which ones by CUDA_VISIBLE_DEVICES, "
            "or leave it out",
        ),
    ],
)
def test_groups_that_cannot_be_are_refused_in_a_line(monkeypatch, given, line):
    monkeypatch.setattr(prepare, "visible_devices", lambda: ["0", "1", "5"])
    with pytest.raises(SettingsError) as refused:
        groups(**given)
    assert str(refused.value) == line


def test_torchrun_starts_no_groups(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SettingsError) as refused:
        groups()
    assert str(refused.value).startswith("ONE_PROCESS: trainer_devices = 2, but this process was started by torch")


def test_a_command_and_a_function_take_them(hardneg, tmp_path, monkeypatch):
    from hardneg.api import recipes

    seen = []
    monkeypatch.setattr(recipes, "train", lambda *given, **named: seen.append(named) or {})
    place = ["--data", "d", "--model", "m", "--out", tmp_path / "e"]
    assert hardneg("train", "ance", *place, "--trainer-devices", 6, "--inferencer-devices", 2)[0] == 0
    assert (seen[0]["trainer_devices"], seen[0]["inferencer_devices"]) == (6, 2)
    assert hardneg("train", "star", *place, "--trainer-devices", 6)[0] == 2


# ---------------------------------------------------------------- what each is told


def job(device="cpu", **told):
    empty = {"settings": {}, "splits": {}, "inputs": {}, "cache": None, "draw": {}, "supervised": True}
    return Job("ance", "", "exp", "data", {"device": device, "allow_code": []}, **empty | told)


@pytest.fixture
def devices(monkeypatch):
    def seen(*names):
        monkeypatch.setattr(jobs, "visible_devices", lambda: list(names))

    yield seen
    limit_memory()


def test_each_process_of_a_group_has_a_device_of_its_own(devices):
    devices("0", "1", "2", "5", "GPU-7", "8")
    limit_memory("8G", "6G")
    trainer, inferencer = jobs_of(job("cuda"), ROLES, {"trainer": 3, "inferencer": 2})
    assert (trainer.processes, trainer.devices) == (3, "0,1,2")
    assert (inferencer.processes, inferencer.devices) == (2, "5,GPU-7")
    assert trainer.environment["CUDA_VISIBLE_DEVICES"] == "0,1,2"
    assert (int(trainer.max_ram), trainer.ram_sharers) == (8 * 2**30, 5)
    assert (int(trainer.max_vram), trainer.vram_sharers) == (6 * 2**30, 1)


def test_a_role_whose_share_is_too_small_names_a_limit_of_the_whole_that_would_do(devices, monkeypatch):
    monkeypatch.setattr(memory, "own_memory", lambda: 1 << 30)
    devices("0")

    def share(limit):
        """Take a share of the limit as a role does that `torchrun` started with another on this machine."""
        limit_memory(limit, limit, processes=2)
        (one, _) = jobs_of(job("cuda"), ROLES, {})
        limit_memory(one.max_ram, one.max_vram, processes=one.ram_sharers, vram_processes=one.vram_sharers)
        return limit_of("cpu"), limit_of("cuda")

    assert share("8G") == (2 << 30, 4 << 30)
    with pytest.raises(ResourceError, match="--max-ram leaves 1024 MiB for each of 4 processes") as refused:
        require(3 << 30, "a thing")
    assert "give --max-ram 16384M or more" in refused.value.fix
    share("16384M")
    require(3 << 30, "a thing")
    with pytest.raises(ResourceError, match="give --max-vram 20480M or more"):
        require(10 << 30, "a thing", "cuda")


def test_two_roles_share_a_device_and_have_one_each_where_there_are_two(devices):
    limit_memory(None, "6G")
    devices("0")
    assert [(one.devices, one.vram_sharers) for one in jobs_of(job("cuda"), ROLES, {})] == [(None, 2)] * 2
    devices("3", "1")
    assert [one.devices for one in jobs_of(job("cuda"), ROLES, {})] == ["3", "1"]
    assert [one.devices for one in jobs_of(job("cuda"), ["trainer"], {})] == [None]
    assert [one.devices for one in jobs_of(job("cpu"), ROLES, {})] == [None, None]


def test_processes_share_the_threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    trainer, inferencer = jobs_of(job(), ROLES, {"trainer": 2, "inferencer": 1})
    assert (trainer.threads, inferencer.threads) == (2, 2)
    assert (trainer.environment, inferencer.environment) == ({"OMP_NUM_THREADS": "2"}, {})
    assert [one.threads for one in jobs_of(job(), ROLES, {})] == [3, 3]


def test_devices_keep_the_names_that_they_have_here(monkeypatch):
    monkeypatch.setattr(threads, "_cuda_devices", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert threads.visible_devices() == ["0", "1"]
    monkeypatch.setenv(
        "CUDA_VISIBLE_DEVICES", "GPU-3, 7,-1,2"
    )  # what follows one that is not there does not count
    assert threads.visible_devices() == ["GPU-3", "7"]


def test_the_job_of_a_group_reaches_its_processes(monkeypatch):
    monkeypatch.setattr(jobs, "run_group", lambda arguments, processes: arguments != ["role"] or processes != 3)
    monkeypatch.setattr(jobs.os, "getppid", jobs.os.getpid)  # as if that process were this one's parent
    monkeypatch.setattr(jobs, "die_with_parent", lambda: None)
    monkeypatch.setenv(jobs.JOB, "")
    assert jobs.lead(job(processes=3, threads=2)) == 0
    assert jobs.read_job(sys.stdin) == job(processes=1, threads=2)
    assert jobs.JOB not in jobs.os.environ


# ---------------------------------------------------------------- how it ends


@pytest.mark.parametrize("status", [0, 3, -signal.SIGKILL, -signal.SIGTERM])
def test_the_one_that_leads_ends_as_the_one_that_failed(status):
    assert wait(fork(lambda: end_as(status))[0]) == status


def test_the_fault_of_a_group_is_told_by_the_one_that_has_it():
    worker = object.__new__(supervision.Worker)
    worker.job, worker.process = job(), SimpleNamespace(poll=lambda: 3)
    worker.tail = ["text", "a.tsv:3: BAD_LINE: two columns; give three", "STOPPED: stopped by SIGTERM; resume"]
    with pytest.raises(supervision.RoleFailed, match=r"exit status 3 \(a.tsv:3: BAD_LINE"):
        worker.is_busy()
    worker.tail = ["PEER_LOST: another is gone"]
    with pytest.raises(supervision.RoleFailed, match=r"exit status 3 \(PEER_LOST"):
        worker.is_busy()


def test_a_sign_of_life_of_any_new_process_says_that_a_role_has_begun():
    assert supervision.process_of("12 7 host") == "12" != supervision.process_of("123 1 host")
    assert supervision.process_of("") == ""


def test_a_job_is_json():
    assert Job(**json.loads(json.dumps(job(devices="0,1").__dict__))) == job(devices="0,1")


def test_a_group_lives_while_any_of_its_processes_works(tmp_path, monkeypatch):
    """Rank 0 waits, without a sign of life, until a slower process has encoded its part."""
    experiment = Experiment(tmp_path, tmp_path / "cache")
    monkeypatch.setattr(taking, "is_leader", lambda: False)
    monkeypatch.setattr(taking, "OTHERS_SECONDS", 0.01)
    observer = Observer(heartbeat_of(experiment, "inferencer"))
    with taking.alive(experiment, "inferencer"):
        time.sleep(0.2)
        assert observer.heartbeat.read() == "", "who loads is no sign that work has begun"
        progress.pulse()
        end = time.monotonic() + 30
        while not (first := observer.heartbeat.read()):
            assert time.monotonic() < end
        assert observer.silence() == 0
        time.sleep(0.2)
        assert observer.heartbeat.read() == first, "a process that hangs falls silent"
        progress.wait_for_another()
        assert observer.heartbeat.read() == first, "nor does waiting for one that may hang count"
