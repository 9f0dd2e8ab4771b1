"""Every study makes the same page from kept outcomes as from its experiments' folders, on the tiny world."""

import importlib
import shutil
from pathlib import Path

import numpy as np
import pytest

from hardneg.cli import run
from hardneg.data.collection import Collection
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
WORDS = {
    "ance": "--rows bm25,ance-sync,tele --rate 1e-3 --steps 6 --queries-per-step 4 --passage-length 16",
    "star_adore": (
        "--rows bm25,star,star-adore --rate 1e-3 --steps 4 --adore-steps 2 --adore-rates 1e-3,1e-4 --depth 20 "
        "--codes 4,8 --bits 4 --curve-steps 4 --measure-every 2 --refresh-every 2 "
        "--queries-per-step 4 --passage-length 16"
    ),
    "depth": "--first-steps 2 --steps 2 --hard-steps 2 --rate 1e-3 --arms in-batch,star-20,tele-200",
    "negatives": (
        "--rows random,star,star-more,in-batch,in-batch-adore --seeds 1,2 --steps 6 --rate 1e-3 --adore-rate 1e-3 "
        "--depth 20 --queries-per-step 4 --passage-length 16"
    ),
    "first": "--steps 4 --stop-step 2 --queries-per-step 4 --passage-length 16",
    "openqa": "--steps 4 --stop-step 2 --queries-per-step 4 --passage-length 16",
    "ar2": (
        "--seeds 1 --warm-steps 2 --warm-queries 4 --first-ranker-steps 2 --iterations 2 --retriever-steps 2 "
        "--ranker-steps 1 --queries-per-step 4 --ranker-queries 4 --negatives 3 --sizes 1,3 --depth 20 "
        "--rerank-depth 4 --passage-length 16"
    ),
}

EXPERIMENTS = {"ance": 4, "star_adore": 13, "depth": 4, "negatives": 12, "first": 2, "openqa": 1, "ar2": 10}
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


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """Experiments are executed here: twenty starts of Python would take longer than they do."""
    monkeypatch.syspath_prepend(str(ROOT / "studies"))
    harness = importlib.import_module("harness")

    def execute(study, step, place=0):
        if not study.is_done(step.name):
            executed.append(step.name)
            assert run(study.command(step, place)) == 0

    executed = []
    monkeypatch.setattr(harness.Study, "execute", execute)
    monkeypatch.setattr(
        harness.Study, "execute_all", lambda study, steps, jobs: [execute(study, s) for s in steps]
    )
    return executed


def tell(name, *words):
    module, harness = importlib.import_module(name), importlib.import_module("harness")
    module.main(harness.command_line("", module.options).parse_args([*map(str, words), "--threads", "1"]))


@pytest.mark.parametrize("name", sorted(WORDS))
def test_a_page_is_made_again_from_what_is_kept(name, world, tmp_path, in_this_process):
    kept, page, again = tmp_path / "kept.jsonl", tmp_path / "page.md", tmp_path / "again.md"
    data = world["answers" if name in ("first", "openqa", "ar2") else "plain"]
    words = [*data, *WORDS[name].split(), "--kept", kept]
    tell(name, *words, "--out", tmp_path / "study", "--report", page)
    assert len(in_this_process) == EXPERIMENTS[name]
    text = page.read_text()
    assert "not run" not in text
    assert "not kept" not in text
    lines = kept.read_bytes()
    shutil.rmtree(tmp_path / "study")
    tell(name, *words, "--out", tmp_path / "none", "--report", again, "--only-report")
    assert again.read_text() == text.replace("page-collection.png", "again-collection.png")
    assert kept.read_bytes() == lines
    tell(name, *words, "--out", tmp_path / "none", "--report", again)
    assert len(in_this_process) == EXPERIMENTS[name]  # without --only-report nothing is left to do either


def test_the_table_of_indexes_is_made_again_from_what_is_kept(world, tmp_path, monkeypatch):
    indexes = importlib.import_module("indexes")
    monkeypatch.setattr(indexes, "kinds", lambda dim: {"flat": ("flat", {}), "pq-4": ("pq", PQ)})
    kept, page = tmp_path / "indexes.jsonl", tmp_path / "page.md"
    words = [*world["plain"], "--kept", kept, "--report", page]
    tell("indexes", *words, "--out", tmp_path / "study")
    text = page.read_text()
    assert "| `flat` |" in text
    assert "| `pq`, subvectors 4 |" in text
    shutil.rmtree(tmp_path / "study")
    tell("indexes", *words, "--out", tmp_path / "none", "--only-report")
    assert page.read_text() == text
