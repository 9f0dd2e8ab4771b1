"""The study of the audit: what is held out, what is planted, and its figures, on a tiny world."""

import sys
from pathlib import Path

import numpy as np
import pytest

import loaded
from hardneg.data.collection import Collection
from hardneg.negatives.pool import load_pool
from worlds.tiny_records import positives_of, run_of
from worlds.tiny_world import one_thread  # noqa: F401

STUDIES = Path(__file__).resolve().parents[2] / "studies"


@pytest.fixture(scope="module")
def study():
    """The study's module. What it imports stays imported: other studies hold the same harness."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(STUDIES))
        import audit

        yield audit


@pytest.fixture(scope="module")
def plants(study):
    return sys.modules["audit_plants"]


@pytest.fixture(scope="module")
def told(study):
    return sys.modules["audit_figures"]


@pytest.fixture(scope="module")
def signals(study):
    return sys.modules["audit_signals"]


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


def test_precision_and_recall_by_hand(told):
    truth = np.array([True, True, False, False])
    assert told.precision_recall(np.array([True, False, True, False]), truth) == {
        "named": 2,
        "precision": 0.5,
        "recall": 0.5,
    }
    assert told.precision_recall(np.zeros(4, bool), truth)["precision"] == 0


def test_a_ranking_by_hand(told, monkeypatch):
    monkeypatch.setattr(told, "LENGTHS", (1, 3, 9))
    found = told.ranked(np.array([True, False, True, False]))
    assert found == {"hits": {"1": 1, "3": 2}, "average precision": pytest.approx((1 + 2 / 3) / 2)}
    assert told.ranked(np.zeros(2, bool))["average precision"] == 0


def test_a_threshold_is_the_lowest_from_which_on_enough_is_planted(told):
    grid = {"-0.1": (9, 0.2), "0.2": (5, 0.6), "0.3": (0, 0.0)}
    draws = [{value: {"named": n, "precision": p} for value, (n, p) in grid.items()}] * 2
    assert told.lowest(draws, 0.5) == 0.2
    assert told.lowest(draws, 0.1) == -0.1
    assert told.lowest(draws, 0.7) is None


def test_a_signal_that_names_none_in_a_draw_has_no_precision_there(told):
    draws = [
        {"thresholds": {"text": 0.3}, "signals": {"text": {"named": n, "precision": p, "recall": 0.0}}}
        for n, p in ((0, 0.0), (1, 1.0))
    ]
    assert told.signals_table(draws).splitlines()[-1] == "| text | 0.3 | 0.5 | 1.00 | 0.00 |"
    assert told.signals_table(draws[:1]).splitlines()[-1] == "| text | 0.3 | 0 | – | 0.00 |"


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


@pytest.mark.slow
def test_three_pools_are_trained_on(study, world, tmp_path, monkeypatch):
    loaded.in_studies(monkeypatch)
    small = ["--train", "--seeds", "1", "--steps", "2", "--queries-per-step", "4", "--dev-queries", "5"]
    text = study.execute(chosen_of(study, world, tmp_path, *small, "--cells", "2"))
    assert "| filtered | not run |" in text
    text = study.execute(chosen_of(study, world, tmp_path, *small))
    assert "| filtered − planted |" in text
    assert "mean of 1 seed, 5 queries" in text
    assert study.execute(chosen_of(study, world, tmp_path, *small, "--only-report")) == text


SMALL = [
    "--signals",
    "--signal-draws",
    "1",
    "--signal-queries",
    "12",
    "--signal-steps",
    "2",
    "--signal-batch",
    "4",
]


@pytest.mark.slow
def test_signals_that_need_a_training(study, signals, world, tmp_path, monkeypatch):
    loaded.in_studies(monkeypatch)
    chosen = chosen_of(study, world, tmp_path, *SMALL, "--signal-dev", "5")
    text = study.execute(chosen)
    kept = sys.modules["outcomes"].read(tmp_path / "kept.jsonl")
    facts = kept["collection", "signals-0"].facts
    told = signals.listen(
        signals.study_of(chosen, 0).folder, signals.folder_of(chosen, 0), signals.study_of(chosen, 0).cache()
    )
    assert [one.name for one in told.every.signals] == ["text", "ranker", "retriever", "both", "learned"]
    assert [one.name for one in told.before.signals] == ["text", "retriever", "both"]
    assert facts["ranking"].keys() >= {"ranker", "learned", "all together, before training"}
    assert facts["ranking"]["retriever, before training"] != facts["ranking"]["retriever"]
    assert set(facts["dev"]) == {"bm25", "untrained", "first", "second", "ranker"}
    assert len({tuple(one.run.scores.tolist()) for one in told.states}) == 3
    (tmp_path / "again").mkdir()
    (tmp_path / "kept.jsonl").rename(tmp_path / "again" / "kept.jsonl")
    again = chosen_of(study, world, tmp_path / "again", *SMALL, "--signal-dev", "5", "--only-report")
    assert study.execute(again) == text
    more = chosen_of(study, world, tmp_path / "again", *SMALL, "--signal-dev", "6", "--only-report")
    assert "trained states: not run." in study.execute(more)


def test_the_pool_of_a_draw_knows_what_was_planted(study, signals, world, tmp_path):
    chosen = chosen_of(study, world, tmp_path, *SMALL, "--signal-dev", "5", "--splits", "train,test")
    chosen.name = "tiny"
    work = study.Work(chosen)
    signals.prepare(work.searched, chosen, 0, tmp_path / "pool")
    part = Collection.open(signals.folder_of(chosen, 0))
    pool = load_pool(tmp_path / "pool", n_passages=part.n_passages, collection=part.digest)
    planted = pool.sources == signals.PLANTED
    whole, judged = world.collection, {}
    for split in ("train", "dev", "test"):
        found = whole.qrels(split).positives().some()
        judged |= {whole.query_ids[row]: set(found.of(i).tolist()) for i, row in enumerate(found.query_rows)}
    hidden = [
        whole.passage_ids.rows([part.passage_ids[row]])[0] in judged[part.query_ids[pool.query_rows[i]]]
        for i in range(len(pool))
        for row in pool.passage_rows[pool.offsets[i] : pool.offsets[i + 1]].tolist()
    ]
    assert hidden == planted.tolist()
    per_query = np.add.reduceat(planted, pool.offsets[:-1])
    assert sorted(per_query) == [0] * 6 + [1] * 6
    train, dev = (set(part.qrels(split).query_rows.tolist()) for split in ("train", "dev"))
    assert (len(train), len(dev), train & dev) == (12, 5, set())
    assert {part.query_ids[row] for row in train} <= set(whole.query_ids.take(whole.qrels("train").query_rows))


TRAINED = ["--train", "--steps", "60", "--threads", "1"]
ON_THE_PAGE = {
    "beir:cranfield": ["--splits", "test"],
    "beir:cacm": ["--splits", "test"],
    "pydocs": ["--splits", "train,dev,test", "--signals"],
    "beir:scifact": ["--splits", "train,test"],
    "qa:wiki_openqa": ["--splits", "train", "--signals", *TRAINED],
}


@pytest.mark.parametrize("name", ON_THE_PAGE)
def test_the_page_is_what_its_kept_outcomes_say(study, tmp_path, name):
    pages = STUDIES.parent / "docs/studies"
    kept = tmp_path / "audit.jsonl"
    kept.write_bytes((pages / "audit.jsonl").read_bytes())
    given = ["--data", name, "--out", str(tmp_path / "none"), "--kept", str(kept), "--only-report"]
    more = ON_THE_PAGE[name]
    text = study.execute(study.command_line("", study.options).parse_args([*given, *more]))
    assert text in (pages / "audit.md").read_text()
    assert ("| planted − clean |" in text) == ("--train" in more)
    assert ("| learned | 0.0 |" in text) == ("--signals" in more)
    assert "not run" not in text
