"""The CUDA benchmarks at toy size on the CPU: every part runs, passes its gates, and is written at once."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch):
    """The script as a module; its helpers are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    import gpu

    yield gpu
    for name in set(sys.modules) - before:
        if name.startswith("gpu") or name == "contest":
            del sys.modules[name]


def run(gpu, folder, *parts):
    file = folder / "gpu.json"
    code = gpu.main([*parts, "--toy", "--device", "cpu", "--out", str(file)])
    return code, json.loads(file.read_text())


@pytest.mark.slow
def test_every_part_runs_and_its_gates_hold(gpu, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)  # importing it takes longer than all the rest
    parts = [name for name in gpu.PARTS if name != "profile"]
    code, found = run(gpu, tmp_path, *parts)
    assert code == 0, found
    assert list(found) == ["machine", "size", *parts]
    assert found["gates"]["passed"]
    assert found["encode"]["sentence-transformers"] == "not run"
    assert set(found["encode"]["goals"]) == {"padded loop", "padded loop, sorted", "share_of_shape_matched"}
    assert min(found["encode"]["lowest_cosines"].values()) > 0.98
    assert all(found["train"][name]["ms_per_step"] > 0 for name in ("hardneg", "padded-128 loop"))
    assert found["search"]["shared_with_matmul"] > 0.99
    assert found["mine"]["negatives"] == found["mine"]["queries"] * found["size"]["k"] // 2


def test_a_gate_that_does_not_hold_is_told(gpu, monkeypatch, tmp_path):
    import gpu_gates

    monkeypatch.setattr(gpu_gates, "search_bits", lambda world: 1)
    code, found = run(gpu, tmp_path, "gates")
    assert code == 1
    assert not found["gates"]["passed"]


def test_a_part_that_fails_leaves_the_others(gpu, monkeypatch, tmp_path):
    def broken(world):
        assert (tmp_path / "gpu.json").exists()  # the part before is written already
        raise RuntimeError("out of memory")

    monkeypatch.setitem(gpu.PARTS, "encode", broken)
    code, found = run(gpu, tmp_path, "matmul", "encode", "mine")
    assert code == 1
    assert "out of memory" in found["encode"]["failed"]
    assert found["mine"]["negatives"] > 0
