"""The benchmarks' harness, with contenders of a few microseconds."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

TOYS = """
import time
from pathlib import Path

import numpy as np


def toy(size, name, answer=lambda: {"sum": np.array(3)}, seconds=0.0):
    def run():
        with open(size["_journal"], "a") as stream:
            stream.write(name)
        time.sleep(seconds)
        print("a library's chatter")
        return answer()

    return run


def ours(size):
    return toy(size, "A")


def peer(size):
    return toy(size, "B", lambda: lambda: {"sum": np.array(3)}, 0.05)  # arrays that only the gate needs


def wrong(size):
    return toy(size, "C", lambda: {"sum": np.array(4)})


def starting(size):
    import subprocess, sys

    work = "data = bytearray(100 << 20); sum(range(3_000_000))"
    return toy(size, "S", lambda: (subprocess.run([sys.executable, "-c", work]), {"sum": np.array(3)})[1])


def absent(size):
    import a_package_that_nobody_has


def elsewhere(size):
    from contest import NotHere

    raise NotHere("this processor is another one")


def broken(size):
    raise ValueError("this peer is broken")


def killed(size):
    import os

    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def contest(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "material", raising=False)  # a package of this name draws the documentation
    module = importlib.import_module("contest")
    yield module
    del sys.modules["contest"]


