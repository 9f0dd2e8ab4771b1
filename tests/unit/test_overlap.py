"""Runs and judgements that have no query in common, or few, are not scored as if nothing were wrong."""

import gzip

import pytest

import hardneg as hn
from hardneg.data.collection import Collection
from hardneg.errors import InputError

QUERIES = 10


def run_file(path, queries, split="test"):
    path.write_text("".join(f"{split}-{i} Q0 p{i} 1 1.0 made\n" for i in queries))
    return path


def qrels_file(path, queries, split="test"):
    path.write_text("".join(f"{split}-{i} 0 p{i} 1\n" for i in queries))
    return path


@pytest.fixture
def collection(tmp_path):
    passages = [(f"p{i}", f"text {i}") for i in range(QUERIES)]
    qrels = {split: {f"{split}-{i}": [f"p{i}"] for i in range(QUERIES)} for split in ("dev", "test")}
    queries = {id_: f"query {id_}" for judged in qrels.values() for id_ in judged}
    return Collection.from_lists(passages, queries, qrels, to=tmp_path / "collection")


def judging(tmp_path, collection, way):
    if way == "data":
        return ["--data", collection.path]
    return ["--qrels", qrels_file(tmp_path / "qrels.txt", range(QUERIES))]


@pytest.mark.parametrize("way", ["data", "qrels"])
@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_no_query_in_common_is_a_fault(tmp_path, collection, hardneg, command, way):
    runs = [run_file(tmp_path / f"{name}.trec", range(QUERIES), "dev") for name in "ab"]
    if command == "compare":
        run_file(runs[0], range(QUERIES))  # one of the two is enough
    runs = runs[1:] if command == "evaluate" else runs
    per_query = tmp_path / "values.jsonl"
    status, out, err = hardneg(command, *runs, *judging(tmp_path, collection, way), "--per-query", per_query)
    assert (status, out) == (3, "")
    assert f"{tmp_path / 'b.trec'}: NO_OVERLAP: none of the 10 judged queries of " in err
    assert ("split 'test'" in err) == (way == "data")
    assert len(err.splitlines()) == 1
    assert not per_query.exists()


@pytest.mark.parametrize("way", ["data", "qrels"])
@pytest.mark.parametrize("command", ["evaluate", "compare"])
@pytest.mark.parametrize(("found", "warned"), [(1, True), (4, True), (5, False), (10, False)])
def test_under_half_is_told_on_the_first_line(tmp_path, collection, hardneg, command, way, found, warned):
    runs = [run_file(tmp_path / "a.trec", range(QUERIES)), run_file(tmp_path / "b.trec", range(found))]
    runs = runs[1:] if command == "evaluate" else runs
    status, out, err = hardneg(command, *runs, *judging(tmp_path, collection, way), "--measures", "RR@10")
    assert status == 0
    assert out
    lines = err.splitlines()
    assert bool(lines) == warned
    if warned:
        assert lines[0].startswith(f"WARNING: {tmp_path / 'b.trec'}: only {found} of the 10 judged queries of ")


def test_answers_count_as_judgements_do(tmp_path):
    qrels = {
        "test": {f"test-{i}": {f"p{i}": 1} for i in range(4)},
        "dev": {f"dev-{i}": {"p0": 1} for i in range(4)},
    }
    queries = {id_: "text" for judged in qrels.values() for id_ in judged}
    answers = {f"test-{i}": ["text"] for i in range(4)}
    passages = [(f"p{i}", f"text {i}") for i in range(4)]
    made = Collection.from_lists(passages, queries, qrels, answers=answers, to=tmp_path / "c")
    run = run_file(tmp_path / "a.trec", range(4), "dev")
    with pytest.raises(InputError, match="NO_OVERLAP"):
        hn.evaluate(run, data=made, measures="Answer@5")
    assert hn.evaluate(run_file(run, range(4)), data=made, measures="Answer@5")["measures"] == {"Answer@5": 1.0}


def test_a_packed_run_is_named_too(tmp_path, collection):
    path = tmp_path / "a.trec.gz"
    path.write_bytes(gzip.compress(b"dev-1 Q0 p1 1 1.0 made\n"))
    with pytest.raises(InputError, match=r"a.trec.gz: NO_OVERLAP"):
        hn.evaluate(path, data=collection)


def test_judgements_in_memory_are_called_so(caplog):
    with pytest.raises(InputError, match="the run: NO_OVERLAP: none of the 1 judged queries of the qrels is in"):
        hn.evaluate({"a": {"p": 1.0}}, qrels={"b": {"p": 1}})
    hn.evaluate({"a": {"p": 1.0}}, qrels={"a": {"p": 1}, "b": {"p": 1}, "c": {"p": 1}})
    assert "the run: only 1 of the 3 judged queries of the qrels are in the run" in caplog.text


@pytest.mark.parametrize("way", ["data", "qrels"])
@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_a_run_without_any_judged_passage_is_told(tmp_path, collection, hardneg, command, way):
    run = tmp_path / "a.trec"
    other = "p" if way == "data" else "other"  # a collection refuses ids that it does not have
    run.write_text("".join(f"test-{i} Q0 {other}{9 - i} 1 1.0 made\n" for i in range(QUERIES)))
    runs = [run] if command == "evaluate" else [run_file(tmp_path / "b.trec", range(QUERIES)), run]
    _, out, err = hardneg(command, *runs, *judging(tmp_path, collection, way), "--measures", "RR@10")
    assert ("0.0000" if command == "evaluate" else "1.0000") in out
    assert (f"{run}: it holds no passage that" in err) == (way == "qrels")


@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_a_split_beside_a_file_of_judgements_is_refused(tmp_path, hardneg, command):
    runs = [run_file(tmp_path / f"{name}.trec", range(QUERIES)) for name in "ab"]
    runs = runs[1:] if command == "evaluate" else runs
    qrels = qrels_file(tmp_path / "qrels.txt", range(QUERIES))
    status, out, err = hardneg(command, *runs, "--qrels", qrels, "--split", "dev", "--measures", "RR@10")
    assert (status, out) == (2, "")
    assert "BAD_SETTING: split = dev, but the judgements are those of qrels" in err
    assert len(err.splitlines()) == 1
