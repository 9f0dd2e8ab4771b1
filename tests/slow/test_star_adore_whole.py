"""The study of STAR and ADORE from its options to its page, on the tiny world; its experiments are processes."""

import importlib
import sys
from pathlib import Path

import pytest

import loaded
from worlds.tiny_world import tiny_collection, tiny_model

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


def test_the_study_executes_what_is_missing_and_writes_its_page(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "studies"))
    module, harness = importlib.import_module("star_adore"), importlib.import_module("harness")
    loaded.in_studies(monkeypatch)
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
        command = ["star_adore.py", *places, *words, "--rows", rows, "--jobs", "2", "--threads", "1", *more]
        monkeypatch.setattr(sys, "argv", [*map(str, command)])
        module.main(harness.arguments("", module.options))
        return capsys.readouterr().err

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
