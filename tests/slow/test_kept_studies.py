"""Every study tells the same from what it keeps as from the folders of its experiments, on the tiny world."""

import importlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hardneg.data.collection import Collection
from tiny_world import tiny_collection, tiny_model

ROOT = Path(__file__).resolve().parents[2]
WORDS = {
    "ance": "--rows bm25,ance-sync,tele --rate 1e-3 --steps 6 --queries-per-step 4 --passage-length 16",
    "star_adore": (
        "--rows bm25,star,star-adore --rate 1e-3 --steps 4 --adore-steps 2 --adore-rates 1e-3,1e-4 --depth 20 "
        "--codes 4,8 --bits 4 --curve-steps 4 --measure-every 2 --refresh-every 2 "
        "--queries-per-step 4 --passage-length 16"
    ),
    "first": "--steps 4 --stop-step 2 --queries-per-step 4 --passage-length 16",
    "openqa": "--steps 4 --stop-step 2 --queries-per-step 4 --passage-length 16",
}

PQ = {"subvectors": 4, "bits": 4}

pytestmark = pytest.mark.slow


def with_answers(folder):
    """40 passages of eight words; a question asks with three words of one, two of which are its answer."""
    draw = np.random.default_rng(0)
    words = [f"{a}{b}" for a in ("ba", "de", "fi", "go", "ku", "la", "me", "ni") for b in "abcdefgh"]
    texts = [[words[w] for w in draw.integers(0, 64, 8)] for _ in range(40)]
    queries, answers, qrels = {}, {}, {}
    for split, count in (("train", 24), ("dev", 6), ("test", 8)):
        for i, p in enumerate(draw.permutation(40)[:count].tolist()):
            name = f"{split}-{i:02d}"
            queries[name] = " ".join(texts[p][1:4])
            answers[name] = [" ".join(texts[p][3:5])]
            qrels.setdefault(split, {})[name] = [f"p{p:02d}"]
    passages = [(f"p{i:02d}", "", " ".join(text)) for i, text in enumerate(texts)]
    return Collection.from_lists(passages, queries, qrels, answers=answers, to=folder)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """By whether questions have answers, a collection and a model that knows its words."""
    made = {}
    for kind, make in {"plain": tiny_collection, "answers": with_answers}.items():
        folder = tmp_path_factory.mktemp(kind)
        collection = make(folder / "collection")
        made[kind] = [
            "--data",
            str(folder / "collection"),
            "--model",
            tiny_model(folder / "model", collection),
        ]
    return made


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
    of = world["answers" if name in ("first", "openqa") else "plain"]
    words = [*of, *WORDS[name].split(), "--kept", kept]
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


def test_the_table_of_indexes_is_made_again_from_what_is_kept(world, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "studies"))
    indexes, harness = importlib.import_module("indexes"), importlib.import_module("harness")
    monkeypatch.setattr(indexes, "kinds", lambda dim: {"flat": ("flat", {}), "pq-4": ("pq", PQ)})
    kept, page = tmp_path / "indexes.jsonl", tmp_path / "page.md"
    words = [*world["plain"], "--kept", str(kept), "--report", str(page), "--threads", "1"]

    def told(*more):
        indexes.tell(harness.command_line("", indexes.options).parse_args([*words, *more]))
        return page.read_text()

    text = told("--out", str(tmp_path / "study"))
    assert "| `flat` |" in text
    assert "| `pq`, subvectors 4 |" in text
    shutil.rmtree(tmp_path / "study")
    assert told("--out", str(tmp_path / "none"), "--only-report") == text
