"""The verdict against the state that in-batch negatives alone trained: which state that is, and what is said."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

import hardneg as hn
from hardneg.api.diagnose import opened_at
from hardneg.experiment.course import course_of
from hardneg.experiment.folder import write_settings
from hardneg.negatives.pool import SOURCES
from hardneg.report.facts_forgetting import forgetting_table, forgotten_table, ranks_of
from hardneg.report.facts_negatives import composition_table, informative_table, pools_table, swing_table
from hardneg.report.facts_scores import overlap_table
from hardneg.report.in_batch import in_batch, started_in_batch, state_within, trained_start
from hardneg.report.lists import mined_lists
from hardneg.report.make import Report
from hardneg.report.table import NotRecorded
from hardneg.report.verdict import Beside, verdict
from worlds.tiny_world import COMMON, SETTINGS, one_thread  # noqa: F401


def row(difference, p, against):
    low, high = difference - 0.1, difference + 0.1
    known = {"a": "final", "b": against, "measure": "RR@10", "difference": difference}
    return known | {"interval": [low, high], "p": p, "p_holm": p}


def told(*rows):
    means = {name: {"RR@10": 0.5} for name in ("final", "untrained", "bm25", "episode-1")}
    return {"test": means, "compared_on": "test", "comparisons": list(rows)}


@pytest.mark.parametrize(
    ("recipe", "settings", "episodes"),
    [
        ("ance-tele", {"first": "in_batch"}, {1}),
        ("ance-tele", {"first": "in_batch", "start_episode": 2}, set()),  # it begins with a pool
        ("ance-tele", {"first": "mined"}, set()),
        ("warmup", {"mixtures": ["in_batch"]}, {1}),
        ("warmup", {"mixtures": ["in_batch", "in_batch", "bm25", "in_batch"]}, {1, 2}),
        ("warmup", {"mixtures": ["bm25", "in_batch"]}, set()),  # the second model has seen BM25's negatives
        ("warmup", {"mixtures": ["bm25+in_batch"]}, set()),
        ("star", {}, set()),
    ],
)
def test_which_episodes_are_in_the_batch_alone(recipe, settings, episodes):
    assert {*course_of({"recipe": recipe, "settings": settings}).in_batch} == episodes


def test_the_verdict_says_how_the_final_model_does_against_the_in_batch_state():
    results = told(row(0.2, 0.001, "untrained"), row(0.1, 0.01, "bm25"))
    without = verdict(results)
    found = verdict(results, in_batch=Beside("episode-1, in the batch", row(0.05, 0.02, "episode-1")))
    assert found.sentence == without.sentence
    assert found.details[0].startswith("On test, the final model is better than episode-1, in the batch: RR@10")
    assert "difference +0.050, 95 % interval -0.050 to +0.150, p (Holm) = 0.020" in found.details[0]
    assert found.details[1:] == without.details
    assert found.advice == without.advice
    unsure = verdict(results, in_batch=Beside("it", row(0.05, 0.4, "episode-1")))
    assert "cannot be told apart from it" in unsure.details[0]
    assert "were not shown to be better than in-batch negatives" in unsure.advice[0]


def test_a_start_in_the_batch_is_named_in_the_sentence_and_told_once():
    first = row(0.2, 0.001, "untrained")
    found = verdict(told(first, row(0.1, 0.01, "bm25")), in_batch=Beside("the model it started from", first))
    assert "is better than the model it started from: RR@10" in found.sentence
    assert len(found.details) == 1
    assert "BM25" in found.details[0]


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    """An experiment whose first of two episodes is in the batch."""
    out = tmp_path_factory.mktemp("two") / "tele"
    settings = SETTINGS | {"store_dtype": "float32", "episodes": 2, "first": "in_batch", "keep": "last"}
    hn.train_ance_tele(world.collection, world.model, out, device="cpu", **settings)
    return out


def test_an_experiment_with_an_in_batch_episode_is_compared_with_its_state(trained):
    opened = opened_at(trained)
    assert state_within(opened) == "episode-1"
    found = in_batch(opened)
    results = json.loads((trained / "results.json").read_text())
    test = results["test"]
    assert (found.row["a"], found.row["b"], found.row["measure"]) == ("final", "episode-1", "RR@10")
    assert found.row["difference"] == pytest.approx(test["final"]["RR@10"] - test["episode-1"]["RR@10"])
    low, high = found.row["interval"]
    assert low <= found.row["difference"] <= high
    assert 0 < found.row["p"] <= 1
    page = hn.diagnose(trained, save=False)
    assert any("episode-1, which in-batch negatives alone trained" in line for line in page.verdict.details)


def test_forgetting_has_a_row_from_the_first_state_to_the_last(trained):
    opened = opened_at(trained)
    rows = forgetting_table(opened).records()
    ranks = ranks_of(opened)[1]
    first, *_, last = ranks.values()
    assert len(rows) == len(ranks)  # one for each step from state to state, and one more
    assert (rows[-1]["from"], rows[-1]["to"]) == (rows[0]["from"], rows[-2]["to"])
    assert rows[-1]["forgotten"] == np.mean(last < first)
    assert rows[-1]["learned"] == np.mean(last > first)


def test_forgetting_has_a_row_to_the_state_that_was_kept(trained):
    """The last state is thrown away if an earlier one is kept."""
    opened = opened_at(trained)
    before, ranks = forgetting_table(opened).records(), ranks_of(opened)[1]
    for kept, found in (("episode-1", True), ("untrained", False), ("step-4", False), ("last", False)):
        opened.__dict__["results"] = opened.results | {"kept": {"state": kept}}
        rows = forgetting_table(opened).records()
        assert rows[: len(before)] == before
        assert [(row["from"], row["to"]) for row in rows[len(before) :]] == [
            ("untrained", f"{kept} (kept)")
        ] * found
        if found:
            assert rows[-1]["forgotten"] == np.mean(ranks[kept] < ranks["untrained"])


def test_without_the_collection_or_where_no_later_state_is_kept_nothing_is_compared(trained, tmp_path):
    copied = shutil.copytree(trained, tmp_path / "copy")
    (copied / "places.json").unlink()
    assert in_batch(opened_at(copied)) is None
    for kept in ("episode-1", "untrained"):  # neither has seen a mined negative
        opened = opened_at(trained)
        opened.__dict__["results"] = opened.results | {"kept": {"state": kept}}
        assert in_batch(opened) is None


def test_a_model_of_an_in_batch_experiment_is_known_as_the_start(world, tmp_path):
    few = {name: COMMON[name] for name in ("queries_per_step", "precision", "store_dtype")} | {"steps": [2]}
    warm, mined = tmp_path / "warm", tmp_path / "mined"
    hn.train_warmup(world.collection, world.model, warm, device="cpu", mixtures=["in_batch"], **few)
    options = SETTINGS | {"store_dtype": "float32", "episodes": 1, "steps": 2}
    hn.train_ance_tele(world.collection, str(warm / "model"), mined, device="cpu", **options)
    opened = opened_at(mined)
    assert state_within(opened) is None
    assert started_in_batch(opened)
    assert trained_start(opened) == "warm/model"
    assert trained_start(opened_at(warm)) is None
    said = Report(opened, (), "").verdict
    assert "untrained" not in said.sentence
    assert said.details[-1].startswith("The model that it started from, warm/model, was trained before; tables")
    found = in_batch(opened)
    assert found.row == opened.results["comparisons"][0]
    assert found.row["b"] == "untrained"
    assert (
        "the model it started from, which in-batch negatives alone trained"
        in verdict(opened.results, in_batch=found).sentence
    )
    other = opened_at(mined)
    record = json.loads((warm / "settings.json").read_text())
    for name in ("digest", "hardneg"):
        record.pop(name, None)
    assert record.pop("course")["only_in_batch"]
    write_settings(warm, record)
    assert started_in_batch(other)  # as experiments of earlier versions are read
    record["settings"]["mixtures"] = ["bm25"]
    write_settings(warm, record)
    assert not started_in_batch(other)
    (warm / "model/manifest.json").write_text('{"files": [{"path": "model.safetensors"}]}')  # another program's
    assert not started_in_batch(other)
    shutil.rmtree(warm)
    assert in_batch(opened_at(mined)) is None


def test_an_episode_in_the_batch_has_no_pool_that_overlaps_or_swings(trained):
    """Its pool is empty, so 0 would say that no training negative was met, and that none swung."""
    opened = opened_at(trained)
    assert not len(opened.pools["episode 1"].passage_rows)
    assert set(overlap_table(opened).column("state")) == {"final"}
    lists = dict(mined_lists(opened))
    three = {f"episode {i}": one for i, one in enumerate([*lists.values(), *lists.values()][:3], 1)}
    opened.kept["lists of query"] = three
    pools = list(opened.pools.values())
    opened.__dict__["pools"] = dict(zip(three, [pools[0], pools[1], pools[1]], strict=True))
    assert set(swing_table(opened).column("of")) == {"candidates"}


def test_lists_that_no_negative_was_drawn_from_are_in_no_composition(trained):
    """The state before the episode in the batch is searched to be examined, and mines nothing."""
    opened = opened_at(trained)
    assert set(mined_lists(opened)) == {"episode 1", "episode 2"}
    assert {row["list"][:9] for row in composition_table(opened).records()} == {"episode 2"}
    found = pools_table(opened)
    assert set(found.column("list")) == {"episode 2"}
    assert not any("episode 1" in name for name in found.column("first in"))


def test_a_given_pool_is_drawn_from_no_list(trained):
    """Its negatives are of source ``file``, whatever the state of its episode retrieves."""
    opened = opened_at(trained)
    mined = opened.pools["episode 2"]
    given = replace(mined, sources=np.full_like(mined.sources, SOURCES.index("file")))
    opened.__dict__["pools"] = {"episode 1": opened.pools["episode 1"], "episode 2": given}
    with pytest.raises(NotRecorded, match="No negatives were drawn"):
        composition_table(opened)
    (row,) = pools_table(opened).records()
    assert (row["list"], row["first in"], row["share"]) == ("episode 2", "file", 1.0)
    assert (mined.mined > 0, given.mined) == (True, 0)
    assert [row["mined"] for row in opened.timing if row["stage"] == "mine"] == [0, mined.mined]


def test_negatives_of_the_batch_are_not_looked_for_among_fewer_hits_than_those_of_the_pool(trained):
    opened = opened_at(trained)
    told, said = opened.settings["result_settings"], []
    for depth in (100, 19):
        told["depth"] = depth
        said.append(set(informative_table(opened).column("negatives")))
    assert said[0] - said[1] == {"in-batch, when mined"}


def test_negatives_of_a_pool_are_not_called_those_of_training(trained):
    """A pool has many negatives of a query, and steps draw a few of them."""
    opened = opened_at(trained)
    drawn = {tuple(line.split("\t")[2:4]) for line in (trained / "margins.tsv").read_text().splitlines()}
    pool = opened.pools["episode 2"]
    assert len(drawn) < len(pool.passage_rows)
    said = [*informative_table(opened).column("negatives"), *forgotten_table(opened).columns]
    assert "in the pool, after training drew from it" in said
    assert not any("trained on" in one for one in said)
