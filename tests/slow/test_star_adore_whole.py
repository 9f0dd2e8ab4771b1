"""The study of STAR and ADORE from its command line to its page, on the tiny world."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worlds.tiny_world import tiny_collection, tiny_model

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


def test_the_study_executes_what_is_missing_and_writes_its_page(tmp_path):
    collection = tiny_collection(tmp_path / "collection")
    model = tiny_model(tmp_path / "model", collection)
    page, out = tmp_path / "page.md", tmp_path / "study"
    shape = {"steps": 4, "adore-steps": 3, "adore-rates": 1e-3, "codes": 4, "bits": 4, "depth": 12}
    shape |= {
        "curve-steps": 4,
        "measure-every": 2,
        "refresh-every": 2,
        "queries-per-step": 8,
        "passage-length": 16,
    }
    words = [word for name, value in shape.items() for word in (f"--{name}", str(value))]
    places = ["--out", out, "--data", tmp_path / "collection", "--model", model, "--report", page]

    def study(rows, *more):
        script = ROOT / "studies/star_adore.py"
        command = [sys.executable, script, *places, *words, "--rows", rows, "--jobs", "2", "--threads", "1", *more]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(
            [*map(str, command)], capture_output=True, text=True, env=environment, timeout=900, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert study("star,star-adore").count(": done") == 10
    before = {file: file.stat().st_mtime_ns for file in out.rglob("*.jsonl")}
    assert not list(out.glob("*/episodes/*/checkpoint"))
    assert ": done" not in study("star,star-adore,in-batch", "--only-report")
    assert before == {file: file.stat().st_mtime_ns for file in out.rglob("*.jsonl")}
    text = page.read_text()
    lines = [line for line in text.splitlines() if "not run" in line]
    assert len(lines) == 2  # In-Batch's figures and its errors
    assert all(line.startswith("| In-Batch |") for line in lines)
    assert "| STAR → ADORE − STAR | " in text
    assert "| static, refreshed: dev RR@10 | 0." in text
    assert "![Overlap, dev RR@10 and dev errors against steps](page-collection.png)" in text
    assert (tmp_path / "page-collection.png").is_file()
    assert str(tmp_path) not in text
