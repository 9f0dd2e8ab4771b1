"""The study of quality in equal time from end to end at toy size: killed, resumed, and made from kept outcomes."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from worlds.tiny_world import tiny_collection, tiny_model

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    pytest.importorskip("accelerate")
    folder = tmp_path_factory.mktemp("world")
    return folder, tiny_model(folder / "bert", tiny_collection(folder / "toys"))


def words_of(world, *more):
    folder, model = world
    words = [sys.executable, str(ROOT / "benchmarks/quality"), "--out", str(folder / "study")]
    words += ["--data", str(folder / "toys"), "--model", model, "--sizes", "full", "--starts", "as-is"]
    words += ["--minutes", "0.5", "--seeds", "1", "--threads", "1", "--length", "16", "--batch", "8"]
    words += ["--contenders", "st-in-batch,hardneg-warmup", "--grid", "1e-3:20,3e-4:20"]
    words += ["--kept", str(folder / "kept.jsonl"), "--report", str(folder / "page.md")]
    return [*words, *more]


def cells_in(folder):
    return sorted(path.name for path in (folder / "study/cells").glob("*.json.gz"))


def wait_for(condition, seconds):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end
        time.sleep(0.2)


def alive(folder):
    """Processes that were started for this study."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in place.read_bytes() and place.parent.name != str(os.getpid()):
                found.append(place)
        except OSError:
            continue
    return found


def test_a_study_is_killed_resumed_and_told(world):
    folder, _ = world
    study = subprocess.Popen(words_of(world), stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: list((folder / "study/work").glob("*st-in-batch*/order.json")), 300)
        time.sleep(3)
    finally:
        study.send_signal(signal.SIGKILL)
        study.wait()
    before = cells_in(folder)
    assert len(before) == 2  # what is not trained; of the cell that was running there is nothing
    wait_for(lambda: not alive(folder), 30)  # nor does anybody go on
    stamps = [os.stat(folder / "study/cells" / name).st_mtime_ns for name in before]
    subprocess.run(words_of(world), check=True, stderr=subprocess.DEVNULL)
    assert len(cells_in(folder)) == 4
    assert [os.stat(folder / "study/cells" / name).st_mtime_ns for name in before] == stamps
    for name in cells_in(folder):
        check_cell(json.loads(gzip.decompress((folder / "study/cells" / name).read_bytes())))
    page = (folder / "page.md").read_text()
    assert "| hardneg-warmup | st-in-batch (best peer) | 1 |" in page

    for path in (folder / "study/cells").iterdir():
        path.unlink()
    (folder / "page.md").unlink()
    begun = time.time()
    subprocess.run(words_of(world), check=True)  # all is kept: nothing runs
    assert cells_in(folder) == []
    assert time.time() - begun < 60
    assert (folder / "page.md").read_text() == page


def check_cell(cell):
    assert set(cell["queries"]) == {"nDCG@10", "RR@10", "R@100"}
    if cell["cell"]["contender"] == "bm25":
        assert cell["fused"] == {}
    else:
        assert set(cell["fused"]["queries"]) == set(cell["queries"])
        assert 0 <= cell["fused"]["weight"] <= 1
    assert cell["facts"]["threads"] == 1
    if cell["cell"]["minutes"]:
        assert 0 < cell["seconds"] < 120  # the study ends who takes longer
        assert cell["chosen"]["dev"] >= cell["chosen"]["before"]
        assert {"import", "train"} <= set(cell["stages"])
        assert sum(cell["stages"].values()) <= cell["seconds"] + 1
    assert not any("text" in key for key in cell)
