"""The study of the audit: what is held out, what is planted, and its figures, on a tiny world."""

import sys
from pathlib import Path

import numpy as np
import pytest

from worlds.tiny_records import positives_of, run_of
from worlds.tiny_world import one_thread  # noqa: F401

STUDIES = Path(__file__).resolve().parents[2] / "studies"


@pytest.fixture(scope="module")
def study():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(STUDIES))
        import audit

        yield audit
    for name in ("audit", "audit_plants", "audit_training", "harness", "outcomes"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def plants(study):
    return sys.modules["audit_plants"]


def test_no_query_loses_its_last_positive(plants):
    left, held = plants.hold_out(positives_of([[1, 2, 3], [4], [5, 6]]), 10, np.random.default_rng(0))
    assert np.diff(left.offsets).tolist() == [1, 1, 1]
    assert np.diff(held.offsets).tolist() == [2, 0, 1]
    assert sorted([*left.passage_rows, *held.passage_rows]) == [1, 2, 3, 4, 5, 6]
    assert len(plants.hold_out(positives_of([[1, 2, 3]]), 1, np.random.default_rng(0))[1].passage_rows) == 1


def test_a_question_gives_its_passage_for_the_first_other_one_with_an_answer(plants):
    class Answers:
        def contains(self, queries, passages):
            return np.isin(passages, [1, 2, 5])

    positives, run = positives_of([[1], [5], [7]]), run_of([[1, 3, 2, 5], [5, 6], [8, 5]])
    surrogates = plants.surrogates_of(run, positives, Answers())
    assert surrogates.tolist() == [2, -1, 5]
    left, held = plants.hold_answered(positives, surrogates, 9, np.random.default_rng(0))
    assert (left.passage_rows.tolist(), held.passage_rows.tolist()) == ([2, 5, 5], [1, 7])
    assert held.offsets.tolist() == [0, 1, 1, 2]


def test_queries_with_several_positives_are_looked_at_with_as_many_others(plants):
    found = plants.chosen_from(positives_of([[1], [2, 3], [4], [5], [6]]))
    assert (len(found), 1 in found.query_rows.tolist()) == (2, True)


def test_a_part_has_the_questions_of_its_passages(plants, world, tmp_path):
    positives = plants.joined(world.collection, ["train"])
    rows, inside = plants.part_of(world.collection, positives, 4, tmp_path)
    assert 4 <= len(inside) <= 12
    assert np.isin(inside.first(), rows).all()
    assert len(rows) < world.collection.n_passages


def test_precision_and_recall_by_hand(study):
    truth = np.array([True, True, False, False])
    assert study.precision_recall(np.array([True, False, True, False]), truth) == {
        "named": 2,
        "precision": 0.5,
        "recall": 0.5,
    }
    assert study.precision_recall(np.zeros(4, bool), truth)["precision"] == 0


def test_a_ranking_by_hand(study, monkeypatch):
    monkeypatch.setattr(study, "LENGTHS", (1, 3, 9))
    found = study.ranked(np.array([True, False, True, False]))
    assert found == {"hits": {"1": 1, "3": 2}, "average precision": pytest.approx((1 + 2 / 3) / 2)}
    assert study.ranked(np.zeros(2, bool))["average precision"] == 0


def test_a_threshold_is_the_lowest_from_which_on_enough_is_planted(study, monkeypatch):
    monkeypatch.setattr(study, "GRID", (0.1, 0.2, 0.3))
    grid = {"0.1": (9, 0.2), "0.2": (5, 0.6), "0.3": (0, 0.0)}
    draws = [{value: {"named": n, "precision": p} for value, (n, p) in grid.items()}] * 2
    assert study.lowest(draws, 0.5) == 0.2
    assert study.lowest(draws, 0.7) is None


def chosen_of(study, world, out, *more):
    given = ["--data", str(world.collection.path), "--model", world.model, "--out", str(out), "--threads", "1"]
    given += ["--kept", str(out / "kept.jsonl"), "--planted", "8", "--draws", "2", "--count", "5", "--depth", "20"]
    return study.command_line("", study.options).parse_args([*given, *more])


def test_the_study_of_a_tiny_world(study, world, tmp_path):
    text = study.execute(chosen_of(study, world, tmp_path))
    assert ": 8 planted among " in text
    assert "| all together |" in text
    assert "| retriever | 0.4 |" in text
    (tmp_path / "again").mkdir()
    for name in ("kept.jsonl", "kept.jsonl.gz"):
        if (tmp_path / name).is_file():
            (tmp_path / name).rename(tmp_path / "again" / name)
    assert study.execute(chosen_of(study, world, tmp_path / "again", "--only-report")) == text


def test_three_pools_are_trained_on(study, world, tmp_path):
    small = ["--train", "--seeds", "1", "--steps", "2", "--queries-per-step", "4", "--dev-queries", "5"]
    text = study.execute(chosen_of(study, world, tmp_path, *small, "--cells", "2"))
    assert "| filtered | not run |" in text
    text = study.execute(chosen_of(study, world, tmp_path, *small))
    assert "| filtered − planted |" in text
    assert "mean of 1 seed, 5 queries" in text
    assert study.execute(chosen_of(study, world, tmp_path, *small, "--only-report")) == text


@pytest.mark.parametrize("name", ["beir:cranfield", "pydocs", "qa:wiki_openqa"])
def test_the_page_is_what_its_kept_outcomes_say(study, tmp_path, name):
    pages = STUDIES.parent / "docs/studies"
    kept = tmp_path / "audit.jsonl"
    kept.write_bytes((pages / "audit.jsonl").read_bytes())
    given = ["--data", name, "--out", str(tmp_path / "none"), "--kept", str(kept), "--only-report"]
    trained = ["--train", "--steps", "60", "--threads", "1"]
    more = {
        "beir:cranfield": ["--splits", "test"],
        "pydocs": ["--splits", "train,dev,test"],
        "qa:wiki_openqa": ["--splits", "train", *trained],
    }[name]
    text = study.execute(study.command_line("", study.options).parse_args([*given, *more]))
    assert text in (pages / "audit.md").read_text()
    assert ("| planted − clean |" in text) == ("--train" in more)
