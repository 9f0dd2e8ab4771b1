"""The report where a ranker is trained: with a retriever (AR2), and alone."""

import json
import shutil

import pytest

import hardneg as hn
from hardneg.api.diagnose import opened_at
from hardneg.cli.tables import short_table
from hardneg.diagnostics.audit_page import audit_page
from hardneg.report import side_by_side
from hardneg.report.drawing import draw
from hardneg.report.explorer import explorer_data
from hardneg.report.facts_queries import change_of
from hardneg.report.figures import FIGURES
from hardneg.report.make import make, so_far
from hardneg.report.scripts import asset
from hardneg.report.side_by_side import Several
from hardneg.report.table import Table
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
    # all queries have the same number of candidates, all of one source: there are no groups to compare
    assert "same shares of negatives" in drawn["breakdown_by_source"].missing
    entropy = drawn["entropy"].table.where(split="test").records()
    assert list(dict.fromkeys(drawn["entropy"].table.column("split"))) == ["test", "dev"]  # as in other charts
    assert "[0, 1, 2]" in json.dumps(drawn["iterations"].spec)  # the ticks: no half iterations
    assert {row["state"]: row["entropy"] for row in entropy}["final"] == told["entropy"]["test"]["final"]
    pools = ["refresh 0", "refresh 1"]
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


def test_negatives_of_iterations_are_counted_by_refreshes(ar2, tmp_path):
    """In names, columns and captions, as ``inspect`` does; there is neither an older episode nor momentum."""
    copied = shutil.copytree(ar2, tmp_path / "copy")
    for run in copied.glob("episodes/1/runs*/query"):  # as with examine = judged: pools alone tell what was met
        shutil.rmtree(run)
    alone = drawn_of(copied, "composition_of_pools")[1]["composition_of_pools"].table
    assert set(alone.column("list")) == {"refresh 0", "refresh 1"}
    assert set(alone.column("first in")) == {"refresh 0 query", "refresh 1 query"}
    drawn = [one for one in make(opened_at(ar2), ["hardneg"]).drawn if one.figure.section == "Negatives"]
    assert {"composition", "new_negatives", "momentum"} <= {
        one.figure.name for one in drawn if one.table is not None
    }
    for one in drawn:
        told = [one.figure.title, one.figure.says, one.missing, json.dumps(one.spec)]
        told += [] if one.table is None else [one.table.csv().decode()]
        assert not [text for text in told if "episode" in text or "momentum" in text], one.figure.name


def test_the_entropy_of_a_running_experiment_stands_beside_its_runs(ar2, tmp_path):
    copied = shutil.copytree(ar2, tmp_path / "copy")
    (copied / "results.json").unlink()
    _, drawn = drawn_of(copied, "entropy", "iterations")
    assert drawn["entropy"].table.column("state")
    assert drawn["iterations"].table.column("value")


def test_a_ranker_of_a_running_experiment_does_not_stand_for_its_retriever(ar2, ranker, tmp_path):
    """Its states so far end with runs that the ranker ordered; beside other recipes they stood for the model."""
    copied = shutil.copytree(ar2, tmp_path / "copy")
    for name in ("results.json", "states.jsonl", "seal.json"):
        (copied / name).unlink()
    shutil.rmtree(copied / "final")
    told = json.loads((ar2 / "results.json").read_text())
    running = opened_at(copied)
    assert running.states[-1].of is not None
    several = Several([running, opened_at(ranker)])
    rows = side_by_side.results_table(several).where(split="test", experiment=several.names[0]).records()
    assert {row["state"]: row["RR@10"] for row in rows}["iteration-1"] == told["test"]["iteration-1"]["RR@10"]
    assert not [row for row in rows if "/" in row["state"]]
    said = side_by_side.verdict_of(several)
    assert f"{told['test']['iteration-1']['RR@10']:.3f}" in said.sentence
    change = change_of(running)
    assert (change.first, change.last) == ("untrained", "iteration-1")
    assert "the last state measured is iteration-1; the last logged step of the retriever is" in so_far(running)


