"""Memory limits: sizes, room, refusals, and results that do not depend on the limit."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from hardneg.errors import ResourceError, SettingsError
from hardneg.process import control_groups, memory
from hardneg.process.memory import PeakWatch, limit_memory, own_memory, parse_size, require, room
from hardneg.search import exact, retrieve
from hardneg.search.exact import ExactIndex


@pytest.fixture(autouse=True)
def unlimited():
    yield
    limit_memory()


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("512M", 512 << 20), ("8G", 8 << 30), ("1.5GiB", 3 << 29), ("2kb", 2048), (" 1 T ", 1 << 40)],
)
def test_sizes(text, size):
    assert parse_size("--max-ram", text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "0", "0.0001", "8X", "8 G 2", "1e9", "nan"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(SettingsError, match="--max-ram"):
        parse_size("--max-ram", text)


def test_without_a_limit_everything_fits():
    assert room() is None
    require(1 << 60, "a thing")


def test_room_is_what_this_process_does_not_use():
    limit_memory("100G")
    before = room()
    held = np.ones(1 << 25)  # 256 MiB
    assert before - room() == pytest.approx(held.nbytes, rel=0.1)
    assert own_memory() > held.nbytes


def test_mapped_files_are_not_counted(tmp_path):
    np.save(tmp_path / "big.npy", np.ones(1 << 24))
    before = own_memory()
    mapped = np.load(tmp_path / "big.npy", mmap_mode="r")
    assert mapped.sum() == 1 << 24
    assert own_memory() - before < mapped.nbytes / 4


def test_own_memory_is_what_the_system_calls_anonymous():
    held = np.ones(1 << 24)
    found = own_memory()
    said = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found == pytest.approx(int(said[1]) * 1024, abs=4 << 20)
    assert found > held.nbytes


def test_a_refusal_names_a_limit_that_would_do():
    limit_memory("1M")
    with pytest.raises(ResourceError, match="MEMORY_TOO_SMALL") as fault:
        require(10 << 20, "a thing")
    least = fault.value.fix.split()[2]
    limit_memory(least)
    require(9 << 20, "a thing")  # the process itself moves a little


def index_and_queries():
    draw = torch.Generator().manual_seed(0)
    return ExactIndex(torch.randn(3000, 16, generator=draw).half()), torch.randn(700, 16, generator=draw)


def test_a_search_under_a_limit_gives_the_same_bits(monkeypatch):
    index, queries = index_and_queries()
    wanted = index.search(queries, 50)
    tiles = []
    original = index._search_tile
    monkeypatch.setattr(index, "_search_tile", lambda part, *a: tiles.append(len(part)) or original(part, *a))
    fixed = (8 * index.slice + 32 * index.pairs) * 16
    monkeypatch.setattr(exact, "room", lambda kind: fixed + (1 << 20))
    found = index.search(queries, 50)
    assert len(tiles) > 10
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_without_a_limit_large_buffers_take_the_memory_to_spare(monkeypatch):
    index, _ = index_and_queries()
    each = 9 * len(index) + exact.HELD * 5000
    assert index.fitting_tile(100, 5000) == 100
    monkeypatch.setattr(exact, "LARGE", 100 * each - 1)
    for free, tile in ((0, exact.FEW), (1 << 40, 100)):
        monkeypatch.setattr(exact, "spare", lambda free=free: free)
        assert index.fitting_tile(100, 5000) == tile
        assert index.fitting_tile(99, 5000) == 99  # few enough not to look
        assert index.fitting_tile(9, 50_000) == 9


def test_a_search_that_cannot_fit_is_refused():
    index, queries = index_and_queries()
    limit_memory("1M")
    with pytest.raises(ResourceError, match="MEMORY_TOO_SMALL"):
        index.search(queries, 50)


def test_the_hits_of_a_search_have_room_beside_its_buffers(monkeypatch):
    """They are written tile by tile, so the process does not hold them yet when the first tile is made to fit."""
    index, _ = index_and_queries()
    each, hits = 9 * len(index) + exact.HELD * 100, 1 << 20
    fixed = (8 * index.slice + 32 * index.pairs) * 16
    monkeypatch.setattr(exact, "room", lambda kind: fixed + 100 * each + 8 * hits)
    assert index.fitting_tile(700, 100, hits=hits) == 100
    limit_memory("16M")
    with pytest.raises(ResourceError, match="MEMORY_TOO_SMALL: a search needs"):
        index.fitting_tile(1, 100, hits=1 << 32)


def test_vectors_that_a_search_copies_into_memory_need_room(monkeypatch):
    vectors = np.zeros((3000, 64), np.float16)
    embeddings = SimpleNamespace(shards=[vectors], dim=64, rows=vectors.take, n=3000, max_norm=1.0)
    limit_memory("1M")
    with pytest.raises(ResourceError, match="a search of some passages needs 0 MiB"):
        retrieve.StoredIndex(embeddings, rows=np.arange(9, dtype=np.int32))


@pytest.fixture
def on_cuda(monkeypatch):
    """Make an index that takes itself for one on CUDA, of which only the sizes are asked."""
    monkeypatch.setattr(memory, "_device_memory", lambda: 0)

    def make(passages):
        index = ExactIndex(torch.ones(passages, 768))
        index.device = torch.device("cuda")
        index.tile, index.chunk = exact.TILE["cuda"], exact.CHUNK["cuda"]
        return index

    return make


def test_a_small_search_on_cuda_needs_little(on_cuda):
    """Its parts are made for large searches: they would take 3.4 GiB."""
    limit_memory(max_vram="32M")
    assert on_cuda(1000).fitting_tile(4, 464) == 4
    limit_memory(max_vram="1M")
    with pytest.raises(ResourceError, match=r"a search needs \d\d MiB, --max-vram leaves 1 MiB"):
        on_cuda(1000).fitting_tile(4, 464)


@pytest.mark.parametrize("limit", ["100M", "1G", "4G", "16G"])
def test_parts_on_cuda_are_as_large_as_the_limit_allows(on_cuda, limit):
    index, left = on_cuda(100_000), parse_size("--max-vram", limit)
    limit_memory(max_vram=limit)
    tile = index.fitting_tile(exact.TILE["cuda"], 464)
    each = 9 * exact.CHUNK["cuda"] + exact.HELD * 464
    taken = 768 * (8 * index.slice + 32 * min(index.pairs, tile * 464)) + tile * each
    assert left / 3 < taken <= left or tile == exact.TILE["cuda"]
    assert (index.pairs == exact.PAIRS["cuda"]) == (limit == "16G")


def test_smaller_parts_give_the_same_bits():
    index, queries = index_and_queries()
    wanted, index.given_tile = index.search(queries, 50), 700
    index.slice, index.pairs = 100, 7
    assert all(torch.equal(a, b) for a, b in zip(index.search(queries, 50), wanted, strict=True))


def test_each_device_has_its_own_limit(monkeypatch):
    monkeypatch.setattr(memory, "_device_memory", lambda: 1 << 30)
    limit_memory(max_vram="3G")
    assert room("cpu") is None
    assert room("cuda") == 2 << 30
    with pytest.raises(ResourceError, match="--max-vram 5120M"):
        require(4 << 30, "a thing", "cuda")


def test_memory_counts_on_the_device_that_is_used(monkeypatch):
    """With ``--device cuda:1`` the current device is still the first one, on which nothing lies."""
    held = [0, 3 << 30]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(held))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=0: held[device])
    limit_memory(max_vram="4G")
    assert room("cuda") == 1 << 30


@pytest.mark.parametrize("left", [0, 1 << 20])
def test_vectors_stay_where_they_are_if_the_limit_leaves_no_room(monkeypatch, left):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 << 30, 80 << 30))
    monkeypatch.setattr(retrieve, "room", lambda kind: left)
    shards = [np.zeros((1024, 1024), np.float32)]
    assert retrieve.on_device(shards, "cuda:0") is shards


def test_the_peak_within_a_block_is_its_own():
    program = """
