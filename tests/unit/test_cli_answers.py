"""Answers on the command line: evaluate and compare by Answer@k, mine by answers."""

import json

import pytest

from hardneg import cli
from hardneg.data.collection import Collection
from hardneg.negatives.pool import load_pool
from hardneg.process import progress

PASSAGES = [("p0", "the cat sat"), ("p1", "a dog ran"), ("p2", "the cat ran"), ("p3", "a bird flew")]


@pytest.fixture
def hardneg(capsys, monkeypatch):
    """Run a command in this process: status, stdout, stderr."""
    monkeypatch.setattr(progress, "enabled", False)

    def run(*arguments):
        return cli.run([str(argument) for argument in arguments]), *capsys.readouterr()

    return run


@pytest.fixture
def data(tmp_path):
    queries = {"q0": "what sat or ran", "q1": "what flew or ran"}
    qrels = {"test": {"q0": ["p0"], "q1": []}}
    answers = {"q0": ["Cat"], "q1": ["bird", "eagle"]}
    Collection.from_lists(PASSAGES, queries, qrels, answers=answers, to=tmp_path / "c")
    (tmp_path / "a.trec").write_text(
        "q0 Q0 p1 1 2.0 x\nq0 Q0 p2 2 1.0 x\nq1 Q0 nowhere 1 2.0 x\nq1 Q0 p3 2 1.0 x\n"
    )
    (tmp_path / "b.trec").write_text("q0 Q0 p2 1 2.0 x\nq1 Q0 p1 1 2.0 x\n")
    return tmp_path / "c"


def test_evaluate_by_answers(hardneg, data, tmp_path):
    command = ["evaluate", tmp_path / "a.trec", "--data", data, "--measures", "Answer@1 Answer@2 RR@10"]
    status, out, _ = hardneg(*command, "--json", "--per-query", tmp_path / "per.jsonl")
    assert status == 0
    assert json.loads(out) == {
        "measures": {"Answer@1": 0.0, "Answer@2": 1.0, "RR@10": 0.0},
        "queries": 2,
        "missing": 0,
        "unjudged": 0,
        "counted": {"Answer@1": 2, "Answer@2": 2, "RR@10": 1},
    }
    rows = [json.loads(line) for line in (tmp_path / "per.jsonl").read_text().splitlines()]
    assert rows[0] == {"query_id": "q0", "Answer@1": 0.0, "Answer@2": 1.0, "RR@10": 0.0}
    assert rows[1] == {"query_id": "q1", "Answer@1": 0.0, "Answer@2": 1.0, "RR@10": None}
    table = hardneg(*command)[1]
    assert "2 queries; by measure: Answer@1 2, Answer@2 2, RR@10 1" in table


def test_compare_by_answers(hardneg, data, tmp_path):
    runs = [tmp_path / "a.trec", tmp_path / "b.trec"]
    status, out, _ = hardneg("compare", *runs, "--data", data, "--measures", "Answer@1 RR@10", "--json")
    assert status == 0
    found = {row["measure"]: (row["wins"], row["ties"], row["losses"]) for row in json.loads(out)}
    assert found == {"Answer@1": (0, 1, 1), "RR@10": (0, 1, 0)}


def test_no_answers_is_one_line(hardneg, data, tmp_path):
    (tmp_path / "qrels").write_text("q0 0 p0 1\n")
    status, out, err = hardneg(
        "evaluate", tmp_path / "a.trec", "--qrels", tmp_path / "qrels", "--measures", "Answer@20"
    )
    assert (status, out) == (2, "")
    assert err.startswith("NO_COLLECTION: Answer@20 looks for answers in texts")
    bare = Collection.from_lists(PASSAGES, {"q0": "x"}, {"test": {"q0": ["p0"]}}, to=tmp_path / "bare")
    status, out, err = hardneg("evaluate", tmp_path / "b.trec", "--data", bare.path, "--measures", "Answer@20")
    assert (status, out, err.count("\n")) == (3, "", 1)
    assert err.startswith("NO_ANSWERS: Answer@20")
    mine = ["mine", "--data", bare.path, "--split", "test", "--sources", "bm25", "--labels", "answers"]
    status, _, err = hardneg(*mine, "--out", tmp_path / "pool")
    assert (status, err.count("\n")) == (3, 1)
    assert err.startswith("NO_ANSWERS: labels = answers")


def test_mine_by_answers(hardneg, data, tmp_path):
    mine = ["mine", "--data", data, "--split", "test", "--sources", "bm25,random", "--count", 4]
    status, out, _ = hardneg(*mine, "--labels", "answers", "--out", tmp_path / "pool", "--json")
    assert status == 0
    assert json.loads(out)["queries"] == 2
    pool = load_pool(tmp_path / "pool")
    assert [pool.positives.of(i).tolist() for i in (0, 1)] == [[0], [3]]  # judged; found
    first, second = (set(pool.passage_rows[slice(*pool.offsets[i : i + 2])].tolist()) for i in (0, 1))
    assert (first, second) == ({1, 3}, {0, 1, 2})
    assert hardneg(*mine, "--out", tmp_path / "judged")[0] == 0
    assert load_pool(tmp_path / "judged").query_rows.tolist() == [0]
    status, _, err = hardneg(*mine, "--labels", "answer", "--out", tmp_path / "other")
    assert status == 2
    assert err.startswith("BAD_SETTING: --labels = 'answer'; did you mean 'answers'?")