def test_time_is_told_of_each_model(ar2):
    drawn = drawn_of(ar2, "cost", "cost_summary")[1]
    steps = {row["stage"]: row["steps"] for row in drawn["cost"].table.records()}
    assert (steps["train retriever"], steps["train ranker"]) == (8, 4 + 6)
    assert drawn["cost_summary"].table.records()[0]["steps"] == 18


def test_what_a_negative_is_counted_by_is_named(ar2, ranker, hardneg):
    assert "query rank 1, refresh 1," in hardneg("inspect", str(ar2))[1]
    assert ", episode 1," in hardneg("inspect", str(ranker))[1]
    assert ", refresh 1</p>" in audit_page(hn.audit(ar2, bm25=False, thresholds={"text": 0.0})).decode()
    assert [explorer_data(opened_at(one))["counted"] for one in (ar2, ranker)] == ["refresh", "episode"]
    assert "data.counted" in asset("explorer.js")


def test_a_long_table_in_the_terminal_ends_with_the_final_model(ar2):
    found = Table.of([{"state": f"state {i}", "RR@10": 0.5} for i in range(1, 41)])
    lines = short_table(found).splitlines()[2:]
    assert [line.split("  ")[0] for line in (lines[0], lines[19], lines[20], lines[21], lines[-1])] == [
        "state 1",
        "state 20",
        "... 10 more ...",
        "state 31",
        "state 40",
    ]
    assert len(lines) == 31
    assert len(short_table(Table.of(found.records()[:30])).splitlines()) == 32


def test_a_ranker_alone_has_its_own_figures(ranker):
    opened, drawn = drawn_of(ranker)
    assert opened.notes == []
    assert drawn["learning_curve"].table.column("step") == list(range(1, 7))
    told = json.loads((ranker / "results.json").read_text())
    gain = drawn["reranking"].table.where(split="test", measure="RR@10").records()[0]
    assert gain["re-ranked"] == told["reranked"]["test"]["reranked"]["RR@10"]
    assert not drawn["iterations"].meant
    assert drawn["reranking"].spec


def test_the_retriever_that_a_ranker_re_ranks_is_no_state_of_the_ranker(world, tmp_path, monkeypatch):
    curves = []
    monkeypatch.setattr(
        "hardneg.diagnostics.results.draw_learning_curve", lambda *args, **named: curves.append((args, named))
    )
    out = tmp_path / "ranker"
    hn.train_ranker(world.collection, world.model, out, device="cpu", retriever=world.model, **RANKER)
    opened, drawn = drawn_of(out, "measured", "forgetting", "swing", "composition")
    dev = json.loads((out / "results.json").read_text())["dev"]
    assert dev["retriever"] != dev["bm25"]
    (((*_, lines), named),) = curves
    assert named["baseline"] == ("retriever", dev["retriever"]["RR@10"])
    assert [value for _, value in lines[0]][1:] == [dev["final"]["RR@10"]]
    table = drawn["measured"].table
    assert table.column("state") == ["untrained", "final"]
    assert set(table.column("baseline")) == {"retriever"}
    assert set(table.column("baseline value")) == {dev["retriever"]["RR@10"]}
    assert "retriever 0." in json.dumps(drawn["measured"].spec)
    assert not any(drawn[name].meant for name in ("forgetting", "swing", "composition"))
    beside = side_by_side.results_table(Several([opened, opened])).where(split="dev").column("state")
    assert beside[:4] == ["bm25", "retriever", "untrained", "final"]


def test_training_a_ranker_writes_a_report(world, tmp_path, monkeypatch):
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    monkeypatch.setenv("HARDNEG_REPORT", "1")
    hn.train_ranker(world.collection, world.model, tmp_path / "exp", device="cpu", **RANKER | {"steps": 1})
    assert "re-ranking" in (tmp_path / "exp/report.html").read_text()