import time
from hardneg.process.memory import PeakWatch, peak_memory
MIB = 1 << 20
first = PeakWatch()
whole = PeakWatch()
held = b"1" * (400 * MIB)
highest = first.end()
assert highest >= 390 * MIB, highest  # nothing was higher before, so it is exact but for what the system lags
del held
begun = PeakWatch()
held = b"1" * (100 * MIB)
time.sleep(0.3)
del held
later = begun.end()
assert whole.end() >= highest - 10 * MIB  # a watch around others sees all of it
print(highest // MIB, later // MIB, peak_memory() // MIB)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    highest, later, process = map(int, run.stdout.split())
    assert process >= highest - 10  # the system's own record was not reset
    assert 90 <= later < highest - 100


def test_a_forked_process_watches_by_a_thread_of_its_own():
    program = """
import os
from hardneg.process import memory
outer = memory.PeakWatch()  # its thread is not there after the fork
first = memory._lookout.thread
child = os.fork()
watch = memory.PeakWatch()
assert memory._lookout.thread.is_alive()
assert (memory._lookout.thread is first) == bool(child)
assert memory._lookout.watches == ({outer, watch} if child else {watch})
watch.end()
outer.end()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_thread_that_looks_ends_when_nobody_watches(monkeypatch):
    monkeypatch.setattr(memory, "LOOK_SECONDS", 0.001)
    first, second = PeakWatch(), PeakWatch()
    thread = memory._lookout.thread
    first.end()
    time.sleep(0.1)
    assert memory._lookout.thread is thread  # it looks for the second
    second.end()
    thread.join(60)
    assert not thread.is_alive()
    third = PeakWatch()
    assert memory._lookout.thread.is_alive()
    third.end()


def test_the_peak_of_a_search_stays_under_its_limit():
    program = """
import os, re, numpy as np, torch
from pathlib import Path
from hardneg.process.memory import limit_memory, own_memory
from hardneg.search.exact import ExactIndex
cases = [(48, "auto"), (96, "auto"), (64, "bfloat16")]
for extra, precision in cases:  # each in a process of its own, with all of this loaded
    if not (pid := os.fork()):
        break
    assert os.waitpid(pid, 0)[1] == 0
else:
    raise SystemExit
torch.set_num_threads(2)
vectors = np.random.default_rng(0).standard_normal((60000, 64), np.float32).astype(np.float16)
index = ExactIndex(vectors, precision=precision)
queries = torch.randn(3000, 64)
index.search(queries[:2], 100)
limit = own_memory() + (extra << 20)
limit_memory(str(limit))
def status(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
shared = status("RssFile")
index.search(queries, 100)
peak = status("VmHWM")
peak -= max(shared, status("RssFile"))  # pages of files come back where memory was short before
print(extra, precision, limit - peak, flush=True)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found = [line.split() for line in run.stdout.splitlines()]
    assert [line[:2] for line in found] == [["48", "auto"], ["96", "auto"], ["64", "bfloat16"]]
    assert all(int(left) > 0 for *_, left in found), found


@pytest.mark.parametrize("version", [1, 2])
def test_a_control_group_leaves_a_quarter_of_its_room_to_spare(monkeypatch, tmp_path, version):
    """Pages of files can be taken back, and do not count; the group above has the smaller limit."""
    names = "memory.max", "memory.current", "inactive_file", "active_file"
    if version == 1:
        names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"
    above = tmp_path / ("memory/slice" if version == 1 else "slice")
    group = above / "unit"
    group.mkdir(parents=True)
    line = "4:memory:/slice/unit\n" if version == 1 else "0::/slice/unit\n"
    real = Path.read_text
    monkeypatch.setattr(control_groups, "CGROUP", tmp_path)
    monkeypatch.setattr(
        Path, "read_text", lambda self, *rest: line if str(self) == "/proc/self/cgroup" else real(self, *rest)
    )
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 << 30))
    assert memory.spare() == 16 << 30
    (group / names[0]).write_text("max\n" if version == 2 else "9223372036854771712\n")
    assert (control_groups.memory_limit(), memory.spare()) == (None, 16 << 30)
    (group / names[0]).write_text(f"{1 << 40}\n")
    (above / names[0]).write_text(f"{2 << 30}\n")
    assert (control_groups.memory_limit(), memory.spare()) == (2 << 30, 512 << 20)  # what is in use is not told
    (above / names[1]).write_text(f"{1536 << 20}\n")
    (above / "memory.stat").write_text(f"anon 5\n{names[2]} {400 << 20}\n{names[3]} {112 << 20}\n")
    assert memory.spare() == 256 << 20
    (above / names[1]).write_text(f"{4 << 30}\n")  # a limit may be lowered below what is in use
    assert memory.spare() == 0
