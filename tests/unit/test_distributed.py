"""Ranks, shards and the flag that asks to stop."""

import logging
import os
import pty
import re
import signal
import subprocess
import sys
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest

from hardneg import cli
from hardneg.errors import Interrupted, PeerError, ResourceError, SettingsError
from hardneg.process import distributed, launch, meeting, signals, threads
from hardneg.process.agreement import check_told_alike
from hardneg.process.distributed import group, rank, shard_of, world_size
from hardneg.process.signals import StopFlag, stop_flag
from processes import free_port, together


def test_alone_there_is_one_shard(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert (rank(), world_size(), shard_of(None)) == (0, 1, (0, 1))


def test_the_launcher_says_which_shard_and_the_option_wins(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert (rank(), world_size(), shard_of(None), shard_of("1/3")) == (2, 4, (2, 4), (1, 3))


@pytest.mark.parametrize(
    "text", ["", "1", "/", "1/", "/2", "2/2", "3/2", "0/0", "-1/2", "a/b", "1/2/3", "²/³", "0.5/2"]
)
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(SettingsError) as raised:
        shard_of(text)
    assert (raised.value.code, raised.value.status) == ("BAD_SHARD", 2)


def test_the_first_signal_asks_and_the_second_aborts():
    flag = StopFlag()
    assert not flag
    flag.check()
    flag._receive(signal.SIGINT, None)
    assert flag
    with pytest.raises(Interrupted) as raised:
        flag.check()
    assert raised.value.status == 75
    assert (
        str(raised.value) == "STOPPED: stopped by SIGINT; run the same command again; it goes on from what is kept"
    )
    with pytest.raises(KeyboardInterrupt):
        flag._receive(signal.SIGINT, None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_installed_flag_hears_signals(number, monkeypatch):
    monkeypatch.setattr(signals, "leave_terminal", lambda: None)  # pytest's own
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who runs the tests may ignore it
    flag = StopFlag()
    try:
        flag.install()
        signal.raise_signal(number)
        assert flag.signal == number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_a_closed_terminal_stops_in_order_unless_it_was_said_to_be_ignored(tmp_path):
    work = """
import sys, time
from pathlib import Path
from hardneg.process.signals import stop_flag
stop_flag.install()
print("ready", flush=True)
for _ in range(200):
    time.sleep(0.05)
    if stop_flag:
        print("a line that nobody reads any more", flush=True)
        Path(sys.argv[1]).write_text("saved")
        break
"""
    saved = tmp_path / "saved"
    child, terminal = pty.fork()
    if not child:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who runs the tests may ignore it
        os.execv(sys.executable, [sys.executable, "-c", work, str(saved)])
    assert b"ready" in os.read(terminal, 100)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert saved.read_text() == "saved"
    ignoring = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); from hardneg.process.signals import stops"
    )
    found = subprocess.run(
        [sys.executable, "-c", f"{ignoring}; print(len(stops()))"], capture_output=True, text=True, check=True
    )
    assert found.stdout == "2\n"


# ---------------------------------------------------------------- what the launcher says


@pytest.fixture
def launched(monkeypatch):
    """A function that sets the launcher's variables, and no others of them."""

    def launch(**environment):
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return launch


def opened():
    with group():
        pass


@pytest.mark.parametrize(
    ("work", "environment", "said"),
    [
        (rank, {"RANK": "first"}, "RANK = 'first', not a number from 0 on"),
        (rank, {"RANK": "-1", "WORLD_SIZE": "2"}, "RANK = '-1', not a number"),
        (rank, {"RANK": ""}, "RANK = '', not a number"),
        (world_size, {"WORLD_SIZE": "0"}, "WORLD_SIZE = '0', not a number from 1 on"),
        (world_size, {"WORLD_SIZE": "two"}, "WORLD_SIZE = 'two', not a number from 1 on"),
        (lambda: shard_of(None), {"RANK": "2", "WORLD_SIZE": "2"}, "RANK = 2, but WORLD_SIZE is 2"),
        (lambda: shard_of(None), {"RANK": "1"}, "RANK = 1, but WORLD_SIZE is not set"),
        (lambda: shard_of(None), {"WORLD_SIZE": "2"}, "WORLD_SIZE = 2, but RANK is not set"),
        (opened, {"RANK": "0", "WORLD_SIZE": "2"}, "but MASTER_ADDR and MASTER_PORT is not set"),
        (opened, {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, "but MASTER_PORT is not set"),
    ],
)
def test_half_of_what_a_launcher_says_is_refused(launched, work, environment, said):
    launched(**environment)
    with pytest.raises(SettingsError, match=f"BAD_LAUNCH.*{said}.*torchrun") as raised:
        work()
    assert raised.value.status == 2


@pytest.mark.parametrize("number", ["0", "1"])
def test_a_world_that_never_assembles_is_not_waited_for_for_ever(launched, monkeypatch, number):
    pytest.importorskip("torch.distributed")  # loaded before the clock starts
    monkeypatch.setattr(meeting, "ASSEMBLY", timedelta(seconds=1))
    launched(RANK=number, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    begun = time.monotonic()
    with pytest.raises(
        PeerError, match=r"NOT_TOGETHER: 2 processes did not all arrive at 127\.0\.0\.1:"
    ) as raised:
        opened()
    assert raised.value.status == 8
    assert len(raised.value.lines) == 1
    assert time.monotonic() - begun < 30


def test_a_signal_ends_the_waiting(launched, monkeypatch):
    launched(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    monkeypatch.setattr(meeting, "ASSEMBLY", timedelta(seconds=20))
    monkeypatch.setattr(stop_flag, "signal", signal.SIGTERM)
    with pytest.raises(Interrupted):
        opened()


@pytest.mark.parametrize(
    ("worlds", "statuses"), [((2, 3), [8, 8]), ((2, 2, 4, 4), [0, 0, 8, 8])], ids=lambda given: f"{given}"
)
def test_processes_that_were_told_of_different_worlds_do_not_wait_for_each_other(
    tmp_path, monkeypatch, worlds, statuses
):
    """Rank 0 takes two for all, and others wait for more: these end long before the time to assemble."""
    pytest.importorskip("torch.distributed")
    monkeypatch.setattr(meeting, "SETTLED_SECONDS", 1.0)
    log, refused, begun = tmp_path / "log", statuses.count(8), time.monotonic()

    def lines():
        return log.read_text().splitlines()

    def work(rank):
        os.environ["WORLD_SIZE"] = str(worlds[rank])
        time.sleep(rank // 3)  # rank 3 comes after rank 0 has called, rank 2 perhaps before
        try:
            with group():  # rank 0 serves the store as long as it lives
                while len(lines()) < refused and time.monotonic() < begun + 60:
                    time.sleep(0.1)
        except PeerError as fault:
            os.write(2, f"{fault}\n".encode())
            return fault.status
        return 0

    assert together(len(worlds), work, log) == statuses
    assert time.monotonic() - begun < 60
    assert len(lines()) == refused
    told = f"(some were told WORLD_SIZE = {worlds[0]} and some {worlds[-1]})"
    assert all(told in line for line in lines())


@pytest.mark.parametrize("lost", [0, 1, None])
def test_processes_meet_in_a_store_that_has_what_those_before_them_wrote(tmp_path, monkeypatch, lost):
    """As under ``torchrun --max-restarts``, whose store outlives its processes; ``lost`` was killed before."""
    dist = pytest.importorskip("torch.distributed")
    kept = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setattr(distributed, "LINGER_SECONDS", 0.0)
    monkeypatch.setattr(meeting, "ASSEMBLY", timedelta(seconds=20))

    def attempt(number):
        def work(rank):
            os.environ["MASTER_PORT"] = str(kept.port)
            if number:
                time.sleep(0.3 * (rank == (number + 1) % 2))  # one of them finds only what is old
            with group():
                if (number, rank) == (0, lost):
                    os.kill(os.getpid(), signal.SIGKILL)
                try:
                    assert distributed.by_leader(lambda: number) == number
                except PeerError:
                    return 8
            return 0

        return work

    statuses = [together(2, attempt(number), tmp_path / "log") for number in range(3)]
    assert statuses[1:] == [[0, 0], [0, 0]], (tmp_path / "log").read_text()
    assert statuses[0] == [{lost: -9, None: 0}.get(rank, 0 if lost is None else 8) for rank in range(2)]


def test_one_that_died_before_all_had_come_is_not_taken_for_the_one_that_comes_in_its_place(tmp_path):
    """Rank 0 first finds the name that the dead process left, and waits for one that answers."""
    dist = pytest.importorskip("torch.distributed")
    kept = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def work(rank):
        if rank:
            time.sleep(0.5)
        os.environ.update(MASTER_PORT=str(kept.port), TORCHELASTIC_USE_AGENT_STORE="True")
        with group():
            distributed.barrier()
        return 0

    for left in (1, 0):
        kept.set(f"hardneg/name/{left}", "of a dead one")
        assert together(2, work, tmp_path / "log") == [0, 0], (tmp_path / "log").read_text()


def test_what_a_dead_rank_0_called_last_is_not_believed_at_once(tmp_path, monkeypatch):
    """An elastic launcher starts two processes after one: rank 1 is beyond the world of that one."""
    dist = pytest.importorskip("torch.distributed")
    kept = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    kept.set("hardneg/call", "of-a-dead-one 1")
    monkeypatch.setattr(meeting, "ASSEMBLY", timedelta(seconds=20))

    def work(rank):
        time.sleep(0.5 * (rank == 0))
        os.environ.update(MASTER_PORT=str(kept.port), TORCHELASTIC_USE_AGENT_STORE="True")
        opened()
        return 0

    assert together(2, work, tmp_path / "log") == [0, 0], (tmp_path / "log").read_text()


def test_what_another_process_never_tells_is_not_waited_for_for_ever(launched, monkeypatch):
    dist = pytest.importorskip("torch.distributed")
    launched(RANK="0", WORLD_SIZE="2")
    monkeypatch.setattr(meeting, "ASSEMBLY", timedelta(seconds=0.2))
    store = dist.HashStore()
    store.set("device/0", "GPU")
    with pytest.raises(RuntimeError, match="not all told their device"):
        meeting.told_by_all(store, "device")
    monkeypatch.setattr(meeting, "ASSEMBLY", timedelta(seconds=20))
    monkeypatch.setattr(stop_flag, "signal", signal.SIGTERM)
    with pytest.raises(Interrupted):
        meeting.told_by_all(store, "device")


def test_a_group_waits_longer_for_its_processes_than_they_had_to_assemble(tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "ASSEMBLY", timedelta(seconds=3))

    def work(rank):
        with group():
            time.sleep(5 * rank)
            distributed.barrier()
        return 0

    assert together(2, work, tmp_path / "log") == [0, 0], (tmp_path / "log").read_text()


def test_processes_with_different_settings_all_refuse_to_work(tmp_path):
    told = [{"seed": 1, "rate": 0.001, "same": None}, {"seed": 1, "rate": 0.05, "same": None}]

    def work(rank):
        with group():
            check_told_alike({"seed": 1})
            with pytest.raises(SettingsError) as caught:
                check_told_alike(told[rank])
        expected = (
            "RANKS_DIFFER: process 1 has rate = 0.05, but process 0 has 0.001; start all processes with the same"
        )
        assert str(caught.value).startswith(expected)
        assert caught.value.status == 2
        return 0

    assert together(2, work, tmp_path / "log") == [0, 0], (tmp_path / "log").read_text()
    check_told_alike({"alone": 1})


def test_one_process_of_a_machine_warns_unless_each_does_work_of_its_own(launched, capsys):
    for number, each, expected in (("0", False, 1), ("1", False, 0), ("1", True, 1)):
        launched(RANK=number, WORLD_SIZE="2", LOCAL_RANK=number, LOCAL_WORLD_SIZE="2")
        root = logging.getLogger()
        before, root.handlers = root.handlers, []
        try:
            cli.set_logging()
            launch.let_speak(each=each)
            logging.getLogger("hardneg").warning("look")
            logging.getLogger("hardneg").error("worse")
        finally:
            root.handlers = before
        said = capsys.readouterr().err
        assert (said.count("look"), said.count("worse")) == (expected, 1)


def test_memory_is_for_all_processes_of_a_machine(launched):
    from hardneg.cli.options import Machine
    from hardneg.process.memory import limit_memory, limit_of, require

    launched(RANK="1", WORLD_SIZE="8", LOCAL_RANK="1", LOCAL_WORLD_SIZE="4")
    Machine(None, None, None, "8G", "6G").limit()
    assert (limit_of("cpu"), limit_of("cuda")) == (2 << 30, 6 << 30)
    with pytest.raises(ResourceError, match="MEMORY_TOO_SMALL") as caught:
        require(3 << 30, "a test")
    least = int(re.search(r"give --max-ram (\d+)M or more", str(caught.value))[1])
    Machine(None, None, None, f"{least + 8}M", None).limit()
    require(3 << 30, "a test")
    assert "for each of 4 processes" in str(caught.value)
    limit_memory()


@pytest.mark.parametrize(("devices", "each"), [(0, 12), (1, 3), (2, 6), (3, 6), (4, 12), (8, 12)])
def test_memory_of_a_device_is_for_all_processes_on_it(launched, monkeypatch, devices, each):
    from hardneg.cli.options import Machine
    from hardneg.process.memory import limit_memory, limit_of

    monkeypatch.setattr(threads, "_cuda_devices", lambda: devices)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    launched(RANK="1", WORLD_SIZE="8", LOCAL_RANK="1", LOCAL_WORLD_SIZE="4")
    Machine(None, None, None, None, "12G").limit()
    assert limit_of("cuda") == each << 30
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    Machine(None, None, None, None, "12G").limit()
    assert limit_of("cuda") == each << 30
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")  # another launcher may give each process a device of its own
    Machine(None, None, None, None, "12G").limit()
    assert limit_of("cuda") == (12 if devices == 1 else each) << 30
    limit_memory()


@pytest.mark.parametrize(
    "command",
    [
        "score pool --data d --out other --ranker r",
        "rerank --run run --ranker r --out other --data d",
        "index e --out other",
        "train star --data d --model m --out e --estimate",
        "train star --data d --model m --out e --dry-run",
    ],
)
def test_commands_of_one_process_refuse_to_be_several(launched, hardneg, command):
    launched(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    status, _, said = hardneg(*command.split())
    assert (status, said.count("\n")) == (2, 1)
    assert said.startswith("ONE_PROCESS: ")
    assert "works in one process, but the launcher started 2" in said


def test_the_command_line_says_so_in_one_line(launched, hardneg, tmp_path):
    launched(RANK="x", WORLD_SIZE="2")
    status, _, said = hardneg("import", "pydocs", "--to", tmp_path / "data")
    assert (status, said.count("\n")) == (2, 1)
    assert "BUG" not in said


# ---------------------------------------------------------------- groups on CUDA, which is pretended here


@pytest.mark.parametrize(
    ("ours", "theirs", "own"),
    [("GPU-1", "GPU-2", True), ("GPU-1", "GPU-1", False), ("GPU-1", "", False), ("", "GPU-2", False)],
)
def test_all_processes_agree_on_whether_each_has_a_device(launched, monkeypatch, ours, theirs, own):
    """By the devices themselves: the variables of a launcher may be missing, and machines may differ."""
    torch = pytest.importorskip("torch")
    import torch.distributed as dist

    launched(RANK="0", WORLD_SIZE="2")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=ours))
    store = dist.HashStore()
    store.set("device/1", theirs)
    assert distributed._own_devices(store, bool(ours)) is own
    assert store.get("device/0").decode() == ours


@pytest.mark.parametrize(
    ("own", "fault", "left"), [(True, True, "abort"), (True, False, "destroy"), (False, True, "destroy")]
)
def test_a_process_that_fails_does_not_wait_for_the_kernels_of_the_others(launched, monkeypatch, own, fault, left):
    """``destroy_process_group`` waits for all kernels of NCCL, and so for a process that may be gone."""
    import torch.distributed as dist

    launched(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    done, backends = [], []
    monkeypatch.setattr(distributed, "assemble", dist.HashStore)
    monkeypatch.setattr(distributed, "_own_devices", lambda *_: own)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: backends.append(backend))
    monkeypatch.setattr(dist.distributed_c10d, "_set_pg_timeout", lambda _: None)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: done.append("destroy"))
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", lambda: done.append("abort"))
    if fault:
        with pytest.raises(PeerError), group():
            raise PeerError("PEER_LOST", "gone", "read its message")
    else:
        opened()
    assert (done, backends) == ([left], ["cpu:gloo,cuda:nccl" if own else "gloo"])
    assert distributed.member() == (0, 1)


def test_memory_that_runs_out_in_a_message_is_no_lost_process():
    torch = pytest.importorskip("torch")
    with pytest.raises(torch.OutOfMemoryError), distributed.peers():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_a_new_group_knows_of_no_errand_that_was_left(tmp_path):
    """What a training that was stopped left behind does not end the next one of the same program."""

    def work(rank):
        distributed._astray = True
        with distributed.group():
            assert not distributed._astray
        return 0

    assert together(2, work, tmp_path / "log") == [0, 0], (tmp_path / "log").read_text()