@pytest.fixture
def hold(contest, tmp_path, monkeypatch):
    """Hold a contest between some of the toys; its outcome and who ran when."""
    (tmp_path / "toys.py").write_text(TOYS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def gate(found):
        sums = {name: int(arrays["sum"]) for name, arrays in found.items()}
        assert len(set(sums.values())) == 1, sums
        return sums

    def held(names, **more):
        journal = tmp_path / "journal"
        size = {"n": 2, "_journal": str(journal)}
        contenders = {name: f"toys:{name}" for name in names}
        outcome = contest.hold(contest.Contest("toy", contenders, size, gate, (10.0, "sums/s"), **more), 1)
        return outcome, journal.read_text()

    return held


def test_processes_that_a_contender_starts_count(hold, contest, capsys):
    outcome, _ = hold(["starting"], repeats=2)
    (row,) = outcome["contenders"]
    assert row["processor_s"] > 0.02
    assert row["started_peak_mib"] > 100
    contest.show(outcome)
    assert f"+ {row['started_peak_mib']} MiB" in capsys.readouterr().out


def test_contenders_take_turns_and_are_compared(contest, hold, capsys):
    outcome, journal = hold(["ours", "peer", "absent", "elsewhere"], repeats=3, goals={"peer": 2.0}, rate=1e9)
    assert journal == "AB" + "AB" + "BA" + "AB"  # once for warmth, then there and back
    assert outcome["gate"] == {"ours": 3, "peer": 3}
    assert outcome["absent"] == {
        "absent": "not run: No module named 'a_package_that_nobody_has'",
        "elsewhere": "not run: this processor is another one",
    }
    assert outcome["size"] == {"n": 2}
    ours, peer = outcome["contenders"]
    assert (ours["ratio"], ours["goal_rate"], ours["reached"]) == (1.0, 1e9, False)
    assert peer["ratio"] > 2
    assert peer["best_ratio"] > 2
    assert peer["processor_s"] < 0.05, "sleep takes no time of the processor"
    assert (peer["goal"], peer["reached"]) == (2.0, True)
    assert peer["median_s"] >= 0.05
    assert peer["peak_mib"] > 0
    assert peer["started_peak_mib"] == 0
    contest.show(outcome)
    line, *table = capsys.readouterr().out.splitlines()
    assert json.loads(line) == outcome
    assert any("absent" in row and "not run" in row for row in table)


def test_time_that_others_took_is_told(contest):
    before = [100, 0, 10, 500, 5, 0, 0, 7, 0, 0]
    after = [150, 5, 20, 900, 9, 2, 3, 37, 0, 0]  # 50 + 5 + 10 + 2 + 3 worked, 30 stolen; idle and waiting aside
    assert contest.stolen(before, after) == 0.3
    assert contest.stolen(before, before) is None
    assert contest.stolen([], []) is None  # where nobody counts


def test_unequal_results_are_refused(hold):
    with pytest.raises(AssertionError, match="'wrong': 4"):
        hold(["ours", "wrong"], repeats=1)


def test_a_broken_peer_is_not_passed_over(hold):
    with pytest.raises(RuntimeError, match=r"broken failed \(exit status 1\)(.|\n)*this peer is broken"):
        hold(["ours", "broken"], repeats=1)
    with pytest.raises(RuntimeError, match=r"killed failed \(signal 9, "):
        hold(["ours", "killed"], repeats=1)


@pytest.fixture
def toys(contest, tmp_path, monkeypatch):
    """A function that makes a contest between some of the toys."""
    (tmp_path / "toys.py").write_text(TOYS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    size = {"n": 2, "_journal": str(tmp_path / "journal")}

    def made(name, *names):
        contenders = {one: f"toys:{one}" for one in names}
        return contest.Contest(name, contenders, size, lambda found: {}, (10.0, "sums/s"), repeats=1)

    return made


def test_a_contender_that_ended_while_another_ran_is_named(contest, toys, tmp_path):
    (tmp_path / "folder").mkdir()
    worker = contest.Worker("ours", "toys:ours", toys("toy", "ours"), 1, tmp_path / "folder")
    worker.answer()
    worker.process.kill()
    worker.process.wait()
    with pytest.raises(RuntimeError, match=r"ours failed \(signal 9, 9 often means that memory ran out"):
        worker.run()
    worker.close()


def test_a_contest_that_fails_leaves_the_others(contest, toys, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["toys.py", "--threads", "1"])
    assert contest.main([toys("first", "ours", "killed"), toys("second", "ours")]) == 1
    out, err = capsys.readouterr()
    assert "first: killed failed (signal 9" in err
    assert '"path": "second"' in out
    assert contest.main([toys("second", "ours")]) == 0


def test_a_small_rate_is_told_too(contest):
    assert contest.goal_of({"goal_rate": 0.4, "unit": "answers/s"}) == "0.4 answers/s"
    assert contest.goal_of({"goal_rate": 1e8, "unit": "tokens/s"}) == "100,000,000 tokens/s"
    assert contest.goal_of({"goal": 2.0}) == "2.0x"


def test_a_goal_missed_is_said(hold):
    outcome, _ = hold(["peer", "ours"], repeats=1, goals={"ours": 1.0})
    assert outcome["contenders"][1]["reached"] is False


def test_ours_is_never_absent(hold):
    with pytest.raises(RuntimeError, match="a_package_that_nobody_has"):
        hold(["absent", "ours"], repeats=1)


@pytest.mark.parametrize("name", ["measures", "tokens", "bm25"])
def test_small_runs_pass_their_gates(contest, monkeypatch, name):
    """Ours against itself, through each script's own generator and gate."""
    module = importlib.import_module(name)
    sizes = {
        "measures": {"queries": 50, "hits": 20, "passages": 1000},
        "tokens": {"passages": 100, "batch": 8},
        "bm25": {"passages": 200, "queries": 10, "k": 5},
    }
    setup = {"bm25": "search_hardneg"}.get(name, "hardneg")
    found = getattr(module, setup)(sizes[name])()
    arrays = {key: np.array(value) for key, value in (found() if callable(found) else found).items()}
    assert module.gate({"hardneg": arrays, "again": arrays})
    worse = {key: value + 1 for key, value in arrays.items()}
    with pytest.raises(AssertionError):
        module.gate({"hardneg": arrays, "again": worse})
    del sys.modules[name]


def test_faiss_and_mining_have_the_threads_of_all_contenders(contest, monkeypatch):
    """faiss took two, and mining tuned for two, whatever --threads said."""
    faiss, told = pytest.importorskip("faiss"), []
    search, mine = (importlib.import_module(name) for name in ("search", "mine"))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(faiss, "omp_set_num_threads", told.append)
    search.faiss({"passages": 50, "queries": 2, "searches": 1, "dim": 4, "k": 3})
    monkeypatch.setattr("hardneg.process.cpu.tune", told.append)
    monkeypatch.setattr(mine, "task", lambda size: ([], [], np.zeros(0, int)))
    monkeypatch.setattr("hardneg.Collection.from_lists", lambda *_, **__: None)
    mine.hardneg({})
    assert told == [3, 3]
    del sys.modules["search"], sys.modules["mine"]


@pytest.mark.parametrize("fact", ["loss", "norm"])
def test_contenders_that_train_agree_in_loss_and_gradient(contest, fact):
    pairs = importlib.import_module("pairs")
    ours = {"loss": np.array(2.0), "norm": np.array(3.0)}
    theirs = ours | {fact: ours[fact] * 1.01}
    assert pairs.gate({"hardneg float32": ours, "peer float32": ours}) == {"loss": 2.0, "norm": 3.0}
    assert pairs.gate({"hardneg bfloat16": ours, "peer bfloat16": theirs})
    with pytest.raises(AssertionError, match="peer float32"):
        pairs.gate({"hardneg float32": ours, "peer float32": theirs})
    del sys.modules["pairs"], sys.modules["train"]
