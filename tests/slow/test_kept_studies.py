"""Every study tells the same from what it keeps as from the folders of its experiments, on the tiny world."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tiny_world import tiny_collection, tiny_model

ROOT = Path(__file__).resolve().parents[2]
WORDS = {
    "ance": "--rows bm25,ance-sync,tele --rate 1e-3 --steps 6 --queries-per-step 4 --passage-length 16",
    "star_adore": (
        "--rows bm25,star,star-adore --rate 1e-3 --steps 4 --adore-steps 2 --adore-rates 1e-3,1e-4 --depth 20 --codes 4,8 "
        "--bits 4 --curve-steps 4 --measure-every 2 --refresh-every 2 --queries-per-step 4 --passage-length 16"
    ),
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    collection = tiny_collection(folder / "collection")
    return ["--data", str(folder / "collection"), "--model", tiny_model(folder / "model", collection)]


def tell(name, *words):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, ROOT / f"studies/{name}.py", *words, "--threads", "1"]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env=environment, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("name", sorted(WORDS))
def test_a_page_is_made_again_from_what_is_kept(name, world, tmp_path):
    kept, page, again = tmp_path / "kept.jsonl", tmp_path / "page.md", tmp_path / "again.md"
    words = [*world, *WORDS[name].split(), "--kept", kept]
    made = tell(name, *words, "--out", tmp_path / "study", "--report", page)
    assert ": done" in made
    text = page.read_text()
    assert "not run" not in text
    assert "not kept" not in text
    lines = kept.read_bytes()
    shutil.rmtree(tmp_path / "study")
    begun = time.monotonic()
    told = tell(name, *words, "--out", tmp_path / "none", "--report", again, "--only-report")
    assert time.monotonic() - begun < 60
    assert ": done" not in told
    figures = "page-collection.png"
    assert again.read_text() == text.replace(figures, figures.replace("page", "again"))
    assert kept.read_bytes() == lines
    # Without --only-report nothing is left to do either.
    assert ": done" not in tell(name, *words, "--out", tmp_path / "none", "--report", again)
