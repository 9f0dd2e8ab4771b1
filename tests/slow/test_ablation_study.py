"""The ablation study from its command line to its page, on the tiny world."""

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
    page = tmp_path / "ablation.md"
    shape = {"steps": 4, "stop-step": 2, "passages": 3, "passage-length": 16, "reinit-layers": 1, "seeds": 1}
    words = [word for name, value in shape.items() for word in (f"--{name}", str(value))]
    places = ["--data", tmp_path / "collection", "--model", model, "--report", page]
    kept = ["--kept", tmp_path / "kept.jsonl"]

    def study(rows, folder="study", more=()):
        command = [
            sys.executable,
            ROOT / "studies/ablation.py",
            "--out",
            tmp_path / folder,
            *places,
            *words,
            *more,
        ]
        command += ["--rows", rows, "--start", "reinit"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(
            [*map(str, command), "--jobs", "2", "--threads", "1"],
            capture_output=True,
            text=True,
            env=environment,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert study("q-neg,tele").count(": done") == 2
    folders = [tmp_path / f"study/reinit-{row}-seed-42" for row in ("q-neg", "tele")]
    before = {file: file.stat().st_mtime_ns for folder in folders for file in folder.rglob("*.jsonl")}
    assert len(before) == 6  # metrics, states and timing of each
    assert ": done" not in study("q-neg,tele,momentum", more=kept).replace("momentum-seed-42: done", "")
    assert before == {file: file.stat().st_mtime_ns for file in before}
    text = page.read_text()
    assert text.count("not run") == 0
    assert all(f"| {title} | 1 | 0." in text for title in ("Q-Neg", "ANCE-Tele", "Q-Neg + momentum"))
    assert "| ANCE-Tele | 42 | " in text
    assert f"--data collection --model {Path(model).parent.name}/model --out EXPERIMENT " in text
    assert "--set reinit_layers=1" in text
    assert str(tmp_path) not in text
    # With what was kept, the same page is written where no experiment is.
    assert ": done" not in study("q-neg,tele,momentum", "empty", more=kept)
    assert page.read_text() == text
