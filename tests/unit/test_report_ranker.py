"""The report where a ranker is trained: with a retriever (AR2), and alone."""

import json
import shutil

import pytest

import hardneg as hn
from hardneg.api.diagnose import opened_at
from hardneg.report.drawing import draw
from hardneg.report.figures import FIGURES
from worlds.tiny_world import COMMON, one_thread  # noqa: F401

AR2 = COMMON | {
    "iterations": 2,
    "retriever_steps": 4,
    "ranker_steps": 3,
    "first_ranker_steps": 4,
    "negatives_per_query": 3,
    "ranker_queries_per_step": 6,
    "first_ranker_queries_per_step": 6,
    "rerank_depth": 8,
    "measures": "RR@10 R@5",
    "depth": 20,
    "warmup": 1,
}
RANKER = COMMON | {
    "measures": "RR@10 R@5",
    "max_length": 24,
    "negatives_per_query": 3,
    "steps": 6,
    "depth": 20,
    "count": 10,
    "rerank": 8,
}


def drawn_of(folder, *names):
    opened = opened_at(folder)
    return opened, {one.name: draw(one, opened) for one in FIGURES if not names or one.name in names}


@pytest.fixture(scope="module")
def ar2(world, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "ar2"
    hn.train_ar2(world.collection, world.model, out, device="cpu", **AR2)
    return out


@pytest.fixture(scope="module")
def ranker(world, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "ranker"
    hn.train_ranker(world.collection, world.model, out, device="cpu", **RANKER)
    return out


def test_every_figure_of_two_models_has_facts(ar2):
    opened, drawn = drawn_of(ar2)
    own = [one for one in drawn.values() if one.figure.section == "Retriever and ranker"]
    assert [one.figure.name for one in own if one.table is None] == []
    assert opened.notes == []
    told = json.loads((ar2 / "results.json").read_text())
    rows = drawn["iterations"].table.where(split="test").records()
    found = {(row["iteration"], row["of"]): row["value"] for row in rows}
    begun = "untrained-as-trained" if "untrained-as-trained" in told["test"] else "untrained"
    assert found[0, "the retriever"] == told["test"][begun]["RR@10"]
    assert found[1, "the retriever"] == told["test"]["iteration-1"]["RR@10"]
    assert found[1, "the ranker on the retriever's hits then"] == told["test"]["iteration-1/ranker"]["RR@10"]
    assert found[2, "the ranker on the first retriever's hits"] == told["test"][f"{begun}/ranker"]["RR@10"]
    grid = drawn["pipeline"].table.where(split="test", retriever="after training").records()[0]
    assert grid["then the last ranker"] == told["test"]["final/ranker"]["RR@10"]
    entropy = drawn["entropy"].table.where(split="test").records()
    assert {row["state"]: row["entropy"] for row in entropy}["final"] == told["entropy"]["test"]["final"]
    pools = ["episode 1 version 0", "episode 1 version 1"]
    assert list(opened.pools) == pools
    lists = [f"{name} {source}" for name in pools for source in ("query", "lookahead")]
    assert list(dict.fromkeys(drawn["composition"].table.column("list"))) == lists
    assert list(dict.fromkeys(drawn["composition_of_pools"].table.column("list"))) == pools
    for row in drawn["disagreement"].table.records():
        assert 0 <= row["pairs turned round"] <= 1
        assert row["the ranker is better"] + row["the retriever is better"] <= 1
    assert set(drawn["loss_parts"].table.column("part")) == {"adversarial", "distillation", "entropy"}
    assert set(drawn["ranker_loss"].table.column("of")) == {"warm-up", "turns with the retriever"}
    assert all(one.spec for one in own)


def test_the_entropy_of_a_running_experiment_stands_beside_its_runs(ar2, tmp_path):
    copied = shutil.copytree(ar2, tmp_path / "copy")
    (copied / "results.json").unlink()
    _, drawn = drawn_of(copied, "entropy", "iterations")
    assert drawn["entropy"].table.column("state")
    assert drawn["iterations"].table.column("value")


def test_a_ranker_alone_has_its_own_figures(ranker):
    opened, drawn = drawn_of(ranker)
    assert opened.notes == []
    assert drawn["learning_curve"].table.column("step") == list(range(1, 7))
    told = json.loads((ranker / "results.json").read_text())
    gain = drawn["reranking"].table.where(split="test", measure="RR@10").records()[0]
    assert gain["re-ranked"] == told["reranked"]["test"]["reranked"]["RR@10"]
    assert not drawn["iterations"].meant
    assert drawn["reranking"].spec


def test_training_a_ranker_writes_a_report(world, tmp_path, monkeypatch):
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    monkeypatch.setenv("HARDNEG_REPORT", "1")
    hn.train_ranker(world.collection, world.model, tmp_path / "exp", device="cpu", **RANKER | {"steps": 1})
    assert "re-ranking" in (tmp_path / "exp/report.html").read_text()
